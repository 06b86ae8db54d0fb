"""What is written down of a run, line by line: rounds with the events before them, faults, measures of models.

    event      [time, kind, client, job number]: what happened, as the server heard of it
    measure    [time, name, client, value]: a number of a client, where the waiting rule needs it

From the same lines the same rule makes the same rounds (`replay_events`). After a restart of the server, what was out
and what had arrived without being taken has failed: models of such updates are not kept. An update that was refused
when its round made the model is in no round. Where the guard went back to an earlier version, a line says so.

The same lines are kept in memory and, where there is a folder, in `rounds.jsonl`. In memory they are plain tuples,
which Python's garbage collector soon lets alone; records are made of them when they are asked for.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from flwr.app import MetricRecord

from fedtempo.clock.events import Arrived, Deadline, Event, Failed, Joined, Left, Round, Tick
from fedtempo.clock.server import Server
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.flower.clock import NANOSECOND
from fedtempo.flower.faults import Fault
from fedtempo.flower.measures import MEASURES, MeasuredServer
from fedtempo.flower.result import RoundRecord, UpdateRecord
from fedtempo.schemes.named import Scheme

RESTART, REFUSED = "restart", "refused"
_KINDS: dict[type, str] = {
    Arrived: "arrived",
    Failed: "failed",
    Left: "left",
    Joined: "joined",
    Deadline: "deadline",
}


class LoggedEvent(NamedTuple):
    """One thing that happened, as the server heard of it."""

    time: Tick
    kind: str
    client: int = -1
    job: int = -1

    @classmethod
    def of(cls, event: Event, now: Tick) -> LoggedEvent:
        """The event in the log."""
        if isinstance(event, (Arrived, Failed)):
            return cls(now, _KINDS[type(event)], event.job.client, event.job.number)
        return cls(now, _KINDS[type(event)], getattr(event, "client", -1))


class LoggedMeasure(NamedTuple):
    """A number of a client that the rule needs, from when the server knew it."""

    time: Tick
    name: str
    client: int
    value: float


class Recovery(NamedTuple):
    """The run went back, at `time` nanoseconds: version `number` is the model of version `version` from then on."""

    time: Tick
    number: int
    version: int
    factor: float
    """Of the step in all later rounds."""
    reason: str


def _logged(row: Sequence[Any]) -> LoggedEvent | LoggedMeasure:
    return LoggedMeasure(*row) if row[1] in MEASURES else LoggedEvent(*row)


def restarted(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot in which updates that no round had taken are out again, to be failed and sent anew."""
    out = sorted([*snapshot["in_flight"], *snapshot["arrived"]])
    return {**snapshot, "in_flight": out, "arrived": []}


def replay_events(
    rule: WaitingRule,
    first: Iterable[int],
    events: Iterable[LoggedEvent | LoggedMeasure],
    *,
    known: Iterable[LoggedMeasure] = (),
    seed: int = 0,
) -> list[Round]:
    """The rounds that the rule makes of it, when these clients are there at the start and so much is known of them."""
    server: Server = MeasuredServer(rule, first, unit=NANOSECOND, seed=seed)
    for _, name, client, value in known:
        server.note(name, client, value)
    server.start(0)
    rounds: list[Round] = []
    for logged in events:
        if isinstance(logged, LoggedMeasure):
            server.note(logged.name, logged.client, logged.value)
            continue
        time, kind, client, number = logged
        if kind == REFUSED:
            left = tuple(job for job in rounds[-1].jobs if (job.client, job.number) != (client, number))
            rounds[-1] = rounds[-1]._replace(jobs=left)
            continue
        if kind == RESTART:
            server = MeasuredServer.restore(rule, restarted(server.snapshot()))
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


class Listener(Protocol):
    """Hears what a journal writes down."""

    def begin(self) -> None:
        """Training starts."""

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""

    def measured(self, whose: Measured, server_round: int, plain: Mapping[str, Any]) -> None:
        """Measures of a round are known."""


class Journal:
    """Everything that has happened, in order."""

    def __init__(self, *, scheme: Scheme | dict[str, object], server_lr: float, on_disk: bool) -> None:
        self.scheme, self.server_lr = scheme, server_lr
        """The scheme itself, or what a folder says of it."""
        self.step = "paper"
        """The server's, by name."""
        self.names: tuple[str, ...] = ()
        self.importance: tuple[float, ...] = ()
        self.first: tuple[int, ...] = ()
        """The clients that were there at the start."""
        self.known: tuple[LoggedMeasure, ...] = ()
        """What the server knew of them before the start."""
        self.seed = 0
        self.unit: Fraction | None = None
        """In virtual time: the tick, in seconds, of which all times are multiples, rounded up to nanoseconds."""
        self.listener: Listener | None = None
        """Hears what is read, and then what is written."""
        self.faults: list[Fault] = []
        self.recoveries: list[Recovery] = []
        self._rounds: list[tuple[Any, ...]] = []
        self._events: list[tuple[Any, ...]] = []
        self._measured: dict[Measured, dict[int, dict[str, Any]]] = {"train": {}, "evaluate": {}, "server": {}}
        self._on_disk = on_disk
        self._lines: list[str] = []
        self._written = 0
        self._heard: list[int] = []
        """How many events there were at the end of each round."""

    def _line(self, **what: Any) -> None:
        if self._on_disk:
            self._lines.append(_json(**what))

    @property
    def has_lines(self) -> bool:
        """Whether there are lines that nobody has asked for."""
        return bool(self._lines)

    def new_lines(self) -> list[str]:
        """The lines since the last time that this was asked."""
        lines, self._lines = self._lines, []
        return lines

    def lines(self) -> list[str]:
        """All that was ever to be written, line by line, in an order that reads the same."""
        lines = [_json(**self._first())] if self.first else []
        begin = 0
        for row, end in zip(self._rounds, self._heard, strict=True):
            lines.append(_json(round=row, told=self._events[begin:end]))
            begin = end
        if begin < self._written:
            lines.append(_json(told=self._events[begin : self._written]))
        lines += [_json(fault=fault) for fault in self.faults]
        lines += [_json(measured=[w, n, plain]) for w, found in self._measured.items() for n, plain in found.items()]
        return lines

    @property
    def rounds(self) -> list[RoundRecord]:
        """The rounds that have ended."""
        return [_round(row) for row in self._rounds]

    @property
    def events(self) -> list[LoggedEvent | LoggedMeasure]:
        """What the server heard."""
        return [_logged(row) for row in self._events]

    def rounds_since_change(self) -> list[RoundRecord]:
        """The rounds that have ended since somebody last came or left."""
        changes = (row[0] for row in reversed(self._events) if row[1] in ("joined", "left"))
        last = next(changes, -1)
        first = bisect_right(self._rounds, last, key=lambda row: int(row[2]))
        return [_round(row) for row in self._rounds[first:]]

    def measured(self, whose: Measured) -> dict[int, MetricRecord]:
        """Measures by round."""
        return {server_round: MetricRecord(plain) for server_round, plain in self._measured[whose].items()}

    def has_measured(self, whose: Measured, server_round: int) -> bool:
        """Whether there are measures of this round."""
        return server_round in self._measured[whose]

    def begin(self, first: Iterable[int], known: Iterable[LoggedMeasure] = (), seed: int = 0) -> None:
        """Training starts with these clients, and with what is known of them."""
        self.first, self.known, self.seed = tuple(sorted(first)), tuple(known), seed
        self._line(**self._first())
        if self.listener is not None:
            self.listener.begin()

    def _first(self) -> dict[str, Any]:
        more: dict[str, Any] = {"measures": self.known} if self.known else {}
        if self.unit is not None:
            more["unit"] = str(self.unit)
        return {"first": self.first, **more, **({"seed": self.seed} if self.seed else {})}

    def log(self, event: LoggedEvent | LoggedMeasure) -> None:
        """The server hears something; it is written with the round that it leads to."""
        self._events.append(tuple(event))

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""
        row: tuple[Any, ...] = (*closed[:3], tuple(update.row for update in closed.updates), closed.contributors)
        row += (closed.step,) if closed.step != 1.0 else ()
        self._rounds.append(row)
        if self._on_disk:
            self._line(round=row, told=self._events[self._written :])  # "told": key of the file format
        self._written = len(self._events)
        self._heard.append(self._written)
        if self.listener is not None:
            self.listener.round(closed)

    def write_rest(self) -> None:
        """Write down what happened after the last round."""
        if self._written < len(self._events):
            self._line(told=self._events[self._written :])  # key of the file format
            self._written = len(self._events)

    def fault(self, fault: Fault) -> None:
        """Something went wrong."""
        self.faults.append(fault)
        self._line(fault=fault)

    def recovery(self, recovery: Recovery) -> None:
        """The run went back."""
        self.recoveries.append(recovery)
        self._line(recovery=recovery)

    def measure(self, whose: Measured, server_round: int, record: Mapping[str, Any]) -> None:
        """Measures of a round; a TypeError or ValueError if they are no numbers."""
        plain = _plain(record)
        if not isinstance(record, MetricRecord):
            MetricRecord(plain)  # it refuses what it cannot hold
        self._measured[whose][server_round] = plain
        self._line(measured=[whose, server_round, plain])
        if self.listener is not None:
            self.listener.measured(whose, server_round, plain)

    def read(self, lines: Iterable[str], where: str = "rounds.jsonl") -> None:
        """Take up what an earlier run has written."""
        on_disk, self._on_disk = self._on_disk, False
        for place, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except Exception as error:  # whatever is there
                raise InputError(
                    f"{where}: line {place} cannot be read ({type(error).__name__}: {error}); the lines before it are "
                    "intact; restore the folder from a copy, or choose another folder"
                ) from None
        self._written = len(self._events)
        self._on_disk = on_disk

    def _take(self, what: Any) -> None:
        self._events += [tuple(_logged(row)) for row in what.get("told", ())]  # key of the file format
        if "round" in what:
            self.round(_round(what["round"]))
        elif "fault" in what:
            self.fault(Fault(*what["fault"]))
        elif "recovery" in what:
            self.recovery(Recovery(*what["recovery"]))
        elif "measured" in what:
            whose, server_round, record = what["measured"]
            self.measure(whose, server_round, MetricRecord(record))
        elif "first" in what:
            known = (LoggedMeasure(*row) for row in what.get("measures", ()))
            self.unit = Fraction(what["unit"]) if "unit" in what else None
            self.begin(what["first"], known, what.get("seed", 0))


def _json(**what: Any) -> str:
    return json.dumps(what, separators=(",", ":"))


def _round(row: Sequence[Any]) -> RoundRecord:
    number, server_round, end, updates, names, *step = row
    taken = tuple(UpdateRecord(*update) for update in updates)
    return RoundRecord(number, server_round, end, taken, tuple(names), *step)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Measures as numbers that JSON knows, lists of them too."""
    if not isinstance(record, Mapping):
        raise TypeError(f"a {type(record).__name__} was given; give a MetricRecord")
    return {name: [*map(_number, v)] if isinstance(v, list) else _number(v) for name, v in record.items()}


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, (int, np.integer)) else float(value)
