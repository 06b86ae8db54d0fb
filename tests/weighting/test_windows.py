"""Exact and practical windows, against dense counting."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.importance import Importance
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.windows import practical_window, window


def long_run(scheme: ft.Scheme, times) -> LongRun:
    return LongRun(scheme.waiting, times, Importance(None, times.num_clients))


def dense(scheme: ft.Scheme, times, shares: tuple[Fraction, ...], rounds: int) -> int:
    """The last n up to `rounds` with a share off by more than 1 %, plus one, in rationals."""
    counts = [0] * len(shares)
    last = 0
    for n, closed in enumerate(ft.timeline(scheme, times, rounds=rounds).rounds, start=1):
        for i in closed.participants:
            counts[i] += 1
        if any(abs(Fraction(c, n) - s) > s / 100 for c, s in zip(counts, shares, strict=True)):
            last = n
    return last + 1


def test_the_papers_case() -> None:
    run = long_run(ft.AsyncFedAvg(), ft.FixedTimes.spread(clients=10, slowdown=80))
    assert window(run) == 79_656_329_334
    assert practical_window(run) == 1549


@pytest.mark.parametrize("case", range(30))
def test_practical_window_by_dense_counting(case: int) -> None:
    draw = random.Random(f"practical {case}")
    times = ft.FixedTimes([draw.randint(1, 6) for _ in range(draw.randint(1, 4))])
    for scheme in (
        ft.FedAvg(),
        ft.AsyncFedAvg(),
        ft.FedFix(Fraction(draw.randint(1, 6), draw.randint(1, 3))),
        ft.FedBuff(draw.randint(1, times.num_clients)),
    ):
        run = long_run(scheme, times)
        assert run.participation.exact is not None
        found = practical_window(run)
        assert found is not None
        assert found == dense(scheme, times, run.participation.exact, 2 * found + 1500), (scheme, times)


@pytest.mark.parametrize("period", [1, 2, 3, 7, 50, 101, 250, 1000])
def test_one_slow_client_under_fedfix(period: int) -> None:
    times = ft.FixedTimes([period, 1])
    wrong = [
        n for n in range(1, 100 * period + 1) if abs(Fraction(n // period, n) - Fraction(1, period)) * 100 * period > 1
    ]
    assert practical_window(long_run(ft.FedFix(1), times)) == max(wrong, default=0) + 1


def test_memoryless_clients_need_no_window() -> None:
    times = ft.ExponentialTimes([1, 2, 3])
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(1), ft.FedBuff(2)):
        assert window(long_run(scheme, times)) == 1
    assert window(long_run(ft.AsyncFedAvg(), ft.UniformTimes([1], [2]))) is None


def test_a_window_too_long_to_write_is_not_worked_out() -> None:
    primes = [p for p in range(2, 12_000) if all(p % d for d in range(2, int(p**0.5) + 1))]
    assert window(long_run(ft.AsyncFedAvg(), ft.FixedTimes(primes))) is None
    assert np.isfinite(long_run(ft.AsyncFedAvg(), ft.FixedTimes(primes)).participation.share).all()
