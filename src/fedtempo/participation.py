"""The share of rounds in which each client takes part, in the long run (sections 4.2 to 4.5, appendix C).

    FedAvg 1;   asynchronous (1/τ_i)/Σ_j(1/τ_j);   FedFix 1/E⌈T_i/Δt⌉;   FedBuff from its limit cycle, or from the race
    of exponential clients;   uniform sampling m/M;   multinomial m·p_i, draws counted

Closed form where there is one, else the exact limit cycle, else a long run with its standard error. Of clients that
come, go and fail: participation_available.py. Where they come or go for good, what lasts: the last stretch in which the
same clients are there; of those that are not, nothing.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from fedtempo.clock.cycle import Observation, observe
from fedtempo.clock.generate import Recording
from fedtempo.clock.random_times import RandomTimes
from fedtempo.clock.rules import (
    CuredSample,
    FastestClients,
    FixedInterval,
    IntervalStages,
    MultinomialSample,
    UniformSample,
    WaitForAll,
    WaitForNext,
    WaitForSome,
    fastest,
)
from fedtempo.clock.setting import Setting
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.cured_rounds import cured_pace, cured_participation
from fedtempo.importance import Importance
from fedtempo.participation_available import pace_of, share_of, slower, taking_part
from fedtempo.participation_estimate import estimated_pace, estimated_share
from fedtempo.races import MAX_CLIENTS, expected_maximum, exponential_race
from fedtempo.stretches import during, participation_of_all

log = logging.getLogger(__name__)

EXACT_CLIENTS = 1000
"""Up to how many clients rationals are kept beside floats: their digits grow with the number of clients."""

Source = Literal["closed form", "cycle", "estimate"]


@dataclass(frozen=True)
class Participation:
    """Share of rounds of each client, and how it is known."""

    share: Floats
    """[clients] expected draws a round: the share of rounds, unless a client can be drawn more than once."""
    exact: tuple[Fraction, ...] | None
    source: Source
    error: Floats | None = None
    """[clients] standard error of an estimated share."""
    taking_part: Floats | None = None
    """[clients] share of rounds, where draws count more than once."""

    @property
    def updates_per_round(self) -> float:
        """Clients that contribute to a round, on average."""
        return float((self.share if self.taking_part is None else self.taking_part).sum())


class LongRun:
    """What a rule does with given clients in the long run; worked out when asked for, once."""

    def __init__(self, rule: WaitingRule, times: ClientTimes, importance: Importance, seed: int = 0) -> None:
        rule.check(times.num_clients)
        rule = _plainly(rule, times.num_clients)
        self.rule, self.times, self.importance, self.seed = rule, times, importance, seed
        self.record = Recording(Setting.of(rule, times, importance.values, seed))

    @cached_property
    def lasting(self) -> LongRun:
        """Itself; where clients come or go for good, the long run of those who stay, numbered anew."""
        availability = self.times.availability
        if availability is None or not availability.changes:
            return self
        return during(self, len(availability.stretches) - 1)

    @cached_property
    def observation(self) -> Observation:
        """A run of up to a million rounds: to the end of its limit cycle, where one is found."""
        if self.lasting is not self:
            return self.lasting.observation
        log.info("running the clock of %r to find its limit cycle, or to estimate", self.rule)
        return observe(self.record)

    @cached_property
    def participation(self) -> Participation:
        """Share of rounds of each client."""
        if self.lasting is not self:
            return participation_of_all(self, self.lasting.participation)
        closed = _closed_form(self.rule, self.times, self.importance)
        if closed is not None:
            return closed
        cycle = self.observation.cycle
        if cycle is not None:
            exact = cycle.participation if len(cycle.counts) <= EXACT_CLIENTS else None
            return Participation(cycle.counts / cycle.length, exact, "cycle")
        return _estimate(self.observation, several=self.rule.counts_draws)

    @property
    def rounds_per_time(self) -> float:
        """Rounds in a unit of time."""
        return self._pace[0]

    @property
    def rounds_per_time_source(self) -> Source:
        """How `rounds_per_time` is known."""
        return self._pace[1]

    @cached_property
    def _pace(self) -> tuple[float, Source]:
        if self.lasting is not self:
            return self.lasting._pace
        known = _rounds_per_time(self.rule, self.times, self.importance)
        if known is not None:
            return float(known), "closed form"
        seen = self.observation
        if seen.cycle is not None:
            return float(seen.cycle.rounds_per_time), "cycle"
        return estimated_pace(seen) / float(seen.unit), "estimate"

    @cached_property
    def mean_delay(self) -> float:
        """Mean of n − ρ_i(n) over updates: M / (updates a round) − 1 where contributors get the new model at once."""
        if self.rule.barrier:
            return 0.0
        if self.lasting is not self:
            return self.lasting.mean_delay
        always = self.times.availability is None  # who fails or joins starts from a version in between
        if always and isinstance(self.rule, (WaitForNext, WaitForSome, FixedInterval)):
            return max(0.0, self.times.num_clients / self.participation.updates_per_round - 1.0)
        seen = self.observation
        return seen.mean_delay if seen.cycle is None else float(seen.cycle.mean_delay)


def _plainly(rule: WaitingRule, num_clients: int) -> WaitingRule:
    """The simplest rule with the same rounds; of stages, what lasts: the last one."""
    match rule:
        case WaitForSome(size=size) if size == num_clients:
            return WaitForAll()
        case WaitForSome(size=1):
            return WaitForNext()
        case IntervalStages(stages=stages):
            return FixedInterval(stages[-1][0])
    return rule


def _closed_form(rule: WaitingRule, times: ClientTimes, importance: Importance) -> Participation | None:
    if times.availability is not None:
        return _available_form(rule, times, importance)
    clients = times.num_clients
    exactly = clients <= EXACT_CLIENTS
    match rule:
        case WaitForAll():
            return Participation(np.ones(clients), (Fraction(1),) * clients if exactly else None, "closed form")
        case WaitForNext():
            means = times.exact_mean_time if exactly else None
            pace = 1.0 / times.clock_mean_time
            exact = None
            if means is not None:
                total = sum((1 / t for t in means), Fraction(0))
                exact = tuple(1 / (t * total) for t in means)
            return Participation(pace / pace.sum(), exact, "closed form")
        case FixedInterval(wait=wait):
            needed = times.exact_expected_rounds(wait) if exactly else None
            exact = None if needed is None else tuple(1 / n for n in needed)
            return Participation(1.0 / times.expected_rounds(wait), exact, "closed form")
        case WaitForSome(size=size) if _races(times):
            return Participation(exponential_race(times.mean_time, size)[0], None, "closed form")
        case CuredSample(criterion=criterion) if not criterion.asks_for:
            inner = _closed_form(criterion, times, importance)
            return None if inner is None else cured_participation(rule, inner)
        case UniformSample(size=size):
            exact = (Fraction(size, clients),) * clients if exactly else None
            return Participation(np.full(clients, size / clients), exact, "closed form")
        case MultinomialSample(size=size):
            exact = tuple(size * p for p in importance.exact) if exactly else None
            once = -np.expm1(size * np.log1p(-importance.values)) if clients > 1 else np.ones(1)
            return Participation(size * importance.values, exact, "closed form", taking_part=once)
        case FastestClients(size=size):
            share = np.isin(np.arange(clients), fastest(times, size)).astype(np.float64)
            exact = tuple(Fraction(int(s)) for s in share) if exactly else None
            return Participation(share, exact, "closed form")
    return None


def _available_form(rule: WaitingRule, times: ClientTimes, importance: Importance) -> Participation | None:
    plain = slower(times)
    if plain is not None and isinstance(rule, (FixedInterval, WaitForSome)):
        return _closed_form(rule, plain, importance)
    found = share_of(rule, times, importance)
    if found is None:
        return None
    share, exact = found
    if times.num_clients > EXACT_CLIENTS:
        exact = None
    return Participation(share, exact, "closed form", taking_part=taking_part(rule, times, importance))


def fine_ticks(times: ClientTimes) -> bool:
    """Whether drawn times are practically continuous on their tick."""
    return float(times.unit) * 10**5 <= float(times.mean_time.min())


def _races(times: ClientTimes) -> bool:
    """Whether a round of FedBuff is a race in continuous time: exponential clients on a tick too fine for ties."""
    return times.memoryless and fine_ticks(times) and times.num_clients <= MAX_CLIENTS


def _rounds_per_time(rule: WaitingRule, times: ClientTimes, importance: Importance) -> Fraction | float | None:
    if times.availability is not None:
        plain = slower(times)
        if plain is not None and isinstance(rule, (WaitForAll, WaitForSome)):
            return _rounds_per_time(rule, plain, importance)
        return pace_of(rule, times, importance, lambda: _rounds_per_time(rule, times.always, importance))
    clients = times.num_clients
    fixed = times if isinstance(times, FixedTimes) else None
    match rule:
        case CuredSample(criterion=criterion) if not criterion.asks_for:
            paces = [_rounds_per_time(part, times, importance) for part in (criterion, WaitForAll())]
            return None if None in paces else cured_pace(rule, *(float(pace) for pace in paces if pace is not None))
        case FixedInterval(wait=wait):
            return 1 / wait
        case WaitForNext():
            return float((1.0 / times.clock_mean_time).sum())
        case WaitForAll():
            if fixed is not None:
                return 1 / (int(fixed.ticks.max()) * fixed.unit)
            rounded = isinstance(times, RandomTimes)
            longest = expected_maximum(times) if times.random and (fine_ticks(times) or not rounded) else None
            return None if longest is None else 1 / (longest + rounded * float(times.unit) / 2)  # half a tick more
        case WaitForSome(size=size) if _races(times):
            return 1 / exponential_race(times.mean_time, size)[1]
        case UniformSample(size=size) if fixed is not None and clients <= EXACT_CLIENTS:
            ways = math.comb(clients, size)  # the k-th fastest is the slowest of C(k−1, m−1) samples
            return ways / sum(
                (t * math.comb(k, size - 1) for k, t in enumerate(sorted(fixed.exact_mean_time))), Fraction(0)
            )
        case MultinomialSample(size=size) if fixed is not None:
            order = np.argsort(fixed.ticks)
            reached = np.cumsum(importance.values[order]) ** size  # P(no draw is slower than this client)
            return 1.0 / float(fixed.mean_time[order] @ np.diff(reached, prepend=0.0))
        case FastestClients(size=size) if fixed is not None:
            return 1 / (int(np.sort(fixed.ticks)[size - 1]) * fixed.unit)
    return None


def _estimate(seen: Observation, *, several: bool = False) -> Participation:
    """From a long run; `several`: clients may be drawn more than once a round."""
    share, error = estimated_share(seen)
    return Participation(share, None, "estimate", error, estimated_share(seen, draws=False)[0] if several else None)
