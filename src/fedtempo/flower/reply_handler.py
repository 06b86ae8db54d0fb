"""Makes messages of jobs, and events of replies, silence and who comes or goes.

    Arrived     an update that may enter, with Δ_i in `contributions` until a round takes it
    Failed      anything else that came of a job; the rule sends it again, and its time counts with the next update
    Left        the client's node is gone, or the client is set aside
    Joined      a node is there that was not, or a client's rest is over

What it knows of the clients is in `registry` (who is who), `retries` (who rests) and `losses`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedtempo.clock.events import Arrived, Event, Failed, Job, Joined, Left, Tick
from fedtempo.errors import StorageError
from fedtempo.flower.arrays import Arrays
from fedtempo.flower.buffers import Buffers
from fedtempo.flower.client_registry import Change, ClientRegistry, Node, named
from fedtempo.flower.clock import TransportCosts, seconds
from fedtempo.flower.compressing import BUFFERS
from fedtempo.flower.estimates import MEMORY, Estimates
from fedtempo.flower.examples import Judged, capped
from fedtempo.flower.faults import Faults, Kind, RetryPolicy
from fedtempo.flower.guard import Guard, Lengths
from fedtempo.flower.metrics import Remark, with_count
from fedtempo.flower.result import UpdateRecord
from fedtempo.flower.settings import Settings
from fedtempo.flower.transport import Reply, Stray
from fedtempo.flower.validator import Contribution, Refused, ReplyValidator
from fedtempo.flower.versions import Versions

_EXPIRED = 3
"""Flower's code for a message that it no longer knows: its time to live is over."""
_ORDER = {Arrived: 0, Failed: 1, Left: 2, Joined: 3}


class Held(NamedTuple):
    """An update that has arrived, and when."""

    contribution: Contribution
    arrived: Tick
    base: Arrays | None = None
    """The model from which its job started, where the server rule asks for it."""


class ReplyHandler:
    """What is known of the clients, and what they have sent."""

    def __init__(
        self,
        settings: Settings,
        versions: Versions,
        estimates: Estimates,
        faults: Faults,
        costs: TransportCosts,
        *,
        buffers: Buffers,
        guard: Guard,
        train_config: ConfigRecord,
        timeout: float,
        keep_bases: bool = False,
    ) -> None:
        """`keep_bases`: until a round takes an update, the model from which its job started is kept with it."""
        self._keep_bases = keep_bases
        self._content = RecordDict({settings.arrays_key: ArrayRecord(), settings.config_key: ConfigRecord()})
        self._settings, self._versions, self._estimates = settings, versions, estimates
        self._faults, self._costs = faults, costs
        self._config, self._timeout = train_config, timeout
        self._ttl = timeout + max(60.0, 0.1 * timeout)  # so that what comes late is ours to say, not Flower's
        self._more: dict[str, Any] = {BUFFERS: list(buffers.floating)} if buffers.floating else {}
        self._loss_key = settings.loss_key if "loss" in settings.rule.needs else None
        self._overheads: dict[int, tuple[int, float]] = {}
        self.registry = ClientRegistry()
        self.retries = RetryPolicy(settings.max_failures, settings.retry_after)
        read_here = (settings.identity_key, settings.work_key, settings.loss_key)
        self.validator = ReplyValidator(
            settings.examples_key,
            clip_norm=settings.clip_norm,
            norm_limit=settings.norm_limit,
            wanted=frozenset(name for name in read_here if name is not None),
            buffers=buffers,
        )
        self.guard, self.lengths = guard, Lengths(settings.norm_limit)
        self.contributions: dict[Job, Held] = {}
        self.losses: dict[int, float] = {}
        """The last loss that each client has reported, where the rule needs it."""
        self._said: set[tuple[int, str]] = set()
        """What has been said of whose metrics."""
        self._judged = Judged()
        self.server_round = 0
        """Rounds that took updates so far."""
        self.identities_changed = False
        """Whether somebody's identity is another since this was last set to False."""

    def note(self, now: Tick, client: int, kind: Kind, reason: str) -> None:
        """A fault of a client, or of nobody (-1)."""
        self._faults.note(now, client, self.registry.identity(client), kind, reason)

    def pack(self, job: Job) -> Message | None:
        """The message that takes a job out: the current model, and which job of which version this is."""
        node = self.registry.node_of(job.client)
        if node is None:
            return None
        with self._costs.part("aggregation"):
            arrays = self._versions.record()
        message = self.message(
            node,
            MessageType.TRAIN,
            arrays,
            self._config,
            {"job": job.number, "base-version": job.base, **self._more},
        )
        self._versions.hold()
        return message

    def message(self, node: int, kind: str, arrays: ArrayRecord, given: ConfigRecord, more: dict[str, Any]) -> Message:
        """A message with a model, for the round that is now made (TRAIN) or has just been made (EVALUATE)."""
        server_round = self.server_round + (kind == MessageType.TRAIN)
        config = ConfigRecord({**given, "server-round": server_round, **more})
        content = self._content.copy()  # quicker than a new one, which looks for values that are not there
        content[self._settings.arrays_key], content[self._settings.config_key] = arrays, config
        return self._settings.message(
            content=content, dst_node_id=node, message_type=kind, ttl=self._ttl, group_id=str(server_round)
        )

    def read(self, reply: Reply | Stray, now: Tick) -> Sequence[Event]:
        """What a reply amounts to, or that none came."""
        if isinstance(reply, Stray):
            self._note_stray(reply, now)
            return ()
        job, message = reply
        if message is None:
            events = self.lost(job, "deadline", f"no answer within {self._timeout:g} s", now)
        else:
            events = self._opened(job, message, now)
        self.gone(job)
        return events

    def _opened(self, job: Job, message: Message, now: Tick) -> Sequence[Event]:
        """An update that may enter, or a failure; or the discovery that the client is one that is known."""
        if job in self.guard.undone:
            self.guard.undone.discard(job)
            reason = f"job {job.number} started from version {job.base}, which was rolled back; it is sent again"
            return [self._again(job, now, "guard", reason)]
        with self._costs.part("admission"):
            try:
                base = {} if message.has_error() else self._versions.base(job.base)
            except StorageError as error:
                return [self._again(job, now, "memory", f"job {job.number} is sent again: {error}")]
            found = self.validator.admit(message, base)
        if isinstance(found, Refused):
            if message.has_error() and message.error.code == _EXPIRED and now - job.sent >= 0.9e9 * self._timeout:
                reason = f"no answer within {seconds(now - job.sent):g} s, and Flower has dropped the message"
                return self.lost(job, "deadline", reason, now)
            return self.lost(job, "error" if message.has_error() else "refused", found.reason, now)
        loss = found.metrics.get(self._loss_key or "")
        if self._loss_key is not None and not isinstance(loss, (int, float)):
            return self.lost(job, "refused", f"the reply's metrics have no number {self._loss_key!r}", now)
        events: Sequence[Event] = ()
        if (name := named(found.metrics, self._settings.identity_key)) is not None:
            before = self.registry.identity(job.client)
            changes = self.registry.introduce(job.client, name, authenticated=self._settings.authenticated)
            self.identities_changed |= before != self.registry.identity(job.client)
            events = self._changed(changes, now)
            if any(change.there is False for change in changes):
                return events  # the number was a stranger's: its update is not taken
        self._estimates.answered(job, now, found.examples)
        self._judge(job.client, now)
        if found.remarks:
            self.remark(job.client, found.remarks, now)
        if isinstance(loss, (int, float)) and self._loss_key is not None:
            most = sys.float_info.max  # a loss that is no number is the highest: JSON has no infinity
            self.losses[job.client] = most if math.isnan(loss) else max(-most, min(float(loss), most))
        self._measure(job.client, now - job.sent, found)
        self.guard.arrived(job.client)
        self.contributions[job] = Held(found, now, base if self._keep_bases else None)
        return [Arrived(job), *events]

    def _measure(self, client: int, duration: Tick, found: Contribution) -> None:
        """How much longer the round trip took than the client worked, where it says so."""
        work = found.metrics.get(self._settings.work_key or "")
        if isinstance(work, (int, float)) and 0 <= work < math.inf:
            count, mean = self._overheads.get(client, (0, 0.0))
            mean += (seconds(duration) - work - mean) / min(count + 1, MEMORY)
            self._overheads[client] = count + 1, mean
            self._costs.round_trip_overhead[self.registry.identity(client)] = mean

    def remark(self, client: int, remarks: Iterable[Remark], now: Tick) -> None:
        """Say what was odd in a client's metrics, each kind once."""
        for kind, words in remarks:
            if (client, kind) not in self._said:
                self._said.add((client, kind))
                self.note(now, client, "metrics", words)

    def _judge(self, client: int, now: Tick) -> None:
        """Say whose number of examples is not believed: this client's, or an earlier one's by what is known now."""
        factor, estimates = self._settings.max_examples, self._estimates
        if factor is None or not self._judged.due(
            estimates.examples_changes, estimates.reported(client) or 0.0, factor
        ):
            return
        known = [i for i in sorted({*self.registry.there, client}) if estimates.reported(i) is not None]
        said = np.array([estimates.reported(i) for i in known])
        counts = capped(said, factor)
        self._judged.done(estimates.examples_changes, len(known), float(np.sort(counts)[len(counts) // 2]))
        for i, claimed, counted in zip(known, said.tolist(), counts.tolist(), strict=True):
            if counted < claimed:
                self.remark_examples(i, claimed, counted, now)

    def remark_examples(self, client: int, claimed: float, counted: float, now: Tick) -> None:
        """Say that a client's number of examples is not believed, once."""
        if (client, "examples") not in self._said:
            self._said.add((client, "examples"))
            other = ", or give importance" if self._settings.importance is None else ""
            self.note(
                now,
                client,
                "examples",
                f"it reports {claimed:.6g} examples and counts as {counted:.6g}, {self._settings.max_examples:g} "
                "times the median of the others. If it is right, raise "
                f"max_examples{other}",
            )

    def believed(self, updates: Sequence[UpdateRecord], contents: Sequence[RecordDict]) -> list[RecordDict]:
        """What came with a round's updates, with the numbers of examples that count: means of metrics are by these."""
        count, believed = self._settings.examples_key, list(contents)
        for place, update in enumerate(updates):
            if (update.client, "examples") in self._said:
                counted, said = self._estimates.examples_of(update.client), self._estimates.reported(update.client)
                if counted is not None and said is not None and counted < said:
                    believed[place] = with_count(believed[place], count, counted)
        return believed

    def lost(self, job: Job, kind: Kind, reason: str, now: Tick) -> Sequence[Event]:
        """A failure: the job is sent again, unless the client has failed too often."""
        self.note(now, job.client, kind, f"job {job.number}: {reason}")
        if kind == "refused":
            self.guard.refused(job.client, reason)
        elif kind == "error":
            self.guard.failed(job.client, reason)
        rest = self.retries.failed(job.client, now)
        if rest is None:
            self._estimates.failed(job)
            return [Failed(job, reason)]
        self._estimates.set_aside(job, now, self._versions.number)
        often = f"it has failed {self._settings.max_failures} times in a row; it is tried again in {seconds(rest):g} s"
        self.note(now, job.client, "set aside", often)
        return [Left(job.client)]

    def _again(self, job: Job, now: Tick, kind: Kind, reason: str) -> Event:
        """An answer that does not count, and for which its client is not to blame."""
        self.note(now, job.client, kind, reason)
        self._estimates.failed(job)
        return Failed(job, reason)

    def gone(self, job: Job) -> None:
        """The job's base is no longer needed for it."""
        self._versions.release(job.base)

    def _note_stray(self, stray: Stray, now: Tick) -> None:
        """Note an answer that is not taken; an error after a failure that is known says nothing."""
        kind, job, message = stray
        if job is None:
            self.note(now, -1, kind, f"a reply of node {message.metadata.src_node_id} to a message that was not sent")
        elif not message.has_error():
            words = "answered twice" if kind == "double" else "answered after the server gave up on it"
            self.note(now, job.client, kind, f"job {job.number} from version {job.base} {words}; the answer is ignored")

    def come_and_gone(self, nodes: Iterable[Node], now: Tick) -> Sequence[Event]:
        """Who has come and gone, when these nodes are connected."""
        return self._changed(self.registry.look(nodes), now)

    def _changed(self, changes: Sequence[Change], now: Tick) -> list[Event]:
        events: list[Event] = []
        for client, there, kind, reason in changes:
            self.note(now, client, kind, reason)
            self.identities_changed = True
            if there is not None:
                self.retries.forgive(client)
                self._estimates.forgive(client)
                events.append(Joined(client) if there else Left(client))
        return events

    def rested(self, now: Tick) -> Sequence[Event]:
        """Clients whose rest is over."""
        events: list[Event] = []
        for client in self.retries.due(now):
            if self.registry.node_of(client) is not None:
                self.note(now, client, "tried again", "its pause is over")
                events.append(Joined(client))
        return events


def in_order(events: list[Event]) -> list[Event]:
    """What is found at one time, as the rule hears of it: arrivals by client, then failures, leavings, joinings."""
    if len(events) < 2:
        return events
    left = {event.client: place for place, event in enumerate(events) if isinstance(event, Left)}
    return sorted((event for place, event in enumerate(events) if not _overtaken(event, place, left)), key=_place)


def _overtaken(event: Event, place: int, left: dict[int, int]) -> bool:
    """Whether an event says nothing any more, since its client has left: at the same time, or later in the list."""
    if isinstance(event, Joined):
        return left.get(event.client, -1) > place
    return isinstance(event, Failed) and event.job.client in left


def _place(event: Event) -> tuple[int, int]:
    client = event.job.client if isinstance(event, (Arrived, Failed)) else getattr(event, "client", -1)
    return _ORDER.get(type(event), 4), client
