"""Time on the server: whole nanoseconds of its monotonic clock. Clients' clocks are never read.

    training time = now − origin + start

`origin` is when training began here, `start` where an earlier run had come to.
"""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Protocol

from fedtempo.clock.ticks import Exact, positive

NANOSECOND = Fraction(1, 10**9)
"""The unit of all ticks of a deployment, in seconds."""


class Clock(Protocol):
    """A clock that never goes back."""

    def now(self) -> int:
        """Nanoseconds since some moment."""

    def sleep(self, until: int) -> None:
        """Return at `until`, or before if something may have happened."""


class WallClock:
    """The computer's monotonic clock."""

    def now(self) -> int:
        return time.monotonic_ns()

    def sleep(self, until: int) -> None:
        left = until - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)


class TrainingClock:
    """Time since training began."""

    def __init__(self, clock: Clock, start: int = 0) -> None:
        self._clock = clock
        self._shift = start - clock.now()

    def now(self) -> int:
        return self._clock.now() + self._shift

    def sleep(self, until: int) -> None:
        self._clock.sleep(until - self._shift)


def nanoseconds(duration: Exact, what: str) -> int:
    """A duration in seconds, in ticks, rounded up."""
    return int(-(-positive(duration, what) // NANOSECOND))


def seconds(ticks: int) -> float:
    """Ticks in seconds, for people."""
    return ticks / 1e9
