"""Plans: each number against what a timeline shows, and the JSON contract."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft

SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("1/5"),
    ft.FedBuff(3),
    ft.UniformSampling(2),
    ft.MultinomialSampling(3),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("law", ["fixed", "exponential", "uniform"])
def test_pace_idleness_and_delay_are_those_of_a_long_timeline(scheme, law) -> None:
    means = ft.FixedTimes.spread(clients=6, slowdown=80).exact_mean_time
    times = {
        "fixed": lambda: ft.FixedTimes(means),
        "exponential": lambda: ft.ExponentialTimes(means),
        "uniform": lambda: ft.UniformTimes([m / 2 for m in means], [m * 3 / 2 for m in means]),
    }[law]()
    plan = ft.compare(times, [scheme]).schemes[0]
    line = ft.timeline(scheme, times, until=6000, seed=11)
    span = float(line.duration)
    tolerance = 0.002 if law == "fixed" and not scheme.waiting.random else 0.03
    assert plan.rounds_per_time == pytest.approx(line.num_rounds / span, rel=tolerance)
    assert plan.updates_per_time == pytest.approx(line.num_updates / span, rel=tolerance)
    assert plan.mean_delay == pytest.approx(line.staleness.mean(), rel=tolerance, abs=0.002)
    job = line.job.astype(np.int64)
    busy = times.draw(line.client.astype(np.int64), job, seed=11).sum() * float(times.unit)
    assert plan.idle_share == pytest.approx(1 - busy / (6 * span), abs=0.01)
    if plan.max_delay_exact and line.num_rounds > 3 * (plan.practical_window or 0):
        assert plan.max_delay == line.staleness.max()
    if plan.max_delay_bound is not None:
        assert line.staleness.max() <= plan.max_delay_bound


@pytest.mark.parametrize("case", range(60))
def test_asyncs_largest_delay_lies_between_its_bounds(case: int) -> None:
    draw = random.Random(f"delay {case}")
    tau = [draw.randint(1, 7) for _ in range(draw.randint(2, 6))]
    plan = ft.compare(ft.FixedTimes(tau), [ft.AsyncFedAvg()]).schemes[0]
    low = max(sum(tau[i] // t for j, t in enumerate(tau) if j != i) for i in range(len(tau)))
    high = max(sum(-(-tau[i] // t) for j, t in enumerate(tau) if j != i) for i in range(len(tau)))
    assert low <= plan.max_delay <= high
    assert plan.max_delay_bound == high
    assert plan.mean_delay == pytest.approx(len(tau) - 1)


@pytest.mark.parametrize("case", range(40))
def test_fedfixs_largest_delay_and_rounds(case: int) -> None:
    draw = random.Random(f"fedfix {case}")
    times = ft.FixedTimes([Fraction(draw.randint(1, 9), draw.randint(1, 3)) for _ in range(draw.randint(1, 6))])
    wait = Fraction(draw.randint(1, 9), draw.randint(1, 4))
    plan = ft.compare(times, [ft.FedFix(wait)]).schemes[0]
    line = ft.timeline(ft.FedFix(wait), times, until=60)
    assert plan.max_delay == max(-(-t // wait) for t in times.exact_mean_time) - 1 == line.staleness.max()
    assert line.num_rounds == 60 // wait


def test_rounds_in_time_t() -> None:
    tau = [Fraction(1), Fraction(3, 4), Fraction(2, 5)]
    times = ft.FixedTimes(tau)
    horizon = Fraction(77, 3)
    assert ft.timeline(ft.FedAvg(), times, until=horizon).num_rounds == horizon // 1
    assert ft.timeline(ft.AsyncFedAvg(), times, until=horizon).num_rounds == sum(horizon // t for t in tau)
    assert ft.timeline(ft.FedFix("1/7"), times, until=horizon).num_rounds == horizon // Fraction(1, 7)


def test_mean_delay_of_fedbuff_is_clients_over_size_minus_one() -> None:
    for law in (ft.FixedTimes.spread(9, 80), ft.ExponentialTimes([1, 2, 3, 4, 5, 6, 7, 8, 9])):
        line = ft.timeline(ft.FedBuff(4), law, rounds=20_000)
        assert line.staleness.mean() == pytest.approx(9 / 4 - 1, rel=1e-3)


def remarks(times, scheme, **options) -> str:
    return " ".join(ft.compare(times, [scheme], **options).schemes[0].remarks)


def test_remarks_say_what_a_planner_would() -> None:
    same = ft.FixedTimes([1, 1, 1])
    f80 = ft.FixedTimes.spread(10, 80)
    assert "FedAvg with server rate 2" in remarks(same, ft.FedFix("1/2"))
    assert "same rounds as FedAvg" in remarks(f80, ft.FedFix(1))
    assert "1/2 longer than needed" in remarks(f80, ft.FedFix("3/2"))
    assert "some rounds are empty" in remarks(f80, ft.FedFix("1/10"))
    assert remarks(f80, ft.FedFix("1/2")) == ""
    assert "same rounds as FedAvg" in remarks(f80, ft.FedBuff(10))
    assert "same rounds as asynchronous" in remarks(f80, ft.FedBuff(1))
    assert "cycle of 12 rounds" in remarks(f80, ft.FedBuff(5))
    assert "1549 rounds" in remarks(f80, ft.AsyncFedAvg())
    assert "never takes part" in remarks(f80, ft.FastestSampling(2))
    assert "estimated" in remarks(ft.UniformTimes([1, 1, 1], [2, 3, 4]), ft.FedBuff(2))
    staged = ft.StagedFedFix.over_windows(f80, [("1/5", 2), ("1/2", None)])
    assert "1/5 for 120 rounds, then 1/2" in remarks(f80, staged)


def test_fedfix_with_half_the_time_of_equal_clients_is_fedavg_with_twice_the_step() -> None:
    same = ft.FixedTimes([1, 1, 1])
    half, whole = ft.compare(same, [ft.FedFix("1/2"), ft.FedAvg()], step="paper").schemes
    line = ft.timeline(ft.FedFix("1/2"), same, until=50)
    step = np.bincount(line.round_of_update, weights=ft.weights(ft.FedFix("1/2"), same).applied(line), minlength=100)
    assert step.tolist() == pytest.approx([0, 2] * 50)
    assert half.server_step_per_time == pytest.approx(2 * whole.server_step_per_time)
    half, whole = ft.compare(same, [ft.FedFix("1/2"), ft.FedAvg()]).schemes
    assert (half.step, whole.step) == (0.5, 1)
    assert half.server_step_per_time == pytest.approx(whole.server_step_per_time), "the stable step undoes it"


def test_a_wait_that_does_not_divide_the_times_is_slower_than_fedavg() -> None:
    """τ_max/(Δt Σ p_j ⌈τ_j/Δt⌉) of FedAvg's pace."""
    same = ft.FixedTimes([1, 1, 1])
    (plan,) = ft.compare(same, [ft.FedFix("0.7")]).schemes
    assert plan.server_step_per_time == pytest.approx(1 / (0.7 * 2))
    assert any("moves the model at 71% of FedAvg's pace" in remark for remark in plan.remarks)
    (good,) = ft.compare(ft.FixedTimes.spread(5, 80), [ft.FedFix("1/5")]).schemes
    assert not any("FedAvg's pace" in remark for remark in good.remarks)


def test_bias_of_identical_weights() -> None:
    times = ft.FixedTimes([4, 1])
    plan = ft.compare(times, [ft.AsyncFedAvg()]).schemes[0]
    assert plan.identical_bias == pytest.approx(0.6)  # shares 1/5 and 4/5 against 1/2
    assert plan.identical_chi2 == pytest.approx(0.09 / 0.2 + 0.09 / 0.8)


def test_the_json_contract() -> None:
    times = ft.FixedTimes([1, 2, "5/2", 7])
    schemes = [ft.FedFix(0.5), ft.FedBuff(2), ft.AsyncFedAvg(), ft.FedAvg(), ft.FastestSampling(1)]
    document = json.loads(json.dumps(ft.compare(times, schemes).to_dict(), allow_nan=False))
    assert document["format"] == 1
    assert document["clients"] == 4
    assert document["times"] == ["1", "2", "5/2", "7"]
    assert document["importance"] == [0.25] * 4
    by_name = {entry["scheme"]["name"]: entry for entry in document["schemes"]}
    assert by_name["fedfix"]["scheme"] == {"name": "fedfix", "wait": "1/2"}
    assert by_name["fedbuff"]["scheme"] == {"name": "fedbuff", "size": 2}
    assert by_name["async"]["scheme"] == {"name": "async"}
    assert by_name["fedavg"]["scheme"] == {"name": "fedavg"}
    assert by_name["fedfix"]["weights_exact"] == ["1/2", "1", "5/4", "7/2"]
    assert by_name["fedfix"]["participation_exact"] == ["1/2", "1/4", "1/5", "1/14"]
    assert by_name["fedfix"]["window"] == 140
    assert by_name["fedbuff"]["participation_source"] == "cycle"
    assert by_name["fastest"]["weights"] is None
    for name, entry in by_name.items():
        assert isinstance(entry["mean_delay"], float)
        assert entry["rounds_per_time"] > 0
        assert {"max_delay", "max_delay_bound", "practical_window"} <= entry.keys()
        if name != "fastest":
            q = np.array(entry["weights"]) * np.array(entry["participation"])
            assert q == pytest.approx(entry["expected_weights"])
            assert q == pytest.approx([0.25] * 4)


def test_exact_lists_up_to_a_hundred_clients_and_long_integers() -> None:
    few = ft.compare(ft.FixedTimes.spread(100, 80), [ft.AsyncFedAvg()]).to_dict()["schemes"][0]
    assert len(few["weights_exact"]) == 100
    assert few["window"] > 2**64
    many = ft.compare(ft.FixedTimes.spread(101, 80), [ft.AsyncFedAvg()]).to_dict()["schemes"][0]
    assert many["weights_exact"] is None
    assert sum(many["expected_weights"]) == pytest.approx(1)


def test_a_default_plan_for_any_number_of_clients() -> None:
    for clients in (1, 2, 3, 5):
        plan = ft.compare(ft.FixedTimes.spread(clients, 80))
        assert {"FedAvg", "AsyncFedAvg"} <= {s.scheme.label for s in plan.schemes}
        json.dumps(plan.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ft.compare([1, 2, 3]), "is not a law of client times"),
        (lambda: ft.compare(ft.FixedTimes([1, 2]), ["fedfix:2"]), "'fedfix:2' is not a scheme"),
        (lambda: ft.weights(ft.FixedTimes([1, 2]), ft.FedFix(2)), "give a scheme and client times"),
        (lambda: ft.participation_of(ft.FedFix(2), [1, 2]), "give a scheme and client times"),
        (lambda: ft.FixedTimes(3), "3 is one value; give a list"),
        (lambda: ft.problems.named("digit"), "'digit' is not a table"),
    ],
)
def test_what_is_swapped_or_of_another_kind_is_said(call, said) -> None:
    with pytest.raises(ft.InputError, match=said):
        call()
