"""d_i, the weights of a scheme's clients (section 2.3), and q_i, what they amount to over a run (section 2.4).

    ω_i(n) = step × d_i × draws × s(n − ρ_i(n))        q_i = d_i × participation_i × mean of s

d_i are `weights`, ω_i(n) is the applied weight, q_i the expected weight; weight_rules.py has the rules for d_i,
steps.py the server's step, which is 1 in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import text
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.display import Shown, frame_of
from fedtempo.errors import InputError
from fedtempo.weighting.long_run import LongRun, Participation, during, of_all
from fedtempo.weighting.steps import step_of
from fedtempo.weighting.weight_rules import (
    Tracker,
    WeightRule,
)

if TYPE_CHECKING:
    import pandas as pd

_LONG_RUN = 2_000_000
"""About how many updates stand for the long run of weights that change with what has happened."""


@dataclass(frozen=True, eq=False)
class Weights(Sequence[Fraction | float], Shown):
    """d_i, client by client: rationals where they are known exactly, else floats. ``np.asarray(w)`` gives floats.

    A scheme with stages has a set of weights a stage: ``w.stage(k)``. Weights that follow from the rounds are known for
    a timeline only: ``w.applied(line)``; `values` are then what a contribution weighs in the long run, where known.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> d = ft.weights(ft.FedFix(1), times)
        >>> print(*d)
        4/3 2/3 1/3
        >>> np.asarray(d)
        array([1.33333333, 0.66666667, 0.33333333])
        >>> d.applied(ft.timeline(ft.FedFix(1), times, until=2))  # of clients 2, then 1 and 2
        array([0.33333333, 0.66666667, 0.33333333])
        >>> d.table()
           stage  client    weight  step
        0      0       0  1.333333   1.0
        1      0       1  0.666667   1.0
        2      0       2  0.333333   1.0
    """

    values: Floats
    """[stages, clients]"""
    exact: tuple[tuple[Fraction, ...] | None, ...]
    first_rounds: tuple[int, ...]
    """The round with which each stage begins."""
    rule: WeightRule
    importance: Importance | None = None
    """p_i, for rules whose weights follow from the rounds."""
    first_times: tuple[Fraction, ...] | None = None
    """The time with which each stage begins, where clients come or go for good; `first_rounds` is then empty."""
    steps: tuple[float, ...] | None = None
    """The server's step in each stage; None: 1."""

    @property
    def num_stages(self) -> int:
        """1, unless the scheme has stages."""
        return len(self.values)

    def stage(self, number: int) -> Weights:
        """The weights of one stage."""
        one = replace(self, values=self.values[[number]], exact=(self.exact[number],), first_rounds=(0,))
        return replace(one, first_times=None, steps=None if self.steps is None else (self.steps[number],))

    @property
    def tracked(self) -> bool:
        """Whether the weights follow from who has taken part in the rounds so far."""
        return self._tracker() is not None

    def _tracker(self) -> Tracker | None:
        track = self.rule.tracker(self.importance or Importance(None, len(self)), len(self))
        if track is not None and self.importance is None:
            raise InputError(
                f"{self.rule.label}: these weights need each client's importance; make them with ft.weights"
            )
        return track

    def _only(self) -> tuple[Floats, tuple[Fraction, ...] | None]:
        if self.tracked:
            raise InputError(f"{self.rule.label}: these weights depend on the rounds; use .applied(timeline)")
        if self.num_stages > 1:
            raise InputError("these weights change with the stage; use .stage(k) or .applied(timeline)")
        return self.values[0], self.exact[0]

    def __len__(self) -> int:
        return int(self.values.shape[1])

    @overload
    def __getitem__(self, index: int) -> Fraction | float: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Fraction | float, ...]: ...
    def __getitem__(self, index: int | slice) -> Fraction | float | tuple[Fraction | float, ...]:
        values, rational = self._only()
        return (rational if rational is not None else tuple(values.tolist()))[index]

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float64]:
        values, _ = self._only()
        return np.array(values, dtype=dtype)  # type: ignore[call-overload, no-any-return]

    def applied(self, line: Timeline) -> Floats:
        """ω_i(n) of every update of a timeline: step and d_i of its stage × draws × discount."""
        if line.first_round and self.tracked:
            raise InputError(
                f"{self.rule.label}: these weights depend on all rounds since the first, but the timeline begins with "
                f"round {line.first_round}; give the whole timeline and cut the weights, or use .applier()"
            )
        return self.applier()(line)

    def applier(self) -> Tracker:
        """ω_i(n) of every update of the parts of a run, which it must be given in order, from round 0 on."""
        track = self._tracker()
        if track is None:
            return self._constant
        due = 0

        def apply(line: Timeline) -> Floats:
            nonlocal due
            if line.first_round != due:
                raise InputError(
                    f"{self.rule.label}: rounds from {line.first_round} on were given where round {due} was expected; "
                    "give all parts of a run in order"
                )
            due += line.num_rounds
            return track(line) * self._factor(line) * (1.0 if self.steps is None else self.steps[-1])

        return apply

    def _constant(self, line: Timeline) -> Floats:
        stage = self._stage_of(line)
        weights = self.values[stage, line.client] * self._factor(line)
        return weights if self.steps is None else weights * np.array(self.steps)[stage]

    def _stage_of(self, line: Timeline) -> NDArray[np.int64]:
        """[updates] the stage of the round that took each."""
        number = line.round_of_update
        if self.first_times is None:
            return np.searchsorted(np.array(self.first_rounds), number, side="right") - 1
        begins = np.array([int(begin // line.unit) for begin in self.first_times])
        return np.searchsorted(begins, line.ends[number - line.first_round], side="left") - 1

    def _factor(self, line: Timeline) -> Floats:
        return self.rule.discount(line.staleness) * (1 if line.draws is None else line.draws)

    def table(self) -> pd.DataFrame:
        """A row a client and stage: `stage`, `client`, its `weight` d_i and the server's `step`."""
        return frame_of(self)

    def __repr__(self) -> str:
        if self.tracked:
            return f"Weights({self.rule.label}, {len(self)} clients)"
        if self.num_stages > 1:
            return f"Weights({self.num_stages} stages, {len(self)} clients)"
        shown = [text(w) if isinstance(w, Fraction) else f"{w:.6g}" for w in self[:6]]
        return f"Weights([{', '.join(shown)}{', …' if len(self) > 6 else ''}])"


def weights_of(
    waiting: WaitingRule, run: LongRun, rule: WeightRule, *, label: str | None = None, step: str = "paper"
) -> Weights:
    """d_i of a waiting rule whose long run is known; `label` is what messages call its scheme."""
    rule.check(run)
    own = rule.stepping(step)
    if own is not None:
        rule, step = own, "paper"
    availability = run.times.availability
    changing = availability is not None and availability.changes
    if changing and rule.tracker(run.importance, run.times.num_clients) is None:
        return _by_stretch(waiting, run, rule, step)
    if waiting.by_training:
        found = [_unforeseen(waiting, run, rule, label or repr(waiting))]
        if step != "paper" and not waiting.synchronous:
            raise InputError(
                f"step: how often {label or repr(waiting)} chooses a client depends on the trained models, so its "
                "staleness is not known ahead; give step='paper', and a server_lr"
            )
        return _stacked(found, (0,), rule, run, None)
    stages = waiting.in_stages()
    runs = (
        [run] if len(stages) == 1 else [LongRun(rule_of, run.times, run.importance, run.seed) for _, rule_of in stages]
    )
    found = [_base(rule, one) for one in runs]
    first_rounds = tuple(first for first, _ in stages) if len(stages) > 1 else (0,)
    return _stacked(found, first_rounds, rule, run, _steps(step, zip(runs, found, strict=True)))


_Base = tuple[Floats, tuple[Fraction, ...] | None]


def _stacked(
    found: Sequence[_Base],
    first_rounds: tuple[int, ...],
    rule: WeightRule,
    run: LongRun,
    steps: tuple[float, ...] | None,
) -> Weights:
    values = np.array([values for values, _ in found])
    return Weights(values, tuple(exact for _, exact in found), first_rounds, rule, run.importance, steps=steps)


def _steps(step: str, stages: Iterable[tuple[LongRun, _Base]]) -> tuple[float, ...] | None:
    """The server's step in each stage; None where it is 1 in all."""
    found = () if step == "paper" else tuple(step_of(step, run, values) for run, (values, _) in stages)
    return None if all(one == 1.0 for one in found) else found


def _base(rule: WeightRule, run: LongRun) -> _Base:
    return rule.base(run.importance, run.participation)


def _unforeseen(waiting: WaitingRule, run: LongRun, rule: WeightRule, label: str) -> _Base:
    """d_i where nobody knows ahead who will be chosen; but maybe how many."""
    clients = run.times.num_clients
    if rule.tracker(run.importance, clients) is not None:
        return np.full(clients, np.nan), None
    draws = waiting.draws_a_round(clients)
    if rule.needs_shares or draws is None:
        raise InputError(
            f"{label}: how often it chooses a client depends on the trained models, so its {rule.label} weights are "
            f"not known ahead; cure it, as ft.CuredSampling({label}, window=8, biased=2), or give weights='identical' "
            "to see the bias"
        )
    each = draws / clients
    return rule.base(run.importance, Participation(np.full(clients, float(each)), (each,) * clients, "closed form"))


MAX_STRETCHES = 100
"""Up to how many stretches of time with the same clients weights are worked out for."""


def _by_stretch(waiting: WaitingRule, run: LongRun, rule: WeightRule, step: str) -> Weights:
    """d_i where clients join or leave for good, for each stretch of time k in which the same clients P_k are there.

        p_i^k = p_i/Σ_{j∈P_k} p_j,   participation_i^k that of P_k alone,   d_i^k from both

    Over a stretch that is long against the clients' times, those who are there count by their importance. A client that
    has left keeps its last weight, for an update that still waits for its round. A round belongs to the stretch in
    which it ends.
    """
    availability = run.times.availability
    assert availability is not None
    stretches = availability.stretches
    if len(waiting.in_stages()) > 1:
        raise InputError(
            "FedFix in stages cannot be combined with clients that join or leave for good; use one wait, "
            "as ft.FedFix('1/2'), or give absences a period"
        )
    if waiting.by_training or waiting.one_set_of_clients or rule.by_client:
        what = rule.label if rule.by_client else repr(waiting)
        raise InputError(
            f"{what} cannot be combined with clients that join or leave for good: its weights are for one set of "
            "clients; give absences "
            "a period, or use another scheme"
        )
    if len(stretches) > MAX_STRETCHES:
        raise InputError(
            f"absences: clients join or leave for good {len(stretches) - 1} times, and weights are computed for at "
            f"most {MAX_STRETCHES} such periods; give a period, so that they repeat"
        )
    values = np.zeros((len(stretches), run.times.num_clients))
    exact: list[tuple[Fraction, ...] | None] = []
    steps: list[float] = []
    row: list[Fraction] | None = [Fraction(0)] * run.times.num_clients
    for number, (_, clients) in enumerate(stretches):
        if number:
            values[number] = values[number - 1]
        if clients:
            part = during(run, number)
            here, rational = rule.base(part.importance, part.participation)
            values[number, list(clients)] = here
            steps.append(step_of(step, part, here))
            row = None if rational is None or row is None else _put(row, clients, rational)
        else:
            steps.append(steps[-1] if steps else 1.0)
        exact.append(None if row is None else tuple(row))
    begins = tuple(stretch.begin for stretch in stretches)
    kept = None if all(one == 1.0 for one in steps) else tuple(steps)
    return Weights(values, tuple(exact), (), rule, run.importance, begins, kept)


def _put(row: list[Fraction], clients: tuple[int, ...], values: tuple[Fraction, ...]) -> list[Fraction]:
    known = dict(zip(clients, values, strict=True))
    return [known.get(i, before) for i, before in enumerate(row)]


def expected_of(run: LongRun, weights: Weights) -> Floats:
    """q_i = d_i × participation_i × mean discount: what training minimises is Σ q_i L_i (in the last stage)."""
    if weights.tracked:
        assured = weights.rule.assured(run.importance)
        return _mean_applied(run, weights) if assured is None else assured
    last = weights.stage(weights.num_stages - 1)
    return np.asarray(last) * run.participation.share * _mean_discount(run, weights.rule)


def _mean_applied(run: LongRun, weights: Weights) -> Floats:
    """Mean of ω_i(n) over a long run, without its first tenth."""
    clients = run.times.num_clients
    rounds = max(1000, _LONG_RUN // clients)
    plain = replace(weights, steps=None, rule=weights.rule.stepping("paper") or weights.rule)
    apply, early, total, seen = plain.applier(), np.zeros(clients), np.zeros(clients), 0
    for chunk in run.record.rounds(rounds):
        applied = apply(chunk)
        total += np.bincount(chunk.client, weights=applied, minlength=clients)
        first = chunk.round_of_update < rounds // 10
        early += np.bincount(chunk.client[first], weights=applied[first], minlength=clients)
        seen += chunk.num_rounds
    return (total - early) / (seen - rounds // 10) if seen > rounds // 10 else total / seen


def _mean_discount(run: LongRun, rule: WeightRule) -> Floats | float:
    """Mean of s(delay) over each client's contributions: over the limit cycle, or over a long run."""
    if type(rule).discount is WeightRule.discount:
        return 1.0
    last = run.after_last_change
    return of_all(run, last.remembered("mean discount", lambda: _discount_seen(last, rule), rule))


def _discount_seen(run: LongRun, rule: WeightRule) -> Floats:
    cycle = run.observation.cycle
    begin, stop = (0, run.observation.rounds) if cycle is None else (cycle.start, cycle.start + cycle.length)
    clients = run.times.num_clients
    total, count = np.zeros(clients), np.zeros(clients)
    for chunk in run.record.rounds(stop):
        part = chunk[max(0, begin - chunk.first_round) :]
        draws = np.ones(part.num_updates) if part.draws is None else part.draws
        total += np.bincount(part.client, weights=draws * rule.discount(part.staleness), minlength=clients)
        count += np.bincount(part.client, weights=draws, minlength=clients)
    return np.divide(total, count, out=np.zeros(clients), where=count > 0)
