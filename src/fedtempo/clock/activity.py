"""What clients that come, go and fail did and when: every job with how it ended, and every absence, along a run.

A timeline lists the updates that rounds have taken. Here are also the jobs that failed, those that were lost because
their client left, those still out at the end, and when each client was away. Times are ticks of the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Arrived, Deadline, Event, Failed, Job, Joined, Left, Round, Tick
from fedtempo.clock.generate import make_server
from fedtempo.clock.server import Server
from fedtempo.clock.timeline import I64

ARRIVED, RUNNING, FAILED, LOST = range(4)
"""How a job ended: its update came in, it was still out, it failed, its client left."""


@dataclass(frozen=True, eq=False)
class Activity:
    """Jobs in the order in which they ended, and absences."""

    client: I64
    sent: I64
    back: I64
    """When the job ended; the end of the run if it was still out."""
    taken: I64
    """The end of the round that took its update; −1: none did."""
    delay: I64
    """n − ρ_i(n) of that round; −1: none took it."""
    outcome: I64
    absences: I64
    """[absences, 3] client, from when, to when."""


def activity_of(config: ClockConfig, until: Tick) -> Activity:
    """All that happened from 0 to `until`."""
    server, transport, start = make_server(config)
    seen = _Seen(server, config.num_clients, start)
    transport.send(seen.send(server.start(start)))
    while True:
        now, events = transport.wait(server.deadline)
        if now < 0 or now > until:
            return seen.result(until)
        for event in events:
            seen.before(event, now)
            transport.send(seen.after(*server.handle(event, now)))
        due = server.deadline
        if due is not None and due <= now:
            transport.send(seen.after(*server.handle(Deadline(), now)))


class _Seen:
    """Notes what a server is told and what it answers."""

    def __init__(self, server: Server, num_clients: int, start: Tick) -> None:
        self._server = server
        self._out: dict[int, Job] = {}
        self._back: dict[Job, Tick] = {}
        self._ended: list[tuple[int, Tick, Tick, Tick, int, int]] = []
        self._away: dict[int, Tick] = dict.fromkeys(set(range(num_clients)) - server.clients, 0)
        self._absences: list[tuple[int, Tick, Tick]] = [(client, 0, start) for client in server.clients if start > 0]

    def send(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        self._out |= {job.client: job for job in jobs}
        return jobs

    def before(self, event: Event, now: Tick) -> None:
        """What an event ends, as the server stands before it hears of it."""
        match event:
            case Arrived(job) if self._out.get(job.client) == job:
                self._back[self._out.pop(job.client)] = now
            case Failed(job) if self._out.get(job.client) == job:
                self._end(self._out.pop(job.client), now, FAILED)
            case Left(client) if client in self._server.clients:
                self._away[client] = now
                if client in self._out:
                    self._end(self._out.pop(client), now, LOST)
            case Joined(client) if client in self._away:
                self._absences.append((client, self._away.pop(client), now))

    def after(self, closed: Round | None, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """What the server answers: a round that took updates, and jobs."""
        if closed is not None:
            for job in closed.jobs:
                self._end(job, self._back.pop(job), ARRIVED, closed.end, closed.number - job.base)
        return self.send(jobs)

    def _end(self, job: Job, back: Tick, outcome: int, taken: Tick = -1, delay: int = -1) -> None:
        self._ended.append((job.client, job.sent, back, taken, delay, outcome))

    def result(self, until: Tick) -> Activity:
        """With what is still going on at the end."""
        for job, when in self._back.items():
            self._end(job, when, ARRIVED)
        for job in self._out.values():
            self._end(job, until, RUNNING)
        away = [*self._absences, *((client, begin, until) for client, begin in self._away.items() if begin < until)]
        table = np.array(self._ended, dtype=np.int64).reshape(-1, 6)
        client, sent, back, taken, delay, outcome = table.T
        absences = np.array(away, dtype=np.int64).reshape(-1, 3)
        return Activity(client, sent, back, taken, delay, outcome, absences)
