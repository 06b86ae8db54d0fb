"""A transport brings jobs to clients and their answers back; `step` joins it with a server: one step of a clock.

A timeline is such steps with a VirtualTransport. A deployment has the same `Server` and rules, with a transport and a
loop of its own (`Training._rounds` in flower/training.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, cycle, repeat
from typing import Protocol

import numpy as np

from fedtempo.clock.events import Arrived, Deadline, Event, Failed, Job, Joined, Left, Round, Tick
from fedtempo.clock.server import Server
from fedtempo.clock.times import ClientTimes, Ints

_FIRST_BLOCK, _LAST_BLOCK = 32, 4096  # jobs drawn at once for a client: few at first, then as many as it has done
_ORDER = {Arrived: 0, Failed: 1, Left: 2, Joined: 3}
"""Of what happens at one tick."""
_ARRIVED, _FAILED = _ORDER[Arrived], _ORDER[Failed]


class Transport(Protocol):
    """Takes jobs out and brings events back."""

    def send(self, jobs: tuple[Job, ...]) -> None:
        """Give these jobs to their clients."""

    def wait(self, deadline: Tick | None) -> tuple[Tick, list[Event]]:
        """The next moment at which something happens, at most `deadline`, and what happens then, in order.

        Without events the moment is the deadline; with neither, it is -1: nothing will ever happen.
        """


class Durations:
    """Ticks that each job takes, drawn in blocks: job by job, without the price of drawing one by one."""

    def __init__(self, times: ClientTimes, *, scale: int, seed: int) -> None:
        self._times, self._scale, self._seed = times, scale, seed
        self._fixed = None if times.random else self._draw_fixed()
        self._held: dict[int, tuple[int, list[int]]] = {}

    def _draw_fixed(self) -> list[int] | None:
        period = self._times.job_period
        if period is None or int(period.max()) > 1:
            return None
        clients = np.arange(self._times.num_clients)
        return [int(t) * self._scale for t in self._times.draw(clients, np.zeros_like(clients))]

    def __call__(self, client: int, job: int) -> Tick:
        """Duration of job number `job` of `client`."""
        if self._fixed is not None:
            return self._fixed[client]
        first, held = self._held.get(client, (0, []))
        if not first <= job < first + len(held):
            first, held = self._held[client] = job, self._block(client, job)
        return held[job - first]

    def of(self, client: int, *, times: int = 1, plus: int = 0) -> Iterator[Tick]:
        """The durations of a client's jobs, from the first on, each multiplied by `times` and added to `plus`."""
        if self._fixed is not None:
            return repeat(self._fixed[client] * times + plus)
        period = None if self._times.random else self._times.job_period
        if period is not None:
            return cycle([t * times + plus for t in self._drawn(client, np.arange(period[client]))])
        return chain.from_iterable([t * times + plus for t in block] for block in self._blocks(client))

    def _blocks(self, client: int) -> Iterator[list[Tick]]:
        job = 0
        while True:
            block = self._block(client, job)
            yield block
            job += len(block)

    def _block(self, client: int, first: int) -> list[Tick]:
        return self._drawn(client, np.arange(first, first + min(max(_FIRST_BLOCK, first), _LAST_BLOCK)))

    def _drawn(self, client: int, jobs: Ints) -> list[Tick]:
        drawn: list[Tick] = self._times.draw(np.array([client]), jobs, seed=self._seed).tolist()
        return drawn if self._scale == 1 else [t * self._scale for t in drawn]


class VirtualTransport:
    """A heap of moments: jobs come back after their client's time, or fail then if `fails` says so.

    `happenings` are events at given ticks, in any order; an iterator's must be in the order of their ticks, and are
    asked for only when their time has come, so that there may be endlessly many.
    """

    def __init__(
        self,
        durations: Durations,
        happenings: Iterable[tuple[Tick, Event]] = (),
        fails: Callable[[int, int], bool] | None = None,
    ) -> None:
        self._durations = durations
        self._fails = fails
        self._heap: list[tuple[Tick, int, int, int, Event]] = []
        self._count = 0
        if isinstance(happenings, Sequence):
            happenings = sorted(happenings, key=lambda happening: happening[0])
        self._happenings = iter(happenings)
        self._coming = next(self._happenings, None)

    def _push(self, tick: Tick, event: Event) -> None:
        client = event.job.client if isinstance(event, (Arrived, Failed)) else getattr(event, "client", -1)
        self._count += 1
        heapq.heappush(self._heap, (tick, _ORDER.get(type(event), 4), client, self._count, event))

    def send(self, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            client, number, _, sent, _ = job
            back = sent + self._durations(client, number)
            failed = self._fails is not None and self._fails(client, number)
            self._count += 1
            order, event = (_FAILED, Failed(job)) if failed else (_ARRIVED, Arrived(job))
            heapq.heappush(self._heap, (back, order, client, self._count, event))

    def wait(self, deadline: Tick | None) -> tuple[Tick, list[Event]]:
        while self._coming is not None and (not self._heap or self._coming[0] <= self._heap[0][0]):
            self._push(*self._coming)
            self._coming = next(self._happenings, None)
        if not self._heap or (deadline is not None and deadline < self._heap[0][0]):
            return (-1, []) if deadline is None else (deadline, [])
        now = self._heap[0][0]
        events = []
        while self._heap and self._heap[0][0] == now:
            events.append(heapq.heappop(self._heap)[-1])
        return now, events


def rounds(server: Server, transport: Transport, *, until: Tick | None = None, start: Tick = 0) -> Iterator[Round]:
    """Train: the rounds that end at or before `until`, in order; without it, as long as anything happens."""
    transport.send(server.start(start))
    while (yield from step(server, transport, until)):
        pass


def step(server: Server, transport: Transport, until: Tick | None = None) -> Generator[Round, None, bool]:
    """The rounds that end at the next moment at which something happens; returns whether there was one by `until`.

    A round is yielded before its jobs are sent: who holds models makes θ^{n+1} in between.
    """
    now, events = transport.wait(server.deadline)
    if now < 0 or (until is not None and now > until):
        return False
    for event in events:
        closed, jobs = server.handle(event, now)
        if closed is not None:
            yield closed
        transport.send(jobs)
    deadline = server.deadline
    if deadline is not None and deadline <= now:
        closed, jobs = server.handle(Deadline(), now)
        if closed is not None:
            yield closed
        transport.send(jobs)
    return True
