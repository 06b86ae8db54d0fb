"""ω_i(n), the weights that a round uses: the simulator's weight rules, told what the server knows of its clients.

Importance p_i is normalised over the clients that are there. With given times the participation is the simulator's own
closed form or limit cycle; else it is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.events import Round
from fedtempo.clock.rules import WaitForAll, WaitForSome
from fedtempo.clock.ticks import Exact, positive
from fedtempo.clock.times import FixedTimes, Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.flower.estimates import Clients, Estimates
from fedtempo.importance import Importance
from fedtempo.participation import LongRun, Participation
from fedtempo.weighting import WeightRule


class _Shares(Importance):
    """p_i as floats; rationals only where they are asked for."""

    def __init__(self, values: Floats) -> None:
        self.values = values / values.sum()

    @property
    def exact(self) -> tuple[Fraction, ...]:
        given = [Fraction(p) for p in self.values.tolist()]
        return tuple(p / sum(given) for p in given)


class Weigher:
    """The weights of rounds, client by client."""

    def __init__(
        self,
        rule: WeightRule,
        waiting: WaitingRule,
        estimates: Estimates,
        identity: Callable[[int], str],
        *,
        importance: Mapping[str, Exact] | None,
        times: Mapping[str, Exact] | None,
    ) -> None:
        self._rule, self._waiting, self._estimates, self._identity = rule, waiting, estimates, identity
        self._importance = _positive(importance, "importance")
        self._times = _positive(times, "times")
        self._there: tuple[int, tuple[int, ...]] | None = None
        self._who: Clients = np.zeros(0, dtype=np.int64)
        self._given: Floats = np.zeros(0)
        self._known: Participation | None = None

    def forget(self) -> None:
        """Somebody's identity has changed: look everything up again."""
        self._there = None

    def _look_up(self, there: Set[int]) -> None:
        self._who = np.array(sorted(there), dtype=np.int64)
        names = [self._identity(int(client)) for client in self._who]
        if self._importance is not None:
            self._given = np.array([float(p) for p in _named(self._importance, names)])
        if self._times is not None:
            times = FixedTimes(_named(self._times, names))
            few = isinstance(self._waiting, WaitForSome) and self._waiting.size > len(names)
            waiting = WaitForAll() if few else self._waiting
            self._known = LongRun(waiting, times, Importance(None, len(names))).participation

    def applied(self, closed: Round, clients: Set[int], changes: int) -> list[float]:
        """ω_i(n) of a round's jobs, when these clients are there; `changes` counts how often they have changed."""
        contributors = [job.client for job in closed.jobs]
        gone = tuple(i for i in contributors if i not in clients)
        if (changes, gone) != self._there:
            self._there = changes, gone
            self._look_up({*clients, *gone})
        shares = self._given if self._importance is not None else self._estimates.examples(self._who)
        participation = self._known if self._known is not None else self._estimates.participation(self._who)
        base, _ = self._rule.base(_Shares(shares), participation)
        own = base[np.searchsorted(self._who, contributors)]
        staleness: NDArray[Any] = np.array([closed.number - job.base for job in closed.jobs], dtype=np.int64)
        draws = np.array([job.draws for job in closed.jobs])
        return [float(weight) for weight in own * self._rule.discount(staleness) * draws]

    def importance(self, clients: int) -> Floats:
        """p_i of clients 0 … `clients` − 1 as far as it is known, normalised."""
        if self._importance is None:
            return _Shares(self._estimates.examples(np.arange(clients))).values
        names = [self._identity(client) for client in range(clients)]
        return _Shares(np.array([float(p) for p in _named(self._importance, names)])).values


def _named(given: Mapping[str, Fraction], names: Sequence[str]) -> list[Fraction]:
    """The values of these identities; the middle one of all for those that are not named."""
    middle = sorted(given.values())[len(given) // 2]
    return [given.get(name, middle) for name in names]


def _positive(given: Mapping[str, Exact] | None, what: str) -> dict[str, Fraction] | None:
    if given is None:
        return None
    if not given:
        raise InputError(f"{what}: nothing is given; name at least one client, or leave {what} out")
    return {str(name): positive(value, f"{what} of {name!r}") for name, value in given.items()}
