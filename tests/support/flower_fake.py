"""A Flower Grid without processes, on a virtual clock: nodes answer when they are told to, and misbehave on demand.

Messages are made by names that Flower exports alone. A node does one message after the other.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid

import fedtempo as ft
from fedtempo import files
from fedtempo.clock.transport import Durations
from fedtempo.simulation.engine.oracle import Client
from fedtempo.training.batches import init_key
from fedtempo.training.solvers import Sent

SECOND = 10**9
_NUMBERS = itertools.count(1)


def make_message(content, dst_node_id, message_type, ttl=None, group_id=None) -> Message:
    """In place of flwr.app.Message, which wants a running app around it."""
    metadata = Metadata(
        run_id=1,
        message_id=f"m{next(_NUMBERS)}",
        src_node_id=1,
        dst_node_id=dst_node_id,
        reply_to_message_id="",
        group_id=group_id or "",
        created_at=time.time(),
        ttl=ttl or 1e6,
        message_type=message_type,
    )
    return Message(content=content, metadata=metadata)


class VirtualClock:
    """Time that passes only when somebody sleeps, and then up to the next happening."""

    def __init__(self, start: int = 0, *, wakes: bool = True) -> None:
        """`wakes`: whether a sleeper notices when something happens, or sleeps on."""
        self.time, self.wakes = start, wakes
        self.next_happening: Callable[[], int | None] = lambda: None

    def now(self) -> int:
        return self.time

    def sleep(self, until: int) -> None:
        following = self.next_happening()
        wake = until if following is None or not self.wakes else min(until, following)
        self.time = max(self.time, wake)


class Killed(BaseException):
    """The process is gone: nothing may catch this."""


@dataclass
class FakeNode:
    """`behave(message)` gives the replies to a message: (nanoseconds of work, reply)."""

    behave: Callable[[Message], Iterable[tuple[int, Message]]]
    public_key: bytes = b""
    free: int = 0
    got: deque[Message] = field(default_factory=deque)
    """The last messages that it was sent."""


class FakeGrid(Grid):
    """Flower's Grid; `connect` and `disconnect` nodes, `at` a time do something."""

    def __init__(self, clock: VirtualClock | None = None, *, remember: int = 12) -> None:
        """`remember`: how many messages each node keeps; all of them would be every model of a long run."""
        self.clock, self.remember = clock or VirtualClock(), remember
        self.clock.next_happening = self._next
        self.nodes: dict[int, FakeNode] = {}
        self.hidden: set[int] = set()
        """Nodes that are not heard of for a while, though they work."""
        self.unasked: list[Message] = []
        self.calls = 0
        self.kill_at: int | None = None
        self.push_cost = self.pull_cost = 0
        self._coming: list[tuple[int, int, int, Message]] = []
        self._ready: dict[str, Message] = {}
        self._script: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def connect(self, node_id: int, behave, public_key: bytes = b"") -> FakeNode:
        self.nodes[node_id] = FakeNode(behave, public_key, got=deque(maxlen=self.remember))
        return self.nodes[node_id]

    def disconnect(self, node_id: int) -> None:
        """What the node has not answered yet is never answered."""
        del self.nodes[node_id]
        self._coming = [entry for entry in self._coming if entry[2] != node_id]
        heapq.heapify(self._coming)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._script, (int(seconds * SECOND), next(self._count), action))

    def deliver(self, delay: int, node_id: int, reply: Message) -> None:
        heapq.heappush(self._coming, (self.clock.now() + delay, next(self._count), node_id, reply))

    # -- Flower's Grid

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._call()
        ids = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            node = self.nodes.get(node_id)
            if node is None or node_id in self.hidden:
                ids.append("")
                continue
            ids.append(message.metadata.message_id)
            node.got.append(message)
            begin = max(self.clock.now(), node.free)
            for work, reply in node.behave(message):
                node.free = begin + work
                heapq.heappush(self._coming, (begin + work, next(self._count), node_id, reply))
        self.clock.time += self.push_cost
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._call()
        self._run()
        found, self.unasked = self.unasked, []
        if self._ready:
            wanted = set(message_ids)
            found += [self._ready.pop(name) for name in list(self._ready) if name in wanted]
        self.clock.time += self.pull_cost
        return found

    def get_nodes(self):
        self._call()
        self._run()
        return [
            SimpleNamespace(node_id=n, public_key=node.public_key)
            for n, node in self.nodes.items()
            if n not in self.hidden
        ]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, *args, **kwargs):
        raise NotImplementedError

    # -- time

    def _call(self) -> None:
        self.calls += 1
        if self.kill_at is not None and self.calls >= self.kill_at:
            raise Killed

    def _run(self) -> None:
        """Let happen what is due."""
        now = self.clock.now()
        while self._script and self._script[0][0] <= now:
            heapq.heappop(self._script)[2]()
        while self._coming and self._coming[0][0] <= now:
            reply = heapq.heappop(self._coming)[3]
            name = reply.metadata.reply_to_message_id
            if name in self._ready:
                self.unasked.append(reply)
            else:
                self._ready[name] = reply

    def _next(self) -> int | None:
        self._run()
        moments = [self._coming[0][0]] if self._coming else []
        moments += [self._script[0][0]] if self._script else []
        return min(moments, default=None)


# -- kills


class Crashes:
    """Counts the calls at which a process can be killed, and kills it at one of them."""

    def __init__(self, monkeypatch) -> None:
        self.count, self.at = 0, None
        disk = files.Disk()
        monkeypatch.setattr(disk, "sync", self._before(lambda file: file.flush()))  # a kill is not a power cut
        monkeypatch.setattr(disk, "sync_folder", self._before(lambda path: None))
        monkeypatch.setattr(disk, "replace", self._before(disk.replace))
        monkeypatch.setattr(files, "disk", disk)
        for name in ("push_messages", "pull_messages", "get_nodes"):
            monkeypatch.setattr(FakeGrid, name, self._before(getattr(FakeGrid, name)))

    def _before(self, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.at is not None and self.count >= self.at:
                raise Killed
            return call(*args, **kwargs)

        return counted


# -- what clients answer


def arrays_of(message: Message) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def record_of(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def answer(message: Message, arrays: dict[str, np.ndarray], metrics: dict) -> Message:
    content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)


def failure(message: Message, code: int = 2, reason: str = "Traceback …\nValueError: no") -> Message:
    return Message(Error(code, reason), reply_to=message)


def shifting(step: float, seconds: float, examples: int = 10, **metrics):
    """A client that adds `step` to every array and takes `seconds`."""

    def behave(message: Message):
        if message.metadata.message_type == MessageType.EVALUATE:
            content = RecordDict({"metrics": MetricRecord({"num-examples": examples, "loss": float(step)})})
            return [(int(0.1 * SECOND), Message(content=content, reply_to=message))]
        arrays = {name: array + np.asarray(step).astype(array.dtype) for name, array in arrays_of(message).items()}
        return [(int(Fraction(str(seconds)) * SECOND), answer(message, arrays, {"num-examples": examples, **metrics}))]

    return behave


class ProblemClients:
    """Clients that train a problem of fedtempo on the simulator's batches, and take the simulator's times."""

    def __init__(
        self, problem, local, times: ft.ClientTimes, *, seed: int = 0, steps: int = 2, lr: float = 0.1
    ) -> None:
        hyper = {"local_lr": lr, "local_steps": steps, "batch_size": 4, "server_lr": 1.0}
        self.problem, self.times, self.seed = problem, times, seed
        self.client = Client(problem, local, hyper, seed, "float64")
        scale = times.unit * SECOND
        assert scale.denominator == 1, "durations must be whole nanoseconds"
        self.durations = Durations(times, scale=scale.numerator, seed=seed)

    @property
    def initial(self) -> ArrayRecord:
        return record_of({"theta": np.asarray(self.problem.init(init_key(self.seed)), dtype=np.float64)})

    def behave(self, client: int):
        def answering(message: Message):
            job = message.content["config"]["job"]
            from fedtempo.simulation.engine.numerics import numerics

            with numerics("float64"):
                theta = self.client.train(Sent(arrays_of(message)["theta"]), client, job)[0][-1]
            metrics = {"num-examples": int(self.problem.sizes[client]), "loss": 0.5}
            return [(self.durations(client, job), answer(message, {"theta": np.asarray(theta)}, metrics))]

        return answering

    def grid(self) -> FakeGrid:
        grid = FakeGrid()
        for client in range(self.problem.num_clients):
            grid.connect(100 + client, self.behave(client))
        return grid


def on(grid: FakeGrid, **options) -> dict:
    """Options with which a strategy runs on the fake grid."""
    return {"message": make_message, "clock": grid.clock, "min_available_nodes": 1, "min_train_nodes": 1, **options}
