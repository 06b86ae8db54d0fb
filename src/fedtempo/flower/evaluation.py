"""Measures of the models: those that clients send with their updates, the server's own, and clients' evaluation.

    m̄ = Σ_i w_i m_i / Σ_i w_i        `weighted_mean`, number by number; w itself is left out

These are the numbers of the default of Flower's FedAvg, which builds views of each record on the way: in rounds of one
update they took as long as half of the model's making.

The server evaluates beside the loop, on one thread, so that a slow evaluation holds up no round; meanwhile at most one
more model waits, and a newer one takes its place. Those that must not be left out (the first, the last) always have
their turn. Clients evaluate beside the training, one round at a time: answers are gathered as they come, and aggregated
when all are there; a round that ends meanwhile is left out unless it is the last.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Set
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedtempo.clock.events import Tick
from fedtempo.flower.journal import Journal
from fedtempo.flower.reply_handler import ReplyHandler
from fedtempo.flower.settings import Settings
from fedtempo.flower.transport import FlowerTransport

log = logging.getLogger("flwr")


def weighted_mean(records: list[RecordDict], weighted_by: str) -> MetricRecord:
    """The mean of all metrics but `weighted_by`, which is in the first MetricRecord of each."""
    found = [[part for part in record.values() if isinstance(part, MetricRecord)] for record in records]
    weights: list[Any] = [metrics[0][weighted_by] for metrics in found]
    total = sum(weights)
    terms: dict[str, list[tuple[float, Any]]] = {}
    for metrics, weight in zip(found, weights, strict=True):
        share = weight / total
        for part in metrics:
            for name, value in part.items():
                if name != weighted_by:
                    terms.setdefault(name, []).append((share, value))
    return MetricRecord({name: _sum(name, given) for name, given in terms.items()})


def _sum(name: str, terms: list[tuple[float, Any]]) -> Any:
    """Σ share · value of numbers, or of lists place by place."""
    lengths = {len(value) if isinstance(value, list) else None for _, value in terms}
    if lengths == {None}:
        return sum(share * value for share, value in terms)
    if len(lengths) > 1:
        raise TypeError(f"{name!r} is not the same number of numbers in each reply; send it alike from all clients")
    places = zip(*([share * number for number in value] for share, value in terms), strict=True)
    return [sum(place) for place in places]


EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Evaluated(NamedTuple):
    """What came of an evaluation: its measures (None: it gave none), or what it raised."""

    server_round: int
    metrics: MetricRecord | None
    error: str | None


class _Task(NamedTuple):
    server_round: int
    arrays: ArrayRecord
    must: bool


class Evaluator:
    """One thread that evaluates models of the server."""

    def __init__(self, evaluate: EvaluateFn) -> None:
        self._evaluate = evaluate
        self._waiting: deque[_Task] = deque()
        self._done: deque[Evaluated] = deque()
        self._busy: int | None = None
        """The round that is being evaluated."""
        self._stopped = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="fedtempo-evaluation", daemon=True)
        self._thread.start()

    def submit(self, server_round: int, arrays: ArrayRecord, *, must: bool = False) -> None:
        """Evaluate this model when the thread is free; what has waited so far gives way unless it must be done."""
        with self._change:
            for task in [task for task in self._waiting if not task.must]:
                self._waiting.remove(task)
                log.info("round %d is not evaluated: round %d is newer", task.server_round, server_round)
            self._waiting.append(_Task(server_round, arrays, must))
            self._change.notify_all()

    @property
    def rounds(self) -> set[int]:
        """Those whose measures may yet be collected."""
        with self._change:
            found = {number for number, *_ in (*self._waiting, *self._done)}
            return found if self._busy is None else found | {self._busy}

    def collect(self) -> list[Evaluated]:
        """What has been evaluated since the last time."""
        with self._change:
            done, self._done = list(self._done), deque()
        return done

    def finish(self) -> list[Evaluated]:
        """Wait for all that is to be evaluated, and end the thread."""
        with self._change:
            while self._waiting or self._busy is not None:
                self._change.wait()
        self.stop()
        return self.collect()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._waiting and not self._stopped:
                    self._change.wait()
                if self._stopped:
                    return
                task = self._waiting.popleft()
                self._busy = task.server_round
            metrics, error = None, None
            try:
                metrics = self._evaluate(task.server_round, task.arrays)
                if not (metrics is None or isinstance(metrics, MetricRecord)):
                    error = f"evaluate_fn gave a {type(metrics).__name__}; return a MetricRecord or None"
                    metrics = None
            except BaseException as raised:  # the user's function, also if it exits; training goes on
                error = f"{type(raised).__name__}: {raised}"
                log.exception("evaluate_fn failed on round %d", task.server_round)
            with self._change:
                self._done.append(Evaluated(task.server_round, metrics, error))
                self._busy = None
                self._change.notify_all()


class _Asked(NamedTuple):
    server_round: int
    arrays: ArrayRecord
    clients: frozenset[int]


class ClientEvaluation:
    """Asks clients to evaluate models, a round at a time."""

    def __init__(self, settings: Settings, handler: ReplyHandler, journal: Journal, config: ConfigRecord) -> None:
        self._settings, self._handler, self._journal, self._config = settings, handler, journal, config
        self._next: _Asked | None = None
        self._round = -1
        self._left = 0
        self._replies: list[Message] = []

    def has(self, server_round: int) -> bool:
        """Whether this round is evaluated, or waits for it."""
        waiting = self._next is not None and self._next.server_round == server_round
        return waiting or self._round == server_round

    @property
    def rounds(self) -> set[int]:
        """Those whose measures may yet come."""
        return {self._round} | (set() if self._next is None else {self._next.server_round})

    def ask(self, server_round: int, arrays: Callable[[], ArrayRecord], clients: Set[int], *, must: bool) -> None:
        """Evaluate this model, if the clients are free for it; the messages go out with `post`."""
        if not self._settings.fraction_evaluate:
            return
        if self._left and not must:
            log.info("clients do not evaluate round %d: they still evaluate round %d", server_round, self._round)
            return
        self._next = _Asked(server_round, arrays(), frozenset(clients))

    def post(self, transport: FlowerTransport, now: Tick) -> None:
        """Send out what was asked for."""
        if self._next is None or self._left:
            return
        server_round, arrays, clients = self._next
        self._next = None
        nodes = [node for client in sorted(clients) if (node := self._handler.registry.node_of(client)) is not None]
        wanted = max(int(len(nodes) * self._settings.fraction_evaluate), self._settings.min_evaluate_nodes)
        chosen = sorted(random.Random(server_round).sample(nodes, min(wanted, len(nodes))))
        self._round, self._left, self._replies = server_round, len(chosen), []
        messages = [self._handler.message(node, MessageType.EVALUATE, arrays, self._config, {}) for node in chosen]
        if messages:
            transport.post([(message, self._take) for message in messages], now)

    def _take(self, reply: Message | None, now: Tick) -> None:
        """An answer, or None: there will be none."""
        self._left -= 1
        if reply is None:
            why = f"a client did not evaluate round {self._round}: it is gone, or did not answer in time"
            self._handler.note(now, -1, "evaluation", why)
        elif reply.has_error():
            why = f"a client failed to evaluate round {self._round}: Flower's code {reply.error.code}"
            self._handler.note(now, -1, "evaluation", why)
        elif not reply.has_content():
            why = f"a client failed to evaluate round {self._round}: its reply is empty"
            self._handler.note(now, -1, "evaluation", why)
        else:
            self._replies.append(reply)
        if not self._left and self._replies:
            try:
                metrics = self._settings.aggregate_evaluate(self._round, self._replies)
                if metrics is not None:
                    self._journal.measure("evaluate", self._round, metrics)
                    self._handler.guard.evaluated("the clients' evaluation", self._round, metrics)
            except Exception as error:  # the user's function, or clients with unlike metrics
                why = f"clients' measures of round {self._round} cannot be aggregated: {error}"
                self._handler.note(now, -1, "metrics", why)

    def finish(self, transport: FlowerTransport) -> None:
        """Wait for what is out, and then for the last round."""
        self.post(transport, transport.finish())
        transport.finish()
