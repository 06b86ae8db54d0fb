"""Rounds as the theory sees them: of one kind, in windows, and with clients that are still busy when they start.

    Assumption 6:  ∃W ∀s  (1/W) Σ_{n=sW}^{(s+1)W−1} q_i(n) = q_i
    section 2.2:   S_n = {i : T_i^n ≤ Δt^n},    T_i^n = max(0, t^ρ + T_i(job) − t^n)

Rounds are of one kind if the same clients take part with the same weights (`kinds_of`). W is the window that a timeline
satisfies; W = N always does, and `window_of` finds the smallest that divides N. T_i^n (`remaining_times`) is the time
that client i still needs when round n starts, for the job that is out in round n, which started from version ρ at t^ρ:
∞ where client i has no job out in round n (it was not sampled), NaN where the timeline cannot tell. The paper's clients
are always there: what follows from that refuses clients that come, go or fail.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.weighting.weights import Weights

_INSTEAD = "give timeline= for what happened, or times.always for the same clients without absences"


def check_always_there(times: ClientTimes | None, what: str, instead: str = _INSTEAD) -> None:
    """Refuse times whose clients come and go, with what to do instead."""
    if times is not None and times.availability is not None:
        raise InputError(
            f"{what} holds for clients that are always available, but these come, go or fail ({times.availability}); "
            f"{instead}"
        )


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


def remaining_times(line: Timeline, times: ClientTimes | None = None, *, seed: int = 0) -> Floats:
    """[rounds, clients] T_i^n. Without `times`, up to the end of the round that takes the update.

    `times` and `seed` are those of the timeline: they tell when an update arrived inside its round, and how long jobs
    still last that no round of this timeline takes.

    Example:
        >>> times = ft.FixedTimes([3, 1])
        >>> line = ft.timeline(ft.FedFix(1), times, until=3)
        >>> ft.theory.remaining_times(line, times)  # a row a round: what each client still needs when it begins
        array([[3., 1.],
               [2., 1.],
               [1., 1.]])
    """
    if line.first_round:
        raise InputError(f"the timeline begins with round {line.first_round}; remaining times need it from round 0")
    check_always_there(times, "a job's time from its version on", "leave times= out")
    if times is not None and times.num_clients != line.num_clients:
        raise InputError(f"times of {times.num_clients} clients for a timeline of {line.num_clients}; give its own")
    rounds, clients = line.num_rounds, line.num_clients
    check_size(rounds, clients)
    starts = np.concatenate([[line.start], line.ends]).astype(np.int64)  # t^0, t^1, …
    number, owner, base, job = line.round_of_update, line.client.astype(np.int64), line.base, line.job
    last_round = np.full(clients, -1, dtype=np.int64)
    np.maximum.at(last_round, owner, number)
    resent = _resent(line)
    out = np.full((rounds, clients), np.inf)
    if resent:  # the job that each client has out when the timeline ends
        out[np.arange(rounds)[:, None] > last_round] = np.nan
        if times is not None:
            last_job = np.bincount(owner, minlength=clients)
            everyone = np.arange(clients)
            number = np.concatenate([number, np.full(clients, rounds - 1)])
            owner, base = np.concatenate([owner, everyone]), np.concatenate([base, last_round + 1])
            job = np.concatenate([job, last_job])
    if times is None:
        finish = starts[number + 1].astype(np.float64)
    else:
        scale = float(times.unit / line.unit)
        finish = starts[base] + times.draw(owner, job.astype(np.int64), seed=seed) * scale
    lengths = number - base + 1  # rounds in which the job is out
    place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    row = np.repeat(base, lengths) + place
    left = np.repeat(finish, lengths) - starts[row]
    out[row, np.repeat(owner, lengths)] = np.maximum(left, 0.0) * float(line.unit)
    return out


def _resent(line: Timeline) -> bool:
    """Whether every contributor starts again from the next version, as under all rules but sampling."""
    order, _, place = by_client(line.client, line.num_clients)
    number, base = line.round_of_update[order], line.base[order]
    expected = np.where(place == 0, 0, np.concatenate([[0], number[:-1] + 1]))
    return bool(np.array_equal(base, expected))
