"""Rounds of one kind: the same clients with the same weights; and W, the window that a timeline satisfies.

    Assumption 6:  ∃W ∀s  (1/W) Σ_{n=sW}^{(s+1)W−1} q_i(n) = q_i

W = N always does; `window_of` finds the smallest that divides N.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.weighting import Weights

MAX_ENTRIES = 50_000_000
"""Up to how many numbers a table of kinds × clients may hold."""


def applied_weights(line: Timeline, weights: Weights | ArrayLike) -> Floats:
    """[updates] ω_i(n): d_i × draws, and × discount where the weights have one."""
    if isinstance(weights, Weights):
        return weights.applied(line)
    return np.asarray(
        client_weights(weights, line.num_clients)[line.client] * (1 if line.draws is None else line.draws)
    )


def client_weights(weights: ArrayLike, num_clients: int) -> Floats:
    """[clients] d_i, if that is what was given."""
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (num_clients,):
        raise InputError(f"weights: shape {given.shape} for {num_clients} clients; give one number per client")
    if not (np.isfinite(given).all() and (given >= 0).all()):
        raise InputError("weights: every d_i must be a finite number of at least 0")
    return given


def table_of(line: Timeline, applied: Floats) -> tuple[Floats, Floats]:
    """[kinds, clients] ω_i(n) of every kind of round, and [kinds] how many rounds there are of each."""
    kind, first = kinds_of(line, applied)
    check_size(len(first), line.num_clients)
    table = np.zeros((len(first), line.num_clients))
    sizes = np.diff(line.offsets)[first]
    updates = _ranges(line.offsets[first], sizes)
    table[np.repeat(np.arange(len(first)), sizes), line.client[updates]] = applied[updates]
    return table, np.bincount(kind, minlength=len(first)).astype(np.float64)


def check_size(rows: int, num_clients: int) -> None:
    """Refuse a table that would not fit."""
    if rows * num_clients > MAX_ENTRIES:
        raise InputError(f"{rows} different rounds of {num_clients} clients do not fit in memory; give fewer rounds")


def kinds_of(line: Timeline, applied: Floats) -> tuple[I64, I64]:
    """[rounds] the kind of each round, and the first round of each kind.

    Rounds are compared through a sum of random numbers, one for each (client, weight), and equal sums then exactly.
    """
    _, weight = np.unique(applied, return_inverse=True)
    _, token = np.unique(line.client.astype(np.int64) * (weight.max(initial=0) + 1) + weight, return_inverse=True)
    sizes = np.diff(line.offsets)
    for seed in range(8):
        draw = np.random.default_rng(seed).integers(0, 2**64, size=int(token.max(initial=0)) + 1, dtype=np.uint64)
        steps = np.cumsum(draw[token], dtype=np.uint64)  # wraps around, as the differences below do
        sums = np.diff(np.concatenate([np.zeros(1, dtype=np.uint64), steps])[line.offsets])
        _, first, kind = np.unique(sums, return_index=True, return_inverse=True)
        if np.array_equal(sizes, sizes[first][kind]) and np.array_equal(
            token, token[_ranges(line.offsets[first][kind], sizes)]
        ):
            return np.asarray(kind, dtype=np.int64), np.asarray(first, dtype=np.int64)
    raise AssertionError("eight independent 64-bit sums clashed")


def _ranges(begin: I64, sizes: I64) -> I64:
    """The indices begin, begin + 1, … of each range, end to end."""
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begin - ends + sizes, sizes))


def window_of(line: Timeline, applied: Floats) -> int:
    """The smallest W that divides N and gives every client the same weight in each of the N/W windows.

    Where a client's weight never changes this is a matter of counting: with h windows, c_i/h contributions in each.
    Where it does change, N.
    """
    clients = line.num_clients
    draws = np.ones(line.num_updates, dtype=np.int64) if line.draws is None else line.draws.astype(np.int64)
    order, counts, _ = by_client(line.client, clients)
    begin = np.repeat(np.cumsum(counts) - counts, counts)
    single = (applied / draws)[order]
    if not np.allclose(single, single[begin], rtol=1e-14, atol=0.0):  # d·k/k is d up to rounding
        return line.num_rounds
    place = (line.round_of_update - line.first_round)[order]
    draws = draws[order]
    total = np.bincount(line.client[order], weights=draws, minlength=clients).astype(np.int64)
    own = np.repeat(total, counts)
    before = np.cumsum(draws) - draws
    before -= before[begin]  # the client's draws before this contribution
    common = gcd(line.num_rounds, *total.tolist())
    for windows in (h for h in range(common, 1, -1) if common % h == 0):
        inside, each = place // (line.num_rounds // windows), own // windows
        if ((before >= inside * each) & (before + draws <= (inside + 1) * each)).all():
            return line.num_rounds // windows
    return line.num_rounds
