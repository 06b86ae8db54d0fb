"""When clients are away: given stretches of time, once or again and again.

    client i is away at t if  begin ≤ t < end  for one of its (begin, end);  end None: it never comes back
    with a period P:  if  begin ≤ t mod P < end

A client that is away from 0 on joins at the end of that absence.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from fedtempo.clock.ticks import Exact, exact, positive, text
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
        raise InputError(f"absences: {given!r} is not by client; give {{3: [(0, 12), (40, 60)], 7: [(25, None)]}}")
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
        raise InputError(f"{what}: it begins at {text(begin)}, before the clock; begin at 0 or later")
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
                f"absences of client {client}: the one from {text(begin)} is not over at {text(following)}, where the "
                "next begins; join them"
            )
    joined = list[Absence]()
    for begin, end in rows:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    if joined and joined[0] == (Fraction(0), period):  # without a period: away from 0 on, for ever
        raise InputError(f"absences: client {client} is never there; leave it out of the times")
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
        raise DataMissing(f"{path}: no such file of absences; check the path")
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
        raise InputError(f"period: {given} says when absences repeat, and there are none; give absences= too")
    return positive(given, "period")
