"""The bounds of Theorems 1, 2 and 3 and of Corollary 1 for one run on one problem, term by term (section 3).

    Theorem 1      mean of L^n(θ^{n,k}) − L^n(θ̄^n)  ≤  R + ε_F + ε_K + ε_α + ε_β
    Theorem 2      mean of ‖∇L(θ^{n,k})‖²           ≤  max_n 4L(1+χ_n²)/q(n) · (Theorem 1) + P + U
    Theorem 3      mean of L̄(θ^{n,k}) − L̄(θ̄)       ≤  ε = ε_F + ε_K + ε_α + ε_β + ε_W
                   mean of ‖∇L(θ^{n,k})‖²           ≤  4L(1+χ²)/q · ε + (4Lχ²/q)[L̄(θ̄) − Σ s_j F_j*]
    Corollary 1    mean of L(θ^{n,k}) − L(θ*)       ≤  (ε_F + ε_K + ε_α + ε_β)/min_n q(n)     where s̃_j(n) = r_j, all n

`theorems.py` has the constants and what was mended in the proofs. U and B depend on the models met: they come from
`measure`, B also from a clipping threshold or, for logistic regression without a penalty, from its rows. Corollary 1
lacks its q(n) as printed: Theorem 1 bounds q(n)[L − L*].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedtempo import display
from fedtempo.clock.ticks import Exact
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Shown, frame_of, one_line
from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import Scheme
from fedtempo.simulation.arguments import a_problem, client_times, real
from fedtempo.theory.ceiling import Ceiling, learning_rate_ceiling
from fedtempo.theory.data_types import DataTypes
from fedtempo.theory.expected import AnyWeights, Expected, expected_from_scheme, expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.round_residuals import Residuals, residuals
from fedtempo.theory.theorems import Steps, TheoremOne, theorem_1, theorem_2_factor, window_term
from fedtempo.theory.virtual_models import Measured
from fedtempo.training.solvers import LocalRule, LocalSGD
from fedtempo.weighting.weight_rules import WeightRule, weight_rule

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Bound(Shown):
    """Right-hand sides, each term by its name in the paper; ``print`` shows the tables of ``fedtempo theory``.

    Example:
        >>> problem, local = ft.problems.quadratics(4, noise=0.5), ft.LocalSGD(steps=5, lr=1e-3)
        >>> times = ft.FixedTimes([4, 2, 1, 1])
        >>> found = ft.theory.bound(problem, scheme=ft.FedFix(1), times=times, local=local, rounds=2000)
        >>> found.table()[["name", "value"]].head(5)
          name     value
        0    R  0.043362
        1  ε_F  0.116684
        2  ε_K  0.000109
        3  ε_α  0.034574
        4  ε_β  0.000000
        >>> _ = found.plot("bound.svg")
    """

    left: Residuals
    """R, Σ_1, Σ_2, P and the optima behind them."""
    steps: Steps
    ceiling: Ceiling
    start: Floats
    """θ⁰."""
    gradient_bound: float | None = None
    """B; None: not known."""
    unseen: float | None = None
    """U without its constant; None: not known."""
    never_seen: float | None = None
    label: str | None = None
    """Of the scheme, where it was given."""

    @cached_property
    def parts(self) -> TheoremOne:
        """The terms of Theorem 1."""
        return theorem_1(self.left, self.ceiling.setting, self.steps, self.start)

    @cached_property
    def as_printed(self) -> TheoremOne:
        """The terms of Theorem 1 with the constants of the paper's proof, which do not always hold."""
        return theorem_1(self.left, self.ceiling.setting, self.steps, self.start, printed=True)

    @property
    def expected(self) -> Expected:
        """q_i(n), α, β, τ, W."""
        return self.left.expected

    @property
    def terms(self) -> dict[str, float | None]:
        """Every term by name; None where it needs what was not given."""
        p = self.parts
        return {
            "R": p.residual,
            "ε_F": p.start,
            "ε_K": p.drift,
            "ε_α": p.joint,
            "ε_β": p.spread,
            "ε_W": self._window_term,
            "P": 4.0 * self._smoothness * self.left.unfairness,
            "U": None if self._unseen is None else 4.0 * self._smoothness * self._unseen,
        }

    @property
    def _smoothness(self) -> float:
        return self.left.constants.full_smoothness

    @property
    def _unseen(self) -> float | None:
        return self.unseen if self.left.unseen[self.expected.rounds > 0].any() else 0.0

    @property
    def _window_term(self) -> float | None:
        window = self.expected.window
        if window == 1:
            return 0.0
        if window is None or self.gradient_bound is None:
            return None
        return window_term(self.left, self.steps, self.gradient_bound, window)

    @property
    def theorem_1(self) -> float:
        """R + ε_F + ε_K + ε_α + ε_β."""
        return self.parts.total

    @property
    def total(self) -> float:
        """The right-hand side of Theorem 1."""
        return self.theorem_1

    @property
    def theorem_2(self) -> float | None:
        """Of the mean of ‖∇L‖²; None where a data type misses rounds and U was not measured."""
        if self._unseen is None:
            return None
        away = 4.0 * self._smoothness * (self.left.unfairness + self._unseen)
        return theorem_2_factor(self.left) * self.theorem_1 + away

    @property
    def theorem_3(self) -> float | None:
        """ε; None where W is not known, or is above 1 and B is not known."""
        window = self._window_term
        return None if window is None else self.parts.error + window

    @property
    def theorem_3_gradient(self) -> float | None:
        """Of the mean of ‖∇L‖², from ε; types that never take part add what Theorem 2 adds for them."""
        absent = self.never_seen if self.left.never_seen.any() else 0.0
        if self.theorem_3 is None or absent is None:
            return None
        smooth, chi, whole = self._smoothness, self.left.chi_squared, float(self.expected.expected_weight.sum())
        near = 4.0 * smooth * (1 + chi) / whole * self.theorem_3
        return near + 4.0 * smooth * (chi / whole * self.left.heterogeneity + absent)

    @property
    def corollary_1(self) -> float | None:
        """Of the mean of L − L*; None unless every type has its importance in every round."""
        fair = np.abs(self.left.by_type.normalised - self.left.by_type.type_importance).max() < 1e-12
        return self.parts.error / float(self.expected.total.min()) if fair else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before relying on it."""
        said = []
        expected, known = self.expected, self.left.constants
        if known.how == "estimate":
            said.append("L and convexity were estimated at a few points, not proved: the loss has no known closed form")
        if expected.max_delay is None:
            said.append(f"delays have no bound under this law: τ = N − 1 = {expected.num_rounds - 1} was taken")
        if self.steps.clip is not None:
            said.append(f"holds as long as no gradient is longer than the clip, {self.steps.clip:g}")
        if expected.window is not None and expected.num_rounds % expected.window:
            said.append(f"Theorem 3 is for whole windows: W = {expected.window} does not divide N")
        if self.ceiling.note is not None:
            said.append(self.ceiling.note)
        return tuple(said)

    def table(self) -> pd.DataFrame:
        """A row a term: its `name` as in the paper or in JSON, its `meaning`, and its `value`; NaN is not known."""
        return frame_of(self)

    def __repr__(self) -> str:
        of = self.label or "a run"
        return one_line("Bound", f"Theorem 1 bounds {of} by {self.theorem_1:.4g} at local_lr {self.steps.local_lr:g}")

    def plot(self, path: str | Path | None = None, *, style: str = "light") -> Figure:
        """The terms, and what they add up to, as bars; with `path` also a file, SVG, PNG or PDF by its ending."""
        return display.bound_figure(self, path=path, style=style)


def bound(
    problem: Problem,
    *,
    timeline: Timeline | None = None,
    scheme: Scheme | None = None,
    times: ClientTimes | None = None,
    weights: AnyWeights = "time-based",
    local: LocalRule | None = None,
    server_lr: float = 1.0,
    init: object = None,
    types: DataTypes | None = None,
    rounds: int | None = None,
    until: Exact | None = None,
    co_participation: float | None = None,
    measured: Measured | None = None,
    gradient_bound: float | None = None,
) -> Bound:
    """The bounds for what happened (`timeline`, with its d_i) or for what is to be expected (`scheme` and `times`).

    `init` is θ⁰, as parameters or as one vector; the problem's own under seed 0 unless given. `measured` brings U and
    B, `gradient_bound` B alone. A problem that is not convex or not smooth, and a rate above the ceiling, are refused.

    Example:
        >>> times, scheme = ft.FixedTimes.spread(4, 80), ft.FedFix("1/2")
        >>> problem = ft.problems.quadratics(4, noise=0.5)
        >>> local = ft.LocalSGD(steps=5, lr=1e-3)
        >>> found = ft.theory.bound(problem, scheme=scheme, times=times, local=local, rounds=2000)
        >>> round(found.theorem_1, 2)
        0.14
    """
    steps = Steps.of(LocalSGD() if local is None else local, server_lr)
    known = constants(a_problem(problem), batch_size=steps.batch_size)
    known.check()
    expected = _expected(problem, timeline, scheme, times, weights, rounds, until, co_participation)
    left = residuals(known, expected, types=types)
    ceiling = learning_rate_ceiling(
        expected, smoothness=known.smoothness, local_steps=steps.local_steps, server_lr=server_lr
    )
    if steps.local_lr > ceiling.corrected * (1 + 1e-12):
        raise InputError(
            f"local_lr: {steps.local_lr:g} is above {ceiling.corrected:.3g}, the largest rate for which the bound is "
            f"proved here (L = {known.smoothness:.3g}, K = {steps.local_steps}, τ = {ceiling.setting.max_delay}); "
            "lower it"
        )
    start = known.losses.start() if init is None else known.losses.flat(init)
    given = steps.clip if gradient_bound is None else real("gradient_bound", gradient_bound)
    largest = known.losses.gradient_bound if given is None else given
    label = None if scheme is None else scheme.label
    if measured is None:
        return Bound(left, steps, ceiling, start, largest, label=label)
    met = measured.gradient_bound if given is None else given
    unseen, never = float(measured.unseen.mean()), float(measured.never_seen.mean())
    return Bound(left, steps, ceiling, start, met, unseen, never, label)


def _check_independent(scheme: Scheme, times: ClientTimes, weights: AnyWeights) -> None:
    """Lemma 2 needs who takes part in a round not to depend on the rounds before."""
    rule = weights if isinstance(weights, (str, WeightRule)) else getattr(weights, "rule", "time-based")
    discounts = type(weight_rule(rule)).discount is not WeightRule.discount
    remembers = times.random and not times.memoryless and not scheme.waiting.synchronous
    if remembers or (discounts and times.random and not scheme.waiting.synchronous):
        what = "weights by staleness depend on" if discounts else f"who takes part under {times.law} times depends on"
        raise InputError(
            f"{scheme}: {what} the rounds before, which Lemma 2 does not cover; "
            "give timeline= for what happened, or exponential times"
        )


def _expected(
    problem: Problem,
    timeline: Timeline | None,
    scheme: Scheme | None,
    times: ClientTimes | None,
    weights: AnyWeights,
    rounds: int | None,
    until: Exact | None,
    co_participation: float | None,
) -> Expected:
    given = (timeline is not None, scheme is not None, times is not None)
    if given not in ((True, False, False), (False, True, True)):
        raise InputError("give either timeline=, or both scheme= and times=")
    if timeline is None:
        assert scheme is not None
        held = client_times(times, problem.num_clients)
        _check_independent(scheme, held, weights)
        return expected_from_scheme(
            scheme, held, problem.importance, weights, rounds=rounds, until=until, co_participation=co_participation
        )
    if isinstance(weights, (str, WeightRule)):
        raise InputError(
            f"weights: a timeline does not tell the weights d_i of {weights!r}; give ft.weights(scheme, times), or "
            "numbers"
        )
    if timeline.num_clients != problem.num_clients:
        raise InputError(
            f"timeline: {timeline.num_clients} clients, but the problem has {problem.num_clients}; "
            "give the timeline of its clients"
        )
    return expected_from_timeline(timeline, weights, co_participation=co_participation)
