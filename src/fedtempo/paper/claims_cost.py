"""What the runs would cost that decide a claim: an estimate from the number of steps and measured speeds.

    steps = Σ_schemes T · u · runs · Σ_K K       u: jobs that end in a unit of time, by all clients together

u is counted on the clock, over a long run. K is `amounts`, T `until`. Compiling and measuring come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

SPEED = {"mnist": 3.3e6, "cifar10": 35.8e3, "shakespeare": 8.3e3}
"""Steps a second on one GPU, many runs side by side (docs/performance.md): logistic regression, CNN, LSTM."""

SERVED = 12
"""Partitions that are run: two choose the rate, ten are judged."""

WAIT = "1/2"
COUNTED = 200
"""Units of time over which jobs are counted."""

Scheme = Literal["FedAvg", "async", "FedFix", "FedBuff"]


@dataclass(frozen=True)
class Work:
    """Runs of one data set: for each scheme, `runs` for each amount of local work."""

    data: str
    until: float
    runs: int
    schemes: Sequence[Scheme] = ("async",)
    clients: int = 10
    slowdown: int = 80
    amounts: Sequence[int] = (1,)

    @property
    def steps(self) -> float:
        """Steps of local SGD."""
        jobs = sum(jobs_in_time(scheme, self.clients, self.slowdown) for scheme in self.schemes)
        return jobs * self.until * self.runs * sum(self.amounts)

    @property
    def seconds(self) -> float:
        """On one GPU."""
        return self.steps / SPEED[self.data]


@cache
def jobs_in_time(scheme: Scheme, clients: int, slowdown: int) -> float:
    """Jobs that end in a unit of time, the slowest client's."""
    from fedtempo.clock.times import FixedTimes
    from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix
    from fedtempo.schemes.timelines import timeline

    named = {"FedAvg": FedAvg(), "async": AsyncFedAvg(), "FedFix": FedFix(WAIT), "FedBuff": FedBuff(10)}
    times = FixedTimes.spread(clients=clients, slowdown=slowdown)
    return len(timeline(named[scheme], times, until=COUNTED).client) / COUNTED


def duration(seconds: float) -> str:
    """About how long, in words: 40 s, 3 min, 5 h, 3 days."""
    for size, word, most in ((1, "s", 90), (60, "min", 90), (3600, "h", 48)):
        if seconds < size * most:
            return f"{_two(seconds / size)} {word}"
    return f"{_two(seconds / 86400)} days"


def _two(number: float) -> str:
    """Two digits at most."""
    return f"{max(float(f'{number:.2g}'), 1):g}"
