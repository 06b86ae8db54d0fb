"""The waiting rules: one file each, with the fast generator of its timeline where there is one."""

from fedtempo.clock.rules.cured import CuredSample
from fedtempo.clock.rules.fixed_interval import FixedInterval, IntervalStages
from fedtempo.clock.rules.highest_loss import HighestLoss
from fedtempo.clock.rules.sampled import FastestClients, MultinomialSample, SampledClients, UniformSample, fastest
from fedtempo.clock.rules.wait_for_all import WaitForAll
from fedtempo.clock.rules.wait_for_next import WaitForNext
from fedtempo.clock.rules.wait_for_some import WaitForSome

__all__ = [
    "CuredSample",
    "FastestClients",
    "FixedInterval",
    "HighestLoss",
    "IntervalStages",
    "MultinomialSample",
    "SampledClients",
    "UniformSample",
    "WaitForAll",
    "WaitForNext",
    "WaitForSome",
    "fastest",
]
