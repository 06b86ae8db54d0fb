"""Who finishes first, and when: order statistics of the clients' times, worked out as integrals.

    the last of all             E[max_i T_i] = ∫ (1 − Π_i P(T_i ≤ t)) dt
    the same, jobs may fail     P(all done by t) = Π_i (1 − f_i^⌊t/τ_i⌋): each job fails with probability f_i
    exponential race            P(i among the first m) = ∫ f_i(t) P(fewer than m others done by t) dt, f_i the density

Exponential times forget, so that every round of FedBuff is a fresh race between all clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.random_times import RandomTimes
from fedtempo.clock.times import MANY_CLIENTS, ClientTimes, Floats
from fedtempo.errors import InputError

MAX_CLIENTS = 500
"""Up to how many clients the integrals are worked out."""

MAX_RACERS = 64
"""Up to how many clients the pairs of a race are worked out."""

_SAMPLE = 1 << 12  # clients that stand for many
_PANEL, _ORDER = 0.35, 10  # width of a panel in log time, nodes in it
_NEGLIGIBLE, _MAX_JOBS = 1e-17, 5_000_000


def expected_maximum(times: ClientTimes) -> float | None:
    """E[max_i T_i] for independent times; None if there are too many clients, and not enough for a sample of them."""
    stands_for = 1.0
    if times.num_clients > MAX_CLIENTS:
        sample = sample_of_many(times)
        if sample is None:
            return None
        times, stands_for = sample

    def unfinished(time: float) -> float:
        with np.errstate(divide="ignore"):
            return float(-np.expm1(np.log1p(-times.survival(time)).sum() * stands_for))

    nodes, weights = _grid(unfinished, times.mean_time, times.kinks())
    return float(nodes[0] + sum(w * unfinished(t) for t, w in zip(nodes[1:].tolist(), weights[1:], strict=True)))


def sample_of_many(times: ClientTimes) -> tuple[RandomTimes, float] | None:
    """Clients evenly spread in the order of their mean times, and how many each stands for.

    None of a million clients or fewer, and where clients differ in more than their mean times.
    """
    clients = times.num_clients
    if clients <= MANY_CLIENTS or not isinstance(times, RandomTimes) or not times.alike:
        return None
    places = ((np.arange(_SAMPLE) + 0.5) * (clients / _SAMPLE)).astype(np.int64)
    few = times.only(np.argsort(times.mean_time, kind="stable")[places].tolist())
    assert isinstance(few, RandomTimes)
    return few, clients / _SAMPLE


def race_of_many(times: ClientTimes, places: int) -> tuple[Floats, Fraction] | None:
    """Shares of rounds, and how long a round lasts, in the limit of many clients; None where it is not known.

        share_i = 1/E⌈T_i/Δ⌉    with the Δ for which the shares add up to `places`

    Of many clients nearly the same number arrive in any stretch of time, so that rounds last equally long: FedFix(Δ).
    """
    sample = sample_of_many(times)
    if sample is None:
        return None
    few, stands_for = sample
    tick = few.unit

    def enough(ticks: int) -> bool:
        return float((1.0 / few.expected_rounds(ticks * tick)).sum()) * stands_for >= places

    low = int(Fraction(places / (stands_for * float((1.0 / few.mean_time).sum()))) / tick) // 2  # clients wait as well
    high = 4 * low + 2
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    share = 1.0 / times.expected_rounds(high * tick)
    return np.minimum(share * (places / share.sum()), 1.0), high * tick


def expected_last_success(time: Floats, failure: Floats) -> float | None:
    """E[max_i G_i τ_i] for fixed times, G_i jobs until one succeeds; None if too many jobs would have to be looked at.

    Each finished job raises P(done by t) by a factor; what lies beyond 1e-17 is left out.
    """
    small = math.log(_NEGLIGIBLE / len(time))
    with np.errstate(divide="ignore"):
        jobs = np.maximum(1, np.ceil(small / np.log(failure))).astype(np.int64)
    if int(jobs.sum()) > _MAX_JOBS:
        return None
    client = np.repeat(np.arange(len(time)), jobs)
    number = np.arange(len(client)) - np.repeat(np.cumsum(jobs) - jobs, jobs) + 1
    step = np.log1p(-(failure[client] ** number))
    again = number > 1
    step[again] -= np.log1p(-(failure[client] ** (number - 1))[again])
    moment = number * time[client]
    order = np.argsort(moment, kind="stable")
    moment, step = moment[order], np.cumsum(step[order])
    begun = float(time.max())  # before that somebody has not finished even one job
    later = moment > begun
    edges = np.concatenate([[begun], moment[later]])
    unfinished = -np.expm1(step[np.searchsorted(moment, edges, side="right") - 1])
    return begun + float((np.diff(edges) * unfinished[:-1]).sum())


def exponential_race(mean_time: Floats, places: int) -> tuple[Floats, float]:
    """P(i among the first `places`) for each client, and the expected time until the last place is taken."""
    rates = 1.0 / mean_time
    clients = len(rates)

    def unfilled(time: float) -> float:
        return float(_counts(-np.expm1(-rates * time)[None, :])[0, :places].sum())

    nodes, weights = _grid(unfilled, mean_time, np.empty(0))
    done = -np.expm1(-np.outer(nodes, rates))  # [node, client] P(T_i ≤ t)
    counts = _counts(done)  # [node, k] P(k clients done by t)
    fewer = _fewer_others(done, counts, places)
    density = rates * np.exp(-np.outer(nodes, rates))
    shares = weights @ (density * fewer)
    duration = float(weights @ counts[:, :places].sum(axis=1))
    return np.asarray(np.clip(shares * places / shares.sum(), 0.0, 1.0) if clients > places else shares), duration


def _grid(remaining: Callable[[float], float], means: Floats, kinks: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights of ∫ dt: a first piece up to where nothing has happened yet, then Gauss and Legendre's nodes.

    Panels are even in log time up to where `remaining` × time has died out, and never reach across a kink.
    """
    begin = float(means.min()) * 1e-12
    stop = float(means.max())
    while remaining(stop) * stop > 1e-14 * float(means.min()) and stop < 1e60 * float(means.max()):
        stop *= 2.0
    edges = np.linspace(np.log(begin), np.log(stop), 2 + int(np.log(stop / begin) / _PANEL))
    inner = kinks[(kinks > begin) & (kinks < stop)]
    edges = np.unique(np.concatenate([edges, np.log(inner)]))
    x, w = np.polynomial.legendre.leggauss(_ORDER)
    half = np.diff(edges)[:, None] / 2
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    nodes = np.exp(middle + half * x).ravel()
    weights = (half * w).ravel() * nodes
    return np.concatenate([[begin], nodes]), np.concatenate([[begin], weights])


def _counts(done: Floats) -> Floats:
    """[node, k] the probability that exactly k clients are done, each independently."""
    nodes, clients = done.shape
    out = np.zeros((nodes, clients + 1))
    out[:, 0] = 1.0
    for i in range(clients):
        share = done[:, i : i + 1]
        out[:, 1 : i + 2] = out[:, 1 : i + 2] * (1.0 - share) + out[:, : i + 1] * share
        out[:, 0] *= 1.0 - share[:, 0]
    return out


def _fewer_others(done: Floats, counts: Floats, places: int) -> Floats:
    """[node, client] P(fewer than `places` of the others are done), by taking each client out of `counts`.

    With c_k = d·o_{k−1} + (1−d)·o_k, the o_k follow upwards without loss of digits where d ≤ 1/2, else downwards.
    """
    nodes, clients = done.shape
    below: NDArray[np.float64] = np.zeros((nodes, clients))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        other = np.zeros((nodes, clients))
        for k in range(places):
            other = (counts[:, k : k + 1] - done * other) / (1.0 - done)
            below += other
        above = np.zeros((nodes, clients))
        other = np.zeros((nodes, clients))
        for k in range(clients - 1, places - 1, -1):
            other = (counts[:, k + 1 : k + 2] - (1.0 - done) * other) / done
            above += other
    return np.asarray(np.clip(np.where(done <= 0.5, below, 1.0 - above), 0.0, 1.0))


def race_pairs(mean_time: Floats, places: int) -> Floats:
    """[clients, clients] P(i and j are both among the first `places`) of an exponential race; P(i) on the diagonal.

    P = ∫ d/dt[P(T_i ≤ t) P(T_j ≤ t)] · P(at most m − 2 others done by t) dt, by the trapezium rule in log time, which
    converges exponentially since the integrand is analytic and dies out at both ends.
    """
    rates = 1.0 / np.asarray(mean_time, dtype=np.float64)
    clients = len(rates)
    if clients > MAX_RACERS:
        raise InputError(f"{clients} clients have too many pairs to compute exactly; estimate them from a run")
    if places >= clients:
        return np.ones((clients, clients))
    if places == 1:
        return np.diag(rates / rates.sum())
    step = 0.125
    log_time = np.arange(np.log(mean_time.min()) - 40.0, np.log(mean_time.max()) + 4.0, step)
    time = np.exp(log_time)
    done = -np.expm1(-np.outer(time, rates))  # [node, client]
    density = rates * np.exp(-np.outer(time, rates)) * time[:, None] * step
    out = np.empty((clients, clients))
    for i in range(clients):
        fewer = _at_most(done, i, places)
        out[i] = (density[:, [i]] * done * fewer + density * done[:, [i]] * fewer).sum(axis=0)
    np.fill_diagonal(out, 0.0)
    np.fill_diagonal(out, out.sum(axis=1) / (places - 1))  # a participant meets m − 1 others
    return out


def _at_most(done: Floats, first: int, places: int) -> Floats:
    """[node, j] P(at most places − 2 of the clients other than `first` and j are done)."""
    nodes, clients = done.shape
    counts = np.zeros((places - 1, nodes, clients))
    counts[0] = 1.0
    for k in range(clients):
        if k == first:
            continue
        share = np.repeat(done[:, [k]], clients, axis=1)
        share[:, k] = 0.0
        counts[1:] += share * (counts[:-1] - counts[1:])
        counts[0] *= 1.0 - share
    return np.asarray(counts.sum(axis=0))


def race_sets(mean_time: Floats, places: int) -> tuple[Floats, Floats]:
    """The sets that can be the first `places` of exponential clients [sets, clients], and how likely each is.

    P(S) = Σ_{i∈S} P(S∖i) λ_i / (Σ_j λ_j − Σ_{j∈S∖i} λ_j): the last to arrive is any of its members.
    """
    rate = 1.0 / mean_time
    known: dict[tuple[int, ...], float] = {(): 1.0}
    for size in range(1, places + 1):
        grown: dict[tuple[int, ...], float] = {}
        for members in combinations(range(len(rate)), size):
            grown[members] = sum(
                known[rest] * rate[i] / (rate.sum() - rate[list(rest)].sum())
                for i, rest in ((i, tuple(m for m in members if m != i)) for i in members)
            )
        known = grown
    sets = np.zeros((len(known), len(rate)))
    for row, members in enumerate(known):
        sets[row, list(members)] = 1.0
    return sets, np.array(list(known.values()))
