"""Statements of the paper's text and proofs that no other file tests: by brute force, or by a counter-example."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtempo as ft
import fedtempo.theory as theory
from fedtempo.problems import Problem, quadratics
from fedtempo.theory import covariance as co
from fedtempo.theory.ceiling import Setting
from fedtempo.theory.expected import Expected, expected_from_scheme, expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.recursion import pull_of
from fedtempo.theory.round_residuals import residuals
from fedtempo.theory.rounds import kinds_of
from fedtempo.theory.theorems import Steps, theorem_1
from fedtempo.theory.virtual_models import measure, virtual_models

cases = settings(derandomize=True, deadline=None, max_examples=40)
whole = st.integers(min_value=1, max_value=6)
times = st.lists(st.builds(Fraction, whole, st.integers(min_value=1, max_value=2)), min_size=1, max_size=5)
SCHEMES = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)]


# --- section 2


@cases
@given(times)
def test_rounds_are_as_long_as_table_2_says(values):
    """Δt^n = max_i T_i^n for FedAvg, min_i T_i^n for asynchronous FedAvg, Δt for FedFix."""
    clients = ft.FixedTimes(values)
    for scheme, length in (
        (ft.FedAvg(), lambda left: left.max(axis=1)),
        (ft.AsyncFedAvg(), lambda left: left.min(axis=1)),
        (ft.FedFix("3/4"), lambda left: np.full(len(left), 0.75)),
    ):
        line = ft.timeline(scheme, clients, rounds=20)
        rounds = np.diff(np.concatenate([[0], line.ends])) * float(line.unit)
        assert rounds == pytest.approx(length(theory.remaining_times(line, clients)))


def test_a_client_can_be_done_and_not_take_part():
    """T_i^n ≤ Δt^n says who is done. Of two that are done at once, asynchronous rounds take one; FedBuff takes m."""
    clients = ft.FixedTimes([1, 1, 1])
    for scheme, size in ((ft.AsyncFedAvg(), 1), (ft.FedBuff(2), 2)):
        line = ft.timeline(scheme, clients, rounds=1)
        assert (theory.remaining_times(line, clients)[0] <= 1).all()
        assert len(line.client) == size


def _shared_optimum(noise):
    """Two clients of different curvature with the same minimiser, 0."""
    rows = [np.array([[2.0, noise], [2.0, -noise]]), np.array([[0.5, noise], [0.5, -noise]])]
    return Problem(lambda key: jnp.ones(1), lambda t, b: jnp.mean(b[:, 0] * (t - b[:, 1]) ** 2) / 2, rows)


def test_sigma_is_zero_for_different_losses_with_a_common_minimiser():
    law = expected_from_scheme(ft.FedAvg(), ft.FixedTimes([1, 2]))
    left = residuals(constants(_shared_optimum(1.0), batch_size=None), law)
    assert left.sigma == pytest.approx(0, abs=1e-12)
    assert left.constants.losses.losses(np.ones(1)).tolist() == pytest.approx([2.0, 0.5])  # not the same loss
    assert residuals(constants(_shared_optimum(1.0), batch_size=1), law).sigma > 0.1  # with noise it is not
    still = residuals(constants(_shared_optimum(0.0), batch_size=1), law)
    assert still.sigma == pytest.approx(0, abs=1e-12)  # and it is, where every row has that minimiser
    local = ft.LocalSGD(lr=1e-3, batch_size=None)
    found = theory.bound(_shared_optimum(1.0), scheme=ft.FedAvg(), times=ft.FixedTimes([1, 2]), local=local, rounds=10)
    assert found.theorem_1 == pytest.approx(found.terms["ε_F"])  # what stays when Σ = R = 0
    assert found.theorem_1 > 0


def test_sigma_of_identical_clients_and_why_bounded_variance_does_not_bound_it():
    """Σ = E‖∇L(θ*, ξ)‖² for identical data; for others Σ holds Σ p_i‖∇L_i(θ*)‖², which no variance bounds."""
    law = expected_from_scheme(ft.FedAvg(), ft.FixedTimes([1, 1]))
    rows = np.array([[3.0], [1.0], [-1.0]])
    loss = lambda t, b: jnp.mean((t - b) ** 2) / 2  # noqa: E731
    same = Problem(lambda key: jnp.zeros(1), loss, [rows, rows])
    variance = float(rows.var())
    assert residuals(constants(same, batch_size=1), law).sigma == pytest.approx(variance)
    assert residuals(constants(same, batch_size=None), law).sigma == pytest.approx(0, abs=1e-12)
    apart = Problem(lambda key: jnp.zeros(1), loss, [rows + 5, rows - 5])
    assert residuals(constants(apart, batch_size=1), law).sigma == pytest.approx(variance + 25)
    assert residuals(constants(apart, batch_size=None), law).sigma == pytest.approx(25)  # although the variance is 0


# --- assumptions


def test_smoothness_of_the_full_losses_is_not_enough():
    """Assumption 1: one client, rows ½a_r θ² with a = (400, 0, …, 0). L is 1 for the full loss, 400 for a row."""
    curvatures, N = np.array([400.0, *[0.0] * 399]), 4000
    law = expected_from_scheme(ft.Centralized(), ft.FixedTimes([1]), rounds=N)

    def gap_and_bound(smoothness):
        """The mean of E L(θ^n) − L*, and ε_F: every row has the minimiser 0, so that R = Σ = 0."""
        lr = theory.learning_rate_ceiling(law, smoothness=smoothness).printed
        growth = float(np.mean((1 - lr * curvatures) ** 2))  # of E θ², in one step of one row
        return sum(0.5 * growth**n for n in range(N)) / N, 1 / (lr * N)

    gap, bound = gap_and_bound(float(curvatures.mean()))
    assert gap > 100 * bound
    gap, bound = gap_and_bound(float(curvatures.max()))
    assert gap < bound


def test_assumption_5_is_meant_for_two_different_clients():
    """With i = j it would be E[ω_i²] = α q_i², which no client that takes part at random satisfies with α ≤ 1."""
    one = co.one_at_a_time(np.array([1.5, 0.5]), np.array([0.25, 0.75]))
    square = one.gamma + one.co_participation * one.expected**2
    assert one.co_participation == 0
    assert (square > one.expected**2).all()


@pytest.mark.parametrize(
    ("clients", "again"),
    [(ft.ExponentialTimes([1, 2]), 0.39), (ft.LogNormalTimes([1, 2]), 0.13), (ft.UniformTimes([0.5, 1], [1.5, 3]), 0)],
    ids=["exponential", "log-normal", "uniform"],
)
def test_who_takes_part_is_independent_of_the_past_only_for_memoryless_times(clients, again):
    """Lemma 2 averages over S_n given the past. FedFix(1/2): 0.40 in a round, but P(T ≤ 1/2) right after a round."""
    line = ft.timeline(ft.FedFix("1/2"), clients, rounds=20_000)
    there = np.zeros(20_000, dtype=bool)
    there[line.round_of_update[line.client == 0]] = True
    share, after = there[1:].mean(), there[1:][there[:-1]].mean()
    law = expected_from_scheme(ft.FedFix("1/2"), clients, weights=[1.0, 1.0])
    assert share == pytest.approx(law.weights[0, 0], abs=0.02)
    assert share == pytest.approx(0.40, abs=0.03)
    assert after == pytest.approx(again, abs=0.02)
    assert (abs(share - after) < 0.02) == clients.memoryless


def test_bounded_mean_gradients_do_not_bound_the_change_of_a_loss():
    """Assumption 7 bounds E‖g‖; E[L(θ^{n+1})] − E[L(θ^n)] ≤ η̃qB²K uses ‖g‖ ≤ B. Rare large rows tell them apart."""
    chance, size, lr = 1e-4, 1.0, 1 / 144
    rows = np.array([size, -size, 0.0])  # ½(θ − c)², drawn with these chances
    weight = np.array([chance, chance, 1 - 2 * chance])
    theta = lr * rows  # from the optimum 0
    before, after = (float(weight @ np.abs(at[:, None] - rows) @ weight) for at in (0 * theta, theta))
    bound = max(before, after, float(weight @ np.abs(theta)))  # E‖∇L(·, ξ)‖ at both models, and E‖∇L‖
    rise = 0.5 * float(weight @ theta**2)
    assert rise > lr * bound**2
    assert rise <= lr * size**2  # with B surely


# --- sections 3.2 and 3.3


def _run(problem, line, weights, lr=1e-4, steps=2):
    local = ft.LocalSGD(steps=steps, lr=lr, batch_size=None)
    return theory.bound(problem, timeline=line, weights=weights, local=local, gradient_bound=1.0)


def test_the_terms_depend_on_rate_and_steps_as_the_text_says():
    problem = quadratics(3, dimension=2, noise=0.3, seed=1)
    clients = ft.FixedTimes([1, 2, 3])
    line, weights = ft.timeline(ft.AsyncFedAvg(), clients, rounds=22), ft.weights(ft.AsyncFedAvg(), clients)
    slow, fast = (_run(problem, line, weights, lr) for lr in (1e-6, 2e-6))
    assert fast.terms["ε_F"] == pytest.approx(slow.terms["ε_F"] / 2)  # as twice the rounds would
    assert fast.terms["ε_K"] == pytest.approx(slow.terms["ε_K"] * 4)
    assert (fast.terms["R"], fast.terms["P"]) == (slow.terms["R"], slow.terms["P"])  # no rate mends these
    assert _run(problem, line, weights, steps=1).terms["ε_K"] == 0
    one, other = (_run(problem, line, weights, 1e-6, k).terms["ε_K"] for k in (3, 5))
    assert other == pytest.approx(4 * one, rel=1e-6)  # (K − 1)²
    left, s = slow.left, slow.ceiling.setting
    base = theorem_1(left, Setting(**(vars(s) | {"max_delay": 0})), slow.steps, slow.start).joint
    delayed = [
        theorem_1(left, Setting(**(vars(s) | {"max_delay": t})), slow.steps, slow.start).joint - base for t in (3, 6)
    ]
    assert delayed[1] == pytest.approx(4 * delayed[0], rel=1e-6)  # τ², beside a part without delay
    assert base > 0


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_identical_data_leave_no_residual(scheme):
    """R = P = U = 0 and θ̄ = θ*, whatever the weights; but L^n is q(n) L and not L̄ where q(n) changes."""
    problem = quadratics(centers=[[1.0, 2.0]] * 3, curvatures=0.7, rows=1)
    line = ft.timeline(scheme, ft.FixedTimes([1, 2, 3]), rounds=24)
    law = expected_from_timeline(line, [0.2, 1.0, 3.0])
    left = residuals(constants(problem, batch_size=None), law, types=theory.DataTypes("aaa"))
    np.testing.assert_allclose(left.run_optimum, problem.optimum(), atol=1e-12)
    assert left.residual == pytest.approx(0, abs=1e-12)
    assert left.unfairness == pytest.approx(0, abs=1e-12)
    assert not left.unseen[left.busy].any()
    assert (np.ptp(law.total) > 0) == (scheme != ft.FedAvg())


def test_unfair_rounds_may_have_no_residual_and_no_unfairness():
    """s_j(n) ≠ r_j is said to give R > 0 and P > 0. FedAvg with wrong weights: R = 0. One client a round: P = 0."""
    problem = quadratics(3, dimension=2, heterogeneity=2.0, seed=4)
    known, clients = constants(problem, batch_size=None), ft.FixedTimes([1, 2, 3])
    biased = residuals(known, expected_from_scheme(ft.FedAvg(), clients, weights=[0.7, 0.2, 0.1]))
    assert biased.by_type.chi_squared.min() > 0.1
    assert biased.residual == pytest.approx(0, abs=1e-12)
    assert biased.unfairness > 1e-3
    single = residuals(known, expected_from_scheme(ft.AsyncFedAvg(), clients))
    assert single.by_type.chi_squared.min() > 0.1
    assert single.residual > 1e-3
    assert single.unfairness == pytest.approx(0, abs=1e-12)


def test_types_that_miss_rounds_enter_through_the_models_met():
    local = ft.LocalSGD(steps=1, lr=0.01, batch_size=None)
    clients = ft.FixedTimes([1, 2])
    weights, line = ft.weights(ft.AsyncFedAvg(), clients), ft.timeline(ft.AsyncFedAvg(), clients, rounds=12)
    unseen = {}
    for name, centers in (("apart", [[1.0], [-1.0]]), ("together", [[0.0], [0.0]])):
        problem = quadratics(centers=centers, curvatures=1.0, rows=1)
        left = residuals(constants(problem, batch_size=None), expected_from_timeline(line, weights))
        unseen[name] = measure(left, line, weights, local, init=[0.0]).unseen[0]
    assert unseen["apart"] > 0.1
    assert unseen["together"] == 0  # the first model minimises every loss


def _example_1():
    """[rounds, 4] q_i^n of the paper's clients 1 to 4 in a run: of FedBuff(2), whose first round is an even one."""
    scheme, clients = ft.FedBuff(2), ft.FixedTimes([1] * 4)
    line, weights = ft.timeline(scheme, clients, rounds=10), ft.weights(scheme, clients)
    ours = [[2, 4, 1, 3].index(i) for i in (1, 2, 3, 4)]  # odd clients in odd rounds
    law, kind = expected_from_timeline(line, weights), kinds_of(line, weights.applied(line))[0]
    return law, law.weights[kind][:, ours]


def test_example_1_has_other_zeros_than_its_list():
    """Odd clients in odd rounds, even ones in even rounds: two of the four q's that the list calls 0 are ½.

    Caught: a run of FedBuff that takes others, weights d_i of 1.
    """
    _, q = _example_1()
    half = {(n % 2, i) for n, row in enumerate(q) for i in (1, 2, 3, 4) if row[i - 1] == 0.5}
    zero = {(n % 2, i) for n, row in enumerate(q) for i in (1, 2, 3, 4) if row[i - 1] == 0}
    assert half == {(1, 1), (1, 3), (0, 2), (0, 4)}  # q_1^{2n+1} = q_3^{2n+1} = q_2^{2n} = q_4^{2n} = ½, as printed
    printed, meant = {(0, 1), (0, 2), (1, 3), (1, 4)}, {(0, 1), (0, 3), (1, 2), (1, 4)}
    assert zero == meant
    assert printed & half == {(0, 2), (1, 3)} == printed - zero
    types = np.stack([q[:, :2].sum(axis=1), q[:, 2:].sum(axis=1)], axis=1)  # clients 1 and 2 have Z_1, 3 and 4 Z_2
    assert (types == 0.5).all()


def test_example_1_gives_every_client_its_importance_in_two_rounds():
    """½[q_i^{2n} + q_i^{2n+1}] = p_i in each window of the run, and in no round. Caught: d_i = 1 or d_i = p_i."""
    law, q = _example_1()
    assert law.window == 2
    for pair in q.reshape(-1, 2, 4):
        assert pair.mean(axis=0) == pytest.approx([0.25] * 4)
        assert (pair != 0.25).all()
    assert law.expected_weight == pytest.approx([0.25] * 4)


def test_example_2_has_its_condition_on_the_shares_of_the_run():
    """Mean of q̃_i(n) over a window is the participation share, ½ for any weights; q_1/(q_1 + q_2) is what counts."""
    centers = np.array([[0.0], [1.0]])
    problem = quadratics(centers=centers, curvatures=1.0, rows=1)
    law = expected_from_scheme(ft.AsyncFedAvg(), ft.FixedTimes([1, 1]), weights=[0.4, 1.6])
    assert law.rounds @ law.normalised / law.num_rounds == pytest.approx([0.5, 0.5])  # = p_i
    left = residuals(constants(problem, batch_size=None), law)
    assert left.run_optimum == pytest.approx([0.8])  # (q_1 θ_1 + q_2 θ_2)/(q_1 + q_2), not the optimum ½
    assert law.normalised_run == pytest.approx([0.2, 0.8])


# --- section 3.4


@cases
@given(times, st.builds(Fraction, whole, st.integers(min_value=1, max_value=3)))
def test_fixed_times_have_windows_longer_than_their_delays(values, wait):
    clients = ft.FixedTimes(values)
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(wait), ft.FedBuff(min(2, len(values)))):
        line = ft.timeline(scheme, clients, rounds=4 * (window := expected_from_scheme(scheme, clients).window))
        assert window > line.staleness.max()
    eager = ft.timeline(ft.AsyncFedAvg(), clients, rounds=200)
    assert eager.staleness.max() >= len(values) - 1  # table 2's Ω(M)


def test_identical_data_do_not_make_the_window_one():
    """Section 3.4's 'which also implies W = 1' is true of s̃_j(n), not of s_j(n), and 4.1 itself has W = M."""
    found = theory.quantities(scheme=ft.AsyncFedAvg(), times=ft.FixedTimes([1, 3]), types="aa")
    assert found.by_type.normalised.tolist() == [[1.0], [1.0]]
    assert found.by_type.weights.min() < found.by_type.weights.max()
    assert found.expected.window == 4


def test_the_window_inequality_as_printed_sets_a_client_against_the_mean():
    """Σ_n q_i L_i(θ^{n,k}) ≤ Σ_n q_i(n)[L̄(θ^{n,k}) + …]: false for a client above the mean; L_i is meant."""
    problem = quadratics(centers=[[0.0], [3.0]], curvatures=1.0, rows=1)
    clients = ft.FixedTimes([1, 1])
    weights, line = ft.weights(ft.AsyncFedAvg(), clients), ft.timeline(ft.AsyncFedAvg(), clients, rounds=2)
    left = residuals(constants(problem, batch_size=None), expected_from_timeline(line, weights))
    steps = Steps(0.001, 2, None, 1.0)
    q, applied = left.expected.expected_weight, np.asarray(weights.applied(line))
    B = 3.0  # no gradient is longer between the two centres
    sums = np.zeros((3, 2))
    for n, v in enumerate(virtual_models(left.constants.losses, line, weights, steps, init=np.zeros(1))):
        losses = left.constants.losses.losses(v.models[0, :-1])
        row = np.where(np.arange(2) == line.client[n], applied[n], 0.0)
        slack = 0.001 * 2 * B**2  # η̃K(W − 1)B²
        sums += [(q * losses).sum(axis=0), row * ((losses @ q) + slack).sum(), (row * (losses + slack)).sum(axis=0)]
    ours, printed, meant = sums
    assert ours[1] > printed[1]
    assert (ours <= meant).all()


# --- section 4


def test_fedfix_residual_is_at_most_that_of_async():
    rng = np.random.default_rng(2)
    for seed in range(12):
        size = int(rng.integers(2, 6))
        parts = rng.integers(1, 6, size=size).tolist()
        p = [Fraction(x, sum(parts)) for x in parts]
        problem = quadratics(size, dimension=2, importance=p, seed=seed, heterogeneity=2.0)
        known = constants(problem, batch_size=None)
        clients = ft.FixedTimes(rng.integers(1, 7, size=size).tolist())
        for wait in (Fraction(1, 2), 1, 2, 5):
            law = expected_from_scheme(ft.FedFix(wait), clients, p)
            assert -1e-12 <= residuals(known, law).residual <= known.heterogeneity * (1 + 1e-9)


def test_fedfix_can_have_a_longer_window_than_async():
    """'Thanks to lower values … the last two terms are smaller': not W, at times 1, 4, 6, 12 with Δt = 1.1."""
    clients = ft.FixedTimes([1, 4, 6, 12])
    fix = expected_from_scheme(ft.FedFix("11/10"), clients)
    eager = expected_from_scheme(ft.AsyncFedAvg(), clients)
    assert fix.window == lcm(1, 4, 6, 11) == 132
    assert eager.window == 12 + 3 + 2 + 1
    small = expected_from_scheme(ft.FedFix("1/100"), ft.FixedTimes([1, 1]))  # and not τ, where Δt is small
    assert small.max_delay == 99 > expected_from_scheme(ft.AsyncFedAvg(), ft.FixedTimes([1, 1])).max_delay == 1


def test_it_is_fedfix_that_makes_slowest_over_wait_more_rounds():
    """'With asynchronous FedAvg … at least τ_M/Δt times more' (4.4): true of FedFix, false of asynchronous."""
    clients = ft.FixedTimes([1, 1])
    for wait in (Fraction(1, 3), Fraction(1, 100)):
        fix, eager, calm = (theory.rounds_in(s, clients, 60) for s in (ft.FedFix(wait), ft.AsyncFedAvg(), ft.FedAvg()))
        assert fix == calm / wait
        assert eager == 2 * calm < calm / wait


def test_rates_of_clients_do_what_weights_do_for_one_local_step_only():
    """η_l(i) ∝ d_i in d_i's place (4.5): the same pull for K = 1, for more up to first order in η_l."""
    curvature, d = np.array([[1.0], [0.4]]), np.array([0.5, 1.5])

    def apart(lr, steps):
        weighted = d[:, None] * pull_of(curvature, lr, steps)[:, 0]
        own = np.stack([pull_of(curvature[i : i + 1], lr * d[i], steps)[0, 0] for i in range(2)])
        return float(np.abs(weighted - own).max())

    assert apart(0.1, 1) == pytest.approx(0, abs=1e-15)
    assert 80 < apart(0.01, 5) / apart(0.001, 5) < 120


# --- appendix A


def test_basic_inequalities():
    """‖∇f‖² ≤ 2L[f − f*], ‖∇f(x) − ∇f(y)‖ ≤ L‖x − y‖, E‖X − EX‖² ≤ E‖X‖², Σ_k k Σ_{l<k} x_l ≤ (K−1)² Σ x_k."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        problem = quadratics(2, dimension=3, seed=seed)
        known = constants(problem, batch_size=None)
        x, y = rng.normal(size=(2, 3)) * 3
        gradients, other = known.losses.gradients(x), known.losses.gradients(y)
        gaps = known.losses.losses(x) - known.client_minima
        assert ((gradients**2).sum(axis=1) <= 2 * known.full_smoothness * gaps * (1 + 1e-12)).all()
        assert np.linalg.norm(gradients - other, axis=1).max() <= known.full_smoothness * np.linalg.norm(x - y)
        sample = rng.normal(size=(7, 3)) + rng.normal()
        assert sample.var(axis=0).sum() <= (sample**2).sum(axis=1).mean()
        steps = rng.uniform(0, 1, size=int(rng.integers(1, 9)))
        K = len(steps)
        assert sum(k * steps[:k].sum() for k in range(K)) <= (K - 1) ** 2 * steps.sum() + 1e-12


def test_the_printed_beta_is_too_small_where_a_client_is_drawn_twice():
    """Lemma 1's γ_i ≤ βq_i with β = max{d_i − αq_i} takes ω_i² = d_i ω_i: multinomial draws give ω_i = 2d_i as well."""
    size, p = 3, np.array([0.5, 0.3, 0.2])
    found = co.multinomial_sample(np.full(3, 1 / size), p, size)
    printed = float((1 / size - found.co_participation * found.expected).max())
    assert found.weight_spread == pytest.approx(1 / size)
    assert found.weight_spread > printed
    assert (found.gamma > printed * found.expected * (1 + 1e-9)).any()


def test_the_fifth_term_of_theorem_1_goes_into_the_third():
    """3ρ²αDeΣ_1 ≤ 2 · 6η_l²(K−1)²LΣ_1 where 3ρ²η̃L ≤ 1 and 48ρ³η̃²K²τ²L² ≤ 1 (end of A.4's proof)."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        rho, L, server, alpha = rng.uniform(1, 5), rng.uniform(0.1, 9), rng.uniform(0.1, 3), rng.uniform(0, 1)
        K, tau = int(rng.integers(1, 20)), int(rng.integers(0, 30))
        lr = min(1 / (3 * rho**2 * server * L), (48 * rho**3) ** -0.5 / max(server * K * tau * L, 1e-9))
        e = server * lr + 16 * rho * L * (server * lr * K * tau) ** 2
        third = 6 * lr**2 * (K - 1) ** 2 * L
        fifth = 3 * rho**2 * alpha * (third * L) * e
        assert fifth <= 2 * third * (1 + 1e-12)


# --- appendix C


def test_centralized_training_has_no_delay():
    law = expected_from_scheme(ft.Centralized(), ft.FixedTimes([2]))
    assert (law.max_delay, law.co_participation, law.weight_spread, law.window) == (0, 1.0, 0.0, 1)
    assert (ft.timeline(ft.Centralized(), ft.FixedTimes([2]), rounds=5).staleness == 0).all()
    problem = quadratics(1, dimension=2, noise=0.5)
    assert residuals(constants(problem, batch_size=1), law).residual == pytest.approx(0, abs=1e-12)


def test_rounds_by_a_criterion_have_a_residual():
    """ε = ε_FedAvg + O(η̃(W − 1)K) (C.3) leaves out R: rounds that differ minimise different losses."""
    problem = quadratics(4, dimension=2, heterogeneity=2.0, seed=6)
    weights = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]])
    law = Expected(weights, np.array([1.0, 1.0]), 2, 1.0, 0.0, 0, 2, "stationary")
    left = residuals(constants(problem, batch_size=None), law)
    np.testing.assert_allclose(left.run_optimum, problem.optimum(), atol=1e-9)
    assert left.residual > 1e-2
