"""ω_i(n), the weights that a round uses: the simulator's weight rules, told what the server knows of its clients.

    p_i = v_i / Σ_j v_j        over the clients j that are there; v: what was given by identity, else examples

With given times the participation is the simulator's own closed form or limit cycle; else it is estimated. Clients that
are not among the given names count as the middle one of these; names that nobody has are said in the log, once, when
every client that is there has answered, for a client may be named by its answers alone.

When the estimates say that a wait makes no sense, the log says so in words, once, and what to change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.events import Round
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules import WaitForAll, WaitForSome
from fedtempo.clock.ticks import Exact, positive
from fedtempo.clock.times import FixedTimes, Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.flower.estimates import Clients, Estimates
from fedtempo.weighting.long_run import LongRun, Participation
from fedtempo.weighting.weight_rules import WeightRule

log = logging.getLogger("flwr")

_SHOWN = 10


class _Shares(Importance):
    """p_i as floats; rationals only where they are asked for."""

    def __init__(self, values: Floats) -> None:
        scaled = values / values.max()  # so that the sum of large ones is finite
        self.values = scaled / scaled.sum()

    @property
    def exact(self) -> tuple[Fraction, ...]:
        given = [Fraction(p) for p in self.values.tolist()]
        return tuple(p / sum(given) for p in given)


class RoundWeights:
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
        self._place: dict[int, int] = {}
        self._shares: _Shares | None = None
        self._examples_seen = -1
        self._known: Participation | None = None
        self._numbers = 0
        """How many clients have been seen."""
        self._names_checked = False

    def forget(self) -> None:
        """Somebody's identity has changed: look everything up again."""
        self._there = None

    def _look_up(self, there: Set[int]) -> None:
        self._who = np.array(sorted(there), dtype=np.int64)
        self._place = {client: place for place, client in enumerate(self._who.tolist())}
        self._numbers = max(self._numbers, int(self._who[-1]) + 1)
        self._shares = None
        if self._times is not None:
            names = [self._identity(int(client)) for client in self._who]
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
        if not self._names_checked and self._estimates.have_answered(self._who):
            self._names_checked = True
            self._check_names()
        participation = self._known if self._known is not None else self._estimates.participation(self._who, closed)
        base, _ = self._rule.base(self._importance_now(), participation)
        own = base[[self._place[i] for i in contributors]]
        staleness: NDArray[Any] = np.array([closed.number - job.base for job in closed.jobs], dtype=np.int64)
        draws = np.array([job.draws for job in closed.jobs])
        weights: list[float] = (own * self._rule.discount(staleness) * draws).tolist()
        return weights

    def _importance_now(self) -> _Shares:
        """p_i of the clients that are there, made anew where they follow from examples and a number has changed."""
        changes = self._estimates.examples_changes if self._importance is None else 0
        if self._shares is None or self._examples_seen != changes:
            self._shares, self._examples_seen = _Shares(self._values(self._who)), changes
        return self._shares

    def _values(self, who: Clients) -> Floats:
        """v_i of these clients."""
        if self._importance is None:
            return self._estimates.examples(who)
        return np.array([float(p) for p in _named(self._importance, [self._identity(int(i)) for i in who])])

    def _check_names(self) -> None:
        """Say which names nobody has."""
        seen = {self._identity(client) for client in range(self._numbers)}
        for what, given in (("importance", self._importance), ("times", self._times)):
            if given is not None and (unknown := [name for name in given if name not in seen]):
                log.warning(
                    "%s: nobody is called %s; the clients are %s. Those that are not named count as the middle one of "
                    "the given values. Give the names that the clients have",
                    what,
                    _listed(unknown),
                    _listed([self._identity(int(client)) for client in self._who]),
                )

    def importance(self, clients: int) -> Floats:
        """p_i of clients 0 … `clients` − 1, normalised; 0 of those that have not contributed, once any has."""
        who = np.arange(clients)
        shares = self._values(who)
        contributed = self._estimates.contributed(who)
        return _Shares(np.where(contributed, shares, 0.0) if contributed.any() else shares).values


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


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


log = logging.getLogger("flwr")

FLOOR = 10.0
"""Seconds below which Flower's own round trip, 4 to 7 s of polling and starting a process, decides."""
ROUNDS_MISSED = 20
"""From how many rounds on a client's rare and heavy updates make the model jump."""


class Remark(NamedTuple):
    """What to say, and about what, so that it is said once."""

    about: str
    words: str


def remarks(
    wait: float,
    times: Mapping[int, float],
    intervals: Mapping[int, float],
    overhead: float,
    identity: Callable[[int], str],
) -> list[Remark]:
    """What is to be said of a wait in seconds, with these client times, ⌈T_i/Δt⌉ and overhead of the carrier."""
    found = []
    floor = max(FLOOR, overhead)
    if wait < floor:
        found.append(
            Remark(
                "floor",
                f"a wait of {wait:g} s is below what Flower's transport takes ({floor:.3g} s), which then decides who "
                f"is in a round instead of the clients' speed. Set wait to {floor:.0f} s or more",
            )
        )
    if times and wait < (least := min(times.values())):
        fastest = min(times, key=lambda client: times[client])
        found.append(
            Remark(
                "fastest",
                f"a wait of {wait:g} s is shorter than the fastest client's {least:.3g} s ({identity(fastest)}): "
                f"rounds pass without any update. Set wait to {least:.3g} s or more",
            )
        )
    found += [
        Remark(
            f"client {client}",
            f"client {client} ({identity(client)}) takes {times[client]:.3g} s and misses {needed - 1:.0f} rounds "
            f"between two updates, which then count {needed:.0f}-fold. Set wait to "
            f"{times[client] / ROUNDS_MISSED:.3g} s or more, or give it less work",
        )
        for client, needed in intervals.items()
        if needed > ROUNDS_MISSED
    ]
    return found


def absences(wait: float, missed: Mapping[int, int], identity: Callable[[int], str]) -> list[Remark]:
    """What is to be said of clients that have a job and have missed so many rounds since they got it."""
    return [
        Remark(
            f"client {client} missing",
            f"client {client} ({identity(client)}) has not answered for {rounds} rounds of {wait:g} s; its next update "
            f"will count {rounds}-fold or more. Set a longer wait or a shorter timeout, or give it less work",
        )
        for client, rounds in missed.items()
        if rounds > ROUNDS_MISSED
    ]


class WaitAdvice:
    """Says each remark once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, found: list[Remark]) -> None:
        """Log what has not been said yet."""
        for about, words in found:
            if about not in self._said:
                self._said.add(about)
                log.warning("%s", words)
