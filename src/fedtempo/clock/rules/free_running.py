"""Timelines of rules under which no client's moments depend on another's: asynchronous FedAvg and FedFix.

    client i is sent a model at s_0 = 0, s_1, s_2, …    with s_{k+1} = s_k + T_i              (asynchronous)
                                                        or   s_{k+1} = s_k + ⌈T_i/Δt⌉·Δt      (FedFix)

so that each client's contributions are laid out apart, a stretch of time at once, and then merged by (time, client).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedtempo.clock.config import ClockConfig, chunk_updates
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.timeline import I32, I64, Timeline
from fedtempo.clock.times import FixedTimes

_NEVER = 2 * MAX_TICKS
_MAX_CHUNK_ROUNDS = (1 << 16) - 1  # so that a round's place in its chunk fits 16 bits, which sort by counting


class _Clients:
    """Where every client stands: the job in hand, the tick at which it will contribute, the version it holds."""

    def __init__(self, config: ClockConfig, wait: int | None) -> None:
        self._config, self._wait = config, wait
        clients = np.arange(config.num_clients)
        self.job: I64 = np.zeros_like(clients)
        self.base: I32 = np.zeros(len(clients), dtype=np.int32)
        self._fixed = self._durations(clients, self.job) if isinstance(config.times, FixedTimes) else None
        self.due: I64 = self._durations(clients, self.job)

    def _durations(self, client: I64, job: I64) -> I64:
        """Ticks from being sent a model to contributing, for each job."""
        scale = self._config.scale
        drawn = self._config.times.draw(client, job, seed=self._config.seed)
        drawn = np.minimum(drawn, MAX_TICKS // scale + 1) * scale  # what is longer than the clock never comes back
        return drawn if self._wait is None else -(-drawn // self._wait) * self._wait

    def until(self, tick: int, about: int) -> tuple[I64, I64]:
        """How often each client contributes before `tick`, and all those moments, client by client; moves them on."""
        counts, moments = self._evenly(tick, self._fixed) if self._fixed is not None else self._drawn(tick, about)
        self.job += counts
        return counts, moments

    def _evenly(self, tick: int, period: I64) -> tuple[I64, I64]:
        counts = np.maximum(0, -(-(tick - self.due) // period))
        first = np.repeat(np.cumsum(counts) - counts, counts)
        moments = np.repeat(self.due, counts) + (np.arange(len(first)) - first) * np.repeat(period, counts)
        self.due = self.due + counts * period
        return counts, moments

    def _drawn(self, tick: int, about: int) -> tuple[I64, I64]:
        active = np.flatnonzero(self.due < tick)
        counts = np.zeros(len(self.due), dtype=np.int64)
        rows: list[tuple[I64, I64, I64, I64]] = []  # clients, moments they had, moments found, moments [client, place]
        width = max(4 if 2 * about > len(self.due) else 1, about // (4 * len(self.due)))
        while len(active):
            begin = counts[active]
            drawn = self._durations(active[:, None], (self.job[active] + begin)[:, None] + np.arange(1, width + 1))
            steps = np.concatenate([self.due[active][:, None], drawn], axis=1)
            beyond = steps.astype(np.float64).cumsum(axis=1) >= _NEVER
            moments = np.where(beyond, _NEVER, steps.cumsum(axis=1))
            inside = np.minimum((moments < tick).sum(axis=1), width)
            counts[active] += inside
            self.due[active] = moments[np.arange(len(active)), inside]
            rows.append((active, begin, inside, moments))
            active = active[self.due[active] < tick]
        first = np.cumsum(counts) - counts
        out = np.empty(int(counts.sum()), dtype=np.int64)
        place = np.arange(width + 1)
        for clients, begin, inside, moments in rows:
            held = place < inside[:, None]
            out[((first[clients] + begin)[:, None] + place)[held]] = moments[held]
        return counts, out


def free_running(config: ClockConfig, *, wait: int | None) -> Iterator[Timeline]:
    """Chunks of the timeline; `wait` is Δt in ticks, None for asynchronous FedAvg."""
    state = _Clients(config, wait)
    everyone = np.arange(config.num_clients, dtype=np.int32)
    begin, start, first_round = 0, 0, 0
    for updates in chunk_updates(config.num_clients):
        stretch = min(_stretch(config, wait, updates), MAX_TICKS - begin)
        stretch -= stretch % (wait or 1)
        if stretch <= 0:
            return
        first_job = state.job.copy()
        stop = begin + stretch + 1  # a contribution at the very end of a round belongs to it
        counts, moments = state.until(stop, updates)
        client = np.repeat(everyone, counts)
        job = (np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts - first_job, counts)).astype(np.int32)
        if wait is None:
            order, place = _by_time_and_client(moments - begin, client, config.num_clients)
            ends, offsets = moments[order], np.arange(len(client) + 1, dtype=np.int64)
        else:
            place = moments // wait - 1 - first_round
            order = np.argsort(place.astype(np.uint16), kind="stable")  # the clients stand in order already
            ends = (np.arange(stretch // wait, dtype=np.int64) + first_round + 1) * wait
            offsets = np.concatenate([[0], np.bincount(place, minlength=len(ends)).cumsum()])
        base = _bases(state, counts, (place + first_round).astype(np.int32))
        if len(ends):
            yield Timeline(
                unit=config.unit,
                num_clients=config.num_clients,
                ends=ends,
                offsets=offsets,
                client=client[order],
                base=base[order],
                job=job[order],
                first_round=first_round,
                start=start,
            )
            start = int(ends[-1])
        first_round += len(ends)
        begin += stretch


def _stretch(config: ClockConfig, wait: int | None, updates: int) -> int:
    """Ticks in which about so many updates come; whole intervals, and not too many, under FedFix."""
    means = config.times.mean_time / float(config.unit)
    pace = float((1.0 / (means if wait is None else np.maximum(means, wait))).sum())
    ticks = max(1, int(updates / pace))
    return ticks if wait is None else max(1, min(ticks // wait, _MAX_CHUNK_ROUNDS)) * wait


def _by_time_and_client(moments: I64, client: I32, num_clients: int) -> tuple[I64, I64]:
    """The order of updates by (moment, client), and each update's place in it."""
    if int(moments.max(initial=0)) < MAX_TICKS // num_clients:
        order = np.argsort(moments * num_clients + client)
    else:
        order = np.argsort(moments, kind="stable")  # the clients stand in order already
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return order, place


def _bases(state: _Clients, counts: I64, number: I32) -> I32:
    """ρ_i(n): one more than the round of the client's previous contribution; remembers each client's last."""
    base = np.empty_like(number)
    base[1:] = number[:-1] + 1
    active = np.flatnonzero(counts)
    first = (np.cumsum(counts) - counts)[active]
    base[first] = state.base[active]
    state.base[active] = number[first + counts[active] - 1] + 1
    return base
