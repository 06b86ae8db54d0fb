"""Plans of very many clients: the limit of many, drawn races in arrays, and memory."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock import races, random_times, times_text
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import stream
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules import wait_for_some
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Multiples
from fedtempo.weighting import estimates
from fedtempo.weighting.long_run import LongRun

MEANS = ft.FixedTimes.spread(1200, 80).exact_mean_time


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clock.races", "clock.random_times", "clock.cycle", "clock.config", "weighting.long_run"):
        monkeypatch.setattr(f"fedtempo.{name}.MANY_CLIENTS", 1000)


@pytest.mark.parametrize("law", [ft.LogNormalTimes, ft.ExponentialTimes], ids=lambda law: law.law)
@pytest.mark.usefixtures("few_are_many")
def test_fedbuff_of_many_is_what_a_long_run_shows(law: Any) -> None:
    times = law(MEANS)
    run = LongRun(ft.FedBuff(400).waiting, times, Importance(None, 1200))
    assert run.participation.source == "closed form"
    line = ft.timeline(ft.FedBuff(400), times, rounds=1500)[300:]
    assert run.rounds_per_time == pytest.approx(line.num_rounds / float(line.duration), rel=0.006)
    share = line.participation_counts / line.num_rounds
    known = run.participation.share
    assert known.sum() == pytest.approx(400)
    for k in range(0, 1200, 300):  # of neighbours together, whose noise is small
        assert share[k : k + 300].sum() == pytest.approx(known[k : k + 300].sum(), rel=0.006)
    assert share == pytest.approx(known, rel=0.3)


@pytest.mark.usefixtures("few_are_many")
def test_the_longest_of_many_follows_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    times = ft.LogNormalTimes(MEANS)
    monkeypatch.setattr(races, "_SAMPLE", 500)
    sampled = races.expected_maximum(times)
    monkeypatch.setattr(races, "MAX_CLIENTS", 10_000)
    assert sampled == pytest.approx(races.expected_maximum(times), rel=1e-4)
    different = ft.LogNormalTimes(MEANS, sigma=[0.5] * 1199 + [0.6])
    monkeypatch.setattr(races, "MAX_CLIENTS", 500)
    assert races.expected_maximum(different) is None


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("wait", ["1/5", "3", "1/10000000"])
def test_interpolated_rounds_are_the_exact_ones(sigma: float, wait: str) -> None:
    times = ft.LogNormalTimes(MEANS[::30], sigma=sigma)
    between = times._between(Fraction(wait))
    assert between is not None
    np.testing.assert_allclose(between, times.rounds_of_law(Fraction(wait)), rtol=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 0.5, 0.7, 1.0])
def test_terms_that_are_left_out_do_not_change_a_bit(sigma: float) -> None:
    times = ft.LogNormalTimes(MEANS[-9:], sigma=sigma)  # alike, so that many terms are left out
    for step, count in ((0.2, 900), (1e-3, 900), (5.0, 64)):
        plain = sum((times.survival(k * step) for k in range(count)), np.zeros(9))
        np.testing.assert_array_equal(times._terms(slice(None), step, count), plain)


@pytest.mark.parametrize("times", [ft.LogNormalTimes(MEANS, resolution="1/50"), ft.FixedTimes(MEANS)])
def test_races_in_arrays_are_those_of_the_list(times: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ClockConfig.of(ft.FedBuff(400).waiting, times, seed=4)

    def line() -> Timeline:
        return Timeline.joined(stream(config, max_rounds=60))

    by_list = line()
    monkeypatch.setattr(wait_for_some, "_MANY_PAY", 100)
    assert line().equals(by_list)


def test_errors_of_many_are_those_of_each() -> None:
    random = np.random.default_rng(0)
    counts, rounds = random.integers(0, 40, (120, 400)), random.integers(1, 60, 120).astype(np.float64)
    share, error = estimates._plain_ratios(counts, rounds)
    each = [estimates._ratio(counts[:, i].astype(np.float64), rounds, None) for i in range(400)]
    np.testing.assert_array_equal(share, [one for one, _ in each])
    np.testing.assert_array_equal(error, [spread for _, spread in each])


def test_rationals_that_are_made_when_asked_for() -> None:
    found = ft.FixedTimes(["1/3", "1/2", 2]).multiples
    assert tuple(found) == found == (Fraction(1, 3), Fraction(1, 2), Fraction(2))
    assert (found.least, found.largest, len(found)) == (Fraction(1, 3), 2, 3)
    assert found[1:] == Multiples(np.array([3, 12]), Fraction(1, 6))
    assert found.floats.tolist() == [1 / 3, 0.5, 2.0]
    big = Multiples(np.array([3**30, 2**61 - 1]), Fraction(7, 3**33))
    assert big.floats.tolist() == [float(value) for value in big]
    listed, lazy = ft.LogNormalTimes(list(MEANS)), ft.LogNormalTimes(ft.FixedTimes(MEANS).multiples)
    assert listed == lazy
    assert hash(listed) == hash(lazy)


@pytest.mark.parametrize("law", ["lognormal", "fixed", "exponential"])
def test_no_object_is_made_for_each_of_two_hundred_thousand_clients(law: str) -> None:
    tracemalloc.start()
    try:
        times = times_text.read_times("F80", 200_000, law)
        made = [ft.weights(scheme, times) for scheme in (ft.FedFix("1/2"), ft.AsyncFedAvg())]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(made[0]) == 200_000
    assert peak < 30e6  # fifteen arrays of numbers; a rational of each would take more


@pytest.mark.usefixtures("few_are_many")
def test_a_document_of_many_lists_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("fedtempo.planning.compare"), "MANY_CLIENTS", 1000)
    monkeypatch.setattr("fedtempo.clock.cycle._most_updates", lambda config: 100)  # too short to see the mean delay
    plan = ft.compare(ft.LogNormalTimes(MEANS), [ft.FedBuff(400), ft.AsyncFedAvg()])
    document = plan.to_dict()
    assert document["importance"] is document["times"] is document["schemes"][0]["weights"] is None
    assert document["schemes"][0]["max_weight"] > 0
    assert "the limit of many clients" in document["schemes"][0]["remarks"][0]
    assert document["schemes"][1]["max_delay"] >= 1199
    assert not document["schemes"][1]["max_delay_exact"]


def test_a_figure_of_many_draws_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtempo.report import plan_figure

    monkeypatch.setattr(plan_figure, "_POINTS", 50)
    figure = ft.compare(ft.FixedTimes(MEANS), ft.FedFix("1/2")).plot()
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    assert max(len(line.get_xdata()) for line in lines) == 50


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(ft.InputError, match="10000000000 clients are too many; give at most 100000000"):
        times_text.read_times("F80", 10**10, "lognormal")
    with pytest.raises(ft.InputError, match="0 given"):
        times_text.read_times("F80", 0, None)


def test_laws_that_are_one_up_to_scale_say_so() -> None:
    assert ft.LogNormalTimes(MEANS).alike
    assert not ft.LogNormalTimes(MEANS[:2], sigma=[0.1, 0.2]).alike
    assert not ft.UniformTimes([1, 2], [2, 3]).alike
    assert random_times.ParetoTimes(MEANS[:2]).alike
