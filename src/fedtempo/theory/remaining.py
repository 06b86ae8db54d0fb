"""T_i^n, the time that client i still needs when round n starts (section 2.2): S_n = {i : T_i^n ≤ Δt^n}.

    T_i^n = max(0, t^ρ + T_i(job) − t^n)    for the job that is out in round n, which started from version ρ at t^ρ

∞ where client i has no job out in round n (it was not sampled), NaN where the timeline cannot tell.
"""

from __future__ import annotations

import numpy as np

from fedtempo.clock.timeline import Timeline, by_client
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.theory.always import check_always_there
from fedtempo.theory.kinds import check_size


def remaining_times(line: Timeline, times: ClientTimes | None = None, *, seed: int = 0) -> Floats:
    """[rounds, clients] T_i^n. Without `times`, up to the end of the round that takes the update.

    `times` and `seed` are those of the timeline: they tell when an update arrived inside its round, and how long jobs
    still last that no round of this timeline takes.
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
