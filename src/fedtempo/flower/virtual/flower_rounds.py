"""Flower's own strategies in virtual time: their loop as it is, and a record of it as our strategies write one.

A round is one exchange of training messages. An update's weight in the record is its share of the examples, as Flower's
FedAvg has it; what Krum or FedAdam make of a round is theirs. Where time ends the loop in the middle of a round, what
it had by then is the result.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message, MessageType, MetricRecord
from flwr.serverapp import strategy as flower

from fedtempo.flower.arrays import Arrays, read, size
from fedtempo.flower.clock import NANOSECOND, seconds
from fedtempo.flower.faults import Fault
from fedtempo.flower.journal import Journal, LoggedEvent
from fedtempo.flower.result import Result, RoundRecord, UpdateRecord
from fedtempo.flower.run_folder import RunFolder
from fedtempo.flower.text import clean
from fedtempo.flower.virtual.grid import Exchange, TimeIsOver, VirtualGrid
from fedtempo.schemes.named import FedAvg, Scheme, UniformSampling

log = logging.getLogger("flwr")


class FlowerRounds:
    """A strategy of Flower's, or one of the user's that is made of it, on a virtual grid."""

    def __init__(self, strategy: flower.Strategy, grid: VirtualGrid, folder: Path | None) -> None:
        self._strategy, self._grid, self._folder = strategy, grid, folder
        self._journal = Journal(scheme=_scheme(strategy, grid.num_clients), server_lr=1.0, on_disk=folder is not None)
        self._journal.unit = grid.clock.unit
        self._journal.names = tuple(f"node {i}" for i in range(grid.num_clients))
        self._examples = [0.0] * grid.num_clients
        self._jobs = [0] * grid.num_clients
        self._seconds = [0.0] * grid.num_clients
        self._arrays: ArrayRecord | None = None
        self._key = str(getattr(strategy, "weighted_by_key", "num-examples"))

    def run(self, start: Callable[[], Any], initial: ArrayRecord) -> Result:
        """Let the strategy's `start` run to its end, or to the end of time."""
        self._arrays, stopped = initial, ""
        self._journal.begin(self._grid.get_node_ids(), seed=self._grid.seed)
        self._grid.on_exchange = self._exchange
        with self._listening():
            try:
                found = start()
                if isinstance(found, flower.Result) and found.arrays:
                    self._arrays = found.arrays
            except TimeIsOver:
                stopped = f"the time is over: {float(self._grid.until or 0):g} s"
            finally:
                self._grid.on_exchange = None
        return self._result(stopped or f"{len(self._journal.rounds)} rounds are done")

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear what the strategy makes of each round."""
        mine: dict[str, Callable[..., Any]] = {
            "aggregate_train": self._trained,
            "aggregate_evaluate": self._evaluated,
        }
        own = {name: vars(self._strategy)[name] for name in mine if name in vars(self._strategy)}
        for name, hear in mine.items():
            setattr(self._strategy, name, _heard(getattr(self._strategy, name), hear))
        try:
            yield
        finally:
            for name in mine:
                delattr(self._strategy, name)
                if name in own:
                    setattr(self._strategy, name, own[name])

    def _trained(self, server_round: int, found: Any) -> None:
        arrays, metrics = found
        if arrays is not None:
            self._arrays = arrays
        if metrics:
            self._journal.measure("train", server_round, metrics)

    def _evaluated(self, server_round: int, metrics: MetricRecord | None) -> None:
        if metrics:
            self._journal.measure("evaluate", server_round, metrics)

    def measured(self, server_round: int, metrics: MetricRecord | None) -> None:
        """The server's own evaluation."""
        if metrics:
            self._journal.measure("server", server_round, metrics)

    def _exchange(self, exchange: Exchange) -> None:
        """A round of training, as it is written down."""
        trained = [m for m in exchange.messages if m.metadata.message_type.partition(".")[0] == MessageType.TRAIN]
        if not trained:
            return
        number = len(self._journal.rounds)
        sent, end = _ticks(exchange.begin), _ticks(exchange.end)
        jobs = {message.metadata.dst_node_id: self._job(message.metadata.dst_node_id) for message in trained}
        taken: list[tuple[int, int, float, int]] = []
        for reply in exchange.replies:
            client = reply.metadata.src_node_id
            arrived = _ticks(exchange.arrived.get(reply.metadata.reply_to_message_id, exchange.end))
            if reply.has_error():
                last = (reply.error.reason or "").strip().splitlines()[-1:] or ["no reason given"]
                reason = f"job {jobs[client]}: code {reply.error.code}, {clean(last[0])}"
                self._journal.fault(Fault(seconds(arrived), client, f"node {client}", "error", reason))
                continue
            taken.append((arrived, client, self._count(reply), _size(reply)))
        total = sum(examples for _, _, examples, _ in taken)
        updates = []
        for arrived, client, examples, up in sorted(taken):
            self._journal.log(LoggedEvent(arrived, "arrived", client, jobs[client]))
            self._examples[client] = examples
            self._seconds[client] = seconds(arrived - sent)
            weight = examples / total if total else 0.0
            updates.append(UpdateRecord(client, jobs[client], number, sent, arrived, weight, 1.0, up))
        updates.sort()
        names = tuple(f"node {update.client}" for update in updates)
        self._journal.round(RoundRecord(number, number + 1, end, tuple(updates), names))

    def _job(self, client: int) -> int:
        self._jobs[client] += 1
        return self._jobs[client] - 1

    def _count(self, reply: Message) -> float:
        for record in reply.content.metric_records.values():
            value = record.get(self._key)
            if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0:
                return float(value)
        return 1.0

    def _result(self, stopped: str) -> Result:
        journal = self._journal
        total = sum(self._examples) or 1.0
        journal.importance = tuple(examples / total for examples in self._examples)
        arrays = self._arrays if self._arrays is not None else ArrayRecord()
        if self._folder is not None:
            self._save(arrays, stopped)
        return Result(
            arrays=arrays,
            train_metrics_clientapp=journal.measured("train"),
            evaluate_metrics_clientapp=journal.measured("evaluate"),
            evaluate_metrics_serverapp=journal.measured("server"),
            rounds=journal.rounds,
            client_times={f"node {i}": s for i, s in enumerate(self._seconds) if s},
            errors=journal.faults,
            stopped=stopped,
            journal=journal,
            folder=self._folder,
        )

    def _save(self, arrays: ArrayRecord, stopped: str) -> None:
        """The run's folder, as our strategies write it."""
        assert self._folder is not None
        assert isinstance(self._journal.scheme, Scheme)
        folder, journal, spec = RunFolder(self._folder), self._journal, self._journal.scheme.spec()
        spec = {**spec, "label": self._journal.scheme.label}
        rounds = len(journal.rounds)
        folder.begin()
        try:
            model: Arrays = {name: read(array) for name, array in arrays.items()}
            state = {
                "about": {"scheme": spec, "weights": "importance", "step": "paper", "server_lr": 1.0},
                "asked": {"rounds": None, "until": None, "timeout": None},
                "ended": stopped,
                "server": {
                    "version": rounds,
                    "now": journal.rounds[-1].end if rounds else 0,
                    "clients": sorted(self._grid.get_node_ids()),
                    "in_flight": [],
                    "arrived": [],
                },
                "estimates": {"jobs": self._jobs, "time": self._seconds},
                "patience": [],
                "norms": [],
                "server_round": rounds,
                "names": journal.names,
                "importance": journal.importance,
                "server_lr": 1.0,
            }
            folder.write(state, model, journal.new_lines())
        finally:
            folder.release()


def _heard(method: Callable[..., Any], hear: Callable[[int, Any], None]) -> Callable[..., Any]:
    def called(server_round: int, *args: Any, **kwargs: Any) -> Any:
        found = method(server_round, *args, **kwargs)
        hear(server_round, found)
        return found

    return called


def _scheme(strategy: flower.Strategy, clients: int) -> Scheme:
    """What ends a round there: all clients, or a sample of them."""
    fraction = getattr(strategy, "fraction_train", 1.0)
    drawn = max(int(clients * fraction), getattr(strategy, "min_train_nodes", 0)) if fraction < 1 else clients
    scheme: Scheme = FedAvg() if drawn >= clients else UniformSampling(max(drawn, 1))
    return scheme.using(label=f"flwr {type(strategy).__name__}")


def _ticks(time: Fraction) -> int:
    return int(-(-time // NANOSECOND))


def _size(reply: Message) -> int:
    return sum(size(record) for record in reply.content.array_records.values())
