"""Client times from the server's clock alone, robust and smoothed, and the participation that follows from them.

    duration of a job        T = arrival − sending
    robust                   T ← min(T, m + max(10·MAD, m)),  m and MAD: median of the last 11, and their median
                             absolute deviation, scaled
    smoothed                 x̄ ← x̄ + a·(x − x̄),  a = max(1/k, 1/20) at the k-th job: a mean of the first 20, then of
                             about the last 20
    participation            FedAvg 1;  asynchronous (1/τ̄_i)/Σ_j(1/τ̄_j);  FedFix 1/mean⌈T_i/Δt⌉;  FedBuff and other
                             rules 1/mean(staleness + 1)

The bound leaves exponential times as they are (10 MAD is 7 means) and cuts what hangs. Clients that have not answered
yet count with the median of those that have, in times and in examples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.rules import FixedInterval, WaitForAll, WaitForNext
from fedtempo.clock.times import Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.flower.clock import NANOSECOND
from fedtempo.participation import Participation

MEMORY = 20
_WINDOW = 11
_ENOUGH = 5

Clients = NDArray[np.int64]


class Estimates:
    """What has been seen of each client; rows grow with the clients."""

    def __init__(self, rule: WaitingRule) -> None:
        self._rule = rule
        self._wait = int(rule.wait // NANOSECOND) if isinstance(rule, FixedInterval) else 0
        self._recent: dict[int, deque[int]] = {}
        self._jobs: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._taken: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._time = np.zeros(0)
        self._intervals = np.zeros(0)
        self._rounds = np.zeros(0)
        self._examples = np.zeros(0)

    def _room(self, clients: int) -> None:
        if clients > len(self._jobs):
            grown = max(clients, 2 * len(self._jobs), 16)
            for name in ("_jobs", "_taken", "_time", "_intervals", "_rounds", "_examples"):
                old = getattr(self, name)
                new = np.zeros(grown, dtype=old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)

    def answered(self, client: int, duration: int, examples: float) -> None:
        """A job has come back after `duration` ticks."""
        self._room(client + 1)
        recent = self._recent.setdefault(client, deque(maxlen=_WINDOW))
        usual = duration
        if len(recent) >= _ENOUGH:
            middle, deviation = _spread(recent)
            usual = min(duration, middle + max(10 * deviation, middle))
        recent.append(duration)
        self._jobs[client] += 1
        gain = max(1.0 / int(self._jobs[client]), 1.0 / MEMORY)
        self._time[client] += gain * (usual * 1e-9 - self._time[client])
        if self._wait:
            self._intervals[client] += gain * (-(-usual // self._wait) - self._intervals[client])
        self._examples[client] = examples

    def taken(self, client: int, staleness: int) -> None:
        """A round has taken an update that was so many rounds old."""
        self._room(client + 1)
        self._taken[client] += 1
        gain = max(1.0 / int(self._taken[client]), 1.0 / MEMORY)
        self._rounds[client] += gain * (staleness + 1 - self._rounds[client])

    def times(self) -> dict[int, float]:
        """Smoothed mean durations in seconds, of the clients that have answered."""
        return {int(client): float(self._time[client]) for client in np.flatnonzero(self._jobs)}

    def intervals(self) -> dict[int, float]:
        """Smoothed means of ⌈T_i/Δt⌉."""
        return {int(client): float(self._intervals[client]) for client in np.flatnonzero(self._jobs)}

    def examples(self, who: Clients) -> Floats:
        """Numbers of examples; `who` ascends."""
        self._room(_count(who))
        return _filled(self._examples, self._jobs, who)

    def participation(self, who: Clients) -> Participation:
        """Share of rounds of each of these clients, by the rule; `who` ascends."""
        self._room(_count(who))
        match self._rule:
            case WaitForAll():
                share = np.ones(len(who))
            case WaitForNext():
                pace = 1.0 / _filled(self._time, self._jobs, who)
                share = pace / pace.sum()
            case FixedInterval():
                share = 1.0 / _filled(self._intervals, self._jobs, who)
            case _:
                share = 1.0 / _filled(self._rounds, self._taken, who)
        return Participation(share, None, "estimate")

    def snapshot(self) -> dict[str, Any]:
        """All of it, as JSON."""
        names = ("_jobs", "_taken", "_time", "_intervals", "_rounds", "_examples")
        return {
            **{name[1:]: getattr(self, name).tolist() for name in names},
            "recent": [[client, *durations] for client, durations in self._recent.items()],
        }

    def restore(self, saved: Mapping[str, Sequence[Any]]) -> None:
        """What `snapshot` gave."""
        for name, values in saved.items():
            if name == "recent":
                self._recent = {client: deque(durations, maxlen=_WINDOW) for client, *durations in values}
            else:
                setattr(self, f"_{name}", np.array(values, dtype=getattr(self, f"_{name}").dtype))


def _count(who: Clients) -> int:
    """Room that these clients need."""
    return int(who[-1]) + 1 if len(who) else 0


def _filled(values: Floats, seen: NDArray[np.int64], who: Clients) -> Floats:
    """The values of these clients; the median of the known ones where nothing is known, 1 if nothing at all is."""
    row: Floats = values[who]
    known = seen[who] > 0
    if known.all():
        return row
    fill = float(np.median(row[known])) if known.any() else 1.0
    return np.where(known, row, fill)


def _spread(recent: deque[int]) -> tuple[int, int]:
    """Median, and the median absolute deviation scaled to a normal's standard deviation."""
    ordered = sorted(recent)
    middle = ordered[len(ordered) // 2]
    deviation = sorted(abs(value - middle) for value in ordered)[len(ordered) // 2]
    return middle, deviation * 14826 // 10000
