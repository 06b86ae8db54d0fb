"""Flower's Grid over the exact clock: a message that is sent is answered when its client's law says so.

    reply of job j of client i at    t = begin + T_i(j) [+ (bytes down + bytes up)/bandwidth_i]

T_i(j) is the draw that the simulator has for that job, begin when the client is free for the message; a client does one
message after the other. Messages that are no training take `evaluate` times as long as a job of the client's, none by
default. Who is there and which jobs fail is the simulator's too (clock/presence.py): a client that leaves loses what it
works on, a job that fails is answered by Flower's error of code 2.

Time is exact inside. Flower's side counts whole nanoseconds, rounded up: what happens at once there happens at once
here, and the order is the same as long as nothing is nearer than a nanosecond. A sleep that ends at a multiple of the
common tick of times and waits ends exactly there.

Nobody waits in real time: a sleep, a `send_and_receive`, or a `pull_messages` that finds nothing goes on to the next
thing that happens. What the ClientApp answers is worked out by then (jobs.py).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Joined
from fedtempo.clock.presence import Failures, Presence
from fedtempo.clock.rules.wait_for_all import WaitForAll
from fedtempo.clock.streams import stream_key
from fedtempo.clock.ticks import common_unit
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.transport import Durations
from fedtempo.errors import InputError
from fedtempo.flower.clock import NANOSECOND
from fedtempo.flower.virtual.client_work import RAISED, Done, Task, error_reply, metadata_of
from fedtempo.flower.virtual.jobs import Workers
from fedtempo.flower.virtual.records import Digests, array_bytes, decoded, encoded
from fedtempo.flower.virtual.store import ReplyStore

SEED_KEY = "job-seed"
"""In the message's config: a number that depends on (seed, client, job) alone."""
_PATIENCE = 3
"""Looks at the nodes, with nothing in between, after which who looks is taken to wait for somebody."""


_LONG_ENOUGH = 10_000
"""Looks after which nobody is taken to come."""


class TimeIsOver(Exception):
    """Virtual time has come to its end while somebody waits for replies."""


class VirtualClock:
    """Exact time that passes when somebody sleeps, up to the next thing that happens."""

    virtual = True
    """A sleep ends when something happens: nobody has to look again and again."""

    def __init__(self) -> None:
        self.time = Fraction(0)
        self.unit: Fraction | None = None
        """The tick of which times and waits are multiples."""
        self.next_happening: Callable[[], Fraction | None] = lambda: None

    def now(self) -> int:
        """Nanoseconds, rounded up."""
        return _nanoseconds(self.time)

    def sleep(self, until: int) -> None:
        """Until then, or until something happens."""
        following, end = self.next_happening(), self.exactly(until)
        self.time = max(self.time, end if following is None else min(following, end))

    def exactly(self, tick: int) -> Fraction:
        """The time that is `tick` when it is rounded up: a multiple of the unit where there is one."""
        there = tick * NANOSECOND
        if self.unit is not None:
            multiple = there // self.unit * self.unit
            if _nanoseconds(multiple) == tick:
                return multiple
        return there


def _nanoseconds(time: Fraction) -> int:
    return int(-(-time // NANOSECOND))


@dataclass
class _Sent:
    """A message on its way."""

    message: Message
    client: int
    kind: str
    number: int
    """How many messages of the kind the client has had before."""
    begin: Fraction
    due: Fraction
    """When the reply comes; not before, where that is not `known`."""
    count: int
    known: bool
    fails: bool
    content: RecordDict
    seed: int
    task: Task | None = None
    digest: str = ""
    begun: Future[Any] | None = None
    done: Done | None = None
    over: bool = False
    """Answered, or never to be."""

    def __lt__(self, other: _Sent) -> bool:
        return (self.due, self.client, self.count) < (other.due, other.client, other.count)


class Exchange(NamedTuple):
    """A `send_and_receive`: what went out, what came back and when."""

    messages: list[Message]
    replies: list[Message]
    begin: Fraction
    end: Fraction
    arrived: dict[str, Fraction]
    """By id of the message."""


class VirtualGrid(Grid):
    """Flower's Grid in virtual time. Client i is node i, with partition-id i.

    `simulate_app` makes it and gives it to the ServerApp.

    Example:
        In the app of the example of `simulate_app`:

        >>> app = ServerApp()
        >>> @app.main()
        ... def main(grid, context):
        ...     print(type(grid).__name__, grid.get_node_ids())
        ...     FedFix(wait=1).start(grid, ArrayRecord([np.zeros(1)]), num_rounds=1)
        >>> result = simulate_app(app, client_app, times=ft.FixedTimes([4, 2, 1]))
        VirtualGrid [0, 1, 2]
    """

    def __init__(
        self,
        times: ClientTimes | MeasuredTimes,
        workers: Workers,
        *,
        seed: int = 0,
        until: Fraction | None = None,
        bandwidth: Sequence[Fraction] | None = None,
        evaluate: Fraction = Fraction(0),
        run_config: Mapping[str, Any] | None = None,
        store: ReplyStore | None = None,
    ) -> None:
        """`bandwidth`: bytes a second of each client; `store`: where replies are kept, and read again."""
        self.clock = VirtualClock()
        self.clock.next_happening = self._next
        self.clocked = False
        """Whether a strategy sleeps by the clock; else whoever waits for replies is taken to the next ones."""
        self.times, self.seed, self.until = times, seed, until
        self._workers, self._store = workers, store
        self._bandwidth, self._evaluate = bandwidth, evaluate
        self._run_config = dict(run_config or {})
        self.num_clients = times.num_clients
        self._law = None if isinstance(times, MeasuredTimes) else _Law(times, seed)
        self._measured = times if isinstance(times, MeasuredTimes) else None
        self.clock.unit = times.unit if self._law is not None and bandwidth is None else None  # type: ignore[union-attr]
        self._there = set(range(self.num_clients)) if self._law is None else set(self._law.first)
        self._moves = self._looked = 0
        self._changes = iter(()) if self._law is None else self._law.changes()
        self._change = next(self._changes, None)
        self._states = dict[int, bytes]()
        self._counts = dict[tuple[str, int], int]()
        self._of_client = dict[int, list[_Sent]]()
        """What each client has yet to answer, in order."""
        self._coming: list[_Sent] = []
        self._queue: list[_Sent] = []
        self._ahead = 0
        self._ready = dict[str, Message]()
        self._gone = set[str]()
        """Messages that are never answered, since their client has left."""
        self._unwanted = set[str]()
        """Messages whose replies come too late for whoever sent them."""
        self._arrived = dict[str, Fraction]()
        self._numbers = itertools.count(1)
        self._digests = Digests()
        self._looks = 0
        self.on_exchange: Callable[[Exchange], None] | None = None
        self.on_update: Callable[[Fraction, int], None] | None = None
        self.jobs_done = 0

    # -- Flower's Grid

    def set_run(self, run: Any) -> None:
        """Nothing depends on it here."""
        self._run = run

    @property
    def run(self) -> Any:
        """What an app may ask of its run."""
        return SimpleNamespace(run_id=1, fab_id="", fab_version="", fab_hash="", override_config=dict(self._run_config))

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Flower's older way to make a message."""
        return self.message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def message(
        self,
        content: RecordDict,
        dst_node_id: int,
        message_type: str,
        *,
        ttl: float | None = None,
        group_id: str | None = None,
    ) -> Message:
        """A message to a node."""
        known = metadata_of(
            message_id="", node=dst_node_id, message_type=message_type, group_id=group_id or "", ttl=ttl
        )
        make: Any = Message
        return cast(Message, make(content=content, metadata=known))

    def get_node_ids(self) -> list[int]:
        """Who is connected. Whoever asks again and again waits for somebody: time goes on for them."""
        if self._looked != self.nodes_version:
            self._looked, self._looks = self._moves, 0
        self._looks += 1
        if self._looks > _PATIENCE:
            self._wait_for_somebody()
        return sorted(self._there)

    @property
    def nodes_version(self) -> int:
        """Changes whenever somebody comes or goes."""
        self._happen()
        return self._moves

    def get_nodes(self) -> list[Any]:
        """Who is connected, as Flower's NodeInfo says it."""
        return [SimpleNamespace(node_id=node, public_key=b"") for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send; the ids by which replies are asked for, "" for a node that is not there."""
        self._looks = 0
        ids = [self._push(message) for message in messages]
        self._fill()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there; for those who do not sleep by the clock, the next ones."""
        self._looks = 0
        wanted = list(message_ids)
        found = self._taken(wanted)
        while not found and not self.clocked and self._go_on(None, wanted):
            found = self._taken(wanted)
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send, and wait in virtual time; the replies in the order of the messages, errors for nodes that have left."""
        given, begin = list(messages), self.clock.time
        ids = self.push_messages(given)
        end = None if timeout is None else begin + Fraction(timeout)
        replies: dict[str, Message] = {}
        wanted = [name for name in ids if name]
        while True:
            replies |= {reply.metadata.reply_to_message_id: reply for reply in self._taken(wanted)}
            wanted = [name for name in wanted if name not in replies and name not in self._gone]
            if not wanted or not self._go_on(end, wanted):
                break
        self._unwanted.update(wanted)
        found = [self._answer(name, message, replies) for name, message in zip(ids, given, strict=True)]
        out = [reply for reply in found if reply is not None]
        if self.on_exchange is not None:
            arrived = {name: self._arrived.pop(name, self.clock.time) for name in ids if name}
            self.on_exchange(Exchange(given, out, begin, self.clock.time, arrived))
        return out

    def _answer(self, name: str, message: Message, replies: Mapping[str, Message]) -> Message | None:
        if name in replies:
            return replies[name]
        if not name or name in self._gone:
            self._gone.discard(name)
            return error_reply(message, 5, "the node is no longer connected")
        return None

    def _go_on(self, end: Fraction | None, wanted: Sequence[str]) -> bool:
        """Let time pass to the next thing that happens; whether anything may still come by `end`."""
        following = self._next()
        if following is None or not wanted:
            return False
        if self.until is not None and following > self.until:
            self.clock.time = max(self.clock.time, self.until)
            raise TimeIsOver
        if end is not None and following > end:
            self.clock.time = max(self.clock.time, end)
            return False
        self.clock.time = max(self.clock.time, following)
        return True

    def _wait_for_somebody(self) -> None:
        following = self._next()
        over = following is None or (self.until is not None and following > self.until)
        if over or self._looks > _LONG_ENOUGH:
            raise InputError(
                f"clients: {len(self._there)} of {self.num_clients} are available; the server waits for more, and "
                "none will come; give more clients, or let the strategy start with fewer (min_available_nodes)"
            )
        if not self.clocked:
            self.clock.time = max(self.clock.time, following or self.clock.time)
            self._happen()

    # -- for strategies that sleep by the clock

    def take_clock(self, waits: Iterable[Fraction]) -> VirtualClock:
        """The clock, for a strategy with these waits."""
        self.clocked = True
        if self.clock.unit is not None:
            self.clock.unit = common_unit([self.clock.unit, *waits])
            if self.clock.unit < NANOSECOND:
                self.clock.unit = None
        return self.clock

    # -- messages on their way

    def _push(self, message: Message) -> str:
        client, kind = message.metadata.dst_node_id, message.metadata.message_type.partition(".")[0]
        if client not in self._there:
            return ""
        name = f"m{next(self._numbers)}"
        number = self._counts.get((kind, client), 0)
        self._counts[kind, client] = number + 1
        waiting = self._of_client.setdefault(client, [])
        begin = max(self.clock.time, waiting[-1].due) if waiting else self.clock.time
        trained = kind == MessageType.TRAIN
        fails = trained and self._law is not None and self._law.fails(client, number)
        job_seed = self._seed_of(client, number, kind)
        content = _with_seed(message.content, job_seed)
        known, due = self._due(client, number, trained, begin, content)
        make: Any = Message
        own = metadata_of(
            message_id=name,
            node=client,
            message_type=message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        sent = _Sent(
            message=make(content=RecordDict(), metadata=own),
            client=client,
            kind=kind,
            number=number,
            begin=begin,
            due=due,
            count=next(self._numbers),
            known=known or fails,
            fails=fails,
            content=content,
            seed=job_seed,
        )
        waiting.append(sent)
        heapq.heappush(self._coming, sent)
        if not fails:
            heapq.heappush(self._queue, sent)
        return name

    def _due(
        self, client: int, number: int, trained: bool, begin: Fraction, content: RecordDict
    ) -> tuple[bool, Fraction]:
        """Whether it is known when the reply comes, and when it comes at the earliest."""
        if self._measured is not None:
            return not trained and not self._evaluate, begin
        assert self._law is not None
        share = Fraction(1) if trained else self._evaluate
        due = begin + share * self._law.duration(client, number) if share else begin
        if self._bandwidth is None or not share:
            return True, due
        return False, due + Fraction(_bytes(content)) / self._bandwidth[client]

    def _seed_of(self, client: int, number: int, kind: str) -> int:
        high, low = stream_key(f"app-job/{kind}/{client}/{number}", self.seed)
        return (int(high) << 20 ^ int(low)) & (2**52 - 1)

    def _task(self, sent: _Sent) -> Task:
        if sent.task is None:
            sent.task = Task(
                content=encoded(sent.content),
                message_id=sent.message.metadata.message_id,
                message_type=sent.message.metadata.message_type,
                group_id=sent.message.metadata.group_id,
                node=sent.client,
                node_config={"partition-id": sent.client, "num-partitions": self.num_clients},
                run_config=self._run_config,
                state=self._states.get(sent.client, _NOTHING),
                seed=sent.seed,
            )
        return sent.task

    def _fill(self) -> None:
        """Let the workers begin with what is due first."""
        blocked = []
        while self._queue and self._ahead < self._workers.ahead:
            sent = heapq.heappop(self._queue)
            if sent.over or sent.begun is not None or sent.done is not None:
                continue
            if self.until is not None and sent.due > self.until:
                blocked.append(sent)
                break
            if self._of_client[sent.client][0] is not sent:  # it gets the state that the one before leaves behind
                blocked.append(sent)
                continue
            self._begin(sent)
        for sent in blocked:
            heapq.heappush(self._queue, sent)

    def _begin(self, sent: _Sent) -> None:
        if self._store is not None:
            sent.digest = self._digests.of(sent.content, self._states.get(sent.client, _NOTHING))
            sent.done = self._store.get((sent.kind, sent.client, sent.number), sent.digest)
            if sent.done is not None:
                return
        sent.begun = self._workers.start(self._task(sent))
        self._ahead += 1

    def _finish(self, sent: _Sent) -> Done:
        """What the ClientApp answers."""
        if sent.done is None:
            if sent.begun is None:
                self._begin(sent)
            if sent.begun is not None:
                sent.done = self._workers.result(sent.begun, self._task(sent))
                self._ahead -= 1
                if self._store is not None:
                    self._store.put((sent.kind, sent.client, sent.number), sent.digest, sent.done)
        assert sent.done is not None
        return sent.done

    # -- what happens

    def _next(self) -> Fraction | None:
        """When the next thing happens, after what is due has."""
        self._happen()
        self._resolve()
        times = [self._coming[0].due] if self._coming else []
        times += [self._change[0]] if self._change is not None else []
        return min(times, default=None)

    def _resolve(self) -> None:
        """Work out when replies come of which that depends on what the ClientApp does, as far as they may be next."""
        while self._coming and not self._coming[0].known:
            sent = heapq.heappop(self._coming)
            done = self._finish(sent)
            if self._measured is not None:
                share = Fraction(1) if sent.kind == MessageType.TRAIN else self._evaluate
                lasts = self._measured.duration(sent.client, done.seconds) * share
            else:
                assert self._bandwidth is not None
                lasts = sent.due - sent.begin
            if self._bandwidth is not None:
                extra = array_bytes(done.reply) + (_bytes(sent.content) if self._measured is not None else 0)
                lasts += Fraction(extra) / self._bandwidth[sent.client]
            sent.due, sent.known = sent.begin + -(-lasts // NANOSECOND) * NANOSECOND, True
            heapq.heappush(self._coming, sent)
            self._put_off(sent)
            self._fill()

    def _put_off(self, sent: _Sent) -> None:
        """What the client has to answer after this one begins when this one is done."""
        free = sent.due
        for other in self._of_client[sent.client][1:]:
            late = max(free - other.begin, Fraction(0))
            other.begin, other.due = other.begin + late, other.due + late
            free = other.due
        if len(self._of_client[sent.client]) > 1:
            heapq.heapify(self._coming)

    def _happen(self) -> None:
        """Let happen what is due: replies first, then who leaves and who joins."""
        while True:
            self._resolve_until(self.clock.time)
            reply = self._coming[0].due if self._coming else None
            change = self._change[0] if self._change is not None else None
            if reply is not None and reply <= self.clock.time and (change is None or reply <= change):
                self._deliver(heapq.heappop(self._coming))
            elif change is not None and change <= self.clock.time:
                self._move()
            else:
                return

    def _resolve_until(self, time: Fraction) -> None:
        if self._coming and self._coming[0].due <= time:
            self._resolve()

    def _deliver(self, sent: _Sent) -> None:
        if sent.over:
            return
        name = sent.message.metadata.message_id
        if sent.fails:
            reply = error_reply(sent.message, RAISED, "the job failed, as set by the clients' availability")
        else:
            done = self._finish(sent)
            self._states[sent.client] = done.state
            if done.error is not None:
                reply = error_reply(sent.message, *done.error)
            else:
                reply = Message(decoded(done.reply), reply_to=sent.message)
        sent.done, sent.task, sent.over = None, None, True
        self._of_client[sent.client].remove(sent)  # what comes after it gets the state that it leaves behind
        self._fill()
        if name in self._unwanted:
            self._unwanted.discard(name)
        else:
            self._ready[name], self._arrived[name] = reply, sent.due
        if sent.kind == MessageType.TRAIN:
            self.jobs_done += 1
            if self.on_update is not None:
                self.on_update(self.clock.time, self.jobs_done)

    def _move(self) -> None:
        """Somebody joins or leaves."""
        assert self._change is not None
        _, joins, client = self._change
        self._change = next(self._changes, None)
        self._moves += 1
        if joins:
            self._there.add(client)
            return
        self._there.discard(client)
        for sent in self._of_client.pop(client, ()):
            sent.over = True
            if sent.begun is not None and sent.done is None:
                sent.begun.cancel()
                self._ahead -= 1
            if not self.clocked:
                self._gone.add(sent.message.metadata.message_id)
        self._coming = [each for each in self._coming if not each.over]
        heapq.heapify(self._coming)

    def _taken(self, wanted: Iterable[str]) -> list[Message]:
        self._happen()
        if not self._ready:
            return []
        asked = set(wanted)
        found = [self._ready.pop(name) for name in list(self._ready) if name in asked]
        if self.on_exchange is None or self.clocked:
            for reply in found:
                self._arrived.pop(reply.metadata.reply_to_message_id, None)
        return found


_NOTHING = encoded(RecordDict())


def _with_seed(content: RecordDict, seed: int) -> RecordDict:
    """The content for one client: with a seed of its own in the first config."""
    records = dict(content.items())
    name = next((name for name, record in records.items() if isinstance(record, ConfigRecord)), "config")
    given = records.get(name)
    records[name] = ConfigRecord({**(given if isinstance(given, ConfigRecord) else {}), SEED_KEY: seed})
    return RecordDict(records)


def _bytes(content: RecordDict) -> int:
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


class _Law:
    """Times, failures and presence as the simulator draws them, in exact seconds."""

    def __init__(self, times: ClientTimes, seed: int) -> None:
        config = ClockConfig.of(WaitForAll(), times, seed=seed)
        self._unit = config.unit
        self._durations = Durations(times, scale=config.scale, seed=seed)
        availability = config.availability
        self._failures = None if availability is None else Failures(availability.failure, seed)
        self._presence = None if availability is None or not availability.away else Presence(config, availability)
        everybody = frozenset(range(times.num_clients))
        self.first = everybody if self._presence is None else self._presence.first

    def duration(self, client: int, job: int) -> Fraction:
        """T_i(j)."""
        return self._durations(client, job) * self._unit

    def fails(self, client: int, job: int) -> bool:
        """Whether the job fails."""
        return self._failures is not None and self._failures(client, job)

    def changes(self) -> Iterator[tuple[Fraction, bool, int]]:
        """(time, whether it joins, client)."""
        if self._presence is None:
            return
        for tick, event in self._presence.changes():
            yield tick * self._unit, isinstance(event, Joined), cast(Any, event).client


@dataclass(frozen=True)
class MeasuredTimes:
    """A job takes the CPU seconds that the ClientApp needs here, times the client's slowdown.

    Example:
        >>> from fedtempo.flower import MeasuredTimes
        >>> times = MeasuredTimes(slowdown=(1, 5))  # client 1 is five times slower than this machine
        >>> times.num_clients, float(times.duration(1, 0.2))
        (2, 1.0)
    """

    slowdown: tuple[Fraction, ...]

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.slowdown)

    def duration(self, client: int, seconds: float) -> Fraction:
        """In exact seconds, at least a nanosecond."""
        return max(Fraction(seconds) * self.slowdown[client], NANOSECOND)
