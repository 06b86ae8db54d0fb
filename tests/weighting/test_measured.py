"""Weights that are measured as training goes on: unbiased, capped, soon forgetful, the same in every part of a run."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.weighting.measured import Intervals, Measured, OnlineWeights, OwnTime, Taken
from fedtempo.weighting.weight_rules import TimeBased, weight_rule

TIMES = ft.FixedTimes(["1", "0.7", "0.5", "2.25"])
RANDOM = ft.ExponentialTimes(["1", "0.7", "0.5", "2.25"], resolution="0.001")
P = [0.1, 0.2, 0.3, 0.4]
SCHEMES = [ft.AsyncFedAvg(), ft.FedFix("0.6"), ft.FedFix("2"), ft.FedBuff(2), ft.FedAvg()]


def by_hand(line: ft.Timeline, p: list[float], *, own: bool = False) -> list[float]:
    """The rules of measured.py, update by update, in plain Python: ω at the stable step."""
    free, seen, mean = [0.0] * len(p), [[] for _ in p], [None] * len(p)
    used, debt, out = [0.0] * len(p), [0.0] * len(p), []
    clients = iter(line.client.tolist())
    for closed in line.rounds:
        now = float(closed.end)
        known = [m for m in mean if m is not None]
        taken = [next(clients) for _ in closed.participants]
        first = {i: mean[i] is None for i in taken}
        for i in taken:
            v, before, k = now - free[i], mean[i], len(seen[i]) + 1
            if k == 1:
                cap = np.median(known) if known else v
                mean[i] = min(v, cap)
            else:
                bound = 4 * before
                if k > 5:
                    last = sorted(seen[i][-21:])
                    middle = last[len(last) // 2]
                    mad = 1.4826 * sorted(abs(x - middle) for x in last)[len(last) // 2]
                    bound = max(middle + max(10 * mad, middle), last[-1])
                mean[i] = before + max(2 / k, 1 / 20) * (min(v, bound) - before)
                cap = 2 * before
            seen[i].append(v)
            free[i] = now
            due = v + debt[i] if own else mean[i]
            used[i] = min(due, cap)
            debt[i] = due - used[i] if own else 0.0
        there = [i for i in range(len(p)) if mean[i] is not None]
        value = {i: mean[i] if own else used[i] for i in there}
        middle, longest = np.median(list(value.values())), max(mean[i] for i in there)
        silent = {i: max(now, middle) for i in range(len(p)) if mean[i] is None}
        counting = [*there, *(i for i in silent if now <= 3 * longest)]
        for i in taken:
            among = range(len(p)) if first[i] else counting
            whole = sum(p[j] * {**value, **silent}[j] for j in among)
            weight = p[i] * used[i] / whole
            if own and weight > 1:
                debt[i] += used[i] * (1 - 1 / weight)
                weight = 1.0
            out.append(weight)
    return out


@pytest.mark.parametrize("rule", [Measured(), OwnTime()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("times", [TIMES, RANDOM], ids=["fixed", "exponential"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_weight_is_what_the_rule_says(scheme, times, rule) -> None:
    line = ft.timeline(scheme, times, rounds=120, seed=1)
    weights = ft.weights(scheme, times, importance=P, rule=rule, step="stable")
    np.testing.assert_allclose(weights.applied(line), by_hand(line, P, own=rule.own), rtol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES[:4], ids=str)
def test_with_fixed_times_they_are_the_exact_ones_before_long(scheme) -> None:
    line = ft.timeline(scheme, TIMES, rounds=400)
    exact = ft.weights(scheme, TIMES, importance=P, step="stable").applied(line)
    found = ft.weights(scheme, TIMES, importance=P, rule="measured", step="stable").applied(line)
    rough = 0.05 if isinstance(scheme, ft.FedBuff) else 1e-9  # whose cycle is longer than the memory
    np.testing.assert_allclose(found[-50:], exact[-50:], rtol=rough)


@pytest.mark.parametrize("rule", ["measured", "own-time"])
@pytest.mark.parametrize("scheme", SCHEMES[:4], ids=str)
def test_over_many_rounds_every_client_counts_by_its_importance(scheme, rule) -> None:
    line = ft.timeline(scheme, RANDOM, rounds=6000, seed=2)
    applied = ft.weights(scheme, RANDOM, importance=P, rule=rule, step="stable").applied(line)
    late = line.round_of_update > 600
    counted = np.bincount(line.client[late], weights=applied[late], minlength=4)
    np.testing.assert_allclose(counted / counted.sum(), P, atol=0.02)
    assert applied.max() <= 1 + 1e-12, "one update never weighs more than all clients together"


def test_the_parts_of_a_run_have_the_weights_of_the_whole() -> None:
    line = ft.timeline(ft.FedFix("0.6"), RANDOM, rounds=90, seed=3)
    weights = ft.weights(ft.FedFix("0.6"), RANDOM, importance=P, rule="own-time", step="stable")
    apply = weights.applier()
    parts = [apply(line[:17]), apply(line[17:18]), apply(line[18:])]
    np.testing.assert_array_equal(np.concatenate(parts), weights.applied(line))


def test_the_papers_step_has_the_papers_weights() -> None:
    """p_i R_i, R_i the rounds between updates: FedFix's are ⌈τ_i/Δt⌉."""
    line = ft.timeline(ft.FedFix("0.6"), TIMES, rounds=300)
    found = ft.weights(ft.FedFix("0.6"), TIMES, importance=P, rule="measured").applied(line)
    exact = ft.weights(ft.FedFix("0.6"), TIMES, importance=P).applied(line)
    np.testing.assert_allclose(found[-40:], exact[-40:], rtol=1e-9)


def test_a_late_first_answer_counts_as_another_and_is_forgotten() -> None:
    online, who, even = OnlineWeights(TimeBased(), "stable"), np.arange(3), np.ones(3)
    for client in range(3):
        online.intervals.begin(client, 0.0)
    sums = []
    for n in range(1, 40):
        taken = [Taken(0, 1.0), Taken(1, 1.0)]
        if n >= 33:
            taken.append(Taken(2, 33.0 if n == 33 else 1.0))
        weights, stable = online.close(float(n), taken, who, even)
        np.testing.assert_array_equal(weights, stable)
        sums.append(weights.tolist())
    assert sums[0] == pytest.approx([1 / 3, 1 / 3]), "who has not answered yet counts as the others"
    assert sums[2] == pytest.approx([1 / 5, 1 / 5]), "or as the time for which it is silent"
    assert sums[3] == pytest.approx([1 / 2, 1 / 2]), "and for nothing when that is too long"
    for weights in sums[32:]:
        assert weights == pytest.approx([1 / 3] * 3)


def test_an_answer_that_hangs_once_says_nothing_of_the_next() -> None:
    """Twice within 21 updates it would be believed."""
    intervals = Intervals()
    for n in range(60):
        intervals.close(1.0, [Taken(0, 1.0), Taken(1, 500.0 if n in (2, 40) else 1.0)])
        assert intervals.used[1] <= 4


def test_debts_are_settled_and_dropped_when_the_client_leaves() -> None:
    intervals = Intervals(own=True)
    counted = 0.0
    for n in range(60):
        intervals.close(1.0, [Taken(0, 1.0), Taken(1, 9.0 if n == 30 else 1.0)])
        counted += intervals.used[1]
    assert intervals.debt[1] == pytest.approx(0)
    assert counted == pytest.approx(59 + 9), "nothing is lost and nothing counted twice"
    intervals.close(1.0, [Taken(1, 30.0)])
    assert intervals.leave(1) == pytest.approx(30 - intervals.used[1])
    assert intervals.debt[1] == 0


def test_a_snapshot_is_all_of_it() -> None:
    rng = np.random.default_rng(0)
    rows = [(int(rng.integers(4)), float(rng.exponential())) for _ in range(80)]
    whole, who = OnlineWeights(TimeBased(), "proven", own=True), np.arange(4)
    expected, cut = [], None
    for n, (client, interval) in enumerate(rows):
        if n == 37:
            cut = whole.snapshot()
        expected.append(whole.close(float(n + 1), [Taken(client, interval)], who, np.array(P)))
    again = OnlineWeights(TimeBased(), "proven", own=True)
    again.restore(cut)
    for n, (client, interval) in enumerate(rows[37:], 37):
        np.testing.assert_array_equal(
            again.close(float(n + 1), [Taken(client, interval)], who, np.array(P)), expected[n]
        )


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_weight: 1 is not allowed.*give a number above 1"):
        weight_rule({"name": "measured", "max_weight": 1})
    with pytest.raises(InputError, match="max_weight: inf is not allowed"):
        OwnTime(float("inf"))
    with pytest.raises(InputError, match="samples clients, and how often it does so is known ahead; use time-based"):
        ft.weights(ft.UniformSampling(2), TIMES, rule="measured")
    assert weight_rule("own-time").label == "own-time"
    assert weight_rule("measured:3").label == "measured, at most 3-fold"


def test_a_study_trains_with_them_and_goes_on_to_the_same_bits(tmp_path) -> None:
    problem = ft.problems.quadratics(4, dimension=3, noise=0.5, seed=0)
    local = ft.LocalSGD(steps=2, lr=0.1, batch_size=2)
    arguments = {"until": 20, "local": local, "points": 5, "weights": ["measured", "own-time"]}
    schemes = [ft.FedFix("0.6"), ft.AsyncFedAvg()]
    fast = ft.simulate(problem, schemes, RANDOM, **arguments, dtype="float64")
    slow = ft.simulate(problem, schemes, RANDOM, **arguments, dtype="float64", engine="oracle")
    np.testing.assert_allclose(fast.dataset["loss"], slow.dataset["loss"], rtol=1e-9)
    saved = ft.simulate(problem, schemes, RANDOM, **arguments, dtype="float64", checkpoint=tmp_path / "study")
    np.testing.assert_array_equal(saved.dataset["loss"], fast.dataset["loss"])
