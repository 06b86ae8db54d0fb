"""What each method promises: optima, equivalences, bounds and bytes; and combinations that make no sense."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import fedtempo as ft
from simulation.test_engines import distance, flat

TIMES = ft.FixedTimes(["1", "2/3", "1/2"])
PROBLEM = ft.problems.quadratics(3, dimension=4, convexity=0.4, rows=1, seed=1)


def optimum(shares):
    """Where Σ q_i ∇L_i = 0."""
    data = [tuple(np.asarray(x, np.float64) for x in PROBLEM.client_data(i)) for i in range(3)]
    curvature = sum(q * a.mean(axis=0) for q, (a, _) in zip(shares, data, strict=True))
    return sum(q * (a * c).mean(axis=0) for q, (a, c) in zip(shares, data, strict=True)) / curvature


def model(scheme, *, until=200, weights="time-based", **local):
    local = ft.LocalSGD(**({"steps": 3, "lr": 0.05, "batch_size": None} | local))
    made = ft.simulate(PROBLEM, scheme, TIMES, until=until, local=local, weights=weights, dtype="float64", points=2)
    return flat(made).reshape(-1)


BEST = optimum(PROBLEM.importance.values)


@pytest.mark.parametrize("correction", [ft.FedDANE(0.1), ft.FedDyn(1.0), ft.Scaffold()], ids=lambda c: c.label)
@pytest.mark.parametrize("scheme", [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/3")], ids=str)
def test_corrections_with_memory_reach_the_optimum_even_under_weights_that_are_biased(scheme, correction):
    biased = ft.Identical()
    away = np.linalg.norm(model(scheme, weights=biased) - BEST)
    corrected = np.linalg.norm(model(scheme.using(correction=correction), weights=biased, until=400) - BEST)
    assert away > 1e-3  # local drift, and for the asynchronous schemes also the bias of their weights
    assert corrected < 1e-8


def test_fedprox_leaves_the_bias_and_shortens_the_drift():
    schemes = (ft.FedAvg(), ft.FedAvg().using(correction=ft.FedProx(2.0)))
    plain, held = (np.linalg.norm(model(s, steps=10, lr=0.1) - BEST) for s in schemes)
    assert 1e-6 < held < plain
    asynchronous = ft.AsyncFedAvg().using(correction=ft.FedProx(2.0))
    assert np.linalg.norm(model(asynchronous, weights="identical") - BEST) > 1e-2


# -- compensation


def three_ways(scheme, lr, steps):
    ways = (None, "rate", "work")
    return [model(scheme.using(compensate=way), until=6, lr=lr, steps=steps) for way in ways]


def test_one_local_step_counts_the_same_by_weight_and_by_rate():
    for scheme in (ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)):
        weight, rate = (model(scheme.using(compensate=way), until=6, steps=1) for way in (None, "rate"))
        np.testing.assert_allclose(rate, weight, rtol=1e-12)


def test_the_three_ways_agree_to_first_order_and_differ_in_the_second():
    for lr in (0.02, 0.01):
        weight, rate, work = three_ways(ft.FedFix("1/2"), lr, 2)
        apart = [np.linalg.norm(weight - other) for other in (rate, work)]
        assert all(gap > 1e-7 for gap in apart)
        if lr == 0.02:
            wide = apart
    assert all(3.3 < one / other < 4.7 for one, other in zip(wide, apart, strict=True))  # halved rate, a quarter


def test_what_compensates_time_based_weights_does_not_depend_on_the_rules_of_a_study():
    scheme, local = ft.FedFix("1/2").using(compensate="work"), ft.LocalSGD(steps=2, lr=0.1, batch_size=None)
    options = {"until": 5, "local": local, "points": 2, "dtype": "float64"}
    alone = ft.simulate(PROBLEM, scheme, TIMES, **options)
    among = ft.simulate(PROBLEM, scheme, TIMES, weights=("identical", "time-based"), **options)
    np.testing.assert_array_equal(flat(among)[0, 0], flat(alone)[0, 0])
    assert np.isnan(flat(among)[0, 1]).all()


def test_rates_and_steps_are_those_of_the_weights():
    from fedtempo.schemes.compensation import compensated
    from fedtempo.schemes.options import SchemeOptions

    d = ft.weights(ft.FedFix("1/2"), TIMES)  # 2/3, 2/3, 1/3
    by_rate, by_work = (compensated(SchemeOptions(compensate=way), d, 3, "FedFix") for way in ("rate", "work"))
    np.testing.assert_allclose(by_rate.rates, [2, 2, 1])
    np.testing.assert_array_equal(by_work.steps, [6, 6, 3])
    assert by_work.weights[0] == d[2]
    with pytest.raises(ft.InputError, match=r"client 1 would take 1\.33333 steps.*use K = 3"):
        compensated(SchemeOptions(compensate="work"), ft.weights(ft.AsyncFedAvg(), TIMES), 1, "AsyncFedAvg")
    with pytest.raises(ft.InputError, match="change from round to round"):
        compensated(
            SchemeOptions(compensate="rate"), ft.weights(ft.StagedFedFix([(1, 3), (2, None)]), TIMES), 1, "staged"
        )


def test_unequal_steps_move_the_optimum_and_fednova_moves_it_back():
    steps = (1, 4, 2)
    rate = {"lr": 0.01, "until": 1000}
    plain = model(ft.FedAvg().using(client_steps=steps), **rate)
    normal = model(ft.published.FedNova(steps), **rate)
    counted = np.array(steps) / sum(steps)
    assert np.linalg.norm(plain - optimum(counted)) < 5e-3 < np.linalg.norm(plain - BEST)
    assert np.linalg.norm(normal - BEST) < 5e-3


# -- solvers, schedule, clipping


def test_the_horizon_schedule_is_the_constant_rate_over_the_root_of_all_steps():
    rounds = ft.timeline(ft.FedFix("1/2"), TIMES, until=50).num_rounds
    wanted = model(ft.FedFix("1/2"), until=50, lr=2.0 / np.sqrt(3 * rounds))
    np.testing.assert_allclose(model(ft.FedFix("1/2"), until=50, lr=2.0, schedule="horizon"), wanted, rtol=1e-12)
    with pytest.raises(ft.InputError, match="schedule"):
        ft.LocalSGD(schedule="falling")


def test_clipped_gradients_bound_every_contribution():
    """Assumption 7 with B = clip: ‖Δ_i‖ ≤ K η_l B."""
    local = ft.LocalSGD(steps=4, lr=0.3, clip=0.01, batch_size=None)
    made = ft.simulate(PROBLEM, ft.AsyncFedAvg(), TIMES, until=1, local=local, weights="identical", dtype="float64")
    moved, updates = flat(made).reshape(-1), int(made.dataset["updates"].values[..., -1].item())
    assert np.linalg.norm(moved) <= updates * 4 * 0.3 * 0.01
    assert np.linalg.norm(moved) > 0.5 * 4 * 0.3 * 0.01  # the bound is reached: every gradient is longer than B


@pytest.mark.parametrize("solver", [optax.adam, optax.adagrad, optax.amsgrad, optax.yogi], ids=lambda s: s.__name__)
def test_adaptive_solvers_work_under_staleness(solver):
    local = ft.LocalOptax(solver=solver, lr=0.05, steps=2, batch_size=None)
    runs = [
        ft.simulate(PROBLEM, ft.FedFix("1/3"), TIMES, until=40, local=local, dtype="float64", points=2, engine=engine)
        for engine in ("oracle", "events")
    ]
    assert distance(flat(runs[1]), flat(runs[0])) < 1e-9
    losses = runs[1].dataset["loss"].values.reshape(-1)
    assert losses[-1] < 0.5 * losses[0]


# -- bytes


def test_bytes_count_what_is_sent_up_and_down():
    size = PROBLEM.num_parameters
    schemes = {
        ft.FedAvg(): (4 * size, 4 * size),
        ft.FedAvg().using(correction=ft.FedProx(0.1)): (4 * size, 4 * size),
        ft.FedAvg().using(correction=ft.FedDyn(0.1)): (4 * size, 4 * size),
        ft.FedAvg().using(correction=ft.Scaffold()): (8 * size, 8 * size),
        ft.FedAvg().using(correction=ft.FedDANE(0.1)): (8 * size + 4, 8 * size + 4),
        ft.FedAvg().using(compression=ft.TopK(0.25)): (ft.TopK(0.25).num_bytes(PROBLEM.parameter_shapes), 4 * size),
    }
    made = ft.simulate(PROBLEM, list(schemes), TIMES, until=5, points=6).dataset
    for k, (up, down) in enumerate(schemes.values()):
        updates = made["updates"].isel(scheme=k).values.reshape(-1)
        np.testing.assert_array_equal(made["bytes_up"].isel(scheme=k).values.reshape(-1), up * updates)
        np.testing.assert_array_equal(made["bytes_down"].isel(scheme=k).values.reshape(-1), down * updates)


# -- rivals


def test_fedasync_mixes_models_and_its_weights_are_alpha_times_the_discount():
    scheme = ft.published.FedAsync(0.5, "hinge:10:1", mu=0.1)
    line = ft.timeline(scheme, TIMES, until=5)
    omega = ft.weights(scheme, TIMES, rule=scheme.options.weights).applied(line)
    late = line.staleness
    np.testing.assert_allclose(omega, 0.5 * np.where(late <= 1, 1.0, 1 / (10 * (late - 1.0) + 1)))
    assert scheme.label == "FedAsync(0.5, hinge:10:1, mu=0.1)"
    runs = [
        ft.simulate(PROBLEM, scheme, TIMES, until=4, dtype="float64", points=2, engine=engine)
        for engine in ("oracle", "events", "waves")
    ]
    assert distance(flat(runs[1]), flat(runs[0])) < 1e-9
    assert distance(flat(runs[2]), flat(runs[0])) < 1e-9


def test_published_fedbuff_is_the_mean_of_a_discounted_buffer():
    scheme = ft.published.FedBuff(2)
    line = ft.timeline(scheme, TIMES, until=5)
    omega = ft.weights(scheme, TIMES, rule=scheme.options.weights).applied(line)
    np.testing.assert_allclose(omega, 0.5 / np.sqrt(1 + line.staleness))


def test_a_rival_has_one_row_whatever_weight_rules_a_study_compares():
    schemes = [
        ft.FedFix("1/2"),
        ft.published.FedBuff(2),
        ft.published.FedAU(ft.AsyncFedAvg()),
        ft.published.CutOff(ft.FedFix("1/4"), 2),
    ]
    made = ft.simulate(PROBLEM, schemes, TIMES, until=5, weights=("time-based", "identical"), points=2).dataset
    losses = made["loss"].isel(time=-1).values.reshape(4, 2)
    assert np.isfinite(losses[0]).all()
    assert np.isfinite(losses[1:, 0]).all()
    assert np.isnan(losses[1:, 1]).all()


# -- choice by losses


def test_choice_by_losses_goes_on_after_a_stop_to_the_same_bits(tmp_path):
    problem = ft.problems.digits(clients=6, partition=ft.Dirichlet(0.3), seed=0)
    times = ft.FixedTimes.spread(clients=6, slowdown=80)
    scheme = ft.HighestLossSampling(2, candidates=4)
    options = {"until": 15, "weights": "identical", "local": ft.LocalSGD(lr=[0.1, 0.3], batch_size=8), "points": 6}
    whole = ft.simulate(problem, scheme, times, **options)

    class Enough(Exception):
        pass

    def stop(progress):
        if progress.done > 0.3:
            raise Enough

    with pytest.raises(Enough):
        ft.simulate(problem, scheme, times, **options, checkpoint=tmp_path / "s", save_every=0.0, on_progress=stop)
    again = ft.simulate(problem, scheme, times, **options, checkpoint=tmp_path / "s")
    np.testing.assert_array_equal(again.dataset["loss"].values, whole.dataset["loss"].values)
    assert np.isfinite(whole.dataset["loss"].values).all()


def test_the_cure_reaches_what_the_criterion_alone_does_not():
    plain = ft.HighestLossSampling(1).using(weights="identical")
    cured = ft.CuredSampling(ft.HighestLossSampling(1), window=9, biased=3)
    away, near = (np.linalg.norm(model(s, steps=1, lr=0.02, until=600) - BEST) for s in (plain, cured))
    assert near < 0.2 * away


# -- what makes no sense


def joining(scheme):
    times = TIMES.available(absences={0: [(0, 2)]})
    ft.simulate(PROBLEM, scheme, times, until=5, points=2)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ft.FedAvg().using(speed=2), "there is no option 'speed'"),
        (lambda: ft.FedProx(0), "FedProx: 0 is not allowed"),
        (lambda: ft.FedAdam(b1=1), "b1=1 is not allowed"),
        (lambda: ft.SlowMo(-0.1), "momentum=-0.1 is not allowed"),
        (lambda: ft.LocalSGD(momentum=[0.5, 2]), "is not below 1, so steps would grow"),
        (lambda: ft.FedAvg().using(compensate="time"), "use weights, rate or work"),
        (lambda: ft.FedAvg().using(compensate="rate", client_steps=(1, 2, 3)), "leave out weights, client_steps"),
        (lambda: ft.FedAvg().using(client_steps=(1, 0, 2)), "whole numbers of at least 1"),
        (lambda: ft.published.FedAsync(2.0), "at most 1"),
        (lambda: ft.published.FedAU("async"), "is not a scheme"),
        (lambda: model(ft.FedAvg().using(client_steps=(1, 2))), "2 values for 3 clients"),
        (lambda: model(ft.FedAvg().using(client_steps=(1, 2, 3)), draw="epochs", batch_size=1), "draw='uniform'"),
        (lambda: model(ft.FedAvg().using(correction=ft.Scaffold()), momentum=0.9), "needs plain SGD steps"),
        (lambda: model(ft.AsyncFedAvg().using(correction=ft.Scaffold(), server=ft.MixModels())), "mixes models"),
        (lambda: model(ft.HighestLossSampling(1)), "cure it"),
        (lambda: model(ft.published.FedNova((1, 2, 3)), momentum=0.9), "only with plain SGD"),
        (lambda: model(ft.FedFix("1/2").using(compensate="work"), momentum=0.9), "only with plain SGD"),
        (lambda: model(ft.published.FedNova((1, 2, 3)), steps=[1, 2]), "give one number as steps"),
        (lambda: model(ft.published.FedNova((1, 2, 3)), schedule="horizon"), "one K for all clients"),
        (lambda: ft.FedAvg().using(correction="fedprox:0.1"), "give an object such as ft.FedProx"),
        (lambda: ft.FedAvg().using(server=ft.FedAdam), "give an object such as ft.FedAdam"),
        (lambda: ft.FedAvg().using(compression=5), "give an object such as ft.TopK"),
        (lambda: ft.FedAvg().using(weights=5), "is not a weight rule"),
        (lambda: ft.FedAvg().using(label=" "), "give a short text"),
        (lambda: ft.FedAvg().using(client_rates=(1, 2, float("inf"))), "numbers above 0"),
        (lambda: ft.published.FedBuff(2, staleness=0.5), "is not a discount; give polynomial"),
        (lambda: ft.published.FedAU(ft.FedAvg(), 1.5), "whole number"),
        (lambda: joining(ft.published.FedNova((1, 2, 3))), "join or leave for good"),
        (lambda: joining(ft.HighestLossSampling(1).using(weights="identical")), "join or leave for good"),
        (lambda: ft.timeline(ft.HighestLossSampling(1), TIMES, until=3), "use ft.simulate"),
        (lambda: ft.theory.quantities(scheme=ft.FedAvg().using(server=ft.SlowMo()), times=TIMES), "plain local SGD"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(make, why):
    with pytest.raises(ft.InputError, match=why):
        make()


def test_a_study_in_a_folder_is_told_from_one_with_other_weights(tmp_path):
    options = {"until": 3, "points": 2, "checkpoint": tmp_path / "s"}
    ft.simulate(PROBLEM, ft.FedAvg(), TIMES, weights=ft.Normalised(ft.TimeBased(), (1, 2, 3)), **options)
    with pytest.raises(ft.ResultsConflict):
        ft.simulate(PROBLEM, ft.FedAvg(), TIMES, weights=ft.Normalised(ft.TimeBased(), (3, 2, 1)), **options)


def test_numbers_of_numpy_are_numbers():
    scheme = ft.published.FedNova(np.array([1, 2, 3])).using(client_rates=np.array([1, 2, 1], dtype=np.float32))
    assert np.isfinite(ft.simulate(PROBLEM, scheme, TIMES, until=2, points=2).dataset["loss"].values).all()
    assert scheme.spec()["client_steps"] == [1, 2, 3]


def test_weights_and_plans_of_a_rival_are_its_own():
    scheme = ft.published.FedBuff(2)
    own = ft.expected_weights(scheme, TIMES, rule=scheme.options.weights)
    np.testing.assert_array_equal(ft.expected_weights(scheme, TIMES), own)
    np.testing.assert_array_equal(ft.compare(TIMES, scheme).schemes[0].expected_weights, own)
    assert np.ptp(own) > 0.01


def test_dropped_updates_are_no_server_step():
    slow = ft.published.CutOff(ft.FedFix("1/4"), 0).using(server=ft.SlowMo(0.9))  # no client is that fast
    np.testing.assert_array_equal(model(slow, until=3), np.zeros(4))


def test_choice_by_losses_sends_the_model_to_all_candidates():
    schemes = [ft.HighestLossSampling(1, candidates=d).using(weights="identical") for d in (1, 3)]
    made = ft.simulate(PROBLEM, schemes, TIMES, until=4, points=2).dataset.isel(time=-1)
    for k, extra in enumerate((0, 2)):
        updates, rounds = (float(made[name].isel(scheme=k).values.squeeze()) for name in ("updates", "rounds"))
        down, up = (float(made[name].isel(scheme=k).values.squeeze()) for name in ("bytes_down", "bytes_up"))
        assert (down, up) == (16 * (updates + extra * rounds), 16 * updates + 4 * extra * rounds)


def test_labels_and_specs_say_what_a_scheme_is_used_with():
    scheme = ft.FedFix("1/2").using(correction=ft.FedProx(0.1), compression=ft.TopK(0.01))
    assert scheme.label == "FedFix(1/2) + FedProx(0.1) + TopK(1 %)"
    assert scheme.using(server=ft.SlowMo()).label == "FedFix(1/2) + FedProx(0.1) + SlowMo(0.9) + TopK(1 %)"
    assert scheme.using(label="mine").using(server=ft.SlowMo()).label == "mine + SlowMo(0.9)"
    mixing = ft.published.FedAsync(0.5).using(compression=ft.TopK(0.1))
    assert mixing.label == "FedAsync(0.5, polynomial:0.5) + TopK(10 %)"
    assert ft.FedAdam(eps=0.1).label == "FedAdam(0.9, 0.99, 0.1)"
    assert ft.FedAvg().using(compensate="weights") == ft.FedAvg()
    assert scheme.spec()["correction"] == {"name": "fedprox", "mu": 0.1}
    assert scheme == ft.FedFix("1/2").using(compression=ft.TopK(0.01), correction=ft.FedProx(0.1))
    assert scheme != ft.FedFix("1/2")
    assert hash(scheme) != hash(ft.FedFix("1/2"))
    assert jax.tree.leaves(ft.FedFix("1/2").options.spec()) == []
