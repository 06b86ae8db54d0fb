"""Intervals from few seeds.

    x̄ ± t s/√n                          paired differences x of n seeds, Student's t with n − 1 degrees of freedom
    {θ : |x̄ − θȳ| ≤ t s(x − θy)/√n}     ratio of two paired means (Fieller), bounded if ȳ is distinct from 0

A diverged run has the loss ∞. Its differences are taken as ±M, and intervals as their limit for M → ∞, in which finite
values no longer matter; two runs that both diverged are equal. `level` is 95 % everywhere, `FEWEST` seeds are needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
FEWEST = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, if there are seeds enough for one, and how many there are."""

    number: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def above(self) -> bool:
        """Whether the number is significantly above zero."""
        return self.low is not None and self.low > 0

    @property
    def below(self) -> bool:
        """Whether the number is significantly below zero."""
        return self.high is not None and self.high < 0

    def inside(self, low: float, high: float) -> bool:
        """Whether the whole interval lies between two bounds."""
        return self.low is not None and self.high is not None and low < self.low and self.high < high

    def outside(self, low: float, high: float) -> bool:
        """Whether nothing of the interval lies between two bounds."""
        return self.low is not None and self.high is not None and (self.low > high or self.high < low)


def student(degrees: int, level: float = LEVEL) -> float:
    """How many standard errors an interval reaches to each side."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2))


def differences(a: ArrayLike, b: ArrayLike) -> Floats:
    """For each seed that has both, none being NaN, a − b; 0 where both are infinite."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    both = ~(np.isnan(x) | np.isnan(y))
    x, y = x[both], y[both]
    equal = x == y
    return np.where(equal, 0.0, np.where(equal, 0.0, x) - np.where(equal, 0.0, y))


def mean_of(values: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """The mean with its interval; infinite values count as ±M in the limit M → ∞."""
    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n == 0:
        return Estimate(math.nan, None, None, 0)
    endless = bool(np.isinf(x).any())
    if endless:
        x = np.where(np.isinf(x), np.sign(x), 0.0)
    mean = math.fsum(x) / n
    if n < FEWEST:
        return Estimate(_limit(mean) if endless else mean, None, None, n)
    reach = student(n - 1, level) * float(np.std(x, ddof=1)) / math.sqrt(n)
    low, high = mean - reach, mean + reach
    if endless:
        mean, low, high = _limit(mean), _limit(low), _limit(high)
    return Estimate(mean, low, high, n)


def chance_above(values: ArrayLike) -> float:
    """The one-sided p-value of Student's test that the mean is above zero; 1 where there are too few values.

    Infinite values count as ±M in the limit M → ∞, as in `mean_of`.
    """
    from scipy.special import stdtr

    x = np.asarray(values, dtype=np.float64)
    if len(x) < FEWEST:
        return 1.0
    if np.isinf(x).any():
        x = np.where(np.isinf(x), np.sign(x), 0.0)
    mean, error = math.fsum(x) / len(x), float(np.std(x, ddof=1)) / math.sqrt(len(x))
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stdtr(len(x) - 1, -mean / error))


def _limit(value: float) -> float:
    """M · value for M → ∞."""
    return 0.0 if value == 0 else math.copysign(math.inf, value)


def paired(a: ArrayLike, b: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """The mean of a − b over seeds, with its interval."""
    return mean_of(differences(a, b), level=level)


def ratio_of(x: ArrayLike, y: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """The ratio of the means of x and y, of the same seeds, with Fieller's interval.

    Exact for normal pairs of any correlation, since x − θy is then normal with mean zero at the true ratio θ. Without
    an interval where y's mean is not distinct from zero, for the ratios that fit are then unbounded.
    """
    top, bottom = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    both = np.isfinite(top) & np.isfinite(bottom)
    top, bottom = top[both], bottom[both]
    n = len(top)
    if n == 0 or bottom.mean() == 0:
        return Estimate(math.nan, None, None, n)
    mean_x, mean_y = float(top.mean()), float(bottom.mean())
    ratio = mean_x / mean_y
    if n < FEWEST:
        return Estimate(ratio, None, None, n)
    share = student(n - 1, level) ** 2 / n
    (var_x, cov), (_, var_y) = np.cov(top, bottom).tolist()
    a = mean_y**2 - share * var_y
    b = mean_x * mean_y - share * cov
    c = mean_x**2 - share * var_x
    if a <= 0:
        return Estimate(ratio, None, None, n)
    root = math.sqrt(max(b * b - a * c, 0.0))
    return Estimate(ratio, (b - root) / a, (b + root) / a, n)


def largest_rise(curve: Floats) -> tuple[int, int, float]:
    """From where to where, forward, a curve rises the most, and by how much; not above 0 where it never rises."""
    lowest = np.minimum.accumulate(curve[:-1])
    rises = curve[1:] - lowest
    to = int(np.argmax(rises))
    since = int(np.argmin(curve[: to + 1]))
    return since, to + 1, float(rises[to])


def rises_elsewhere(curves: Floats) -> Floats:
    """For each seed, its rise between the two times at which the mean of the other seeds rises the most.

    The times do not depend on the seed that is looked at, so that noise alone has no rise on average.
    """
    n = len(curves)
    rises = np.empty(n)
    for seed in range(n):
        since, to, _ = largest_rise(np.delete(curves, seed, axis=0).mean(axis=0))
        rises[seed] = curves[seed, to] - curves[seed, since]
    return rises
