"""One unit of a study in execution: runs that share a timeline, from the first event to the last, measured on the way.

It can be cut at any stretch of events: `snapshot` holds all that a later session needs to go on to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.errors import ResultsConflict
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.measures import Shares
from fedtempo.simulation.engine.program import FIRST, Mark, Piece, grid_times, pieces
from fedtempo.simulation.engine.task import State
from fedtempo.weighting.weights import Weights

STRETCH_SECONDS = 0.5
"""How long the engine is left alone: between two stretches it can stop, report and save."""

Snapshot = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Unit:
    """Runs that go through together: one scheme, some seeds, some combinations of numbers."""

    number: int
    scheme: int
    shape: int
    """Which choice of the axes that change the shape of the work."""
    seeds: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    """(weight rule, combination of traced axes) of each run."""
    machine: int = 0
    """Which of the study's machines runs it."""


@dataclass(frozen=True)
class UnitSpec:
    """What a unit needs beside its machine."""

    unit: Unit
    config: ClockConfig
    weights: tuple[Weights, ...]
    """One for each weight rule of the study."""
    hyper: dict[str, NDArray[np.float64]]
    """[runs] of every traced number."""
    clients: dict[str, NDArray[Any]]
    """[clients] of every number in which clients differ."""
    until: Fraction
    points: int
    start: Fraction
    """When it is measured first."""
    shares: Shares
    per_client: bool
    capacity: int
    max_marks: int
    num_slots: int
    bound: float
    """A run whose loss passes this many times max(1, its first loss) has diverged."""

    @property
    def asks(self) -> bool:
        """Whether its rounds follow from the models that it trains."""
        return bool(self.config.rule.by_training)

    def first_piece(self) -> Piece:
        """How the program begins."""
        return next(self.pieces(lambda slot: np.zeros(self.config.num_clients)))

    def pieces(self, losses: Callable[[int], NDArray[Any]]) -> Iterator[Piece]:
        """The program; `losses` are those of the model in a slot, for rules that choose by them."""
        return pieces(
            self.config,
            self.weights,
            until=self.until,
            times=grid_times(self.until, self.points, self.start),
            capacity=self.capacity,
            max_marks=self.max_marks,
            losses=losses if self.asks else None,
        )


class Recorder:
    """The measures of a unit, point by point, and which of its runs have diverged."""

    def __init__(self, plan: UnitSpec) -> None:
        self.plan = plan
        self.points_done = 0
        self.table: dict[str, NDArray[Any]] = {
            "rounds": np.zeros(plan.points, dtype=np.int64),
            "updates": np.zeros(plan.points, dtype=np.int64),
        }
        self.first: NDArray[np.float64] | None = None
        """[seeds, runs] the losses of the initial models."""
        self.diverged = np.full((len(plan.unit.seeds), len(plan.unit.runs)), -1, dtype=np.int64)
        """At which point a run was seen to have diverged; −1: it has not."""

    def begin(self, measured: Mapping[str, NDArray[Any]]) -> None:
        """What was measured of the initial models, which is not at a point where measures begin late."""
        self.first = self.plan.shares.summary(measured, per_client=False)["loss"]

    def record(self, point: int, rounds: int, updates: int, measured: Mapping[str, NDArray[Any]]) -> None:
        """What was measured at a point, [seeds, (clients,) runs] each."""
        values = self.plan.shares.summary(measured, per_client=self.plan.per_client)
        self.table["rounds"][point] = rounds
        self.table["updates"][point] = updates
        for name, value in values.items():
            empty = np.full((self.plan.points, *value.shape), np.nan)
            self.table.setdefault(name, empty)[point] = value
        losses = self.table["loss"]
        if self.first is None:
            self.begin(measured)
        assert self.first is not None
        with np.errstate(invalid="ignore"):
            fine = losses[point] <= self.plan.bound * np.maximum(1.0, np.abs(self.first))
        self.diverged[~fine & (self.diverged < 0)] = point
        for name in values:
            self.table[name][point][self.diverged >= 0] = np.nan
        self.points_done = point + 1

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

    def __init__(self, plan: UnitSpec, machine: Machine, snapshot: Snapshot | None = None) -> None:
        self.plan, self.machine = plan, machine
        unit = plan.unit
        self.runs = machine.runs(unit.seeds, [rule for rule, _ in unit.runs], plan.hyper, plan.clients)
        self.events_done = 0
        self._told: list[NDArray[Any]] = []
        """[clients] losses that clients were chosen by, choice by choice."""
        self.recorder = Recorder(plan)
        self.model: list[NDArray[Any]] | None = None
        """The final model, [seeds, …, runs] a leaf, once all is done."""
        model = machine.initial_model(unit.seeds, len(unit.runs))
        self.state = machine.initial(model, plan.num_slots)
        if snapshot is not None:
            self._restore(snapshot)
        elif plan.start > 0:
            self.recorder.begin(machine.measure(self.state, FIRST))

    def run(self) -> Iterator[int]:
        """Go on to the end; yields after each stretch how many events it had."""
        turn = self.machine.turn
        stretch = 4 * turn if turn is not None else self.plan.capacity
        coming = self._loaded()
        item = next(coming, None)
        while item is not None:
            piece, loaded = item
            if piece.num_slots > jax.tree.leaves(self.state.slots)[0].shape[0]:
                self.state = self.machine.grown(self.state, room_for(2 * piece.num_slots))  # each growth compiles anew
            begin = self.events_done - piece.first
            if begin == piece.num_events:  # only its measuring points are left
                self._measure(piece)
                item = None if self.finished else next(coming, None)
            while begin < piece.num_events:
                end = min(piece.num_events, begin + stretch)
                clock = time.perf_counter()
                self.state = self.machine.advance(self.state, self.runs, loaded, begin, end)
                if end == piece.num_events:
                    item = next(coming, None)  # made while the device works
                jax.block_until_ready(self.state)  # type: ignore[no-untyped-call]
                seconds = time.perf_counter() - clock
                self.events_done += end - begin
                self._measure(piece)
                yield end - begin
                if self.finished:
                    return
                if turn is not None:
                    stretch = _next_stretch(stretch, end - begin, seconds, turn)
                begin = end

    def _loaded(self) -> Iterator[tuple[Piece, Any]]:
        """Pieces that are still to do, made ready for the machine."""
        done, points_done = self.events_done, self.recorder.points_done
        for piece in self.plan.pieces(self._losses()):
            last = piece.first + piece.num_events
            marked = any(mark.point >= points_done for mark in piece.marks)
            if last > done or (marked and last == done):
                yield piece, self.machine.load(piece, self.plan.capacity, self.runs.keys)

    def _losses(self) -> Callable[[int], NDArray[Any]]:
        """Losses of the model in a slot, from the first choice on; those of earlier sessions are remembered."""
        before = iter(list(self._told))

        def losses(slot: int) -> NDArray[Any]:
            if (known := next(before, None)) is not None:
                return known
            found: NDArray[Any] = self.machine.measure(self.state, slot)["client_loss"][0, :, 0]
            self._told.append(found)
            return found

        return losses

    @property
    def finished(self) -> bool:
        """Whether the end is reached, or every run has diverged."""
        return self.model is not None

    @property
    def share(self) -> float:
        """How much of the virtual time is done, from 0 to 1."""
        return 1.0 if self.finished else self.recorder.points_done / self.plan.points

    def _due(self, piece: Piece) -> list[Mark]:
        """Points of a piece that can be measured: their events are done."""
        done = self.events_done - piece.first
        return [m for m in piece.marks if m.point >= self.recorder.points_done and m.event <= done]

    def _measure(self, piece: Piece) -> None:
        for mark in self._due(piece):
            self.recorder.record(mark.point, mark.rounds, mark.updates, self.machine.measure(self.state, mark.slot))
            if self.recorder.points_done == self.plan.points or self.recorder.all_diverged:
                self.model = self.machine.model(self.state, mark.slot)
                return

    def snapshot(self) -> Snapshot:
        """Everything that a later session needs, as arrays."""
        out = self.recorder.snapshot(self.model) | {"events_done": np.array(self.events_done)}
        if not self.finished:
            out |= {f"state:{k}": np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(self.state))}
            out["cuts"] = self._cuts
            if self.plan.asks:
                out["told"] = np.array(self._told)
        return out

    @property
    def _cuts(self) -> NDArray[np.int64]:
        """What decides which version lies in which slot, beside the timeline."""
        return np.array([self.plan.capacity, self.plan.max_marks, FIRST], dtype=np.int64)

    def _restore(self, saved: Snapshot) -> None:
        if not np.array_equal(saved.get("cuts", ()), self._cuts):
            raise ResultsConflict(
                f"unit {self.plan.unit.number} was begun by another version of fedtempo, which lays out its state "
                "otherwise; finish the study with that version, or choose another folder"
            )
        self.events_done = int(saved["events_done"])
        self.recorder.restore(saved)
        self._told = list(saved.get("told", ()))
        leaves, structure = jax.tree.flatten(self.state)
        there = [jnp.asarray(saved[f"state:{k}"]) for k in range(len(leaves))]
        self.state = State(*jax.tree.unflatten(structure, there))


def room_for(num_slots: int) -> int:
    """Slots to allocate: a few more than needed, so that few programs need another size."""
    return -(-(num_slots + num_slots // 8) // 8) * 8


def _next_stretch(stretch: int, events: int, seconds: float, turn: int) -> int:
    """As many events as take STRETCH_SECONDS, in whole turns; at most four times as many as the last time."""
    aim = events * STRETCH_SECONDS / max(seconds, 1e-6)
    return max(turn, int(min(aim, 4 * stretch)) // turn * turn)
