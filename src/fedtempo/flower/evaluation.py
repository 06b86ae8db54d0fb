"""Measures of the models: those that clients send with their updates, the server's own, and clients' evaluation.

    m̄ = Σ_i w_i m_i / Σ_i w_i        `weighted_mean`, number by number, over the clients i that sent a good one; w is
                                     left out

Where all clients send the same metrics these are the numbers of the default of Flower's FedAvg, which builds views of
each record on the way: in rounds of one update they took as long as half of the model's making. A number that is not
finite, a list of another length than most, a metric that is missing: its client is left out of that mean, and of no
other. Where nobody has sent a finite number, the mean is not finite either.

The server evaluates beside the loop, on one thread, so that a slow evaluation holds up no round; meanwhile at most one
more model waits, and a newer one takes its place. Those that must not be left out (the first, the last) always have
their turn. Or it waits for each evaluation, as Flower does: then every round is evaluated, and its model is sent after
that. Clients evaluate beside the training, one round at a time: answers are gathered as they come, and aggregated when
all are there; a round that ends meanwhile is left out unless it is the last.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedtempo.clock.events import Tick
from fedtempo.flower.examples import capped
from fedtempo.flower.journal import Journal
from fedtempo.flower.metrics import bad_count, bounded, too_long, with_count
from fedtempo.flower.reply_handler import ReplyHandler
from fedtempo.flower.settings import Settings
from fedtempo.flower.transport import FlowerTransport
from fedtempo.flower.validator import failed

log = logging.getLogger("flwr")


def weighted_mean(records: list[RecordDict], weighted_by: str) -> MetricRecord:
    """The mean of all metrics but `weighted_by`, which is in the first MetricRecord of each."""
    found = [[part for part in record.values() if isinstance(part, MetricRecord)] for record in records]
    weights: list[Any] = [metrics[0][weighted_by] for metrics in found]
    terms: dict[str, list[tuple[Any, Any]]] = {}
    for metrics, weight in zip(found, weights, strict=True):
        sent = metrics[0] if len(metrics) == 1 else {n: v for part in reversed(metrics) for n, v in part.items()}
        for name, value in sent.items():
            if name != weighted_by:
                terms.setdefault(name, []).append((weight, value))
    return MetricRecord({name: _mean(given) for name, given in terms.items()})


def _mean(terms: list[tuple[Any, Any]]) -> Any:
    """The mean of numbers, or of lists place by place; what most clients send decides which, and how long a list is."""
    kinds = [len(value) if isinstance(value, list) else None for _, value in terms]
    usual = kinds[0]
    if any(kind != usual for kind in kinds):
        usual = Counter(kinds).most_common(1)[0][0]
        terms = [term for term, kind in zip(terms, kinds, strict=True) if kind == usual]
    if usual is None:
        return _of_numbers(terms)
    return [_of_numbers([(weight, value[place]) for weight, value in terms]) for place in range(usual)]


def _of_numbers(terms: list[tuple[Any, Any]]) -> Any:
    """Σ w·m / Σ w of the finite ones, of all where none is."""
    good = [term for term in terms if math.isfinite(term[1])] or terms
    total = sum(weight for weight, _ in good)
    if math.isinf(total):
        good = [(weight / len(good), value) for weight, value in good]
        total = sum(weight for weight, _ in good)
    return sum(weight / total * value for weight, value in good)


def shown(metrics: Mapping[str, Any], most: int = 6) -> str:
    """Metrics in a log line, as "loss 0.1234, accuracy 0.9"; lists by their length, of many names the first."""
    words = [
        f"{name} [{len(value)} numbers]" if isinstance(value, list) else f"{name} {value:.4g}"
        for name, value in list(metrics.items())[:most]
    ]
    return ", ".join(words) + (f", … ({len(metrics)} in all)" if len(metrics) > most else "")


EVALUATION = ("beside", "wait")
"""When the server evaluates: beside the training, or before the next model is sent."""
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
    """Evaluates models of the server: on a thread of its own, or, where each is waited for, at once."""

    def __init__(self, evaluate: EvaluateFn, *, wait: bool = False) -> None:
        self._evaluate, self._wait = evaluate, wait
        self._waiting: deque[_Task] = deque()
        self._done: deque[Evaluated] = deque()
        self._busy: int | None = None
        """The round that is being evaluated."""
        self._stopped = False
        self._change = threading.Condition()
        if not wait:
            threading.Thread(target=self._work, name="fedtempo-evaluation", daemon=True).start()

    def submit(self, server_round: int, arrays: ArrayRecord, *, must: bool = False) -> None:
        """Evaluate this model when the thread is free; what has waited so far gives way unless it must be done."""
        if self._wait:
            self._done.append(self._evaluated(_Task(server_round, arrays, must)))
            return
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
            done = self._evaluated(task)
            with self._change:
                self._done.append(done)
                self._busy = None
                self._change.notify_all()

    def _evaluated(self, task: _Task) -> Evaluated:
        try:
            metrics = self._evaluate(task.server_round, task.arrays.copy())  # which may be emptied
        except BaseException as raised:  # the user's function, also if it exits; training goes on
            if self._wait and isinstance(raised, KeyboardInterrupt):
                raise
            log.exception("evaluate_fn failed on round %d", task.server_round)
            return Evaluated(task.server_round, None, f"{type(raised).__name__}: {raised}")
        if metrics is None or isinstance(metrics, MetricRecord):
            return Evaluated(task.server_round, metrics, None)
        wrong = f"evaluate_fn returned a {type(metrics).__name__}; return a MetricRecord or None"
        return Evaluated(task.server_round, None, wrong)


def _count_of(content: RecordDict, count: str) -> float:
    """The number of examples in what `bounded` has left."""
    first: Any = next(record for record in content.values() if isinstance(record, MetricRecord))
    return float(first[count])


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
        self._replies: dict[int, Message] = {}
        """By client."""

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
        whose = {
            node: client for client in sorted(clients) if (node := self._handler.registry.node_of(client)) is not None
        }
        wanted = max(int(len(whose) * self._settings.fraction_evaluate), self._settings.min_evaluate_nodes)
        chosen = sorted(random.Random(server_round).sample(list(whose), min(wanted, len(whose))))
        self._round, self._left, self._replies = server_round, len(chosen), {}
        messages = [self._handler.message(node, MessageType.EVALUATE, arrays, self._config, {}) for node in chosen]
        if messages:
            takes = [partial(self._take, whose[node]) for node in chosen]
            transport.post(list(zip(messages, takes, strict=True)), now)

    def _take(self, client: int, reply: Message | None, now: Tick) -> None:
        """An answer, or None: there will be none."""
        self._left -= 1
        if reply is None:
            why = f"a client did not evaluate round {self._round}: it left, or did not answer in time"
            self._handler.note(now, client, "evaluation", why)
        elif (wrong := self._wrong(client, reply, now)) is not None:
            self._handler.note(now, client, "evaluation", f"a client failed to evaluate round {self._round}: {wrong}")
        else:
            self._replies[client] = reply
        if not self._left and self._replies:
            self._cap(now)
            try:
                metrics = self._settings.aggregate_evaluate(self._round, list(self._replies.values()))
                if metrics is not None:
                    self._journal.measure("evaluate", self._round, metrics)
                    log.info("clients' evaluation of round %d: %s", self._round, shown(metrics))
                    self._handler.guard.evaluated("the clients' evaluation", self._round, metrics)
            except Exception as error:  # the user's function
                why = f"clients' measures of round {self._round} cannot be aggregated: {error}"
                self._handler.note(now, -1, "metrics", why)

    def _wrong(self, client: int, reply: Message, now: Tick) -> str | None:
        """Why a reply is of no use, None if it is; its metrics are then within bounds."""
        if reply.has_error():
            return failed(reply)
        if not reply.has_content():
            return "its reply is empty"
        count = self._settings.examples_key
        said = bounded(reply.content, count)
        if (name := too_long(said.values)) is not None:
            return f"{name!r} is a whole number of more than 64 bits"
        if (wrong := bad_count(said.values.get(count), count)) is not None:
            return wrong
        reply.content = said.content
        self._handler.remark(client, said.remarks, now)
        return None

    def _cap(self, now: Tick) -> None:
        """Believe numbers of examples as far as in training."""
        count, factor = self._settings.examples_key, self._settings.max_examples
        given = {client: _count_of(reply.content, count) for client, reply in self._replies.items()}
        counts = capped(np.array(list(given.values()), dtype=float), factor).tolist()
        for (client, claimed), counted in zip(given.items(), counts, strict=True):
            if counted < claimed:
                self._handler.remark_examples(client, claimed, counted, now)
                self._replies[client].content = with_count(self._replies[client].content, count, counted)

    def finish(self, transport: FlowerTransport) -> None:
        """Wait for what is out, and then for the last round."""
        self.post(transport, transport.finish())
        transport.finish()
