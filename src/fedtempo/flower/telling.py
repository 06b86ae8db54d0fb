"""Points of a run as they come, for whoever wants to draw or keep them elsewhere: what the journal writes down is told.

    on_measure(run, time, values)     run: a RunInfo; time: seconds of training; values: numbers by name

Of each round that took updates, at its end:

    rounds, updates, bytes_up                    so far
    round/updates, round/weight, round/step      |S_n|, Σ ω_i(n), the server's step
    round/staleness, round/staleness_max         mean and largest n − ρ_i(n)
    train/…, evaluate/…, server/…                clients' measures of training and of evaluation, the server's own

Measures come when they are known, with the time of their round. A run that goes on tells first what its folder has, so
that everything is told from the beginning, and rounds that a crash has undone are not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtempo.errors import in_one_line
from fedtempo.flower.journal import Journal, Measured
from fedtempo.flower.record import scheme_of
from fedtempo.flower.result import RoundRecord
from fedtempo.flower.run_folder import RunFolder
from fedtempo.simulation.run_info import RunInfo
from fedtempo.simulation.telling import listeners

if TYPE_CHECKING:
    from fedtempo.simulation.telling import OnMeasure

log = logging.getLogger("flwr")


class PointsOfRun:
    """Listens to a journal, and tells what it hears; one that fails is told no more, and training goes on."""

    def __init__(self, told: Sequence[OnMeasure], run: RunInfo) -> None:
        self._told, self._run = list(told), run
        self._ends = {0: 0.0}
        """By round that took updates: when it ended."""
        self._updates = self._bytes_up = 0

    def begin(self) -> None:
        """Training starts."""
        self._tell(0, {"rounds": 0.0, "updates": 0.0, "bytes_up": 0.0})

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""
        if not closed.updates:
            return
        self._ends[closed.server_round] = closed.time
        self._updates += len(closed.updates)
        self._bytes_up += sum(update.bytes_up for update in closed.updates)
        stale = closed.staleness
        numbers = {
            "rounds": closed.server_round,
            "updates": self._updates,
            "bytes_up": self._bytes_up,
            "round/updates": len(closed.updates),
            "round/weight": sum(closed.weights),
            "round/step": closed.step,
            "round/staleness": sum(stale) / len(stale),
            "round/staleness_max": max(stale),
        }
        self._tell(closed.server_round, numbers)

    def measured(self, whose: Measured, server_round: int, plain: Mapping[str, Any]) -> None:
        """Measures of a round; lists are left out."""
        numbers = {f"{whose}/{name}": value for name, value in plain.items() if not isinstance(value, list)}
        if numbers:
            self._tell(server_round, numbers)

    def close(self) -> None:
        """That was all."""
        for one in self._told:
            if callable(close := getattr(one, "close", None)):
                try:
                    close()
                except Exception as error:
                    log.warning("on_measure: %r cannot be closed: %s", one, in_one_line(error))

    def _tell(self, server_round: int, numbers: Mapping[str, float]) -> None:
        time = self._ends.get(server_round)
        for one in list(self._told) if time is not None else ():
            try:
                one(self._run, time or 0.0, {name: float(value) for name, value in numbers.items()})
            except Exception as error:  # the user's function, or a sink's disk
                log.warning("on_measure: %r fails, and is told no more: %s", one, in_one_line(error))
                self._told.remove(one)


def run_of(about: Mapping[str, Any]) -> RunInfo:
    """Which run it is, by what its folder says it is set to."""
    labels = {
        "scheme": words_of(about["scheme"]),
        "weights": str(about["weights"]),
        "server_lr": float(about["server_lr"]),
        "seed": int(about.get("seed", 0)),
    }
    return RunInfo(labels)


def words_of(spec: Mapping[str, Any]) -> str:
    """A scheme as its folder names it; the server rule is not made, since that takes JAX."""
    rule = f" + {spec['server']['name']}" if "server" in spec else ""
    return scheme_of({key: value for key, value in spec.items() if key != "server"}).label + rule


class Followed:
    """The folder of a run, whose points are told as they are saved."""

    def __init__(self, folder: Path | str, on_measure: OnMeasure | Sequence[OnMeasure]) -> None:
        self._folder, self._told = RunFolder(folder), listeners(on_measure)
        self._points: PointsOfRun | None = None
        self._journal = Journal(scheme={}, server_lr=1.0, on_disk=False)
        self._done = 0

    def look(self) -> None:
        """Tell what has been saved since the last look."""
        about, lines = self._folder.lines()
        if self._points is None or len(lines) < self._done:  # or the run has begun anew
            self.close()
            self._points = PointsOfRun(self._told, run_of(about))
            self._journal, self._done = Journal(scheme={}, server_lr=1.0, on_disk=False), 0
            self._journal.listener = self._points
        self._journal.read(lines[self._done :], str(self._folder.path / "rounds.jsonl"))
        self._done = len(lines)

    def close(self) -> None:
        """No more looks."""
        if self._points is not None:
            self._points.close()
            self._points = None


def track_run(folder: Path | str, on_measure: OnMeasure | Sequence[OnMeasure]) -> None:
    """Tell every point of a run that is saved in a folder, running or ended, and close the sinks.

    ``track_run("run/", ft.track.tensorboard("runs/"))``

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import track_run
        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=3, folder="run")
        >>> track_run("run", lambda run, time, values: print(time, values["updates"]))
        0.0 0.0
        1.0 1.0
        2.0 3.0
        3.0 4.0
        >>> track_run("run", ft.track.csv("points.csv"))
    """
    followed = Followed(folder, on_measure)
    try:
        followed.look()
    finally:
        followed.close()
