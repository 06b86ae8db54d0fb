"""Guarantees over lower bounds: against the formulas by enumeration, in the limits, and as properties."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.theory.optimality import (
    asynchronous,
    asynchronous_over_optimal,
    least_heterogeneous,
    least_homogeneous,
    synchronous,
    synchronous_over_optimal,
)

F80 = ft.FixedTimes.spread(10, 80).mean_time
NOISE = [0.0, 1e-9, 0.1, 1.0, 3.0, 10.0, 1e3, 1e9]


def drawn(case: int) -> tuple[list[Fraction], Fraction]:
    """Times in no order, and some noise."""
    draw = random.Random(f"optimality {case}")
    tau = [Fraction(draw.randint(1, 60), draw.randint(1, 9)) for _ in range(draw.randint(1, 12))]
    return tau, Fraction(draw.randint(0, 400), draw.randint(1, 20))


def floats(tau: list[Fraction]) -> np.ndarray:
    return np.array([float(t) for t in tau])


# -- ten clients of F80


def test_f80_heterogeneous_from_1_to_five_thirds() -> None:
    found = synchronous_over_optimal(F80)
    assert found.no_noise.heterogeneous == pytest.approx(1)
    assert found.all_noise.heterogeneous == pytest.approx(1 / 0.6)


def test_f80_homogeneous_from_5_to_2_13() -> None:
    found = synchronous_over_optimal(F80)
    assert found.no_noise.homogeneous == pytest.approx(5)
    assert found.all_noise.homogeneous == pytest.approx(2.13, abs=0.005)


def test_f80_asynchronous_is_optimal_once_noise_is_all() -> None:
    found = asynchronous_over_optimal(F80)
    assert found.no_noise.heterogeneous is None
    assert found.all_noise.heterogeneous is None
    assert found.no_noise.homogeneous == pytest.approx(5 / 2.128, abs=0.005)
    assert found.all_noise.homogeneous == pytest.approx(1)


# -- the formulas, in rationals and by enumeration


@pytest.mark.parametrize("case", range(100))
def test_the_four_times_are_the_formulas(case: int) -> None:
    tau, s = drawn(case)
    n, fastest_first = len(tau), sorted(tau)
    by_number = []
    for m in range(1, n + 1):
        harmonic = m / sum((1 / t for t in fastest_first[:m]), start=Fraction(0))
        by_number.append(harmonic * (1 + s / m))
    formulas = {
        least_homogeneous: min(by_number),
        least_heterogeneous: max(tau) + sum(tau) / n * s / n,
        synchronous: max(tau) * (1 + s / n),
        asynchronous: by_number[-1],
    }
    for function, expected in formulas.items():
        assert function(floats(tau)).time(float(s)) == pytest.approx(float(expected), rel=1e-12), function.__name__


@pytest.mark.parametrize("case", range(60))
def test_no_choice_of_clients_is_faster_than_the_fastest_ones(case: int) -> None:
    """Any set S of clients: (|S|/Σ_S 1/τ)(1 + s/|S|) = (|S| + s)/Σ_S 1/τ."""
    tau, s = drawn(case)
    tau = tau[:8]
    subsets = ([t for i, t in enumerate(tau) if bits >> i & 1] for bits in range(1, 1 << len(tau)))
    best = min((len(some) + s) / sum((1 / t for t in some), start=Fraction(0)) for some in subsets)
    assert least_homogeneous(floats(tau)).time(float(s)) == pytest.approx(float(best), rel=1e-12)


@pytest.mark.parametrize("case", range(60))
def test_the_ratio_is_that_of_the_times(case: int) -> None:
    tau, s = drawn(case)
    times, s = floats(tau), float(s)
    sync, other = synchronous_over_optimal(times, s), asynchronous_over_optimal(times, s)
    apart, alike = least_heterogeneous(times).time(s), least_homogeneous(times).time(s)
    assert (sync.noise, other.noise) == (s, s)
    assert sync.at_noise == pytest.approx((synchronous(times).time(s) / apart, synchronous(times).time(s) / alike))
    assert other.at_noise.heterogeneous is None
    assert other.at_noise.homogeneous == pytest.approx(asynchronous(times).time(s) / alike)


# -- limits


@pytest.mark.parametrize("case", range(60))
def test_without_noise_and_with_noise_alone(case: int) -> None:
    tau, _ = drawn(case)
    times, n = floats(tau), len(tau)
    harmonic = n / (1 / times).sum()
    sync, other = synchronous_over_optimal(times), asynchronous_over_optimal(times)
    assert sync.no_noise == pytest.approx((1, times.max() / times.min()))
    assert sync.all_noise == pytest.approx((times.max() / times.mean(), times.max() / harmonic))
    assert other.no_noise.homogeneous == pytest.approx(harmonic / times.min())
    assert other.all_noise.homogeneous == pytest.approx(1)
    for method, (near, far) in ((synchronous_over_optimal, (1e-12, 1e15)), (asynchronous_over_optimal, (1e-12, 1e15))):
        ends = method(times)
        assert method(times, near).at_noise.homogeneous == pytest.approx(ends.no_noise.homogeneous)
        assert method(times, far).at_noise.homogeneous == pytest.approx(ends.all_noise.homogeneous)


def test_noise_without_end_is_no_trouble() -> None:
    sync = synchronous(F80)
    for s in (1e200, 1e300, 1.7e308, math.inf):
        assert sync.over(least_heterogeneous(F80), s) == pytest.approx(1 / 0.6)


# -- properties


@pytest.mark.parametrize("case", range(100))
def test_nothing_is_better_than_optimal(case: int) -> None:
    tau, s = drawn(case)
    times = floats(tau)
    for noise in (*NOISE, float(s), math.inf):
        alike = least_homogeneous(times)
        assert synchronous(times).over(least_heterogeneous(times), noise) >= 1 - 1e-12
        assert synchronous(times).over(alike, noise) >= 1 - 1e-12
        assert asynchronous(times).over(alike, noise) >= 1 - 1e-12
        assert least_heterogeneous(times).over(alike, noise) >= 1 - 1e-12, "data apart are never easier"


@pytest.mark.parametrize("case", range(60))
def test_the_two_ends_are_the_extremes(case: int) -> None:
    tau, _ = drawn(case)
    times = floats(tau)
    noise = [0.0, *np.geomspace(1e-4, 1e6, 60), math.inf]
    apart = np.array([synchronous(times).over(least_heterogeneous(times), s) for s in noise])
    alike = np.array([synchronous(times).over(least_homogeneous(times), s) for s in noise])
    asyn = np.array([asynchronous(times).over(least_homogeneous(times), s) for s in noise])
    assert (np.diff(apart) >= -1e-12).all(), "rises"
    assert (np.diff(alike) <= 1e-12 * alike[0]).all(), "falls"
    assert (np.diff(asyn) <= 1e-12 * asyn[0]).all(), "falls"


@pytest.mark.parametrize("noise", NOISE)
def test_equal_clients_and_one_client_are_optimal_either_way(noise: float) -> None:
    for times in (np.full(7, 0.3), np.array([2.5])):
        assert synchronous_over_optimal(times, noise).at_noise == pytest.approx((1, 1))
        assert asynchronous_over_optimal(times, noise).at_noise.homogeneous == pytest.approx(1)


def test_the_unit_of_time_and_the_order_of_clients_do_not_matter() -> None:
    mixed = F80[np.random.default_rng(0).permutation(10)]
    for method in (synchronous_over_optimal, asynchronous_over_optimal):
        usual, other = method(F80, 5.0), method(mixed * 1e6, 5.0)
        for a, b in ((usual.no_noise, other.no_noise), (usual.all_noise, other.all_noise)):
            assert a == pytest.approx(b)
        assert usual.at_noise == pytest.approx(other.at_noise)
