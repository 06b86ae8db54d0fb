"""Client times by the server's clock: robust, smoothed, and right for random times."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.rules import FixedInterval, WaitForAll, WaitForNext, WaitForSome
from fedtempo.flower.advice import remarks
from fedtempo.flower.estimates import Estimates

SECOND = 10**9


def fed(rule, durations, examples=10.0) -> Estimates:
    estimates = Estimates(rule)
    for client, row in enumerate(durations):
        for duration in row:
            estimates.answered(client, int(duration * SECOND), examples)
    return estimates


def share(estimates: Estimates, clients: int) -> list[float]:
    return estimates.participation(np.arange(clients)).share.tolist()


def test_fixed_times_give_the_closed_forms() -> None:
    durations = [[2.0] * 30, [0.5] * 30, [3.1] * 30]
    times = ft.FixedTimes(["2", "0.5", "3.1"])
    assert share(fed(WaitForAll(), durations), 3) == [1, 1, 1]
    wanted = ft.participation_of(ft.AsyncFedAvg(), times).share
    assert share(fed(WaitForNext(), durations), 3) == pytest.approx(wanted)
    wanted = ft.participation_of(ft.FedFix("0.9"), times).share
    assert share(fed(FixedInterval(Fraction("0.9")), durations), 3) == pytest.approx(wanted)


def test_fedfix_counts_the_mean_of_rounds_not_the_rounds_of_the_mean() -> None:
    """Exponential times at Δt = τ: E⌈T/Δt⌉ is 1.58, where ⌈τ/Δt⌉ is 1."""
    drawn = np.random.default_rng(0).exponential(1.0, size=(60, 60)) + 1e-9
    found = np.array(share(fed(FixedInterval(Fraction(1)), drawn), 60))
    assert 1 / found.mean() == pytest.approx(1 / (1 - np.exp(-1)), rel=0.08)
    assert (1 / found).mean() == pytest.approx(1 / (1 - np.exp(-1)), rel=0.05)


def test_no_jump_where_a_time_sits_near_a_multiple_of_the_wait() -> None:
    draw = np.random.default_rng(1)
    row = 2.0 + draw.normal(0, 0.01, size=40)
    estimates, seen = Estimates(FixedInterval(Fraction(1))), []
    for duration in row:
        estimates.answered(0, int(duration * SECOND), 1.0)
        seen.append(1 / share(estimates, 1)[0])
    assert np.abs(np.diff(seen[20:])).max() <= 0.05
    assert 2.2 < seen[-1] < 2.8


def test_what_hangs_once_is_cut_and_what_lasts_is_followed() -> None:
    estimates = fed(WaitForNext(), [[2.0] * 30 + [2000.0]])
    assert estimates.times()[0] == pytest.approx(2.0 + 2.0 / 20), "cut to twice the median"
    for _ in range(60):
        estimates.answered(0, 8 * SECOND, 1.0)
    assert estimates.times()[0] == pytest.approx(8.0, rel=0.1)


def test_exponential_times_are_not_cut() -> None:
    drawn = np.random.default_rng(2).exponential(3.0, size=(200, 40))
    found = fed(WaitForNext(), drawn).times()
    assert np.mean(list(found.values())) == pytest.approx(3.0, rel=0.04)


def test_clients_that_have_not_answered_count_as_the_middle_one() -> None:
    estimates = Estimates(WaitForNext())
    who = np.arange(4)
    assert share(estimates, 4) == [0.25] * 4
    assert estimates.examples(who).tolist() == [1, 1, 1, 1]
    estimates.answered(0, 1 * SECOND, 10)
    estimates.answered(1, 2 * SECOND, 20)
    estimates.answered(3, 4 * SECOND, 60)
    assert estimates.examples(who).tolist() == [10, 20, 20, 60]
    pace = np.array([1, 0.5, 0.5, 0.25])
    assert share(estimates, 4) == pytest.approx(pace / pace.sum())


def test_fedbuff_counts_the_rounds_that_pass() -> None:
    estimates = Estimates(WaitForSome(2))
    for staleness in (1, 3, 2, 2):
        estimates.taken(0, staleness)
    estimates.taken(1, 0)
    assert share(estimates, 2) == pytest.approx([1 / 3, 1])


def test_what_is_saved_is_what_comes_back() -> None:
    rule = FixedInterval(Fraction(1, 2))
    estimates = fed(rule, np.random.default_rng(3).exponential(1.0, size=(5, 17)))
    other = Estimates(rule)
    other.restore(estimates.snapshot())
    for each in (estimates, other):
        each.answered(3, 123_456_789, 7.0)
        each.answered(20, 5 * SECOND, 7.0)
    assert other.snapshot() == estimates.snapshot()
    assert share(other, 21) == share(estimates, 21)


def test_a_wait_that_makes_no_sense_is_said_in_words() -> None:
    def said(wait, times, overhead=0.0):
        intervals = {client: float(np.ceil(time / wait)) for client, time in times.items()}
        return {r.about: r.words for r in remarks(wait, times, intervals, overhead, lambda client: f"site {client}")}

    assert said(30, {0: 20.0, 1: 70.0}) == {}
    assert "below what Flower's transport takes (10 s)" in said(2, {0: 1.0})["floor"]
    assert "Set wait to 14 s or more" in said(12, {0: 1.0}, overhead=14.2)["floor"]
    assert "the fastest client's 25 s (site 1)" in said(20, {0: 30.0, 1: 25.0})["fastest"]
    words = said(10, {0: 5.0, 4: 400.0})["client 4"]
    assert "client 4 (site 4) takes 400 s and misses 39 rounds" in words
    assert "Set wait to 20 s or more" in words
