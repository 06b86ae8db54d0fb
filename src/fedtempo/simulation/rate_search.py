"""Which learning rates to try: `lr="auto"` widens them until the best of every scheme is inside, then looks closer.

    0.01, 0.1, 1                        first, for SGD; a hundredth of that for other solvers
    … a decade more on a side           while the best rate of a scheme and weight rule is the last one on that side
    2 and 5 in between                  around every best rate, once all of them are inside

All schemes are trained at all rates that are tried, in full, so that they can also be compared at one rate. The score
of a rate is what `History.best` chooses by; a rate at which a seed diverged has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtempo.grid import is_auto
from fedtempo.training.solvers import LocalRule

INSIDE = "inside"
"""Every best rate has worse ones on both sides."""
EDGE = "edge"
"""A best rate is still the last one on its side, after as many decades as are tried."""
DECADES = 4
"""By how many the first rates are widened at most, on either side."""

Rule = TypeVar("Rule", bound=LocalRule)


@dataclass(frozen=True)
class Widening:
    """What to try next; nothing when the search is at its end, and then how it ended."""

    rates: tuple[float, ...]
    ended: str | None = None


def searches(local: LocalRule) -> bool:
    """Whether the learning rates of the local work are to be searched."""
    return is_auto(getattr(local, "lr", None))


def at_rates(local: Rule, rates: Sequence[float]) -> Rule:
    """The same local work at these rates."""
    changed: Any = replace(local, lr=list(rates))  # type: ignore[type-var]
    found: Rule = changed
    return found


def first_rates(local: LocalRule) -> tuple[float, ...]:
    """What is tried first: rates for SGD, smaller ones for solvers that scale gradients."""
    sgd = str(at_rates(local, [0.1]).spec().get("solver", "")).lower().endswith("sgd")
    return (0.01, 0.1, 1.0) if sgd else (1e-4, 1e-3, 1e-2)


def widened(rates: Sequence[float], scores: NDArray[np.float64], first: Sequence[float]) -> Widening:
    """The next rates, given the scores [rates, runs that are compared] of all that were tried, in ascending order."""
    best = [int(np.nanargmin(column)) if np.isfinite(column).any() else None for column in scores.T]
    low = any(place is None or place == 0 for place in best)
    high = any(place == len(rates) - 1 for place in best)
    span = 10.0**DECADES * (1 - 1e-9)
    beyond = [rates[0] / 10] if low and rates[0] * span > first[0] else []
    beyond += [rates[-1] * 10] if high and rates[-1] < first[-1] * span else []
    if beyond:
        return Widening(tuple(_rounded(rate) for rate in beyond))
    closer: set[float] = set()
    for place in best:
        if place is not None:
            closer |= set(between(rates[max(0, place - 1)], rates[min(len(rates) - 1, place + 1)]))
    left = tuple(sorted(closer - {_rounded(rate) for rate in rates}))
    return Widening(left, None if left else (EDGE if low or high else INSIDE))


def beyond(rates: Sequence[float], best: float, diverged: float | None, first: Sequence[float]) -> list[float]:
    """A decade more, in steps of 1, 2, 5, on the side on which the best rate is the last one.

    Nothing where it has worse ones on both sides, beyond a rate that diverged, or `DECADES` away from the first ones.
    """
    span = 10.0**DECADES * (1 + 1e-9)
    if best == max(rates) and (diverged is None or diverged > best):
        high = min(best * 10, first[-1] * span, math.inf if diverged is None else diverged)
        return [rate for rate in between(best, high * (1 + 1e-6)) if rate != diverged]
    if best == min(rates):
        return between(max(best / 10, first[0] / span) * (1 - 1e-6), best)
    return []


def ladder(first: Sequence[float]) -> list[float]:
    """Rates in steps of 1, 2, 5, from a tenth of the lowest of the first ones to ten times the highest."""
    return between(first[0] / 10 * (1 - 1e-6), first[-1] * 10 * (1 + 1e-6))


def between(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, strictly between two rates."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    every = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [rate for rate in every if low * (1 + 1e-9) < rate < high * (1 - 1e-9)]


def _rounded(rate: float) -> float:
    """Without the last digits that a division leaves."""
    return float(f"{rate:.6g}")
