"""What a run of the clock has shown so far: contributions by client over consecutive parts of the run, and delays.

Parts are of equal numbers of rounds; where absences repeat, of whole periods, so that no time of day counts for more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtempo.clock.setting import Setting
from fedtempo.clock.timeline import I64, Timeline

_BATCHES = 64
FEWEST_PERIODS = 4
"""Of absences that repeat: with fewer there are no parts."""


def tally_of(setting: Setting, limit: int, most: int) -> Tally:
    """For about `limit` updates; for up to `most` where periods are long."""
    availability = setting.availability
    if availability is None or availability.period is None:
        return Tally(setting, limit)
    return TallyOfPeriods(setting, limit, most, setting.ticks(availability.period))


class Tally:
    """Not too many parts, of equal numbers of rounds."""

    def __init__(self, setting: Setting, limit: int) -> None:
        self._setting, self._limit = setting, limit
        self._most = max(8, min(2 * _BATCHES, 2 * 10**7 // setting.num_clients))
        self._size = 16
        self._parts: list[Part] = []
        self._open = Part.empty(setting.num_clients)
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
                self._open = self._open.joined(Part.of(chunk[begin:stop]))
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
        self._open = Part.empty(self._setting.num_clients)
        if len(self._parts) >= self._most and len(self._parts) % 2 == 0:
            self._parts = [a.joined(b) for a, b in zip(self._parts[::2], self._parts[1::2], strict=True)]
            self._size *= 2


class TallyOfPeriods(Tally):
    """Parts of whole periods, where there are enough; what lies beyond the last whole one is left out."""

    def __init__(self, setting: Setting, limit: int, most: int, period: int) -> None:
        super().__init__(setting, limit)
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
        none = np.zeros(clients, dtype=np.int64)
        return cls(0, none, none, 0)

    @classmethod
    def of(cls, line: Timeline) -> Part:
        """The rounds of a timeline."""
        counts = np.bincount(line.client, weights=line.draws, minlength=line.num_clients).astype(np.int64)
        return cls(line.num_rounds, counts, line.participation_counts, int(line.ends[-1]) - line.start)

    def joined(self, other: Part) -> Part:
        """Both, one after the other."""
        return Part(
            self.rounds + other.rounds,
            self.counts + other.counts,
            self.taking + other.taking,
            self.ticks + other.ticks,
        )
