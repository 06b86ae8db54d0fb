"""Shares of rounds and pace from a long run of the clock: ratios of sums over its parts, with standard errors.

    share_i = Σ_b counts_bi / Σ_b rounds_b,    pace = Σ_b rounds_b / Σ_b ticks_b

Where clients come and go at random, it is known how much longer than expected they were there, and most of the spread
comes from that. With z_b that surplus of the client itself, and of all clients, in part b, and β the regression of
u_b = counts_bi − share_i rounds_b on z_b over the parts,

    share_i − β Σ_b z_b / Σ_b rounds_b

has a smaller error. These are control variates: Lavenberg and Welch, "A perspective on the use of control variables to
increase the efficiency of Monte Carlo simulations", 1981.

The share of rounds in which each client takes part, in the long run (sections 4.2 to 4.5, appendix C).

    FedAvg 1;   asynchronous (1/τ_i)/Σ_j(1/τ_j);   FedFix 1/E⌈T_i/Δt⌉;   FedBuff from its limit cycle, or from the race
    of exponential clients;   uniform sampling m/M;   multinomial m·p_i, draws counted

Closed form where there is one, else the exact limit cycle, else a long run with its standard error. Of clients that
come, go and fail: participation_available.py. Where they come or go for good, what lasts: the last stretch in which the
same clients are there; of those that are not, nothing.

Clients that join or leave for good: what holds in each stretch of time in which the same clients are there.

    in stretch k, with P_k there:  p_i^k = p_i/Σ_{j∈P_k} p_j,   participation_i^k that of P_k alone,   d_i^k from both

so that over a stretch that is long against the clients' times, those who are there count by their importance. A client
that has left keeps its last weight, for an update that still waits for its round. A round belongs to the stretch in
which it ends.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import FEWEST_PERIODS, Observation, observe
from fedtempo.clock.generate import Recording
from fedtempo.clock.importance import Importance
from fedtempo.clock.races import MAX_CLIENTS, expected_maximum, exponential_race
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
from fedtempo.clock.ticks import text
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.weighting.closed_forms_old import pace_of, share_of, slower, taking_part
from fedtempo.weighting.cured_old import cured_pace, cured_participation

if TYPE_CHECKING:
    from fedtempo.weighting.weight_rules import WeightRule

_FEWEST = 16
"""Parts with which a regression is tried."""


def estimated_share(seen: Observation, *, draws: bool = True) -> tuple[Floats, Floats | None]:
    """[clients] contributions a round, draws counted or not, over the run without its first tenth; and errors."""
    if not len(seen.batch_rounds):
        raise InputError(
            f"the {seen.rounds} rounds that are looked at do not fill {FEWEST_PERIODS} periods of the absences; "
            "give a shorter period, or weights of your own"
        )
    keep = np.cumsum(seen.batch_rounds) > seen.rounds / 10
    rounds = seen.batch_rounds[keep].astype(np.float64)
    counts = (seen.batch_counts if draws else seen.batch_taking)[keep].astype(np.float64)
    extra = None if seen.surplus is None else seen.surplus[keep]
    found = [
        _ratio(counts[:, i], rounds, None if extra is None else _controls(extra, i)) for i in range(counts.shape[1])
    ]
    share = np.array([value for value, _ in found])
    if not share.any():
        raise InputError(
            f"in {seen.rounds} rounds no client has taken part: their jobs take longer than they stay; "
            "give them longer stays or shorter jobs"
        )
    return np.maximum(share, 0.0), None if len(rounds) < 2 else np.array([error for _, error in found])


def estimated_pace(seen: Observation) -> float:
    """Rounds a tick."""
    extra = None if seen.surplus is None else seen.surplus.sum(axis=1, keepdims=True)
    return _ratio(seen.batch_rounds.astype(np.float64), seen.batch_ticks.astype(np.float64), extra)[0]


def _controls(extra: Floats, client: int) -> Floats:
    """[parts, 2] the surplus of the client, and of all."""
    total = extra.sum(axis=1)
    return np.stack([extra[:, client], total], axis=1) if extra.shape[1] > 1 else extra


def _ratio(top: Floats, bottom: Floats, controls: Floats | None) -> tuple[float, float]:
    """Σ top / Σ bottom as if the controls had summed to 0, and its standard error."""
    whole, parts = float(bottom.sum()), len(top)
    ratio = float(top.sum()) / whole
    rest = top - ratio * bottom
    used = 1
    if controls is not None and parts >= _FEWEST and rest.any():
        centred = controls - controls.mean(axis=0)
        slope = np.linalg.lstsq(centred, rest, rcond=None)[0]
        ratio -= float(controls.sum(axis=0) @ slope) / whole
        rest, used = rest - centred @ slope, 1 + controls.shape[1]
    return ratio, float(np.sqrt((rest**2).sum() * parts / max(1, parts - used))) / whole


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
        self.record = Recording(ClockConfig.of(rule, times, importance.values, seed))

    @cached_property
    def after_last_change(self) -> LongRun:
        """Itself; where clients come or go for good, the long run of those who stay, numbered anew."""
        availability = self.times.availability
        if availability is None or not availability.changes:
            return self
        return during(self, len(availability.stretches) - 1)

    @cached_property
    def observation(self) -> Observation:
        """A run of up to a million rounds: to the end of its limit cycle, where one is found."""
        if self.after_last_change is not self:
            return self.after_last_change.observation
        log.info("running the clock of %r to find its limit cycle, or to estimate", self.rule)
        return observe(self.record)

    @cached_property
    def participation(self) -> Participation:
        """Share of rounds of each client."""
        if self.after_last_change is not self:
            return participation_of_all(self, self.after_last_change.participation)
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
        if self.after_last_change is not self:
            return self.after_last_change._pace
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
        if self.rule.synchronous:
            return 0.0
        if self.after_last_change is not self:
            return self.after_last_change.mean_delay
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
        case CuredSample(criterion=criterion) if not criterion.needs:
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
        case CuredSample(criterion=criterion) if not criterion.needs:
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


MAX_STRETCHES = 100
"""Up to how many stretches weights are worked out for."""


def during(run: LongRun, number: int) -> LongRun:
    """The long run of those who are there in one of the stretches, numbered anew, as if it never ended."""
    availability = run.times.availability
    assert availability is not None
    begin, clients = availability.stretches[number]
    if not clients:
        raise InputError(
            f"absences: nobody is there from {text(begin)} on, so that there is no long run; "
            "let somebody stay, or give a period"
        )
    total = sum((run.importance.exact[i] for i in clients), Fraction(0))
    importance = Importance([run.importance.exact[i] / total for i in clients], len(clients))
    return type(run)(_fitted(run.rule, len(clients)), run.times.only(clients), importance, run.seed)


def _fitted(rule: WaitingRule, num_clients: int) -> WaitingRule:
    """What a rule does when only so many clients are there."""
    match rule:
        case WaitForSome(size=size) | UniformSample(size=size) | FastestClients(size=size) if size > num_clients:
            return replace(rule, size=num_clients)
    return rule


def of_all(run: LongRun, values: Floats) -> Floats:
    """[clients] what is known of those who stay; 0 for the others."""
    availability = run.times.availability
    if availability is None or not availability.changes:
        return values
    out = np.zeros(run.times.num_clients)
    out[list(availability.stretches[-1].clients)] = values
    return out


def participation_of_all(run: LongRun, found: Participation) -> Participation:
    """The participation of those who stay, with nothing for the others."""
    assert run.times.availability is not None
    exact = None
    if found.exact is not None:
        known = dict(zip(run.times.availability.stretches[-1].clients, found.exact, strict=True))
        exact = tuple(known.get(i, Fraction(0)) for i in range(run.times.num_clients))
    error, taking = (None if v is None else of_all(run, v) for v in (found.error, found.taking_part))
    return replace(found, share=of_all(run, found.share), exact=exact, error=error, taking_part=taking)


def weights_by_stretch(
    waiting: WaitingRule, run: LongRun, rule: WeightRule
) -> tuple[Floats, tuple[tuple[Fraction, ...] | None, ...], tuple[Fraction, ...]]:
    """[stretches, clients] d_i, as rationals where they are known, and when each stretch begins."""
    availability = run.times.availability
    assert availability is not None
    stretches = availability.stretches
    if isinstance(waiting, IntervalStages):
        raise InputError(
            "FedFix in stages and clients that come or go for good: weights would have to follow both; use one wait, "
            "as ft.FedFix('1/2'), or give absences a period"
        )
    if waiting.needs or isinstance(waiting, CuredSample) or rule.by_client:
        what = rule.label if rule.by_client else repr(waiting)
        raise InputError(
            f"{what} and clients that come or go for good: its weights are those of one set of clients; give absences "
            "a period, or use another scheme"
        )
    if len(stretches) > MAX_STRETCHES:
        raise InputError(
            f"absences: clients come or go {len(stretches) - 1} times, each time for good, and weights are worked out "
            f"for at most {MAX_STRETCHES} stretches; give a period, so that they repeat"
        )
    values = np.zeros((len(stretches), run.times.num_clients))
    exact: list[tuple[Fraction, ...] | None] = []
    row: list[Fraction] | None = [Fraction(0)] * run.times.num_clients
    for number, (_, clients) in enumerate(stretches):
        if number:
            values[number] = values[number - 1]
        if clients:
            part = during(run, number)
            here, rational = rule.base(part.importance, part.participation)
            values[number, list(clients)] = here
            row = None if rational is None or row is None else _put(row, clients, rational)
        exact.append(None if row is None else tuple(row))
    return values, tuple(exact), tuple(stretch.begin for stretch in stretches)


def _put(row: list[Fraction], clients: tuple[int, ...], values: tuple[Fraction, ...]) -> list[Fraction]:
    known = dict(zip(clients, values, strict=True))
    return [known.get(i, before) for i, before in enumerate(row)]
