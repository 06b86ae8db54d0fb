"""Cells that were trained under common seeds: which is best, and how sure that is.

    upper_c = log(mean of b / mean of c) + t·√((s_b² + s_c²)/n)          for the best cell b and any other c

s is the standard deviation of the log of a score beside the means of cells and seeds, pooled over cells or the cell's
own where that is more; n the seeds that b and c have in common; t Student's at 99 % for all cells together. Scores that
are not all positive are taken over the size of the best one in place of logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.planning.calibration import LARGEST_SPREAD, SEED_SPREAD
from fedtempo.planning.objective import gap

SEEDS_LEVEL = 0.01
ALONE = 2.0
"""What all cells have of a seed is taken off, unless that makes a cell's squares so many times as large."""
MANY = 5
"""Cells with two seeds from which on their scatter is taken for typical by its median."""
_HUGE = 1e150
"""Its square is finite."""


class Cell(NamedTuple):
    """A scheme, by its label, at a local learning rate."""

    scheme: str
    rate: float


@dataclass
class Comparison:
    """The finalists against the best of them."""

    best: Cell
    mean: dict[Cell, float]
    """Of x_c − x_best over their common seeds."""
    upper: dict[Cell, float]
    """By how much the best may be worse than the cell, log."""
    careful: dict[Cell, float]
    """How far the mean of each cell and one standard error more lies above the least mean, log."""
    lower: dict[Cell, float]
    """By how much it is at least better, negative if it may be worse: −upper of the other side."""

    @property
    def regret(self) -> float:
        """By how much the best may be worse than any finalist, log."""
        return max(0.0, *self.upper.values()) if self.upper else 0.0


def compared(table: Mapping[Cell, Floats]) -> Comparison:
    """[seeds] scores of cells, NaN where one was not trained under a seed; all compared with the best."""
    cells = list(table)
    x = _logs(table)
    counts = {cell: int(np.isfinite(values).sum()) for cell, values in x.items()}
    spread = _spread(x)
    several = [cell for cell in cells if counts[cell] >= min(2, max(counts.values()))]
    means = {cell: float(np.nanmean(table[cell])) for cell in cells}
    least = min(means.values())

    def careful(cell: Cell) -> float:
        """One standard error above the mean: of two that look alike, the one that is better known."""
        return gap(means[cell], least) + spread.own[cell] / math.sqrt(counts[cell])

    best = min(several, key=careful)
    mean: dict[Cell, float] = {}
    upper: dict[Cell, float] = {}
    lower: dict[Cell, float] = {}
    one, pairs = max(1, len(cells) - 1), max(1, len(cells) * (len(cells) - 1))
    t, of_pairs = (_quantile(SEEDS_LEVEL / number, spread.freedom) for number in (one, pairs))
    for cell in cells:
        if cell == best:
            continue
        both = np.isfinite(x[cell]) & np.isfinite(x[best])
        error = math.hypot(spread.own[cell], spread.own[best]) / math.sqrt(both.sum())
        mean[cell] = gap(float(table[cell][both].mean()), float(table[best][both].mean()))
        upper[cell] = t * error - mean[cell]  # the best one of all is one cell, whichever is chosen
        lower[cell] = mean[cell] - of_pairs * error  # whoever is said to be worse is one of many pairs
    return Comparison(best, mean, upper, {cell: careful(cell) for cell in cells}, lower)


def _logs(table: Mapping[Cell, Floats]) -> dict[Cell, Floats]:
    """Logs of scores; of scores that are not all positive, themselves over the size of the best one."""
    every = np.concatenate(list(table.values()))
    if (every[np.isfinite(every)] > 0).all():
        return {cell: np.log(values) for cell, values in table.items()}
    best = min(float(np.nanmean(values)) for values in table.values())
    return {cell: np.clip(values / max(abs(best), 1e-300), -_HUGE, _HUGE) for cell, values in table.items()}


class Spread(NamedTuple):
    """How much scores scatter beside the means of cells and seeds."""

    pooled: float
    freedom: int
    own: dict[Cell, float]
    """Of each cell, where that is more."""


def _spread(x: Mapping[Cell, Floats]) -> Spread:
    """Standard deviations of residuals, and their degrees of freedom.

    Pooled is the median over cells, which a few wild ones do not move. What is usual counts as one more degree; where
    no two cells have two seeds, the largest that was seen stands in.
    """
    several = {cell: values for cell, values in x.items() if np.isfinite(values).sum() > 1}
    if len(several) < 2:
        return Spread(LARGEST_SPREAD, 0, dict.fromkeys(x, LARGEST_SPREAD))
    table = np.array(list(several.values()))
    own_mean = table - np.nanmean(table, axis=1, keepdims=True)
    there = np.isfinite(own_mean)
    seeds = there.any(axis=0)
    left = own_mean[:, seeds] - np.nanmedian(own_mean[:, seeds], axis=0)
    beside, alone = np.nansum(left**2, axis=1), np.nansum(own_mean**2, axis=1)
    squares = np.where(beside > ALONE * alone, alone, beside)
    counts = there.sum(axis=1)
    freedom = max(1, int((counts - 1).sum()) - int(seeds.sum()) + 1)
    variances = squares / (counts - 1)
    usual = (1 - 2 / (9 * (counts - 1))) ** 3  # the median of χ² over its degrees of freedom
    typical = float(np.median(variances / usual)) if len(several) >= MANY else float(squares.sum()) / freedom
    pooled = math.sqrt((SEED_SPREAD**2 + freedom * typical) / (freedom + 1))
    own = {cell: max(pooled, math.sqrt(value)) for cell, value in zip(several, variances.tolist(), strict=True)}
    return Spread(pooled, freedom + 1, dict.fromkeys(x, pooled) | own)


def _quantile(level: float, freedom: int) -> float:
    """Of Student's t, one-sided; without seeds to go by, of the normal law."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(1 - level)) if freedom < 1 else float(stdtrit(freedom, 1 - level))
