"""All that the engine sees: update events in order, with slots to read and write; one form for every scheme.

    event e:  θ ← read slot;  Δ ← job (client, number) from θ;  acc ← acc + ω_e Δ;  if a round closes: write slot ← acc

A timeline becomes a stream of pieces; measuring points lie between rounds and refer to the slot of the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.generate import stream
from fedtempo.clock.setting import Setting
from fedtempo.clock.timeline import I32, Timeline
from fedtempo.clock.times import Floats
from fedtempo.engine.feedback import told_rounds
from fedtempo.engine.slots import Slots
from fedtempo.weighting import Weights


class Mark(NamedTuple):
    """A measuring point: the model in `slot` after the first `event` events of the piece."""

    point: int
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
    """[weight rules, events] ω_i(n)."""
    marks: tuple[Mark, ...]
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
    setting: Setting,
    weights: Sequence[Weights],
    *,
    until: Fraction,
    times: Sequence[Fraction],
    capacity: int,
    max_marks: int,
    losses: Callable[[int], NDArray[Any]] | None = None,
) -> Iterator[Piece]:
    """The run up to `until` in pieces of `capacity` events and at most `max_marks` measuring points.

    Each measuring point holds a slot until its piece is done. Where the rule chooses by `losses` of the model in a
    slot, pieces end with each round, and a piece must be trained before the next is asked for.
    """
    return _Cutter(setting, weights, times, capacity, max_marks, losses).run(until)


class _Cutter:
    """Turns timeline chunks into pieces."""

    def __init__(
        self,
        setting: Setting,
        weights: Sequence[Weights],
        times: Sequence[Fraction],
        capacity: int,
        max_marks: int,
        losses: Callable[[int], NDArray[Any]] | None,
    ) -> None:
        self._setting, self._losses = setting, losses
        self._appliers = [w.applier() for w in weights]
        self._ticks = [setting.ticks(t) for t in times]
        self._capacity = capacity
        self._max_marks = max_marks
        self._slots = Slots(setting)
        self._parts: list[_Events] = []
        self._size = 0
        self._first = 0
        self._marks: list[Mark] = []
        self._point = 0

    def run(self, until: Fraction) -> Iterator[Piece]:
        rule = self._setting.rule
        losses = self._losses
        if losses is not None:
            lines = told_rounds(self._setting, until, lambda: losses(self._slots.current))
        else:
            lines = stream(self._setting, until=until)
        told = rule.returns_to_contributors and self._setting.availability is None
        if not (rule.barrier or told):  # who trains from a version, and comes back, is known from the whole run only
            parts = list(lines)
            bases = [part.base for part in parts] or [np.zeros(0, dtype=np.int32)]
            self._slots = Slots(self._setting, np.bincount(np.concatenate(bases)).astype(np.int32))
            lines = iter(parts)
        rounds = 0
        for line in lines:
            begin = 0
            while begin < line.num_rounds:
                self._mark(rounds, before=int(line.ends[begin]))
                stop = self._next_cut(line, begin)
                self._append(line[begin:stop])
                rounds += stop - begin
                begin = stop
                while self._size >= self._capacity or len(self._marks) >= self._max_marks or (losses and self._size):
                    yield self._piece(min(self._size, self._capacity))
        self._mark(rounds)
        while self._size or self._marks:
            yield self._piece(min(self._size, self._capacity))

    def _mark(self, rounds: int, before: int | None = None) -> None:
        """Measuring points that come before the next round's end."""
        while self._point < len(self._ticks) and (before is None or self._ticks[self._point] < before):
            slot = self._slots.current
            self._slots.hold(slot)
            self._marks.append(Mark(self._point, self._size, slot, rounds, self._first + self._size))
            self._point += 1

    def _next_cut(self, line: Timeline, begin: int) -> int:
        """One past the last round that comes before the next measuring point and fits the piece; at least one round."""
        stop = line.num_rounds
        if self._point < len(self._ticks):
            stop = int(np.searchsorted(line.ends, self._ticks[self._point], side="right"))
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
        """The first `size` events that are held, with the marks among them."""
        held = [np.concatenate(arrays, axis=-1) for arrays in zip(*self._parts, strict=True)] if self._parts else None
        events = _Events(*(a[..., :size] for a in held)) if held is not None else _no_events(len(self._appliers))
        marks = tuple(mark for mark in self._marks if mark.event <= size)
        piece = Piece(self._first, *events, marks=marks, num_slots=self._slots.count)
        self._parts = [_Events(*(a[..., size:] for a in held))] if held is not None and size < self._size else []
        self._marks = [mark._replace(event=mark.event - size) for mark in self._marks if mark.event > size]
        self._first += size
        self._size -= size
        if not self._marks:
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
