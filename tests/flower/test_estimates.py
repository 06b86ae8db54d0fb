"""Client times by the server's clock: robust, smoothed, and right for random times."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.events import Job, Round
from fedtempo.clock.rules import FixedInterval, WaitForNext, WaitForSome
from fedtempo.flower.estimates import Estimates
from fedtempo.flower.round_weights import FLOOR, remarks

SECOND = 10**9


class Client:
    """Its jobs follow one another; `wait` is the rounds' length in seconds, and rounds take what has arrived."""

    def __init__(self, estimates: Estimates, client: int = 0, *, wait: float = 1.0, examples: float = 10.0) -> None:
        self.estimates, self.client, self.wait, self.examples = estimates, client, round(wait * SECOND), examples
        self.now, self.number = 0, 0

    def _job(self, seconds: float) -> Job:
        job = Job(self.client, self.number, self.now // self.wait, self.now)
        self.number += 1
        self.now += int(seconds * SECOND)
        return job

    def works(self, *durations: float) -> None:
        for duration in durations:
            job = self._job(duration)
            self.estimates.answered(job, self.now, self.examples)
            taken = -(-self.now // self.wait)
            self.estimates.taken(job, taken - 1)
            self.now = taken * self.wait

    def fails(self, *durations: float, rest: float | None = None) -> None:
        for duration in durations:
            job = self._job(duration)
            if rest is None:
                self.estimates.failed(job)
            else:
                self.estimates.set_aside(job, self.now, self.now // self.wait)
                self.now += int(rest * SECOND)


def fed(rule, durations, examples=10.0) -> Estimates:
    estimates = Estimates(rule)
    wait = float(rule.wait) if isinstance(rule, FixedInterval) else 1.0
    for client, row in enumerate(durations):
        Client(estimates, client, wait=wait, examples=examples).works(*row)
    return estimates


def share(estimates: Estimates, clients: int) -> list[float]:
    return estimates.participation(np.arange(clients)).share.tolist()


def test_fixed_times_give_the_closed_forms() -> None:
    durations = [[2.0] * 30, [0.5] * 30, [3.1] * 30]
    times = ft.FixedTimes(["2", "0.5", "3.1"])
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
    client = Client(estimates)
    for duration in row:
        client.works(duration)
        seen.append(1 / share(estimates, 1)[0])
    assert np.abs(np.diff(seen[20:])).max() <= 0.05
    assert 2.2 < seen[-1] < 2.8


@pytest.mark.parametrize("rule", [WaitForNext(), FixedInterval(Fraction(1)), WaitForSome(1)])
def test_what_hangs_once_is_cut_and_what_lasts_is_followed(rule) -> None:
    estimates = Estimates(rule)
    client = Client(estimates)
    client.works(*[2.0] * 30, 2000.0)
    assert estimates.times()[0] == pytest.approx(2.0 + 2.0 / 20), "cut to twice the median"
    assert estimates.intervals()[0] == pytest.approx(2.0 + 2.0 / 20)
    client.works(*[8.0] * 60)
    assert estimates.times()[0] == pytest.approx(8.0, rel=0.1)
    assert estimates.intervals()[0] == pytest.approx(8.0, rel=0.1)


def test_what_was_seen_lately_is_no_outlier() -> None:
    """One job in five takes ten times as long: that is how this client works."""
    estimates = fed(WaitForNext(), [[6.0, 6.0, 6.0, 6.0, 60.0] * 20])
    assert estimates.times()[0] == pytest.approx(16.8, rel=0.12)


def test_failed_tries_count_with_the_update_that_follows() -> None:
    estimates = Estimates(WaitForNext())
    often, never = Client(estimates, 0), Client(estimates, 1)
    for _ in range(10):
        often.fails(2.0, 1.0)
        often.works(3.0)
        never.works(3.0)
    assert estimates.times() == pytest.approx({0: 3.0, 1: 3.0}), "that of the jobs that were done"
    assert estimates.intervals() == pytest.approx({0: 6.0, 1: 3.0})
    assert share(estimates, 2) == pytest.approx([1 / 3, 2 / 3])


def test_tries_before_a_rest_count_and_the_rest_does_not() -> None:
    estimates = Estimates(WaitForNext())
    client = Client(estimates)
    client.fails(2.0, 1.0)
    client.fails(2.0, rest=50)
    client.fails(4.0, rest=100)
    client.works(3.0)
    assert estimates.intervals() == pytest.approx({0: 12.0})
    assert share(estimates, 2) == [0.5, 0.5]
    Client(estimates, 1).works(4.0)
    assert share(estimates, 2) == pytest.approx([1 / 4, 3 / 4])


def test_failures_of_a_client_that_left_are_forgotten() -> None:
    estimates = Estimates(FixedInterval(Fraction(1)))
    client = Client(estimates)
    client.fails(5.0)
    client.fails(5.0, rest=10)
    client.fails(7.0)
    estimates.forgive(0)
    client.works(3.0)
    assert estimates.intervals() == {0: 3.0}


def test_exponential_times_are_not_cut() -> None:
    drawn = np.random.default_rng(2).exponential(3.0, size=(200, 40))
    found = fed(WaitForNext(), drawn).times()
    assert np.mean(list(found.values())) == pytest.approx(3.0, rel=0.04)


def test_clients_that_have_not_answered_count_as_the_middle_one() -> None:
    estimates = Estimates(WaitForNext())
    who = np.arange(4)
    assert share(estimates, 4) == [0.25] * 4
    assert estimates.examples(who).tolist() == [1, 1, 1, 1]
    for client, seconds, examples in ((0, 1, 10), (1, 2, 20), (3, 4, 60)):
        Client(estimates, client, examples=examples).works(seconds)
    assert estimates.examples(who).tolist() == [10, 20, 20, 60]
    pace = np.array([1, 0.5, 0.5, 0.25])
    assert share(estimates, 4) == pytest.approx(pace / pace.sum())


def test_fedbuff_counts_the_rounds_that_pass() -> None:
    estimates = Estimates(WaitForSome(2))
    for base, number in ((0, 1), (2, 5), (6, 8), (9, 11)):
        estimates.taken(Job(0, 0, base, 0), number)
    estimates.taken(Job(1, 0, 4, 0), 4)
    assert share(estimates, 2) == pytest.approx([1 / 3, 1])
    closing = Round(15, 0, (Job(0, 5, 12, 0), Job(2, 0, 8, 0)), ())
    seen = estimates.participation(np.arange(3), closing).share
    assert 1 / seen == pytest.approx([(12 + 4) / 5, 1, 8]), "with the updates that the round takes"
    assert share(estimates, 2) == pytest.approx([1 / 3, 1]), "which are entered when it has"


def test_the_middle_of_large_numbers_of_examples_is_a_number() -> None:
    estimates = Estimates(WaitForNext())
    for client in (0, 1):
        Client(estimates, client, examples=1.7e308).works(1.0)
    assert estimates.examples(np.arange(3)).tolist() == [1.7e308] * 3


def test_what_is_saved_is_what_comes_back() -> None:
    rule = FixedInterval(Fraction(1, 2))
    estimates = fed(rule, np.random.default_rng(3).exponential(1.0, size=(5, 17)))
    Client(estimates, 2).fails(3.0)
    Client(estimates, 3).fails(4.0, 5.0, rest=9)
    other = Estimates(rule)
    other.restore(json.loads(json.dumps(estimates.snapshot())))
    for each in (estimates, other):
        for client in (2, 3, 20):
            later = Client(each, client)
            later.now = 20 * SECOND
            later.works(0.123456789, 5.0)
    assert other.snapshot() == estimates.snapshot()
    assert share(other, 21) == share(estimates, 21)
    assert max(other.intervals(), key=lambda client: other.intervals()[client]) in (2, 3), "their failures count"


def test_a_wait_that_makes_no_sense_is_said_in_words() -> None:
    def said(wait, times, overhead=0.0):
        intervals = {client: float(np.ceil(time / wait)) for client, time in times.items()}
        return {
            r.about: r.words
            for r in remarks(wait, times, intervals, max(FLOOR, overhead), lambda client: f"site {client}")
        }

    assert said(30, {0: 20.0, 1: 70.0}) == {}
    assert "shorter than Flower's transport takes (10 s)" in said(2, {0: 1.0})["floor"]
    assert "Set wait to 14 s or more" in said(12, {0: 1.0}, overhead=14.2)["floor"]
    assert "the fastest client's 25 s (site 1)" in said(20, {0: 30.0, 1: 25.0})["fastest"]
    words = said(10, {0: 5.0, 4: 400.0})["client 4"]
    assert "client 4 (site 4) takes 400 s and misses 39 rounds" in words
    assert "Set wait to 20 s or more" in words
