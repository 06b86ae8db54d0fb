"""Client sampling (appendix C.2, C.3): θ^n goes to a sampled set S_n; the round ends when all of it has answered.

    uniform:      S_n is m of M clients without replacement
    multinomial:  m draws with replacement, client i with probability p_i; a client counts as often as it was drawn
    fastest:      the m clients with the smallest known mean time, a deterministic criterion

The sample of round n under seed s depends on (s, n) alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.clock.config import ClockConfig, add_up, chunk_updates
from fedtempo.clock.events import Action, Close, Event, Send, View
from fedtempo.clock.streams import Key, stream_key, uniforms
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError


@dataclass(frozen=True)
class SampledClients(WaitingRule):
    """Each round waits for the `size` clients that were chosen for it.

    The state counts how often all that were chosen for the current round have failed or left.
    """

    size: int
    synchronous = True
    random = True
    returns_to_contributors = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"sample: {self.size} clients make no round; give at least 1")

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return 0, self.choose(view.version, 0, view)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if view.in_flight or not (view.arrived or view.clients):
            return state, None
        if view.arrived:
            following = self.choose(view.version + 1, 0, view) if view.clients else ()
            return 0, Close(tuple(view.arrived.values()), following)
        return state + 1, Send(self.choose(view.version, state + 1, view))

    def phase(self, state: State) -> int | None:
        return int(state)

    def asked_a_round(self, num_clients: int) -> Fraction:
        """Clients that are asked for a measure of the newest model, in a round on average, beyond those chosen."""
        return Fraction(0)

    @abstractmethod
    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        """The clients of round `number`; a client drawn twice is named twice."""

    def samples(self, config: ClockConfig, numbers: I64) -> I64 | None:
        """[round, draw] whom `choose` names in these rounds, ascending in each; None if that is not known ahead."""
        return None

    def draws_a_round(self, num_clients: int) -> Fraction:
        """How many draws a round has, on average."""
        return Fraction(min(self.size, num_clients))

    def chunks(self, config: ClockConfig) -> Iterator[Timeline] | None:
        if self.samples(config, np.zeros(0, dtype=np.int64)) is None:
            return super().chunks(config)

        def draws(numbers: I64) -> tuple[I64, I64]:
            chosen = self.samples(config, numbers)
            assert chosen is not None
            return chosen.ravel(), np.full(len(numbers), chosen.shape[1])

        return sampled_chunks(config, draws, self.size)


@dataclass(frozen=True)
class UniformSample(SampledClients):
    """m clients, each set of m equally likely."""

    def check(self, num_clients: int) -> None:
        if self.size > num_clients:
            raise InputError(f"sample: {self.size} clients cannot be drawn from {num_clients}; make it smaller")

    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        present = sorted(view.clients)
        size = min(self.size, len(present))
        [places] = _without_replacement(view.seed, np.array([number]), size, len(present), attempt)
        return tuple(present[p] for p in places.tolist())

    def samples(self, config: ClockConfig, numbers: I64) -> I64:
        return _without_replacement(config.seed, numbers, self.size, config.num_clients)


@dataclass(frozen=True)
class MultinomialSample(SampledClients):
    """m draws with replacement, by importance."""

    counts_draws = True

    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        present = sorted(view.clients)
        known = view.measures.get("importance", {})
        importance = np.array([_number(known.get(c, 1.0 / len(present))) for c in present])
        [places] = _with_replacement(view.seed, np.array([number]), self.size, importance, attempt)
        return tuple(present[p] for p in places.tolist())

    def draws_a_round(self, num_clients: int) -> Fraction:
        return Fraction(self.size)

    def samples(self, config: ClockConfig, numbers: I64) -> I64:
        return _with_replacement(config.seed, numbers, self.size, config.importance)


@dataclass(frozen=True)
class FastestClients(SampledClients):
    """The m clients with the smallest known mean time; ties by index."""

    random = False
    constant_phase = True

    def phase(self, state: State) -> int:
        return 0  # the criterion chooses the same clients however often they have failed

    def check(self, num_clients: int) -> None:
        if self.size > num_clients:
            raise InputError(f"sample: {self.size} clients cannot be chosen from {num_clients}; make it smaller")

    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        known: Any = view.measures.get("mean_time", {})
        ranked = sorted(view.clients, key=lambda c: (c not in known, known.get(c, 0), c))
        return tuple(sorted(ranked[: self.size]))

    def samples(self, config: ClockConfig, numbers: I64) -> I64:
        return np.tile(fastest(config.times, self.size), (len(numbers), 1))


def fastest(times: ClientTimes, size: int) -> I64:
    """The clients with the smallest mean times, by index; ties by index."""
    known: Any = times.exact_mean_time or times.mean_time.tolist()
    return np.array(sorted(sorted(range(len(known)), key=lambda c: (known[c], c))[:size]), dtype=np.int64)


def _number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]


def _stream(seed: int, attempt: int) -> Key:
    return stream_key("sampling" if attempt == 0 else f"sampling again {attempt}", seed)


def _without_replacement(seed: int, numbers: I64, size: int, num_clients: int, attempt: int = 0) -> I64:
    """Floyd's way to a uniform set, all rounds at once: [round, place], ascending."""
    drawn = uniforms(_stream(seed, attempt), numbers[:, None], np.arange(size))
    chosen = np.empty((len(numbers), size), dtype=np.int64)
    for k in range(size):
        top = num_clients - size + k
        pick = (drawn[:, k] * (top + 1)).astype(np.int64)
        taken = (chosen[:, :k] == pick[:, None]).any(axis=1)
        chosen[:, k] = np.where(taken, top, pick)
    return np.sort(chosen, axis=1)


def _with_replacement(seed: int, numbers: I64, size: int, importance: Floats, attempt: int = 0) -> I64:
    """`size` draws by importance, all rounds at once: [round, draw], ascending."""
    drawn = uniforms(_stream(seed, attempt), numbers[:, None], np.arange(size))
    steps = np.cumsum(importance)
    places = np.searchsorted(steps / steps[-1], drawn, side="right")
    return np.sort(np.minimum(places, len(importance) - 1), axis=1)


def sampled_chunks(config: ClockConfig, draws_of: Callable[[I64], tuple[I64, I64]], size: int) -> Iterator[Timeline]:
    """The timeline of samples that are known ahead, of about `size` draws a round.

    `draws_of` gives for consecutive rounds the clients that are drawn, end to end and ascending in each round, and how
    many draws each round has.
    """
    done = np.zeros(config.num_clients, dtype=np.int64)
    first, start = 0, 0
    for updates in chunk_updates():
        per_chunk = max(1, updates // size)
        named, sizes = draws_of(np.arange(first, first + per_chunk))
        begins = np.cumsum(sizes) - sizes
        fresh = np.ones(len(named), dtype=bool)
        fresh[1:] = named[1:] != named[:-1]
        fresh[begins] = True
        client = named[fresh]
        where = np.flatnonzero(fresh)
        draws = np.diff(np.append(where, fresh.size)).astype(np.int32)
        job = _count_up(client, done)
        took = config.times.draw(client, job, seed=config.seed) * config.scale
        offsets = np.searchsorted(where, np.append(begins, fresh.size))
        ends = add_up(start, np.maximum.reduceat(took, offsets[:-1]))
        number = np.repeat(np.arange(first, first + per_chunk, dtype=np.int32), np.diff(offsets))
        chunk = Timeline(
            unit=config.unit,
            num_clients=config.num_clients,
            ends=np.concatenate([ends, np.full(per_chunk - len(ends), MAX_TICKS)]),
            offsets=offsets,
            client=client.astype(np.int32),
            base=number,
            job=job.astype(np.int32),
            draws=draws if config.rule.counts_draws else None,
            first_round=first,
            start=start,
        )
        yield chunk[: len(ends)]
        if len(ends) < per_chunk:
            return
        first, start = first + per_chunk, int(ends[-1])


def _count_up(client: I64, done: I64) -> I64:
    """The job number of each entry: how often its client came before; `done` is moved on."""
    order, counts, place = by_client(client, len(done))
    job = np.empty_like(client)
    job[order] = place + np.repeat(done, counts)
    done += counts
    return job
