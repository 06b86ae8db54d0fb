"""Clients that come and go, and jobs that fail.

    failure   each job fails with probability f_i, when it would have come in; the client is still there
    on, off   a client is there for an exponential time with mean a_i, then away for one with mean b_i, and so on; at 0
              it is there with probability a_i/(a_i + b_i), as if that had always gone on
    absences  given ones, once or with a period (absences.py)

f_i is `failure`, a_i `on`, b_i `off`. A client that leaves loses its running job; the number of a lost job is not used
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedtempo.clock.absences import Absence
from fedtempo.clock.ticks import text
from fedtempo.clock.times import Floats

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
