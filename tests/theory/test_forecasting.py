"""Forecasts against simulated runs, far horizons against long recursions, stationary losses against where they end."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.importance import Importance
from fedtempo.theory.forecasting import forecast
from fedtempo.theory.recursion import Coordinates
from fedtempo.theory.regimes import Independent, Repeating, regime
from fedtempo.theory.stability import rate, stability_limit, stationary_loss

MEANS = ["1", "3/4", "1/2", "1/4"]
TIMES = ft.FixedTimes(MEANS)
EXPONENTIAL = ft.ExponentialTimes(MEANS)
FIXED = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedFix("1/8"), ft.FedBuff(2)]
LOCAL = ft.LocalSGD(steps=3, lr=[0.02, 0.1], batch_size=4)


@pytest.fixture(scope="module")
def problem():
    return ft.problems.quadratics(4, dimension=3, noise=1.0, seed=1, importance=["1/2", "1/6", "1/6", "1/6"])


def lines_of(scheme, times, problem, until, seeds=1):
    p = problem.importance.exact
    return [ft.timeline(scheme, times, until=until, importance=p, seed=s) for s in range(seeds)]


SEEDS, POINTS, UNTIL = 200, 9, 4
SIMULATED = [(s, TIMES) for s in (*FIXED[:3], FIXED[4], ft.UniformSampling(2), ft.MultinomialSampling(2))] + [
    (ft.AsyncFedAvg(), EXPONENTIAL)
]


@pytest.fixture(scope="module")
def histories(problem):
    def run(times):
        schemes = [scheme for scheme, law in SIMULATED if law is times]
        return ft.simulate(
            problem,
            schemes,
            times,
            until=UNTIL,
            local=LOCAL,
            seeds=range(SEEDS),
            points=POINTS,
            dtype="float64",
            step="paper",
        )

    return {times: run(times).dataset["loss"].squeeze("weights") for times in (TIMES, EXPONENTIAL)}


@pytest.mark.parametrize(("scheme", "times"), SIMULATED, ids=lambda x: str(x)[:30])
def test_simulated_runs_lie_around_the_forecast(problem, histories, scheme, times) -> None:
    """Means over 200 runs lie within four standard errors, each run taken against the forecast of its own timeline."""
    random = times.random or scheme.waiting.random
    lines = lines_of(scheme, times, problem, UNTIL, SEEDS if random else 1)
    d = ft.weights(scheme, times, importance=problem.importance.exact)
    at = [Fraction(UNTIL * k, POINTS - 1) for k in range(POINTS)]
    own = np.array([forecast(problem, line, d, local=LOCAL, at=at).loss for line in lines])
    off = histories[times].sel(scheme=scheme.label).transpose("seed", "local_lr", "time").values - own
    error = off.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert (np.abs(off.mean(axis=0)) <= 4 * error + 1e-9).all()
    assert (error[:, 3:] > 1e-4).all()
    assert (error[:, 3:] < 0.05).all()
    found = forecast(problem, lines, d, local=LOCAL, at=at)
    np.testing.assert_allclose(found.loss, own.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.client_loss @ problem.importance.values, found.loss, rtol=1e-12)


@pytest.mark.parametrize("scheme", FIXED[1:], ids=str)
def test_powers_of_the_cycle_reach_what_the_recursion_reaches(problem, scheme) -> None:
    law = regime(scheme, TIMES, importance=problem.importance.exact)
    assert isinstance(law, Repeating)
    [line] = lines_of(scheme, TIMES, problem, 200)
    d = ft.weights(scheme, TIMES, importance=problem.importance.exact)
    at = [0, "1/3", 1, "5/2", 3, "17/4", 60, "199/2", 200]
    powers, steps = (forecast(problem, one, w, local=LOCAL, at=at) for one, w in ((law, None), (line, d)))
    np.testing.assert_allclose(powers.mean, steps.mean, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(powers.variance, steps.variance, rtol=1e-10, atol=1e-16)
    rounds = [0, 1, 7, 100, 101, line.num_rounds]
    powers, steps = (forecast(problem, one, w, local=LOCAL, rounds=rounds) for one, w in ((law, None), (line, d)))
    np.testing.assert_allclose(powers.loss, steps.loss, rtol=1e-12)
    np.testing.assert_allclose(powers.time, steps.time, rtol=1e-12)


@pytest.mark.parametrize("scheme", FIXED, ids=str)
def test_the_stationary_loss_is_where_forecasts_end(problem, scheme) -> None:
    """A time average over the last cycles of a long timeline; all durations are multiples of 1/8, cycles divide 24."""
    found = stationary_loss(problem, scheme, TIMES, local=LOCAL)
    assert not found.error.any()
    [line] = lines_of(scheme, TIMES, problem, 3000)
    d = ft.weights(scheme, TIMES, importance=problem.importance.exact)
    at = [2976 + Fraction(k, 24) for k in range(24 * 24)]
    late = forecast(problem, line, d, local=LOCAL, at=at).loss.mean(axis=1)
    np.testing.assert_allclose(found.loss, late, rtol=1e-9)


@pytest.mark.parametrize(
    ("scheme", "times"),
    [
        (ft.UniformSampling(2), TIMES),
        (ft.MultinomialSampling(2), TIMES),
        (ft.AsyncFedAvg(), EXPONENTIAL),
        (ft.FedFix("1/2"), EXPONENTIAL),
        (ft.FedBuff(2), EXPONENTIAL),
    ],
    ids=lambda x: str(x)[:30],
)
def test_the_stationary_loss_of_random_rounds(problem, scheme, times) -> None:
    """Against the mean over drawn timelines long after the start, with its standard error."""
    local = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
    found = stationary_loss(problem, scheme, times, local=local)
    d = ft.weights(scheme, times, importance=problem.importance.exact)
    ends = []
    for seed in range(12):
        line = ft.timeline(scheme, times, rounds=1300, importance=problem.importance.exact, seed=seed)
        ends.append(forecast(problem, line, d, local=local, rounds=range(300, 1301)).loss.mean())
    excess = np.array(ends) - problem.optimal_loss
    error = excess.std(ddof=1) / np.sqrt(len(ends))
    assert error < 0.1 * excess.mean()
    assert abs(excess.mean() - (found.loss[0] - problem.optimal_loss)) < 4 * error


def test_the_rate_is_the_slope_of_the_forecast() -> None:
    """Without noise and towards one point, log distances fall along a line."""
    problem = ft.problems.quadratics(centers=np.ones((4, 2)), curvatures=[[1.0, 0.4]] * 4, rows=1)
    local = ft.LocalSGD(steps=2, lr=0.05, batch_size=None)
    for scheme in FIXED:
        [line] = lines_of(scheme, TIMES, problem, 36)
        d = ft.weights(scheme, TIMES)
        away = np.abs(forecast(problem, line, d, local=local, at=[24, 36]).mean[0] - 1).max(axis=1)
        expected = np.log(away[0] / away[1]) / 12
        assert rate(problem, scheme, TIMES, local=local)[0] == pytest.approx(expected, rel=1e-3), scheme


def test_beyond_the_limit_losses_are_infinite(problem) -> None:
    limit = stability_limit(problem, ft.AsyncFedAvg(), TIMES, local_steps=3).lr
    local = ft.LocalSGD(steps=3, lr=[0.9 * limit, 1.1 * limit], batch_size=4)
    found = stationary_loss(problem, ft.AsyncFedAvg(), TIMES, local=local)
    assert np.isfinite(found.loss[0])
    assert np.isinf(found.loss[1])
    speed = rate(problem, ft.AsyncFedAvg(), TIMES, local=local)
    assert speed[0] > 0 > speed[1]
    law = regime(ft.AsyncFedAvg(), TIMES, importance=problem.importance.exact)
    far = forecast(problem, law, local=local, at=[10**7 + Fraction(k, 24) for k in range(72)])  # one cycle
    assert far.loss[0].mean() == pytest.approx(found.loss[0], rel=1e-9)
    assert np.isinf(far.loss[1]).all()


def test_estimates_say_how_far_off_they_are(problem) -> None:
    """Forced along a timeline, async with exponential times ends near its exact law."""
    local = ft.LocalSGD(steps=2, lr=0.05, batch_size=4)
    exact, estimate = (
        stationary_loss(problem, ft.AsyncFedAvg(), EXPONENTIAL, local=local, sense=s, rounds=4000)
        for s in ("mean-square", "typical")
    )
    assert isinstance(regime(ft.AsyncFedAvg(), EXPONENTIAL), Independent)
    assert not exact.error.any()
    assert estimate.error[0] > 0
    excess = exact.loss[0] - problem.optimal_loss
    assert estimate.loss[0] - problem.optimal_loss == pytest.approx(excess, rel=0.3)


# the paper's examples


def two_types(order):
    centers = np.array([[1.0, -2.0], [4.0, 3.0]])[order]
    return Coordinates(
        np.ones((len(order), 2)), centers, np.zeros_like(centers), np.zeros(2), Importance(None, len(order))
    )


@pytest.mark.parametrize("steps", [1, 4])
def test_example_1_reaches_the_optimum_itself(steps) -> None:
    """FedBuff(2), four equal clients of types Z1, Z2, Z1, Z2: both types in every round; for 0 < φ < 1."""
    clients = two_types([0, 1, 0, 1])
    times = ft.FixedTimes([1] * 4)
    line = ft.timeline(ft.FedBuff(2), times, rounds=4)
    assert line.client.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    law = regime(ft.FedBuff(2), times)
    shares = np.array([0.05, 0.5, 0.95, 0.999])
    lr = (1 - (1 - shares) ** (1 / steps)).tolist()
    end = forecast(clients, law, local=ft.LocalSGD(steps=steps, lr=lr, batch_size=None), at=[10**6])
    np.testing.assert_allclose(end.mean[:, 0], np.tile([2.5, 0.5], (4, 1)), rtol=1e-10)
    if steps == 1:  # θ^{n+2} − θ^{n+1} + φ θ^n = φ θ*: |roots|² = φ
        assert stability_limit(clients, ft.FedBuff(2), times).lr == pytest.approx(1, rel=1e-8)


def test_example_1_in_another_order_does_not() -> None:
    """Z1, Z1, Z2, Z2: one type a round, and the cycle stays O(η_l) away."""
    clients = two_types([0, 0, 1, 1])
    law = regime(ft.FedBuff(2), ft.FixedTimes([1] * 4))
    end = forecast(clients, law, local=ft.LocalSGD(lr=[0.1, 0.01], batch_size=None), at=[10**6])
    far, near = np.linalg.norm(end.mean[:, 0] - [2.5, 0.5], axis=1)
    assert 8 < far / near < 12
    assert near > 0.01


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.4, 1.6]])
def test_example_2_ends_in_a_cycle_around_the_predicted_point(weights) -> None:
    """Two clients in turn: both points of the cycle are O(η_l) from (q_1 θ_1 + q_2 θ_2)/(q_1 + q_2), never at it."""
    clients = two_types([0, 1])
    d = np.array(weights)
    law = regime(ft.AsyncFedAvg(), ft.FixedTimes([1, 1]), weights=d)
    lr = [0.1, 0.01, 0.001]
    last = 10**7
    end = forecast(clients, law, local=ft.LocalSGD(lr=lr, batch_size=None), rounds=[last, last + 1])
    predicted = d @ clients.center / d.sum()
    off = np.linalg.norm(end.mean - predicted, axis=2)  # [rates, the two places of the cycle]
    apart = np.linalg.norm(end.mean[:, 0] - end.mean[:, 1], axis=1)
    assert (apart[:-1] / apart[1:] > 8).all()
    assert (apart[:-1] / apart[1:] < 12).all()
    assert (off.max(axis=1)[:-1] / off.max(axis=1)[1:] > 8).all()
    assert (off.max(axis=1) > 0.1 * np.array(lr)).all()
    for k, rate_ in enumerate(lr):  # u = v + s_1 (θ_1 − u), v = u + s_2 (θ_2 − v), s = d η_l
        first, second = d * rate_
        system = np.array([[1 + first, -1.0], [-1.0, 1 + second]])
        cycle = np.linalg.solve(system, np.stack([first * clients.center[0], second * clients.center[1]]))
        np.testing.assert_allclose(end.mean[k, 1], cycle[0], rtol=1e-9)
        np.testing.assert_allclose(end.mean[k, 0], cycle[1], rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"local": ft.LocalSGD(momentum=0.9)}, "momentum"),
        ({"local": ft.LocalSGD(clip=1.0)}, "clip"),
        ({"local": ft.LocalSGD(draw="epochs")}, "epochs"),
        ({"local": ft.LocalSGD(steps=[1, 2])}, "one number of local steps"),
        ({"local": ft.LocalSGD(batch_size=[1, 2])}, "one batch size"),
        ({"rounds": [10**6]}, "beyond the timeline"),
        ({"weights": None}, "weights"),
        ({"line": []}, "no timelines"),
        ({"line": regime(ft.FedFix("1/2"), TIMES)}, "no end"),
        ({"problem": ft.problems.quadratics(3)}, "4 clients"),
        ({"problem": "digits"}, "not quadratic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "asked",
)
def test_what_cannot_be_forecast_is_refused(problem, change, match) -> None:
    given = {
        "problem": problem,
        "line": ft.timeline(ft.FedAvg(), TIMES, rounds=5),
        "weights": ft.weights(ft.FedAvg(), TIMES),
        "local": LOCAL,
    } | change
    with pytest.raises(ft.InputError, match=match):
        forecast(given.pop("problem"), given.pop("line"), given.pop("weights"), **given)
