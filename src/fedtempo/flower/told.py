"""What the server's bookkeeping was told, so that it can be told again: the same rule gives the same rounds.

A line is (time, kind, client, job number). After a restart of the server, what was out and what had arrived without
being taken has failed: models of such updates are not kept. An update that was refused when its round made the model
is in no round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from fedtempo.clock.events import Arrived, Deadline, Event, Failed, Job, Joined, Left, Round, Tick
from fedtempo.clock.server import Server
from fedtempo.clock.waiting import WaitingRule
from fedtempo.flower.clock import NANOSECOND

RESTART, REFUSED, LEFT = "restart", "refused", "left"
_KINDS: dict[type, str] = {
    Arrived: "arrived",
    Failed: "failed",
    Left: LEFT,
    Joined: "joined",
    Deadline: "deadline",
}


class Told(NamedTuple):
    """One thing that the server was told."""

    time: Tick
    kind: str
    client: int = -1
    job: int = -1


class NotedServer(Server):
    """The simulator's server, which notes what it is told."""

    changes = 0
    """How often somebody has come or gone."""
    note_told: Callable[[Told], None] = staticmethod(lambda told: None)

    def tell(self, event: Event, now: Tick) -> tuple[Round | None, tuple[Job, ...]]:
        if isinstance(event, (Arrived, Failed)):
            self.note_told(Told(now, _KINDS[type(event)], event.job.client, event.job.number))
        else:
            self.changes += isinstance(event, (Joined, Left))
            self.note_told(Told(now, _KINDS[type(event)], getattr(event, "client", -1)))
        return super().tell(event, now)

    @classmethod
    def restored(cls, rule: WaitingRule, snapshot: Mapping[str, Any]) -> NotedServer:
        """The server that a snapshot was taken of."""
        server = cls.restore(rule, snapshot)
        assert isinstance(server, NotedServer)
        return server


def restarted(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot in which updates that no round had taken are out again, to be failed and sent anew."""
    out = sorted([*snapshot["in_flight"], *snapshot["arrived"]])
    return {**snapshot, "in_flight": out, "arrived": []}


def retold(rule: WaitingRule, first: Iterable[int], told: Iterable[Told]) -> list[Round]:
    """The rounds that the rule makes of it, when these clients are there at the start."""
    server = Server(rule, first, unit=NANOSECOND)
    server.start(0)
    rounds: list[Round] = []
    for time, kind, client, number in told:
        if kind == REFUSED:
            left = tuple(job for job in rounds[-1].jobs if (job.client, job.number) != (client, number))
            rounds[-1] = rounds[-1]._replace(jobs=left)
            continue
        if kind == RESTART:
            server = Server.restore(rule, restarted(server.snapshot()))
            continue
        event = _event(server, kind, client, number)
        closed = server.tell(event, time)[0] if event is not None else None
        if closed is not None:
            rounds.append(closed)
    return rounds


def _event(server: Server, kind: str, client: int, number: int) -> Event | None:
    match kind:
        case "joined":
            return Joined(client)
        case "left":
            return Left(client)
        case "deadline":
            return Deadline()
    job = server.in_flight.get(client)
    if job is None or job.number != number:
        return None  # the server had ignored it
    return Arrived(job) if kind == "arrived" else Failed(job)
