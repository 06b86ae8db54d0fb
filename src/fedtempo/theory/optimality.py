"""How far a method's worst-case guarantee lies above the least time that any method can guarantee.

    T*(homogeneous)   = min_m (m / Σ_{i≤m} 1/τ_i) (1 + s/m)      lower bound, clients draw from the same data
    T*(heterogeneous) = τ_n + mean(τ) s/n                        lower bound, every client has its own data
    T(synchronous)    = τ_n (1 + s/n)                            every step waits for one gradient of every client
    T(asynchronous)   = (n / Σ_i 1/τ_i) (1 + s/n)                every gradient is a step; homogeneous data only

Tyurin, Richtárik: Optimal time complexities of parallel stochastic optimization methods under a fixed computation
model, NeurIPS 2023 (their tables 1 and 2), in units of LΔ/ε and with all constants set to 1. τ_1 ≤ … ≤ τ_n are the
times of one stochastic gradient on each of n clients, s = σ²/ε is `noise`: σ² the variance of a gradient, ε the squared
norm of the gradient of a smooth non-convex loss that is to be reached.

All four are minima of straight lines in s. Between s = 0 and s → ∞ the ratio of a method to its lower bound only rises
or only falls, so that its values there are its extremes: for synchronous methods 1 and τ_n/mean(τ) with heterogeneous
data, τ_n/τ_1 and τ_n mean(1/τ) with homogeneous; for asynchronous ones (n/Σ 1/τ_i)/τ_1 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimeComplexity:
    """min_m first_m + noise_m s: a time in units of LΔ/ε as a function of s."""

    first: tuple[float, ...]
    """Without noise."""
    noise: tuple[float, ...]
    """What a unit of s adds."""

    def time(self, s: float) -> float:
        """At this s."""
        return min(first + noise * s for first, noise in zip(self.first, self.noise, strict=True))

    def over(self, least: TimeComplexity, s: float) -> float:
        """How many times the other one this is at `s`, which may be infinite."""
        return self._scaled(s) / least._scaled(s)

    def _scaled(self, s: float) -> float:
        """The time, where s is large divided by s: finite for every s."""
        if s <= 1:
            return self.time(s)
        return min(first / s + noise for first, noise in zip(self.first, self.noise, strict=True))


def least_homogeneous(times: Floats) -> TimeComplexity:
    """min_m (m / Σ_{i≤m} 1/τ_i) (1 + s/m): the m fastest clients work, the others are left out."""
    speed = np.cumsum(1.0 / np.sort(times))
    return TimeComplexity(tuple((np.arange(1, len(times) + 1) / speed).tolist()), tuple((1.0 / speed).tolist()))


def least_heterogeneous(times: Floats) -> TimeComplexity:
    """τ_n + mean(τ) s/n: all data is needed, and fast clients average out more of the noise meanwhile."""
    return TimeComplexity((float(times.max()),), (float(times.mean()) / len(times),))


def synchronous(times: Floats) -> TimeComplexity:
    """τ_n (1 + s/n), for both kinds of data."""
    slowest = float(times.max())
    return TimeComplexity((slowest,), (slowest / len(times),))


def asynchronous(times: Floats) -> TimeComplexity:
    """(n / Σ_i 1/τ_i) (1 + s/n), for homogeneous data."""
    speed = float((1.0 / times).sum())
    return TimeComplexity((len(times) / speed,), (1.0 / speed,))


class Ratio(NamedTuple):
    """A guarantee over its lower bound, for the two kinds of data; None without a guarantee."""

    heterogeneous: float | None
    homogeneous: float | None


@dataclass(frozen=True)
class OverOptimal:
    """A method's worst-case guarantee over the lower bound: its two extremes, and its value at the noise given."""

    no_noise: Ratio
    """s = 0."""
    all_noise: Ratio
    """s → ∞."""
    noise: float | None = None
    """The s given."""
    at_noise: Ratio | None = None
    """None if no s is given."""


def synchronous_over_optimal(times: Floats, noise: float | None = None) -> OverOptimal:
    """Of methods that wait for every client in every step."""
    method, apart, alike = synchronous(times), least_heterogeneous(times), least_homogeneous(times)
    return _over_optimal(lambda s: Ratio(method.over(apart, s), method.over(alike, s)), noise)


def asynchronous_over_optimal(times: Floats, noise: float | None = None) -> OverOptimal:
    """Of methods that take every gradient as it comes."""
    method, alike = asynchronous(times), least_homogeneous(times)
    return _over_optimal(lambda s: Ratio(None, method.over(alike, s)), noise)


def _over_optimal(ratio: Callable[[float], Ratio], noise: float | None) -> OverOptimal:
    return OverOptimal(ratio(0.0), ratio(math.inf), noise, None if noise is None else ratio(noise))
