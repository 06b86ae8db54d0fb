"""Weights & Biases: a run for each run, written into a folder without a network unless `mode` is "online".

    folder/wandb/offline-run-…-ID/run-ID.wandb        `wandb sync` sends it
    folder/wandb/fedtempo.json                        the IDs of the runs, by their names

A run keeps its ID. Offline, what earlier processes have written of a run is removed once it is told anew, so that each
point is there once. Virtual time is the axis of all measures (`define_metric`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtempo.errors import InputError, in_one_line
from fedtempo.files import make_folder, storage_errors, write_text
from fedtempo.simulation.run_info import RunInfo
from fedtempo.track.sink import Sink, Told, not_installed

MODES = ("offline", "online")
_LONGEST = 128
"""Characters of a run's name."""


class WandB(Sink):
    """Runs of one project."""

    def __init__(self, project: str, mode: str, folder: Path) -> None:
        super().__init__()
        if mode not in MODES:
            raise InputError(f"track wandb: mode {mode!r} is not known; use one of {', '.join(MODES)}")
        try:
            import wandb
        except ImportError:
            raise not_installed("Weights & Biases", "wandb") from None
        self.project, self.mode, self.folder = project, mode, folder
        self._wandb: Any = wandb
        self._runs: dict[str, Any] = {}
        self._ids: dict[str, str] | None = None
        self._begun: dict[str, int] = {}
        """Online: how many points were there, by the name of a run."""
        if mode == "online":
            with self._words():
                wandb.login()  # asks for a key, if need be, before anything runs

    @property
    def _names(self) -> Path:
        return self.folder / "wandb" / "fedtempo.json"

    def _write(self, told: Sequence[Told]) -> None:
        with self._words():
            self._name(told)
            for of_run in told:
                run = self._runs.get(of_run.run.name) or self._begin(of_run.run)
                for point in of_run.points.values():
                    if self.mode == "offline":
                        run.log({**point.values, "time": point.time, "point": point.step})
                    elif point.step >= self._begun[of_run.run.name]:
                        run.log({**point.values, "time": point.time, "point": point.step}, step=point.step)

    def _name(self, told: Sequence[Told]) -> None:
        """Give IDs to runs that have none, and remember them."""
        with storage_errors(self._names):
            make_folder(self._names.parent)
            if self._ids is None:
                self._ids = json.loads(self._names.read_text(encoding="utf-8")) if self._names.is_file() else {}
        fresh = {of_run.run.name: secrets.token_hex(4) for of_run in told if of_run.run.name not in self._ids}
        if fresh:
            self._ids |= fresh
            write_text(self._names, json.dumps(self._ids, indent=1))

    def _begin(self, info: RunInfo) -> Any:
        assert self._ids is not None
        number = self._ids[info.name]
        earlier = list((self.folder / "wandb").glob(f"offline-run-*-{number}"))
        if self.mode == "offline":
            for folder in earlier:
                shutil.rmtree(folder, ignore_errors=True)
        settings = self._wandb.Settings(
            silent=True, console="off", disable_code=True, disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        run = self._wandb.init(
            project=self.project,
            id=number,
            name=info.name[:_LONGEST],
            config=dict(info.labels),
            mode=self.mode,
            dir=str(self.folder),
            resume="allow" if self.mode == "online" else None,
            reinit="create_new",
            settings=settings,
        )
        run.define_metric("time")
        run.define_metric("*", step_metric="time")
        self._runs[info.name], self._begun[info.name] = run, int(run.step)
        return run

    def _end(self, stopped: bool) -> None:
        with self._words():
            for run in self._runs.values():
                run.finish(exit_code=int(stopped))
        self._runs.clear()
        self._ids = None

    @contextmanager
    def _words(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of W&B, its process or the network
            raise InputError(
                f"track wandb: {self.folder} cannot be written ({in_one_line(error)}); check the folder, and for mode "
                "'online' the network and `wandb login`"
            ) from error


def mode_of(given: str | None) -> str:
    """The mode that is asked for, else that of WANDB_MODE, else offline."""
    return given if given is not None else os.environ.get("WANDB_MODE", "offline")
