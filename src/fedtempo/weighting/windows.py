"""W, the rounds after which every client has had its share (Assumption 6), exactly and in practice.

FedAvg 1;   asynchronous Σ ν/τ_i with ν = lcm(τ_i);   FedFix lcm(⌈τ_i/Δt⌉);   FedBuff its cycle's length
practical: the smallest n such that for every n' ≥ n the first n' rounds give each client its share within 1 %
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fedtempo.clock.cycle import MAX_UPDATES
from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import Floats
from fedtempo.weighting.long_run import LongRun

TOLERANCE = Fraction(1, 100)


def window(run: LongRun) -> int | None:
    """W: closed form, else the length of the limit cycle."""
    run = run.after_last_change
    closed = run.closed
    if closed.window is not None:
        return closed.window
    if run.times.random or closed.no_window:
        return None
    cycle = run.observation.cycle
    return None if cycle is None else cycle.length


def practical_window(run: LongRun) -> int | None:
    """The practical window; None under random participation, or where it would take too long to be sure of it."""
    run = run.after_last_change
    closed = run.closed
    if closed.practical_window is not None:
        return closed.practical_window
    if run.times.availability is not None or run.times.random or run.rule.random:
        return None
    if not run.rule.returns_to_contributors or (closed.no_window and closed.count_error is None):
        return None
    return run.remembered("practical window", lambda: _counted(run))


def _counted(run: LongRun) -> int | None:
    """The practical window, counted along the rounds."""
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


def _enough(run: LongRun) -> int | None:
    """A number of rounds from which on no share can be off by more than 1 %: 100·max_i |c_i(n) − s_i n| / s_i."""
    if run.closed.count_error is not None:
        return math.ceil(100 * run.closed.count_error) + 1
    cycle = run.observation.cycle
    if cycle is None:
        return None
    worst = _Worst(run.participation.share)
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
