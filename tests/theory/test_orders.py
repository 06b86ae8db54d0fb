"""ε by scheme against the terms of Theorem 3, N against timelines, Corollary 2, rates of the literature."""

from fractions import Fraction
from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft
import fedtempo.theory as theory
from fedtempo.theory import orders

cases = settings(derandomize=True, deadline=None, max_examples=60)
D, SIGMA, R = 2.0, 0.7, 0.3


def _theorem_3(*, n, k, local_lr, alpha, beta, tau, window, max_weight, disparity, server_lr=1.0):
    """The terms of Theorem 3 in orders, from section 3.2 to 3.4, with every constant 1."""
    step = server_lr * local_lr
    delays = {"": step, ", delayed": step**2 * k**2 * tau**2}
    terms = {"epsilon_F": D / (step * k * n), "epsilon_K": local_lr**2 * (k - 1) ** 2 * (disparity + SIGMA)}
    for name, factor in delays.items():
        terms[f"epsilon_alpha{name}"] = alpha * factor * (disparity + max_weight * SIGMA)
        terms[f"epsilon_beta{name}"] = beta * factor * (disparity + SIGMA)
    terms["epsilon_W"] = step * (window - 1) * k
    return terms


def _agree(order, general, *, skip=("epsilon_K",)):
    """Every term of one is in the other, or is 0 there."""
    for name in order.terms.keys() | general.keys() - set(skip):
        if name not in skip:
            assert order.terms.get(name, 0.0) == pytest.approx(general.get(name, 0.0), rel=1e-12), name
    assert order.total == pytest.approx(sum(order.terms.values()))


@pytest.mark.parametrize("k", [1, 5])
def test_the_forms_are_theorem_3_with_the_schemes_own_values(k):
    n, m = 400.0, 8
    rate = 1 / sqrt(k * n)
    common = {"rounds": n, "local_steps": k, "distance": D, "sigma": SIGMA}
    general = {"n": n, "k": k, "local_lr": rate}

    order = orders.fedavg(**common, clients=m)
    _agree(order, _theorem_3(**general, alpha=1, beta=0, tau=0, window=1, max_weight=1 / m, disparity=0))

    ratio = 5.0
    order = orders.asynchronous(
        **common, clients=m, disparity=R, slowest_over_fastest=ratio, window=30, as_printed=False
    )
    _agree(order, _theorem_3(**general, alpha=0, beta=ratio, tau=m * ratio, window=30, max_weight=1, disparity=R))

    c = 4
    order = orders.fedfix(**common, clients=m, disparity=R, slowest_rounds=c, window=12, as_printed=False)
    _agree(order, _theorem_3(**general, alpha=1, beta=0, tau=c, window=12, max_weight=c / m, disparity=R))

    # all of them bound ε_K = η_l²(K−1)²[R + Σ] by (K−1)/N
    assert order.terms["epsilon_K"] >= (k - 1) ** 2 / (k * n) * (R + SIGMA)
    assert order.terms["epsilon_K"] <= (k - 1) ** 2 / (k * n) * (R + SIGMA) * (k / max(k - 1, 1)) + 1e-15


@pytest.mark.parametrize("k", [1, 5])
def test_the_forms_of_appendix_c(k):
    n, m, rate, server = 400.0, 8, 0.01, 2.0
    common = {"rounds": n, "local_steps": k, "distance": D, "sigma": SIGMA}
    general = {"n": n, "k": k, "local_lr": rate, "tau": 0, "disparity": 0}
    order = orders.centralized(**common, local_lr=rate)
    _agree(order, _theorem_3(**general, alpha=1, beta=0, window=1, max_weight=1))
    order = orders.unbiased_sampling(
        **common, clients=m, co_participation=0.6, weight_spread=0.4, local_lr=rate, server_lr=server
    )
    terms = _theorem_3(**general, alpha=0.6, beta=0.4, window=1, max_weight=1 / m, server_lr=server)
    _agree(order, terms, skip=())
    order = orders.biased_sampling(**common, clients=m, window=6, local_lr=rate, server_lr=server)
    assert order.terms["epsilon_W"] == pytest.approx(server * rate * 5 * k)
    assert order.total - order.terms["epsilon_W"] == pytest.approx(orders.fedavg(**common, clients=m).total)


def test_the_printed_window_term_lacks_a_factor_k():
    for k in (1, 2, 10):
        given = {"rounds": 100.0, "local_steps": k, "distance": D, "sigma": SIGMA, "disparity": R, "clients": 4}
        for form, own in (
            (orders.asynchronous, {"slowest_over_fastest": 3.0}),
            (orders.fedfix, {"slowest_rounds": 3}),
        ):
            printed, right = (form(**given, **own, window=7, as_printed=p) for p in (True, False))
            assert right.terms["epsilon_W"] == pytest.approx(k * printed.terms["epsilon_W"])
            assert right.terms["epsilon_W"] == pytest.approx(6 * sqrt(k / 100))


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


def test_epsilon_in_time():
    clients = ft.FixedTimes.spread(10, 80)
    given = {"until": 200, "local_steps": 3, "distance": D, "sigma": SIGMA, "disparity": R}
    eager = theory.order_of(ft.AsyncFedAvg(), clients, **given)
    calm = theory.order_of(ft.FedAvg(), clients, **given)
    fix = theory.order_of(ft.FedFix("1/4"), clients, **given)
    assert (eager.rounds, calm.rounds, fix.rounds) == (4253, 200, 800)
    assert eager.terms["epsilon_F"] < fix.terms["epsilon_F"] < calm.terms["epsilon_F"]  # more rounds in the same time
    same = orders.fedfix(
        rounds=800, local_steps=3, clients=10, distance=D, sigma=SIGMA, disparity=R, slowest_rounds=4, window=12
    )
    assert fix == same
    one = theory.order_of(ft.Centralized(), ft.FixedTimes([2]), **given)
    assert one.terms == pytest.approx({"epsilon_F": D / sqrt(300), "epsilon_alpha": SIGMA / sqrt(300)})
    sampled = theory.order_of(ft.UniformSampling(3), clients, **given)
    assert sampled.terms["epsilon_beta"] == pytest.approx(0.1 * 10 * 7 / 27 * SIGMA / sqrt(3 * sampled.rounds))
    with pytest.raises(ft.InputError, match="no form"):
        theory.order_of(ft.FedBuff(2), clients, **given)
    with pytest.raises(ft.InputError, match="more time"):
        theory.order_of(ft.FedAvg(), clients, **given | {"until": "1/2"})


def test_fedfix_with_a_long_wait_has_the_form_of_fedavg():
    given = {"until": 100, "local_steps": 2, "distance": D, "sigma": SIGMA}
    clients = ft.FixedTimes([1, 2, 2])
    calm = theory.order_of(ft.FedAvg(), clients, **given)
    fix = theory.order_of(ft.FedFix(2), clients, **given)
    # c = ⌈τ_M/Δt⌉ stands for τ, so that one delayed term stays although nothing is delayed
    assert {k: v for k, v in fix.terms.items() if v and k != "epsilon_alpha, delayed"} == pytest.approx(calm.terms)


# --- sampling by a criterion in a part of the window


@cases
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.floats(0.01, 0.99), st.data())
def test_the_rest_of_a_window_makes_up_for_the_criterion(parts, share, data):
    importance = [Fraction(p, sum(parts)) for p in parts]
    chosen = data.draw(st.sets(st.integers(0, len(parts) - 1), min_size=1))
    most = float(sum(importance[i] for i in chosen))
    if share > most:
        with pytest.raises(ft.InputError, match="at most"):
            theory.window_share(importance, chosen, share, len(parts))
        return
    criterion, rest = theory.window_share(importance, chosen, share, len(parts))
    assert share * criterion + (1 - share) * rest == pytest.approx([float(p) for p in importance])
    assert set(np.flatnonzero(criterion)) == chosen
    assert (rest >= -1e-12).all()
    assert criterion.sum() == pytest.approx(1.0)
    assert rest.sum() == pytest.approx(1.0)


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


def _slope(bound, low=1e40, high=1e60):
    """The power of N with which a bound falls."""
    return float(np.log(bound(high) / bound(low)) / np.log(high / low))


def _general(n, rate, tau, window, beta=1.0):
    """ε of asynchronous FedAvg for K = 1 before η_l is chosen."""
    return D / (rate * n) + beta * (rate + rate**2 * tau**2) * (R + SIGMA) + rate * (window - 1)


@pytest.mark.parametrize("b", [0.0, 0.25, 0.5, 0.75])
def test_windows_like_delays_and_a_rate_of_one_over_root_tau_n_give_root_tau_over_n(b):
    """W = O(τ), η_l ∝ 1/√(τN): √(τ/N). Holds."""
    slope = _slope(lambda n: _general(n, 1 / sqrt(n**b * n), n**b, 3 * n**b))
    assert slope == pytest.approx((b - 1) / 2, abs=0.02)


def test_root_n_iid_clients_do_not_give_one_over_root_n():
    """M = O(√N), iid, K = 1, said to give O(1/√N): the fourth term is M²/N, so that M = O(N^{1/4}) is what it takes."""

    def bound(n, power):
        order = orders.asynchronous(
            rounds=n,
            local_steps=1,
            clients=n**power,
            distance=D,
            sigma=SIGMA,
            disparity=0.0,
            slowest_over_fastest=1.0,
            window=1,
        )
        return order.total

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
