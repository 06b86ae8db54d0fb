"""Who finishes first, and when: against enumeration, inclusion and exclusion, and integrals in pieces."""

import math
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import fedtempo as ft
from fedtempo.clock.races import MAX_CLIENTS, expected_maximum, exponential_race

cases = settings(derandomize=True, deadline=None, max_examples=60)


def _means(rates):
    return np.array([float(1 / Fraction(rate)) for rate in rates])


# --- the race of exponential clients


def _by_orders(rates, places):
    """Over every order of the first `places` finishers: P(order) = Π rate / (sum of the rates still running)."""
    shares, duration = [Fraction(0)] * len(rates), Fraction(0)
    for order in permutations(range(len(rates)), places):
        left, chance, lasts = sum(rates), Fraction(1), Fraction(0)
        for client in order:
            chance *= Fraction(rates[client], left)
            lasts += Fraction(1, left)
            left -= rates[client]
        duration += chance * lasts
        for client in order:
            shares[client] += chance
    return shares, duration


def _by_groups(sizes, rates, places):
    """Clients of few kinds: a walk over how many of each kind have finished."""
    now, duration = {(0,) * len(sizes): 1.0}, 0.0
    for _ in range(places):
        after: dict[tuple[int, ...], float] = {}
        for done, chance in now.items():
            paces = [(n - d) * r for n, d, r in zip(sizes, done, rates, strict=True)]
            duration += chance / sum(paces)
            for kind, pace in enumerate(paces):
                if pace:
                    following = (*done[:kind], done[kind] + 1, *done[kind + 1 :])
                    after[following] = after.get(following, 0.0) + chance * pace / sum(paces)
        now = after
    shares = [sum(c * done[k] for done, c in now.items()) / n for k, n in enumerate(sizes)]
    return shares, duration


@cases
@given(st.lists(st.integers(min_value=1, max_value=1000), min_size=1, max_size=5))
def test_the_race_is_the_sum_over_finishing_orders(rates):
    for places in range(1, len(rates) + 1):
        shares, duration = exponential_race(_means(rates), places)
        expected, lasts = _by_orders(rates, places)
        assert shares == pytest.approx([float(s) for s in expected], rel=1e-11)
        assert duration == pytest.approx(float(lasts), rel=1e-11)


@pytest.mark.parametrize("places", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("rates", [[1, 2, 3, 4, 5, 6], [1000, 1, 1, 1, 1, 1], [1000, 1000, 1000, 1, 10, 100], [7] * 6])
def test_the_race_of_six_is_the_sum_over_finishing_orders(rates, places):
    shares, duration = exponential_race(_means(rates), places)
    expected, lasts = _by_orders(rates, places)
    assert shares == pytest.approx([float(s) for s in expected], rel=1e-11)
    assert duration == pytest.approx(float(lasts), rel=1e-11)


@pytest.mark.parametrize("spread", [10**5, 10**6, 10**9])
@pytest.mark.parametrize("places", [1, 2, 3, 4])
def test_the_race_holds_however_far_the_rates_are_apart(spread, places):
    rates = [1, 2, spread // 3, spread]
    shares, duration = exponential_race(_means(rates), places)
    expected, lasts = _by_orders(rates, places)
    assert shares == pytest.approx([float(s) for s in expected], rel=1e-9)
    assert duration == pytest.approx(float(lasts), rel=1e-9)


def test_the_first_place_goes_by_rate_alone():
    rates = np.geomspace(1, 1000, 60)
    shares, duration = exponential_race(1 / rates, 1)
    assert shares == pytest.approx(rates / rates.sum(), rel=1e-11)
    assert duration == pytest.approx(1 / rates.sum(), rel=1e-11)


@pytest.mark.parametrize("places", [1, 2, 7, 30, 45, 59, 60])
def test_sixty_clients_share_the_places(places):
    rates = np.geomspace(1, 1000, 60)
    shares, _ = exponential_race(1 / rates, places)
    assert shares.sum() == pytest.approx(places, rel=1e-12)
    assert (shares >= 0).all()
    assert (shares <= 1 + 1e-12).all()
    assert (np.diff(shares) > -1e-12).all()  # the faster, the likelier


@pytest.mark.parametrize("places", [1, 2, 13, 30, 47, 59, 60])
def test_sixty_clients_of_three_kinds_race_as_a_walk_over_kinds(places):
    sizes, rates = (20, 25, 15), (1.0, 40.0, 1000.0)
    shares, duration = exponential_race(1 / np.repeat(rates, sizes), places)
    expected, lasts = _by_groups(sizes, rates, places)
    assert shares == pytest.approx(np.repeat(expected, sizes), rel=1e-9)
    assert duration == pytest.approx(lasts, rel=1e-9)


@pytest.mark.parametrize("places", [1, 3, 8])
def test_equal_clients_share_equally(places):
    shares, duration = exponential_race(np.full(8, 2.5), places)
    assert shares == pytest.approx(places / 8, rel=1e-12)
    assert duration == pytest.approx(2.5 * sum(1 / (8 - k) for k in range(places)), rel=1e-12)


# --- the expected maximum


def _maximum_of_lognormals(means, sigma):
    """∫ P(max > t) dt with t = e^x, in pieces of width 1."""
    shift = np.log(means) - sigma**2 / 2

    def inside(x):
        return -math.expm1(stats.norm.logcdf((x - shift) / sigma).sum()) * math.exp(x)

    low, high = math.floor(shift.min() - 40), math.ceil(shift.max() + sigma**2 + 12 * sigma)
    return sum(integrate.quad(inside, x, x + 1, epsabs=1e-13, epsrel=1e-10)[0] for x in range(low, high))


def _maximum_of_uniforms(low, high):
    """∫ P(max > t) dt, exactly: between two kinks the integrand is a polynomial."""
    kinks = sorted({Fraction(0), *low, *high})
    total = Fraction(0)
    for begin, end in pairwise(kinks):
        done = np.polynomial.Polynomial([Fraction(1)])
        for a, b in zip(low, high, strict=True):
            if end <= a:
                done = np.polynomial.Polynomial([Fraction(0)])
            elif end <= b:
                done = done * np.polynomial.Polynomial([-a / (b - a), 1 / (b - a)])
        area = sum(
            (c * (end ** (k + 1) - begin ** (k + 1)) / (k + 1) for k, c in enumerate(done.coef.tolist())), Fraction(0)
        )
        total += end - begin - area
    return total


@cases
@given(st.lists(st.integers(min_value=1, max_value=1000), min_size=1, max_size=8))
def test_the_slowest_of_exponentials_is_inclusion_and_exclusion(rates):
    expected = sum(
        ((-1) ** (size + 1) * Fraction(1, sum(chosen)))
        for size in range(1, len(rates) + 1)
        for chosen in combinations(rates, size)
    )
    times = ft.ExponentialTimes([Fraction(1, rate) for rate in rates])
    assert expected_maximum(times) == pytest.approx(float(expected), rel=1e-11)


def test_the_slowest_of_equal_exponentials_is_the_harmonic_sum():
    times = ft.ExponentialTimes([3] * 200)
    assert expected_maximum(times) == pytest.approx(3 * sum(1 / k for k in range(1, 201)), rel=1e-11)


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("means", [["1"], ["1", "2", "5"], ["0.01", "1", "1"], ["1"] * 40])
def test_the_slowest_of_lognormals_is_the_integral(sigma, means):
    expected = _maximum_of_lognormals(np.array([float(m) for m in means]), sigma)
    assert expected_maximum(ft.LogNormalTimes(means, sigma=sigma)) == pytest.approx(expected, rel=1e-6)


times_of = st.builds(Fraction, st.integers(min_value=1, max_value=50), st.just(10))


@cases
@given(st.lists(st.tuples(times_of, times_of), min_size=1, max_size=6))
def test_the_slowest_of_uniforms_is_the_integral(pairs):
    low, high = [a for a, _ in pairs], [a + width for a, width in pairs]
    expected = float(_maximum_of_uniforms(low, high))
    assert expected_maximum(ft.UniformTimes(low, high)) == pytest.approx(expected, rel=1e-6)


def test_the_slowest_of_narrow_uniforms_far_apart_is_the_last_one():
    times = ft.UniformTimes(["1", "100"], ["1.001", "100.001"])
    assert expected_maximum(times) == pytest.approx(100.0005, rel=1e-6)


@cases
@given(st.lists(st.lists(times_of, min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_slowest_of_recorded_times_is_the_mean_over_all_combinations(rows):
    combinations_of_all = list(product(*rows))
    expected = sum(map(max, combinations_of_all)) / len(combinations_of_all)
    times = ft.TraceTimes(rows, mode="bootstrap")
    assert expected_maximum(times) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    "times",
    [
        ft.ExponentialTimes(["7/3"]),
        ft.LogNormalTimes(["7/3"], sigma=1),
        ft.LogNormalTimes(["7/3"], sigma=3),
        ft.UniformTimes([2], ["8/3"]),
    ],
)
def test_the_slowest_of_one_is_its_mean(times):
    assert expected_maximum(times) == pytest.approx(7 / 3, rel=1e-6)


@pytest.mark.parametrize(
    "times",
    [
        ft.ExponentialTimes(["1", "0.2", "3"]),
        ft.LogNormalTimes(["1", "0.2", "3"], sigma=0.7),
        ft.UniformTimes(["1", "0.2", "1/2"], ["2", "2", "3"]),
        ft.TraceTimes([[1, 2, 5], ["1/2", 3], [4]], mode="bootstrap"),
    ],
)
def test_drawn_jobs_have_the_expected_maximum(times):
    drawn = times.draw(np.arange(3)[:, None], np.arange(40_000), seed=31).max(axis=0) * float(times.unit)
    assert abs(drawn.mean() - expected_maximum(times)) <= 4 * drawn.std() / math.sqrt(len(drawn)) + 1e-6


def test_too_many_clients_are_not_integrated():
    assert expected_maximum(ft.ExponentialTimes([1] * MAX_CLIENTS)) == pytest.approx(
        sum(1 / k for k in range(1, MAX_CLIENTS + 1)), rel=1e-9
    )
    assert expected_maximum(ft.ExponentialTimes([1] * (MAX_CLIENTS + 1))) is None
