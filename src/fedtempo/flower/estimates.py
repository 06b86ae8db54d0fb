"""Client times from the server's clock alone, robust and smoothed, and the participation that follows from them.

    duration of a job        T = arrival − sending
    time between updates     U = arrival − sending of the first job since the client's last update, without its rests:
                             failed tries count. U = T where none failed
    rounds between updates   R = number of the round that takes it − base of that first job + 1. For FedFix this is
                             ⌈T/Δt⌉ where none failed and the server was not late. Where a rule lets clients wait for
                             their turn, base is that of the round after the one that took the client's last update; an
                             update of k draws counts as k after R/k rounds each
    robust                   U ← min(U, b),  b = max(m + max(10·MAD, m), longest of the last 21),  m and MAD: median of
                             the last 21, and their median absolute deviation, scaled;  T ← min(T, b);  R is cut in the
                             proportion in which U is, to 1 at least
    smoothed                 x̄ ← x̄ + a·(x − x̄),  a = max(1/k, 1/20) at the k-th update: a mean of the first 20, then of
                             about the last 20
    participation            (1/Ū_i)/Σ_j(1/Ū_j) where a round takes one update;  else draws a round: 1/R̄_i

The bound leaves exponential times as they are (10 MAD is 7 means) and cuts what hangs once; what has been seen lately
is no outlier, so that a client with two speeds counts with both. The update that a round takes counts in the estimate
that weighs it. Clients that have not answered yet count with the median of those that have, in times and in examples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.events import Job, Round, Tick
from fedtempo.clock.times import Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.flower.examples import capped
from fedtempo.weighting.long_run import Participation

MEMORY = 20
_WINDOW = 21
_ENOUGH = 5
_ROWS = ("_jobs", "_taken", "_time", "_between", "_rounds", "_examples")

Clients = NDArray[np.int64]


class Estimates:
    """What has been seen of each client; rows grow with the clients."""

    def __init__(self, rule: WaitingRule, max_examples: float | None = None) -> None:
        self._rule, self._max_examples = rule, max_examples
        self._recent: dict[int, deque[Tick]] = {}
        self._since: dict[int, tuple[Tick, int]] = {}
        """(sending, base) of the first of the jobs that have failed in a row."""
        self._lost: dict[int, tuple[Tick, int]] = {}
        """Time and rounds that went by before the client was set aside."""
        self._turn: dict[int, int] = {}
        """The round after the one that took the client's last update, where clients wait for their turn."""
        self._arrived: dict[int, tuple[int, float]] = {}
        """Of updates that no round has taken yet: the base of the first try, and the share of U that the bound left."""
        self._begun: dict[int, Tick] = {}
        """When their first try was sent, less what went by in tries before a rest."""
        self._jobs: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._taken: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._time = np.zeros(0)
        self._between = np.zeros(0)
        self._rounds = np.zeros(0)
        self._examples = np.zeros(0)
        self.examples_changes = 0
        """How often what `examples` gives may have changed."""

    def _room(self, clients: int) -> None:
        if clients > len(self._jobs):
            grown = max(clients, 2 * len(self._jobs), 16)
            for name in _ROWS:
                old = getattr(self, name)
                new = np.zeros(grown, dtype=old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)

    def failed(self, job: Job) -> None:
        """A job has failed and is sent again: the client's next update counts from here."""
        self._since.setdefault(job.client, (job.sent, job.base))

    def set_aside(self, job: Job, now: Tick, version: int) -> None:
        """A job has failed and the client is to rest: its tries count, its rest does not."""
        sent, base = self._since.pop(job.client, (job.sent, job.base))
        time, rounds = self._lost.get(job.client, (0, 0))
        self._lost[job.client] = time + now - sent, rounds + version - base

    def forgive(self, client: int) -> None:
        """Start anew: the client has gone or come."""
        self._since.pop(client, None)
        self._lost.pop(client, None)

    def answered(self, job: Job, now: Tick, examples: float) -> None:
        """A job has come back."""
        client = job.client
        self._room(client + 1)
        sent, base = self._since.pop(client, (job.sent, job.base))
        time, rounds = self._lost.pop(client, (0, 0))
        between = max(now - sent + time, 1)
        recent = self._recent.get(client)
        if recent is None:
            recent = self._recent[client] = deque(maxlen=_WINDOW)
        outlier = len(recent) >= _ENOUGH and between > max(recent)  # what has been seen lately is none
        bound = _bound(recent) if outlier else between
        recent.append(between)
        self._arrived[client] = base - rounds, min(1.0, bound / between)
        self._begun[client] = sent - time
        jobs, mean, mean_between = self._jobs.item(client), self._time.item(client), self._between.item(client)
        if not jobs or self._examples.item(client) != examples:
            self.examples_changes += 1
            self._examples[client] = examples
        self._jobs[client] = jobs + 1
        gain = _gain(jobs + 1)
        self._time[client] = mean + gain * (min(max(now - job.sent, 1), bound) * 1e-9 - mean)
        self._between[client] = mean_between + gain * (min(between, bound) * 1e-9 - mean_between)

    def taken(self, job: Job, number: int) -> None:
        """Round `number` has taken an update."""
        self._room(job.client + 1)
        self._count(job, number, self._rounds, self._taken)
        self._arrived.pop(job.client, None)
        self._begun.pop(job.client, None)
        if not self._rule.returns_to_contributors:
            self._turn[job.client] = number + 1

    def _count(self, job: Job, number: int, means: Floats, taken: NDArray[np.int64]) -> None:
        """Enter R of an update."""
        client = job.client
        base, left = self._arrived.get(client, (job.base, 1.0))
        count = taken.item(client) + 1
        taken[client] = count
        if self._rule.returns_to_contributors:
            rounds = max((number - base + 1) * left, 1.0)
        else:
            rounds = (number - self._turn.get(client, 0) + 1) / job.draws
        mean = means.item(client)
        means[client] = mean + _gain(count) * (rounds - mean)

    def begun(self, job: Job) -> Tick:
        """When the client was free for the update that it has sent: failed tries count, its rests do not."""
        return self._begun.get(job.client, job.sent)

    def time(self, client: int) -> float | None:
        """Smoothed mean duration of a client's jobs in seconds; None if it has not answered."""
        self._room(client + 1)
        return float(self._time[client]) if self._jobs[client] else None

    def reported(self, client: int) -> float | None:
        """The number of examples that the client says it has; None if it has not answered."""
        self._room(client + 1)
        return float(self._examples[client]) if self._jobs[client] else None

    def examples_of(self, client: int) -> float | None:
        """The number of examples that the client counts with; None if it has not answered."""
        if self.reported(client) is None:
            return None
        known = np.flatnonzero(self._jobs)
        return float(capped(self._examples[known], self._max_examples)[np.searchsorted(known, client)])

    def times(self) -> dict[int, float]:
        """Smoothed mean durations of jobs in seconds, of the clients that have answered."""
        return {int(client): float(self._time[client]) for client in np.flatnonzero(self._jobs)}

    def intervals(self) -> dict[int, float]:
        """Smoothed mean rounds between updates, of the clients that rounds have taken updates of."""
        return {int(client): float(self._rounds[client]) for client in np.flatnonzero(self._taken)}

    def have_answered(self, who: Clients) -> bool:
        """Whether each of these clients has answered; `who` ascends."""
        self._room(_count(who))
        return bool((self._jobs[who] > 0).all())

    def contributed(self, who: Clients) -> NDArray[np.bool_]:
        """Which of these clients rounds have taken updates of; `who` ascends."""
        self._room(_count(who))
        found: NDArray[np.bool_] = self._taken[who] > 0
        return found

    def examples(self, who: Clients) -> Floats:
        """Numbers of examples that these clients count with, each capped against the others; `who` ascends."""
        self._room(_count(who))
        values, known = self._examples[who], self._jobs[who] > 0
        values[known] = capped(values[known], self._max_examples)
        return filled(values, known)

    def participation(self, who: Clients, closing: Round | None = None) -> Participation:
        """Share of rounds of each of these clients, draws counted, when this round takes its updates; `who` ascends."""
        self._room(_count(who))
        if self._rule.one_update_a_round:
            pace = 1.0 / _filled(self._between, self._jobs, who)
            return Participation(pace / pace.sum(), None, "estimate")
        means, taken = self._rounds.copy(), self._taken.copy()
        if closing is not None:
            for job in closing.jobs:
                self._count(job, closing.number, means, taken)
        return Participation(1.0 / _filled(means, taken, who), None, "estimate")

    def snapshot(self) -> dict[str, Any]:
        """All of it, as JSON, but for updates that no round has taken: they are sent again."""
        return {
            **{name[1:]: getattr(self, name).tolist() for name in _ROWS},
            "recent": [[client, *times] for client, times in self._recent.items()],
            "since": [[client, *first] for client, first in self._since.items()],
            "lost": [[client, *lost] for client, lost in self._lost.items()],
            **({"turn": list(self._turn.items())} if self._turn else {}),
        }

    def restore(self, saved: Mapping[str, Sequence[Any]]) -> None:
        """What `snapshot` gave."""
        for name in _ROWS:
            setattr(self, name, np.array(saved[name[1:]], dtype=getattr(self, name).dtype))
        self.examples_changes += 1
        self._recent = {client: deque(times, maxlen=_WINDOW) for client, *times in saved["recent"]}
        self._since = {client: (sent, base) for client, sent, base in saved["since"]}
        self._lost = {client: (time, rounds) for client, time, rounds in saved["lost"]}
        self._turn = dict(saved.get("turn", ()))


def _gain(count: int) -> float:
    """How much the latest of so many counts in a smoothed mean."""
    return max(1.0 / count, 1.0 / MEMORY)


def _count(who: Clients) -> int:
    """Room that these clients need."""
    return int(who[-1]) + 1 if len(who) else 0


def _filled(values: Floats, seen: NDArray[np.int64], who: Clients) -> Floats:
    """The values of these clients, seen so many times."""
    return filled(values[who], seen[who] > 0)


def filled(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """The known values, and the median of these in the other places; 1 if nothing at all is known."""
    if known.all():
        return values
    if not known.any():
        return np.ones(len(values))
    most = values[known].max()  # the median is a mean where there are two in the middle, which may overflow
    return np.where(known, values, float(np.median(values[known] / most)) * most)


def _bound(recent: deque[Tick]) -> Tick:
    """The longest time that is no outlier; the deviation is scaled to a normal's standard deviation."""
    ordered = sorted(recent)
    middle = ordered[len(ordered) // 2]
    deviation = sorted(abs(value - middle) for value in ordered)[len(ordered) // 2] * 14826 // 10000
    return max(middle + max(10 * deviation, middle), ordered[-1])
