"""What the server's bookkeeping was told, so that it can be told again: the same rule gives the same rounds.

A line is (time, kind, client, job number). After a restart of the server, what was out and what had arrived without
being taken has failed: models of such updates are not kept. An update that was refused when its round made the model
is in no round.

What is written down of a run, line by line: rounds with what was told before they ended, faults, measures.

The same lines are kept in memory and, where there is a folder, in `rounds.jsonl`. In memory they are plain tuples,
which Python's garbage collector soon lets alone; records are made of them when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import MetricRecord

from fedtempo.clock.events import Arrived, Deadline, Event, Failed, Job, Joined, Left, Round, Tick
from fedtempo.clock.server import Server
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.flower.clock import NANOSECOND
from fedtempo.flower.faults import Fault
from fedtempo.flower.result import RoundRecord, UpdateRecord
from fedtempo.schemes.named import Scheme

RESTART, REFUSED, LEFT = "restart", "refused", "left"
_KINDS: dict[type, str] = {
    Arrived: "arrived",
    Failed: "failed",
    Left: LEFT,
    Joined: "joined",
    Deadline: "deadline",
}


class LoggedEvent(NamedTuple):
    """One thing that the server was told."""

    time: Tick
    kind: str
    client: int = -1
    job: int = -1


class LoggingServer(Server):
    """The simulator's server, which notes what it is told."""

    changes = 0
    """How often somebody has come or gone."""
    note_told: Callable[[LoggedEvent], None] = staticmethod(lambda told: None)

    def handle(self, event: Event, now: Tick) -> tuple[Round | None, tuple[Job, ...]]:
        if isinstance(event, (Arrived, Failed)):
            self.note_told(LoggedEvent(now, _KINDS[type(event)], event.job.client, event.job.number))
        else:
            self.changes += isinstance(event, (Joined, Left))
            self.note_told(LoggedEvent(now, _KINDS[type(event)], getattr(event, "client", -1)))
        return super().handle(event, now)

    @classmethod
    def restored(cls, rule: WaitingRule, snapshot: Mapping[str, Any]) -> LoggingServer:
        """The server that a snapshot was taken of."""
        server = cls.restore(rule, snapshot)
        assert isinstance(server, LoggingServer)
        return server


def restarted(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot in which updates that no round had taken are out again, to be failed and sent anew."""
    out = sorted([*snapshot["in_flight"], *snapshot["arrived"]])
    return {**snapshot, "in_flight": out, "arrived": []}


def replay_events(rule: WaitingRule, first: Iterable[int], told: Iterable[LoggedEvent]) -> list[Round]:
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
        closed = server.handle(event, time)[0] if event is not None else None
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


Measured = Literal["train", "evaluate", "server"]
"""Whose measures: clients' of training, clients' of evaluation, the server's own."""


class Journal:
    """Everything that has happened, in order."""

    def __init__(self, *, scheme: Scheme | dict[str, object], server_lr: float, on_disk: bool) -> None:
        self.scheme, self.server_lr = scheme, server_lr
        """The scheme itself, or what a folder says of it."""
        self.names: tuple[str, ...] = ()
        self.importance: tuple[float, ...] = ()
        self.first: tuple[int, ...] = ()
        """The clients that were there at the start."""
        self.faults: list[Fault] = []
        self._rounds: list[tuple[Any, ...]] = []
        self._told: list[tuple[Any, ...]] = []
        self._measured: dict[Measured, dict[int, dict[str, Any]]] = {"train": {}, "evaluate": {}, "server": {}}
        self._on_disk = on_disk
        self._lines: list[str] = []
        self._written = 0

    def _line(self, **what: Any) -> None:
        if self._on_disk:
            self._lines.append(json.dumps(what, separators=(",", ":")))

    @property
    def has_lines(self) -> bool:
        """Whether there are lines that nobody has asked for."""
        return bool(self._lines)

    def new_lines(self) -> list[str]:
        """The lines since the last time that this was asked."""
        lines, self._lines = self._lines, []
        return lines

    @property
    def rounds(self) -> list[RoundRecord]:
        """The rounds that have ended."""
        return [_round(row) for row in self._rounds]

    @property
    def told(self) -> list[LoggedEvent]:
        """What the server was told."""
        return [LoggedEvent(*row) for row in self._told]

    def measured(self, whose: Measured) -> dict[int, MetricRecord]:
        """Measures by round."""
        return {server_round: MetricRecord(plain) for server_round, plain in self._measured[whose].items()}

    def has_measured(self, whose: Measured, server_round: int) -> bool:
        """Whether there are measures of this round."""
        return server_round in self._measured[whose]

    def begin(self, first: Iterable[int]) -> None:
        """Training starts with these clients."""
        self.first = tuple(sorted(first))
        self._line(first=self.first)

    def log(self, told: LoggedEvent) -> None:
        """The server is told something; it is written with the round that it leads to."""
        self._told.append(tuple(told))

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""
        row = (*closed[:3], tuple(map(tuple, closed.updates)), closed.contributors)
        self._rounds.append(row)
        self._line(round=row, told=self._told[self._written :])
        self._written = len(self._told)

    def tell_rest(self) -> None:
        """Write down what was told after the last round."""
        if self._written < len(self._told):
            self._line(told=self._told[self._written :])
            self._written = len(self._told)

    def fault(self, fault: Fault) -> None:
        """Something went wrong."""
        self.faults.append(fault)
        self._line(fault=fault)

    def measure(self, whose: Measured, server_round: int, record: Mapping[str, Any]) -> None:
        """Measures of a round; a TypeError or ValueError if they are no numbers."""
        plain = _plain(record)
        if not isinstance(record, MetricRecord):
            MetricRecord(plain)  # it refuses what it cannot hold
        self._measured[whose][server_round] = plain
        self._line(measured=[whose, server_round, plain])

    def read(self, lines: Iterable[str]) -> None:
        """Take up what an earlier run has written."""
        on_disk, self._on_disk = self._on_disk, False
        for place, line in enumerate(lines, 1):
            try:
                what = json.loads(line)
            except ValueError as error:
                raise InputError(
                    f"rounds.jsonl: line {place} cannot be read ({error}); choose another folder"
                ) from None
            self._told += map(tuple, what.get("told", ()))
            if "round" in what:
                self.round(_round(what["round"]))
            elif "fault" in what:
                self.fault(Fault(*what["fault"]))
            elif "measured" in what:
                whose, server_round, record = what["measured"]
                self.measure(whose, server_round, MetricRecord(record))
            elif "first" in what:
                self.begin(what["first"])
        self._written = len(self._told)
        self._on_disk = on_disk


def _round(row: Sequence[Any]) -> RoundRecord:
    number, server_round, end, updates, names = row
    return RoundRecord(number, server_round, end, tuple(UpdateRecord(*update) for update in updates), tuple(names))


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Measures as numbers that JSON knows, lists of them too."""
    if not isinstance(record, Mapping):
        raise TypeError(f"a {type(record).__name__} was given; give a MetricRecord")
    return {name: [*map(_number, v)] if isinstance(v, list) else _number(v) for name, v in record.items()}


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, (int, np.integer)) else float(value)
