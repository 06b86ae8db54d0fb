"""What a waiting rule's long run is known to be without running it: each rule brings its own (`closed_form`).

A number that is missing is found by the cycle search or estimated from a long run, and whoever asked is told so. Of who
takes part in a round picked at random from the long run, a `RoundLaw` has the first two moments of n_i, how often
client i was drawn, and where they are few the sets of clients, with how likely each is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.availability import Availability
from fedtempo.clock.races import race_pairs, race_sets
from fedtempo.clock.random_times import ExponentialTimes
from fedtempo.clock.times import ClientTimes, Floats, Ints

EXACT_CLIENTS = 1000
"""Up to how many clients rationals are kept beside floats: their digits grow with the number of clients."""

_MAX_BITS = 13_000
"""A window with more binary digits than this (about 4 000 decimal ones) is not worked out."""


class RoundLaw(ABC):
    """Who takes part in a round; `fresh`: every round is drawn anew, whatever the rounds before it were.

    Example:
        >>> from fedtempo.rules import RoundLaw, UniformSubset
        >>> law = UniformSubset(size=2, clients=4)  # one of the subclasses
        >>> isinstance(law, RoundLaw), law.fresh, law.mean()
        (True, True, array([0.5, 0.5, 0.5, 0.5]))
        >>> float(law.second()[0, 1])  # how often clients 0 and 1 are in one round
        0.16666666666666666
    """

    fresh: bool

    @abstractmethod
    def mean(self) -> Floats:
        """[clients] E n_i."""

    @abstractmethod
    def second(self) -> Floats:
        """[clients, clients] E n_i n_j."""

    def sets(self, most: int) -> tuple[Floats, Floats] | None:
        """[sets, clients] 1 for those who take part, and how likely each set is; None if there are more than `most`."""
        return None


@dataclass(frozen=True, eq=False)
class Everybody(RoundLaw):
    """All clients, in every round.

    Example:
        >>> from fedtempo.rules import Everybody
        >>> Everybody(3).mean()
        array([1., 1., 1.])
    """

    clients: int
    fresh = True

    def mean(self) -> Floats:
        return np.ones(self.clients)

    def second(self) -> Floats:
        return np.ones((self.clients, self.clients))


@dataclass(frozen=True, eq=False)
class OneAtATime(RoundLaw):
    """One client a round, client i with probability share_i.

    Example:
        >>> from fedtempo.rules import OneAtATime
        >>> law = OneAtATime(np.array([0.25, 0.75]), fresh=True)
        >>> law.mean(), float(law.second()[0, 1])  # never both
        (array([0.25, 0.75]), 0.0)
    """

    share: Floats
    fresh: bool

    def mean(self) -> Floats:
        return self.share

    def second(self) -> Floats:
        return np.diag(self.share)

    def sets(self, most: int) -> tuple[Floats, Floats] | None:
        return np.eye(len(self.share)), self.share


@dataclass(frozen=True, eq=False)
class EachByItself(RoundLaw):
    """Client i with probability share_i, whoever else takes part.

    Example:
        >>> from fedtempo.rules import EachByItself
        >>> law = EachByItself(np.array([0.5, 0.25]), fresh=True)
        >>> law.mean(), float(law.second()[0, 1])  # both in one of eight rounds
        (array([0.5 , 0.25]), 0.125)
    """

    share: Floats
    fresh: bool

    def mean(self) -> Floats:
        return self.share

    def second(self) -> Floats:
        return np.outer(self.share, self.share) + np.diag(self.share * (1.0 - self.share))

    def sets(self, most: int) -> tuple[Floats, Floats] | None:
        clients = len(self.share)
        if 2**clients > most:
            return None
        sets = (np.arange(2**clients)[:, None] >> np.arange(clients) & 1).astype(np.float64)
        return sets, np.where(sets > 0, self.share, 1 - self.share).prod(axis=1)


@dataclass(frozen=True, eq=False)
class UniformSubset(RoundLaw):
    """`size` of M clients, every set equally likely.

    Example:
        >>> from fedtempo.rules import UniformSubset
        >>> law = UniformSubset(size=2, clients=4)
        >>> law.mean(), round(float(law.second()[0, 1]), 3)  # a pair in one of six rounds
        (array([0.5, 0.5, 0.5, 0.5]), 0.167)
    """

    size: int
    clients: int
    fresh = True

    def mean(self) -> Floats:
        return np.full(self.clients, self.size / self.clients)

    def second(self) -> Floats:
        share = self.size / self.clients
        pair = share * (self.size - 1) / max(1, self.clients - 1)
        return np.full((self.clients, self.clients), pair) + np.eye(self.clients) * (share - pair)


@dataclass(frozen=True, eq=False)
class Draws(RoundLaw):
    """`size` draws with replacement, client i with probability p_i.

    Example:
        >>> from fedtempo.rules import Draws
        >>> law = Draws(size=2, probability=np.array([0.75, 0.25]))
        >>> law.mean(), law.second()[0]  # E n_0, then E n_0² and E n_0 n_1
        (array([1.5, 0.5]), array([2.625, 0.375]))
    """

    size: int
    probability: Floats
    fresh = True

    def mean(self) -> Floats:
        return self.size * self.probability

    def second(self) -> Floats:
        p, size = self.probability, self.size
        return size * (size - 1) * np.outer(p, p) + np.diag(size * p)


@dataclass(frozen=True, eq=False)
class FirstOfRace(RoundLaw):
    """The first `size` of exponential clients."""

    mean_time: Floats
    size: int
    fresh = True

    def mean(self) -> Floats:
        return np.diag(self.second())

    def second(self) -> Floats:
        return race_pairs(self.mean_time, self.size)

    def sets(self, most: int) -> tuple[Floats, Floats] | None:
        clients = len(self.mean_time)
        few = math.comb(clients, min(self.size, clients // 2)) <= most
        return race_sets(self.mean_time, self.size) if few else None


@dataclass(frozen=True)
class ClosedForm:
    """What is known of a rule with given clients, once and for all; None: not known.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedtempo.rules import Close, ClosedForm, Everybody, WaitingRule, resend
        >>> @dataclass(frozen=True)
        ... class All(WaitingRule):
        ...     def decide(self, state, event, view):
        ...         done = len(view.arrived) == len(view.clients)
        ...         return state, resend(event) or (Close(tuple(view.arrived.values())) if done else None)
        ...     def closed_form(self, times, importance):
        ...         clients = times.num_clients
        ...         return ClosedForm(share=np.ones(clients), window=1, max_delay=0, round_law=Everybody(clients))
        >>> ft.participation_of(ft.Scheme(All(), name="all"), ft.ExponentialTimes([4, 2])).source
        'closed form'
    """

    share: Floats | None = None
    """[clients] expected draws a round: the share of rounds, unless a client can be drawn more than once."""
    exact: tuple[Fraction, ...] | None = None
    """The same as rationals."""
    taking_part: Floats | None = None
    """[clients] share of rounds, where draws count more than once."""
    rounds_per_time: Fraction | float | None = None
    """Rounds in a unit of time."""
    window: int | None = None
    """W, the rounds after which every client has had its share (Assumption 6)."""
    no_window: bool = False
    """There is none that can be written down: it is not sought as a limit cycle either."""
    repeats: bool = False
    """Whether the first `window` rounds repeat from round 0 on."""
    spacing: Ints | None = None
    """[clients] each client contributes at equal distances from the start on: in ticks where every round takes one
    update, else in rounds."""
    practical_window: int | None = None
    """The smallest n from which on the first n rounds give each client its share to 1 %."""
    count_error: float | None = None
    """A bound on |c_i(n) − share_i n| / share_i at every n, c_i(n) the client's contributions to the first n rounds."""
    mean_delay: float | None = None
    """Mean of n − ρ_i(n) over updates."""
    mean_delay_by_weight: float | None = None
    """The same with each update counted by its unbiased weight, Σ_i p_i (mean delay of client i)."""
    max_delay: float | None = None
    """The largest n − ρ_i(n) there is, a whole number; infinite where no number bounds it."""
    max_delay_bound: int | None = None
    """A number that no delay exceeds, where the largest is not known."""
    round_law: RoundLaw | None = None
    """Who takes part in a round picked at random."""


def rationals(clients: int) -> bool:
    """Whether rationals are kept for so many clients."""
    return clients <= EXACT_CLIENTS


def fine_ticks(times: ClientTimes) -> bool:
    """Whether drawn times are practically continuous on their tick."""
    return float(times.unit) * 10**5 <= float(times.mean_time.min())


def forgets(times: ClientTimes) -> bool:
    """Whether what is left of a job does not depend on how long it has run, so that every round is drawn anew."""
    return times.memoryless and fine_ticks(times)


def least_common_multiple(numbers: Ints) -> int | None:
    """None where it has too many digits."""
    found = 1
    for number in np.unique(numbers):
        found = math.lcm(found, int(number))
        if found.bit_length() > _MAX_BITS:
            return None
    return found


def slower(times: ClientTimes) -> ExponentialTimes | None:
    """Exponential clients whose jobs fail contribute like slower ones whose jobs do not, exactly, tick by tick.

    A job of ⌈T/r⌉ ticks ends in each tick with probability p = 1 − e^{−r/τ}; one that succeeds, with p(1 − f).
    """
    plain, availability = times.always, times.availability
    if not isinstance(plain, ExponentialTimes) or availability is None or availability.away:
        return None
    tick = float(plain.unit)
    ends = -np.expm1(-tick / plain.mean_time) * succeeds(availability)
    return ExponentialTimes((-tick / np.log1p(-ends)).tolist(), resolution=plain.unit)


def failing(times: ClientTimes) -> Availability | None:
    """The availability of clients that are always there and whose jobs fail; None of others."""
    availability = times.availability
    return None if availability is None or availability.away else availability


def failure(availability: Availability) -> Floats:
    """[clients] f_i, the probability that a job fails."""
    return np.array([float(f) for f in availability.failure])


def succeeds(availability: Availability) -> Floats:
    """[clients] 1 − f_i."""
    return np.array([float(1 - f) for f in availability.failure])
