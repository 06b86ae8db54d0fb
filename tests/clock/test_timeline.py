"""Timelines: slices, counts, live versions, and what they refuse."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft

F80 = ft.FixedTimes.spread(clients=7, slowdown=80)
SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    ft.FedFix("1/2"),
    ft.FedFix("1/20"),
    ft.FedBuff(3),
    ft.UniformSampling(3),
    ft.MultinomialSampling(4),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_slices_put_together_are_the_whole(scheme) -> None:
    line = ft.timeline(scheme, F80, until=30)
    parts = [line[:5], line[5:6], line[6:6], line[6:]]
    assert ft.Timeline.joined(parts).equals(line)
    assert list(line[5:9].rounds) == list(line.rounds)[5:9]
    assert sum(part.num_updates for part in parts) == line.num_updates


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_live_versions_by_brute_force(scheme) -> None:
    line = ft.timeline(scheme, F80, until=20)
    rounds = list(line.rounds)
    expected = []
    for n in range(len(rounds)):
        later = {v for r in rounds[n:] for v in r.base_versions}
        expected.append(len({v for v in later if v <= n}))
    assert line.live_versions.tolist() == expected
    assert max(expected) <= min(7, int(line.staleness.max()) + 1)


def test_counts_and_staleness_by_hand() -> None:
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([2, 1]), until=4)
    assert [(r.participants, r.base_versions) for r in line.rounds] == [
        ((1,), (0,)),
        ((0, 1), (0, 1)),
        ((1,), (2,)),
        ((0, 1), (2, 3)),
    ]
    assert line.staleness.tolist() == [0, 1, 0, 0, 1, 0]
    assert line.participation_counts.tolist() == [2, 4]
    assert line.duration == 4
    assert [r.start for r in line.rounds] == [0, 1, 2, 3]


def test_a_round_at_the_horizon_is_inside() -> None:
    times = ft.FixedTimes(["1/3"])
    assert ft.timeline(ft.AsyncFedAvg(), times, until=1).num_rounds == 3
    assert ft.timeline(ft.AsyncFedAvg(), times, until="0.99").num_rounds == 2


def test_floats_mean_their_decimals() -> None:
    line = ft.timeline(ft.FedFix(0.2), ft.FixedTimes([0.2, 0.6, 1.0]), until=600)
    assert line.participation_counts.tolist() == [3000, 1000, 600]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ends": np.array([3, 2, 4, 5])}, "end before"),
        ({"ends": np.array([-1, 2, 3, 4])}, "before it starts"),
        ({"client": np.array([1, 1, 0, 1, 0, 1], dtype=np.int32)}, "ascend"),
        ({"client": np.array([1, 0, 7, 1, 0, 1], dtype=np.int32)}, "lie in 0"),
        ({"base": np.array([1, 0, 1, 2, 2, 3], dtype=np.int32)}, "must exist"),
        ({"base": np.array([0, 0, 0, 2, 2, 3], dtype=np.int32)}, "after its last contribution"),
        ({"job": np.array([0, 0, 0, 2, 1, 3], dtype=np.int32)}, "job numbers"),
        ({"offsets": np.array([0, 1, 3, 4, 5])}, "last offset"),
        ({"offsets": np.array([0, 3, 1, 4, 6])}, "not decrease"),
    ],
)
def test_validation_names_the_breach(change, words) -> None:
    line = ft.timeline(ft.FedFix(1), ft.FixedTimes([2, 1]), until=4)
    line.validate()
    with pytest.raises(ft.InputError, match=words):
        dataclasses.replace(line, **change).validate()


def test_a_horizon_before_the_first_round_says_when_it_ends() -> None:
    with pytest.raises(ft.InputError, match="at least 7/2"):
        ft.timeline(ft.FedAvg(), ft.FixedTimes([1, "7/2"]), until=3)


def test_without_an_end_there_is_no_timeline() -> None:
    with pytest.raises(ft.InputError, match="until="):
        ft.timeline(ft.FedAvg(), F80)
    for run in (ft.timeline, ft.timeline_chunks):
        with pytest.raises(ft.InputError, match="rounds"):
            run(ft.FedAvg(), F80, rounds=0)


def test_overflow_is_an_error_and_not_a_wrong_number() -> None:
    times = ft.FixedTimes(["1e-15", 1])
    with pytest.raises(ft.ClockOverflow, match="64-bit"):
        ft.timeline(ft.FedAvg(), times, until=10**6)
    with pytest.raises(ft.ClockOverflow, match="64-bit"):
        ft.timeline(ft.FedFix(wait="1/1000003"), ft.FixedTimes(["1e-15", 1]), until=10)
    with pytest.raises(ft.ClockOverflow):
        ft.timeline(ft.FedAvg(), ft.FixedTimes([Fraction(1, 2**40), 2**20]), rounds=10)
    with pytest.raises(ft.ClockOverflow):
        ft.timeline(ft.FedFix(2**20), ft.FixedTimes([Fraction(1, 2**39), 1]), rounds=100)


def test_chunks_hold_little_however_long_the_run() -> None:
    sizes = [part.num_updates for part in ft.timeline_chunks(ft.AsyncFedAvg(), F80, rounds=1_500_000)]
    assert sum(sizes) == 1_500_000
    assert max(sizes) < 300_000
