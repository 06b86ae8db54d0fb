"""Where training ends, on quadratic clients with full gradients: around the predicted point, or at it."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft

RATES = (0.05, 0.005)


def train(problem, schemes, times, *, until, lr=RATES, steps=1, **more):
    local = ft.LocalSGD(steps=steps, lr=list(lr), batch_size=None)
    return ft.simulate(
        problem, schemes, times, until=until, local=local, dtype="float64", **({"points": 11, "step": "paper"} | more)
    )


def distances(history, point, **where):
    """Of the final models to a point, at each rate."""
    found = history.dataset["parameter:"].sel(where).squeeze()
    return np.linalg.norm(found.transpose("local_lr", ...).values - point, axis=-1)


def in_proportion(far, near):
    return 7 < far / near < 13


@pytest.fixture(scope="module")
def family():
    """Three clients with minimisers, curvatures and importance of their own; and where each scheme ends."""
    problem = ft.problems.quadratics(
        centers=[[0, 0], [4, 1], [1, 5]],
        curvatures=[[1.0, 0.6], [0.8, 0.9], [0.7, 1.0]],
        importance=["1/2", "1/3", "1/6"],
        rows=1,
    )
    times = ft.FixedTimes(["1", "3/4", "1/2"])
    schemes = [ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)]
    return problem, times, train(problem, schemes, times, until=9000, weights=("time-based", "identical"), points=3001)


def test_training_ends_in_a_cycle(family) -> None:
    """All times divide 3: three units of time later everything is as it was, and in between it is not."""
    _, _, history = family
    last = history.dataset["loss"].isel(time=slice(-100, None))
    assert float((last.max("time") / last.min("time") - 1).max()) < 1e-12
    assert np.allclose(np.diff(history.dataset["time"]), 3)


@pytest.mark.parametrize("scheme", [ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)], ids=str)
@pytest.mark.parametrize("rule", ["time-based", "identical"])
def test_the_cycle_closes_in_on_the_minimiser_of_what_is_weighted(family, scheme, rule) -> None:
    """argmin Σ q_i L_i: of the federated loss with time-based weights, of the surrogate with identical ones."""
    problem, times, history = family
    q = ft.expected_weights(scheme, times, importance=problem.importance.exact, rule=rule)
    predicted, other = problem.optimum(q), problem.optimum(None if rule == "identical" else [1, 1, 1])
    if rule == "time-based":
        np.testing.assert_allclose(predicted, problem.optimum())
    far, near = distances(history, predicted, scheme=scheme.label, weights=rule)
    assert in_proportion(far, near)
    assert near < 0.05
    assert distances(history, other, scheme=scheme.label, weights=rule).min() > 0.3


def test_two_equal_clients_that_take_turns() -> None:
    """Example 2: (q_1 θ_1 + q_2 θ_2)/(q_1 + q_2) as η_l goes to zero; the cycle itself has a closed form."""
    centers = np.array([[1.0, 0.0], [-2.0, 3.0]])
    problem = ft.problems.quadratics(centers=centers, curvatures=1, importance=["1/4", "3/4"], rows=1)
    times = ft.FixedTimes([1, 1])
    line = ft.timeline(ft.AsyncFedAvg(), times, rounds=6)
    assert line.client.tolist() == [0, 1] * 3
    history = train(problem, ft.AsyncFedAvg(), times, until=6000, weights=("time-based", "identical"))
    for rule, q in (("time-based", np.array([0.25, 0.75])), ("identical", np.array([0.5, 0.5]))):
        far, near = distances(history, q @ centers, weights=rule)
        assert in_proportion(far, near)
        for rate in RATES:
            # each works from the model of its own last turn: u = v + s_1 (θ_1 − u) and v = u + s_2 (θ_2 − v), s = d η_l
            first, second = 2 * q * rate
            system = np.array([[1 + first, -1.0], [-1.0, 1 + second]])
            _, after_second = np.linalg.solve(system, [first * centers[0], second * centers[1]])
            found = history.dataset["parameter:"].sel(weights=rule, local_lr=rate).squeeze()
            np.testing.assert_allclose(found, after_second, rtol=1e-9)


def test_equal_clients_of_two_kinds_in_pairs_reach_the_optimum_exactly() -> None:
    """Example 1: FedBuff(2) takes one client of each kind a round; θ^{n+2} − θ^{n+1} + φθ^n = φθ*, stable for φ < 1."""
    one, two = np.array([1.0, 0.0, -1.0]), np.array([-2.0, 3.0, 0.5])
    times = ft.FixedTimes([1, 1, 1, 1])
    line = ft.timeline(ft.FedBuff(2), times, rounds=6)
    assert line.client.tolist() == [0, 1, 2, 3] * 3
    assert line.staleness.tolist() == [0, 0, *[1] * 10]
    rates = (0.01, 0.3, 0.6)
    for centers, exact in (([one, two, one, two], True), ([one, one, two, two], False)):
        problem = ft.problems.quadratics(centers=centers, curvatures=1, rows=1)
        history = train(problem, ft.FedBuff(2), times, until=2000, lr=rates)
        away = distances(history, (one + two) / 2)
        assert (away < 1e-10).all() if exact else (away > 1e-3).all()
    slow = train(
        ft.problems.quadratics(centers=[one, two, one, two], curvatures=1, rows=1),
        ft.FedBuff(2),
        times,
        until=8,
        lr=[0.3],
        steps=2,
    )
    phi = 1 - (1 - 0.3) ** 2
    theta = [np.zeros(3), phi * (one + two) / 2]
    for _ in range(15):
        theta.append(theta[-1] + phi * ((one + two) / 2 - theta[-2]))
    np.testing.assert_allclose(slow.dataset["parameter:"].squeeze(), theta[16], rtol=1e-12)


def test_fedavg_with_one_step_is_gradient_descent() -> None:
    """θ^n = θ* + (1 − η_g η_l Σ p_i a_i)^n (θ^0 − θ*), coordinate by coordinate."""
    problem = ft.problems.quadratics(4, dimension=3, importance=["1/2", "1/4", "1/8", "1/8"], rows=[1, 2, 3, 4], seed=2)
    history = train(problem, ft.FedAvg(), ft.FixedTimes([1, 2, 3, 1]), until=60, lr=[0.1, 1.0], server_lr=[1.0, 0.5])
    steepness = problem.importance.values @ problem.curvatures
    for rate in (0.1, 1.0):
        for server_lr in (1.0, 0.5):
            want = problem.optimum() * (1 - (1 - server_lr * rate * steepness) ** 20)
            found = history.dataset["parameter:"].sel(local_lr=rate, server_lr=server_lr).squeeze()
            np.testing.assert_allclose(found, want, rtol=1e-12)


def test_fedfix_at_half_the_common_time_is_fedavg_with_twice_the_server_rate() -> None:
    """Every second round is empty and d_i = 2 p_i: the same models at the same times, over twice as many rounds."""
    problem = ft.problems.quadratics(3, dimension=3, noise=0.3, importance=["1/2", "1/4", "1/4"])
    history = ft.simulate(
        problem,
        [ft.FedAvg(), ft.FedFix("1/2")],
        ft.FixedTimes([1, 1, 1]),
        until=20,
        points=81,
        step="paper",
        local=ft.LocalSGD(steps=3, lr=0.1, batch_size=4),
        weights=("time-based", "identical"),
        server_lr=[0.4, 0.8],
        seeds=[0, 1],
        dtype="float64",
    )
    one = history.dataset.sel(scheme="FedFix(1/2)", server_lr=0.4)
    other = history.dataset.sel(scheme="FedAvg", server_lr=0.8)
    for name in ("loss", "surrogate_loss", "parameter:"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12)
    assert (one["rounds"].isel(time=-1) == 40).all()
    assert (other["rounds"].isel(time=-1) == 20).all()
    np.testing.assert_array_equal(one["updates"], other["updates"])
    same_rate = history.dataset.sel(scheme="FedAvg", server_lr=0.4)
    assert np.abs((one["loss"] - same_rate["loss"]).isel(time=8).values).min() > 1e-3
