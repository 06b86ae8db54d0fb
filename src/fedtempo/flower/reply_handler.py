"""The server's desk: it makes messages of jobs, and of replies, silence and comings and goings the events of the clock.

Arrived     an update that may enter, with Δ_i in `contributions` until a round takes it
Failed      anything else that came of a job; the waiting rule sends it again, and its time counts with the next update
Left        the client's node is gone, or the client is set aside
Joined      a node is there that was not, or a client's rest is over
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedtempo.clock.events import Arrived, Event, Failed, Job, Joined, Left, Tick
from fedtempo.flower.client_registry import Change, ClientRegistry, Node, named
from fedtempo.flower.clock import TransportCosts, seconds
from fedtempo.flower.estimates import MEMORY, Estimates
from fedtempo.flower.faults import Faults, Kind, RetryPolicy
from fedtempo.flower.settings import Settings
from fedtempo.flower.validator import Contribution, Refused, ReplyValidator
from fedtempo.flower.versions import Versions


class Held(NamedTuple):
    """An update that has arrived, and when."""

    contribution: Contribution
    arrived: Tick


class TrainReplyHandler:
    """What is known of the clients, and what they have sent."""

    def __init__(
        self,
        settings: Settings,
        versions: Versions,
        estimates: Estimates,
        faults: Faults,
        costs: TransportCosts,
        *,
        train_config: ConfigRecord,
        timeout: float,
    ) -> None:
        self._settings, self._versions, self._estimates = settings, versions, estimates
        self._faults, self._costs = faults, costs
        self._config, self._timeout = train_config, timeout
        self._overheads: dict[int, tuple[int, float]] = {}
        self.registry = ClientRegistry()
        self.retries = RetryPolicy(settings.max_failures, settings.retry_after)
        self.validator = ReplyValidator(
            settings.examples_key, clip_norm=settings.clip_norm, norm_limit=settings.norm_limit
        )
        self.contributions: dict[Job, Held] = {}
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
            node, MessageType.TRAIN, arrays, self._config, {"job": job.number, "base-version": job.base}
        )
        self._versions.hold()
        return message

    def message(self, node: int, kind: str, arrays: ArrayRecord, given: ConfigRecord, more: dict[str, int]) -> Message:
        """A message with a model, for the round that is now made (TRAIN) or has just been made (EVALUATE)."""
        server_round = self.server_round + (kind == MessageType.TRAIN)
        config = ConfigRecord({**given, "server-round": server_round, **more})
        content = RecordDict({self._settings.arrays_key: arrays, self._settings.config_key: config})
        return self._settings.message(
            content=content, dst_node_id=node, message_type=kind, ttl=self._timeout, group_id=str(server_round)
        )

    def opened(self, job: Job, reply: Message, now: Tick) -> Sequence[Event]:
        """An update that may enter, or a failure; or the discovery that the client is one that is known."""
        with self._costs.part("admission"):
            found = self.validator.admit(reply, self._versions.base(job.base))
        if isinstance(found, Refused):
            return self.lost(job, "error" if reply.has_error() else "refused", found.reason, now)
        before = self.registry.identity(job.client)
        changes = self.registry.introduce(job.client, named(found.metrics, self._settings.identity_key))
        self.identities_changed |= before != self.registry.identity(job.client)
        events = self._changed(changes, now)
        if any(change.there is False for change in changes):
            return events  # the number was a stranger's: its update is not taken
        self.retries.worked(job.client)
        self._estimates.answered(job, now, found.examples)
        self._measure(job.client, now - job.sent, found)
        self.contributions[job] = Held(found, now)
        return [Arrived(job), *events]

    def _measure(self, client: int, duration: Tick, found: Contribution) -> None:
        """How much longer the round trip took than the client worked, where it says so."""
        work = found.metrics.get(self._settings.work_key or "")
        if isinstance(work, (int, float)) and 0 <= work < math.inf:
            count, mean = self._overheads.get(client, (0, 0.0))
            mean += (seconds(duration) - work - mean) / min(count + 1, MEMORY)
            self._overheads[client] = count + 1, mean
            self._costs.round_trip_overhead[self.registry.identity(client)] = mean

    def lost(self, job: Job, kind: Kind, reason: str, now: Tick) -> Sequence[Event]:
        """A failure: the job is sent again, unless the client has failed too often."""
        self.note(now, job.client, kind, f"job {job.number}: {reason}")
        rest = self.retries.failed(job.client, now)
        if rest is None:
            self._estimates.failed(job)
            return [Failed(job, reason)]
        self._estimates.set_aside(job, now, self._versions.number)
        often = f"it has failed {self._settings.max_failures} times in a row; it is tried again in {seconds(rest):g} s"
        self.note(now, job.client, "set aside", often)
        return [Left(job.client)]

    def gone(self, job: Job) -> None:
        """The job's base is no longer needed for it."""
        self._versions.release(job.base)

    def stray(self, job: Job | None, kind: Kind, reply: Message, now: Tick) -> None:
        """Note an answer that is not taken; an error after a failure that is known says nothing."""
        if job is None:
            self.note(now, -1, kind, f"a reply of node {reply.metadata.src_node_id} to a message that was not sent")
        elif not reply.has_error():
            words = "answered twice" if kind == "double" else "answered after it was given up"
            self.note(now, job.client, kind, f"job {job.number} from version {job.base} {words}; it is not taken")

    def listed(self, nodes: Iterable[Node], now: Tick) -> Sequence[Event]:
        """Who has come and gone."""
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

    def due(self, now: Tick) -> Sequence[Event]:
        """Clients whose rest is over."""
        events: list[Event] = []
        for client in self.retries.due(now):
            if self.registry.node_of(client) is not None:
                self.note(now, client, "tried again", "its rest is over")
                events.append(Joined(client))
        return events

    @property
    def next_due(self) -> Tick | None:
        """When the next rest ends."""
        return self.retries.next_due
