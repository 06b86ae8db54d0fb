"""FedBuff (section 4.5): a round ends when m updates have arrived; exactly those m enter it and get the new model.

Updates beyond m stay for the next round, in order of arrival and then of index, so that a round may last no time. Under
exponential times, which forget, every round is a fresh race of all clients for m places (clock/races.py); else shares
and window are those of the limit cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from fedtempo.clock.closed_form import ClosedForm, FirstOfRace, failing, fine_ticks, forgets, slower
from fedtempo.clock.config import ClockConfig, chunk_updates
from fedtempo.clock.events import Action, Close, Event, View
from fedtempo.clock.importance import Importance
from fedtempo.clock.races import MAX_CLIENTS, exponential_race, race_of_many, sample_of_many
from fedtempo.clock.rules.wait_for_all import WaitForAll
from fedtempo.clock.rules.wait_for_next import WaitForNext
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.transport import Durations
from fedtempo.clock.waiting import State, WaitingRule, resend
from fedtempo.errors import InputError

_ARRAYS_PAY = 16  # updates a round from which on arrays are faster than a heap
_MANY_PAY = 1000  # updates a round from which on they are faster than anything, drawn times included
_LIST_PAYS = 25  # clients for each update of a round, up to which a sorted list is faster than both

_Race = Callable[[int], tuple[I64, I64]]
"""Runs a number of rounds, fewer where the clock ends: their ends, and the clients of each, `size` by `size`."""


@dataclass(frozen=True)
class WaitForSome(WaitingRule):
    """A round ends when `size` updates are there, or all that can come if fewer clients are left than that."""

    constant_phase = True
    keeps_clients_busy = True

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"buffer: {self.size} updates per round are too few; give at least 1")

    def check(self, num_clients: int) -> None:
        if self.size > num_clients:
            raise InputError(
                f"buffer: {self.size} updates per round, but {num_clients} clients have at most one each in progress; "
                f"make it at most {num_clients}"
            )

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if (again := resend(event)) is not None:
            return state, again
        out = len(view.arrived) + len(view.in_flight)
        if view.arrived and len(view.arrived) >= min(self.size, max(out, len(view.clients))):
            return state, Close(tuple(islice(view.arrived.values(), self.size)))
        return state, None

    def chunks(self, config: ClockConfig) -> Iterator[Timeline]:
        return _chunks(config, self.size)

    @property
    def min_clients(self) -> int:
        return self.size

    def simplified(self, num_clients: int) -> WaitingRule:
        if self.size >= num_clients:
            return WaitForAll()
        return WaitForNext() if self.size == 1 else self

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        fails = failing(times)
        if times.availability is not None and fails is None:
            return None
        there = slower(times) if fails is not None else times
        found = ClosedForm(window=1 if forgets(times.always) else None)
        if times.availability is None and fine_ticks(times) and (many := race_of_many(times, self.size)) is not None:
            return replace(found, share=many[0], rounds_per_time=1 / many[1])
        if there is None or not forgets(there):
            return found
        law = FirstOfRace(there.mean_time, self.size) if fails is None else None
        if there.num_clients > MAX_CLIENTS:
            return replace(found, round_law=law)
        share, duration = exponential_race(there.mean_time, self.size)
        return replace(found, share=share, rounds_per_time=1 / duration, round_law=law)

    def remarks(self, times: ClientTimes) -> tuple[str, ...]:
        if times.availability is None and sample_of_many(times) is not None and 1 < self.size < times.num_clients:
            return ("pace and shares are those of the limit of many clients, in which every round lasts equally long",)
        if self.size >= times.num_clients:
            return ("the buffer holds every client: the same rounds as FedAvg",)
        return ("a buffer of one: the same rounds as asynchronous FedAvg",) if self.size == 1 else ()


def _chunks(config: ClockConfig, size: int) -> Iterator[Timeline]:
    """Who is in which round comes from a race; versions and job numbers follow from that, a chunk at once."""
    clients = config.num_clients
    if config.times.random and size >= _MANY_PAY:
        race = _drawn_race(config, size)
    elif isinstance(config.times, FixedTimes) and size >= _MANY_PAY:
        race = _array_race(config, size)
    elif clients <= _LIST_PAYS * size:
        race = _list_race(config, size)
    elif isinstance(config.times, FixedTimes) and size >= _ARRAYS_PAY:
        race = _array_race(config, size)
    else:
        race = _heap_race(config, size)
    base, job = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
    version, start = 0, 0
    for updates in chunk_updates():
        ends, who = race(max(1, updates // size))
        if not len(ends):
            return
        number = version + np.repeat(np.arange(len(ends)), size)
        order, counts, place = by_client(who, clients)
        bases, jobs = np.empty(len(who), dtype=np.int64), np.empty(len(who), dtype=np.int64)
        bases[order[1:]] = number[order[:-1]] + 1
        bases[order[place == 0]] = base[counts > 0]
        jobs[order] = place + np.repeat(job, counts)
        base[who] = number + 1
        job += counts
        yield Timeline(
            unit=config.unit,
            num_clients=clients,
            ends=ends,
            offsets=np.arange(len(ends) + 1, dtype=np.int64) * size,
            client=who.astype(np.int32),
            base=bases.astype(np.int32),
            job=jobs.astype(np.int32),
            first_round=version,
            start=start,
        )
        version, start = version + len(ends), int(ends[-1])


def _following(config: ClockConfig) -> list[Callable[[], int]]:
    """By client: how long its next job takes, packed with the client into one whole number."""
    clients = config.num_clients
    durations = Durations(config.times, scale=config.scale, seed=config.seed)
    return [durations.of(i, times=clients, plus=i).__next__ for i in range(clients)]


def _list_race(config: ClockConfig, size: int) -> _Race:
    """All arrivals, packed as for the heap, in one sorted list: a round is its beginning."""
    clients = config.num_clients
    following = _following(config)
    waiting = sorted(arrival() for arrival in following)
    begin = 0  # of the current round, packed

    def race(rounds: int) -> tuple[I64, I64]:
        nonlocal begin, waiting
        who: list[int] = []
        ends: list[int] = []
        for _ in range(rounds):
            taken = waiting[:size]
            if taken[-1] - begin >= clients:
                begin = taken[-1] - taken[-1] % clients
            if begin >= MAX_TICKS * clients:
                break
            chosen = [packed % clients for packed in taken]
            waiting = waiting[size:]
            waiting += [begin + following[i]() for i in chosen]
            waiting.sort()
            who += chosen
            ends.append(begin)
        found = np.array(who, dtype=np.int64).reshape(-1, size)
        return np.array([end // clients for end in ends], dtype=np.int64), np.sort(found, axis=1).ravel()

    return race


def _heap_race(config: ClockConfig, size: int) -> _Race:
    """A heap of arrivals, each packed with its client into one whole number; a round is the `size` smallest."""
    clients = config.num_clients
    following = _following(config)
    heap = [arrival() for arrival in following]
    heapq.heapify(heap)
    pop, push = heapq.heappop, heapq.heappush
    now = 0

    def race(rounds: int) -> tuple[I64, I64]:
        nonlocal now
        ends, who = [], []
        for _ in range(rounds):
            taken = [pop(heap) for _ in range(size)]
            now = max(now, taken[-1] // clients)
            if now >= MAX_TICKS:
                heap.extend(taken)  # so that a later call ends here too
                break
            chosen = sorted([packed % clients for packed in taken])
            for i in chosen:
                push(heap, now * clients + following[i]())
            ends.append(now)
            who += chosen
        return np.array(ends, dtype=np.int64), np.array(who, dtype=np.int64)

    return race


def _drawn_race(config: ClockConfig, size: int) -> _Race:
    """The same for random times, of many updates a round: those of a round are drawn together."""
    everyone = np.arange(config.num_clients)
    job = np.zeros_like(everyone)

    def durations(client: I64) -> I64:
        drawn = config.times.draw(client, job[client], seed=config.seed)
        job[client] += 1
        return np.minimum(drawn, MAX_TICKS // config.scale + 1) * config.scale

    arrivals = durations(everyone)
    now = 0

    def race(rounds: int) -> tuple[I64, I64]:
        nonlocal now
        ends: list[int] = []
        who: list[I64] = []
        for _ in range(rounds):
            chosen, last = _first(arrivals, size)
            if max(now, last) >= MAX_TICKS:
                break
            now = max(now, last)
            arrivals[chosen] = durations(chosen) + now
            ends.append(now)
            who.append(chosen)
        return np.array(ends, dtype=np.int64), np.concatenate([np.empty(0, dtype=np.int64), *who])

    return race


def _first(arrivals: I64, size: int) -> tuple[I64, int]:
    """The `size` clients that arrive first, ties by index, and when the last of them does."""
    last = int(np.partition(arrivals, size - 1)[size - 1])
    chosen = np.flatnonzero(arrivals < last)
    tied = np.flatnonzero(arrivals == last)[: size - len(chosen)]
    return np.sort(np.concatenate([chosen, tied])), last


def _array_race(config: ClockConfig, size: int) -> _Race:
    """The same for fixed times with all arrivals in one array, which pays when many are taken at once."""
    everyone = np.arange(config.num_clients)
    duration = np.minimum(config.times.draw(everyone, everyone), MAX_TICKS // config.scale + 1) * config.scale
    arrivals = duration.copy()
    now = 0

    def race(rounds: int) -> tuple[I64, I64]:
        nonlocal now
        ends, who = np.empty(rounds, dtype=np.int64), np.empty((rounds, size), dtype=np.int64)
        for n in range(rounds):
            chosen, last = _first(arrivals, size)
            now = max(now, last)
            if now >= MAX_TICKS:
                return ends[:n], who[:n].ravel()
            arrivals[chosen] = duration[chosen] + now
            ends[n] = now
            who[n] = chosen
        return ends, who.ravel()

    return race
