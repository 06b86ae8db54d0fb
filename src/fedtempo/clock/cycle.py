"""The limit cycle: under times that repeat, a deterministic rule repeats too, after a transient.

The state before round n is, for each client, the age of its job (t^n − t^{ρ_i}), the lag of its version (n − ρ_i) and
its place in the repeating list of times; two equal states are followed by equal rounds. States are compared through a
hash that is linear in them, so that only contributors change it; a repetition that it finds is then checked exactly.

Where none is found, the run that was looked at is kept as a tally: contributions by client over consecutive parts of
equal numbers of rounds, from which shares are estimated. Where absences repeat, parts are whole periods, so that no
time of day counts for more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import Recording, by_events, fast_chunks, stream
from fedtempo.clock.presence import surplus
from fedtempo.clock.streams import stream_key, threefry
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import MANY_CLIENTS, Floats
from fedtempo.display import Brief, Shown, frame_of
from fedtempo.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

_BATCHES = 64
FEWEST_PERIODS = 4
"""Of absences that repeat: with fewer there are no parts."""


def tally_of(config: ClockConfig, limit: int, most: int, *, by_client: bool = True) -> Tally:
    """For about `limit` updates; for up to `most` where periods are long."""
    availability = config.availability
    if availability is None or availability.period is None:
        return Tally(config, limit, by_client=by_client)
    return TallyOfPeriods(config, limit, most, config.ticks(availability.period))


class Tally:
    """Not too many parts, of equal numbers of rounds."""

    def __init__(self, config: ClockConfig, limit: int, *, by_client: bool = True) -> None:
        self._config, self._limit, self._clients = config, limit, config.num_clients if by_client else 0
        self._most = max(8, min(2 * _BATCHES, 2 * 10**7 // config.num_clients))
        self._size = 16
        self._parts: list[Part] = []
        self._open = Part.empty(self._clients)
        self.rounds, self.updates, self.max_delay, self.delays = 0, 0, 0, 0

    @property
    def enough(self) -> bool:
        """Whether as much has been seen as is looked at."""
        return self.updates >= self._limit

    @property
    def parts(self) -> list[Part]:
        """The parts, the last of which may be shorter."""
        return [*self._parts, self._open] if self._open.rounds else self._parts

    def add(self, chunk: Timeline) -> None:
        """Take in the next rounds."""
        begin = 0
        while begin < chunk.num_rounds:
            stop, full = self._until(chunk, begin)
            if stop > begin:
                self._open = self._open.joined(Part.of(chunk[begin:stop], by_client=self._clients > 0))
            begin = stop
            if full:
                self._close()
        delays = chunk.staleness
        self.rounds += chunk.num_rounds
        self.updates += chunk.num_updates
        self.max_delay = max(self.max_delay, int(delays.max(initial=0)))
        self.delays += int(delays.sum())

    def _until(self, chunk: Timeline, begin: int) -> tuple[int, bool]:
        """Up to which round of the chunk the open part goes, and whether it is full then."""
        stop = min(begin + self._size - self._open.rounds, chunk.num_rounds)
        return stop, self._open.rounds + stop - begin == self._size

    def _close(self) -> None:
        self._parts.append(self._open)
        self._open = Part.empty(self._clients)
        if len(self._parts) >= self._most and len(self._parts) % 2 == 0:
            self._parts = [a.joined(b) for a, b in zip(self._parts[::2], self._parts[1::2], strict=True)]
            self._size *= 2


class TallyOfPeriods(Tally):
    """Parts of whole periods, where there are enough; what lies beyond the last whole one is left out."""

    def __init__(self, config: ClockConfig, limit: int, most: int, period: int) -> None:
        super().__init__(config, limit)
        self._at_most, self._period = most, period
        self._size, self._turn = 1, 0

    @property
    def enough(self) -> bool:
        return self.updates >= self._at_most or (super().enough and self._turn >= FEWEST_PERIODS)

    @property
    def parts(self) -> list[Part]:
        return self._parts if self._turn >= FEWEST_PERIODS else []

    def _until(self, chunk: Timeline, begin: int) -> tuple[int, bool]:
        edge = (self._turn + self._size) * self._period
        stop = max(begin, int(np.searchsorted(chunk.ends, edge, side="right")))
        return stop, stop < chunk.num_rounds

    def _close(self) -> None:
        self._turn += self._size
        if self._open.rounds:
            super()._close()


@dataclass(frozen=True)
class Part:
    """Consecutive rounds."""

    rounds: int
    counts: I64
    """[clients] contributions, draws counted."""
    taking: I64
    """[clients] rounds in which the client takes part."""
    ticks: int

    @classmethod
    def empty(cls, clients: int) -> Part:
        """No rounds yet."""
        none = np.zeros(clients, dtype=np.int64)  # both, until a client is drawn more than once
        return cls(0, none, none, 0)

    @classmethod
    def of(cls, line: Timeline, *, by_client: bool = True) -> Part:
        """The rounds of a timeline."""
        ticks = int(line.ends[-1]) - line.start
        taking = line.participation_counts if by_client else np.zeros(0, dtype=np.int64)
        if line.draws is None or not by_client:
            return cls(line.num_rounds, taking, taking, ticks)
        counts = np.bincount(line.client, weights=line.draws, minlength=line.num_clients).astype(np.int64)
        return cls(line.num_rounds, counts, taking, ticks)

    def joined(self, other: Part) -> Part:
        """Both, one after the other."""
        counts = self.counts + other.counts
        same = self.counts is self.taking and other.counts is other.taking
        return Part(
            self.rounds + other.rounds,
            counts,
            counts if same else self.taking + other.taking,
            self.ticks + other.ticks,
        )


MAX_ROUNDS = 1_000_000
MAX_UPDATES = 20_000_000
MAX_RANDOM_UPDATES = 5_000_000
MAX_ASKED_UPDATES = 1_000_000
MAX_AVAILABLE_UPDATES = 2_000
"""A client, of those that come and go; of all together from 10 to 150 times as many."""
_ROUNDS_AN_UPDATE = 10  # at most, of clients that come and go: they may be away for long

U64 = NDArray[np.uint64]


@dataclass(frozen=True, repr=False)
class Cycle(Shown, Brief):
    """Rounds `start` … `start + length − 1` repeat for ever.

    Example:
        >>> cycle = ft.limit_cycle(ft.FedBuff(2), ft.FixedTimes([4, 2, 1]))
        >>> cycle
        <Cycle: start 3, length 3, counts [3], duration 4, mean_delay 1/2>
        >>> print(*cycle.participation)
        1/3 2/3 1
        >>> print(cycle.rounds_per_time, "rounds in a unit of time")
        3/4 rounds in a unit of time
    """

    start: int
    length: int
    counts: I64
    """[clients] contributions in one cycle."""
    duration: Fraction
    """Time of one cycle."""
    mean_delay: Fraction
    """Mean of n − ρ_i(n) over the updates of one cycle."""

    @property
    def participation(self) -> tuple[Fraction, ...]:
        """Share of rounds in which each client takes part, exactly."""
        return tuple(Fraction(int(c), self.length) for c in self.counts)

    @property
    def rounds_per_time(self) -> Fraction:
        """Rounds in a unit of time, exactly."""
        return self.length / self.duration

    def table(self) -> pd.DataFrame:
        """A row a client: its `contributions` to a cycle, and its `share` of the rounds."""
        return frame_of(self)


@dataclass(frozen=True, repr=False)
class Observation(Brief):
    """What a run of the clock showed, from its start to its cycle's end or to the limit."""

    cycle: Cycle | None
    rounds: int
    max_delay: int
    mean_delay: float
    batch_rounds: I64
    """[batches] rounds in each of the run's consecutive parts."""
    batch_counts: I64
    """[batches, clients] contributions, draws counted."""
    batch_taking: I64
    """[batches, clients] rounds in which the client took part."""
    batch_ticks: I64
    """[batches] duration of each part."""
    unit: Fraction
    surplus: Floats | None = None
    """[batches, clients] ticks that a client was there more than is to be expected; None if that is not drawn."""


def observe(
    record: Recording, *, max_rounds: int = MAX_ROUNDS, max_updates: int | None = None, by_client: bool = True
) -> Observation:
    """Run the clock until a cycle is found, at most `max_rounds` rounds or `max_updates` updates.

    Without `by_client` contributions are not counted client by client: what is left is how stale they were.
    """
    if max_rounds < 1:
        raise InputError(f"max_rounds: {max_rounds} is below 1; give the number of rounds to look at")
    config = record.config
    known = config.rule.returns_to_contributors or config.rule.synchronous
    drawn = config.times.random or config.rule.random
    repeats = known and not drawn and config.availability is None and by_client
    states = _States(config) if repeats else None
    limit = max_updates or _most_updates(config)
    if config.availability is not None:
        max_rounds = min(max_rounds, _ROUNDS_AN_UPDATE * limit)
    tally = tally_of(config, limit, MAX_ASKED_UPDATES, by_client=by_client)
    cycle = None
    for chunk, phases in _phased(record, max_rounds, repeats):
        tally.add(chunk)
        if states is not None:
            states.add(chunk, phases)
            found = states.repetition(last=tally.rounds >= max_rounds or tally.enough)
            if found is not None and states.same_phase(*found):
                cycle = _verified(record, *found)
                if cycle is not None:
                    break
        if tally.enough:
            break
    return _observed(config, tally, cycle)


def _observed(config: ClockConfig, tally: Tally, cycle: Cycle | None) -> Observation:
    parts = tally.parts
    counts = np.array([part.counts for part in parts], dtype=np.int64)
    same = all(part.counts is part.taking for part in parts)
    return Observation(
        cycle=cycle,
        rounds=tally.rounds,
        max_delay=tally.max_delay,
        mean_delay=tally.delays / max(1, tally.updates),
        batch_rounds=np.array([part.rounds for part in parts], dtype=np.int64),
        batch_counts=counts,
        batch_taking=counts if same else np.array([part.taking for part in parts], dtype=np.int64),
        batch_ticks=np.array([part.ticks for part in parts], dtype=np.int64),
        unit=config.unit,
        surplus=surplus(config, np.cumsum([part.ticks for part in parts])) if parts else None,
    )


def _most_updates(config: ClockConfig) -> int:
    """How many updates are looked at, where no cycle is found before."""
    quick = fast_chunks(config) is not None
    if config.availability is not None:
        return MAX_AVAILABLE_UPDATES * min(max(10, config.num_clients), 150)
    if not quick:
        return MAX_ASKED_UPDATES
    if config.num_clients > MANY_CLIENTS:
        drawn = config.times.random or config.rule.random
        return (4 if drawn else 16) * config.num_clients
    return MAX_RANDOM_UPDATES if config.times.random or config.rule.random else MAX_UPDATES


def _phased(record: Recording, max_rounds: int, repeats: bool) -> Iterator[tuple[Timeline, list[int | None] | None]]:
    """Chunks with the rule's phase before each round; None in place of all where it is constant (fast generators)."""
    config = record.config
    if config.num_clients > MANY_CLIENTS and (config.rule.constant_phase or not repeats):
        yield from ((chunk, None) for chunk in stream(config, max_rounds=max_rounds))  # too long to be kept
        return
    if config.rule.constant_phase or not repeats:
        yield from ((chunk, None) for chunk in record.rounds(max_rounds))
        return
    left = max_rounds
    for chunk, phases in by_events(config):
        yield chunk[:left], phases[:left]
        left -= chunk.num_rounds
        if left <= 0:
            return


class _States:
    """Hashes of the states before each round."""

    def __init__(self, config: ClockConfig) -> None:
        period = config.times.job_period
        self._period = np.ones(config.num_clients, dtype=np.int64) if period is None else period
        counter = np.arange(3 * config.num_clients + 1, dtype=np.uint32)
        high, low = threefry(stream_key("cycle", 0), counter, np.zeros_like(counter))
        odd = (high.astype(np.uint64) << np.uint64(32)) | low | np.uint64(1)
        self._age, self._lag, self._place = odd[:-1].reshape(3, -1)
        self._phase = odd[-1]
        if config.rule.synchronous:  # nothing is out between rounds, so that jobs have no age
            self._age, self._lag = np.zeros_like(self._age), np.zeros_like(self._lag)
        self._phases: list[int | None] | None = None
        self._ends = np.zeros(1, dtype=np.int64)  # t^0, t^1, …
        self._hashes: list[U64] = []
        self._held = np.uint64(0)
        self._next_check = 0
        self._count = 0

    def add(self, chunk: Timeline, phases: list[int | None] | None) -> None:
        self._ends = np.concatenate([self._ends, chunk.ends])
        number = chunk.round_of_update
        client = chunk.client
        with np.errstate(over="ignore"):
            younger = self._age[client] * (self._ends[number + 1] - self._ends[chunk.base]).astype(np.uint64)
            nearer = self._lag[client] * (number + 1 - chunk.base).astype(np.uint64)
            period = self._period[client]
            further = self._place[client] * ((chunk.job + 1) % period - chunk.job % period).astype(np.uint64)
            steps = np.concatenate([[np.uint64(0)], np.cumsum(further - younger - nearer, dtype=np.uint64)])
            held = self._held + steps[chunk.offsets]
            self._held = held[-1]
            rounds = np.arange(chunk.first_round, chunk.first_round + chunk.num_rounds).astype(np.uint64)
            begins = self._ends[chunk.first_round : chunk.first_round + chunk.num_rounds].astype(np.uint64)
            value = held[:-1] + begins * self._age.sum() + rounds * self._lag.sum()
            if phases is not None:
                self._phases = [*(self._phases or []), *phases]
                known = [
                    2 * phase if phase is not None else 2 * n + 1 for n, phase in enumerate(phases, chunk.first_round)
                ]
                value = value + np.array(known, dtype=np.int64).astype(np.uint64) * self._phase
        self._hashes.append(value)
        self._count += chunk.num_rounds

    def same_phase(self, first: int, second: int) -> bool:
        """Whether the rule's phase before both rounds is known and the same."""
        return self._phases is None or self._phases[first] == self._phases[second] is not None

    def repetition(self, *, last: bool) -> tuple[int, int] | None:
        """(first, second): the first round before which an earlier state stands again; looked for at doubling sizes."""
        if self._count < self._next_check and not last:
            return None
        self._next_check = 2 * self._count
        hashes = np.concatenate(self._hashes)
        self._hashes = [hashes]
        order = np.argsort(hashes, kind="stable")
        again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        if not len(again):
            return None
        second = int(again.min())
        return int(np.flatnonzero(hashes[:second] == hashes[second])[0]), second


def _verified(record: Recording, first: int, second: int) -> Cycle | None:
    """The cycle between two states that seem equal, if they are; by running up to the second again."""
    config = record.config
    clients = config.num_clients
    sent, base, job = (np.zeros(clients, dtype=np.int64) for _ in range(3))
    counts = np.zeros(clients, dtype=np.int64)
    begin, duration, delays = 0, 0, 0
    found: tuple[Any, ...] = ()
    period = config.times.job_period
    assert period is not None  # only repeating times are searched
    for piece in _cut(record.rounds(second), first):
        if piece.first_round == first:
            begin = piece.start
            found = _state(config, begin - sent, first - base, job % period)
        if piece.first_round >= first:
            counts += piece.participation_counts
            delays += int(piece.staleness.sum())
        sent[piece.client] = piece.ends[piece.round_of_update - piece.first_round]
        base[piece.client] = piece.round_of_update + 1
        job[piece.client] = piece.job + 1
        duration = int(piece.ends[-1]) - begin
    now = _state(config, begin + duration - sent, second - base, job % period)
    if not all(np.array_equal(a, b) for a, b in zip(found, now, strict=True)):
        return None
    mean_delay = Fraction(delays, max(1, int(counts.sum())))
    return Cycle(first, second - first, counts, duration * config.unit, mean_delay)


def _state(config: ClockConfig, age: I64, lag: I64, place: I64) -> tuple[I64, ...]:
    return (place,) if config.rule.synchronous else (age, lag, place)


def _cut(chunks: Iterator[Timeline], number: int) -> Iterator[Timeline]:
    """The same chunks, with one that begins at round `number`."""
    for chunk in chunks:
        place = number - chunk.first_round
        if 0 < place < chunk.num_rounds:
            yield chunk[:place]
            yield chunk[place:]
        else:
            yield chunk
