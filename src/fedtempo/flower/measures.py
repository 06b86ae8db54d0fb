"""What a waiting rule needs of the clients (`WaitingRule.needs`), from the running federation.

    importance   p_i = v_i/Σ_j v_j over the clients j that are there; v: what was given by identity, else the number of
                 examples; clients that have not answered count as the middle one of those that have
    mean_time    seconds from sending to arrival, smoothed, or what was given by identity; clients that have not
                 answered count as half of the fastest, so that a rule that takes the fast ones tries them
    loss         the number that the client's last reply has under `loss_key`; infinite before its first

v_i, times and losses are written down when the server hears of them. What follows from them is worked out when the rule
reads it: from the same lines the rule decides the same again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.clock.events import Event, Job, Round, Tick
from fedtempo.clock.server import Server
from fedtempo.clock.times import Floats
from fedtempo.clock.waiting import WaitingRule, check_needs
from fedtempo.errors import UnlawfulRule
from fedtempo.flower.estimates import Estimates, filled
from fedtempo.flower.settings import Settings, of_names


def shares(values: Floats) -> Floats:
    """Values as shares of their sum, also where that is not finite."""
    scaled = values / values.max()
    return np.asarray(scaled / scaled.sum())


def _importance(known: Mapping[int, float], clients: list[int]) -> dict[int, float]:
    there = np.array([client in known for client in clients])
    values = np.array([known.get(client, 0.0) for client in clients])
    return dict(zip(clients, shares(filled(values, there)).tolist(), strict=True))


def _mean_time(known: Mapping[int, float], clients: list[int]) -> dict[int, float]:
    untried = min(known.values(), default=2.0) / 2
    return {client: known.get(client, untried) for client in clients}


def _loss(known: Mapping[int, float], clients: list[int]) -> dict[int, float]:
    return {client: known.get(client, math.inf) for client in clients}


_FROM_KNOWN: dict[str, Callable[[Mapping[int, float], list[int]], dict[int, float]]] = {
    "importance": _importance,
    "mean_time": _mean_time,
    "loss": _loss,
}
MEASURES = tuple(_FROM_KNOWN)
"""What a server on Flower can supply."""


def refuse_unmet(rule: WaitingRule, loss_key: str | None) -> None:
    """Refuse a rule that needs what is not known here."""
    cure = f"it supplies {', '.join(MEASURES)}"
    supplied = [name for name in MEASURES if name != "loss" or loss_key is not None]
    if "loss" in rule.needs and loss_key is None:
        cure = "put it into the metrics of the ClientApp's reply, and name it, as loss_key='train_loss'"
    check_needs(rule, supplied, "a server on Flower", cure)


class KnownMeasures:
    """What is known of a client."""

    def __init__(
        self,
        settings: Settings,
        estimates: Estimates,
        identity: Callable[[int], str],
        losses: Mapping[int, float],
    ) -> None:
        self._settings, self._estimates, self._identity, self._losses = settings, estimates, identity, losses

    def of(self, name: str, client: int) -> float | None:
        """v_i, a time or a loss; None as long as nobody knows."""
        if name == "loss":
            return self._losses.get(client)
        given = self._settings.importance if name == "importance" else self._settings.times
        if given is not None:
            return float(of_names(given, [self._identity(client)])[0])
        return self._estimates.examples_of(client) if name == "importance" else self._estimates.time(client)


class _Measure(Mapping[int, float]):
    """A measure of each client, worked out when it is read."""

    def __init__(self, name: str, server: MeasuredServer) -> None:
        self._name, self._server = name, server
        self._found: dict[int, float] | None = None

    def forget(self) -> None:
        """Something may have changed."""
        self._found = None

    def _all(self) -> dict[int, float]:
        if self._found is None:
            clients = sorted({*self._server.clients, *self._server.arrived})
            self._found = _FROM_KNOWN[self._name](self._server.known(self._name), clients)
        return self._found

    def __getitem__(self, client: int) -> float:
        return self._all()[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class _Measures(dict[str, Mapping[int, object]]):
    """The measures that a rule needs; it gets no others, since those would not be written down."""

    def __init__(self, rule: WaitingRule, of: Mapping[str, _Measure]) -> None:
        super().__init__(of)
        self._rule = rule

    def __missing__(self, name: str) -> Mapping[int, object]:
        raise UnlawfulRule(
            f"{self._rule!r} reads {name!r} from View.measures but does not declare it; add "
            f"needs = ({name!r},) to its class"
        )

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


class MeasuredServer(Server):
    """The simulator's server, with what its rule needs of the clients."""

    def __init__(
        self,
        rule: WaitingRule,
        clients: Iterable[int],
        *,
        unit: Fraction,
        seed: int = 0,
        measures: Mapping[str, Mapping[int, object]] | None = None,
    ) -> None:
        super().__init__(rule, clients, unit=unit, seed=seed)
        self._own = {name: _Measure(name, self) for name in rule.needs}
        self.measures = _Measures(rule, self._own)

    @classmethod
    def restored(cls, rule: WaitingRule, snapshot: Mapping[str, object]) -> MeasuredServer:
        """The server that a snapshot was taken of."""
        server = cls.restore(rule, snapshot)
        assert isinstance(server, MeasuredServer)
        return server

    def known(self, name: str) -> Mapping[int, float]:
        """v_i, times or losses, of the clients of whom they are known."""
        return self._noted.get(name, {})

    def note(self, name: str, client: int, value: float) -> None:
        self._noted.setdefault(name, {})[client] = value
        self._own[name].forget()

    def handle(self, event: Event, now: Tick) -> tuple[Round | None, tuple[Job, ...]]:
        for measure in self._own.values():
            measure.forget()
        return super().handle(event, now)
