"""Flower as a transport: jobs go out by `push_messages` and come back by `pull_messages`, asked every `poll`.

A look is stamped with the time at which it began; what it finds happened then. A look that is made for the rule's
deadline counts as of the deadline if it begins within `poll` of it. A server that comes later than that closes the
round first, with what was there before, and looks afterwards; one that comes later than a whole wait tells the rule the
true time, and the rule skips the ticks that it has missed. So ticks neither drift nor bunch up, and the record replays.

Here are message ids, timeouts and looks; reply_handler.py says what a reply means, training.py what is done about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedtempo.clock.events import Job, Tick
from fedtempo.flower.client_registry import Node
from fedtempo.flower.clock import Clock, TransportCosts

_POLLS_PER_NODE_LOOK = 12
_ANSWERS_KEPT = _ENDS_KEPT = 10_000

Take = Callable[[Message | None, Tick], None]
"""Called with the reply to a message that is no job, or None when there will be none, and when that was seen."""


class Look(NamedTuple):
    """A look that is due, and the time that counts for it."""

    now: Tick
    in_time: bool
    """False: the server comes so late for the rule's deadline that the round ends before anything is looked at."""


class Reply(NamedTuple):
    """What came of a job that was out."""

    job: Job
    message: Message | None
    """None: no answer within the timeout."""


class Stray(NamedTuple):
    """An answer that nobody waits for: after the timeout, a second one, or to nothing that was sent."""

    kind: Literal["late", "double", "unknown"]
    job: Job | None
    message: Message


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
        costs: TransportCosts,
        *,
        timeout: Tick,
        poll: Tick,
        wait: Tick,
        until: Tick | None,
    ) -> None:
        """`wait`: the rule's own interval, 0 if it has none; `until`: when training ends."""
        self._grid, self._clock, self._costs = grid, clock, costs
        self._timeout, self._poll, self._wait, self._until = timeout, poll, wait, until
        self._out: dict[str, _Out] = {}
        self._of_client: dict[int, _Out] = {}
        self._over: dict[str, Job] = {}
        self._ends: deque[tuple[Tick, str]] = deque()
        self._forget: deque[tuple[Tick, str]] = deque()
        self._others: dict[str, _Other] = {}
        self._next_look: Tick = 0
        self._next_nodes: Tick = 0
        self._answered: dict[str, Job] = {}
        self._answered_first: deque[str] = deque()
        self._seen = getattr(grid, "nodes_version", None)
        """Of a grid that says when somebody has come or gone."""

    # -- out

    def send(self, packed: Sequence[tuple[Job, Message]]) -> list[Job]:
        """Push the jobs; those whose node Flower does not know come back."""
        if not packed:
            return []
        unsent: list[Job] = []
        for (job, _), name in zip(packed, self._push([message for _, message in packed]), strict=True):
            if name:
                out = _Out(job, name, job.sent + self._timeout)
                self._out[name] = self._of_client[job.client] = out
                self._note_end(out)
            else:
                unsent.append(job)
                self._next_nodes = 0
        return unsent

    def _note_end(self, out: _Out) -> None:
        """Know when the job is late; of jobs that have come back the end is forgotten in time."""
        if len(self._ends) > 2 * len(self._out) + _ENDS_KEPT:
            self._ends = deque(end for end in self._ends if end[1] in self._out)
        self._ends.append((out.until, out.id))

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

    def next_look(self, deadline: Tick | None, other: Tick | None = None, *, at_once: bool = False) -> Look:
        """Sleep until a look is due: after a `poll`, for the rule's `deadline`, for the `other` time, or `at_once`."""
        while True:
            now = at = self._clock.now()
            if deadline is not None and deadline < now <= deadline + self._wait:
                if now - deadline > self._poll:
                    return Look(deadline, False)
                at = deadline
            over = self._until is not None and at > self._until
            if over or at_once or now >= self._next_look or (deadline is not None and at >= deadline):
                return Look(at, True)
            self._clock.sleep(self._wake(deadline, other))
            self._next_look = 0  # a sleep may end early because something has happened

    def _wake(self, deadline: Tick | None, other: Tick | None) -> Tick:
        over = None if self._until is None else self._until + 1
        late = self._ends[0][0] if self._ends else None
        times = (deadline, other, over, late)
        return min(self._next_look, self._next_nodes, *(time for time in times if time is not None))

    def replies(self, at: Tick) -> Iterator[Reply | Stray]:
        """What has come back, and then what has not come back in time."""
        wanted: Collection[str] = self._out.keys()  # as it is: with many clients a copy costs as much as a reply
        if self._over or self._others:
            wanted = [*self._out, *self._over, *self._others]
        pulled: deque[Message] = deque()
        if wanted:
            with self._costs.part("pull"):
                pulled.extend(self._grid.pull_messages(wanted))
        while pulled:
            message = pulled.popleft()  # so that its memory is free when it has been read
            name = message.metadata.reply_to_message_id
            if (out := self._out.get(name)) is not None:
                self._remember(out)
                self._settle(out)
                yield Reply(out.job, message)
            elif name in self._others:
                self._others.pop(name).take(message, at)
            elif name in self._over:
                yield Stray("late", self._over.pop(name), message)
            elif name in self._answered:
                yield Stray("double", self._answered[name], message)
            else:
                yield Stray("unknown", None, message)
        while self._ends and self._ends[0][0] <= at:
            _, name = self._ends.popleft()
            if (out := self._out.get(name)) is not None:
                self._settle(out)
                self._watch(out, at)
                yield Reply(out.job, None)
        while self._forget and self._forget[0][0] <= at:
            self._over.pop(self._forget.popleft()[1], None)
        if self._others:
            self._drop([name for name, other in self._others.items() if other.until <= at], at)
        self._next_look = self._clock.now() + self._poll

    def nodes_due(self, at: Tick) -> bool:
        """Whether it is time to ask who is connected."""
        return at >= self._next_nodes or self._seen != getattr(self._grid, "nodes_version", None)

    def nodes(self, at: Tick) -> list[Node]:
        """Who is connected; those who are not will not answer."""
        with self._costs.part("nodes"):
            self._seen = getattr(self._grid, "nodes_version", None)
            nodes: list[Node] = list(self._grid.get_nodes())
        self._next_nodes = at + _POLLS_PER_NODE_LOOK * self._poll
        there = {node.node_id for node in nodes}
        self._drop([name for name, other in self._others.items() if other.node not in there], at)
        return nodes

    def _drop(self, names: list[str], at: Tick) -> None:
        """Nobody waits for the answers to these messages any longer."""
        for name in names:
            self._others.pop(name).take(None, at)

    def _remember(self, out: _Out) -> None:
        """So that a second answer is known for what it is."""
        self._answered[out.id] = out.job
        self._answered_first.append(out.id)
        if len(self._answered) > _ANSWERS_KEPT:
            self._answered.pop(self._answered_first.popleft(), None)

    def _settle(self, out: _Out) -> None:
        """The job is no longer out."""
        del self._out[out.id]
        if self._of_client.get(out.job.client) is out:
            del self._of_client[out.job.client]

    def _watch(self, out: _Out, at: Tick) -> None:
        """An answer may still come; it is only noted."""
        self._over[out.id] = out.job
        self._forget.append((at + self._timeout, out.id))

    def abandon(self, client: int, at: Tick) -> Job | None:
        """The client has left: the job that is out with it, if there is one, is no longer waited for."""
        out = self._of_client.get(client)
        if out is None:
            return None
        self._settle(out)
        self._watch(out, at)
        return out.job

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
                self.nodes(now)
            if self._others:
                self._clock.sleep(min(now + self._poll, *(other.until for other in self._others.values())))
        return self._clock.now()
