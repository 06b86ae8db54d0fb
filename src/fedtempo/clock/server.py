"""The server's bookkeeping of Algorithm 1: who works on which version, who has answered, when a round ends.

It holds no clock, no models and no transport: it is told events with their time and answers with the round that ended,
if one did, and the jobs to send out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction

from fedtempo.clock.events import (
    Action,
    Arrived,
    Close,
    Deadline,
    Event,
    Failed,
    Job,
    Joined,
    Left,
    Round,
    Send,
    Tick,
    View,
)
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError, UnlawfulRule

SNAPSHOT_FORMAT = 1


class Server:
    """Algorithm 1 without models. Late and double answers are ignored."""

    def __init__(
        self,
        rule: WaitingRule,
        clients: Iterable[int],
        *,
        unit: Fraction,
        seed: int = 0,
        measures: Mapping[str, Mapping[int, object]] | None = None,
    ) -> None:
        self.rule = rule
        self.unit = unit
        self.seed = seed
        self.version = 0
        self.clients = set(clients)
        self.in_flight: dict[int, Job] = {}
        self.arrived: dict[int, Job] = {}
        self.measures: dict[str, Mapping[int, object]] = dict(measures or {})
        self._next_job: dict[int, int] = {}
        self._noted: dict[str, dict[int, float]] = {}
        self._state: State = None
        self._now: Tick = 0
        self._has_deadlines = type(rule).deadline is not WaitingRule.deadline  # asked at every event, so known once

    def start(self, now: Tick = 0) -> tuple[Job, ...]:
        """Version 0 goes out."""
        self.rule.check(len(self.clients))
        self._now = now
        self._state, first = self.rule.start(self._view())
        return self._send(first)

    @property
    def deadline(self) -> Tick | None:
        """The moment at which the rule wants to be told `Deadline`."""
        return self.rule.deadline(self._state, self._view()) if self._has_deadlines else None

    def handle(self, event: Event, now: Tick) -> tuple[Round | None, tuple[Job, ...]]:
        """Book `event`; the round that it ended, if it did, and the jobs to send."""
        if now < self._now:
            raise InputError(f"time went back from {self._now} to {now}; events must be handled in order")
        self._now = now
        if not self._book(event):
            return None, ()
        self._state, action = self.rule.decide(self._state, event, self._view())
        return self._act(action)

    def note(self, name: str, client: int, value: float) -> None:
        """Remember a measure of a client, such as its last loss, for rules that choose by it."""
        self._noted.setdefault(name, {})[client] = value
        self.measures[name] = {**self.measures.get(name, {}), **self._noted[name]}

    def _book(self, event: Event) -> bool:
        """Enter the event; False if there is nothing to tell the rule."""
        match event:
            case Arrived(job):
                if self.in_flight.get(job.client) != job:
                    return False
                self.arrived[job.client] = self.in_flight.pop(job.client)
            case Failed(job):
                if self.in_flight.get(job.client) != job:
                    return False
                del self.in_flight[job.client]
            case Joined(client):
                if client in self.clients:
                    return False
                self.clients.add(client)
                if client in self.arrived:
                    return False  # back before the round that will take its last update: that round sends to it
            case Left(client):
                if client not in self.clients:
                    return False
                self.clients.remove(client)
                self.in_flight.pop(client, None)
            case Deadline():
                due = self.deadline
                return due is not None and self._now >= due
        return True

    def _act(self, action: Action) -> tuple[Round | None, tuple[Job, ...]]:
        if action is None:
            return None, ()
        if isinstance(action, Send):
            return None, self._send(c for c in action.clients if c in self.clients)
        if not isinstance(action, Close):
            raise UnlawfulRule(f"{self.rule!r} returned {action!r}; a rule returns Close, Send or None")
        for job in action.take:
            if self.arrived.get(job.client) != job:
                raise UnlawfulRule(f"{self.rule!r} takes {job}, which has not arrived or is taken twice")
            del self.arrived[job.client]
        jobs = tuple(sorted(action.take))
        wanted = [job.client for job in jobs] if action.send is None else list(action.send)
        targets = [c for c in wanted if c in self.clients]
        number = self.version
        self.version += 1
        sent = self._send(targets)
        return Round(number, self._now, jobs, tuple(job.client for job in sent)), sent

    def _send(self, targets: Iterable[int]) -> tuple[Job, ...]:
        """One job per named client, from the current version; named k times, it counts k draws."""
        out = []
        named: dict[int, int] = {}
        for client in targets:
            named[client] = named.get(client, 0) + 1
        for client, draws in sorted(named.items()):
            if client not in self.clients:
                raise UnlawfulRule(f"{self.rule!r} sends to client {client}, which is not available")
            if client in self.in_flight or client in self.arrived:
                raise UnlawfulRule(f"{self.rule!r} sends to client {client}, which still has a running job")
            if draws > 1 and not self.rule.counts_draws:
                raise UnlawfulRule(f"{self.rule!r} names client {client} {draws} times but has counts_draws = False")
            number = self._next_job.get(client, 0)
            self._next_job[client] = number + 1
            job = Job(client, number, self.version, self._now, draws)
            self.in_flight[client] = job
            out.append(job)
        return tuple(out)

    def _view(self) -> View:
        return View(
            self._now,
            self.unit,
            self.version,
            self.clients,
            self.in_flight,
            self.arrived,
            self.measures,
            self.seed,
        )

    @property
    def phase(self) -> int | None:
        """The rule's phase, for the search for cycles."""
        return self.rule.phase(self._state)

    def snapshot(self) -> dict[str, object]:
        """Everything but the rule and the measures given at the start, as JSON-able values."""
        return {
            "format": SNAPSHOT_FORMAT,
            "unit": str(self.unit),
            "seed": self.seed,
            "now": self._now,
            "version": self.version,
            "clients": sorted(self.clients),
            "in_flight": [list(job) for _, job in sorted(self.in_flight.items())],
            "arrived": [list(job) for job in self.arrived.values()],
            "next_job": sorted(self._next_job.items()),
            "noted": [[name, client, value] for name, row in self._noted.items() for client, value in row.items()],
            "state": _plain(self._state),
        }

    @classmethod
    def restore(
        cls,
        rule: WaitingRule,
        snapshot: Mapping[str, object],
        *,
        measures: Mapping[str, Mapping[int, object]] | None = None,
    ) -> Server:
        """The server that a snapshot (also one that went through JSON) was taken of."""
        plain = json.loads(json.dumps(snapshot))
        if plain.get("format") != SNAPSHOT_FORMAT:
            raise InputError(f"a snapshot of format {plain.get('format')!r} cannot be read; expected {SNAPSHOT_FORMAT}")
        server = cls(rule, plain["clients"], unit=Fraction(plain["unit"]), seed=plain["seed"], measures=measures)
        server._now, server.version = plain["now"], plain["version"]
        server.in_flight = {fields[0]: Job(*fields) for fields in plain["in_flight"]}
        server.arrived = {fields[0]: Job(*fields) for fields in plain["arrived"]}
        server._next_job = dict(map(tuple, plain["next_job"]))
        for name, client, value in plain["noted"]:
            server.note(name, client, value)
        server._state = _tupled(plain["state"])
        return server


def _plain(state: object) -> object:
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, tuple):
        return [_plain(part) for part in state]
    if isinstance(state, Mapping) and all(isinstance(key, str) for key in state):
        return {key: _plain(part) for key, part in state.items()}
    raise UnlawfulRule(
        f"a rule's state holds {state!r}, which a checkpoint cannot keep; use None, numbers, text, tuples of these, "
        "or dicts of these under text keys"
    )


def _tupled(state: object) -> object:
    if isinstance(state, list):
        return tuple(_tupled(part) for part in state)
    if isinstance(state, dict):
        return {key: _tupled(part) for key, part in state.items()}
    return state
