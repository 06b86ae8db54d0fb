"""Lemma 7 and Theorem 2, point by point: what fails as printed, and problems that leave none of the constants room."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import quadratics
from fedtempo.theory.bounds import bound
from fedtempo.theory.expected import Expected, expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.round_residuals import residuals
from fedtempo.theory.theorems import theorem_2_at, theorem_2_factor
from fedtempo.theory.virtual_models import measure

ROUNDING = 1e-11


def _sq(vector):
    return float((vector**2).sum())


def _types_round(seed):
    """Quadratics of three types, of which a round represents some; a point anywhere."""
    rng = np.random.default_rng([7, seed])
    problem = quadratics(
        3, dimension=2, heterogeneity=float(rng.choice([0.1, 1.0, 10.0])), convexity=0.3, seed=seed, rows=1
    )
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([1, 2, 3]), rounds=6)
    left = residuals(
        constants(problem, batch_size=None),
        expected_from_timeline(line, rng.uniform(0.1, 20.0, size=3) * (0.02 if seed % 3 == 0 else 1.0)),
    )
    point = rng.standard_normal(2) * float(rng.choice([0.1, 1.0, 10.0]))
    return problem, left, point


def test_lemma_7_holds_as_printed():
    for seed in range(60):
        problem, left, point = _types_round(seed)
        p, L = problem.importance.values, left.constants.full_smoothness
        gradients, losses = left.constants.losses.gradients(point), left.constants.losses.losses(point)
        gaps = losses - left.constants.client_minima
        for n, row in enumerate(left.expected.normalised):
            here = row > 0
            chi = float((((p - row) ** 2)[here] / row[here]).sum())
            right = 4 * L * (chi * row @ gaps + p[~here] @ gaps[~here])
            assert chi == pytest.approx(left.by_type.chi_squared[n])
            assert _sq(p @ gradients - row @ gradients) <= right + ROUNDING


def test_theorem_2_fails_as_printed_for_rounds_of_weight_above_one_alone():
    """4L holds, also where types miss the round: it is 1/q²(n) that is wrong, for q(n) > 1; below 1 it is only loose.

    Caught: 1/q² for 1/q.
    """
    heavy, failures = [], []
    for seed in range(150):
        problem, left, point = _types_round(seed)
        square = _sq(problem.importance.values @ left.constants.losses.gradients(point))
        for n, total in enumerate(left.expected.total):
            assert square <= theorem_2_at(left, n, point) + ROUNDING
            heavy.append(total > 1)
            failures.append(square > theorem_2_at(left, n, point, printed=True) + ROUNDING)
    heavy, failures = np.array(heavy), np.array(failures)
    assert not failures[~heavy].any()
    assert (~heavy).sum() > 20
    assert failures[heavy].mean() > 0.05  # a third where weights are above 1 and curvatures equal


def _at_zero(r, q, curvatures, centers):
    """One kind of round, weights q, of clients ½a(θ − c)²: ‖∇L‖² at 0, and the right-hand side of Theorem 2 there."""
    problem = quadratics(centers=centers[:, None], curvatures=curvatures[:, None], rows=1, importance=list(r))
    law = Expected(q[None, :], np.ones(1), 1, 1.0, 0.0, 0, 1, "stationary")
    left = residuals(constants(problem, batch_size=None), law)
    assert left.constants.full_smoothness == 1.0
    return float(r @ (curvatures * centers)) ** 2, left


def _split(r, shares, mean, spread):
    """Centres with Σ s̃c = mean and Σ s̃(c − mean)² = spread², along (r − s̃)/s̃: what Lemma 7 cannot bound better."""
    way = (r - shares) / shares
    return mean + spread * way / (shares @ way**2) ** 0.5


@pytest.mark.parametrize("total", [0.2, 1.0, 5.0])
def test_no_constant_of_theorem_2_can_be_smaller(total):
    """Problems that use the terms up: 4L before the gap, χ_n² Σ s̃_j[…] and U, and χ_n² before the gap.

    Caught: 2L or 3L for one 4L, 1 for 1 + χ_n², another power of q(n); 8L for 4L.
    """
    shares = np.array([0.48, 0.52])
    r = np.array([0.5, 0.5])  # χ_n² = 0.0016: gap and heterogeneity count alike
    chi = float(((r - shares) ** 2 / shares).sum())
    centers = _split(r, shares, 1.0, 1.0 / chi**0.5)
    square, left = _at_zero(r, total * shares, np.ones(2), centers)
    assert 0.99 < square / theorem_2_at(left, 0, np.zeros(1)) <= 1
    # a type that misses the round, with nearly all importance, beside one that is in it with nearly no weight
    r, shares = np.array([0.03, 0.01, 0.96]), np.array([1e-5, 1 - 1e-5])
    seen = 0.04
    way = r[:2] - seen * shares
    spread = (way**2 / shares).sum() ** 0.5
    centers = np.append(0.0 + way / shares / spread, spread)  # both parts of ∇L equally long
    square, left = _at_zero(r, total * np.append(shares, 0.0), np.ones(3), centers)
    assert 0.95 < square / theorem_2_at(left, 0, np.zeros(1)) <= 1
    # a common minimiser, and a flat client with nearly all the weight
    r, shares = np.array([0.9, 0.1]), np.array([1e-3, 1 - 1e-3])
    square, left = _at_zero(r, total * shares, np.array([1.0, 1e-9]), np.ones(2))
    assert 0.49 < square / theorem_2_at(left, 0, np.zeros(1)) <= 0.5


def test_an_empty_round_leaves_all_types_to_u():
    """Nobody is in the round: ‖∇L‖² ≤ 2L [L − Σ r_j F_j*], of which 4L is twice. Caught: 0, or L, for it."""
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([2, 2]), rounds=4)
    problem = quadratics(centers=[[1.0], [1.0]], curvatures=1.0, rows=1)
    left = residuals(constants(problem, batch_size=None), expected_from_timeline(line, [1.0, 1.0]))
    empty = int(np.flatnonzero(left.expected.total == 0)[0])
    assert theorem_2_at(left, empty, np.zeros(1)) == pytest.approx(2 * _sq(problem.centers[0]))


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix(1)], ids=str)
def test_theorem_2_is_the_mean_of_its_inequality_over_the_models_met(scheme):
    """P and U as the mean of what is left of the inequality without its gap. Caught: 8L for 4L, P or U left out."""
    problem, clients = quadratics(3, dimension=2, heterogeneity=3.0, seed=1, rows=1), ft.FixedTimes([1, 2, 3])
    line, d = ft.timeline(scheme, clients, rounds=22), ft.weights(scheme, clients)
    local = ft.LocalSGD(steps=1, lr=1e-5, batch_size=None)
    law = expected_from_timeline(line, d)
    left = residuals(constants(problem, batch_size=None), law)
    run = measure(left, line, d, local, init=np.zeros(2))
    found = bound(problem, timeline=line, weights=d, local=local, init=np.zeros(2), measured=run)
    p, L, best = problem.importance.values, left.constants.full_smoothness, left.constants.client_minima
    away, factors, theta = 0.0, [], np.zeros(2)  # 22 rounds of 1e-5 leave the model where it is
    for n in range(22):
        here = np.isin(np.arange(3), line.client[line.round_of_update == n])
        q = np.where(here, np.asarray(d), 0.0)
        losses = problem.client_losses(theta)
        if not here.any():
            away += 4 * L * p @ (losses - best)
            continue
        shares = q[here] / q.sum()
        chi = ((p[here] - shares) ** 2 / shares).sum()
        at = problem.client_losses(problem.optimum(q))
        away += 4 * L * (chi * shares @ (at - best)[here] + p[~here] @ (losses - best)[~here])
        factors.append(4 * L * (1 + chi) / q.sum())
    assert found.theorem_2 - max(factors) * found.theorem_1 == pytest.approx(away / 22, rel=1e-3)
    assert found.terms["P"] + found.terms["U"] == pytest.approx(away / 22, rel=1e-3)
    assert theorem_2_factor(left) == pytest.approx(max(factors))


def test_with_rounds_of_one_kind_theorem_3_bounds_the_gradient_as_theorem_2_does():
    """L^n = L̄, χ_n = χ, W = 1, R = 0. Caught: a constant of Theorem 3's gradient form that is not Theorem 2's."""
    problem = quadratics(3, dimension=2, heterogeneity=3.0, seed=1, rows=1)
    local = ft.LocalSGD(steps=2, lr=1e-4, batch_size=None)
    for weights in ([0.2, 0.5, 0.3], [2.0, 0.1, 0.4], [0.7, 0.0, 0.6]):
        clients = ft.FixedTimes([1, 2, 3])
        line = ft.timeline(ft.FedAvg(), clients, rounds=9)
        left = residuals(constants(problem, batch_size=None), expected_from_timeline(line, weights))
        run = measure(left, line, weights, local)
        found = bound(problem, timeline=line, weights=weights, local=local, measured=run)
        assert found.theorem_3_gradient == pytest.approx(found.theorem_2, rel=1e-9)
        assert (found.left.never_seen.sum() > 0) == (0.0 in weights)
