"""The fast generators give the rounds that the rules themselves give, in federations of some size."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

import fedtempo as ft
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline

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
