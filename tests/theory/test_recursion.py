"""The recursion on slots against dense matrices on (θ, b_1, …, b_M), and against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.importance import Importance
from fedtempo.theory.recursion import Coordinates, advance, job, product_of, pull_of, schedule, starting

TIMES = ft.FixedTimes(["1", "3/4", "1/2", "1/4"])
SCHEMES = [
    (ft.FedAvg(), TIMES),
    (ft.AsyncFedAvg(), TIMES),
    (ft.FedFix("1/2"), TIMES),
    (ft.FedFix("1/8"), TIMES),
    (ft.FedBuff(2), TIMES),
    (ft.UniformSampling(2), TIMES),
    (ft.MultinomialSampling(3), TIMES),
    (ft.AsyncFedAvg(), ft.ExponentialTimes(["1", "3/4", "1/2", "1/4"])),
]


def some_clients(seed=0, clients=4, width=3):
    rng = np.random.default_rng(seed)
    shape = (clients, width)
    return Coordinates(
        rng.uniform(0.1, 1, shape),
        rng.standard_normal(shape),
        rng.uniform(0.5, 2, shape),
        rng.standard_normal(width),
        Importance(None, clients),
    )


def dense(line, d, clients, work, rate, k):
    """Mean and covariance of θ after every round, with one (M + 1)² matrix a round, for one rate and coordinate."""
    size = line.num_clients + 1
    z, p = np.full(size, clients.start[k]), np.zeros((size, size))
    omega = d.applied(line)
    number = line.round_of_update
    for n in range(line.num_rounds):
        took = np.flatnonzero(number == n)
        before = np.eye(size)
        for u in took:  # who starts from this very version gets it now
            if line.base[u] == n:
                before[1 + line.client[u]] = np.eye(size)[0]
        z, p = before @ z, before @ p @ before.T
        new, shift, noise = np.eye(size)[0], 0.0, 0.0
        for u in took:
            i = line.client[u]
            gain = omega[u] * work.pull[i, rate, k]
            new = new - gain * np.eye(size)[1 + i]
            shift += gain * clients.center[i, k]
            noise += omega[u] ** 2 * work.jitter[i, rate, k]
        turn = np.eye(size)
        hit = np.array([0, *(1 + line.client[took])])
        turn[hit] = new
        mark = np.zeros(size)
        mark[hit] = 1
        z = turn @ z + mark * shift
        p = turn @ p @ turn.T + noise * np.outer(mark, mark)
        yield z[0], p[0, 0]


@pytest.mark.parametrize(("scheme", "times"), SCHEMES, ids=lambda x: str(x)[:30])
def test_mean_and_covariance_against_dense_matrices(scheme, times) -> None:
    clients = some_clients()
    work = job(clients, [0.05, 0.3], 3)
    line = ft.timeline(scheme, times, rounds=40)
    d = ft.weights(scheme, times)
    plan = schedule(line, d)
    moments = starting(plan, clients.start, 2, covariance=True)
    newest = np.append(plan.entry[0], plan.made)
    rivals = {(r, k): dense(line, d, clients, work, r, k) for r in range(2) for k in range(3)}
    for n in range(line.num_rounds):
        advance(plan, moments, work, clients.center, int(plan.steps_done[n]), int(plan.steps_done[n + 1]))
        slot = newest[plan.steps_done[n + 1]]
        for (r, k), rival in rivals.items():
            mean, variance = next(rival)
            np.testing.assert_allclose(moments.mean[slot, r, k], mean, rtol=1e-11, atol=1e-13)
            np.testing.assert_allclose(moments.cov[slot, slot, r, k], variance, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize(("scheme", "times"), SCHEMES, ids=lambda x: str(x)[:30])
def test_the_mean_is_training_with_full_gradients(scheme, times) -> None:
    """θ^{n+1} = θ^n + Σ ω_i Δ_i, K gradient steps by hand from every stored version."""
    clients = some_clients(1)
    line = ft.timeline(scheme, times, rounds=60)
    d = ft.weights(scheme, times)
    versions = [clients.start]
    omega = d.applied(line)
    for n in range(line.num_rounds):
        theta = versions[-1].copy()
        for u in range(line.offsets[n], line.offsets[n + 1]):
            i, sent = line.client[u], versions[line.base[u]]
            local = sent.copy()
            for _ in range(4):
                local = local - 0.2 * clients.curvature[i] * (local - clients.center[i])
            theta += 0.7 * omega[u] * (local - sent)
        versions.append(theta)
    plan = schedule(line, d, server_lr=0.7)
    moments = starting(plan, clients.start, 1, covariance=False)
    advance(plan, moments, job(clients, 0.2, 4), clients.center)
    np.testing.assert_allclose(moments.mean[plan.exit[0], 0], versions[-1], rtol=1e-10)


def test_slots_hold_the_versions_in_flight_only() -> None:
    times = ft.FixedTimes.spread(10, 80)
    for scheme, most in ((ft.FedAvg(), 1), (ft.AsyncFedAvg(), 11), (ft.UniformSampling(3), 1), (ft.FedFix("1/2"), 3)):
        line = ft.timeline(scheme, times, rounds=300)
        assert schedule(line, ft.weights(scheme, times)).num_slots <= most, scheme


def test_a_stretch_is_what_lies_between() -> None:
    """Products of two stretches multiply to the product of both."""
    line = ft.timeline(ft.AsyncFedAvg(), TIMES, rounds=75)
    d = ft.weights(ft.AsyncFedAvg(), TIMES)
    pull = pull_of(some_clients().curvature, [0.1, 0.4], 2)
    parts = [product_of(schedule(line, d, begin=a, end=b), pull) for a, b in ((25, 40), (40, 50), (25, 50))]
    first, second, both = (m * np.exp(log)[..., None, None] for m, log in parts)
    np.testing.assert_allclose(second @ first, both, rtol=1e-10, atol=1e-13)


def test_products_do_not_vanish_over_long_stretches() -> None:
    """FedAvg with 1 − Σ p_i φ_i = 0.1: 10⁻⁴⁰⁰⁰ is kept by its logarithm."""
    times = ft.FixedTimes([1, 1])
    line = ft.timeline(ft.FedAvg(), times, rounds=4000)
    matrix, log = product_of(schedule(line, ft.weights(ft.FedAvg(), times)), pull_of([[0.9], [0.9]], 1.0, 1))
    np.testing.assert_allclose(np.log(np.abs(matrix[0, 0, 0, 0])) + log[0, 0], 4000 * np.log(0.1), rtol=1e-12)


def test_a_job_is_its_local_steps() -> None:
    clients = some_clients(2)
    work = job(clients, [1e-9, 0.5, 1.7, 2.5], 5)
    for r, lr in enumerate((1e-9, 0.5, 1.7, 2.5)):
        moved, variance = np.ones_like(clients.curvature), np.zeros_like(clients.curvature)
        for _ in range(5):
            moved = moved * (1 - lr * clients.curvature)
            variance = variance * (1 - lr * clients.curvature) ** 2 + lr**2 * clients.noise
        np.testing.assert_allclose(work.pull[:, r], 1 - moved, rtol=1e-6 if lr < 1e-6 else 1e-12)
        np.testing.assert_allclose(work.jitter[:, r], variance, rtol=1e-12)


def test_matrices_pull_as_their_eigenvalues() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((3, 4, 4))
    a = root @ root.mT / 4
    for lr in (0.1, 0.6):
        keep = np.linalg.matrix_power(np.eye(4) - lr * a, 6)
        np.testing.assert_allclose(pull_of(a, lr, 6)[:, 0], np.eye(4) - keep, atol=1e-9)


def test_the_noise_of_a_problem_is_that_of_its_batches() -> None:
    problem = ft.problems.quadratics(3, dimension=2, noise=2.0, rows=[6, 9, 16], seed=4)
    clients = Coordinates.of(problem, 5)
    assert float(problem.importance.values @ (5 * clients.noise).sum(axis=1)) == pytest.approx(problem.noise)
    np.testing.assert_allclose(clients.losses([0.3, -1.0]), problem.client_losses([0.3, -1.0]), rtol=1e-6)
    assert clients.optimal_loss == pytest.approx(problem.optimal_loss)
    assert not Coordinates.of(problem, None).noise.any()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ft.InputError, match="center"):
        Coordinates(np.ones((2, 3)), np.ones((2, 2)), np.ones((2, 3)), np.ones(3), Importance(None, 2))
    line = ft.timeline(ft.FedAvg(), TIMES, rounds=2)
    with pytest.raises(ft.InputError, match="one per client"):
        schedule(line, [1.0, 2.0])
