"""Evaluation by clients beside the training: answers are gathered as they come, and aggregated when all are there.

One round at a time is evaluated; a round that ends meanwhile is left out unless it is the last.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Set
from typing import NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedtempo.clock.events import Tick
from fedtempo.flower.desk import ClientDesk
from fedtempo.flower.flower_carrier import FlowerCarrier
from fedtempo.flower.journal import Journal
from fedtempo.flower.settings import Settings

log = logging.getLogger("flwr")


class _Asked(NamedTuple):
    server_round: int
    arrays: ArrayRecord
    clients: frozenset[int]


class ClientEvaluation:
    """Asks clients to evaluate models, a round at a time."""

    def __init__(self, settings: Settings, desk: ClientDesk, journal: Journal, config: ConfigRecord) -> None:
        self._settings, self._desk, self._journal, self._config = settings, desk, journal, config
        self._next: _Asked | None = None
        self._round = -1
        self._left = 0
        self._contents: list[RecordDict] = []

    def has(self, server_round: int) -> bool:
        """Whether this round is evaluated, or waits for it."""
        waiting = self._next is not None and self._next.server_round == server_round
        return waiting or self._round == server_round

    def ask(self, server_round: int, arrays: Callable[[], ArrayRecord], clients: Set[int], *, must: bool) -> None:
        """Evaluate this model, if the clients are free for it; the messages go out with `post`."""
        if not self._settings.fraction_evaluate:
            return
        if self._left and not must:
            log.info("clients do not evaluate round %d: they still evaluate round %d", server_round, self._round)
            return
        self._next = _Asked(server_round, arrays(), frozenset(clients))

    def post(self, carrier: FlowerCarrier, now: Tick) -> None:
        """Send out what was asked for."""
        if self._next is None or self._left:
            return
        server_round, arrays, clients = self._next
        self._next = None
        nodes = [node for client in sorted(clients) if (node := self._desk.roster.node_of(client)) is not None]
        wanted = max(int(len(nodes) * self._settings.fraction_evaluate), self._settings.min_evaluate_nodes)
        chosen = sorted(random.Random(server_round).sample(nodes, min(wanted, len(nodes))))
        self._round, self._left, self._contents = server_round, len(chosen), []
        messages = [self._desk.message(node, MessageType.EVALUATE, arrays, self._config, {}) for node in chosen]
        if messages:
            carrier.post([(message, self._take) for message in messages], now)

    def _take(self, reply: Message | None, now: Tick) -> None:
        """An answer, or None: there will be none."""
        self._left -= 1
        if reply is None:
            why = f"a client did not evaluate round {self._round}: it is gone, or did not answer in time"
            self._desk.note(now, -1, "evaluation", why)
        elif reply.has_error():
            why = f"a client failed to evaluate round {self._round}: Flower's code {reply.error.code}"
            self._desk.note(now, -1, "evaluation", why)
        elif not reply.has_content():
            why = f"a client failed to evaluate round {self._round}: its reply is empty"
            self._desk.note(now, -1, "evaluation", why)
        else:
            self._contents.append(reply.content)
        if not self._left and self._contents:
            try:
                metrics = self._settings.evaluate_metrics(self._contents, self._settings.examples_key)
                self._journal.measure("evaluate", self._round, metrics)
            except Exception as error:  # the user's function, or clients with unlike metrics
                why = f"clients' measures of round {self._round} cannot be aggregated: {error}"
                self._desk.note(now, -1, "metrics", why)

    def finish(self, carrier: FlowerCarrier) -> None:
        """Wait for what is out, and then for the last round."""
        self.post(carrier, carrier.finish())
        carrier.finish()
