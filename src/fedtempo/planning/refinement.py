"""Finer choices around the leader of a race: the wait or the buffer by golden section, the rate by steps of √2.

A wait is sought on a logarithmic scale between the neighbours of the best one that were tried, at the leader's rate;
where the best wait is the last on its side, the span goes on by half as much. A buffer size is a whole number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from fedtempo.planning.comparison import Cell
from fedtempo.planning.objective import gap
from fedtempo.schemes.named import FedBuff, FedFix, Scheme

GOLDEN = (math.sqrt(5) - 1) / 2
CLOSE = 1.12
"""Waits and sizes whose ratio is below this are not told apart."""
APART = math.sqrt(2)
"""The ratio of neighbouring rates in the end."""


@dataclass
class Refinement:
    """Proposes cells around a leader; new schemes are handed to `add`."""

    schemes: dict[str, Scheme]
    """By label: those that are in the race, to which new ones are added."""
    clients: int
    slowest: Fraction
    """The slowest client's mean time, which no wait exceeds."""
    waits: bool = True
    """Whether waits and sizes are free; if not, they were given."""
    rates: bool = True
    flat: float = 0.05
    """Where the scores on both sides are within this gap of the leader's, nothing finer is tried."""
    check: Callable[[Scheme], None] = lambda scheme: None

    def __call__(self, leader: Cell, scores: Mapping[Cell, float]) -> list[Cell]:
        """What to try next, given the scores of what was tried."""
        found = self._rates(leader, scores) if self.rates else []
        return found or (self._schemes(leader, scores) if self.waits else [])

    def _rates(self, leader: Cell, scores: Mapping[Cell, float]) -> list[Cell]:
        """The rates √2 above and below, where nothing so near was tried."""
        if not leader.rate:
            return []
        tried = [cell.rate for cell in scores if cell.scheme == leader.scheme]
        if self._is_flat({rate: scores[Cell(leader.scheme, rate)] for rate in tried}, leader.rate):
            return []
        wanted = [float(f"{leader.rate * APART:.3g}"), float(f"{leader.rate / APART:.3g}")]
        fresh = [r for r in wanted if all(max(r / other, other / r) > 1.2 for other in tried)]
        return [Cell(leader.scheme, rate) for rate in fresh]

    def _schemes(self, leader: Cell, scores: Mapping[Cell, float]) -> list[Cell]:
        """The next wait or size of a golden section, at the leader's rate."""
        scheme = self.schemes[leader.scheme]
        size = _size(scheme)
        if size is None:
            return []
        best: dict[float, float] = {}
        for cell, score in scores.items():
            other = self.schemes[cell.scheme]
            if type(other) is type(scheme) and other.options == scheme.options and (found := _size(other)) is not None:
                best[found] = min(best.get(found, math.inf), score)
        if self._is_flat(best, size):
            return []
        tried = sorted(best)
        place = tried.index(size)
        low = tried[place - 1] if place else size / 2
        high = tried[place + 1] if place + 1 < len(tried) else min(size * 1.5, self._largest(scheme))
        wanted = [_golden(size, low), _golden(size, high)]
        found_cells: list[Cell] = []
        for value in sorted(wanted, key=lambda v: -abs(math.log(v / size))):
            made = self._made(scheme, value)
            if made is None or made.label in self.schemes or self._too_close(_size(made), tried):
                continue
            self.check(made)
            self.schemes[made.label] = made
            found_cells.append(Cell(made.label, leader.rate))
        return found_cells

    def _is_flat(self, scores: Mapping[float, float], at: float) -> bool:
        """Whether the nearest ones on both sides were tried and are hardly worse."""
        tried = sorted(scores)
        place = tried.index(at)
        beside = [*tried[max(0, place - 1) : place], *tried[place + 1 : place + 2]]
        return len(beside) == 2 and all(gap(scores[value], scores[at]) <= self.flat for value in beside)

    def _largest(self, scheme: Scheme) -> float:
        return float(self.slowest) if isinstance(scheme, FedFix) else float(self.clients - 1)

    def _made(self, scheme: Scheme, value: float) -> Scheme | None:
        if isinstance(scheme, FedFix):
            wait = Fraction(round(value / float(self.slowest) * 64), 64) * self.slowest
            return _with_options(FedFix(wait), scheme) if wait > 0 else None
        size = round(value)
        return _with_options(FedBuff(size), scheme) if 1 < size < self.clients else None

    def _too_close(self, value: float | None, tried: list[float]) -> bool:
        assert value is not None
        return any(max(value / other, other / value) < CLOSE for other in tried)


def _golden(best: float, neighbour: float) -> float:
    """Between the two, nearer to the best, on a logarithmic scale."""
    return best * (neighbour / best) ** (1 - GOLDEN) if neighbour > 0 else best


def _size(scheme: Scheme) -> float | None:
    """The wait of FedFix or the size of FedBuff; None for others."""
    if type(scheme) is FedFix:
        return float(scheme.wait)
    return float(scheme.size) if type(scheme) is FedBuff else None


def _with_options(made: Scheme, like: Scheme) -> Scheme:
    """With the options of another scheme."""
    chosen = {name: value for name, value in vars(like.options).items() if value != getattr(made.options, name)}
    return made.using(**chosen) if chosen else made
