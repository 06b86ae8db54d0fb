"""``fedtempo show``: the table and the figures of a study or of a run on Flower, finished or still running.

Nothing is imported because a folder names it: names are printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtempo.cli import options as o
from fedtempo.clock.times_text import check_saved, is_run
from fedtempo.errors import DataMissing, InputError
from fedtempo.schemes.table import SCHEMES

if TYPE_CHECKING:
    from fedtempo.flower.record import Record
    from fedtempo.simulation.history.history import History


def read_run(path: Path) -> Record:
    """The record of the run; what it needs is imported only now."""
    check_saved(path)
    try:
        from fedtempo.flower import recorded
    except ImportError as error:
        raise InputError(f"{path} holds a run on Flower: {error}") from None
    return recorded(path)


def show(
    results: Annotated[
        Path, typer.Argument(help="A study's folder, a history file (.nc), a run's folder, or that of fedtempo app.")
    ],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            help="Draw into this file: x.svg, .png or .pdf; repeat for more.",
            show_default="a folder's own pictures; none for a history file",
        ),
    ] = None,
    measure: Annotated[
        str | None, typer.Option("--measure", help="Draw only this measure, as test_accuracy.", show_default=False)
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme", help="A run's own rule, to simulate it: package.module:attribute.", show_default=False
        ),
    ] = None,
    target: o.Target = None,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Print what happened in a study or in a run on Flower, and draw it.

    RESULTS is a study's folder (also while it runs), a history file (.nc), or the checkpoint folder of a run on Flower.

    A folder gets its pictures, as under fedtempo run; a history file is drawn only with --out.

    A run on Flower is compared with simulation and plan. What a folder names is printed, never imported:

    --scheme names a rule of your own, so that it can be simulated.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)

    if (results / "runs.json").is_file():
        if measure is not None or target is not None or scheme is not None:
            raise InputError(f"--measure, --target and --scheme: {results} holds runs of an app; leave them out")
        from fedtempo.cli.flower_app import present_app

        present_app(results, out)
        return
    if is_run(results):
        if measure is not None or target is not None:
            raise InputError(f"--measure and --target: {results} holds a run on Flower, not a study; leave them out")
        if scheme is not None:
            SCHEMES.load(scheme, "--scheme")
        present_run(results, out)
        return
    if scheme is not None:
        raise InputError(f"--scheme: {results} holds no run on Flower; leave it out")
    from fedtempo.simulation.history.history import History
    from fedtempo.simulation.shares import parts_of, study_in

    if not results.is_dir():
        if measure is not None and not out:
            raise InputError(f"--measure: it is drawn, so say where, as --out {measure}.svg")
        present(History.load(results), None, out=out, measure=measure, target=target)
        return
    if not (results / "history.nc").exists() and not parts_of(results):
        started = (results / "study.json").exists()
        raise DataMissing(
            f"{results}: nothing is measured yet; wait, or go on with fedtempo run --resume {results}"
            if started
            else f"{results}: no study is there, and no run of fedtempo.flower; check the path"
        )
    history, jobs = study_in(results)
    present(history, results, out=out, measure=measure, target=target)
    if jobs:
        typer.echo(f"\nPut together of {jobs}.")


def present_run(folder: Path, out: list[Path] | None = None) -> None:
    """Reality beside simulation and plan, on standard output and as figures in the folder."""
    record = read_run(folder)
    from fedtempo.flower.comparison import compared
    from fedtempo.flower.run_figure import save_run
    from fedtempo.flower.run_tables import show_run

    run = compared(record)
    show_run(run)
    paths = out or [folder / "run.png", folder / "run.svg"]
    for path in paths:
        save_run(run, path)
    typer.echo(f"\n{', '.join(str(path) for path in paths)}")


def present(
    history: History,
    folder: Path | None,
    *,
    out: list[Path] | None = None,
    measure: str | None = None,
    target: float | None = None,
) -> None:
    """The table on standard output; the figures where `out` says, or in the study's own folder, if it has one."""
    from fedtempo.report.history_figure import save_study
    from fedtempo.report.history_text import show_history

    show_history(history, target=target)
    name = measure or "study"
    paths = out or ([] if folder is None else [folder / f"{name}.png", folder / f"{name}.svg"])
    if not paths:
        typer.echo("\nNothing is drawn; add --out study.svg for a picture.")
        return
    if measure is None:
        save_study(history, *paths, target=target)
    else:
        for path in paths:
            history.plot(measure, path=path)
    typer.echo(f"\n{', '.join(str(path) for path in paths)}")
