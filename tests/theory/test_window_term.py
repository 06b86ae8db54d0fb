"""Steps, windows and ε_W before Theorem 3: how far a round goes and how often that counts in a window, by brute force;
runs that come close to the bounds; and why Assumption 7 has to bound the gradients that clients step with.
"""

from __future__ import annotations

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import Problem, quadratics
from fedtempo.theory.bounds import bound
from fedtempo.theory.ceiling import learning_rate_ceiling
from fedtempo.theory.data_types import DataTypes
from fedtempo.theory.expected import expected_from_scheme, expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.round_residuals import residuals
from fedtempo.theory.theorems import Steps, step_bound, window_term
from fedtempo.theory.virtual_models import measure, virtual_models


def _one_a_round(chosen, clients):
    """A timeline without delays, of these clients one by one; None is a round without participants."""
    there = [n for n, i in enumerate(chosen) if i is not None]
    taken = [chosen[n] for n in there]
    return ft.Timeline(
        unit=Fraction(1),
        num_clients=clients,
        ends=np.arange(1, len(chosen) + 1),
        offsets=np.searchsorted(there, np.arange(len(chosen) + 1)),
        client=np.array(taken, dtype=np.int32),
        base=np.array(there, dtype=np.int32),
        job=np.array([taken[:u].count(i) for u, i in enumerate(taken)], dtype=np.int32),
    )


# Steps


def test_steps_with_mini_batches_are_longer_than_full_gradients_say():
    """One client, ½(θ − c)² with rows c = ±1, one row a step, η = 0.01: its steps are 17.6 times as long as printed.

    E|θ − c| = 1 as |θ| ≤ 1, so that a round goes η; but E|∇L(θ^n)| = E|θ^n| ≤ √(η/(2 − η)).
    Caught: B of full gradients alone, in `measure` or before K and η̃.
    """
    problem = Problem(lambda key: jnp.zeros(1), lambda t, b: jnp.mean((t - b) ** 2) / 2, [np.array([[1.0], [-1.0]])])
    scheme, clients, lr = ft.Centralized(), ft.FixedTimes([1]), 0.01
    line, d = ft.timeline(scheme, clients, rounds=400), ft.weights(scheme, clients)
    left = residuals(constants(problem, batch_size=1), expected_from_timeline(line, d))
    steps = Steps(lr, 1, 1, 1.0)
    models = np.array(
        [v.models[:, :, 0] for v in virtual_models(left.constants.losses, line, d, steps, init=[0.0], runs=4000)]
    )
    moved = np.abs(models[:, :, 1] - models[:, :, 0]).mean(axis=1)  # [rounds] E|θ^{n+1} − θ^n|
    full = np.abs(models[:, :, 0]).mean(axis=1).max()  # E|∇L(θ^n)|, at its largest
    assert full <= (lr / (2 - lr)) ** 0.5
    assert moved[-100:].mean() / step_bound(steps, 1.0, full) == pytest.approx(17.6, rel=0.05)
    noise = 1.0  # E|∇L(θ, ξ) − ∇L(θ)|
    for corrected in (1.0, full + noise):  # a bound on E|∇L(θ, ξ)|
        assert (moved <= step_bound(steps, 1.0, corrected) * (1 + 0.006)).all()  # a mean over 4000 runs
    assert moved.mean() > 0.98 * step_bound(steps, 1.0, 1.0)
    met = measure(left, line[:50], d, ft.LocalSGD(steps=1, lr=lr, batch_size=1), init=[0.0]).gradient_bound
    assert met >= 1.0


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.2, 3.0, 7.0]])
def test_clients_that_pull_together_go_as_far_as_a_step_can(weights):
    """With centres far away and in one direction every round goes η̃ q(n) K B. Caught: no K, q(n), η_g or B."""
    problem = quadratics(centers=[[900.0, 1200.0]] * 3, curvatures=1.0, rows=1)
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([1, 2, 3]), rounds=12)
    steps, d = Steps(1e-6, 4, None, 0.5), np.array(weights)
    law = expected_from_timeline(line, d)
    B = measure(
        residuals(constants(problem, batch_size=None), law),
        line,
        d,
        ft.LocalSGD(steps=4, lr=1e-6, batch_size=None),
        server_lr=0.5,
    ).gradient_bound
    assert pytest.approx(1500.0) == B
    for n, v in enumerate(virtual_models(constants(problem).losses, line, d, steps, init=np.zeros(2))):
        here = line.client[int(line.offsets[n]) : int(line.offsets[n + 1])]
        moved = np.linalg.norm(v.models[0, -1] - v.models[0, 0])
        assert 0.999 < moved / step_bound(steps, d[here].sum(), B) <= 1


# Windows


def _run(problem, line, d, steps):
    """B, and [rounds, clients] the mean over k of L_i(θ^{n,k}), [rounds, clients] ω_i(n)."""
    losses = constants(problem, batch_size=None).losses
    rounds = list(virtual_models(losses, line, d, steps, init=np.zeros(losses.dimension)))
    points = np.array([v.models[0, :-1] for v in rounds])
    met = float((losses.gradients(points) ** 2).sum(axis=-1).max()) ** 0.5
    table = np.zeros((line.num_rounds, line.num_clients))
    np.add.at(table, (line.round_of_update, line.client), np.asarray(d)[line.client])
    at = np.array([[problem.client_losses(point) for point in round_] for round_ in points])
    return max(met, *(v.largest_gradient for v in rounds)), at.mean(axis=1), table


def test_the_window_inequality_is_at_most_five_times_what_a_run_attains():
    """Nobody in the first half of a window, then one client a round: weights count where losses are low.

    Caught: ε_W a fifth or a tenth of itself; without K, ρ, q, W − 1 or B; with B instead of B².
    """
    half, weight, K = 16, 20.0, 3
    problem = quadratics(centers=[[1e4]] * half, curvatures=1.0, rows=1)
    line = _one_a_round(([None] * half + list(range(half))) * 2, half)
    d, steps = np.full(half, weight), Steps(1e-9, K, None, 0.5)
    left = residuals(constants(problem, batch_size=None), expected_from_timeline(line, d))
    assert (left.expected.window, left.expected.max_total_weight) == (2 * half, weight)
    B, losses, table = _run(problem, line, d, steps)
    excess = float((losses * (table.mean(axis=0) - table)).sum() / len(table))
    assert 0.2 < excess / window_term(left, steps, B, 2 * half) < 0.26


def test_the_window_term_is_the_worst_sum_over_pairs_of_rounds():
    """Σ_i q_i(m) [L_i(θ^{n,k}) − L_i(θ^{m,k})] ≤ Σ_i q_i(m) B |n − m| times a step, over all pairs of rounds.

    Summed with the weights where they stand it is below ε_W; with all in the worst round of a window it is ε_W.
    Caught: any other constant, or power of ρ, q, W, K, η̃ or B.
    """
    rng = np.random.default_rng(5)
    for scheme, values in ((ft.AsyncFedAvg(), [1, 2, 3]), (ft.FedFix(1), [1, 2, 4]), (ft.FedBuff(2), [1, 1, 2, 2])):
        clients = ft.FixedTimes(values)
        problem = quadratics(len(values), dimension=2, heterogeneity=3.0, seed=1, rows=1)
        window = expected_from_scheme(scheme, clients).window
        line, d = ft.timeline(scheme, clients, rounds=2 * window), rng.uniform(0.5, 4.0, size=len(values))
        left = residuals(constants(problem, batch_size=None), expected_from_timeline(line, d))
        steps = Steps(1e-4, int(rng.integers(1, 6)), None, float(rng.choice([0.5, 2.0])))
        B, losses, table = _run(problem, line, d, steps)
        own, here = table[:window], losses[:window]
        step = steps.server_lr * steps.local_lr * steps.local_steps * max(1.0, table.sum(axis=1).max()) * B
        apart = np.abs(np.subtract.outer(np.arange(window), np.arange(window)))  # |n − m|
        change = (here[:, None] - here[None, :]) * own[None]  # q_i(m) [L_i at n − L_i at m]
        assert (np.abs(change.sum(axis=2)) <= apart * own.sum(axis=1) * step * B).all()
        found = window_term(left, steps, B, window)
        stands = float((apart @ own.sum(axis=1)).sum()) * step * B / window**2
        worst = own.sum() * max(apart.sum(axis=0)) * step * B / window**2
        assert change.sum() / window**2 <= stands <= worst == pytest.approx(found, rel=1e-12)


def test_the_window_term_is_linear_and_without_a_window_nothing():
    """Caught: W for W − 1, (W − 1)², and a bound that has ε_W for W = 1 or leaves it out for W = 2."""
    problem = quadratics(centers=[[1.0], [-1.0]], curvatures=1.0, rows=1)
    for scheme, window in ((ft.FedAvg(), 1), (ft.AsyncFedAvg(), 2)):
        law = expected_from_scheme(scheme, ft.FixedTimes([1, 1]), rounds=12)
        left, steps = residuals(constants(problem, batch_size=None), law), Steps(1e-3, 2, None, 1.0)
        terms = [window_term(left, steps, 3.0, w) for w in (1, 2, 3, 7)]
        assert terms == pytest.approx([0.0, terms[1], 2 * terms[1], 6 * terms[1]])
        local = ft.LocalSGD(steps=2, lr=1e-3, batch_size=None)
        found = bound(problem, scheme=scheme, times=ft.FixedTimes([1, 1]), local=local, rounds=12, gradient_bound=3.0)
        assert law.window == window
        assert found.terms["ε_W"] == pytest.approx(terms[window - 1])
        assert (found.terms["ε_W"] > 0) == (window > 1)


def test_with_a_window_of_one_both_conditions_are_the_same():
    """s̃_j = r_j over the run and in every round: the same for W = 1, and then ε and Corollary 1 are too; not for W > 1.

    Caught: Corollary 1 judged by the shares of the run, χ² by those of a round.
    """
    p, seen = [Fraction(k, 10) for k in (1, 2, 3, 4)], []
    problem = quadratics(4, dimension=2, seed=3, importance=p, rows=1)
    local = ft.LocalSGD(steps=2, lr=1e-7, batch_size=None)
    fixed, drawn = ft.FixedTimes([1, 1, 2, 2]), ft.ExponentialTimes([1, 1, 2, 2])
    for scheme, clients in (
        (ft.FedAvg(), fixed),
        (ft.UniformSampling(2), fixed),
        (ft.AsyncFedAvg(), drawn),
        (ft.AsyncFedAvg(), fixed),
    ):
        for d in (
            ft.weights(scheme, clients, importance=p),
            ft.weights(scheme, clients, importance=p, rule="identical"),
        ):
            for types in (DataTypes("abcd"), DataTypes("aabb"), DataTypes("aaaa")):
                found = bound(problem, scheme=scheme, times=clients, weights=d, local=local, rounds=60, types=types)
                run, rounds = found.left.chi_squared < 1e-12, found.corollary_1 is not None
                window = found.expected.window
                assert rounds <= run
                seen.append((window == 1, run, rounds))
                if window == 1:
                    assert rounds == run
                    if run:
                        assert found.corollary_1 == pytest.approx(
                            found.theorem_3 / found.expected.expected_weight.sum()
                        )
    assert set(seen) == {
        (True, True, True),
        (True, False, False),
        (False, True, True),
        (False, True, False),
        (False, False, False),
    }


# Theorem 3


def test_theorem_3_has_no_residual_in_it():
    """Two clients that take turns: rounds stay R above their optima, the mean loss goes to its own. Caught: R in ε."""
    problem, clients = quadratics(centers=[[1.0], [-1.0]], curvatures=1.0, rows=1), ft.FixedTimes([1, 1])
    found = bound(
        problem,
        scheme=ft.AsyncFedAvg(),
        times=clients,
        local=ft.LocalSGD(steps=2, lr=1e-5, batch_size=None),
        rounds=10**8,
        init=[0.5],
        gradient_bound=2.0,
    )
    assert found.left.residual == pytest.approx(0.5)
    assert found.theorem_3 < 0.01 * found.left.residual < found.theorem_1


@pytest.mark.parametrize(("K", "server_lr"), [(1, 1.0), (5, 1.0), (4, 0.5)])
def test_equal_clients_come_to_a_quarter_of_theorem_3(K, server_lr):
    """Equal clients, no noise: ε is ε_F, and a run to its end has ‖θ⁰ − θ̄‖²/(4η̃KN). Caught: ε_F a fifth of itself."""
    problem, clients = quadratics(centers=[[3.0, 4.0]] * 2, curvatures=1.0, rows=1), ft.FixedTimes([1, 1])
    law = expected_from_scheme(ft.FedAvg(), clients)
    lr = learning_rate_ceiling(law, smoothness=1.0, local_steps=K, server_lr=server_lr).corrected
    rounds = int(2 / (lr * server_lr * K))
    local, line, d = (
        ft.LocalSGD(steps=K, lr=lr, batch_size=None),
        ft.timeline(ft.FedAvg(), clients, rounds=rounds),
        [0.5, 0.5],
    )
    found = bound(problem, timeline=line, weights=d, local=local, server_lr=server_lr, init=[0.0, 0.0])
    run = measure(found.left, line, d, local, server_lr=server_lr, init=[0.0, 0.0])
    assert found.theorem_3 == pytest.approx(found.terms["ε_F"]) == pytest.approx(25 / (lr * server_lr * K * rounds))
    assert 0.23 < float(run.theorem_3[0]) / found.theorem_3 < 0.27


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix(1), ft.FedBuff(2)], ids=str)
def test_theorem_3_is_theorem_1_beyond_r_and_the_window_inequality(scheme):
    """On every run L̄ − L̄(θ̄) is [Theorem 1's left − R] + what the window adds, each below its own part of ε.

    Caught: `measure` with q_i(n) for q_i, with L̄ at another model, or a mean over K + 1 models.
    """
    problem = quadratics(3, dimension=2, heterogeneity=3.0, seed=1, rows=1)
    clients = ft.FixedTimes([1, 2, 3])
    window = expected_from_scheme(scheme, clients).window
    line, d = ft.timeline(scheme, clients, rounds=3 * window), ft.weights(scheme, clients)
    law = expected_from_timeline(line, d)
    lr = learning_rate_ceiling(law, smoothness=problem.smoothness, local_steps=3).corrected
    local = ft.LocalSGD(steps=3, lr=lr, batch_size=None)
    left = residuals(constants(problem, batch_size=None), law)
    run = measure(left, line, d, local, init=np.zeros(2))
    found = bound(problem, timeline=line, weights=d, local=local, init=np.zeros(2), measured=run)
    _, losses, table = _run(problem, line, d, Steps(lr, 3, None, 1.0))
    q = table.mean(axis=0)
    excess = float((losses * (q - table)).sum(axis=1).mean())
    whole = float((losses @ q).mean() - q @ problem.client_losses(problem.optimum(q)))
    assert float(run.theorem_3[0]) == pytest.approx(whole, rel=1e-9)
    assert whole == pytest.approx(float(run.theorem_1[0]) - left.residual + excess, rel=1e-9)
    assert float(run.theorem_1[0]) - left.residual <= found.parts.error
    assert excess <= found.theorem_3 - found.parts.error
