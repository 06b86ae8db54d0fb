"""One unit of a study in execution: runs that share a timeline, from the first event to the last, measured on the way.

Its timeline comes in pieces, and a piece is trained in calls of the engine of about half a second. Between two calls it
can be cut: `snapshot` holds all that a later session needs to go on to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.errors import ResultsConflict
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.measures import Shares
from fedtempo.simulation.engine.program import FIRST, Piece, pieces
from fedtempo.weighting.weights import Weights

CALL_SECONDS = 0.5
"""About how long one call of the engine takes: between two calls it can stop, report and save."""

LARGE_SLOT = 1 << 24
"""Bytes of a slot: beyond, compiling anew costs less than a slot that is not needed."""

Snapshot = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Unit:
    """Runs that go through together: one scheme, some seeds, some combinations of numbers."""

    number: int
    scheme: int
    static: int
    """Which combination of the axes that change what is compiled."""
    seeds: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    """(weight rule, combination of traced axes) of each run."""
    machine: int = 0
    """Which of the study's machines runs it."""

    @property
    def num_runs(self) -> int:
        """Runs, over all its seeds."""
        return len(self.seeds) * len(self.runs)


@dataclass(frozen=True)
class UnitSpec:
    """What a unit needs beside its machine."""

    unit: Unit
    config: ClockConfig
    weights: tuple[Weights, ...]
    """One for each weight rule of the study; where the problem has a state, then each rule's at the stable step."""
    hyper: dict[str, NDArray[np.float64]]
    """[runs] of every traced number."""
    clients: dict[str, NDArray[Any]]
    """[clients] of every number in which clients differ."""
    until: Fraction
    times: tuple[Fraction, ...]
    """When it is measured."""
    shares: Shares
    per_client: bool
    capacity: int
    """Events in a piece, at most."""
    max_points: int
    """Measuring points in a piece, at most."""
    num_slots: int
    """Model versions that are held."""
    bound: float
    """A run whose loss passes this many times max(1, its first loss) has diverged."""

    @property
    def points(self) -> int:
        """At how many times it is measured."""
        return len(self.times)

    @property
    def asks(self) -> bool:
        """Whether its rounds follow from the models that it trains."""
        return bool(self.config.rule.by_training)

    def narrowed(self, kept: Sequence[int]) -> UnitSpec:
        """The same of some of its runs alone, by their places."""
        unit = replace(self.unit, runs=tuple(self.unit.runs[k] for k in kept))
        return replace(self, unit=unit, hyper={name: values[list(kept)] for name, values in self.hyper.items()})

    def first_piece(self) -> Piece:
        """How the program begins."""
        return next(self.pieces(lambda slot: np.zeros(self.config.num_clients)))

    def most_slots(self) -> int:
        """About how many slots it ever needs, where pieces are short since models that are measured are large."""
        if self.asks:
            return self.first_piece().num_slots
        program = pieces(
            self.config, self.weights, until=self.until, times=(self.until,), capacity=self.capacity, max_points=1
        )
        return next(program).num_slots + min(self.max_points, self.points)

    def pieces(self, losses: Callable[[int], NDArray[Any]]) -> Iterator[Piece]:
        """The program; `losses` are those of the model in a slot, for rules that choose by them."""
        return pieces(
            self.config,
            self.weights,
            until=self.until,
            times=self.times,
            capacity=self.capacity,
            max_points=self.max_points,
            losses=losses if self.asks else None,
        )


class Recorder:
    """The measures of a unit, point by point, and which of its runs have diverged."""

    def __init__(self, spec: UnitSpec) -> None:
        self.spec = spec
        self.points_done = 0
        self.table: dict[str, NDArray[Any]] = {
            "rounds": np.zeros(spec.points, dtype=np.int64),
            "updates": np.zeros(spec.points, dtype=np.int64),
        }
        self.first: NDArray[np.float64] | None = None
        """[seeds, runs] the losses of the initial models."""
        self.diverged = np.full((len(spec.unit.seeds), len(spec.unit.runs)), -1, dtype=np.int64)
        """At which point a run was seen to have diverged; −1: it has not."""

    def begin(self, measured: Mapping[str, NDArray[Any]]) -> None:
        """What was measured of the initial models, which is not at a point where measures begin late."""
        self.first = self.spec.shares.summary(measured, per_client=False)["loss"]

    def record(self, point: int, rounds: int, updates: int, measured: Mapping[str, NDArray[Any]]) -> None:
        """What was measured at a point, [seeds, (clients,) runs] each."""
        values = self.spec.shares.summary(measured, per_client=self.spec.per_client)
        self.table["rounds"][point] = rounds
        self.table["updates"][point] = updates
        for name, value in values.items():
            empty = np.full((self.spec.points, *value.shape), np.nan)
            self.table.setdefault(name, empty)[point] = value
        losses = self.table["loss"]
        if self.first is None:
            self.begin(measured)
        assert self.first is not None
        with np.errstate(invalid="ignore"):
            fine = losses[point] <= self.spec.bound * np.maximum(1.0, np.abs(self.first))
        self.diverged[~fine & (self.diverged < 0)] = point
        for name in values:
            self.table[name][point][self.diverged >= 0] = np.nan
        self.points_done = point + 1

    def narrow(self, spec: UnitSpec, kept: Sequence[int]) -> None:
        """Go on with some of the runs alone."""
        self.spec, self.diverged = spec, self.diverged[:, kept]
        self.first = None if self.first is None else self.first[:, kept]
        counted = ("rounds", "updates")
        self.table = {name: a if name in counted else a[:, :, kept] for name, a in self.table.items()}

    @property
    def all_diverged(self) -> bool:
        """Whether there is nothing left to train."""
        return bool((self.diverged >= 0).all())

    def snapshot(self, model: list[NDArray[Any]] | None) -> Snapshot:
        """The measures as arrays; with the final `model`, [seeds, …, runs] a leaf, the unit is finished."""
        out: Snapshot = {
            "points_done": np.array(self.points_done),
            "finished": np.array(model is not None),
            "diverged": self.diverged.copy(),
        }
        if self.first is not None:
            out["first"] = self.first.copy()
        out |= {f"table:{name}": values.copy() for name, values in self.table.items()}
        return out | {f"model:{k}": leaf for k, leaf in enumerate(model or [])}

    def restore(self, saved: Snapshot) -> None:
        """Go on from a snapshot."""
        self.points_done, self.diverged = int(saved["points_done"]), saved["diverged"]
        self.first = saved.get("first", saved.get("table:loss", [None])[0])
        self.table = {n.removeprefix("table:"): a for n, a in saved.items() if n.startswith("table:")}


class Session:
    """A unit in execution. To be used inside `numerics(dtype)`, by one thread."""

    def __init__(self, spec: UnitSpec, machine: Machine, snapshot: Snapshot | None = None) -> None:
        self.spec, self.machine = spec, machine
        unit = spec.unit
        self.runs = machine.runs(unit.seeds, [rule for rule, _ in unit.runs], spec.hyper, spec.clients)
        self.events_done = 0
        self._chosen_by: list[NDArray[Any]] = []
        """[clients] losses that clients were chosen by, choice by choice."""
        self.recorder = Recorder(spec)
        self.model: list[NDArray[Any]] | None = None
        """The final model and the problem's state, [seeds, …, runs] a leaf, once all is done."""
        self.state = machine.initial(unit.seeds, len(unit.runs), spec.num_slots)
        if snapshot is not None:
            self._restore(snapshot)
        elif spec.times[0] > 0:
            self.recorder.begin(machine.measure(self.state, self.runs, FIRST))
        per_step = machine.events_per_step
        self._events_per_call = spec.capacity if per_step is None else 4 * per_step
        self._coming = self._pieces_left()
        self._ahead: tuple[Piece, Any] | None = None
        """The piece after this one, and what the machine needs of it, made while the device was at work."""
        self._piece: Piece | None = None
        self._loaded: Any = None

    def piece(self) -> Piece:
        """The piece that is to be trained, or the next one when all of it is done."""
        if self._piece is None or self._is_done(self._piece):
            self._piece, self._loaded = self._ahead or next(self._coming)
            self._ahead = None
            if self._piece.num_slots > self.machine.room(self.state):
                needed, size = self._piece.num_slots, self.machine.version_bytes * self.spec.unit.num_runs
                room = room_for(needed + needed // (1 if size <= LARGE_SLOT else 8), size)  # each growth compiles anew
                self.state = self.machine.grown(self.state, room)
        return self._piece

    def train(self, piece: Piece, before: int | None = None) -> int:
        """Run the next events of the piece, in one call; how many there were.

        `before`: a measuring point up to which to go, and no further than the engine can be cut.
        """
        begin = self.events_done - piece.first
        end = min(piece.num_events, begin + self._events_per_call)
        if before is not None:
            end = max(begin, min(end, self._cut(piece, before)))
        if begin == end:  # only its measuring points are left
            return 0
        clock = time.perf_counter()
        self.state = self.machine.advance(self.state, self.runs, self._loaded, begin, end)
        if end == piece.num_events:
            self._ahead = next(self._coming, None)  # made while the device works
        self.machine.wait(self.state)
        per_step, seconds = self.machine.events_per_step, time.perf_counter() - clock
        if per_step is not None:
            self._events_per_call = _next_call(self._events_per_call, end - begin, seconds, per_step)
        self.events_done += end - begin
        return end - begin

    def _cut(self, piece: Piece, number: int) -> int:
        """How many events of the piece come before a measuring point, in whole steps of the engine."""
        there = [point.event for point in piece.points if point.number == number]
        step = self.machine.events_per_step
        return piece.num_events if not there or step is None else -(-there[0] // step) * step

    def narrow(self, kept: Sequence[int]) -> None:
        """Go on with some of the runs alone, by their places; what they do does not change."""
        self.spec = spec = self.spec.narrowed(kept)
        unit = spec.unit
        self.runs = self.machine.runs(unit.seeds, [rule for rule, _ in unit.runs], spec.hyper, spec.clients)
        self.state = self.machine.narrowed(self.state, kept)
        self.recorder.narrow(spec, list(kept))

    def measure(self, piece: Piece) -> None:
        """Measure the points of the piece whose events are done; the last of all gives the final model."""
        done = self.events_done - piece.first
        for point in piece.points:
            if point.number < self.recorder.points_done or point.event > done:
                continue
            measured = self.machine.measure(self.state, self.runs, point.slot)
            self.recorder.record(point.number, point.rounds, point.updates, measured)
            if self.recorder.points_done == self.spec.points or self.recorder.all_diverged:
                self.model = self.machine.model(self.state, point.slot)
                return

    def close(self) -> None:
        """Let go of the models at once: the program that is left knows the session."""
        self._coming.close()
        self._ahead = self._loaded = None

    def _is_done(self, piece: Piece) -> bool:
        measured = all(point.number < self.recorder.points_done for point in piece.points)
        return measured and self.events_done == piece.first + piece.num_events

    def _pieces_left(self) -> Generator[tuple[Piece, Any], None, None]:
        """Pieces that are still to do, made ready for the machine."""
        done, points_done = self.events_done, self.recorder.points_done
        for piece in self.spec.pieces(self._losses()):
            last = piece.first + piece.num_events
            to_measure = any(point.number >= points_done for point in piece.points)
            if last > done or (to_measure and last == done):
                yield piece, self.machine.load(piece, self.spec.capacity, self.runs)

    def _losses(self) -> Callable[[int], NDArray[Any]]:
        """Losses of the model in a slot, from the first choice on; those of earlier sessions are remembered."""
        before = iter(list(self._chosen_by))

        def losses(slot: int) -> NDArray[Any]:
            if (known := next(before, None)) is not None:
                return known
            found: NDArray[Any] = self.machine.measure(self.state, self.runs, slot)["client_loss"][0, :, 0]
            self._chosen_by.append(found)
            return found

        return losses

    @property
    def finished(self) -> bool:
        """Whether the end is reached, or every run has diverged."""
        return self.model is not None

    def is_at(self, point: int) -> bool:
        """Whether so many points are measured, or there is nothing left to train."""
        return self.finished or self.recorder.points_done >= point

    @property
    def share(self) -> float:
        """How much of the virtual time is done, from 0 to 1."""
        return 1.0 if self.finished else self.recorder.points_done / self.spec.points

    def snapshot(self) -> Snapshot:
        """Everything that a later session needs, as arrays."""
        out = self.recorder.snapshot(self.model) | {"events_done": np.array(self.events_done)}
        if not self.finished:
            out |= {f"state:{name}": array for name, array in self.machine.saved(self.state).items()}
            out["cuts"] = self._cuts
            if self.spec.asks:
                out["told"] = np.array(self._chosen_by)  # key of the file format
        return out

    @property
    def _cuts(self) -> NDArray[np.int64]:
        """What decides which version lies in which slot, beside the timeline."""
        return np.array([self.spec.capacity, self.spec.max_points, FIRST], dtype=np.int64)

    def _restore(self, saved: Snapshot) -> None:
        if not np.array_equal(saved.get("cuts", ()), self._cuts):
            raise ResultsConflict(
                f"unit {self.spec.unit.number} was started by another version of fedtempo, which stores its state "
                "differently; finish the study with that version, or choose another folder"
            )
        self.events_done = int(saved["events_done"])
        self.recorder.restore(saved)
        self._chosen_by = list(saved.get("told", ()))  # key of the file format
        there = {name.removeprefix("state:"): array for name, array in saved.items() if name.startswith("state:")}
        self.state = self.machine.restored(self.state, there)


def room_for(num_slots: int, slot_bytes: int) -> int:
    """Slots to allocate: a few more than needed, so that few programs need another size; none more of large models."""
    if slot_bytes > LARGE_SLOT:
        return num_slots
    return -(-(num_slots + num_slots // 8) // 8) * 8


def _next_call(last: int, events: int, seconds: float, per_step: int) -> int:
    """As many events as take CALL_SECONDS, in whole steps of the loop; at most four times those of the last call."""
    aim = events * CALL_SECONDS / max(seconds, 1e-6)
    return max(per_step, int(min(aim, 4 * last)) // per_step * per_step)
