"""Shares of rounds and pace from a long run of the clock: ratios of sums over its parts, with standard errors.

    share_i = Σ_b counts_bi / Σ_b rounds_b,    pace = Σ_b rounds_b / Σ_b ticks_b

Where clients come and go at random, it is known how much longer than expected they were there, and most of the spread
comes from that. With z_b that surplus of the client itself, and of all clients, in part b, and β the regression of
u_b = counts_bi − share_i rounds_b on z_b over the parts,

    share_i − β Σ_b z_b / Σ_b rounds_b

has a smaller error. These are control variates: Lavenberg and Welch, "A perspective on the use of control variables to
increase the efficiency of Monte Carlo simulations", 1981.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.cycle import FEWEST_PERIODS, Observation
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError

_AT_ONCE = 1 << 14
_FEWEST = 16
"""Parts with which a regression is tried."""


def estimated_share(seen: Observation, *, draws: bool = True) -> tuple[Floats, Floats | None]:
    """[clients] contributions a round, draws counted or not, over the run without its first tenth; and errors."""
    if not len(seen.batch_rounds):
        raise InputError(
            f"{seen.rounds} rounds do not cover {FEWEST_PERIODS} periods of the absences; give a shorter period, or "
            "your own weights"
        )
    keep = np.cumsum(seen.batch_rounds) > seen.rounds / 10
    rounds = seen.batch_rounds[keep].astype(np.float64)
    counts = (seen.batch_counts if draws else seen.batch_taking)[keep]
    extra = None if seen.surplus is None else seen.surplus[keep]
    if extra is None:
        share, error = _plain_ratios(counts, rounds)
    else:
        tops = counts.astype(np.float64)
        found = [_ratio(tops[:, i], rounds, _controls(extra, i)) for i in range(tops.shape[1])]
        share, error = np.array([value for value, _ in found]), np.array([spread for _, spread in found])
    if not share.any():
        raise InputError(
            f"in {seen.rounds} rounds no client has taken part: jobs take longer than clients stay; give them longer "
            "stays or shorter jobs"
        )
    return np.maximum(share, 0.0), None if len(rounds) < 2 else error


def _plain_ratios(tops: NDArray[np.int64], bottom: Floats) -> tuple[Floats, Floats]:
    """As `_ratio` of every column of `tops`, some at a time, without controls."""
    whole, parts, clients = float(bottom.sum()), len(bottom), tops.shape[1]
    ratio, error = np.empty(clients), np.empty(clients)
    for begin in range(0, clients, _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        top = np.ascontiguousarray(tops[:, some].T, dtype=np.float64)  # a client's parts lie together and add up so
        ratio[some] = top.sum(axis=1) / whole
        rest = top - ratio[some, None] * bottom
        error[some] = np.sqrt((rest**2).sum(axis=1) * parts / max(1, parts - 1)) / whole
    return ratio, error


def estimated_pace(seen: Observation) -> float:
    """Rounds a tick."""
    extra = None if seen.surplus is None else seen.surplus.sum(axis=1, keepdims=True)
    return _ratio(seen.batch_rounds.astype(np.float64), seen.batch_ticks.astype(np.float64), extra)[0]


def _controls(extra: Floats, client: int) -> Floats:
    """[parts, 2] the surplus of the client, and of all."""
    total = extra.sum(axis=1)
    return np.stack([extra[:, client], total], axis=1) if extra.shape[1] > 1 else extra


def _ratio(top: Floats, bottom: Floats, controls: Floats | None) -> tuple[float, float]:
    """Σ top / Σ bottom as if the controls had summed to 0, and its standard error."""
    whole, parts = float(bottom.sum()), len(top)
    ratio = float(top.sum()) / whole
    rest = top - ratio * bottom
    used = 1
    if controls is not None and parts >= _FEWEST and rest.any():
        centred = controls - controls.mean(axis=0)
        slope = np.linalg.lstsq(centred, rest, rcond=None)[0]
        ratio -= float(controls.sum(axis=0) @ slope) / whole
        rest, used = rest - centred @ slope, 1 + controls.shape[1]
    return ratio, float(np.sqrt((rest**2).sum() * parts / max(1, parts - used))) / whole
