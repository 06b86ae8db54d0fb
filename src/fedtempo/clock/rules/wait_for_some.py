"""FedBuff (section 4.5): a round ends when m updates have arrived; exactly those m enter it and get the new model.

Updates beyond m stay for the next round, in order of arrival and then of index, so that a round may last no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fedtempo.clock.carrier import Durations
from fedtempo.clock.events import Action, Close, Event, View
from fedtempo.clock.setting import Setting, chunk_updates
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.waiting import State, WaitingRule, resend
from fedtempo.errors import ClockOverflow, InputError


@dataclass(frozen=True)
class WaitForSome(WaitingRule):
    """A round ends when `size` updates are there, or all that can come if fewer clients are left than that."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"buffer: {self.size} updates make no round; give at least 1")

    def check(self, num_clients: int) -> None:
        if self.size > num_clients:
            raise InputError(
                f"buffer: {self.size} updates are more than the {num_clients} clients can have out; "
                f"make it at most {num_clients}"
            )

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        out = len(view.arrived) + len(view.in_flight)
        if view.arrived and len(view.arrived) >= min(self.size, max(out, len(view.clients))):
            return state, Close(tuple(islice(view.arrived.values(), self.size)))
        return state, resend(event)

    def chunks(self, setting: Setting) -> Iterator[Timeline]:
        return _chunks(setting, self.size)


def _chunks(setting: Setting, size: int) -> Iterator[Timeline]:
    """A heap of (arrival, client), each packed into one whole number; a round is the `size` smallest."""
    clients = setting.num_clients
    duration = Durations(setting.times, scale=setting.scale, seed=setting.seed)
    heap = [duration(i, 0) * clients + i for i in range(clients)]
    heapq.heapify(heap)
    base, job = [0] * clients, [0] * clients
    version, start, now = 0, 0, 0
    pop, push = heapq.heappop, heapq.heappush
    for updates in chunk_updates():
        per_chunk = max(1, updates // size)
        ends, who, bases, jobs = [], [], [], []
        for _ in range(per_chunk):
            taken = [pop(heap) for _ in range(size)]
            now = max(now, taken[-1] // clients)
            version += 1
            for i in sorted([packed % clients for packed in taken]):
                who.append(i)
                bases.append(base[i])
                jobs.append(job[i])
                base[i] = version
                job[i] += 1
                push(heap, (now + duration(i, job[i])) * clients + i)
            ends.append(now)
        if now >= MAX_TICKS:
            raise ClockOverflow("the clock has run past what 64-bit ticks can count; ask for less time")
        yield Timeline(
            unit=setting.unit,
            num_clients=clients,
            ends=np.array(ends, dtype=np.int64),
            offsets=np.arange(per_chunk + 1, dtype=np.int64) * size,
            client=np.array(who, dtype=np.int32),
            base=np.array(bases, dtype=np.int32),
            job=np.array(jobs, dtype=np.int32),
            first_round=version - per_chunk,
            start=start,
        )
        start = now
