"""All that the engine sees: update events in order, with slots to read and write; one form for every scheme.

    event e:  θ ← read slot;  Δ ← job (client, number) from θ;  acc ← acc + ω_e Δ;  if a round closes: write slot ← acc

A timeline becomes a stream of pieces; measuring points lie between rounds and refer to the slot of the newest version.
A version keeps its slot while a job that started from it is still to come: at most min(M, largest delay + 1) versions
are held, plus the current one and the one in the making.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import stream
from fedtempo.clock.timeline import I32, Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import UnlawfulRule
from fedtempo.simulation.engine.feedback import chosen_rounds
from fedtempo.weighting.weights import Weights

NOBODYS = 0
"""A slot that is never read: where a model goes that nobody needs."""
MAKING = 1
"""Where an engine may keep the model in the making."""
FIRST = 2
"""The slot of version 0."""


class Slots:
    """Slots given out ahead of the run, round by round, and taken back by counting readers."""

    def __init__(self, config: ClockConfig, readers: I32 | None = None) -> None:
        """`readers`: how many jobs that count start from each version; None if the rule says so by itself."""
        self._synchronous = config.rule.synchronous
        self._readers = readers
        self.current = FIRST
        """The slot of the newest version."""
        self.count = FIRST + 1
        """Slots in use so far, at most."""
        self._free: list[int] = []
        self._where = {0: FIRST}
        self._versions: dict[int, list[int]] = {FIRST: [0]}
        self._waiting = {FIRST: self._expected(0, config.num_clients)}
        self._held: set[int] = set()

    def _expected(self, version: int, contributors: int) -> int:
        """Jobs that start from a version: those of the contributors that it goes back to."""
        if self._readers is not None:
            return int(self._readers[version]) if version < len(self._readers) else 0
        return 0 if self._synchronous else contributors

    def take(self, line: Timeline) -> tuple[I32, I32]:
        """For every update the slot that it reads and the one that it writes."""
        read: list[int] = []  # lists: this runs once an update, and beside an accelerator it must keep up
        write: list[int] = []
        bases, offsets = line.base.tolist(), line.offsets.tolist()
        version = line.first_round
        for begin, end in pairwise(offsets):
            version += 1
            if begin == end:
                self._alias(version)
                continue
            made = self._new()
            for base in bases[begin:end]:
                read.append(self._read(base))
                write.append(made)
            self._close(version, made, end - begin)
        return np.array(read, dtype=np.int32), np.array(write, dtype=np.int32)

    def hold(self, slot: int) -> None:
        """Keep what is in a slot until `release`."""
        self._held.add(slot)

    def release(self) -> None:
        """Let go of what was held."""
        held, self._held = self._held, set()
        for slot in held:
            self._try_free(slot)

    def _new(self) -> int:
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def _read(self, base: int) -> int:
        slot = self._where.get(base)
        if slot is None:
            raise UnlawfulRule(
                f"a job starts from version {base}, which is no longer kept: the rule sends models to clients that "
                "did not contribute; set returns_to_contributors = False on it"
            )
        if not self._synchronous:
            self._waiting[slot] = left = self._waiting[slot] - 1
            if not left:
                self._try_free(slot)
        return slot

    def _alias(self, version: int) -> None:
        """An empty round makes no new model."""
        self._where[version] = self.current
        self._versions[self.current].append(version)
        self._waiting[self.current] += self._expected(version, 0)

    def _close(self, version: int, slot: int, contributors: int) -> None:
        before, self.current = self.current, slot
        self._where[version] = slot
        self._versions[slot] = [version]
        self._waiting[slot] = self._expected(version, contributors)
        self._try_free(before)

    def _try_free(self, slot: int) -> None:
        if slot == self.current or slot in self._held or self._waiting.get(slot, 1) > 0:
            return
        for version in self._versions.pop(slot):
            del self._where[version]
        del self._waiting[slot]
        self._free.append(slot)


class Point(NamedTuple):
    """A measuring point: the model in `slot` after the first `event` events of the piece."""

    number: int
    event: int
    slot: int
    rounds: int
    """Rounds done by then, since the start of the run."""
    updates: int
    """Client updates done by then, since the start of the run."""


@dataclass(frozen=True)
class Piece:
    """Consecutive events of a run, and the measuring points after them."""

    first: int
    """Number of the first event."""
    client: I32
    job: I32
    read: I32
    write: I32
    closes: NDArray[np.bool_]
    weight: Floats
    """[weight rules, events] ω_i(n); where the problem has a state, then each rule's at the stable step."""
    points: tuple[Point, ...]
    num_slots: int
    """Slots needed so far."""

    @property
    def num_events(self) -> int:
        """Client updates in this piece."""
        return len(self.client)


def grid_times(until: Fraction, points: int, start: Fraction = Fraction(0)) -> list[Fraction]:
    """Measuring times, evenly from `start` to `until`."""
    return [start + (until - start) * k / (points - 1) for k in range(points)] if points > 1 else [until]


def pieces(
    config: ClockConfig,
    weights: Sequence[Weights],
    *,
    until: Fraction,
    times: Sequence[Fraction],
    capacity: int,
    max_points: int,
    losses: Callable[[int], NDArray[Any]] | None = None,
) -> Iterator[Piece]:
    """The run up to `until` in pieces of `capacity` events and at most `max_points` measuring points.

    Each measuring point holds a slot until its piece is done. Where the rule chooses by `losses` of the model in a
    slot, pieces end with each round, and a piece must be trained before the next is asked for.
    """
    return _Cutter(config, weights, times, capacity, max_points, losses).run(until)


class _Cutter:
    """Turns timeline chunks into pieces."""

    def __init__(
        self,
        config: ClockConfig,
        weights: Sequence[Weights],
        times: Sequence[Fraction],
        capacity: int,
        max_points: int,
        losses: Callable[[int], NDArray[Any]] | None,
    ) -> None:
        self._config, self._losses = config, losses
        self._appliers = [w.applier() for w in weights]
        self._ticks = [config.ticks(t) for t in times]
        self._capacity = capacity
        self._max_points = max_points
        self._slots = Slots(config)
        self._parts: list[_Events] = []
        self._size = 0
        self._first = 0
        self._points: list[Point] = []
        self._next_point = 0

    def run(self, until: Fraction) -> Iterator[Piece]:
        rule = self._config.rule
        losses = self._losses
        if losses is not None:
            lines = chosen_rounds(self._config, until, lambda: losses(self._slots.current))
        else:
            lines = stream(self._config, until=until)
        ahead = rule.synchronous or (rule.returns_to_contributors and self._config.availability is None)
        if not ahead:  # who trains from a version, and comes back, is known from the whole run only
            parts = list(lines)
            bases = [part.base for part in parts] or [np.zeros(0, dtype=np.int32)]
            self._slots = Slots(self._config, np.bincount(np.concatenate(bases)).astype(np.int32))
            lines = iter(parts)
        rounds = 0
        for line in lines:
            begin = 0
            while begin < line.num_rounds:
                self._add_points(rounds, before=int(line.ends[begin]))
                stop = self._next_cut(line, begin)
                self._append(line[begin:stop])
                rounds += stop - begin
                begin = stop
                while self._size >= self._capacity or len(self._points) >= self._max_points or (losses and self._size):
                    yield self._piece(min(self._size, self._capacity))
        self._add_points(rounds)
        while self._size or self._points:
            yield self._piece(min(self._size, self._capacity))

    def _add_points(self, rounds: int, before: int | None = None) -> None:
        """Measuring points that come before the next round's end."""
        while self._next_point < len(self._ticks) and (before is None or self._ticks[self._next_point] < before):
            slot = self._slots.current
            self._slots.hold(slot)
            self._points.append(Point(self._next_point, self._size, slot, rounds, self._first + self._size))
            self._next_point += 1

    def _next_cut(self, line: Timeline, begin: int) -> int:
        """One past the last round that comes before the next measuring point and fits the piece; at least one round."""
        stop = line.num_rounds
        if self._next_point < len(self._ticks):
            stop = int(np.searchsorted(line.ends, self._ticks[self._next_point], side="right"))
        room = int(line.offsets[begin]) + self._capacity - self._size
        return max(begin + 1, min(stop, int(np.searchsorted(line.offsets, room, side="right")) - 1))

    def _append(self, line: Timeline) -> None:
        read, write = self._slots.take(line)
        closes = np.zeros(line.num_updates, dtype=np.bool_)
        closes[line.offsets[1:][np.diff(line.offsets) > 0] - 1] = True
        weight = np.stack([apply(line) for apply in self._appliers])
        self._parts.append(_Events(line.client, line.job, read, write, closes, weight))
        self._size += line.num_updates

    def _piece(self, size: int) -> Piece:
        """The first `size` events that are held, with the points among them."""
        held = [np.concatenate(arrays, axis=-1) for arrays in zip(*self._parts, strict=True)] if self._parts else None
        events = _Events(*(a[..., :size] for a in held)) if held is not None else _no_events(len(self._appliers))
        points = tuple(point for point in self._points if point.event <= size)
        piece = Piece(self._first, *events, points=points, num_slots=self._slots.count)
        self._parts = [_Events(*(a[..., size:] for a in held))] if held is not None and size < self._size else []
        self._points = [point._replace(event=point.event - size) for point in self._points if point.event > size]
        self._first += size
        self._size -= size
        if not self._points:
            self._slots.release()
        return piece


class _Events(NamedTuple):
    """The columns of a piece."""

    client: I32
    job: I32
    read: I32
    write: I32
    closes: NDArray[np.bool_]
    weight: Floats


def _no_events(rules: int) -> _Events:
    none = np.zeros(0, dtype=np.int32)
    return _Events(none, none, none, none, np.zeros(0, dtype=np.bool_), np.zeros((rules, 0)))
