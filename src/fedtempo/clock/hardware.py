"""T_i from hardware, with the bytes of an update left open:

    T_i = seconds per step × K + bytes sent / upload rate + bytes received / download rate

`for_traffic` fills in the bytes. A study does so for each scheme, so that one that compresses has shorter jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NoReturn

from fedtempo.clock.ticks import Exact, text
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats, Ints
from fedtempo.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from fedtempo.clock.availability import Availability, Given


class HardwareTimes(ClientTimes):
    """Made by ``FixedTimes.hardware`` without `bytes_sent`; `down` is None where receiving takes no time."""

    law = "hardware"
    random = False
    by_traffic = True

    def __init__(
        self,
        compute: Sequence[Fraction],
        up: Sequence[Fraction],
        down: Sequence[Fraction] | None,
        availability: Availability | None = None,
    ) -> None:
        self._compute, self._up = tuple(compute), tuple(up)
        self._down = None if down is None else tuple(down)
        self.availability = availability
        if availability is not None:
            self.law = f"hardware; {availability}"
            self.random = availability.random

    @property
    def num_clients(self) -> int:
        return len(self._compute)

    def for_traffic(self, up: int, down: int) -> ClientTimes:
        received = [Fraction(0)] * self.num_clients if self._down is None else [down / rate for rate in self._down]
        rows = zip(self._compute, self._up, received, strict=True)
        times = FixedTimes([seconds + up / rate + more for seconds, rate, more in rows])
        if self.availability is None:
            return times
        from fedtempo.clock.availability import AvailableTimes

        return AvailableTimes(times, self.availability)

    def available(
        self,
        *,
        failure: Exact | Sequence[Exact] | None = None,
        on: Exact | Sequence[Exact] | None = None,
        off: Exact | Sequence[Exact] | None = None,
        absences: Given | str | Path | None = None,
        period: Exact | None = None,
    ) -> ClientTimes:
        some = self.for_traffic(0, 0).available(failure=failure, on=on, off=off, absences=absences, period=period)
        return HardwareTimes(self._compute, self._up, self._down, some.availability)

    def only(self, clients: Sequence[int]) -> HardwareTimes:
        compute, up = ([values[i] for i in clients] for values in (self._compute, self._up))
        down = None if self._down is None else [self._down[i] for i in clients]
        there = None if self.availability is None else self.availability.only(clients)
        return HardwareTimes(compute, up, down, there)

    def describe(self) -> list[str | float]:
        """Each client's time as a sum, in which `up` and `down` stand for the bytes."""
        downs = [""] * self.num_clients if self._down is None else [f" + down/({text(rate)})" for rate in self._down]
        rows = zip(self._compute, self._up, downs, strict=True)
        return [f"{text(seconds)} + up/({text(rate)}){down}" for seconds, rate, down in rows]

    def _open(self) -> NoReturn:
        raise InputError(
            "times: hardware times without bytes_sent need a problem that tells the size of an update, as in "
            "ft.simulate; pass bytes_sent= to FixedTimes.hardware, or call times.for_traffic(up, down) with the bytes "
            "of an update"
        )

    @property
    def unit(self) -> Fraction:
        self._open()

    @property
    def mean_time(self) -> Floats:
        self._open()

    def draw(self, client: Ints, job: Ints, *, seed: int = 0) -> Ints:
        self._open()

    def expected_rounds(self, wait: Fraction) -> Floats:
        self._open()

    def survival(self, time: float) -> Floats:
        self._open()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HardwareTimes) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self._compute, self._up, self._down, self.availability

    def __repr__(self) -> str:
        return f"HardwareTimes({self.num_clients} clients)"
