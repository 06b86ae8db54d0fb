"""What is compared: schemes with waits and buffer sizes, and learning rates in steps of 1, 2, 5."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from fedtempo.clock.ticks import Exact, positive
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.schemes import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme

_WAITS = tuple(Fraction(n, 8) for n in (1, 2, 4, 6))
"""Of the slowest client's mean time."""
_SIZES = (0.1, 0.25, 0.5, 0.75)
"""Of the number of clients."""
_LOWEST, _HIGHEST = 1e-4, 20.0
"""Times one over the largest curvature at the start."""


def schemes_for(
    times: ClientTimes, waits: Iterable[Exact] | None = None, sizes: Iterable[int] | None = None
) -> tuple[Scheme, ...]:
    """FedAvg, asynchronous FedAvg, FedFix over waits, FedBuff over sizes."""
    clients = times.num_clients
    slowest = Fraction(round(100 * float(times.mean_time.max())), 100) or Fraction(1, 100)
    waits = [slowest * part for part in _WAITS] if waits is None else [positive(w, "wait") for w in waits]
    if sizes is None:
        sizes = sorted({round(clients * part) for part in _SIZES} - {0, 1, clients})
    if clients == 1:
        return (FedAvg(),)
    return (FedAvg(), AsyncFedAvg(), *(FedFix(wait) for wait in waits), *(FedBuff(size) for size in sizes))


def rates_around(curvature: float) -> Floats:
    """1-2-5 steps over all rates that a loss of this largest curvature may stand."""
    low, high = _LOWEST / curvature, _HIGHEST / curvature
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = np.array([float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)])
    return every[(every >= low) & (every <= high)]


def checked_rates(rates: Iterable[float]) -> Floats:
    """Given rates, ascending."""
    found = np.unique(np.array([float(rate) for rate in rates]))
    if not len(found) or not np.isfinite(found).all() or found[0] <= 0:
        raise InputError(f"rates: {found.tolist()} must be positive numbers; give at least one")
    return found
