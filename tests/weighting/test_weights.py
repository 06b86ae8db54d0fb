"""Weights: unbiased ones, biased ones that show their bias, stages and discounts."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.weighting.weight_rules import parse_discount

F80 = ft.FixedTimes.spread(clients=10, slowdown=80)
DETERMINISTIC = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedFix("1/5"), ft.FedBuff(5), ft.FedBuff(3)]


def random_importance(draw: random.Random, clients: int) -> list[Fraction]:
    parts = [draw.randint(1, 9) for _ in range(clients)]
    return [Fraction(p, sum(parts)) for p in parts]


def test_the_closed_forms_of_the_paper() -> None:
    times = ft.FixedTimes([1, 2, "5/2", 7])
    p = [Fraction(1, 10), Fraction(2, 10), Fraction(3, 10), Fraction(4, 10)]
    tau = [Fraction(1), Fraction(2), Fraction(5, 2), Fraction(7)]
    total = sum(1 / t for t in tau)
    assert list(ft.weights(ft.FedAvg(), times, importance=p)) == p
    assert list(ft.weights(ft.AsyncFedAvg(), times, importance=p)) == [
        total * t * w for t, w in zip(tau, p, strict=True)
    ]
    needed = zip([2, 4, 5, 14], p, strict=True)
    assert list(ft.weights(ft.FedFix("1/2"), times, importance=p)) == [w * n for n, w in needed]
    assert list(ft.weights(ft.UniformSampling(3), times, importance=p)) == [w * Fraction(4, 3) for w in p]
    assert list(ft.weights(ft.MultinomialSampling(3), times, importance=p)) == [Fraction(1, 3)] * 4
    assert list(ft.weights(ft.Centralized(), ft.FixedTimes([3]))) == [1]


@pytest.mark.parametrize("case", range(40))
def test_time_based_weights_give_every_client_its_importance_over_a_cycle(case: int) -> None:
    draw = random.Random(f"unbiased {case}")
    clients = draw.randint(1, 5)
    times = ft.FixedTimes([draw.randint(1, 6) for _ in range(clients)])
    importance = random_importance(draw, clients)
    for scheme in (
        ft.FedAvg(),
        ft.AsyncFedAvg(),
        ft.FedFix(Fraction(draw.randint(1, 6), 2)),
        ft.FedBuff(draw.randint(1, clients)),
    ):
        d = ft.weights(scheme, times, importance=importance)
        cycle = ft.limit_cycle(scheme, times, max_rounds=10_000)
        assert cycle is not None
        q = [w * int(c) / cycle.length for w, c in zip(d, cycle.counts, strict=True)]
        assert q == importance, (scheme, times)


@pytest.mark.parametrize("scheme", DETERMINISTIC, ids=str)
@pytest.mark.parametrize("rule", ["time-based", "identical", "importance"])
def test_expected_weights_sum_to_one(scheme, rule) -> None:
    p = [Fraction(i + 1, 55) for i in range(10)]
    q = ft.expected_weights(scheme, F80, importance=p, rule=rule)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    biased = not np.allclose(q, [float(x) for x in p])
    assert biased == (rule != "time-based" and not (rule == "importance" and scheme.name == "fedavg"))


@pytest.mark.parametrize(
    ("scheme", "constant"),
    [
        (ft.FedAvg(), Fraction(1, 10)),
        (ft.AsyncFedAvg(), Fraction(1)),
        (ft.FedBuff(5), Fraction(1, 5)),
        (ft.FedFix("1/2"), Fraction(2, 14)),
    ],
    ids=str,
)
def test_identical_weights(scheme, constant) -> None:
    assert list(ft.weights(scheme, F80, rule="identical")) == [constant] * 10


def test_a_client_that_is_never_chosen_has_no_unbiased_weight() -> None:
    with pytest.raises(ft.InputError, match="never takes part"):
        ft.weights(ft.FastestSampling(3), F80)
    q = ft.expected_weights(ft.FastestSampling(3), F80, rule="identical")
    assert q.tolist() == pytest.approx([0] * 7 + [1 / 3] * 3)


def test_weights_change_with_the_stage_and_stay_unbiased_over_whole_windows() -> None:
    times = ft.FixedTimes([1, "3/4", "1/2", "1/3"])
    scheme = ft.StagedFedFix.over_windows(times, [("1/4", 3), ("1/2", 5), (1, None)])
    assert [rounds for _, rounds in scheme.stages] == [3 * 12, 5 * 2, None]
    d = ft.weights(scheme, times)
    assert d.num_stages == 3
    assert list(d.stage(0)) == [1, Fraction(3, 4), Fraction(1, 2), Fraction(1, 2)]
    assert list(d.stage(2)) == [Fraction(1, 4)] * 4
    line = ft.timeline(scheme, times, rounds=36 + 10 + 8)
    applied = d.applied(line)
    for begin, stop in ((0, 36), (36, 46), (46, 54)):
        part = (line.round_of_update >= begin) & (line.round_of_update < stop)
        q = np.bincount(line.client[part], weights=applied[part], minlength=4) / (stop - begin)
        assert q == pytest.approx([0.25] * 4, abs=1e-12)
    with pytest.raises(ft.InputError, match="stage"):
        list(d)
    with pytest.raises(ft.InputError, match="numbers of rounds"):
        ft.StagedFedFix.over_windows(ft.ExponentialTimes([1, 2]), [("1/2", 3), (1, None)])


def test_applied_weights_count_draws() -> None:
    p = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    times = ft.FixedTimes([1, 2, 3])
    line = ft.timeline(ft.MultinomialSampling(4), times, rounds=3000, importance=p, seed=5)
    applied = ft.weights(ft.MultinomialSampling(4), times, importance=p).applied(line)
    assert np.bincount(line.round_of_update, weights=applied) == pytest.approx(np.ones(3000))
    q = np.bincount(line.client, weights=applied) / 3000
    assert q == pytest.approx([float(x) for x in p], abs=4 * 0.5 / np.sqrt(4 * 3000))


@pytest.mark.parametrize(
    ("discount", "formula"),
    [
        ("polynomial:0.5", lambda s: (1 + s) ** -0.5),
        ("hinge:10:4", lambda s: 1.0 if s <= 4 else 1 / (10 * (s - 4) + 1)),
        ("constant:0.6", lambda s: 0.6),
    ],
)
@pytest.mark.parametrize("scheme", DETERMINISTIC, ids=str)
def test_discounts_show_in_applied_and_expected_weights(discount, formula, scheme) -> None:
    times = ft.FixedTimes([6, 3, 2, 1])
    if scheme.name == "fedbuff":
        scheme = ft.FedBuff(2)
    rule = ft.Discounted(ft.Identical(), parse_discount(discount))
    cycle = ft.limit_cycle(scheme, times)
    assert cycle is not None
    line = ft.timeline(scheme, times, rounds=cycle.start + cycle.length)[cycle.start :]
    applied = ft.weights(scheme, times, rule=rule).applied(line)
    base = float(ft.weights(scheme, times, rule="identical")[0])
    assert applied == pytest.approx([base * formula(s) for s in line.staleness.tolist()])
    q = np.bincount(line.client, weights=applied, minlength=4) / cycle.length
    assert ft.expected_weights(scheme, times, rule=rule) == pytest.approx(q)


@pytest.mark.parametrize("given", ["poly", "polynomial:0", "hinge:0:1", "hinge:1:2:3", "constant:2", "constant:x", ""])
def test_a_wrong_discount_is_refused(given) -> None:
    with pytest.raises(ft.InputError, match="discount"):
        parse_discount(given)


@pytest.mark.parametrize(
    ("importance", "words"),
    [
        ([0.5, 0.5], "2 values for 3 clients"),
        ([0.5, 0.5, 0.5], "sums to 1.5"),
        ([1, 0, 0], "client 1: 0 is not above zero"),
        ([0.5, 0.7, -0.2], "not above zero"),
        ([0.5, 0.5, float("nan")], "not finite"),
    ],
)
def test_wrong_importance_is_refused(importance, words) -> None:
    with pytest.raises(ft.InputError, match=words):
        ft.weights(ft.FedAvg(), ft.FixedTimes([1, 2, 3]), importance=importance)


def test_importance_that_rounds_is_taken_as_meant() -> None:
    shares = np.random.default_rng(0).dirichlet(np.ones(7))
    d = ft.weights(ft.FedAvg(), ft.FixedTimes([1] * 7), importance=shares)
    assert sum(d) == 1
    assert np.asarray(d) == pytest.approx(shares)


def test_weights_read_like_a_list() -> None:
    d = ft.weights(ft.FedFix("1/2"), ft.FixedTimes([1, "1/2"]))
    assert (len(d), d[0], d[-1], d[:1]) == (2, 1, Fraction(1, 2), (1,))
    assert repr(d) == "Weights([1, 1/2])"
    assert isinstance(ft.weights(ft.FedFix(1), ft.ExponentialTimes([1, 2]))[0], float)
    with pytest.raises(ft.InputError, match="time-based"):
        ft.weights(ft.FedAvg(), F80, rule="fair")
