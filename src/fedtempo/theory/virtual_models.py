"""The virtual models of section 2.4, plainly, and the left-hand sides of Theorems 1, 2 and 3 measured on them.

    θ^{n,k} = θ^n + η_g Σ_{i∈S_n} ω_i(n) (θ_i^{ρ_i(n),k} − θ^{ρ_i(n)}),    θ^{n,0} = θ^n,    θ^{n,K} = θ^{n+1}
    Theorem 1   mean over n and k < K of L^n(θ^{n,k}) − L^n(θ̄^n)
    Theorem 2   mean of ‖∇L(θ^{n,k})‖²,      and U, the mean of Σ_{j∉W_n} r_j [F_j(θ^{n,k}) − F_j*]
    Theorem 3   mean of L̄(θ^{n,k}) − L̄(θ̄)

With all rows in every step a run is exact; with batches, or drawn participation, there is one value a run, and the
theorems speak of their mean. B, the largest gradient met, is `gradient_bound`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.theory.losses import ClientLosses
from fedtempo.theory.round_residuals import Residuals
from fedtempo.theory.rounds import applied_weights, kinds_of
from fedtempo.theory.theorems import Steps
from fedtempo.training.solvers import LocalRule
from fedtempo.weighting.weights import Weights


class VirtualRound(NamedTuple):
    """One round of every run."""

    models: Floats
    """[runs, K + 1, dimension] θ^{n,0} … θ^{n,K}."""
    largest_gradient: float
    """The largest ‖g_i‖ of a local step, over clients and runs."""


@dataclass(frozen=True, repr=False)
class Measured(Brief):
    """The left-hand sides, one value a run.

    `measure` makes it.

    Example:
        >>> problem, times, local = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1]), ft.LocalSGD(lr=0.003)
        >>> line, d = ft.timeline(ft.FedFix(1), times, rounds=60), ft.weights(ft.FedFix(1), times)
        >>> left = ft.theory.bound(problem, timeline=line, weights=d, local=local).left
        >>> found = ft.theory.measure(left, line, d, local)
        >>> bound = ft.theory.bound(problem, timeline=line, weights=d, local=local, measured=found)
        >>> round(float(found.theorem_3.mean()), 3), round(bound.theorem_3, 3)  # what was measured, and its bound
        (0.291, 6.439)
    """

    theorem_1: Floats
    theorem_2: Floats
    theorem_3: Floats
    unseen: Floats
    """U, without its constant."""
    never_seen: Floats
    """The mean of r_j [F_j(θ^{n,k}) − F_j*] over types that never take part."""
    gradient_bound: float
    """B."""

    @staticmethod
    def error(values: Floats) -> float:
        """The standard error of a mean over runs; 0 for one run."""
        return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def virtual_models(
    losses: ClientLosses,
    line: Timeline,
    weights: Weights | ArrayLike,
    steps: Steps,
    *,
    init: Floats,
    runs: int = 1,
    seed: int = 0,
) -> Iterator[VirtualRound]:
    """The rounds of a timeline, for several runs that differ in their batches."""
    if line.first_round != 0:
        raise InputError("the timeline starts in the middle of a run; give it from round 0")
    applied = applied_weights(line, weights)
    models = {0: np.tile(np.asarray(init, dtype=np.float64), (runs, 1))}
    last_use = dict(zip(line.base.tolist(), line.round_of_update.tolist(), strict=True))
    for n in range(line.num_rounds):
        moved = np.zeros((runs, steps.local_steps + 1, losses.dimension))
        largest = 0.0
        for u in range(int(line.offsets[n]), int(line.offsets[n + 1])):
            client = int(line.client[u])
            rows = None
            if steps.batch_size is not None:
                stream = np.random.default_rng([seed, client, int(line.job[u])])
                shape = (runs, steps.local_steps, steps.batch_size)
                rows = stream.integers(int(losses.sizes[client]), size=shape)
            here = models[int(line.base[u])]
            way = np.zeros_like(here)
            for k in range(steps.local_steps):
                gradient = losses.step(client, here - steps.local_lr * way, None if rows is None else rows[:, k])
                largest = max(largest, float((gradient**2).sum(axis=1).max()) ** 0.5)
                way = way + gradient
                moved[:, k + 1] += applied[u] * way
        virtual = models[n][:, None, :] - steps.server_lr * steps.local_lr * moved
        models[n + 1] = virtual[:, -1]
        models = {v: theta for v, theta in models.items() if v == n + 1 or last_use.get(v, -1) > n}
        yield VirtualRound(virtual, largest)


def measure(
    left: Residuals,
    lines: Timeline | Sequence[Timeline],
    weights: Weights | ArrayLike,
    local: LocalRule,
    *,
    server_lr: float = 1.0,
    init: object = None,
    runs: int = 1,
    seed: int = 0,
) -> Measured:
    """The left-hand sides on one timeline, or on several that were drawn: `runs` runs on each.

    With the expected weights of the timeline itself L^n is what the round minimised; with those of a stationary law
    every round has the law's L^n, and the timelines are the law's draws.

    Example:
        >>> problem, times, local = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1]), ft.LocalSGD(lr=0.003)
        >>> line, d = ft.timeline(ft.FedFix(1), times, rounds=60), ft.weights(ft.FedFix(1), times)
        >>> bound = ft.theory.bound(problem, timeline=line, weights=d, local=local)
        >>> found = ft.theory.measure(bound.left, line, d, local, runs=2)
        >>> bool(found.theorem_1.mean() <= bound.theorem_1)
        True
    """
    drawn = [lines] if isinstance(lines, Timeline) else list(lines)
    if left.expected.source == "stationary" and len(left.expected.weights) > 1:
        raise InputError("the rounds of this law differ; measure on a timeline, with expected_from_timeline")
    if left.expected.source == "timeline" and len(drawn) > 1:
        raise InputError(f"{len(drawn)} timelines, but expected weights of one; measure them one by one")
    steps = Steps.of(local, server_lr)
    losses = left.constants.losses
    start = losses.start() if init is None else losses.flat(init)
    parts = [_one(left, line, weights, steps, start, runs, seed + s) for s, line in enumerate(drawn)]
    per_run = np.concatenate([found for found, _ in parts], axis=1)
    return Measured(*_rows(per_run), max(largest for _, largest in parts))


def _rows(table: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    first, second, third, unseen, never = table
    return first, second, third, unseen, never


def _one(
    left: Residuals, line: Timeline, weights: Weights | ArrayLike, steps: Steps, start: Floats, runs: int, seed: int
) -> tuple[Floats, float]:
    """[5, runs] the left-hand sides, U and what is never seen; and B."""
    losses, expected = left.constants.losses, left.expected
    if expected.source == "timeline":
        kind = kinds_of(line, applied_weights(line, weights))[0]
    else:
        kind = np.zeros(line.num_rounds, dtype=np.int64)
    importance = left.constants.problem.importance.values
    taking = expected.expected_weight > 0
    found = np.zeros((5, runs))
    largest = 0.0
    models = virtual_models(losses, line, weights, steps, init=start, runs=runs, seed=seed)
    for n, closed in zip(kind.tolist(), models, strict=True):
        points = closed.models[:, :-1]
        values = losses.losses(points)
        gradients = losses.gradients(points)
        gaps = left.type_gaps(values)
        found[0] += (values @ expected.weights[n] - left.round_minima[n]).mean(axis=1)
        found[1] += ((importance @ gradients) ** 2).sum(axis=-1).mean(axis=1)
        found[2] += (values @ expected.expected_weight - left.run_minimum).mean(axis=1)
        found[3] += (gaps @ left.unseen[n]).mean(axis=1)
        found[4] += (gaps @ left.never_seen).mean(axis=1)
        met = float((gradients[..., taking, :] ** 2).sum(axis=-1).max()) ** 0.5
        largest = max(largest, closed.largest_gradient, met)
    return found / line.num_rounds, largest
