"""Clients that come and go, and jobs that fail: ``times.available(…)`` gives client times that know of it.

    failure   each job fails with probability f_i, when it would have come in; the client is still there
    on, off   a client is there for an exponential time with mean a_i, then away for one with mean b_i, and so on; at 0
              it is there with probability a_i/(a_i + b_i), as if that had always gone on
    absences  client i is away at t if begin ≤ t < end for one of its (begin, end); end None: it never comes back;
              with a period P: if begin ≤ t mod P < end

f_i is `failure`, a_i `on`, b_i `off`. A client that leaves loses its running job; the number of a lost job is not used
again. A client that is away from 0 on joins at the end of that absence.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtempo.clock.ticks import Exact, common_unit, exact, in_ticks, positive, text
from fedtempo.clock.times import ClientTimes, Floats, Ints
from fedtempo.errors import DataMissing, InputError

Absence = tuple[Fraction, Fraction | None]
"""From when to when."""
Given = Mapping[Any, Iterable[Sequence[Exact | None]]]
"""By client, its absences as (begin, end); (begin, None) or (begin,): it never comes back."""


def absences_of(
    given: Given | str | Path, num_clients: int, period: Fraction | None, names: Sequence[str] | None = None
) -> tuple[tuple[Absence, ...], ...]:
    """Each client's absences in order; `given` may be a file with columns client, leaves, returns."""
    if isinstance(given, (str, Path)):
        given = _read(Path(given), names)
    if not isinstance(given, Mapping):
        raise InputError(
            f"absences: {given!r} is not a dict by client; give {{3: [(0, 12), (40, 60)], 7: [(25, None)]}}"
        )
    found: list[tuple[Absence, ...]] = [()] * num_clients
    for key, rows in given.items():
        client = _client(key, num_clients)
        if isinstance(rows, str) or not isinstance(rows, Iterable):
            raise InputError(f"absences of client {client}: {rows!r} is not a list of (begin, end)")
        found[client] = _in_order(client, [_absence(client, row, period) for row in rows], period)
    return tuple(found)


def _client(key: object, num_clients: int) -> int:
    try:
        client = int(str(key))
    except ValueError:
        raise InputError(f"absences: {key!r} is not the number of a client") from None
    if not 0 <= client < num_clients:
        raise InputError(f"absences: there is no client {client}; the clients are 0 to {num_clients - 1}")
    return client


def _absence(client: int, row: object, period: Fraction | None) -> Absence:
    what = f"absence of client {client}"
    if isinstance(row, str) or not isinstance(row, Sequence) or not 1 <= len(row) <= 2:
        raise InputError(f"{what}: {row!r} is not (begin, end); give (40, 60), or (25, None) if it never comes back")
    begin = exact(row[0], what)
    end = exact(row[1], what) if len(row) == 2 and row[1] is not None else None
    if begin < 0:
        raise InputError(f"{what}: it begins at {text(begin)}, before time 0; begin at 0 or later")
    if end is not None and end <= begin:
        if period is not None and begin < period:
            hint = f"; over the end of the period give ({text(begin)}, {text(period)}) and (0, {text(end)})"
        else:
            hint = "; give (begin, end) with begin before end"
        raise InputError(f"{what}: ({text(begin)}, {text(end)}) ends before it begins{hint}")
    if period is not None and (end is None or end > period):
        until = "never ends" if end is None else f"ends at {text(end)}"
        raise InputError(f"{what}: it {until}, but the period ends at {text(period)}; end it there, or give no period")
    return begin, end


def _in_order(client: int, rows: list[Absence], period: Fraction | None) -> tuple[Absence, ...]:
    rows.sort(key=lambda row: row[0])
    for (begin, end), (following, _) in pairwise(rows):
        if end is None or following < end:
            raise InputError(
                f"absences of client {client}: the one from {text(begin)} overlaps the next, which begins at "
                f"{text(following)}; join them"
            )
    joined = list[Absence]()
    for begin, end in rows:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    if joined and joined[0] == (Fraction(0), period):  # without a period: away from 0 on, for ever
        raise InputError(f"absences: client {client} is never available; leave it out of the times")
    return tuple(joined)


def toggles(absences: tuple[Absence, ...], period: Fraction | None) -> Iterator[Fraction]:
    """The moments at which a client leaves, returns, leaves, …; two at once where it is away over a period's end."""
    if not absences:
        return
    for turn in count():
        begin = turn * period if period is not None else Fraction(0)
        for leaves, returns in absences:
            yield begin + leaves
            if returns is not None:
                yield begin + returns
        if period is None:
            return


def _read(path: Path, names: Sequence[str] | None) -> Given:
    """From a CSV file; an empty `returns` says that the client never comes back."""
    if not path.is_file():
        raise DataMissing(f"{path}: no such absences file; check the path")
    known = {name: client for client, name in enumerate(names or ())}
    found: dict[Any, list[tuple[Exact, Exact | None]]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            if not {"client", "leaves", "returns"} <= {name.strip() for name in reader.fieldnames or ()}:
                raise InputError(f"{path}, line 1: the header must name the columns client, leaves and returns")
            for row in reader:
                fields = {str(name).strip(): (value or "").strip() for name, value in row.items() if name is not None}
                client: Any = known.get(fields["client"], fields["client"])
                found.setdefault(client, []).append((fields["leaves"], fields["returns"] or None))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not CSV with columns client, leaves, returns ({error})") from None
    return found


def a_period(given: Exact | None, absences: object) -> Fraction | None:
    """The period, where there is one."""
    if given is None:
        return None
    if not absences:
        raise InputError(f"period: {given} is how often absences repeat, but there are no absences; give absences= too")
    return positive(given, "period")


_LONGEST_TEXT = 200


class Stretch(NamedTuple):
    """From `begin` on, until the next stretch, it is these clients that are there."""

    begin: Fraction
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Availability:
    """When clients are there, and how often their jobs fail; one entry per client in each tuple."""

    failure: tuple[Fraction, ...]
    on: tuple[Fraction, ...] | None
    off: tuple[Fraction, ...] | None
    absences: tuple[tuple[Absence, ...], ...]
    period: Fraction | None

    @property
    def fails(self) -> bool:
        """Whether some jobs fail."""
        return any(self.failure)

    @property
    def away(self) -> bool:
        """Whether some clients are away at times."""
        return self.on is not None or any(self.absences)

    @property
    def random(self) -> bool:
        """Whether anything of it is drawn."""
        return self.fails or self.on is not None

    @property
    def changes(self) -> bool:
        """Whether the clients that can be there change for good: absences that do not repeat."""
        return any(self.absences) and self.period is None

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """Consecutive stretches in which the same clients can be there; one if nothing changes for good."""
        if not self.changes:
            return (Stretch(Fraction(0), tuple(range(len(self.failure)))),)
        ends = {moment for rows in self.absences for row in rows for moment in row if moment is not None}
        return tuple(Stretch(begin, self._present(begin)) for begin in sorted(ends | {Fraction(0)}))

    def _present(self, moment: Fraction) -> tuple[int, ...]:
        return tuple(
            client
            for client, rows in enumerate(self.absences)
            if not any(begin <= moment and (end is None or moment < end) for begin, end in rows)
        )

    def present_share(self) -> Floats:
        """The share of time in which each client is there, in the long run."""
        share = np.ones(len(self.failure))
        if self.on is not None and self.off is not None:
            share = np.array([float(a / (a + b)) for a, b in zip(self.on, self.off, strict=True)])
        for client, rows in enumerate(self.absences):
            if self.period is not None:
                away = sum((end - begin for begin, end in rows if end is not None), Fraction(0))
                share[client] *= float(1 - away / self.period)
            elif rows and rows[-1][1] is None:
                share[client] = 0.0
        return share

    def only(self, clients: Sequence[int]) -> Availability:
        """Of some of the clients, as long as nothing changes: without absences that do not repeat."""
        on, off = (None if means is None else tuple(means[i] for i in clients) for means in (self.on, self.off))
        rows = tuple(self.absences[i] if self.period is not None else () for i in clients)
        return Availability(tuple(self.failure[i] for i in clients), on, off, rows, self.period if any(rows) else None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: numbers where all clients are alike, else one per client; absences by client."""
        out: dict[str, Any] = {}
        for name, values in (("failure", self.failure if self.fails else None), ("on", self.on), ("off", self.off)):
            if values is not None:
                out[name] = text(values[0]) if len(set(values)) == 1 else [text(v) for v in values]
        if any(self.absences):
            out["absences"] = {
                str(client): [[text(begin), None if end is None else text(end)] for begin, end in rows]
                for client, rows in enumerate(self.absences)
                if rows
            }
        if self.period is not None:
            out["period"] = text(self.period)
        return out

    def __str__(self) -> str:
        """In words that differ where availabilities do."""
        said = ", ".join(f"{name} {value}" for name, value in self.to_dict().items())
        if len(said) <= _LONGEST_TEXT:
            return said
        return f"availability {hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"


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
        raise InputError("E⌈T/Δt⌉ does not hold for clients that come and go; use ft.participation_of(scheme, times)")

    def survival(self, time: float) -> Floats:
        return self._times.survival(time)

    def distribution(self, time: float) -> Floats:
        return self._times.distribution(time)

    def kinks(self) -> Floats:
        return self._times.kinks()

    def longest(self) -> Sequence[Fraction] | None:
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
            f"{given}: this sets how long clients are {_STATES[given]}; also set how long they are "
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
