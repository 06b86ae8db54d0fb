"""The fast generators give the rounds that the rules themselves give, in federations of some size."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline
from fedtempo.clock.rules import WaitForSome, wait_for_some

CLIENTS = 40


def federation(law: str) -> ft.ClientTimes:
    draw = random.Random(law)
    means = [Fraction(draw.randint(2, 40), 8) for _ in range(CLIENTS)]
    match law:
        case "fixed":
            return ft.FixedTimes(means)
        case "equal":
            return ft.FixedTimes([1] * CLIENTS)
        case "replay" | "bootstrap":
            rows = [[Fraction(draw.randint(1, 9), 4) for _ in range(draw.randint(1, 5))] for _ in range(CLIENTS)]
            return ft.TraceTimes(rows, mode=law)
        case "exponential":
            return ft.ExponentialTimes(means)
        case "coarse":
            return ft.ExponentialTimes(means, resolution="1/8")
    return ft.LogNormalTimes(means, sigma=1.0)


@pytest.mark.parametrize("law", ["fixed", "equal", "replay", "bootstrap", "exponential", "coarse", "lognormal"])
@pytest.mark.parametrize(
    "scheme",
    [
        ft.FedAvg(),
        ft.AsyncFedAvg(),
        ft.FedFix("1/2"),
        ft.FedFix("1/7"),
        ft.FedFix(9),
        ft.FedBuff(1),
        ft.FedBuff(7),
        ft.FedBuff(15),
        ft.FedBuff(16),
        ft.FedBuff(39),
        ft.FedBuff(40),
        ft.UniformSampling(11),
        ft.MultinomialSampling(60),
        ft.FastestSampling(9),
    ],
    ids=str,
)
def test_fast_rounds_are_the_rules_rounds(scheme, law) -> None:
    config = ClockConfig.of(scheme.waiting, federation(law), seed=3)
    rounds = 2000 if scheme.name == "async" else 120
    fast = full_timeline(config, max_rounds=rounds)
    fast.validate()
    assert fast.equals(full_timeline(config, max_rounds=rounds, by_rule=True))


@pytest.mark.parametrize(
    "times",
    [
        ft.FixedTimes.spread(20, 80),
        ft.FixedTimes([2**58 + i for i in range(20)]),  # which comes to the end of the clock
        ft.TraceTimes([[1 + i, 2, "1/3"] for i in range(20)]),
        ft.LogNormalTimes([1 + i / 20 for i in range(20)]),
    ],
    ids=["fixed", "long", "trace", "lognormal"],
)
@pytest.mark.parametrize("size", [2, 5, 17])
def test_every_race_of_fedbuff_is_the_same(times, size) -> None:
    config = ClockConfig.of(WaitForSome(size), times)
    makers = [wait_for_some._list_race, wait_for_some._heap_race]
    makers += [wait_for_some._array_race] if isinstance(times, ft.FixedTimes) else []
    found = []
    for maker in makers:
        race = maker(config, size)
        found.append([race(rounds) for rounds in (1, 7, 300, 5)])
    for other in found[1:]:
        for (ends, who), (its_ends, its_who) in zip(found[0], other, strict=True):
            assert np.array_equal(ends, its_ends)
            assert np.array_equal(who, its_who)
