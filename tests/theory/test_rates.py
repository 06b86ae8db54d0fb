"""How fast Theorem 3's terms fall, scheme by scheme; N against timelines; Corollary 2; rates of the literature."""

from fractions import Fraction
from math import ceil, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft
import fedtempo.theory as theory
from fedtempo.problems import quadratics
from fedtempo.theory.ceiling import Setting
from fedtempo.theory.theorems import Steps, theorem_1, window_term

cases = settings(derandomize=True, deadline=None, max_examples=60)
D, SIGMA, R = 2.0, 0.7, 0.3


def _terms(*, n, k=1, alpha=0.0, beta=0.0, tau=0.0, window=1, disparity=R, sigma=SIGMA, shared=SIGMA, rate=None):
    """Theorem 3 with L = ρ = B = q = 1: R, Σ_1, Σ_2, α, β, τ and W as given, and η_l = 1/√(KN) unless given."""
    steps = Steps(1 / sqrt(k * n) if rate is None else rate, k, None, 1.0)
    law = SimpleNamespace(num_rounds=n, expected_weight=np.ones(1), max_total_weight=1.0)
    left = SimpleNamespace(residual=disparity, sigma_1=sigma, sigma_2=shared, run_optimum=np.zeros(1), expected=law)
    setting = Setting(1.0, k, 1.0, alpha, beta, tau, 1.0, 1.0)
    one = theorem_1(left, setting, steps, np.array([sqrt(D)]), printed=True)
    return {
        "F": one.start,
        "K": one.drift,
        "alpha": one.joint,
        "beta": one.spread,
        "W": window_term(left, steps, 1.0, window),
    }


def _slope(value, low=1e40, high=1e60):
    """The power of its argument with which a value grows."""
    return float(np.log(value(high) / value(low)) / np.log(high / low))


# --- ε of the schemes (sections 4.2 to 4.4, appendix C)


def test_the_terms_fall_with_the_rounds_as_printed():
    """At η_l = 1/√(KN): ε_F, ε_W and what is not delayed as 1/√N, ε_K and what is delayed as 1/N."""
    for name, chosen, power in (
        ("F", {}, -0.5),
        ("W", {"window": 7}, -0.5),
        ("K", {"k": 5}, -1.0),
        ("alpha", {"alpha": 1.0}, -0.5),
        ("beta", {"beta": 2.0}, -0.5),
    ):
        assert _slope(lambda n, name=name, chosen=chosen: _terms(n=n, **chosen)[name]) == pytest.approx(power), name
    for name in ("alpha", "beta"):
        given = {"alpha": 1.0, "beta": 2.0}

        def delayed(n, name=name, given=given):
            return _terms(n=n, tau=1e9, **given)[name] - _terms(n=n, **given)[name]

        assert _slope(delayed, 1e2, 1e6) == pytest.approx(-1.0, abs=1e-3)


def test_the_window_term_grows_with_the_local_steps_and_drift_has_the_residual():
    """ε_W at η_l = 1/√(KN) is (W − 1)√(K/N): the printed (W − 1)/√(KN) lacks K. ε_K has R beside Σ."""
    for k in (2, 10):
        more, one = (_terms(n=400, k=steps, window=7) for steps in (k, 1))
        assert more["W"] / one["W"] == pytest.approx(sqrt(k))
        assert more["F"] / one["F"] == pytest.approx(1 / sqrt(k))
        drift = [_terms(n=400, k=steps, sigma=0.0)["K"] for steps in (k, 2)]
        assert drift[1] > 0
        assert drift[0] / drift[1] == pytest.approx(2 * (k - 1) ** 2 / k)
    assert _terms(n=400)["K"] == 0


def test_delayed_terms_of_asynchronous_rounds_grow_with_the_square_of_the_clients():
    """τ grows with M, so that the fourth term grows as M²; FedFix's τ has no M in it."""

    def delayed(clients):
        return _terms(n=400, beta=5.0, tau=5.0 * clients)["beta"] - _terms(n=400, beta=5.0)["beta"]

    assert delayed(40) == pytest.approx(16 * delayed(10))


def test_one_client_leaves_the_start_and_the_noise():
    """Centralized learning: ‖θ⁰ − θ*‖²/(η_l N) and 6η_l Σ; its local steps are serial, so K = 1 and N counts them."""
    terms = _terms(n=400, alpha=1.0, disparity=0.0, rate=0.01)
    assert terms == pytest.approx({"F": D / (0.01 * 400), "K": 0, "alpha": 6 * 0.01 * SIGMA, "beta": 0, "W": 0})


@cases
@given(st.integers(2, 30), st.integers(1, 6), st.floats(1, 9), st.floats(0, 3), st.floats(0.01, 3), st.integers(1, 50))
def test_at_the_same_number_of_rounds_fedavg_has_the_smallest_bound(clients, steps, ratio, disparity, sigma, window):
    """Term by term; and FedFix is below asynchronous, up to a factor 2, for Δt ≥ τ_fastest and the same window."""
    given, slowest = {"n": 500, "k": steps, "sigma": sigma}, ceil(ratio)
    calm = _terms(**given, disparity=0.0, alpha=1.0, shared=sigma / clients)
    given |= {"disparity": disparity, "window": window}
    fix = _terms(**given, alpha=1.0, tau=slowest, shared=slowest * sigma / clients)
    eager = _terms(**given, beta=ratio, tau=ratio * clients)
    assert calm["F"] == fix["F"] == eager["F"]
    assert calm["K"] <= min(fix["K"], eager["K"])  # without R
    assert calm["alpha"] <= fix["alpha"] <= 2 * eager["beta"]
    assert sum(calm.values()) <= min(sum(fix.values()), sum(eager.values()))


def _in_the_same_time(problem, values, until, steps):
    """(N, terms) of asynchronous FedAvg (α = 0) and of FedAvg up to a time: η_l = 10⁻³/√(KN), η_g = 0.01, B = 1."""
    found = []
    for scheme, alpha in ((ft.AsyncFedAvg(), 0.0), (ft.FedAvg(), 1.0)):
        rounds = int(until * sum(1 / Fraction(t) for t in values) if alpha == 0 else until / max(values))
        local = ft.LocalSGD(steps=steps, lr=1e-3 / sqrt(steps * rounds), batch_size=None)
        clients = ft.FixedTimes(values)
        ends = theory.bound(
            problem,
            scheme=scheme,
            times=clients,
            local=local,
            server_lr=0.01,
            until=until,
            co_participation=alpha,
            gradient_bound=1.0,
        )
        assert ends.expected.num_rounds == rounds
        found.append((rounds, ends.terms))
    return found


@pytest.mark.parametrize("values", [[1, 1], [1, 2, 4], [1, 1, 1, 1, 8]], ids=str)
def test_in_the_same_time_the_first_two_terms_are_lower_and_the_last_ones_stay_higher(values):
    """ε_F falls as 1/√N, ε_K as 1/N from at most ρ = N/(M N_FedAvg) times FedAvg's where curvatures are equal.

    Caught: ε_F, ε_K or ε_W with another power of N or η̃; ε_W or ε_β left out.
    """
    size = len(values)
    problem = quadratics(size, dimension=2, heterogeneity=2.0, convexity=1.0, rows=1, seed=3)
    gaps = []
    for until in (4 * 10**4, 4 * 10**6):
        (n, eager), (calm_n, calm) = _in_the_same_time(problem, values, until, 4)
        assert n >= size * calm_n
        assert eager["ε_F"] / calm["ε_F"] == pytest.approx(sqrt(calm_n / n), rel=1e-9)
        assert eager["ε_F"] <= calm["ε_F"] / sqrt(size) * (1 + 1e-9)
        assert eager["ε_K"] <= calm["ε_K"] / size * 1.01
        last, calm_last = (t["ε_α"] + t["ε_β"] + t["ε_W"] for t in (eager, calm))
        assert last > sqrt(size) * calm_last
        assert eager["ε_W"] > 0 == calm["ε_W"]
        gaps.append((eager["ε_F"], eager["ε_K"], eager["ε_W"]))
    assert [x / y for x, y in zip(*gaps, strict=True)] == pytest.approx([10, 100, 10], rel=1e-3)


def test_with_flat_directions_the_second_term_stays_higher_in_the_same_time():
    """ε_K has R beside Σ, which section 4.3 leaves out: along flat directions R ≫ Σ. Caught: no R."""
    problem = quadratics(centers=[[2.0, 0.0], [0.0, 0.0]], curvatures=[[0.05, 1.0]] * 2, rows=1)
    (n, eager), (calm_n, calm) = _in_the_same_time(problem, [1, 1], 10**5, 4)
    assert n == 2 * calm_n
    assert eager["ε_K"] > 9 * calm["ε_K"]
    assert eager["ε_F"] < calm["ε_F"]


def test_fedfix_with_a_long_wait_has_the_bound_of_fedavg():
    clients = ft.FixedTimes([1, 2, 2])
    calm, fix = (theory.expected_from_scheme(scheme, clients, rounds=50) for scheme in (ft.FedAvg(), ft.FedFix(2)))
    for name in ("co_participation", "weight_spread", "max_delay", "window"):
        assert getattr(fix, name) == getattr(calm, name)
    assert fix.weights == pytest.approx(calm.weights)


# --- rounds in time


times = st.lists(st.builds(Fraction, st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=5)


@cases
@given(times, st.builds(Fraction, st.integers(24, 200), st.integers(1, 3)))
def test_rounds_in_time_are_those_of_the_timeline(values, until):
    clients = ft.FixedTimes(values)
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("3/2")):
        assert theory.rounds_in(scheme, clients, until) == ft.timeline(scheme, clients, until=until).num_rounds


def test_mean_rounds_in_time_where_they_are_drawn():
    drawn = ft.ExponentialTimes([1, 2, 3])
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedBuff(2), ft.UniformSampling(2)):
        counts = [ft.timeline(scheme, drawn, until=300, seed=s).num_rounds for s in range(40)]
        error = np.std(counts) / sqrt(39)
        assert abs(np.mean(counts) - theory.rounds_in(scheme, drawn, 300)) < 5 * error + 1  # the last round is cut off


# --- sampling by a criterion in a part of the window


@cases
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.floats(0.01, 0.99), st.data())
def test_the_rest_of_a_window_makes_up_for_the_criterion(parts, share, data):
    """A `share` of the rounds takes the chosen alone; the others can make up for it if the chosen have so much p_i."""
    p = np.array(parts) / sum(parts)
    chosen = data.draw(st.sets(st.integers(0, len(parts) - 1), min_size=1))
    taken = np.isin(np.arange(len(parts)), list(chosen))
    criterion = np.where(taken, p, 0.0) / p[taken].sum()
    rest = (p - share * criterion) / (1 - share)
    law = theory.Expected(np.stack([criterion, rest]), np.array([share, 1 - share]), 1, 1.0, 0.0, 0, 2, "stationary")
    assert law.expected_weight == pytest.approx(p)
    assert law.total == pytest.approx([1, 1])
    if abs(share - p[taken].sum()) > 1e-9:
        assert (rest >= -1e-12).all() == (share < p[taken].sum())


# --- Corollary 2


def _bound(n, a, b, c):
    """Theorem 3's terms in orders for K = 1."""
    rate, window, tau = n**-c, n**a, n**b
    return 1 / (rate * n) + rate + rate**2 * tau**2 + rate * window


@cases
@given(st.floats(0, 1.2), st.floats(0, 1.2), st.floats(-0.2, 1.2))
def test_corollary_2_says_when_the_bound_vanishes(a, b, c):
    holds = theory.converges(a, b, c)
    slope = theory.slowest_exponent(a, b, c)
    assert bool(holds) == (slope < 0) == (max(a, b) < c < 1 and c > 0)
    assert len(holds.failed) == (a >= c) + (b >= c) + (c >= 1) + (c <= 0)
    far = np.log(_bound(1e60, a, b, c) / _bound(1e50, a, b, c)) / np.log(1e10)
    assert far == pytest.approx(slope, abs=0.08)


@cases
@given(st.floats(0, 0.95), st.floats(0, 0.95))
def test_the_best_exponent_is_that_of_a_grid(a, b):
    best = theory.best_exponent(a, b)
    assert theory.converges(a, b, best)
    assert theory.slowest_exponent(a, b, best) == pytest.approx(best - 1)
    grid = min(theory.slowest_exponent(a, b, c) for c in np.linspace(0, 1, 2001))
    assert theory.slowest_exponent(a, b, best) <= grid + 1e-12


def test_a_window_of_all_rounds_never_converges():
    assert not any(theory.converges(1.0, 0.0, c) for c in np.linspace(0, 2, 41))
    assert "a < c" in theory.converges(1.0, 0.0, 0.5).failed[0]
    with pytest.raises(ft.InputError, match="below 1"):
        theory.best_exponent(1.0, 0.0)


# --- the rates compared with the literature (section 4.3)


def _general(n, rate, tau, window):
    """ε of asynchronous FedAvg for K = 1 and β = 1."""
    return sum(_terms(n=n, rate=rate, beta=1.0, tau=tau, window=window).values())


@pytest.mark.parametrize("b", [0.0, 0.25, 0.5, 0.75])
def test_windows_like_delays_and_a_rate_of_one_over_root_tau_n_give_root_tau_over_n(b):
    """W = O(τ), η_l ∝ 1/√(τN): √(τ/N). Holds."""
    slope = _slope(lambda n: _general(n, 1 / sqrt(n**b * n), n**b, 3 * n**b))
    assert slope == pytest.approx((b - 1) / 2, abs=0.02)


def test_root_n_iid_clients_do_not_give_one_over_root_n():
    """M = O(√N), iid, K = 1, said to give O(1/√N): the fourth term is M²/N, so that M = O(N^{1/4}) is what it takes."""

    def bound(n, power):
        return sum(_terms(n=n, beta=1.0, tau=n**power, disparity=0.0).values())

    assert _slope(lambda n: bound(n, 0.5)) == pytest.approx(0.0, abs=0.02)
    assert _slope(lambda n: bound(n, 0.3)) == pytest.approx(-0.4, abs=0.02)
    assert _slope(lambda n: bound(n, 0.25)) == pytest.approx(-0.5, abs=0.02)
    assert _slope(lambda n: bound(n, 0.0)) == pytest.approx(-0.5, abs=0.02)
    # no other rate helps: with τ = √N the best is N^{-1/3}
    best = theory.best_exponent(0.0, 0.5)
    assert theory.slowest_exponent(0.0, 0.5, best) == pytest.approx(-1 / 3)


@pytest.mark.parametrize("b", [0.1, 0.25, 0.4])
def test_a_rate_of_one_over_tau_root_n_gives_tau_over_root_n(b):
    """η_l = O(1/(τ√(KN))), said to give τ/N + 1/√N: the initial term alone is τ/√N."""
    slope = _slope(lambda n: _general(n, 1 / (n**b * sqrt(n)), n**b, 1))
    said = _slope(lambda n: n**b / n + 1 / sqrt(n))
    assert slope == pytest.approx(b - 0.5, abs=0.02)
    assert slope > said + b - 0.03
    # a rate of 1/(τ + √N) gives it up to the delayed noise τ²/N, so for τ = O(N^{1/4})
    mended = _slope(lambda n: _general(n, 1 / (n**b + sqrt(n)), n**b, 1))
    assert mended == pytest.approx(max(-0.5, 2 * b - 1), abs=0.02)


def test_section_4_bounds_the_slowest_client():
    """⌈τ_M/Δt⌉ of FedFix bounds τ + 1, so that the printed form is on the safe side."""
    clients = ft.FixedTimes([1, "7/3", 5])
    for wait in ("1/2", 2, 5, 9):
        law = theory.expected_from_scheme(ft.FedFix(wait), clients)
        assert law.max_delay == ceil(5 / Fraction(wait)) - 1
