"""Client times that know when their clients are there: ``times.available(…)`` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from fedtempo.clock.absences import Given, a_period, absences_of
from fedtempo.clock.availability import Availability
from fedtempo.clock.ticks import Exact, common_unit, exact, in_ticks, positive, text
from fedtempo.clock.times import ClientTimes, Floats, Ints
from fedtempo.errors import InputError

OneOrEach = Exact | Sequence[Exact]
"""One number for all clients, or one per client."""

_FINE = 10**6
"""Ticks in the shortest mean stay, at least."""
_STATES = {"on": "there", "off": "away"}


class AvailableTimes(ClientTimes):
    """Client times of clients that come and go; made by ``times.available(…)``."""

    def __init__(self, times: ClientTimes, availability: Availability) -> None:
        self._times, self._availability = times, availability
        self.law = f"{times.law}; {availability}"
        self.random = times.random or availability.random
        moments = [m for rows in availability.absences for row in rows for m in row if m is not None]
        unit = common_unit([times.unit, *moments, *([availability.period] if availability.period else [])])
        stays = (*(availability.on or ()), *(availability.off or ()))
        if stays:
            unit /= max(1, -(-unit * _FINE // min(stays)))
        self._unit = unit
        self._factor = in_ticks(times.unit, unit)

    @property
    def availability(self) -> Availability:  # type: ignore[override]
        """When the clients are there, and how often their jobs fail."""
        return self._availability

    @property
    def always(self) -> ClientTimes:
        return self._times

    def only(self, clients: Sequence[int]) -> ClientTimes:
        return _made(self._times.only(clients), self.availability.only(clients))

    @property
    def num_clients(self) -> int:
        return self._times.num_clients

    @property
    def unit(self) -> Fraction:
        return self._unit

    @property
    def mean_time(self) -> Floats:
        return self._times.mean_time

    @property
    def exact_mean_time(self) -> tuple[Fraction, ...] | None:
        return self._times.exact_mean_time

    @property
    def clock_mean_time(self) -> Floats:
        return self._times.clock_mean_time

    def draw(self, client: Ints, job: Ints, *, seed: int = 0) -> Ints:
        return self._times.draw(client, job, seed=seed) * self._factor

    def expected_rounds(self, wait: Fraction) -> Floats:
        raise InputError(
            "E⌈T/Δt⌉ does not say how often clients contribute that come and go; ask ft.participation_of(scheme, times)"
        )

    def survival(self, time: float) -> Floats:
        return self._times.survival(time)

    def distribution(self, time: float) -> Floats:
        return self._times.distribution(time)

    def kinks(self) -> Floats:
        return self._times.kinks()

    def longest(self) -> tuple[Fraction, ...] | None:
        return self._times.longest()

    @property
    def names(self) -> tuple[str, ...] | None:
        return self._times.names

    def describe(self) -> list[str | float]:
        return self._times.describe()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, AvailableTimes)
            and self._times == other._times
            and self.availability == other.availability
        )

    def __hash__(self) -> int:
        return hash((self._times, self.availability))

    def __repr__(self) -> str:
        return f"{self._times!r}.available({self.availability})"


def available(
    times: ClientTimes,
    *,
    failure: OneOrEach | None = None,
    on: OneOrEach | None = None,
    off: OneOrEach | None = None,
    absences: Given | str | Path | None = None,
    period: Exact | None = None,
) -> ClientTimes:
    """The same clients with what is named here; what they had stays unless it is named."""
    clients = times.num_clients
    had = times.availability or Availability((Fraction(0),) * clients, None, None, ((),) * clients, None)
    if failure is not None:
        had = replace(had, failure=_probabilities(failure, clients))
    if (on is None) != (off is None):
        given, missing = ("on", "off") if off is None else ("off", "on")
        raise InputError(
            f"{given}: it says how long clients are {_STATES[given]}; say also how long they are "
            f"{_STATES[missing]}, with {missing}="
        )
    if on is not None and off is not None:
        had = replace(had, on=_stays("on", on, clients), off=_stays("off", off, clients))
    if absences is not None or period is not None:
        repeats = a_period(period, absences)
        rows = absences_of(absences or {}, clients, repeats, times.names)
        had = replace(had, absences=rows, period=repeats if any(rows) else None)
    return _made(times.always, had)


_STATES = {"on": "there", "off": "away"}


def _made(times: ClientTimes, availability: Availability) -> ClientTimes:
    return AvailableTimes(times, availability) if availability.fails or availability.away else times


def _each(name: str, given: OneOrEach, clients: int) -> list[Exact]:
    """One value per client."""
    if isinstance(given, str) or not isinstance(given, (Sequence, np.ndarray)):
        return [given] * clients
    if len(given) != clients:
        raise InputError(f"{name}: {len(given)} values for {clients} clients; give one, or one per client")
    return list(given)


def _probabilities(given: OneOrEach, clients: int) -> tuple[Fraction, ...]:
    found = tuple(exact(p, f"failure of client {i}") for i, p in enumerate(_each("failure", given, clients)))
    for client, p in enumerate(found):
        if not 0 <= p < 1:
            why = "every job would fail" if p == 1 else "it is a probability"
            raise InputError(f"failure of client {client}: {text(p)}, but {why}; give at least 0 and below 1")
    return found


def _stays(name: str, given: OneOrEach, clients: int) -> tuple[Fraction, ...]:
    what = f"mean time that client {{}} is {_STATES[name]}"
    return tuple(positive(mean, what.format(i)) for i, mean in enumerate(_each(name, given, clients)))
