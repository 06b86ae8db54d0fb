"""Time on the server: whole nanoseconds of its monotonic clock. Clients' clocks are never read.

    training time = now − origin + start

`origin` is when training began here, `start` where an earlier run had come to. `TransportCosts` says where the server's
own seconds go, in Flower's transport or in our work between two calls of it; waiting is neither.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, Protocol

from fedtempo.clock.ticks import Exact, positive

NANOSECOND = Fraction(1, 10**9)
"""The unit of all ticks of a deployment, in seconds."""


class Clock(Protocol):
    """A monotonic clock.

    `now` is in whole nanoseconds. A strategy takes another one than the computer's as ``clock=``, for tests.

    Example:
        >>> class Manual:  # time passes only where somebody sleeps, as tests like it
        ...     time = 0
        ...     def now(self):
        ...         return self.time
        ...     def sleep(self, until):
        ...         self.time = until
        >>> from fedtempo.flower import Clock, FedFix
        >>> clock: Clock = Manual()
        >>> strategy = FedFix(wait=1, clock=clock)
        >>> clock.sleep(5 * 10**9)
        >>> clock.now()  # nanoseconds
        5000000000
    """

    def now(self) -> int:
        """Nanoseconds since some moment."""

    def sleep(self, until: int) -> None:
        """Return at `until`, or before if something may have happened."""


class WallClock:
    """The computer's monotonic clock.

    Example:
        >>> from fedtempo.flower import WallClock
        >>> clock = WallClock()
        >>> begin = clock.now()
        >>> clock.sleep(begin + 1_000_000)  # a millisecond
        >>> clock.now() - begin >= 1_000_000
        True
    """

    def now(self) -> int:
        """Nanoseconds since some moment."""
        return time.monotonic_ns()

    def sleep(self, until: int) -> None:
        """Return at `until`."""
        left = until - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)


class TrainingClock:
    """Time since training began."""

    def __init__(self, clock: Clock, start: int = 0) -> None:
        self._clock = clock
        self.shift = start - clock.now()
        """What is added to the clock's time."""

    def now(self) -> int:
        return self._clock.now() + self.shift

    def sleep(self, until: int) -> None:
        self._clock.sleep(until - self.shift)


def nanoseconds(duration: Exact, what: str) -> int:
    """A duration in seconds, in ticks, rounded up."""
    return int(-(-positive(duration, what) // NANOSECOND))


def seconds(ticks: int) -> float:
    """Ticks in seconds, for people."""
    return ticks / 1e9


Part = Literal["push", "pull", "nodes", "admission", "aggregation", "checkpoint"]
TRANSPORT: tuple[Part, ...] = ("push", "pull", "nodes")


class _Watch:
    """Counts the time between entering and leaving it."""

    __slots__ = ("_begin", "_costs", "_name")

    def __init__(self, costs: TransportCosts, name: str) -> None:
        self._costs, self._name = costs, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        spent, calls, name = self._costs.seconds, self._costs.calls, self._name
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - self._begin
        calls[name] = calls.get(name, 0) + 1


@dataclass
class TransportCosts:
    """Seconds and calls by part, and how much longer round trips took than clients say that they worked.

    Example:
        In the app of the example of `simulate_app`:

        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=8)
        >>> costs = result.transport
        >>> costs.own < 1, costs.floor  # seconds; clients here do not report how long they worked
        (True, 0.0)
    """

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    round_trip_overhead: dict[str, float] = field(default_factory=dict)
    """By client: the mean of (round trip − work) in seconds, where the client reports its working seconds."""

    def part(self, name: Part) -> _Watch:
        """Count what is done inside as `name`."""
        return _Watch(self, name)

    @property
    def transport(self) -> float:
        """Seconds inside Flower's calls."""
        return sum(spent for name, spent in self.seconds.items() if name in TRANSPORT)

    @property
    def own(self) -> float:
        """Seconds of our own work: admission of replies, aggregation, checkpoints."""
        return sum(spent for name, spent in self.seconds.items() if name not in TRANSPORT)

    @property
    def floor(self) -> float:
        """The largest measured overhead of a client's round trip, in seconds; 0 if no client reports its work."""
        return max(self.round_trip_overhead.values(), default=0.0)

    def __str__(self) -> str:
        each = ", ".join(f"{name} {spent:.3f} s in {self.calls[name]}" for name, spent in sorted(self.seconds.items()))
        return f"transport {self.transport:.3f} s, own work {self.own:.3f} s ({each})"
