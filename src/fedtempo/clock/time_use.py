"""What clients that come and go do with their time: counted along a run of the clock.

present  share of the time in which clients are there        idle  share of that in which they have no job
failed, lost  shares of the time that jobs take which ends in a failure, or with the client leaving
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Arrived, Event, Failed, Job, Joined, Left, Tick
from fedtempo.clock.generate import make_server
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.transport import Transport, step

UPDATES = 10_000
"""Client updates that are looked at."""


@dataclass(frozen=True)
class Work:
    """Shares of the clients' time."""

    present: float
    idle: float
    failed: float
    lost: float


def work_of(config: ClockConfig, updates: int | None = None) -> Work:
    """Over a run of about so many updates, and of whole periods where absences have one and it is not too long."""
    updates = UPDATES if updates is None else updates
    server, transport, start = make_server(config)
    counted = _Counted(transport, server.clients, start)
    counted.send(server.start(start))
    availability = config.availability
    period = config.ticks(availability.period) if availability is not None and availability.period is not None else 1
    last, moments = MAX_TICKS, 0
    while counted.now < last:
        closing = step(server, counted, last)
        try:
            while True:
                next(closing)
        except StopIteration as end:
            if not end.value:
                break
        moments += 1
        if last == MAX_TICKS and counted.arrived >= updates:
            last = -(-counted.now // period) * period
        if counted.arrived >= 4 * updates or moments >= 20 * updates:
            break
    return counted.result(config.num_clients)


class _Counted:
    """A transport that is watched."""

    def __init__(self, transport: Transport, clients: set[int], start: Tick) -> None:
        self._transport = transport
        self._since = dict.fromkeys(clients, start)
        self._out: dict[int, Job] = {}
        self._present, self._used, self._failed, self._lost = 0, 0, 0, 0
        self.now, self.arrived = start, 0

    def send(self, jobs: tuple[Job, ...]) -> None:
        self._transport.send(jobs)
        self._out |= {job.client: job for job in jobs}

    def wait(self, deadline: Tick | None) -> tuple[Tick, list[Event]]:
        now, events = self._transport.wait(deadline)
        self.now = max(self.now, now)
        for event in events:
            self._count(event, now)
        return now, events

    def _count(self, event: Event, now: Tick) -> None:
        match event:
            case Arrived(job) if self._out.get(job.client) == job:
                self.arrived += 1
                self._used += now - self._out.pop(job.client).sent
            case Failed(job) if self._out.get(job.client) == job:
                self._failed += now - self._out.pop(job.client).sent
            case Left(client) if client in self._since:
                self._present += now - self._since.pop(client)
                if client in self._out:
                    self._lost += now - self._out.pop(client).sent
            case Joined(client):
                self._since.setdefault(client, now)

    def result(self, clients: int) -> Work:
        """The shares so far."""
        present = self._present + sum(self.now - since for since in self._since.values())
        running = sum(self.now - job.sent for job in self._out.values())
        wasted = self._failed + self._lost
        ended = max(1, self._used + wasted)
        busy = self._used + wasted + running
        return Work(
            present=present / max(1, self.now * clients),
            idle=max(0.0, 1.0 - busy / max(1, present)),
            failed=self._failed / ended,
            lost=self._lost / ended,
        )
