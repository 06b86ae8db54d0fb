"""T_i, the time that client i needs for one job (section 2.2), and its fixed form T_i = τ_i (section 4.1).

    F<X>:      τ_i = 1 − (X/100)·i/(M−1),    client 0 the slowest
    hardware:  τ_i = seconds per step × K + bytes sent / upload rate + bytes received / download rate

τ_i = E[T_i] is `mean_time`, M is `num_clients`. Durations are whole ticks of `unit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.ticks import MAX_TICKS, Exact, common_unit, exact, positive, text
from fedtempo.errors import ClockOverflow, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from fedtempo.clock.availability import Availability, Given

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_CLIENTS = 100_000_000
"""Of F<X>."""
MANY_CLIENTS = 1_000_000
"""Beyond so many clients a plan works with what holds in the limit of many, and lists nothing client by client."""


class Multiples(Sequence[Fraction]):
    """Whole multiples of a unit, as rationals that are made when they are looked at."""

    def __init__(self, ticks: Ints, unit: Fraction) -> None:
        self.ticks, self.unit = ticks, unit

    def __len__(self) -> int:
        return len(self.ticks)

    @overload
    def __getitem__(self, index: int) -> Fraction: ...
    @overload
    def __getitem__(self, index: slice) -> Multiples: ...
    def __getitem__(self, index: int | slice) -> Fraction | Multiples:
        if isinstance(index, slice):
            return Multiples(self.ticks[index], self.unit)
        return int(self.ticks[index]) * self.unit

    def __iter__(self) -> Iterator[Fraction]:
        return (int(t) * self.unit for t in self.ticks)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Multiples):
            return self.unit == other.unit and np.array_equal(self.ticks, other.ticks)
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    @property
    def least(self) -> Fraction:
        """The smallest."""
        return int(self.ticks.min()) * self.unit

    @property
    def largest(self) -> Fraction:
        """The largest."""
        return int(self.ticks.max()) * self.unit

    @property
    def floats(self) -> Floats:
        """The nearest floats."""
        top, bottom = self.unit.numerator, self.unit.denominator
        if int(self.ticks.max()) * top < 2**53 and bottom < 2**53:  # the division alone is rounded
            return np.asarray(self.ticks * float(top) / float(bottom))
        return np.array([float(value) for value in self])


class ClientTimes(ABC):
    """How long each client's jobs take.

    Made as `FixedTimes`, `ExponentialTimes`, `ShiftedExponentialTimes`, `LogNormalTimes`, `ParetoTimes`, `UniformTimes`
    or `TraceTimes`. The unit is yours: waits and `until` are in the same one. `available` lets clients come, go and
    fail.

    Example:
        >>> times = ft.FixedTimes.spread(clients=3, slowdown=80)  # one of the subclasses
        >>> times.num_clients, times.mean_time, times.random
        (3, array([1. , 0.6, 0.2]), False)
        >>> unsteady = times.available(failure=0.1, on=10, off=5)
        >>> unsteady
        FixedTimes([1, 3/5, 1/5]).available(failure 1/10, on 10, off 5)
        >>> times.only([0, 2]).mean_time
        array([1. , 0.2])
    """

    law: str
    """The law's name, as in ``--law``."""

    random: bool = True
    """Whether a job's time is drawn; if not, every run of the clock is the same."""

    memoryless: bool = False
    """Whether the time that is left of a job does not depend on the time that it has taken."""

    by_traffic: bool = False
    """Whether they depend on the bytes of an update, which `for_traffic` fills in."""

    availability: Availability | None = None
    """When the clients are there, and how often their jobs fail; None: always, and never."""

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """M."""

    @property
    @abstractmethod
    def unit(self) -> Fraction:
        """The tick: every duration is a whole number of these."""

    @property
    @abstractmethod
    def mean_time(self) -> Floats:
        """E[T_i], one per client."""

    @abstractmethod
    def draw(self, client: Ints, job: Ints, *, seed: int = 0) -> Ints:
        """Durations, in ticks of `unit`, of job number `job` of `client` (arrays that broadcast).

        A duration depends on (seed, client, job) alone.
        """

    @abstractmethod
    def expected_rounds(self, wait: Fraction) -> Floats:
        """E⌈T_i/Δt⌉ = Σ_{k≥0} P(T_i > kΔt): intervals of length `wait` from one contribution to the next."""

    @property
    def exact_mean_time(self) -> tuple[Fraction, ...] | None:
        """E[T_i] as rationals, where they are."""
        return None

    def exact_expected_rounds(self, wait: Fraction) -> tuple[Fraction, ...] | None:
        """E⌈T_i/Δt⌉ as rationals, where they are."""
        return None

    @property
    def clock_mean_time(self) -> Floats:
        """E[T_i] of the durations that the clock sees, rounded up to ticks where times are drawn."""
        return self.mean_time

    @abstractmethod
    def survival(self, time: float) -> Floats:
        """P(T_i > time), one per client."""

    def distribution(self, time: float) -> Floats:
        """P(T_i ≤ time), one per client."""
        return 1.0 - self.survival(time)

    def kinks(self) -> Floats:
        """The moments at which `survival` is not smooth."""
        return np.empty(0)

    def longest(self) -> Sequence[Fraction] | None:
        """The longest time that each client can need; None where there is no such bound."""
        return None

    @property
    def names(self) -> tuple[str, ...] | None:
        """What the clients are called, where they have names of their own."""
        return None

    @property
    def job_period(self) -> Ints | None:
        """After how many jobs each client's durations repeat; None if they do not."""
        return None

    @property
    def always(self) -> ClientTimes:
        """The times of the same clients if they were always there."""
        return self

    def available(
        self,
        *,
        failure: Exact | Sequence[Exact] | None = None,
        on: Exact | Sequence[Exact] | None = None,
        off: Exact | Sequence[Exact] | None = None,
        absences: Given | str | Path | None = None,
        period: Exact | None = None,
    ) -> ClientTimes:
        """The same clients, now coming and going: ``times.available(failure=0.1, on=10, off=5)``.

        `failure`: probability that a job fails, one number or one per client. `on` and `off`: mean times that a client
        is there and away, exponential, in turn. `absences`: by client, when it is away, as {3: [(0, 12), (40, 60)],
        7: [(25, None)]}, or a file with columns client, leaves, returns; with a `period` they repeat for ever. What the
        clients had stays unless it is named.
        """
        from fedtempo.clock.availability import available

        return available(self, failure=failure, on=on, off=off, absences=absences, period=period)

    def for_traffic(self, up: int, down: int) -> ClientTimes:
        """The times of jobs that send `up` bytes and receive `down`; these, where bytes do not matter."""
        return self

    def only(self, clients: Sequence[int]) -> ClientTimes:
        """The times of some of the clients, numbered anew."""
        raise InputError(f"{self!r} cannot select some of its clients; implement its method only(clients)")

    def with_means(self, means: Sequence[Exact]) -> ClientTimes | None:
        """Other clients under the same law, with these mean times; None where means alone do not say it."""
        return None

    def describe(self) -> list[str | float]:
        """Each client's mean time: exact text where it is exact, else a number."""
        rational = self.exact_mean_time
        return [text(t) for t in rational] if rational is not None else [float(t) for t in self.mean_time]


def per_client(values: Iterable[object], what: str) -> Sequence[Fraction]:
    """One positive rational per client; a wrong one is named with its client."""
    if isinstance(values, Multiples) and len(values) and values.least > 0:
        return values
    if not isinstance(values, Iterable):
        raise InputError(f"{what}: {values!r} is one value; give a list with one per client")
    found = tuple(positive(v, f"{what} of client {i}") for i, v in enumerate(values))
    if not found:
        raise InputError(f"no clients: {what} is an empty list; give one per client")
    return found


def latest(values: Sequence[Fraction]) -> Fraction:
    """The largest of some rationals."""
    return values.largest if isinstance(values, Multiples) else max(values)


def checked_ticks(durations: Floats | Ints) -> Ints:
    """Durations as 64-bit ticks, at least one each; too long ones are refused."""
    if durations.size and not bool(np.max(durations) < MAX_TICKS):
        raise ClockOverflow(
            "a drawn time does not fit a 64-bit clock: the law's tail is too heavy for its resolution; "
            "pass a coarser resolution= or a narrower law"
        )
    return np.maximum(durations, 1).astype(np.int64)


class FixedTimes(ClientTimes):
    """Every job of client i takes exactly τ_i. ``FixedTimes(["1", 2, "5/2", 0.2])``.

    `times` are positive numbers, texts or Fractions, one per client; 0.2 means 1/5. `spread` makes the paper's F<X>,
    `hardware` adds up computing and sending.

    Example:
        >>> times = ft.FixedTimes(["1", 2, "5/2", 0.2])
        >>> print(*times.exact_mean_time)
        1 2 5/2 1/5
        >>> print(*ft.FixedTimes.spread(clients=5, slowdown=80).exact_mean_time)  # F80
        1 4/5 3/5 2/5 1/5
        >>> ft.FixedTimes.hardware(step_seconds=[0.5, 0.1], steps=10, bytes_per_second=1e6, bytes_sent=4e6).mean_time
        array([9., 5.])
    """

    law = "fixed"
    random = False

    def __init__(self, times: Iterable[Exact]) -> None:
        if isinstance(times, str):
            raise InputError(f"times: {times!r} is a string; give a list with one time per client, as [1, 2, '5/2']")
        rational = per_client(times, "time")
        unit = common_unit(rational)
        longest = max(rational)
        if longest / unit >= MAX_TICKS:
            raise ClockOverflow(
                f"time {float(longest):g} is more than a 64-bit clock can count in ticks of {float(unit):.2g}; "
                "round the times to a common precision, say three decimals"
            )
        self._set(np.array([int(t / unit) for t in rational], dtype=np.int64), unit)

    def _set(self, ticks: Ints, unit: Fraction) -> None:
        ticks.setflags(write=False)
        self._ticks, self._unit = ticks, unit

    @classmethod
    def _of_ticks(cls, ticks: Ints, unit: Fraction) -> FixedTimes:
        """From whole ticks, without a Fraction per client."""
        made = cls.__new__(cls)
        shared = int(np.gcd.reduce(ticks))
        made._set(ticks // shared, unit * shared)
        return made

    @classmethod
    def spread(cls, clients: int, slowdown: Exact) -> FixedTimes:
        """The paper's F<X>: from 1 for client 0 down to 1 − X/100 for the last, evenly; `slowdown` is X in [0, 100)."""
        share = exact(slowdown, "slowdown") / 100
        if not 0 <= share < 1:
            raise InputError(f"F{slowdown}: the slowdown must be at least 0 and below 100, as in F80")
        if clients < 1:
            raise InputError(f"no clients: {clients} given; give at least one")
        if clients > MAX_CLIENTS:
            raise InputError(f"{clients} clients are too many; give at most {MAX_CLIENTS}")
        gaps = max(clients - 1, 1)
        if share.denominator * gaps >= MAX_TICKS:
            raise ClockOverflow(f"F{slowdown} has too many digits for {clients} clients; round the slowdown")
        ticks = share.denominator * gaps - share.numerator * np.arange(clients, dtype=np.int64)
        return cls._of_ticks(ticks, Fraction(1, share.denominator * gaps))

    @classmethod
    def hardware(
        cls,
        *,
        step_seconds: Exact | Sequence[Exact],
        steps: int | Sequence[int],
        bytes_per_second: Exact | Sequence[Exact],
        bytes_sent: Exact | Sequence[Exact] | None = None,
        bytes_received: Exact | Sequence[Exact] | None = None,
        download_bytes_per_second: Exact | Sequence[Exact] | None = None,
    ) -> ClientTimes:
        """Seconds per step × steps + bytes sent / bandwidth, and bytes received / download bandwidth if that is given.

        A single value holds for every client. Without `bytes_sent`, ``ft.simulate`` takes the bytes of an update of
        each scheme, fewer where it compresses.
        """
        if (bytes_received is not None) and (bytes_sent is None or download_bytes_per_second is None):
            raise InputError("bytes_received: also give bytes_sent and download_bytes_per_second")
        if bytes_sent is not None and bytes_received is None and download_bytes_per_second is not None:
            raise InputError("download_bytes_per_second: with bytes_sent, also give bytes_received")
        given = {
            "step_seconds": step_seconds,
            "steps": steps,
            "bytes_per_second": bytes_per_second,
            "bytes_sent": 0 if bytes_sent is None else bytes_sent,
            "bytes_received": 0 if bytes_received is None else bytes_received,
            "download_bytes_per_second": 1 if download_bytes_per_second is None else download_bytes_per_second,
        }
        seconds, work, up, sent, received, down = _columns(given)
        compute = [a * b for a, b in zip(seconds, work, strict=True)]
        if bytes_sent is not None:
            transfers = zip(compute, sent, up, received, down, strict=True)
            return cls([own + a / b + c / d for own, a, b, c, d in transfers])
        from fedtempo.clock.hardware import HardwareTimes

        return HardwareTimes(compute, up, None if download_bytes_per_second is None else down)

    @property
    def num_clients(self) -> int:
        return len(self._ticks)

    @property
    def unit(self) -> Fraction:
        return self._unit

    @property
    def ticks(self) -> Ints:
        """τ_i in ticks of `unit`."""
        return self._ticks

    @property
    def mean_time(self) -> Floats:
        whole = self._ticks * float(self._unit.numerator)
        return np.asarray(whole / float(self._unit.denominator))  # rounded once, where the numbers are not too long

    @property
    def exact_mean_time(self) -> tuple[Fraction, ...]:
        return tuple(int(t) * self._unit for t in self._ticks)

    def draw(self, client: Ints, job: Ints, *, seed: int = 0) -> Ints:
        client, _ = np.broadcast_arrays(client, job)
        return self._ticks[client]

    def rounds_needed(self, wait: Fraction) -> Ints:
        """⌈τ_i/Δt⌉, exactly."""
        ratio = self._unit / wait
        top, bottom = ratio.numerator, ratio.denominator
        if int(self._ticks.max()) * top + bottom >= MAX_TICKS:
            return np.array([-(-int(t) * top // bottom) for t in self._ticks], dtype=np.int64)
        return -(-self._ticks * top // bottom)

    def expected_rounds(self, wait: Fraction) -> Floats:
        return self.rounds_needed(wait).astype(np.float64)

    def exact_expected_rounds(self, wait: Fraction) -> tuple[Fraction, ...]:
        return tuple(Fraction(int(n)) for n in self.rounds_needed(wait))

    def survival(self, time: float) -> Floats:
        return (self.mean_time > time).astype(np.float64)

    def kinks(self) -> Floats:
        return np.unique(self.mean_time)

    def longest(self) -> Multiples:
        return self.multiples

    @property
    def multiples(self) -> Multiples:
        """τ_i as rationals, without making all of them."""
        return Multiples(self._ticks, self._unit)

    @property
    def job_period(self) -> Ints:
        return np.ones(self.num_clients, dtype=np.int64)

    def with_means(self, means: Sequence[Exact]) -> FixedTimes:
        return FixedTimes(means)

    def only(self, clients: Sequence[int]) -> FixedTimes:
        return self._of_ticks(self._ticks[list(clients)], self._unit)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedTimes) and self._unit == other._unit and np.array_equal(self._ticks, other._ticks)

    def __hash__(self) -> int:
        return hash((self._unit, self._ticks.tobytes()))

    def __repr__(self) -> str:
        shown = [text(int(t) * self._unit) for t in self._ticks[:6]]
        return f"FixedTimes([{', '.join(shown)}{', …' if self.num_clients > 6 else ''}])"


def _columns(given: Mapping[str, object]) -> list[list[Fraction]]:
    """Numbers per client, a single one repeated; all must be above zero but bytes, which may be zero."""
    listed = {
        name: [value] if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)) else list(value)
        for name, value in given.items()
    }
    lengths = {name: len(column) for name, column in listed.items() if len(column) != 1}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise InputError(f"hardware: the lists have different lengths, {lengths}; give one value per client in each")
    clients = max(lengths.values(), default=1)
    out = []
    for name, column in listed.items():
        read = _bytes if name in ("bytes_sent", "bytes_received") else positive
        found = [read(value, f"{name} of client {i}") for i, value in enumerate(column)]
        out.append(found * (clients if len(found) == 1 else 1))
    return out


def _bytes(value: object, what: str) -> Fraction:
    number = exact(value, what)
    if number < 0:
        raise InputError(f"{what}: {value} is below zero; give the bytes of one update")
    return number
