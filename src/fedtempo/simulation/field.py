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
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.simulation.costs import Traffic, check_memory, estimate
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.numerics import Precision, numerics
from fedtempo.simulation.engine.session import Session, UnitSpec
from fedtempo.simulation.ledger import POLL_SECONDS
from fedtempo.simulation.unit_runner import cores, noted
from fedtempo.simulation.units import units_of

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study


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
    """[runs][seeds] of the session."""
    padded: bool
    """Whether a program for another number of runs costs more than some idle ones."""
    session: Session | None = None
    updates: int = 0
    """Client updates so far, over its runs."""

    def train(self, point: int, stop: threading.Event) -> None:
        """Up to a measuring point, or a stop."""
        with numerics(self.dtype):
            if self.session is None:
                self.session = Session(self.spec, self.machine)
                self._narrow(range(len(self.runs)))
            going = self.session
            while not self.is_at(point) and not stop.is_set():
                piece = going.piece()
                self.updates += going.train(piece, point - 1) * len(self.runs) * len(going.spec.unit.seeds)
                going.measure(piece)

    def is_at(self, point: int) -> bool:
        """Whether so many points are measured, or all of its runs have diverged."""
        going = self.session
        return going is not None and (going.recorder.points_done >= point or going.finished)

    def narrow(self, wanted: set[Run]) -> bool:
        """Keep the runs that are wanted; whether there are any."""
        kept = [k for k, runs in enumerate(self.runs) if any(run in wanted for run in runs)]
        if kept and len(kept) < len(self.runs):
            self.runs = [self.runs[k] for k in kept]
            if self.session is None:
                self.spec = self.spec.narrowed(kept)
            else:
                with numerics(self.dtype):
                    self._narrow(kept)
        return bool(kept)

    def _narrow(self, kept: Sequence[int]) -> None:
        """Go on with some of the runs; the last is doubled until their number is one for which programs are there."""
        assert self.session is not None
        width = _width(len(kept)) if self.padded else len(kept)
        padded = [*kept, *[kept[-1]] * (width - len(kept))]
        if padded != list(range(len(self.session.spec.unit.runs))):
            self.session.narrow(padded)

    def found(self) -> dict[Run, Trained]:
        """What its runs have measured."""
        if self.session is None:
            return {}
        recorder, times = self.session.recorder, np.array([float(t) for t in self.spec.times])
        counts = {name: recorder.table[name].astype(np.float64) for name in ("rounds", "updates")}
        for values in counts.values():
            values[recorder.points_done :] = np.nan
        traffic = self.traffic.totals(counts["updates"], counts["rounds"])
        shared = {**counts, "bytes": traffic["bytes_up"] + traffic["bytes_down"]}
        out: dict[Run, Trained] = {}
        for r, runs in enumerate(self.runs):
            for s, run in enumerate(runs):
                own = {name: table[:, s, r] for name, table in recorder.table.items() if name not in counts}
                diverged = bool(recorder.diverged[s, r] >= 0)
                out[run] = Trained(times, {**own, **shared}, recorder.points_done, diverged)
        return out


class Field:
    """Runs of one or several studies of a problem."""

    def __init__(self) -> None:
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
            self._lanes.append(_Lane(spec, machine, study.dtype, traffic, alone, runs, padded))
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
        stop = threading.Event()
        threads = 1 if any(lane.alone for lane in going) else cores()
        try:
            with noted() as interrupts, ThreadPoolExecutor(threads, thread_name_prefix="fedtempo") as pool:
                longest_first = sorted(going, key=lambda lane: -lane.updates)  # no core is left with a long one
                tasks = [pool.submit(lane.train, point, stop) for lane in longest_first]
                try:
                    running = set(tasks)
                    while running:
                        done, running = wait(running, timeout=POLL_SECONDS, return_when=FIRST_EXCEPTION)
                        for task in done:
                            task.result()
                        if interrupts.came:
                            raise KeyboardInterrupt
                        if deadline is not None and time.monotonic() > deadline:
                            stop.set()
                        if tell is not None:
                            tell()
                finally:
                    stop.set()
                    for task in tasks:
                        task.cancel()
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


def _width(runs: int) -> int:
    """The next power of two."""
    return 1 << (runs - 1).bit_length()
