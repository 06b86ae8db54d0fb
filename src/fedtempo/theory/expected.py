"""q_i(n) = E[ω_i(n)], the expected weight of client i in round n (section 2.5), and what follows from it.

    q_i = (1/N) Σ_n q_i(n),   q(n) = Σ_i q_i(n),   q̃_i(n) = q_i(n)/q(n),   q̃_i = q_i/Σ_j q_j,   ρ = max(1, max_n q(n))

q_i(n) is `weights`, q_i `expected_weight`, q(n) `total`, q̃_i(n) `normalised`, q̃_i `normalised_run`, ρ
`max_total_weight`. Rounds of one kind share a row; `rounds` says how many of the N there are. What happened is in a
timeline (`expected_from_timeline`), what is to be expected in the scheme's stationary law (`expected_from_scheme`).
N, the rounds in time T (table 2), is FedAvg ⌊T/τ_M⌋, asynchronous Σ ⌊T/τ_i⌋, FedFix ⌊T/Δt⌋, else T × rounds a unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact, positive, positive_int
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme, without_options
from fedtempo.schemes.timelines import timeline_chunks, weights_of
from fedtempo.theory.covariance import Covariance, fixed_set
from fedtempo.theory.rounds import applied_weights, check_always_there, client_weights, table_of, window_of
from fedtempo.theory.stationary import (
    MAX_ROUNDS,
    largest_delay,
    participation_is_random,
    random_law,
    repeated_rounds,
    stationary_window,
)
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule, weight_rule
from fedtempo.weighting.weights import Weights


def rounds_in(scheme: Scheme, times: ClientTimes, until: Exact, *, importance: Iterable[Exact] | None = None) -> float:
    """Rounds that end by `until`: a whole number where times are fixed and a closed form counts them, else the mean.

    Example:
        >>> ft.theory.rounds_in(ft.AsyncFedAvg(), ft.FixedTimes([4, 2, 1]), until=100)
        175
        >>> round(ft.theory.rounds_in(ft.FedAvg(), ft.ExponentialTimes([1, 1]), until=30), 1)  # a round takes 1.5
        20.0
    """
    horizon = positive(until, "until")
    counted = scheme.waiting.rounds_by(times, horizon)
    if counted is not None:
        return counted
    if times.availability is not None and times.availability.changes:
        return float(
            sum(part.num_rounds for part in timeline_chunks(scheme, times, until=until, importance=importance))
        )
    run = LongRun(scheme.waiting, times, Importance(importance, times.num_clients))
    return float(horizon) * run.rounds_per_time


AnyWeights = str | WeightRule | Weights | ArrayLike
"""What is accepted for weights: a rule or its name, weights, or one d_i per client."""


@dataclass(frozen=True, eq=False, repr=False)
class Expected(Brief):
    """q_i(n) of every kind of round, with what Assumptions 4, 5 and 6 need beside it.

    `expected_from_scheme` and `expected_from_timeline` make it: a row of `weights` is a kind of round, `rounds` says
    how many there are of each.

    Example:
        >>> law = ft.theory.expected_from_scheme(ft.FedFix(1), ft.FixedTimes([2, 1]))
        >>> law.weights  # q_i(n) of each kind of round
        array([[0. , 0.5],
               [1. , 0.5]])
        >>> law.window, law.max_delay, law.max_total_weight
        (2, 1, 1.5)
    """

    weights: Floats
    """[kinds, clients] q_i(n) of each distinct kind of round; a row of zeros: empty rounds."""
    rounds: Floats
    """[kinds] how many of the N rounds are of that kind."""
    num_rounds: int
    """N."""
    co_participation: float
    """α."""
    weight_spread: float
    """β = max γ_i(n)/q_i(n) over q_i(n) > 0."""
    max_delay: int | None
    """τ; None: no bound is known, as under random times that have none."""
    window: int | None
    """W; None: not known."""
    source: Literal["timeline", "stationary"]
    gamma: Floats | None = None
    """[kinds, clients] γ_i(n); None: all 0."""

    @property
    def num_clients(self) -> int:
        """M."""
        return int(self.weights.shape[1])

    @cached_property
    def expected_weight(self) -> Floats:
        """[clients] q_i, the mean over the N rounds."""
        return np.asarray(self.rounds @ self.weights / self.num_rounds)

    @cached_property
    def total(self) -> Floats:
        """[kinds] q(n)."""
        return np.asarray(self.weights.sum(axis=1))

    @cached_property
    def normalised(self) -> Floats:
        """[kinds, clients] q̃_i(n); 0 in empty rounds."""
        return shares(self.weights)

    @cached_property
    def normalised_run(self) -> Floats:
        """[clients] q̃_i; 0 if nobody ever takes part."""
        return shares(self.expected_weight)

    @property
    def max_total_weight(self) -> float:
        """ρ, the largest total weight of a round, at least 1."""
        return max(1.0, float(self.total.max(initial=0.0)))


def shares(values: Floats) -> Floats:
    """Each row divided by its sum; rows of zeros stay."""
    total = values.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(values, total, out=np.zeros_like(values), where=total > 0))


def expected_from_timeline(
    line: Timeline, weights: Weights | ArrayLike, *, co_participation: float | None = None
) -> Expected:
    """What happened: given the timeline, participation is certain, so that q_i(n) = ω_i(n), α = 1 and β = 0.

    Another α, such as the paper's 0 for asynchronous FedAvg, brings β = (1 − α) max q(n). W is the smallest window for
    which Assumption 6 holds in these rounds, at most N.

    Example:
        >>> times = ft.FixedTimes([2, 1])
        >>> line = ft.timeline(ft.AsyncFedAvg(), times, until=8)
        >>> happened = ft.theory.expected_from_timeline(line, ft.weights(ft.AsyncFedAvg(), times))
        >>> happened.num_rounds, happened.max_delay, happened.window
        (12, 2, 3)
    """
    if not line.num_rounds:
        raise InputError("the timeline has no rounds; give one with at least one round")
    applied = applied_weights(line, weights)
    table, counts = table_of(line, applied)
    return _made(
        fixed_set(table, co_participation),
        rounds=counts,
        num_rounds=line.num_rounds,
        max_delay=int(line.staleness.max(initial=0)),
        window=window_of(line, applied),
        source="timeline",
    )


def expected_from_scheme(
    scheme: Scheme,
    times: ClientTimes,
    importance: Iterable[Exact] | Importance | None = None,
    weights: AnyWeights = "time-based",
    *,
    rounds: int | None = None,
    until: Exact | None = None,
    co_participation: float | None = None,
    seed: int = 0,
) -> Expected:
    """What is to be expected of N = `rounds` rounds, or of those in time `until`; of one window if neither is given.

    Where participation is certain, the kinds of the limit cycle in their shares; where it is drawn, one kind with the
    stationary probabilities. `co_participation` asks for another α than the scheme's own.

    Example:
        >>> law = ft.theory.expected_from_scheme(ft.UniformSampling(2), ft.FixedTimes([4, 2, 1]))
        >>> law.weights.round(3), round(law.co_participation, 3), round(law.weight_spread, 3)
        (array([[0.333, 0.333, 0.333]]), 0.75, 0.25)
    """
    check_always_there(times, "the stationary law")
    known = Importance(importance.exact if isinstance(importance, Importance) else importance, times.num_clients)
    run = LongRun(without_options(scheme).waiting, times, known, seed)
    d = resolved(scheme, run, weights)
    window = stationary_window(run)
    if participation_is_random(run):
        law, share = random_law(run, d, co_participation), np.ones(1)
    else:
        table, share = repeated_rounds(run, d)
        law = fixed_set(table, co_participation)
    if rounds is not None:
        number = positive_int(rounds, "rounds")
    elif until is not None:
        number = int(rounds_in(scheme, times, until, importance=known.exact))
        if number < 1:
            raise InputError(f"until: no round of {scheme} ends by {until}; give more time")
    else:
        number = min(window or MAX_ROUNDS, MAX_ROUNDS)
    return _made(
        law,
        rounds=np.asarray(share * number),
        num_rounds=number,
        max_delay=largest_delay(run),
        window=window,
        source="stationary",
    )


def resolved(scheme: Scheme, run: LongRun, weights: AnyWeights) -> Weights | Floats:
    """d_i of the last stage, from whatever was given for weights."""
    if isinstance(weights, (str, WeightRule)):
        weights = weights_of(scheme, run, weight_rule(weights))
    if isinstance(weights, Weights):
        return weights.stage(weights.num_stages - 1)
    return client_weights(weights, run.times.num_clients)


def _made(
    law: Covariance,
    *,
    rounds: Floats,
    num_rounds: int,
    max_delay: int | None,
    window: int | None,
    source: Literal["timeline", "stationary"],
) -> Expected:
    return Expected(
        weights=np.atleast_2d(law.expected),
        rounds=rounds,
        num_rounds=num_rounds,
        co_participation=law.co_participation,
        weight_spread=law.weight_spread,
        max_delay=max_delay,
        window=window,
        source=source,
        gamma=np.atleast_2d(law.gamma) if law.gamma.any() else None,
    )
