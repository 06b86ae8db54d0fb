"""Theorems 1, 2 and 3 on random problems, the one that fails as printed, ceilings, assumptions; virtual models against
the oracle.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import Problem, quadratics
from fedtempo.simulation.engine.oracle import oracle
from fedtempo.theory.bounds import bound
from fedtempo.theory.ceiling import SIX, learning_rate_ceiling
from fedtempo.theory.data_types import DataTypes
from fedtempo.theory.expected import expected_from_scheme, expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.round_residuals import residuals
from fedtempo.theory.seven_assumptions import assumptions
from fedtempo.theory.theorems import Steps, step_bound, window_term
from fedtempo.theory.virtual_models import measure, virtual_models
from support.bound_cases import draw, opposite, sampled


@pytest.mark.parametrize("number", range(16))
def test_theorems_hold_on_random_problems(number):
    case = draw(number)
    for name, (ratio, error) in case.ratios().items():
        assert ratio + 3 * error <= 1, f"{name}: {ratio} ± {error} of its bound; {case.said}"


# Theorem 1 under random participation with many local steps


def _with_sample(chosen):
    """A timeline of these samples of one client."""
    number = len(chosen)
    jobs = [chosen[:n].count(i) for n, i in enumerate(chosen)]
    return ft.Timeline(
        unit=Fraction(1),
        num_clients=2,
        ends=np.arange(1, number + 1),
        offsets=np.arange(number + 1),
        client=np.array(chosen, dtype=np.int32),
        base=np.arange(number, dtype=np.int32),
        job=np.array(jobs, dtype=np.int32),
    )


def test_the_recursion_is_the_mean_over_every_sequence_of_samples():
    case = opposite(3, 6)
    lines = [_with_sample(list(chosen)) for chosen in product([0, 1], repeat=6)]
    local = ft.LocalSGD(steps=3, lr=case.bound.steps.local_lr, batch_size=None)
    measured = measure(case.bound.left, lines, [1.0, 1.0], local, init=[0.0])
    assert measured.theorem_1.mean() == pytest.approx(case.left, rel=1e-12)


@pytest.mark.parametrize(("steps", "fails"), [(1, False), (10, False), (30, True), (100, True)])
def test_theorem_1_as_printed_fails_under_sampling_with_many_local_steps(steps, fails):
    """Lemma 2 takes θ^{n,k} not to depend on S_n, and ε_β lacks its factor K."""
    case = opposite(steps, 20_000)
    assert (case.left > case.bound.as_printed.total) == fails
    assert case.left <= case.bound.theorem_1
    assert case.left / case.bound.theorem_1 == pytest.approx(1 / 24, rel=0.05)  # at every K: no other power would do


def test_theorem_1_holds_under_sampling_with_up_to_100_local_steps():
    cases = [sampled(number) for number in range(60)]
    assert all(case.left <= case.bound.theorem_1 for case in cases)
    assert any(case.left > case.bound.as_printed.total for case in cases)


# The bound, term by term


def _async():
    problem = quadratics(4, dimension=3, noise=0.5, seed=3)
    times = ft.FixedTimes([1, 2, 3, 4])
    return problem, times, ft.weights(ft.AsyncFedAvg(), times), ft.timeline(ft.AsyncFedAvg(), times, rounds=50)


def test_terms_are_those_of_the_audit():
    """The formula of docs/theory.md, for certain participation (α = 1, β = 0) with η_g q(n) ≤ 2."""
    problem, _, weights, line = _async()
    law = expected_from_timeline(line, weights)
    lr = learning_rate_ceiling(law, smoothness=1.0, local_steps=4, server_lr=0.5).corrected
    found = bound(
        problem, timeline=line, weights=weights, local=ft.LocalSGD(steps=4, lr=lr, batch_size=2), server_lr=0.5
    )
    left, L, K, N, tau, rho = found.left, 1.0, 4, 50, law.max_delay, law.max_total_weight
    assert 0.5 * rho < 2 < rho + 1
    eta = lr * 0.5
    D = 6 * lr**2 * (K - 1) ** 2 * L**2
    e = eta + 16 * rho * L * eta**2 * K**2 * tau**2
    distance = ((found.start - left.run_optimum) ** 2).sum()
    R, one, two = left.residual, left.sigma_1, left.sigma_2
    wanted = R + distance / (eta * K * N) + 4 * D * R + 12 * rho * lr**2 * (K - 1) ** 2 * L * one
    wanted += 12 * rho * 2 * e * L * R + 3 * rho**2 * 2 * D * e * one + 6 * rho**2 * e * two
    assert found.total == found.theorem_1 == pytest.approx(wanted, rel=1e-12)
    assert sum(found.terms[name] for name in ("R", "ε_F", "ε_K", "ε_α", "ε_β")) == pytest.approx(wanted)
    assert found.as_printed.total < found.total


def test_terms_that_need_the_models_met_wait_for_them():
    problem, _, weights, line = _async()
    local = ft.LocalSGD(steps=2, lr=1e-4, batch_size=None)
    found = bound(problem, timeline=line, weights=weights, local=local)
    assert (found.terms["U"], found.terms["ε_W"]) == (None, None)
    assert (found.theorem_2, found.theorem_3, found.theorem_3_gradient) == (None, None, None)
    measured = measure(found.left, line, weights, local)
    whole = bound(problem, timeline=line, weights=weights, local=local, measured=measured)
    assert whole.terms["U"] == pytest.approx(4 * measured.unseen[0])
    assert whole.theorem_3 == pytest.approx(whole.theorem_1 - whole.terms["R"] + whole.terms["ε_W"])
    sync = bound(problem, scheme=ft.FedAvg(), times=ft.FixedTimes([1, 2, 3, 4]), rounds=10, local=local)
    assert (sync.terms["U"], sync.terms["ε_W"], sync.terms["P"]) == (0, 0, pytest.approx(0, abs=1e-20))
    assert sync.corollary_1 == pytest.approx(sync.parts.error)
    assert whole.corollary_1 is None
    clipped = ft.LocalSGD(steps=2, lr=1e-4, batch_size=None, clip=2.0)
    assert bound(problem, timeline=line, weights=weights, local=clipped).gradient_bound == 2.0


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_steps_and_windows_before_theorem_3(noise):
    """‖θ^{n+1} − θ^n‖ ≤ η̃ q(n) K B, and Σ q_i L_i − Σ q_i(n) L_i over whole windows is at most ε_W on average."""
    problem = quadratics(3, dimension=2, noise=noise, heterogeneity=3.0, seed=1)
    times = ft.FixedTimes([1, 2, 3])
    weights, line = ft.weights(ft.AsyncFedAvg(), times), ft.timeline(ft.AsyncFedAvg(), times, rounds=22)
    left = residuals(constants(problem, batch_size=2), expected_from_timeline(line, weights))
    steps = Steps(0.01, 3, 2, 1.0)
    rounds = list(virtual_models(left.constants.losses, line, weights, steps, init=np.zeros(2), runs=5))
    gradients = [left.constants.losses.gradients(v.models) for v in rounds]
    B = max(max(v.largest_gradient for v in rounds), max(float((g**2).sum(axis=-1).max()) ** 0.5 for g in gradients))
    q, applied = left.expected.expected_weight, weights.applied(line)
    excess = 0.0
    for n, v in enumerate(rounds):
        row = np.zeros(3)
        row[line.client[n]] = applied[n]
        moved = np.linalg.norm(v.models[:, -1] - v.models[:, 0], axis=1).max()
        assert moved <= step_bound(steps, row.sum(), B) * (1 + 1e-12)
        excess += float((left.constants.losses.losses(v.models[:, :-1]) @ (q - row)).mean())
    assert left.expected.window == 11
    assert abs(excess) / 22 <= window_term(left, steps, B, 11)


def test_corollary_1_as_printed_lacks_the_rounds_weight():
    """L^n = q(n) L, so that Theorem 1 bounds q(n)[L − L*]: with small weights the printed bound on L − L* fails."""
    problem = quadratics(centers=[[1.0], [1.0]], curvatures=1.0, rows=1)
    line, d = ft.timeline(ft.FedAvg(), ft.FixedTimes([1, 1]), rounds=400), [0.01, 0.01]
    law = expected_from_timeline(line, d)
    lr = learning_rate_ceiling(law, smoothness=1.0, local_steps=1).corrected
    local = ft.LocalSGD(steps=1, lr=lr, batch_size=None)
    found = bound(problem, timeline=line, weights=d, local=local, types=DataTypes([0, 0]))
    measured = measure(found.left, line, d, local)
    gap = measured.theorem_1[0] / 0.02  # L^n = 0.02 L in every round
    assert gap > found.parts.error  # as printed
    assert gap <= found.corollary_1
    assert found.corollary_1 == pytest.approx(found.parts.error / 0.02)


# Virtual models


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedBuff(2), ft.FedFix("3/4")], ids=str)
def test_virtual_models_are_the_oracles(scheme):
    problem = quadratics(3, dimension=4, seed=2)
    times = ft.FixedTimes([1, 2, "5/3"])
    line, weights = ft.timeline(scheme, times, rounds=12), ft.weights(scheme, times)
    local, hyper = (
        ft.LocalSGD(steps=3, lr=0.1, batch_size=None),
        {"local_steps": 3, "local_lr": 0.1, "batch_size": None},
    )
    ours = virtual_models(constants(problem).losses, line, weights, Steps(0.1, 3, None, 0.7), init=np.zeros(4))
    for closed, v in zip(
        oracle(problem, line, weights, local, hyper | {"server_lr": 0.7}, virtual=True), ours, strict=True
    ):
        np.testing.assert_allclose(v.models[0], np.array(closed.virtual), atol=1e-13)


def test_batches_depend_on_seed_client_and_job_alone():
    problem, _, weights, line = _async()
    losses, steps = constants(problem).losses, Steps(0.1, 2, 3, 1.0)
    first = [v.models for v in virtual_models(losses, line, weights, steps, init=np.zeros(3), runs=4)]
    again = [v.models for v in virtual_models(losses, line[:10], weights, steps, init=np.zeros(3), runs=4)]
    np.testing.assert_array_equal(first[:10], again)
    assert np.ptp(first[5][:, -1], axis=0).min() > 0


# Refusals


def test_what_the_bounds_do_not_cover_is_refused():
    problem, times, weights, line = _async()
    small = ft.LocalSGD(steps=2, lr=1e-4, batch_size=None)
    wrong = [
        ({"local": ft.LocalSGD(lr=0.5)}, "local_lr: 0.5 is above"),
        ({"local": ft.LocalSGD(lr=1e-4, momentum=0.9)}, "without momentum"),
        ({"local": ft.LocalSGD(lr=1e-4, draw="epochs")}, "draw='uniform'"),
        ({"local": ft.LocalSGD(lr=[1e-4, 1e-3])}, "one value"),
        ({"local": small, "weights": "time-based"}, "ft.weights"),
        ({"local": small, "times": times}, "either timeline"),
        ({"local": small, "init": [0.0]}, "one vector of 3"),
    ]
    for arguments, match in wrong:
        with pytest.raises(ft.InputError, match=match):
            bound(problem, **({"timeline": line, "weights": weights} | arguments))
    remembering = ft.LogNormalTimes([1, 2, 3, 4])
    with pytest.raises(ft.InputError, match="rounds before"):
        bound(problem, scheme=ft.AsyncFedAvg(), times=remembering, local=small, rounds=9)
    data = [np.array([[0.3], [1.7]])] * 4
    bent = Problem(lambda key: jnp.zeros(1), lambda t, b: jnp.mean(jnp.cos(t - b)), data)
    with pytest.raises(ft.InputError, match="not convex"):
        bound(bent, timeline=line, weights=weights, local=small)
    sharp = Problem(lambda key: jnp.zeros(1), lambda t, b: jnp.mean(jnp.abs(t - b)), data)
    with pytest.raises(ft.InputError, match="not smooth"):
        bound(sharp, timeline=line, weights=weights, local=small)


def test_an_unknown_convex_loss_is_bounded_with_a_note():
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((6, 2)), rng.standard_normal(6)) for _ in range(4)]
    fit = Problem(lambda key: jnp.zeros(2), lambda t, b: jnp.mean((b[0] @ t - b[1]) ** 2) / 2, data)
    _, _, weights, line = _async()
    found = bound(fit, timeline=line, weights=weights, local=ft.LocalSGD(lr=1e-5, batch_size=None))
    assert found.theorem_1 > 0
    assert "not proved" in found.notes[0]


# Ceilings


@pytest.mark.parametrize("seed", range(12))
def test_ceilings_are_where_a_condition_ends(seed):
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(2, 11))
    times = ft.FixedTimes([int(t) for t in rng.integers(1, 6, size=clients)])
    scheme = [ft.AsyncFedAvg(), ft.FedFix(2), ft.UniformSampling(1), ft.FedAvg()][seed % 4]
    law = expected_from_scheme(scheme, times, rounds=30)
    K, eta_g, L = int(rng.integers(1, 9)), float(rng.choice([0.5, 1.0, 3.0])), 2.0
    found = learning_rate_ceiling(law, smoothness=L, local_steps=K, server_lr=eta_g)
    a, b, tau, rho = law.co_participation, law.weight_spread, law.max_delay, law.max_total_weight

    def six(lr):
        D, e = 6 * lr**2 * (K - 1) ** 2 * L**2, eta_g * lr
        nu = 16 * rho * L
        return {
            "drift": D <= 1 / 2,
            "delay": 12 * rho**2 * (a + b) * e**2 * K**2 * tau**2 * L**2 <= 1 / 2,
            "step": 3 * rho * (a + b) * e * L <= 1,
            "descent": 2 - 4 * D - 12 * rho * (2 * a + b) * (e + nu * e**2 * K**2 * tau**2) * L >= 1,
            "weight": 3 * rho**2 * e * L <= 1,
            "weight_delay": 48 * rho**3 * e**2 * K**2 * tau**2 * L**2 <= 1,
        }

    assert all(six(found.largest * (1 - 1e-9)).values())
    assert [name for name, holds in six(found.largest * (1 + 1e-9)).items() if not holds] == [found.binding]
    assert found.binding in ("descent", "weight", "weight_delay")  # descent implies the first three
    assert found.printed == pytest.approx(1 / (48 * K * L) * min(1, 1 / (3 * rho**2 * eta_g * (tau + 1))), rel=1e-14)
    assert [c.name for c in found.conditions] == [f.__name__ for f in SIX]
    if b <= 1:
        assert found.printed <= found.largest
        assert found.note is None
    assert found.corrected <= next(c.largest for c in found.conditions if c.name == "descent") * (1 + 1e-12)


def test_the_printed_ceiling_with_a_large_weight_spread():
    """It takes β ≤ 1: asynchronous F80 has α = 0, β = max d_i = 2.1 and survives since β ≤ ρ; sampling does not."""
    spread = ft.FixedTimes.spread(10, 80)
    law = expected_from_scheme(ft.AsyncFedAvg(), spread, co_participation=0.0)
    assert law.weight_spread == pytest.approx(2.1, abs=0.05)
    kept = learning_rate_ceiling(law, smoothness=1.0, local_steps=5)
    assert kept.broken == ()
    assert kept.printed <= kept.largest
    assert "still meets" in kept.note
    heavy = [Fraction(9, 10), *[Fraction(1, 990)] * 99]
    law = expected_from_scheme(ft.UniformSampling(1), ft.FixedTimes([1] * 100), heavy)
    assert law.weight_spread == pytest.approx(90)
    lost = learning_rate_ceiling(law, smoothness=1.0, local_steps=1)
    assert lost.broken == ("step", "descent")[-len(lost.broken) :]
    assert "descent" in lost.broken
    assert lost.printed > lost.largest
    assert f"use {lost.largest:.3g}" in lost.note


# Assumptions


def _verdicts(*args, **kwargs):
    return [a.holds for a in assumptions(*args, **kwargs)]


def test_assumptions_of_schemes_and_problems():
    problem, times, weights, line = _async()
    assert _verdicts(problem, timeline=line, weights=weights) == [True] * 6 + [False]
    assert _verdicts(problem, scheme=ft.FedFix(1), times=times, local=ft.LocalSGD(clip=1.0))[2:] == [
        None,
        True,
        True,
        True,
        True,
    ]
    exponential = ft.ExponentialTimes([1, 2, 3, 4])
    for scheme, fifth in ((ft.AsyncFedAvg(), True), (ft.FedFix(1), True), (ft.FedBuff(2), False)):
        found = assumptions(problem, scheme=scheme, times=exponential)
        assert (found[3].holds, found[4].holds, found[5].holds) == (False, fifth, True)
    assert "different ratios" in str(found[4])
    assert _verdicts(problem, scheme=ft.UniformSampling(2), times=exponential)[3:6] == [True, True, True]
    assert _verdicts(problem, scheme=ft.FedBuff(2), times=ft.ExponentialTimes([1, 1, 1, 1]))[4] is True
    assert _verdicts(problem, scheme=ft.AsyncFedAvg(), times=ft.LogNormalTimes([1, 2, 3, 4]))[4] is False
    assert _verdicts(problem, scheme=ft.FedAvg(), times=times, local=ft.LocalSGD(draw="epochs"))[2] is False
    data = [np.array([[0.3], [1.7]])] * 4
    sharp = Problem(lambda key: jnp.zeros(1), lambda t, b: jnp.mean(jnp.abs(t - b)), data)
    assert _verdicts(sharp, timeline=line, weights=weights)[0] is False
