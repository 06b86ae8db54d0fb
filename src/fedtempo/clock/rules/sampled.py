"""Client sampling (appendix C.2, C.3): θ^n goes to a sampled set S_n; the round ends when all of it has answered.

    uniform:      S_n is m of M clients without replacement
    multinomial:  m draws with replacement, client i with probability p_i; a client counts as often as it was drawn
    fastest:      the m clients with the smallest known mean time, a deterministic criterion

The sample of round n under seed s depends on (s, n) alone. Expected draws a round: m/M, m·p_i, 1 or 0. Where jobs fail
they are × (1 − f_i)/(1 − π), π the probability that all who are drawn fail, and others are drawn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.clock.availability import Availability
from fedtempo.clock.closed_form import (
    ClosedForm,
    Draws,
    RoundLaw,
    UniformSubset,
    failing,
    failure,
    rationals,
    succeeds,
)
from fedtempo.clock.config import ClockConfig, add_up, chunk_updates
from fedtempo.clock.events import Action, Close, Event, Send, View
from fedtempo.clock.importance import Importance
from fedtempo.clock.streams import Key, stream_key, uniforms
from fedtempo.clock.ticks import MAX_TICKS
from fedtempo.clock.timeline import I64, Timeline, by_client
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError

_MAX_BITS = 4000  # of a rational that is kept beside its float
_MAX_DRAWS = 150  # beyond it m! does not fit a float


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
            raise InputError(f"sample: {self.size} clients per round are too few; give at least 1")

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

    @abstractmethod
    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        """The clients of round `number`; a client drawn twice is named twice."""

    def samples(self, config: ClockConfig, numbers: I64) -> I64 | None:
        """[round, draw] whom `choose` names in these rounds, ascending in each; None if that is not known ahead."""
        return None

    def certain_choice(self, times: ClientTimes, size: int) -> I64 | None:
        """Whom the rule chooses in every round when it chooses `size`; None: nobody knows ahead."""
        return None

    def draws_a_round(self, num_clients: int) -> Fraction:
        return Fraction(min(self.size, num_clients))

    def share(self, times: ClientTimes, importance: Importance) -> Floats | None:
        """[clients] expected draws a round of clients that are always there; None where they are not known."""
        return None

    def exact_share(self, times: ClientTimes, importance: Importance) -> tuple[Fraction, ...] | None:
        """The same as rationals; None where they are not known."""
        return None

    def rounds_per_time(self, times: ClientTimes, importance: Importance) -> Fraction | float | None:
        """Of clients that are always there; None where it is not known."""
        return None

    def all_fail(self, times: ClientTimes, importance: Importance, fails: Availability) -> Fraction | float | None:
        """π, the probability that the jobs of all who are drawn for a round fail; None where it is not known."""
        return None

    def round_law(self, clients: int, importance: Importance) -> RoundLaw | None:
        """Who takes part in a round of clients that are always there."""
        return None

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        if times.availability is not None:
            return self._failing_form(times, importance)
        found = ClosedForm(
            rounds_per_time=self.rounds_per_time(times, importance),
            window=1,
            practical_window=1 if self.same_clients else None,
            mean_delay=0.0,
            mean_delay_by_weight=0.0,
            max_delay=0,
            round_law=self.round_law(times.num_clients, importance),
        )
        share = self.share(times, importance)
        if share is None:
            return found
        exact = self.exact_share(times, importance) if rationals(len(share)) else None
        return replace(found, share=share, exact=exact, taking_part=self.named(importance))

    def _failing_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        fails, share = failing(times), self.share(times, importance)
        if fails is None or share is None:
            return None
        found = ClosedForm(window=1, mean_delay=0.0, mean_delay_by_weight=0.0, max_delay=0)
        lost = self.all_fail(times, importance, fails)
        if lost is None:
            return found
        success, left = succeeds(fails), 1.0 - float(lost)
        exact = None
        if isinstance(lost, Fraction) and rationals(len(share)):
            drawn = self.exact_share(times, importance)
            if drawn is not None:
                exact = tuple(s * (1 - f) / (1 - lost) for s, f in zip(drawn, fails.failure, strict=True))
        named, pace = self.named(importance), self.rounds_per_time(times.always, importance)
        return replace(
            found,
            share=share * success / left,
            exact=exact,
            taking_part=None if named is None else np.asarray(named * success / left),
            rounds_per_time=None if pace is None else pace * (1 - lost),
        )

    def named(self, importance: Importance) -> Floats | None:
        """[clients] probability to be drawn at least once, where draws count more than once."""
        return None

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

    @property
    def min_clients(self) -> int:
        return self.size

    def simplified(self, num_clients: int) -> WaitingRule:
        return replace(self, size=num_clients) if self.size > num_clients else self

    def share(self, times: ClientTimes, importance: Importance) -> Floats:
        return np.full(times.num_clients, self.size / times.num_clients)

    def exact_share(self, times: ClientTimes, importance: Importance) -> tuple[Fraction, ...]:
        return (Fraction(self.size, times.num_clients),) * times.num_clients

    def rounds_per_time(self, times: ClientTimes, importance: Importance) -> Fraction | None:
        clients, size = times.num_clients, self.size
        if not isinstance(times, FixedTimes) or not rationals(clients):
            return None
        ways = math.comb(clients, size)  # the k-th fastest is the slowest of C(k−1, m−1) samples
        return ways / sum(
            (t * math.comb(k, size - 1) for k, t in enumerate(sorted(times.exact_mean_time))), Fraction(0)
        )

    def all_fail(self, times: ClientTimes, importance: Importance, fails: Availability) -> Fraction | float:
        size, of = self.size, fails.failure
        if len(set(of)) == 1 and size * of[0].denominator.bit_length() <= _MAX_BITS:
            return of[0] ** size
        mean = np.zeros(size + 1)  # of the product over the sets of k of the first clients
        mean[0] = 1.0
        for seen, f in enumerate(failure(fails).tolist(), start=1):
            k = np.arange(1, min(size, seen) + 1)
            mean[k] = k / seen * f * mean[k - 1] + (seen - k) / seen * mean[k]
        return float(mean[size])

    def round_law(self, clients: int, importance: Importance) -> RoundLaw:
        return UniformSubset(self.size, clients)


@dataclass(frozen=True)
class MultinomialSample(SampledClients):
    """m draws with replacement, by importance."""

    counts_draws = True
    needs = ("importance",)

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

    def share(self, times: ClientTimes, importance: Importance) -> Floats:
        return self.size * importance.values

    def exact_share(self, times: ClientTimes, importance: Importance) -> tuple[Fraction, ...]:
        return tuple(self.size * p for p in importance.exact)

    def named(self, importance: Importance) -> Floats:
        p = importance.values
        return -np.expm1(self.size * np.log1p(-p)) if len(p) > 1 else np.ones(1)

    def rounds_per_time(self, times: ClientTimes, importance: Importance) -> float | None:
        if not isinstance(times, FixedTimes):
            return None
        order = np.argsort(times.ticks)
        reached = np.cumsum(importance.values[order]) ** self.size  # P(no draw is slower than this client)
        return 1.0 / float(times.mean_time[order] @ np.diff(reached, prepend=0.0))

    def all_fail(self, times: ClientTimes, importance: Importance, fails: Availability) -> float | None:
        """M! times the coefficient of x^m in Π_j (1 + f_j (e^{p_j x} − 1))."""
        size = self.size
        if size > _MAX_DRAWS:
            return None
        faculty = np.cumprod(np.concatenate([[1.0], np.arange(1.0, size + 1)]))
        product = np.zeros(size + 1)
        product[0] = 1.0
        for p, f in zip(importance.values.tolist(), failure(fails).tolist(), strict=True):
            factor = f * p ** np.arange(size + 1) / faculty
            factor[0] = 1.0
            product = np.convolve(product, factor)[: size + 1]
        return float(product[size] * faculty[size])

    def round_law(self, clients: int, importance: Importance) -> RoundLaw:
        return Draws(self.size, importance.values)


@dataclass(frozen=True)
class FastestClients(SampledClients):
    """The m clients with the smallest known mean time; ties by index."""

    random = False
    constant_phase = True
    same_clients = True
    needs = ("mean_time",)

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

    @property
    def min_clients(self) -> int:
        return self.size

    def simplified(self, num_clients: int) -> WaitingRule:
        return replace(self, size=num_clients) if self.size > num_clients else self

    def certain_choice(self, times: ClientTimes, size: int) -> I64:
        return fastest(times, size)

    def share(self, times: ClientTimes, importance: Importance) -> Floats:
        return np.isin(np.arange(times.num_clients), fastest(times, self.size)).astype(np.float64)

    def exact_share(self, times: ClientTimes, importance: Importance) -> tuple[Fraction, ...]:
        return tuple(Fraction(int(s)) for s in self.share(times, importance))

    def rounds_per_time(self, times: ClientTimes, importance: Importance) -> Fraction | None:
        if not isinstance(times, FixedTimes):
            return None
        return 1 / (int(np.sort(times.ticks)[self.size - 1]) * times.unit)

    def all_fail(self, times: ClientTimes, importance: Importance, fails: Availability) -> Fraction:
        return math.prod((fails.failure[i] for i in fastest(times, self.size).tolist()), start=Fraction(1))


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
