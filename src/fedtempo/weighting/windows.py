"""W, the rounds after which every client has had its share (Assumption 6), exactly and in practice.

FedAvg 1;   asynchronous Σ ν/τ_i with ν = lcm(τ_i);   FedFix lcm(⌈τ_i/Δt⌉);   FedBuff its cycle's length
practical: the smallest n such that for every n' ≥ n the first n' rounds give each client its share within 1 %
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fedtempo.clock.cycle import MAX_UPDATES
from fedtempo.clock.rules import (
    CuredSample,
    FastestClients,
    FixedInterval,
    MultinomialSample,
    SampledClients,
    UniformSample,
    WaitForAll,
    WaitForNext,
    WaitForSome,
)
from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.weighting.long_run import LongRun, fine_ticks

_MAX_BITS = 13_000
"""A window with more binary digits than this (about 4 000 decimal ones) is not worked out."""

TOLERANCE = Fraction(1, 100)


def closed_window(rule: WaitingRule, times: ClientTimes) -> int | None:
    """W where a closed form gives it; None where there is none, or none that can be written down."""
    if times.availability is not None:
        return 1 if afresh(rule, times) else None
    match rule:
        case CuredSample(window=length):
            return length
        case WaitForAll() | SampledClients():
            return 1
        case WaitForNext() | WaitForSome() if times.memoryless and fine_ticks(times):
            return 1  # every round is drawn afresh: q_i(n) is the same from the first round on
        case FixedInterval(wait=wait) if times.memoryless and wait % times.unit == 0:
            return 1
        case WaitForNext() if isinstance(times, FixedTimes):
            whole = _lcm(times.ticks)
            return None if whole is None else sum(whole // t for t in times.ticks.tolist())
        case FixedInterval(wait=wait) if isinstance(times, FixedTimes):
            return _lcm(times.rounds_needed(wait))
    return None


def afresh(rule: WaitingRule, times: ClientTimes) -> bool:
    """Whether clients whose jobs fail, but who are always there, make every round a fresh draw."""
    availability, plain = times.availability, times.always
    if availability is None or availability.away:
        return False
    match rule:
        case WaitForAll() | UniformSample() | MultinomialSample() | FastestClients():
            return True
        case WaitForNext() | WaitForSome():
            return plain.memoryless and fine_ticks(plain)
        case FixedInterval(wait=wait):
            return plain.memoryless and wait % plain.unit == 0
    return False


def _lcm(numbers: I64) -> int | None:
    whole = 1
    for number in np.unique(numbers).tolist():
        whole = math.lcm(whole, number)
        if whole.bit_length() > _MAX_BITS:
            return None
    return whole


def window(run: LongRun) -> int | None:
    """W: closed form, else the length of the limit cycle."""
    run = run.after_last_change
    closed = closed_window(run.rule, run.times)
    if closed is not None:
        return closed
    if run.times.random or isinstance(run.rule, (WaitForNext, FixedInterval)):
        return None
    cycle = run.observation.cycle
    return None if cycle is None else cycle.length


def practical_window(run: LongRun) -> int | None:
    """The practical window; None under random participation, or where it would take too long to be sure of it."""
    run = run.after_last_change
    if run.times.availability is not None:
        return 1 if isinstance(run.rule, WaitForAll) and afresh(run.rule, run.times) else None
    if isinstance(run.rule, (WaitForAll, FastestClients)):
        return 1
    if run.times.random or run.rule.random or not run.rule.returns_to_contributors:
        return None
    if isinstance(run.rule, FixedInterval) and isinstance(run.times, FixedTimes):
        return max(_every(n) for n in np.unique(run.times.rounds_needed(run.rule.wait)).tolist())
    if isinstance(run.rule, (WaitForNext, FixedInterval)) and not isinstance(run.times, FixedTimes):
        return None
    share = run.participation.share
    enough = _enough(run)
    if enough is None or enough * share.sum() > MAX_UPDATES:
        return None
    scan = _LastWrong(share, run.participation.exact)
    seen = 0
    for chunk in run.record.rounds(enough):
        scan.note(chunk)
        seen += chunk.num_rounds
    return scan.last + 1 if seen >= enough else None


def _every(period: int) -> int:
    """For a client that takes part in every `period`-th round: after n = k·period + r rounds it is behind by r/n.

    The last n with r/n above 1 % is the largest over r of r + k·period below 100·r.
    """
    if period >= 100:
        return 99 * period  # one short of the hundredth contribution's round, k = 98 and r = period − 1
    best = 0
    for behind in range(period - 1, 0, -1):
        if 100 * behind <= best:
            break
        best = max(best, behind + period * ((99 * behind - 1) // period))
    return best + 1


def _enough(run: LongRun) -> int | None:
    """A number of rounds from which on no share can be off by more than 1 %: 100·max_i |c_i(n) − s_i n| / s_i."""
    share = run.participation.share
    if isinstance(run.rule, WaitForNext) and isinstance(run.times, FixedTimes):
        # At time t client i has ⌊t/τ_i⌋ contributions or, inside a tie, one less; so c_i(n) − s_i n is in [−1, s_i M].
        return math.ceil(100 * max(1.0 / float(share.min()), len(share))) + 1
    cycle = run.observation.cycle
    if cycle is None:
        return None
    worst = _Worst(share)
    for chunk in run.record.rounds(cycle.start + cycle.length):
        worst.note(chunk)
    return math.ceil(100 * worst.ratio(cycle.start + cycle.length)) + 1


class _Contributions:
    """Walks a timeline and keeps count of each client's contributions."""

    def __init__(self, share: Floats) -> None:
        self.share = share
        self.count = np.zeros(len(share), dtype=np.int64)

    def add(self, chunk: Timeline) -> tuple[I64, I64, I64]:
        """Of each contribution: its client, the client's earlier contributions, the rounds done before this one."""
        order, counts, place = by_client(chunk.client, len(self.share))
        client = chunk.client[order].astype(np.int64)
        before = self.count[client] + place
        self.count += counts
        return client, before, chunk.round_of_update[order]


class _Worst(_Contributions):
    """max over clients and rounds of |c_i(n) − s_i n| / s_i; its extremes lie just before and after contributions."""

    _seen = 0.0

    def note(self, chunk: Timeline) -> None:
        client, before, rounds = self.add(chunk)
        behind = rounds - before / self.share[client]
        ahead = (before + 1) / self.share[client] - (rounds + 1)
        self._seen = max(self._seen, float(behind.max(initial=0.0)), float(ahead.max(initial=0.0)))

    def ratio(self, rounds: int) -> float:
        return max(self._seen, float(np.max(rounds - self.count / self.share)))


class _LastWrong(_Contributions):
    """The last n at which some client's share is off by more than 1 %.

    With c contributions after n rounds there are too few if c < 0.99 s n, which lasts until the next contribution, and
    too many if c > 1.01 s n, which lasts until n reaches c/(1.01 s). Near equality rationals decide.
    """

    def __init__(self, share: Floats, exact: tuple[Fraction, ...] | None) -> None:
        super().__init__(share)
        self._exact = exact
        self.last = 0

    def note(self, chunk: Timeline) -> None:
        client, before, rounds = self.add(chunk)
        lack = 0.99 * self.share[client] * rounds - before
        for k in np.flatnonzero(np.abs(lack) < 1e-9 * (before + 1)).tolist():
            lack[k] = float((1 - TOLERANCE) * self._rational(int(client[k])) * int(rounds[k]) - int(before[k]))
        self.last = max(self.last, int(rounds[lack > 0].max(initial=0)))
        limit = (before + 1) / (1.01 * self.share[client])
        wrong = np.ceil(limit) - 1
        for k in np.flatnonzero(np.abs(limit - np.rint(limit)) < 1e-9 * limit).tolist():
            wrong[k] = math.ceil((int(before[k]) + 1) / ((1 + TOLERANCE) * self._rational(int(client[k])))) - 1
        self.last = max(self.last, int(wrong[wrong > rounds].max(initial=0)))

    def _rational(self, client: int) -> Fraction:
        return self._exact[client] if self._exact is not None else Fraction(float(self.share[client]))
