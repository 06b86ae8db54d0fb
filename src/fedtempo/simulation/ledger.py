"""What the units of a study have come to, wherever they run, and who is told of it in the thread that called.

    on_progress   several times a second: how much is done, how fast it goes
    on_measure    each measured point of each run once, in the order of time; those of earlier calls come first
    on_save       every `save_every` seconds, where there is a folder
    live          every second, where there is a folder: for those who watch it from outside

Whoever runs the units fills in `tables`, `counts` and `outcomes`, and calls `look` now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.engine.session import Snapshot
from fedtempo.simulation.live import Live
from fedtempo.simulation.units import Units

SAVE_SECONDS = 30.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Progress:
    """How far a study is: what `on_progress` of ``ft.simulate`` is told.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> heard = []
        >>> _ = ft.simulate(problem, ft.FedAvg(), times, until=20, on_progress=heard.append)
        >>> last = heard[-1]
        >>> last.done, last.updates, f"{last.units_done} of {last.units} units"
        (1.0, 20, '1 of 1 units')
    """

    done: float
    """Share of the virtual time of all runs that has been trained, from 0 to 1."""
    updates: int
    """Client updates since this call began, over all runs."""
    seconds: float
    units_done: int
    units: int
    memory: int = 0
    """Bytes that the study will take, estimated before it began."""
    began: float = 0.0
    """Share that was done when this call began."""

    @property
    def rate(self) -> float:
        """Client updates a second, over all runs."""
        return self.updates / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds to go at this pace; None while there is none."""
        gained = self.done - self.began
        return None if gained <= 0 else self.seconds * (1.0 - self.done) / gained


@dataclass
class Count:
    """What one unit has done; written by the one who runs it alone."""

    share: float = 0.0
    updates: int = 0


class Table(NamedTuple):
    """What a unit has measured so far: rows before `points` are filled and stay as they are."""

    points: int
    columns: Mapping[str, NDArray[Any]]
    """[points, seeds, (clients,) runs] a measure; [points] counts of rounds and updates."""
    diverged: NDArray[Any]
    """[seeds, runs] at which point; −1: it has not."""

    @classmethod
    def of(cls, outcome: Snapshot) -> Table:
        """What a saved unit holds."""
        columns = {name.removeprefix("table:"): a for name, a in outcome.items() if name.startswith("table:")}
        return cls(int(outcome["points_done"]), columns, outcome["diverged"])


OnPoints = Callable[[int, Table], None]
"""Told of a unit, by its number in `units.specs`, whenever it may have measured more."""


class Ledger:
    """The units of one study as its caller sees them."""

    def __init__(
        self,
        units: Units,
        folder: Folder | None,
        *,
        memory: int = 0,
        save_every: float = SAVE_SECONDS,
        on_progress: Callable[[Progress], None] | None = None,
        on_points: OnPoints | None = None,
        on_save: Callable[[], object] | None = None,
        live: Live | None = None,
    ) -> None:
        self.units, self.folder, self.save_every = units, folder, save_every
        self.counts = [Count() for _ in units.specs]
        self.outcomes: list[Snapshot | None] = [None] * len(units.specs)
        """By unit: what it has measured, as it was saved; None if it has not begun."""
        self.tables: dict[int, Callable[[], Table]] = {}
        """By unit: what it has measured by now, where that is more than its outcome."""
        self._memory = memory
        self._on_progress, self._on_points, self._on_save = on_progress, on_points, on_save
        self._live = live
        self._begin = time.perf_counter()
        self._began = 0.0
        self._told, self._saved = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """Since this call began."""
        return time.perf_counter() - self._begin

    def recall(self) -> None:
        """What earlier calls had measured."""
        for k, spec in enumerate(self.units.specs):
            saved = self.folder.read_unit(spec.unit.number, state=False) if self.folder is not None else None
            if saved is not None:
                self.note(k, saved)
        self._began = self._done

    @property
    def _done(self) -> float:
        return sum(count.share for count in self.counts) / len(self.counts) if self.counts else 1.0

    def note(self, k: int, saved: Snapshot) -> None:
        """A unit has come so far; its state is not kept."""
        self.outcomes[k] = {name: array for name, array in saved.items() if not name.startswith("state:")}
        if saved["finished"]:
            self.tables.pop(k, None)
        points = self.units.specs[k].points
        self.counts[k].share = 1.0 if saved["finished"] else int(saved["points_done"]) / points

    def is_finished(self, k: int) -> bool:
        """Whether a unit has come to its end."""
        outcome = self.outcomes[k]
        return outcome is not None and bool(outcome["finished"])

    def look(self, *, last: bool = False) -> None:
        """Tell progress and points, and save, where it is time to; `last`: all that there is to tell."""
        now = time.monotonic()
        if last or now - self._told > POLL_SECONDS / 2:
            self._told = now
            self._tell_points()
            if self._on_progress is not None:
                self._on_progress(self.progress())
            if self._live is not None:
                self._live.look(self, last=last)
        if not last and self._on_save is not None and self.folder is not None and now - self._saved > self.save_every:
            self._on_save()
            self._saved = time.monotonic()

    def _tell_points(self) -> None:
        if self._on_points is None:
            return
        for k in range(len(self.outcomes)):
            table = self.table(k)
            if table is not None:
                self._on_points(k, table)

    def table(self, k: int) -> Table | None:
        """What a unit has measured so far; None if it has not begun."""
        now, outcome = self.tables.get(k), self.outcomes[k]
        if now is not None:
            return now()
        return None if outcome is None else Table.of(outcome)

    def progress(self) -> Progress:
        """How far all of them are."""
        return Progress(
            done=self._done,
            updates=sum(count.updates for count in self.counts),
            seconds=self.seconds,
            units_done=sum(map(self.is_finished, range(len(self.counts)))),
            units=len(self.counts),
            memory=self._memory,
            began=self._began,
        )
