"""What a clock is set to: a waiting rule, client times, importance and a seed, on one common tick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedtempo.clock.ticks import MAX_TICKS, common_unit, in_ticks
from fedtempo.clock.times import MANY_CLIENTS, ClientTimes, Floats, Ints
from fedtempo.clock.waiting import MEASURES, WaitingRule, check_needs

if TYPE_CHECKING:
    from fedtempo.clock.availability import Availability

CHUNK_UPDATES = 1 << 18
"""About how many updates the larger chunks of a timeline hold."""


def chunk_updates(clients: int = 0) -> Iterator[int]:
    """About how many updates each chunk holds: few at first, so that short timelines are cheap, then CHUNK_UPDATES.

    A quarter of `clients` if there are many, where each chunk looks at all of them.
    """
    size, least = 1 << 10, clients // 4 if clients > MANY_CLIENTS else 0
    while True:
        yield max(size, least)
        size = min(2 * size, CHUNK_UPDATES)


def add_up(start: int, durations: Ints) -> Ints:
    """The ends of consecutive rounds, of as many as the clock can count."""
    fit = int((start + np.cumsum(durations.astype(np.float64)) < MAX_TICKS).sum())
    return start + np.cumsum(durations[:fit])


@dataclass(frozen=True)
class ClockConfig:
    """A rule and client times on one tick; `scale` ticks make one unit of the client times."""

    rule: WaitingRule
    times: ClientTimes
    importance: Floats
    seed: int
    unit: Fraction
    scale: int

    @classmethod
    def of(cls, rule: WaitingRule, times: ClientTimes, importance: Floats | None = None, seed: int = 0) -> ClockConfig:
        """The configuration on the coarsest tick that divides every duration."""
        rule.check(times.num_clients)
        check_needs(rule, MEASURES, "a virtual clock", f"a rule can read {', '.join(MEASURES)}")
        unit = common_unit([times.unit, *rule.waits])
        if importance is None:
            importance = np.full(times.num_clients, 1.0 / times.num_clients)
        return cls(rule, times, importance, seed, unit, in_ticks(times.unit, unit))

    @property
    def num_clients(self) -> int:
        """M."""
        return self.times.num_clients

    @property
    def availability(self) -> Availability | None:
        """When the clients are there; None: always."""
        return self.times.availability

    def ticks(self, duration: Fraction) -> int:
        """A duration in ticks, rounded down."""
        return in_ticks(duration, self.unit)

    def measures(self) -> Mapping[str, Mapping[int, object]]:
        """What is known of the clients before anything has happened."""
        means = self.times.exact_mean_time or tuple(self.times.mean_time.tolist())
        return {
            "mean_time": dict(enumerate(means)),
            "importance": dict(enumerate(self.importance.tolist())),
        }
