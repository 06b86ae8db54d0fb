"""Constants, optima and residuals against numerical differentiation, enumerated batches and sums over every round."""

from __future__ import annotations

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedtempo as ft
from fedtempo.problems import Problem, quadratics
from fedtempo.problems.models import logistic
from fedtempo.theory.data_types import DataTypes
from fedtempo.theory.expected import expected_from_scheme, expected_from_timeline
from fedtempo.theory.losses import LogisticLosses, QuadraticLosses, client_losses
from fedtempo.theory.losses_generic import GenericLosses
from fedtempo.theory.problem_constants import constants, optima, optimum
from fedtempo.theory.round_residuals import residuals


def softmax_problem(seed=0, *, clients=3, features=2, classes=3, l2=0.05, turned=False, rows=5):
    rng = np.random.default_rng(seed)
    model = logistic(features, classes, l2=l2, features_first=turned)
    data = [
        (rng.standard_normal((rows, features)) + rng.standard_normal(features), rng.integers(classes, size=rows))
        for _ in range(clients)
    ]
    return Problem(model.init, model.loss, data, importance=["1/2", "1/4", "1/4"] if clients == 3 else "uniform")


def least_squares(seed=0):
    """Convex and smooth, but of no known form."""
    rng = np.random.default_rng(seed)
    data = [(rng.standard_normal((6, 3)), rng.standard_normal(6)) for _ in range(3)]
    return Problem(lambda key: {"w": jnp.zeros(3)}, lambda t, b: jnp.mean((b[0] @ t["w"] - b[1]) ** 2) / 2, data)


def bent(kind):
    """A loss that is not convex, or not smooth."""
    shapes = {"cosine": jnp.cos, "absolute": jnp.abs}
    data = [np.array([[0.3], [1.7]]), np.array([[-0.4], [0.9]])]
    return Problem(lambda key: jnp.zeros(1), lambda t, b: jnp.mean(shapes[kind](t - b)), data, name=kind)


FAMILIES = {
    "quadratics": lambda: quadratics(3, dimension=4, noise=0.7, rows=4, importance=["1/2", "1/3", "1/6"]),
    "pooled quadratics": lambda: quadratics(3, dimension=4, noise=0.7, rows=4).pooled(),
    "logistic": softmax_problem,
    "logistic, features first": lambda: softmax_problem(1, features=4, classes=2, turned=True),
    "logistic, no penalty": lambda: softmax_problem(2, l2=0.0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_forms_agree_with_jax(family):
    problem = FAMILIES[family]()
    ours, rival = client_losses(problem), GenericLosses(problem)
    assert isinstance(ours, (QuadraticLosses, LogisticLosses))
    rng = np.random.default_rng(3)
    points = rng.standard_normal((2, 2, ours.dimension))
    for name in ("losses", "gradients", "row_squares"):
        np.testing.assert_allclose(getattr(ours, name)(points), getattr(rival, name)(points), rtol=1e-10, atol=1e-12)
    w = rng.random(problem.num_clients)
    np.testing.assert_allclose(ours.hessian(points[0, 0], w), rival.hessian(points[0, 0], w), atol=1e-12)
    rows = rng.integers(4, size=(2, 3))
    for batch in (rows, None):
        np.testing.assert_allclose(ours.step(0, points[0], batch), rival.step(0, points[0], batch), atol=1e-12)


def test_what_only_looks_like_logistic_regression_is_not_taken_for_it():
    model = logistic(2, 3)
    data = [(np.ones((2, 2)), np.array([0, 2]))]
    problem = Problem(model.init, lambda t, b: model.loss(t, b) + jnp.sum(t["bias"] ** 4), data)
    assert isinstance(client_losses(problem), GenericLosses)
    assert client_losses(softmax_problem()).penalty == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_smoothness_of_logistic_regression_is_approached_and_never_passed(classes):
    problem = softmax_problem(4, classes=classes)
    losses, known = client_losses(problem), constants(problem, batch_size=2)
    curved = losses.curvature()
    rng = np.random.default_rng(0)
    for _ in range(50):
        point = rng.standard_normal(losses.dimension) * 10 ** rng.uniform(-2, 1)
        for i in range(3):
            top = np.linalg.eigvalsh(losses.hessian(point, np.eye(3)[i]))
            assert top[-1] <= curved.full[i] + 1e-12
            assert top[0] >= known.convexity - 1e-12
    there = np.zeros(losses.dimension)
    there[2:classes] = -60.0  # biases of all but two labels
    found = [np.linalg.eigvalsh(losses.hessian(there, np.eye(3)[i]))[-1] for i in range(3)]
    np.testing.assert_allclose(found, curved.full, rtol=1e-9)
    single = Problem(problem.init, problem.loss, [_row(problem, i) for i in range(problem.num_rows)])
    alone = client_losses(single)
    rows = max(np.linalg.eigvalsh(alone.hessian(there, w))[-1] for w in np.eye(problem.num_rows))
    assert known.smoothness == pytest.approx(rows)
    assert constants(problem, batch_size=None).smoothness == pytest.approx(max(found)) == known.full_smoothness


def _row(problem, i):
    x, y = problem.rows
    return x[i : i + 1], y[i : i + 1]


def test_curvatures_of_quadratics_and_of_unknown_losses():
    problem = quadratics(3, dimension=4, smoothness=2.0, convexity=0.25)
    known = constants(problem, batch_size=1)
    assert (known.smoothness, known.convexity, known.how) == (2.0, 0.25, "exact")
    other = least_squares()
    found = constants(other, batch_size=None)
    tops = [np.linalg.eigvalsh(x.T @ x / len(x)) for x, _ in (other.client_data(i) for i in range(3))]
    assert found.how == "estimate"
    assert found.smoothness == pytest.approx(max(t[-1] for t in tops), rel=1e-3)
    assert found.convexity == pytest.approx(min(t[0] for t in tops), abs=1e-2)
    rows = max(float((x**2).sum(axis=1).max()) for x, _ in (other.client_data(i) for i in range(3)))
    assert constants(other, batch_size=2).smoothness == pytest.approx(rows, rel=1e-6)


@pytest.mark.parametrize("family", ["quadratics", "logistic"])
def test_noise_is_the_mean_over_every_batch(family):
    problem = FAMILIES[family]()
    known = constants(problem, batch_size=2)
    losses = known.losses
    for i in range(3):
        squares = [
            (losses.step(i, known.optimum[None], np.array([batch])) ** 2).sum()
            for batch in product(range(int(problem.sizes[i])), repeat=2)
        ]
        assert known.noise[i] == pytest.approx(np.mean(squares), rel=1e-12)
    assert known.rows_read["optima"] > 0
    assert known.rows_read["noise"] == problem.num_rows


def test_gradient_bound_of_logistic_regression():
    problem = softmax_problem(2, l2=0.0)
    losses = client_losses(problem)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((200, losses.dimension)) * 50
    longest = max(
        float((losses.step(i, points, np.full((200, 1), r)) ** 2).sum(axis=1).max()) for i in range(3) for r in range(5)
    )
    assert 0.9 * losses.gradient_bound < longest**0.5 <= losses.gradient_bound
    assert client_losses(softmax_problem()).gradient_bound is None


# Optima


@pytest.mark.parametrize("make", [softmax_problem, lambda: quadratics(3, dimension=3), least_squares])
def test_optima_agree_with_another_solver(make):
    problem = make()
    losses = client_losses(problem)
    table = np.array([[0.2, 0.3, 2.5], [1.0, 0.0, 0.0]])
    found = optima(losses, table)
    for w, point, value in zip(table, found.points, found.values, strict=True):
        rival = minimize(
            lambda t, w=w: float(w @ losses.losses(t)),
            losses.start(),
            jac=lambda t, w=w: w @ losses.gradients(t),
            method="BFGS",
            options={"gtol": 1e-8},
        )
        assert value <= rival.fun + 1e-12
        np.testing.assert_allclose(point, rival.x, atol=1e-5)
    assert found.gradient_norms.max() < 1e-8
    assert optimum(problem).shape == (losses.dimension,)


def test_problems_without_an_optimum_say_so():
    model = logistic(1, 2)
    separable = Problem(model.init, model.loss, [(np.array([[-1.0], [1.0]]), np.array([0, 1]))])
    with pytest.raises(ft.InputError, match=r"client 0 has no minimiser.*l2"):
        optimum(separable)
    with pytest.raises(ft.InputError, match="not convex"):
        optimum(bent("cosine"))
    with pytest.raises(ft.InputError, match="not all zero"):
        optima(client_losses(softmax_problem()), np.zeros((1, 3)))


def test_large_models_go_through_products(monkeypatch):
    monkeypatch.setattr("fedtempo.theory.problem_constants.DENSE", 1)
    problem = softmax_problem()
    dense = minimize(
        lambda t: float(problem.importance.values @ client_losses(problem).losses(t)), np.zeros(9), method="BFGS"
    )
    np.testing.assert_allclose(optimum(problem), dense.x, atol=1e-4)


def test_problems_that_bounds_do_not_cover_are_refused():
    with pytest.raises(ft.InputError, match="not convex"):
        constants(bent("cosine"), batch_size=None).check()
    with pytest.raises(ft.InputError, match="not smooth"):
        constants(bent("absolute"), batch_size=None).check()
    constants(least_squares(), batch_size=None).check()


# Residuals


def _brute(problem, line, weights, batch_size):
    """R, Σ, Σ_1, Σ_2, P and the mean of L^n at a point, round by round, from the definitions."""
    losses, p = client_losses(problem), problem.importance.values
    applied = np.asarray(weights.applied(line))
    rounds = []
    for n in range(line.num_rounds):
        part = slice(int(line.offsets[n]), int(line.offsets[n + 1]))
        row = np.zeros(line.num_clients)
        row[line.client[part]] = applied[part]
        rounds.append(row)
    q = np.mean(rounds, axis=0)
    best = optima(losses, q[None]).points[0]
    own = optima(losses, np.eye(len(p))).values
    point = np.ones(losses.dimension)
    out = dict.fromkeys(("R", "one", "two", "P", "mean"), 0.0)
    for row in rounds:
        out["mean"] += row @ losses.losses(point)
        if not row.any():
            continue
        there = optima(losses, row[None]).points[0]
        share = row / row.sum()
        squares = losses.gradient_squares(there, batch_size)
        out["R"] += row @ (losses.losses(best) - losses.losses(there))
        out["one"] += share @ squares
        out["two"] += share**2 @ squares
        here = row > 0
        chi = ((p - share)[here] ** 2 / share[here]).sum()
        out["P"] += chi * (share @ (losses.losses(there) - own))
    found = {name: value / line.num_rounds for name, value in out.items()}
    return found | {
        "sigma": float(q @ losses.gradient_squares(best, batch_size)),
        "run": float(q @ losses.losses(point)),
    }


@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)], ids=str)
@pytest.mark.parametrize("family", ["quadratics", "logistic"])
def test_residuals_by_kinds_are_sums_over_rounds(scheme, family):
    problem = FAMILIES[family]()
    times = ft.FixedTimes([1, 2, "5/2"])
    line = ft.timeline(scheme, times, rounds=23)
    weights = ft.weights(scheme, times, importance=problem.importance.exact)
    left = residuals(constants(problem, batch_size=2), expected_from_timeline(line, weights))
    wanted = _brute(problem, line, weights, 2)
    found = {"R": left.residual, "one": left.sigma_1, "two": left.sigma_2, "P": left.unfairness, "sigma": left.sigma}
    for name, value in found.items():
        assert value == pytest.approx(wanted[name], rel=1e-7, abs=1e-12), name
    assert wanted["mean"] == pytest.approx(wanted["run"], rel=1e-12)  # L̄ is the mean of L^n


@pytest.mark.parametrize("family", ["quadratics", "logistic"])
def test_residual_of_fedavg_and_of_async(family):
    problem = FAMILIES[family]()
    times = ft.FixedTimes([1, 2, 3])
    known = constants(problem, batch_size=None)
    p = problem.importance
    assert residuals(known, expected_from_scheme(ft.FedAvg(), times, p)).residual == pytest.approx(0, abs=1e-13)
    line = ft.timeline(ft.AsyncFedAvg(), times, rounds=33)  # three windows of 6 + 3 + 2 rounds
    weights = ft.weights(ft.AsyncFedAvg(), times, importance=p.exact)
    for law in (expected_from_timeline(line, weights), expected_from_scheme(ft.AsyncFedAvg(), times, p)):
        left = residuals(known, law)
        assert left.residual == pytest.approx(known.heterogeneity, rel=1e-9)
        np.testing.assert_allclose(left.run_optimum, known.optimum, atol=1e-8)
        fixed = residuals(known, expected_from_scheme(ft.FedFix(1), times, p))
        assert 0 < fixed.residual < left.residual
    assert len(expected_from_timeline(line, weights).weights) == 3  # M optima, not N


def test_clients_of_one_type_leave_nothing_unfair():
    """Example 1: clients 0, 1 and clients 2, 3 take turns, and each pair has both types."""
    problem = quadratics(centers=[[0.0], [1.0], [0.0], [1.0]], curvatures=1.0, rows=1)
    law = expected_from_timeline(ft.timeline(ft.FedBuff(2), ft.FixedTimes([1] * 4), rounds=8), np.full(4, 0.5))
    known = constants(problem, batch_size=None)
    by_client, by_type = residuals(known, law), residuals(known, law, types=DataTypes([0, 1, 0, 1]))
    assert by_client.unfairness > 0
    assert by_client.unseen.any()
    assert by_type.unfairness == 0
    assert not by_type.unseen.any()


def test_the_steps_from_sigma_1_and_sigma_2_to_sigma_are_false():
    """Appendix A.4's last lines: Σ_1 ≤ 4LR + 2Σ forgets that q̃_i(n) is not q_i(n); Σ_2 ≤ max q_i(n) Σ_1 as well."""
    noisy = Problem(
        lambda key: jnp.zeros(1),
        lambda t, b: jnp.mean((t - b) ** 2) / 2,
        [np.array([[1.0], [-1.0]]), *[np.zeros((2, 1))] * 9],  # a common optimum; only the fastest client has noise
    )
    times = ft.FixedTimes([1, *[10] * 9])
    left = residuals(constants(noisy, batch_size=1), expected_from_scheme(ft.AsyncFedAvg(), times))
    assert left.residual == pytest.approx(0, abs=1e-12)
    assert left.sigma_1 > 4 * left.constants.smoothness * left.residual + 2 * left.sigma
    slow = ft.FixedTimes([1, *[2] * 9])
    left = residuals(constants(noisy, batch_size=1), expected_from_scheme(ft.FedFix(1), slow))
    assert left.sigma_2 > left.expected.weights.max() * left.sigma_1
    assert left.sigma_2 <= left.expected.normalised.max() * left.sigma_1 + 1e-12
