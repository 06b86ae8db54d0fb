"""Curves in TensorBoard, MLflow and Weights & Biases, or as a table, while it trains: `on_measure=` takes what is here.

    with ft.track.tensorboard("runs/") as sink:
        sink(run, time, values)

`simulate` and the strategies on Flower close the sinks that they are given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedtempo.errors import InputError

if TYPE_CHECKING:
    from fedtempo.track.event_files import TensorBoard
    from fedtempo.track.mlflow_runs import MLflow
    from fedtempo.track.tables import CSV, Parquet
    from fedtempo.track.wandb_runs import WandB

__all__ = ["csv", "mlflow", "parquet", "tensorboard", "wandb"]


def tensorboard(folder: str | Path = "runs") -> TensorBoard:
    """Event files for ``tensorboard --logdir FOLDER``, a folder a run; needs ``pip install 'fedtempo[tensorboard]'``.

    Runs of the same name that are in the folder are replaced: give each study a folder of its own.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> _ = ft.simulate(problem, ft.FedFix(1), times, until=10, points=3, on_measure=ft.track.tensorboard("runs"))
        >>> from pathlib import Path
        >>> [run.name for run in Path("runs").iterdir()]  # then: tensorboard --logdir runs
        ['FedFix(1), time-based, local_lr 0.1, seed 0']
    """
    from fedtempo.track.event_files import TensorBoard

    return TensorBoard(_path(folder, "tensorboard"))


def mlflow(place: str | Path = "mlruns", experiment: str = "fedtempo") -> MLflow:
    """Runs in an experiment of MLflow; needs ``pip install 'fedtempo[mlflow]'``.

    `place` is a URI, as "http://…" or "sqlite:///mlflow.db", or a folder, which gets a database, mlflow.db. Runs of the
    same name in the experiment are gone on with where they are the same, and replaced where they are not.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> sink = ft.track.mlflow("mlruns", experiment="clocks")
        >>> _ = ft.simulate(problem, ft.FedFix(1), times, until=10, points=3, on_measure=sink)
        >>> from pathlib import Path
        >>> Path("mlruns/mlflow.db").is_file()  # then: mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db
        True
    """
    from fedtempo.track.mlflow_runs import MLflow

    _path(place, "mlflow")
    return MLflow(place, _name(experiment, "mlflow", "an experiment"))


def wandb(project: str = "fedtempo", *, mode: str | None = None, dir: str | Path = ".") -> WandB:
    """Runs in a project of Weights & Biases; needs ``pip install 'fedtempo[wandb]'``.

    `mode` is "offline", which writes into `dir` for ``wandb sync``, or "online"; without it WANDB_MODE says which, and
    else it is offline.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> sink = ft.track.wandb("clocks", mode="offline")
        >>> _ = ft.simulate(problem, ft.FedFix(1), times, until=10, points=3, on_measure=sink)
        >>> from pathlib import Path
        >>> len(list(Path("wandb").glob("offline-run-*")))  # then: wandb sync wandb/offline-run-*
        1
    """
    from fedtempo.track.wandb_runs import WandB, mode_of

    return WandB(_name(project, "wandb", "a project"), mode_of(mode), _path(dir, "wandb"))


def csv(path: str | Path) -> CSV:
    """A CSV file with a row for each run and time; what is there is replaced.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> _ = ft.simulate(problem, ft.FedFix(1), times, until=10, points=3, on_measure=ft.track.csv("points.csv"))
        >>> import pandas
        >>> pandas.read_csv("points.csv")[["scheme", "time", "loss"]].round(3)
              scheme  time   loss
        0  FedFix(1)   0.0  0.606
        1  FedFix(1)   5.0  0.536
        2  FedFix(1)  10.0  0.461
    """
    from fedtempo.track.tables import CSV

    return CSV(_path(path, "csv"))


def parquet(path: str | Path) -> Parquet:
    """A Parquet file with a row for each run and time; needs ``pip install 'fedtempo[parquet]'``.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> sink = ft.track.parquet("points.parquet")
        >>> _ = ft.simulate(problem, ft.FedFix(1), times, until=10, points=3, on_measure=sink)
        >>> import pandas
        >>> pandas.read_parquet("points.parquet")[["scheme", "time", "loss"]].round(3)
              scheme  time   loss
        0  FedFix(1)   0.0  0.606
        1  FedFix(1)   5.0  0.536
        2  FedFix(1)  10.0  0.461
    """
    from fedtempo.track.tables import Parquet

    return Parquet(_path(path, "parquet"))


def _name(given: object, what: str, of: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"track {what}: {given!r} is not the name of {of}; give a string")
    return given


def _path(given: object, what: str) -> Path:
    if not isinstance(given, str | Path) or not str(given).strip():
        raise InputError(f"track {what}: {given!r} is not a path; give a string or a Path")
    return Path(given)
