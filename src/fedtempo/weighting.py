"""d_i, the weight of a client's contribution (section 2.3), and q_i, what it amounts to over a run (section 2.4).

    time-based       d_i = p_i / participation_i                so that q_i = p_i
    identical        d_i = c                                    c such that Σ q_i = 1
    importance       d_i = c·p_i                                c such that Σ q_i = 1
    with a discount  ω_i(n) = d_i · s(n − ρ_i(n))               discounts.py

d_i are `weights`, ω_i(n) is the applied weight, q_i = d_i × participation_i the expected weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, overload

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.rules import FixedInterval, IntervalStages
from fedtempo.clock.ticks import Exact, text
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.discounts import Discount
from fedtempo.errors import InputError
from fedtempo.importance import Importance
from fedtempo.participation import LongRun, Participation
from fedtempo.schemes import Scheme


class WeightRule(ABC):
    """How d_i follows from importance and participation."""

    name: ClassVar[str]

    @property
    def label(self) -> str:
        """The rule in a few words."""
        return self.name

    @abstractmethod
    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        """d_i, and as rationals where participation is known exactly."""

    def discount(self, staleness: I64) -> Floats:
        """s(n − ρ_i(n)): 1 unless a baseline asks for less."""
        return np.ones(np.shape(staleness))


@dataclass(frozen=True)
class TimeBased(WeightRule):
    """d_i = p_i / participation_i: over many rounds every client counts by its importance (equations 13 and 17)."""

    name = "time-based"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        never = np.flatnonzero(participation.share <= 0)
        if len(never):
            some = ", ".join(map(str, never[:5].tolist())) + (", …" if len(never) > 5 else "")
            raise InputError(
                f"client {some} never takes part, so no weight makes it count: this choice of clients is biased; "
                "sample uniformly, or give weights='identical' to see the bias"
            )
        rational = participation.exact
        precise = None if rational is None else tuple(p / s for p, s in zip(importance.exact, rational, strict=True))
        return importance.values / participation.share, precise


@dataclass(frozen=True)
class Identical(WeightRule):
    """One weight for all, with Σ q_i = 1: fast clients count for more."""

    name = "identical"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        share = participation.share
        rational = participation.exact
        precise = None if rational is None else (1 / sum(rational, Fraction(0)),) * len(share)
        return np.full(len(share), 1.0 / share.sum()), precise


@dataclass(frozen=True)
class ImportanceOnly(WeightRule):
    """d_i proportional to p_i, with Σ q_i = 1: importance without regard to how often a client comes."""

    name = "importance"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        total = float(importance.values @ participation.share)
        precise = None
        if participation.exact is not None:
            whole = sum((p * s for p, s in zip(importance.exact, participation.exact, strict=True)), Fraction(0))
            precise = tuple(p / whole for p in importance.exact)
        return importance.values / total, precise


@dataclass(frozen=True)
class Discounted(WeightRule):
    """Another rule's weights, discounted by staleness: a baseline, biased unless all delays are equal."""

    rule: WeightRule
    factor: Discount
    name = "discounted"

    @property
    def label(self) -> str:
        return f"{self.rule.label} × {self.factor}"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        return self.rule.base(importance, participation)

    def discount(self, staleness: I64) -> Floats:
        return self.rule.discount(staleness) * self.factor(staleness)


WEIGHT_RULES: dict[str, WeightRule] = {rule.name: rule for rule in (TimeBased(), Identical(), ImportanceOnly())}


def weight_rule(given: str | WeightRule) -> WeightRule:
    """The rule, or the one of that name."""
    if isinstance(given, WeightRule):
        return given
    if given not in WEIGHT_RULES:
        raise InputError(f"weights: {given!r} is not known; use one of {', '.join(WEIGHT_RULES)}")
    return WEIGHT_RULES[given]


@dataclass(frozen=True, eq=False)
class Weights(Sequence[Fraction | float]):
    """d_i, client by client: rationals where they are known exactly, else floats. ``np.asarray(w)`` gives floats.

    A scheme with stages has a set of weights a stage: ``w.stage(k)``.
    """

    values: Floats
    """[stages, clients]"""
    exact: tuple[tuple[Fraction, ...] | None, ...]
    first_rounds: tuple[int, ...]
    """The round with which each stage begins."""
    rule: WeightRule

    @property
    def num_stages(self) -> int:
        """1, unless the scheme has stages."""
        return len(self.values)

    def stage(self, number: int) -> Weights:
        """The weights of one stage."""
        return Weights(self.values[[number]], (self.exact[number],), (0,), self.rule)

    def _only(self) -> tuple[Floats, tuple[Fraction, ...] | None]:
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
        """ω_i(n) of every update of a timeline: d_i of its stage × draws × discount."""
        number = line.round_of_update
        stage = np.searchsorted(np.array(self.first_rounds), number, side="right") - 1
        factor = self.rule.discount(line.staleness)
        return self.values[stage, line.client] * factor * (1 if line.draws is None else line.draws)

    def __repr__(self) -> str:
        if self.num_stages > 1:
            return f"Weights({self.num_stages} stages, {len(self)} clients)"
        shown = [text(w) if isinstance(w, Fraction) else f"{w:.6g}" for w in self[:6]]
        return f"Weights([{', '.join(shown)}{', …' if len(self) > 6 else ''}])"


def weights_of(scheme: Scheme, run: LongRun, rule: WeightRule) -> Weights:
    """d_i of a scheme whose long run is known."""
    waiting = scheme.waiting
    if not isinstance(waiting, IntervalStages):
        values, rational = rule.base(run.importance, run.participation)
        return Weights(values[None, :], (rational,), (0,), rule)
    found = [
        rule.base(run.importance, LongRun(FixedInterval(wait), run.times, run.importance, run.seed).participation)
        for wait in waiting.waits
    ]
    return Weights(np.array([v for v, _ in found]), tuple(e for _, e in found), waiting.first_rounds(), rule)


def expected_of(run: LongRun, weights: Weights) -> Floats:
    """q_i = d_i × participation_i × mean discount: what training minimises is Σ q_i L_i (in the last stage)."""
    last = weights.stage(weights.num_stages - 1)
    return np.asarray(last) * run.participation.share * _mean_discount(run, weights.rule)


def _mean_discount(run: LongRun, rule: WeightRule) -> Floats | float:
    """Mean of s(delay) over each client's contributions: over the limit cycle, or over a long run."""
    if type(rule).discount is WeightRule.discount:
        return 1.0
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


def participation_of(
    scheme: Scheme, times: ClientTimes, *, importance: Iterable[Exact] | None = None, seed: int = 0
) -> Participation:
    """The share of rounds in which each client takes part, in the long run."""
    return LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed).participation


def weights(
    scheme: Scheme,
    times: ClientTimes,
    *,
    importance: Iterable[Exact] | None = None,
    rule: str | WeightRule = "time-based",
    seed: int = 0,
) -> Weights:
    """d_i: time-based (unbiased) unless another rule is named; exact where the times are."""
    run = LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed)
    return weights_of(scheme, run, weight_rule(rule))


def expected_weights(
    scheme: Scheme,
    times: ClientTimes,
    *,
    importance: Iterable[Exact] | None = None,
    rule: str | WeightRule = "time-based",
    seed: int = 0,
) -> Floats:
    """q_i: training minimises Σ q_i L_i, which is the federated loss when q_i is proportional to p_i."""
    run = LongRun(scheme.waiting, times, Importance(importance, times.num_clients), seed)
    return expected_of(run, weights_of(scheme, run, weight_rule(rule)))
