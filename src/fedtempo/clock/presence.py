"""Who is there when, and which jobs fail: an availability on a clock, drawn by name and only as far as it is asked for.

    job j of client i fails                  if  u("failure", seed; i, j) < f_i
    client i is there at 0                   if  u("presence", seed; i, 0) < a_i/(a_i + b_i)
    its k-th stay, there or away, lasts      ⌈−mean · log(1 − u("presence", seed; i, k))/r⌉ · r,    r the times' tick

A client is there while it is on and not absent. Nothing depends on the waiting rule: all schemes meet the same clients.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from fractions import Fraction
from itertools import count

import numpy as np

from fedtempo.clock.availability import Availability, toggles
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Event, Joined, Left, Tick
from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.times import Floats, Ints

_BLOCK = 64
"""Stays, and jobs, of a client that are drawn at once."""


class Presence:
    """When the clients of a configuration are there."""

    def __init__(self, config: ClockConfig, availability: Availability) -> None:
        self._availability = availability
        self._unit, self._scale = config.unit, config.scale
        self._stay_unit = float(config.times.unit)
        self._key = stream_key("presence", config.seed)
        self._on = self._on_at_start()
        self.first = frozenset(i for i in range(config.num_clients) if self._starts(i))
        """Who is there at 0."""

    def changes(self) -> Iterator[tuple[Tick, Event]]:
        """Who leaves and who joins after 0, in order; within one tick those who leave first, by client."""
        clients = range(len(self._availability.failure))
        for tick, joins, client in heapq.merge(*(self._changes_of(i) for i in clients)):
            yield tick, Joined(client) if joins else Left(client)

    def _starts(self, client: int) -> bool:
        rows = self._availability.absences[client]
        return self._on[client] and not (rows and rows[0][0] == 0)

    def _on_at_start(self) -> list[bool]:
        on, off = self._availability.on, self._availability.off
        if on is None or off is None:
            return [True] * len(self._availability.failure)
        share = np.array([float(a / (a + b)) for a, b in zip(on, off, strict=True)])
        drawn: list[bool] = (uniforms(self._key, np.arange(len(share)), 0) < share).tolist()
        return drawn

    def _changes_of(self, client: int) -> Iterator[tuple[Tick, bool, int]]:
        """(tick, whether it joins, client), whenever a client that was there is not, or the other way round."""
        here = self._starts(client)
        on, free = self._on[client], True  # free: not absent; one that begins at 0 is a toggle at 0
        moments = heapq.merge(((t, True) for t in self._stays(client)), ((t, False) for t in self._absences(client)))
        now, stays = next(moments, (-1, False))
        while now >= 0:
            tick = now
            while now == tick:  # all that changes at this tick
                on, free = (not on, free) if stays else (on, not free)
                now, stays = next(moments, (-1, False))
            if (on and free) != here:
                here = not here
                yield tick, here, client

    def _stays(self, client: int) -> Iterator[Tick]:
        """The moments at which a client's stays end, there and away in turn."""
        on, off = self._availability.on, self._availability.off
        if on is None or off is None:
            return
        means = (float(on[client]), float(off[client]))
        turn = 0 if self._on[client] else 1
        tick = 0
        for first in count(1, _BLOCK):
            numbers = np.arange(first, first + _BLOCK)
            mean = np.where(numbers % 2 == 1, means[turn], means[1 - turn])
            lasts = np.ceil(-mean * np.log1p(-uniforms(self._key, client, numbers)) / self._stay_unit)
            for stay in lasts.tolist():
                tick += max(1, int(stay)) * self._scale
                if tick >= MAX_TICKS:
                    return
                yield tick

    def _absences(self, client: int) -> Iterator[Tick]:
        availability = self._availability
        for moment in toggles(availability.absences[client], availability.period):
            tick = int(moment / self._unit)
            if tick >= MAX_TICKS:
                return
            yield tick


def surplus(config: ClockConfig, ends: Ints) -> Floats | None:
    """[parts, clients] ticks of each part of a run in which a client was there, less what is to be expected.

    `ends` are the ends of the parts, the first of which begins at 0. None where being there is not drawn.
    """
    availability = config.availability
    if availability is None or availability.on is None:
        return None
    presence, last = Presence(config, availability), int(ends[-1])
    moments: list[list[Tick]] = [[] for _ in availability.failure]
    for tick, event in presence.changes():
        if tick > last:
            break
        assert isinstance(event, (Joined, Left))
        moments[event.client].append(tick)
    edges = np.concatenate([[0], ends])
    there = np.empty((len(edges), len(moments)))
    for client, toggled in enumerate(moments):
        turns = np.array([0, *toggled, last])
        here = (np.arange(len(turns) - 1) % 2 == 0) == (client in presence.first)
        there[:, client] = np.interp(edges, turns, np.concatenate([[0], np.cumsum(np.diff(turns) * here)]))
    return np.diff(there, axis=0) - np.diff(edges)[:, None] * availability.present_share()


class Failures:
    """Which jobs fail."""

    def __init__(self, failure: tuple[Fraction, ...], seed: int) -> None:
        self._chance = [float(p) for p in failure]
        self._key = stream_key("failure", seed)
        self._held: dict[int, tuple[int, list[bool]]] = {}

    def __call__(self, client: int, job: int) -> bool:
        """Whether job number `job` of `client` fails."""
        chance = self._chance[client]
        if not chance:
            return False
        first, held = self._held.get(client, (0, []))
        if not first <= job < first + len(held):
            drawn = uniforms(self._key, client, np.arange(job, job + _BLOCK)) < chance
            first, held = self._held[client] = job, drawn.tolist()
        return held[job - first]
