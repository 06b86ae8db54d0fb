"""Who contributed to which round, from which model version: t^n, S_n and ρ_i(n), as flat arrays.

Updates are listed round by round, by client inside a round. Delay of an update: n − ρ_i(n).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo import display
from fedtempo.display import Shown, frame_of
from fedtempo.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedtempo.clock.config import ClockConfig

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


class TimelineRound(NamedTuple):
    """One round of a timeline, with exact times."""

    number: int
    start: Fraction
    end: Fraction
    participants: tuple[int, ...]
    base_versions: tuple[int, ...]
    draws: tuple[int, ...]


@dataclass(frozen=True)
class Origin:
    """What a timeline was made from: enough to draw it."""

    config: ClockConfig
    label: str
    """The scheme's name."""
    until: Fraction | None = None
    """The time that was asked for, where the timeline goes on to it."""


@dataclass(frozen=True, eq=False)
class Timeline(Shown):
    """Rounds `first_round` … `first_round + num_rounds − 1` of a run, ragged by offsets.

    Example:
        >>> line = ft.timeline(ft.AsyncFedAvg(), ft.FixedTimes([4, 2, 1]), until=4)
        >>> line
        Timeline(7 rounds, 7 updates of 3 clients, time 0 to 4)
        >>> line.client, line.base
        (array([2, 1, 2, 2, 0, 1, 2], dtype=int32), array([0, 0, 1, 3, 0, 2, 4], dtype=int32))
        >>> later = line[2:5]  # rounds 2 to 4
        >>> later.table()[["round", "round_end", "client", "delay"]]
           round  round_end  client  delay
        0      2        2.0       2      1
        1      3        3.0       2      0
        2      4        4.0       0      4
    """

    unit: Fraction
    num_clients: int
    ends: I64
    """[rounds] t^{n+1} in ticks."""
    offsets: I64
    """[rounds + 1] where each round's updates begin."""
    client: I32
    """[updates] i."""
    base: I32
    """[updates] ρ_i(n), the version that the update started from."""
    job: I32
    """[updates] the client's job number."""
    draws: I32 | None = None
    """[updates] how often the client was drawn for this job; None: once."""
    first_round: int = 0
    start: int = 0
    """t^n of the first round, in ticks."""
    origin: Origin | None = None
    """What `plot` needs beside the rounds; None where it is not known. It makes no timelines equal or different."""

    @property
    def label(self) -> str:
        """Of the scheme; empty where it is not known."""
        return "" if self.origin is None else self.origin.label

    @property
    def num_rounds(self) -> int:
        """N, empty rounds included."""
        return len(self.ends)

    @property
    def num_updates(self) -> int:
        """Client updates taken by these rounds."""
        return len(self.client)

    def __len__(self) -> int:
        return self.num_rounds

    def __getitem__(self, which: slice) -> Timeline:
        """Rounds by position: ``line[10:20]``; numbers and times stay those of the whole run."""
        if getattr(which, "step", 0) not in (None, 1):
            raise TypeError("a timeline is sliced by rounds, as line[10:20]; for one round use line.rounds")
        begin, stop, _ = which.indices(self.num_rounds)
        stop = max(begin, stop)
        updates = slice(int(self.offsets[begin]), int(self.offsets[stop]))
        return Timeline(
            unit=self.unit,
            num_clients=self.num_clients,
            ends=self.ends[begin:stop],
            offsets=self.offsets[begin : stop + 1] - self.offsets[begin],
            client=self.client[updates],
            base=self.base[updates],
            job=self.job[updates],
            draws=None if self.draws is None else self.draws[updates],
            first_round=self.first_round + begin,
            start=self.start if begin == 0 else int(self.ends[begin - 1]),
            origin=self.origin if self.origin is None or stop == self.num_rounds else replace(self.origin, until=None),
        )

    def up_to(self, tick: int) -> Timeline:
        """The rounds that end at or before `tick`."""
        return self[: int(np.searchsorted(self.ends, tick, side="right"))]

    @property
    def rounds(self) -> Iterator[TimelineRound]:
        """The rounds, one by one, with exact times."""
        begin = self.start
        for n, end in enumerate(self.ends.tolist()):
            part = slice(int(self.offsets[n]), int(self.offsets[n + 1]))
            clients = tuple(self.client[part].tolist())
            yield TimelineRound(
                number=self.first_round + n,
                start=begin * self.unit,
                end=end * self.unit,
                participants=clients,
                base_versions=tuple(self.base[part].tolist()),
                draws=(1,) * len(clients) if self.draws is None else tuple(self.draws[part].tolist()),
            )
            begin = end

    @property
    def round_of_update(self) -> I64:
        """[updates] n, the round that took the update."""
        return np.repeat(np.arange(self.num_rounds, dtype=np.int64) + self.first_round, np.diff(self.offsets))

    @property
    def staleness(self) -> I64:
        """[updates] n − ρ_i(n)."""
        return self.round_of_update - self.base

    @property
    def participation_counts(self) -> I64:
        """[clients] in how many rounds each client took part."""
        return np.bincount(self.client, minlength=self.num_clients)

    @property
    def duration(self) -> Fraction:
        """Time from the start of the first round to the end of the last."""
        return (int(self.ends[-1]) - self.start) * self.unit if self.num_rounds else Fraction(0)

    @property
    def live_versions(self) -> I64:
        """[rounds] how many made versions are still the base of an update taken in that round or later."""
        last = self.first_round + self.num_rounds
        oldest = int(self.base.min()) if self.num_updates else last
        span = last - min(oldest, self.first_round) + 1
        begin = last - span + 1
        last_use = np.full(span, -1, dtype=np.int64)
        np.maximum.at(last_use, self.base - begin, self.round_of_update)
        used = np.flatnonzero(last_use >= 0)
        change = np.zeros(span + 1, dtype=np.int64)
        np.add.at(change, used, 1)
        np.add.at(change, last_use[used] - begin + 1, -1)
        return np.cumsum(change)[self.first_round - begin : last - begin]

    def validate(self) -> None:
        """Check what every timeline must satisfy; the first breach is an InputError that names it."""
        _refuse(len(self.offsets) != self.num_rounds + 1, "there must be one more offset than rounds")
        _refuse(self.offsets[0] != 0 or (np.diff(self.offsets) < 0).any(), "offsets must start at 0 and not decrease")
        _refuse(self.offsets[-1] != self.num_updates, "the last offset must be the number of updates")
        _refuse((np.diff(self.ends) < 0).any(), "rounds must not end before their predecessors")
        _refuse(self.num_rounds and self.ends[0] < self.start, "the first round ends before it starts")
        out_of_range = (self.client < 0) | (self.client >= self.num_clients)
        _refuse(out_of_range.any(), f"clients must lie in 0 … {self.num_clients - 1}")
        number = self.round_of_update
        _refuse(((self.base < 0) | (self.base > number)).any(), "a base version must exist when its round starts")
        same_round = np.diff(number) == 0
        _refuse((np.diff(self.client)[same_round] <= 0).any(), "inside a round clients must ascend, each once")
        order = np.argsort(self.client, kind="stable")
        same_client = np.diff(self.client[order]) == 0
        _refuse((np.diff(self.job[order])[same_client] < 1).any(), "a client's job numbers must rise")
        _refuse(
            (self.base[order][1:] <= number[order][:-1])[same_client].any(),
            "a client's job must start from a version made after its last contribution",
        )

    def equals(self, other: Timeline) -> bool:
        """Whether both hold the same rounds at the same exact times."""
        same = (self.unit, self.num_clients, self.first_round, self.start) == (
            other.unit,
            other.num_clients,
            other.first_round,
            other.start,
        )
        ones = (self.draws is None or bool((self.draws == 1).all())) and (
            other.draws is None or bool((other.draws == 1).all())
        )
        draws_agree = ones or (
            self.draws is not None and other.draws is not None and np.array_equal(self.draws, other.draws)
        )
        arrays = ("ends", "offsets", "client", "base", "job")
        return same and draws_agree and all(np.array_equal(getattr(self, a), getattr(other, a)) for a in arrays)

    @classmethod
    def joined(cls, parts: Iterable[Timeline]) -> Timeline:
        """Consecutive parts of one run as one timeline."""
        first: Timeline | None = None
        grown: dict[str, _Growing] = {}
        updates = 0
        for part in parts:
            if first is None:
                first = part[:0]
                grown["offsets"] = _Growing(np.zeros(1, dtype=np.int64))
            for name in ("ends", "client", "base", "job", "draws"):
                if (array := getattr(part, name)) is not None:
                    grown.setdefault(name, _Growing(array[:0])).append(array)
            grown["offsets"].append(part.offsets[1:] + updates)
            updates += part.num_updates
        if first is None:
            raise InputError("no timelines to join; give at least one")
        arrays: dict[str, Any] = {name: array.done() for name, array in grown.items()}
        return cls(
            unit=first.unit,
            num_clients=first.num_clients,
            first_round=first.first_round,
            start=first.start,
            origin=first.origin,
            **arrays,
        )

    def table(self) -> pd.DataFrame:
        """A row an update: `round`, `round_start`, `round_end`, `client`, `job`, `base_version`, `delay`, `draws`.

        Rounds without updates have no row.
        """
        return frame_of(self)

    def plot(self, path: str | Path | None = None, *, style: str = "light") -> Figure:
        """Who works when: a lane a client, or thin rows and the throughput of more than 20; with `path` also a file.

        The ending of `path` says whether it is SVG, PNG or PDF; `style` is light or dark. What ``ft.timeline`` and
        ``ft.timeline_chunks`` make can be drawn, and slices of it.
        """
        return display.timeline_figure(self, path=path, style=style)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.num_rounds} rounds, {self.num_updates} updates of {self.num_clients} clients, "
            f"time {float(self.start * self.unit):g} to {float(self.start * self.unit + self.duration):g})"
        )


def by_client(client: NDArray[Any], num_clients: int) -> tuple[I64, I64, I64]:
    """The order by client that keeps each client's entries in order, entries per client, and each one's place there."""
    short = client.astype(np.uint16) if num_clients <= 1 << 16 else client  # sorted by digits, in a tenth of the time
    order = np.argsort(short, kind="stable")
    counts = np.bincount(client, minlength=num_clients)
    place = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order, counts, place


def _refuse(wrong: object, law: str) -> None:
    if wrong:
        raise InputError(f"not a timeline: {law}")


class _Growing:
    """An array that grows in place, so that joining many parts does not hold everything twice."""

    def __init__(self, begin: NDArray[Any]) -> None:
        self._held = begin.copy()
        self._size = len(begin)

    def append(self, part: NDArray[Any]) -> None:
        need = self._size + len(part)
        if need > len(self._held):
            self._held.resize(max(need, len(self._held) * 5 // 4), refcheck=False)
        self._held[self._size : need] = part
        self._size = need

    def done(self) -> NDArray[Any]:
        self._held.resize(self._size, refcheck=False)
        return self._held
