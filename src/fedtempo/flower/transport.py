"""Flower as a carrier: jobs go out by `push_messages` and come back by `pull_messages`, which is asked every `poll`.

A look is stamped with the time at which it began; what it finds happened then. A look that is made for the rule's
deadline counts as of the deadline if it begins within `poll` of it. A server that comes later than that closes the
round first, with what was there before, and looks afterwards; one that comes later than a whole wait tells the rule the
true time, and the rule skips the ticks that it has missed. So ticks neither drift nor bunch up, and the record replays.

What a reply means is the desk's business; here are ids, deadlines and order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from fedtempo.clock.events import Arrived, Event, Failed, Job, Joined, Left, Tick
from fedtempo.flower.client_registry import Node
from fedtempo.flower.clock import Clock, TransportCosts
from fedtempo.flower.faults import Kind

_ORDER = {Arrived: 0, Failed: 1, Left: 2, Joined: 3}
_POLLS_PER_NODE_LOOK = 12
_ANSWERS_KEPT = 10_000

Take = Callable[[Message | None, Tick], None]
"""Told the reply to a message that is no job, or None when there will be none, and when that was seen."""


class ReplyHandler(Protocol):
    """Who makes messages of jobs and events of replies."""

    def pack(self, job: Job) -> Message | None:
        """The message that takes the job out; None if its client is nowhere."""

    def opened(self, job: Job, reply: Message, now: Tick) -> Sequence[Event]:
        """What a reply to a job amounts to."""

    def lost(self, job: Job, kind: Kind, reason: str, now: Tick) -> Sequence[Event]:
        """What it amounts to that a job will not come back."""

    def gone(self, job: Job) -> None:
        """A packed job is no longer out, for whatever reason."""

    def stray(self, job: Job | None, kind: Kind, reply: Message, now: Tick) -> None:
        """A reply that nobody waits for: late or double to `job`, or to nothing that is known."""

    def listed(self, nodes: Iterable[Node], now: Tick) -> Sequence[Event]:
        """What it amounts to that these nodes are connected."""

    def due(self, now: Tick) -> Sequence[Event]:
        """What the desk had put off until now."""

    @property
    def next_due(self) -> Tick | None:
        """When it has put off something until."""


class _Out(NamedTuple):
    job: Job
    id: str
    until: Tick


class _Other(NamedTuple):
    """A message that is no job."""

    node: int
    until: Tick
    take: Take


class FlowerTransport:
    """Jobs to Flower's nodes and back. Times are ticks of `clock`."""

    def __init__(
        self,
        grid: Grid,
        clock: Clock,
        handler: ReplyHandler,
        costs: TransportCosts,
        *,
        timeout: Tick,
        poll: Tick,
        wait: Tick,
        until: Tick | None,
    ) -> None:
        """`wait`: the rule's own interval, 0 if it has none; `until`: when to say that all is over."""
        self._grid, self._clock, self._handler, self._costs = grid, clock, handler, costs
        self._timeout, self._poll, self._wait, self._until = timeout, poll, wait, until
        self._out: dict[str, _Out] = {}
        self._of_client: dict[int, _Out] = {}
        self._over: dict[str, Job] = {}
        self._ends: deque[tuple[Tick, str]] = deque()
        self._forget: deque[tuple[Tick, str]] = deque()
        self._others: dict[str, _Other] = {}
        self._held: list[Event] = []
        self._next_look: Tick = 0
        self._next_nodes: Tick = 0
        self._answered: dict[str, Job] = {}

    # -- out

    def send(self, jobs: tuple[Job, ...]) -> None:
        """Push the jobs; those that cannot be pushed have failed at the next moment."""
        packed: list[tuple[Job, Message]] = []
        for job in jobs:
            message = self._handler.pack(job)
            if message is None:
                self._held += self._handler.lost(job, "not sent", "its node is no longer connected", job.sent)
            else:
                packed.append((job, message))
        if not packed:
            return
        for (job, _), name in zip(packed, self._push([message for _, message in packed]), strict=True):
            if name:
                out = _Out(job, name, job.sent + self._timeout)
                self._out[name] = self._of_client[job.client] = out
                self._ends.append((out.until, name))
            else:
                self._handler.gone(job)
                self._held += self._handler.lost(job, "not sent", "Flower does not know its node", job.sent)
                self._next_nodes = 0

    def hold(self, events: Iterable[Event]) -> None:
        """Something that has happened, to be told at the next moment."""
        self._held += events

    def post(self, messages: Sequence[tuple[Message, Take]], now: Tick) -> None:
        """Push messages that are no jobs."""
        names = self._push([message for message, _ in messages])
        for (message, take), name in zip(messages, names, strict=True):
            if name:
                self._others[name] = _Other(message.metadata.dst_node_id, now + self._timeout, take)
            else:
                take(None, now)

    def _push(self, messages: list[Message]) -> list[str]:
        """Ids, one a message; "" where it was not taken. Flower gives none at all where all together are too large."""
        with self._costs.part("push"):
            names = [name or "" for name in self._grid.push_messages(messages)]
            if len(names) == len(messages):
                return names
            if len(messages) == 1:
                return [""]
            return [next(iter(self._grid.push_messages([message])), "") or "" for message in messages]

    # -- in

    def wait(self, deadline: Tick | None) -> tuple[Tick, list[Event]]:
        """The next moment at which something happens, at most `deadline` unless that is long past, and what happens."""
        while True:
            now = self._clock.now()
            at = now
            if deadline is not None and now > deadline and now - deadline <= self._wait:
                if now - deadline > self._poll:
                    return deadline, []
                at = deadline
            if self._until is not None and at > self._until:
                return self._until + 1, []
            ticking = deadline is not None and at >= deadline
            if ticking or self._held or now >= self._next_look:
                events = self._look(at)
                if events or ticking:
                    return at, events
            self._clock.sleep(self._wake(deadline))
            self._next_look = 0  # a sleep may end early because something has happened

    def _wake(self, deadline: Tick | None) -> Tick:
        over = None if self._until is None else self._until + 1
        late = self._ends[0][0] if self._ends else None
        others = (deadline, self._handler.next_due, over, late)
        return min(self._next_look, self._next_nodes, *(moment for moment in others if moment is not None))

    def _look(self, at: Tick) -> list[Event]:
        """What has happened by now, in the order in which a moment is told."""
        events, self._held = self._held, []
        events += self._pull(at)
        events += self._expire(at)
        if at >= self._next_nodes:
            events += self._handler.listed(self._nodes(at), at)
        events += self._handler.due(at)  # after the list: the rest of a client that is gone need not end
        self._next_look = self._clock.now() + self._poll
        if len(events) < 2:
            return events
        left = {event.client: place for place, event in enumerate(events) if isinstance(event, Left)}
        return sorted((e for place, e in enumerate(events) if not _overtaken(e, place, left)), key=_place)

    def _nodes(self, at: Tick) -> list[Node]:
        """Who is connected; those who are not will not answer."""
        with self._costs.part("nodes"):
            nodes: list[Node] = list(self._grid.get_nodes())
        self._next_nodes = at + _POLLS_PER_NODE_LOOK * self._poll
        there = {node.node_id for node in nodes}
        self._drop([name for name, other in self._others.items() if other.node not in there], at)
        return nodes

    def _drop(self, names: list[str], at: Tick) -> None:
        """Nobody waits for the answers to these messages any longer."""
        for name in names:
            self._others.pop(name).take(None, at)

    def _pull(self, at: Tick) -> list[Event]:
        wanted = [*self._out, *self._over, *self._others]
        if not wanted:
            return []
        with self._costs.part("pull"):
            replies = list(self._grid.pull_messages(wanted))
        events: list[Event] = []
        for reply in replies:
            name = reply.metadata.reply_to_message_id
            if (out := self._out.get(name)) is not None:
                self._remember(out)
                events += self._handler.opened(out.job, reply, at)
                self._settle(out)
            elif name in self._others:
                self._others.pop(name).take(reply, at)
            elif name in self._over:
                self._handler.stray(self._over.pop(name), "late", reply, at)
            elif name in self._answered:
                self._handler.stray(self._answered[name], "double", reply, at)
            else:
                self._handler.stray(None, "unknown", reply, at)
        return events

    def _remember(self, out: _Out) -> None:
        """So that a second answer is known for what it is."""
        self._answered[out.id] = out.job
        if len(self._answered) > _ANSWERS_KEPT:
            del self._answered[next(iter(self._answered))]

    def _expire(self, at: Tick) -> list[Event]:
        events: list[Event] = []
        while self._ends and self._ends[0][0] <= at:
            _, name = self._ends.popleft()
            if (out := self._out.get(name)) is not None:
                self._settle(out)
                self._watch(out, at)
                late = f"no answer within {self._timeout / 1e9:g} s"
                events += self._handler.lost(out.job, "deadline", late, at)
        while self._forget and self._forget[0][0] <= at:
            self._over.pop(self._forget.popleft()[1], None)
        self._drop([name for name, other in self._others.items() if other.until <= at], at)
        return events

    def _settle(self, out: _Out) -> None:
        """The job is no longer out."""
        del self._out[out.id]
        if self._of_client.get(out.job.client) is out:
            del self._of_client[out.job.client]
        self._handler.gone(out.job)

    def _watch(self, out: _Out, at: Tick) -> None:
        """An answer may still come; it is only noted."""
        self._over[out.id] = out.job
        self._forget.append((at + self._timeout, out.id))

    def abandon(self, client: int, at: Tick) -> None:
        """The server has let the client go, and what is out with it: also what this very moment has sent."""
        out = self._of_client.get(client)
        if out is not None:
            self._settle(out)
            self._watch(out, at)

    def finish(self) -> Tick:
        """Wait until the messages that are no jobs are answered or will not be; the time then."""
        while self._others:
            now = self._clock.now()
            with self._costs.part("pull"):
                replies = list(self._grid.pull_messages(list(self._others)))
            for reply in replies:
                if (other := self._others.pop(reply.metadata.reply_to_message_id, None)) is not None:
                    other.take(reply, now)
            self._drop([name for name, other in self._others.items() if other.until <= now], now)
            if self._others and now >= self._next_nodes:
                self._nodes(now)
            if self._others:
                self._clock.sleep(min(now + self._poll, *(other.until for other in self._others.values())))
        return self._clock.now()


def _overtaken(event: Event, place: int, left: dict[int, int]) -> bool:
    """Whether an event says nothing any more, since its client has left: at the same moment, or later in it."""
    if isinstance(event, Joined):
        return left.get(event.client, -1) > place
    return isinstance(event, Failed) and event.job.client in left


def _place(event: Event) -> tuple[int, int]:
    client = event.job.client if isinstance(event, (Arrived, Failed)) else getattr(event, "client", -1)
    return _ORDER.get(type(event), 4), client
