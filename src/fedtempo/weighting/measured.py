"""Weights from what is seen as training goes on, without knowing the clients' times: the same here and on Flower.

    interval    V = when a round takes a client's update − when the client was free for it (its last update was taken)
    mean        V̂ ← V̂ + a (V − V̂),  a = max(2/k, 1/20) at the client's k-th update: the first is forgotten with the
                second, and the j-th counts (j − 1)-fold; then a mean of about the last 20
    robust      V ← min(V, b),  b = 4 V̂ up to the fifth update, then max(m + max(10·MAD, m), longest of the last 21),
                m and MAD: median of the last 21, and their median absolute deviation, scaled to a normal's
    first       a client's first interval counts at most as the median of the others' V̂: one late first answer says
                little of its client, and its next answer will
    weight      measured:   d_i = p_i R̂_i,  R̂_i = min(V̂_i, `max_weight` × V̂_i before) / D̄,  D̄ the mean length of a round
                own-time:   ω_i = p_i min(V + debt_i, `max_weight` × V̂_i before) / D̄; the rest is the client's debt,
                which its next updates settle
    step        stable: ω_i = p_i R̂_i / Σ_j p_j R̂_j, so that one update of every client together weighs 1, and none more
                proven: 2/(W + Γ) as in steps.py, with the largest Γ that was seen

Both are unbiased in the long run: between two updates of a client lies V, and it counts p V. The mean makes the smaller
jumps where times are random. Debts stay bounded because the cap is above the mean.

Clients that have not answered count as the median, or as the time that they have been silent if that is longer; when
they have been silent for 3 times the longest V̂ they count for nothing, until they answer. What such a client sends
first is weighed among all that are there, so that the first updates of all together weigh 1 at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.importance import Importance
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.weighting.weight_rules import TimeBased, Tracker, WeightRule

if TYPE_CHECKING:
    from fedtempo.weighting.long_run import LongRun, Participation

MEMORY = 20
"""About how many updates a mean remembers."""
ROUNDS_REMEMBERED = 200
_WINDOW = 21
_ENOUGH = 5
_EARLY = 4.0
_SILENT = 3.0
_ROWS = ("count", "mean", "used", "debt")

Clients = NDArray[np.int64]


class Taken(NamedTuple):
    """An update that a round takes."""

    client: int
    interval: float
    """V, in any unit of time."""


class Intervals:
    """V̂ of every client; rows grow with the clients."""

    def __init__(self, max_weight: float = 2.0, *, own: bool = False) -> None:
        """`own`: an update counts by its own V, up to the cap, and leaves a debt."""
        self._cap, self._own = max_weight, own
        self._recent: dict[int, deque[float]] = {}
        self._since = np.zeros(0)
        """When a client that has not answered was first sent a job; infinite where it was not."""
        self.count: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.mean = np.zeros(0)
        self.used = np.zeros(0)
        """What the client's last update counted as; in a mean, what its weight follows from."""
        self.debt = np.zeros(0)
        self.round_length = 0.0
        self._rounds = 0
        self._answered: tuple[Clients, Clients | slice] | None = None
        """Clients that have all answered, and where their rows are: the same from round to round, mostly."""

    def _room(self, clients: int) -> None:
        if clients > len(self.count):
            grown = max(clients, 2 * len(self.count), 16)
            for name in _ROWS:
                old = getattr(self, name)
                new = np.zeros(grown, dtype=old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
            self._since = np.concatenate([self._since, np.full(grown - len(self._since), np.inf)])

    def begin(self, client: int, now: float) -> None:
        """The client is sent a job; the first time counts."""
        self._room(client + 1)
        if not self.count[client] and now < self._since[client]:
            self._since[client] = now

    def leave(self, client: int) -> float:
        """The client is gone; the debt that is dropped."""
        if client >= len(self.debt):
            return 0.0
        self._since[client] = np.inf
        dropped, self.debt[client] = float(self.debt[client]), 0.0
        return dropped

    def close(self, length: float, taken: Sequence[Taken]) -> list[bool]:
        """A round of this length takes these updates; of which it was the client's first."""
        self._rounds += 1
        self.round_length += (length - self.round_length) * max(1.0 / self._rounds, 1.0 / ROUNDS_REMEMBERED)
        if not taken:
            return []
        self._room(max(update.client for update in taken) + 1)
        middle = np.inf
        if not all(self.count[update.client] for update in taken):
            known = self.mean[self.count > 0]
            middle = float(np.median(known)) if known.any() else np.inf
        return [self._take(client, interval, middle) for client, interval in taken]

    def _take(self, client: int, interval: float, middle: float) -> bool:
        before, number = self.mean.item(client), self.count.item(client) + 1
        recent = self._recent.get(client)
        if recent is None:
            recent = self._recent[client] = deque(maxlen=_WINDOW)
        self.count[client] = number
        if number == 1:
            self._since[client] = np.inf
            cap = middle if np.isfinite(middle) else interval
            self.mean[client] = min(interval, middle)
        else:
            seen = interval
            if len(recent) < _ENOUGH:
                seen = min(interval, _EARLY * before)
            elif interval > max(recent):  # what has been seen lately is no outlier
                seen = min(interval, _bound(recent))
            self.mean[client] += max(2.0 / number, 1.0 / MEMORY) * (seen - before)
            cap = self._cap * before
        recent.append(interval)
        if self._own:
            due = interval + float(self.debt[client])
            self.used[client] = min(due, cap)
            self.debt[client] = due - self.used[client]
        else:
            self.used[client] = min(self.mean.item(client), cap)
        return number == 1

    def of(self, who: Clients, now: float) -> tuple[Floats, NDArray[np.bool_] | None]:
        """V̂ of these clients, not to be written to, and which of them count (None: all); `who` ascends."""
        if len(who):
            self._room(int(who[-1]) + 1)
        rows = self.mean if self._own else self.used
        if self._answered is not None and self._answered[0] is who:
            return rows[self._answered[1]], None
        known = self.count[who] > 0
        if known.all():
            numbered = len(who) > 0 and int(who[-1]) == len(who) - 1  # 0, 1, 2, …: a part of the rows, not a copy
            self._answered = who, slice(0, len(who)) if numbered else who
            return rows[who], None
        if not known.any():
            return np.ones(len(who)), None
        silent = now - np.minimum(self._since[who[~known]], now)
        longest = float(self.mean[who][known].max())
        values = rows[who]
        values[~known] = np.maximum(silent, float(np.median(values[known])))
        counting = known.copy()
        counting[~known] = silent <= _SILENT * longest
        return values, None if counting.all() else counting

    def owe(self, client: int, share: float) -> None:
        """An update counted for `share` of what it was to count: the rest is owed, where debts are kept."""
        if self._own:
            self.debt[client] += (1.0 - share) * self.used[client]

    def snapshot(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            **{name: getattr(self, name).tolist() for name in _ROWS},
            "recent": [[client, *seen] for client, seen in self._recent.items()],
            "since": [[int(client), float(self._since[client])] for client in np.flatnonzero(np.isfinite(self._since))],
            "round_length": self.round_length,
            "rounds": self._rounds,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """What `snapshot` gave."""
        for name in _ROWS:
            setattr(self, name, np.array(saved[name], dtype=getattr(self, name).dtype))
        self._recent = {client: deque(seen, maxlen=_WINDOW) for client, *seen in saved["recent"]}
        self._since = np.full(len(self.count), np.inf)
        for client, since in saved["since"]:
            self._since[client] = since
        self.round_length, self._rounds = saved["round_length"], saved["rounds"]
        self._answered = None


def _bound(recent: deque[float]) -> float:
    """The longest interval that is no outlier, of those longer than all of these."""
    ordered = sorted(recent)
    middle = ordered[len(ordered) // 2]
    deviation = 1.4826 * sorted(abs(value - middle) for value in ordered)[len(ordered) // 2]
    return max(middle + max(10.0 * deviation, middle), ordered[-1])


class OnlineWeights:
    """ω_i(n), round after round, of whoever hosts the clients: the simulator's clock, or Flower."""

    def __init__(self, rule: WeightRule, step: str, max_weight: float = 2.0, *, own: bool = False) -> None:
        """`rule` makes weights of shares; `own`: see `Intervals`."""
        from fedtempo.weighting.long_run import Participation  # which imports weight rules

        self._participation = Participation
        self._rule, self._name, self._own = rule, step, own
        self.intervals = Intervals(max_weight, own=own)
        self.step = 1.0
        """The server's step of the last round."""
        self._applied = 0.0
        """Σ d_i of all updates so far, and what it was when each client's last update was taken."""
        self._mark: dict[int, float] = {}
        self._overlap = 0.0
        """The most weight that others have applied during one job."""
        self._end = 0.0
        """When the last round ended."""
        self._given: tuple[Floats, Importance] | None = None
        """Values, and the p_i that they make: the same from round to round, mostly."""

    def pass_by(self, now: float) -> None:
        """A round without updates ends."""
        self.intervals.close(now - self._end, ())
        self._end = now

    def close(self, now: float, taken: Sequence[Taken], who: Clients, values: Floats) -> tuple[Floats, Floats]:
        """ω_i of the updates of a round that ends now, and what they would be at the stable step.

        `who` is there, ascending, with v_i = `values`, to which p_i are proportional.
        """
        first = self.intervals.close(now - self._end, taken)
        self._end = now
        between, counting = self.intervals.of(who, now)
        at = who.searchsorted([update.client for update in taken])
        d, stable, step = self._vector(values, between, counting)
        if counting is not None and any(first):
            d_all, stable_all, step_all = self._vector(values, between)
            new = np.array(first)
            raw = np.where(new, d_all[at], d[at])
            even = np.where(new, stable_all, stable) * raw
            weights = np.where(new, step_all, step) * raw
        else:
            raw = d[at]
            even, weights = stable * raw, step * raw
        self.step = step
        if self._own:
            factor = self.intervals.used[who[at]] / between[at]
            most = np.minimum(1.0, 1.0 / np.maximum(even * factor, 1e-300))  # none above 1 at the stable step
            for update, part in zip(taken, most.tolist(), strict=True):
                self.intervals.owe(update.client, part)
            raw, even, weights = (part * factor * most for part in (raw, even, weights))
        self._note(taken, raw)
        return weights, even

    def _vector(
        self, values: Floats, between: Floats, counting: NDArray[np.bool_] | None = None
    ) -> tuple[Floats, float, float]:
        """d_i of those who count (all, or these; 0 of the others), the stable step, and the step that is asked for."""
        length = self.intervals.round_length or 1.0
        if counting is not None:
            values, between = values[counting], between[counting]
        share = length / between
        if self._given is None or self._given[0] is not values:
            self._given = values, Importance.of(values)
        given = self._given[1]
        base, _ = self._rule.base(given, self._participation(share, None, "estimate"))
        d = base
        if counting is not None:
            d = np.zeros(len(counting))
            d[counting] = base
        total = float(np.add.reduce(base))
        stable = float(np.add.reduce(base * share)) / total
        if self._name == "stable":
            return d, stable, stable
        if self._name == "paper":
            return d, stable, 1.0
        overlap = max(self._overlap, float(((1.0 - given.values) / share).max()))
        return d, stable, min(stable, 2.0 / (total + overlap))

    def _note(self, taken: Sequence[Taken], raw: Floats) -> None:
        """How much weight others have applied while each of these jobs was out."""
        before = self._applied
        self._applied += float(np.add.reduce(raw))
        for update in taken:
            self._overlap = max(self._overlap, before - self._mark.get(update.client, 0.0))
            self._mark[update.client] = self._applied

    def snapshot(self) -> dict[str, Any]:
        """All of it, as JSON."""
        more = {"applied": self._applied, "mark": list(self._mark.items()), "overlap": self._overlap, "step": self.step}
        return {"intervals": self.intervals.snapshot(), "end": self._end, **more}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """What `snapshot` gave."""
        self.intervals.restore(saved["intervals"])
        self._applied, self._overlap, self.step = saved["applied"], saved["overlap"], saved["step"]
        self._end = saved["end"]
        self._mark = dict(saved["mark"])


@dataclass(frozen=True)
class Measured(WeightRule):
    """p_i / participation_i as it is measured while training goes on: what a server on Flower does without times."""

    max_weight: float = 2.0
    """How many times what its client counted as before an update may count as."""
    step: str = field(default="paper", repr=False)
    """Worked out as training goes on, too."""
    name = "measured"
    own = False

    def __post_init__(self) -> None:
        given: object = self.max_weight
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 < given < float("inf"):
            raise InputError(
                f"max_weight: {given!r} is not allowed: weights could not follow clients that become slower; give a "
                "number above 1, as 2"
            )

    @property
    def label(self) -> str:
        return self.name if self.max_weight == 2 else f"{self.name}, at most {self.max_weight:g}-fold"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        """What the weights tend to."""
        return TimeBased().base(importance, participation)

    def check(self, run: LongRun) -> None:
        if not run.rule.returns_to_contributors:
            raise InputError(
                f"{self.label}: {run.rule!r} samples clients, and how often it does so is known ahead; use time-based "
                "weights"
            )

    def online(self, rule: WeightRule | None = None) -> OnlineWeights:
        """The weights of one training; `rule` makes them of shares, in place of time-based ones."""
        return OnlineWeights(rule or TimeBased(), self.step, self.max_weight, own=self.own)

    def tracker(self, importance: Importance, num_clients: int) -> Tracker:
        return _Follower(self.online(), importance, num_clients).weights

    def stepping(self, step: str) -> WeightRule:
        return replace(self, step=step)

    def assured(self, importance: Importance) -> Floats | None:
        """What it tends to in the long run."""
        return importance.values


@dataclass(frozen=True)
class OwnTime(Measured):
    """Each update counts by the time that it took itself, up to a cap; the rest is settled by its client's next ones.

    It follows clients whose speed changes at once, and makes larger jumps than the mean where times are random.
    """

    name = "own-time"
    own = True


def measured_of(rule: WeightRule) -> Measured | None:
    """The measured rule that this one is, or is made of; None if it is none."""
    inner = getattr(rule, "rule", None)
    if isinstance(rule, Measured):
        return rule
    return measured_of(inner) if isinstance(inner, WeightRule) else None


class _Follower:
    """Shows a timeline's rounds to `OnlineWeights`."""

    def __init__(self, online: OnlineWeights, importance: Importance, clients: int) -> None:
        self._online, self._values, self._who = online, importance.values, np.arange(clients)
        self._free = np.zeros(clients, dtype=np.int64)
        for client in range(clients):
            online.intervals.begin(client, 0.0)

    def weights(self, line: Timeline) -> Floats:
        unit, out = float(line.unit), np.empty(line.num_updates)
        for number, end in enumerate(line.ends.tolist()):
            begin, stop = int(line.offsets[number]), int(line.offsets[number + 1])
            clients = line.client[begin:stop].tolist()
            if not clients:
                self._online.pass_by(end * unit)
                continue
            taken = [Taken(client, (end - int(self._free[client])) * unit) for client in clients]
            out[begin:stop] = self._online.close(end * unit, taken, self._who, self._values)[0]
            self._free[clients] = end
        return out
