"""How far scores at T/16, T/4 and T/2 can be trusted: measured on other settings than those that judge the planner.

48 settings (`benchmarks/planner_settings.py`, group "calibration"), with all of their schemes and 18 rates trained
under two seeds; whole grids, and parts of them with few schemes or few rates. At a rung cells are ranked by their
score. If the best `per_scheme` times the number of schemes go on, the best of the others would have ended better than
the best of these by so much, as a difference of logs, in the worst 2 % of cases. `python benchmarks/planner_trust.py`
works it out.
"""

from __future__ import annotations

import numpy as np

PER_SCHEME = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)
"""Rates in steps of 1, 2, 5 that go on, over the number of schemes."""
LOST = {
    1 / 16: (0.119, 0.089, 0.031, 0.018, 0.007, 0.002, 0.0, 0.0),
    1 / 4: (0.085, 0.062, 0.011, 0.009, 0.002, 0.0, 0.0, 0.0),
    1 / 2: (0.023, 0.010, 0.002, 0.001, 0.0, 0.0, 0.0, 0.0),
}
"""With three schemes or more."""
LOST_OF_FEW = {
    1 / 16: (0.449, 0.212, 0.065, 0.065, 0.018, 0.006, 0.001, 0.0),
    1 / 4: (0.130, 0.121, 0.033, 0.033, 0.007, 0.002, 0.0, 0.0),
    1 / 2: (0.059, 0.044, 0.004, 0.004, 0.002, 0.0, 0.0, 0.0),
}
"""With one scheme or two."""
FEW = 2
SEED_SPREAD = 0.006
"""The standard deviation of a log score beside the means of cells and seeds: the median over the settings."""
LARGEST_SPREAD = 0.04
"""The largest of them."""


def lost(share: float, kept: float, schemes: int) -> float:
    """By how much the best dropped cell may have been better, if so many cells went on from a share of the time."""
    row, per_scheme = _row(share, schemes), kept / schemes
    if per_scheme < PER_SCHEME[0]:  # not measured: in proportion to what is left out
        return row[0] * PER_SCHEME[0] / max(per_scheme, 1e-9)
    return float(np.interp(per_scheme, PER_SCHEME, row))


def kept_for(share: float, most: float, schemes: int) -> float:
    """How many have to go on so that no more than this is lost."""
    row = _row(share, schemes)
    return schemes * next((m for m, value in zip(PER_SCHEME, row, strict=True) if value <= most), PER_SCHEME[-1])


def _row(share: float, schemes: int) -> tuple[float, ...]:
    """Of the latest rung that is no later."""
    table = LOST_OF_FEW if schemes <= FEW else LOST
    known = [rung for rung in table if rung <= share * (1 + 1e-9)]
    return table[max(known)] if known else tuple(2 * value for value in table[min(table)])
