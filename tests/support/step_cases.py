"""Random clients with fixed times under asynchronous FedAvg, FedBuff and FedFix, for the steps that are stable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

import fedtempo as ft
from fedtempo.clock.importance import Importance
from fedtempo.clock.times import Floats
from fedtempo.schemes.timelines import weights_of
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import weight_rule


@dataclass(frozen=True)
class Case:
    """A scheme with its clients, its long run, and its weights."""

    scheme: ft.Scheme
    times: ft.ClientTimes
    importance: tuple[Fraction, ...]
    run: LongRun
    d: Floats


def case_of(scheme: ft.Scheme, times: ft.ClientTimes, importance=None, weights: str = "time-based") -> Case:
    """With the weights that the scheme has with these clients; where some leave for good, the last."""
    shares = Importance(importance, times.num_clients)
    run = LongRun(scheme.waiting, times, shares)
    found = weights_of(scheme, run, weight_rule(weights))
    return Case(scheme, times, shares.exact, run, np.asarray(found.stage(found.num_stages - 1)))


def draw(number: int) -> Case:
    """Case number `number`: 2 to 8 clients, times of a few ticks, one client in some cases much slower."""
    rng = np.random.default_rng([18, number])
    while True:
        clients = int(rng.integers(2, 9))
        ticks = rng.choice([1, 2, 3, 4, 5, 6, 8, 10, 12], clients)
        if rng.random() < 0.3:
            ticks[0] = rng.choice([20, 40, 120])
        if math.lcm(*ticks.tolist()) <= 240:
            break
    parts = [Fraction(int(k)) for k in rng.integers(1, rng.choice([2, 10]), clients)]
    importance = [part / sum(parts) for part in parts]
    schemes = (ft.AsyncFedAvg(), ft.FedBuff(int(rng.integers(1, clients))), ft.FedFix(int(rng.integers(1, 9))))
    return case_of(schemes[number % 3], ft.FixedTimes(ticks.tolist()), importance)
