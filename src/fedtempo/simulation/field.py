"""A field of runs that are trained together for a while, and then some of them further: what a race needs.

    enter(study)           its runs stand at time 0
    train(runs, point)     those runs go on to a measuring point; the others are taken out for good

A lane is a unit of the study: runs of one scheme that share a timeline and with it a call of the engine. Taking runs
out does not change what the others do: a run in a field is the same run as in `simulate`'s study, bit by bit while as
many columns are computed, else up to the rounding of a program for another number of runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.problems.problem import Problem
from fedtempo.simulation.costs import Traffic, check_memory, estimate
from fedtempo.simulation.engine.devices import cores
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.numerics import Precision, numerics
from fedtempo.simulation.engine.session import Session, Snapshot, UnitSpec
from fedtempo.simulation.executors import Sender
from fedtempo.simulation.ledger import POLL_SECONDS, Table
from fedtempo.simulation.unit_runner import noted
from fedtempo.simulation.units import units_of
from fedtempo.simulation.worker import Packed, Stretch, Stretched, packed_study, train

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study


STRETCH_SECONDS = 5.0
"""So long a worker trains a lane before it gives it back, about."""
_PIECE = 1 << 10
"""Events of a piece on an accelerator, at most."""
_SMALL = 1 << 20
"""Bytes of a model that is trained faster than a program is compiled."""


class Run(NamedTuple):
    """One training."""

    scheme: str
    rate: float
    """The local learning rate; 0 where the local work has none."""
    seed: int


@dataclass
class Trained:
    """What is known of a run so far; NaN is what has not been measured, or was after it had diverged."""

    times: Floats
    measures: Mapping[str, Floats]
    """By name, one value for each of `times`; `rounds`, `updates` and `bytes` among them."""
    points: int
    """How many of them are done."""
    diverged: bool


@dataclass
class _Lane:
    """A unit of a study on its way."""

    spec: UnitSpec
    machine: Machine
    dtype: Precision
    traffic: Traffic
    alone: bool
    """Whether no other lane may go at the same time: its engine has threads of its own, or a device."""
    runs: list[list[Run]]
    """[runs][seeds] that go on."""
    padded: bool
    """Whether a program for another number of runs costs more than some idle ones."""
    packed: Packed | None
    """The study, where workers train."""
    problem: Problem
    places: list[int] = field(init=False)
    """Of the runs that go on, in the unit."""
    session: Session | None = None
    saved: tuple[tuple[int, ...], Snapshot] | None = None
    """Where workers train: what they have given back, and of which runs by their places."""
    updates: int = 0
    """Client updates so far, over its runs."""

    def __post_init__(self) -> None:
        self.places = list(range(len(self.runs)))

    def train(self, point: int, stop: threading.Event) -> None:
        """Up to a measuring point, or a stop."""
        with numerics(self.dtype):
            if self.session is None:
                self.session = Session(self.spec.narrowed(self.places), self.machine)
                self._narrow(range(len(self.runs)))
            going = self.session
            while not going.is_at(point) and not stop.is_set():
                piece = going.piece()
                self._count(going.train(piece, point - 1))
                going.measure(piece)

    def stretch(self, point: int, sender: Sender, seconds: float, *, with_problem: bool = False) -> Future[Stretched]:
        """Let a worker train it up to a measuring point, or for a while."""
        assert self.packed is not None
        runs = tuple(self._wide(self.places))
        before, saved = self.saved or (tuple(self.places), None)
        sent = sender.sent(self.packed, self.problem, with_problem=with_problem)
        number, spec = self.spec.unit.number, self.spec
        return sender.submit(
            train, Stretch(sent, number, spec.times, spec.capacity, before, runs, saved, point, seconds)
        )

    def take(self, trained: Stretched) -> None:
        """What a worker has given back."""
        assert trained.unit is not None
        self.saved = tuple(self._wide(self.places)), trained.unit
        self._count(trained.events)

    def _count(self, events: int) -> None:
        self.updates += events * len(self.runs) * len(self.spec.unit.seeds)

    def is_at(self, point: int) -> bool:
        """Whether so many points are measured, or all of its runs have diverged."""
        if self.saved is not None:
            return int(self.saved[1]["points_done"]) >= point or bool(self.saved[1]["finished"])
        return self.session is not None and self.session.is_at(point)

    def narrow(self, wanted: set[Run]) -> bool:
        """Keep the runs that are wanted; whether there are any."""
        kept = [k for k, runs in enumerate(self.runs) if any(run in wanted for run in runs)]
        if kept and len(kept) < len(self.runs):
            self.runs, self.places = [self.runs[k] for k in kept], [self.places[k] for k in kept]
            if self.session is not None:
                with numerics(self.dtype):
                    self._narrow(kept)
        return bool(kept)

    def _narrow(self, kept: Sequence[int]) -> None:
        """Go on with some of the runs."""
        assert self.session is not None
        wide = self._wide(kept)
        if wide != list(range(len(self.session.spec.unit.runs))):
            self.session.narrow(wide)

    def _wide(self, kept: Sequence[int]) -> list[int]:
        """The last is doubled until their number is one for which programs are there."""
        width = _width(len(kept)) if self.padded else len(kept)
        return [*kept, *[kept[-1]] * (width - len(kept))]

    def _table(self) -> tuple[Table, Sequence[int]] | None:
        """What is measured, and where in it the runs are that go on."""
        if self.saved is not None:
            places, unit = self.saved
            return Table.of(unit), [places.index(place) for place in self.places]
        if self.session is None:
            return None
        recorder = self.session.recorder
        return Table(recorder.points_done, recorder.table, recorder.diverged), range(len(self.runs))

    def found(self) -> dict[Run, Trained]:
        """What its runs have measured."""
        there = self._table()
        if there is None:
            return {}
        table, columns = there
        times = np.array([float(t) for t in self.spec.times])
        counts = {name: table.columns[name].astype(np.float64) for name in ("rounds", "updates")}
        for values in counts.values():
            values[table.points :] = np.nan
        traffic = self.traffic.totals(counts["updates"], counts["rounds"])
        shared = {**counts, "bytes": traffic["bytes_up"] + traffic["bytes_down"]}
        out: dict[Run, Trained] = {}
        for r, runs in zip(columns, self.runs, strict=True):
            for s, run in enumerate(runs):
                own = {name: values[:, s, r] for name, values in table.columns.items() if name not in counts}
                diverged = bool(table.diverged[s, r] >= 0)
                out[run] = Trained(times, {**own, **shared}, table.points, diverged)
        return out


class Field:
    """Runs of one or several studies of a problem."""

    def __init__(self, sender: Sender | None = None) -> None:
        """`sender`: gives the work to workers, in the place of this process."""
        self._sender = sender
        self._lanes: list[_Lane] = []
        self._updates_before = 0
        self.found: dict[Run, Trained] = {}
        """All runs that have ever been trained, as far as they came."""
        self.memory = 0

    def __contains__(self, run: Run) -> bool:
        """Whether a run stands ready to go on."""
        return any(run in runs for lane in self._lanes for runs in lane.runs)

    @property
    def updates(self) -> int:
        """Client updates so far, over all runs."""
        return self._updates_before + sum(lane.updates for lane in self._lanes)

    def enter(self, study: Study, times: Mapping[str, tuple[Fraction, ...]] | None = None) -> list[Run]:
        """The runs of a study at time 0; `times`: when those of a scheme, by its label, are measured."""
        units = units_of(study, 1)
        needed = estimate(units.specs, units.machines, len(units.specs))
        check_memory(needed)
        self.memory = max(self.memory, needed.total)
        entered: list[Run] = []
        packed = None if self._sender is None else packed_study(study, 1)
        for spec in units.specs:
            label = study.schemes[spec.unit.scheme].label
            runs = [
                [Run(label, float(study.traced[c].get(RATE) or 0.0), seed) for seed in spec.unit.seeds]
                for _, c in spec.unit.runs
            ]
            if times is not None:
                spec = replace(spec, times=times[label])
            traffic = units.traffic[spec.unit.scheme, spec.unit.static]
            alone = study.engine in ("waves", "torch")
            if study.engine == "waves":  # a piece goes in one call, and should not lead far beyond a rung
                spec = replace(spec, capacity=min(spec.capacity, _PIECE))
            machine = units.machines[spec.unit.machine]
            padded = study.engine != "torch" and machine.model_bytes <= _SMALL
            self._lanes.append(_Lane(spec, machine, study.dtype, traffic, alone, runs, padded, packed, study.problem))
            entered += [run for of_seeds in runs for run in of_seeds]
        return entered

    def train(
        self,
        wanted: Iterable[Run],
        point: int,
        *,
        tell: Callable[[], None] | None = None,
        deadline: float | None = None,
    ) -> bool:
        """Runs go on until so many points are measured; the others of their lanes are taken out.

        `tell` is called several times a second. Whether all came so far: not if `deadline`, of `time.monotonic`, came.
        Ctrl-C ends it within a second in KeyboardInterrupt, with what is known by then in `found`.
        """
        asked = set(wanted)
        going = [lane for lane in self._lanes if any(run in asked for runs in lane.runs for run in runs)]
        for lane in going:
            lane.narrow(asked)
        longest_first = sorted(going, key=lambda lane: -lane.updates)  # no core is left with a long one
        try:
            with noted() as interrupts:

                def look() -> bool:
                    """Whether to go on."""
                    if interrupts.came:
                        raise KeyboardInterrupt
                    if tell is not None:
                        tell()
                    return deadline is None or time.monotonic() < deadline

                if self._sender is None:
                    _in_threads(longest_first, point, look)
                else:
                    _by_workers(longest_first, point, look, self._sender)
        finally:
            for lane in going:
                for run, trained in lane.found().items():
                    before = self.found.get(run)
                    if trained.points and (before is None or before.points <= trained.points):
                        self.found[run] = trained
        return all(lane.is_at(point) for lane in going)

    def leave(self, kept: Iterable[Run]) -> None:
        """Take out all runs but these, and free their memory."""
        asked = set(kept)
        staying = [lane for lane in self._lanes if lane.narrow(asked)]
        self._updates_before += sum(lane.updates for lane in self._lanes if lane not in staying)
        self._lanes = staying


def _in_threads(lanes: Sequence[_Lane], point: int, look: Callable[[], bool]) -> None:
    """Each lane in a thread, up to a measuring point, or until `look` says to stop."""
    stop = threading.Event()
    threads = 1 if any(lane.alone for lane in lanes) else cores()
    with ThreadPoolExecutor(threads, thread_name_prefix="fedtempo") as pool:
        tasks = [pool.submit(lane.train, point, stop) for lane in lanes]
        try:
            running = set(tasks)
            while running:
                done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
                for task in done:
                    task.result()
                if not look():
                    stop.set()
        finally:
            stop.set()
            for task in tasks:
                task.cancel()


def _by_workers(lanes: Sequence[_Lane], point: int, look: Callable[[], bool], sender: Sender) -> None:
    """The same by workers; each gives its lane back after a while, from where any worker goes on."""
    out = {lane.stretch(point, sender, STRETCH_SECONDS): lane for lane in lanes if not lane.is_at(point)}
    goes_on = True
    try:
        while out:
            for task in wait(out, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                lane = out.pop(task)
                trained: Stretched | None = sender.result(task, id(lane))
                missing = False
                if trained is not None and trained.unit is not None:
                    lane.take(trained)
                elif trained is not None:
                    missing = sender.is_missing(task, trained.worker, lane.problem)
                if goes_on and not lane.is_at(point):
                    out[lane.stretch(point, sender, STRETCH_SECONDS, with_problem=missing)] = lane
            if goes_on and not look():
                goes_on = False
                for task in [task for task in out if task.cancel()]:
                    del out[task]
    except BaseException:
        sender.abandon(out)
        raise


def _width(runs: int) -> int:
    """The next power of two."""
    return 1 << (runs - 1).bit_length()
