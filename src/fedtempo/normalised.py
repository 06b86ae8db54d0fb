"""Weights for clients that take unequal numbers of local steps K_i: each contribution counts by the step.

    d_i · K̃/K_i,    K̃ = Σ_j p_j K_j

It is FedNova for plain SGD (Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", 2020). To first order a contribution is K_i gradient steps, so that training
minimises Σ q_i K_i L_i: with d_i alone clients count by their steps, here they do not. K_i are `steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral

import numpy as np

from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.importance import Importance
from fedtempo.participation import LongRun, Participation
from fedtempo.weight_rules import Tracker, WeightRule


@dataclass(frozen=True)
class Normalised(WeightRule):
    """Another rule's weights, for clients with `steps` local steps each."""

    rule: WeightRule
    steps: Sequence[int]
    name = "normalised"
    by_client = True

    def __post_init__(self) -> None:
        given = tuple(self.steps)
        if not all(isinstance(k, Integral) and not isinstance(k, bool) and k >= 1 for k in given):
            raise InputError(f"steps: {list(given)} does not do; give a whole number of at least 1 for each client")
        object.__setattr__(self, "steps", tuple(int(k) for k in given))
        if type(self.rule).discount is not WeightRule.discount:
            raise InputError(f"{self.rule.label}: discount what is normalised, Discounted(Normalised(rule, steps), …)")

    @property
    def label(self) -> str:
        return f"{self.rule.label} ÷ steps"

    def _factors(self, importance: Importance) -> Floats:
        """[clients] K̃/K_i."""
        if len(self.steps) != len(importance.values):
            raise InputError(
                f"steps: {len(self.steps)} numbers for {len(importance.values)} clients; give one for each client"
            )
        steps = np.array(self.steps, dtype=np.float64)
        return np.asarray(float(importance.values @ steps) / steps)

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        factors = self._factors(importance)
        values, rational = self.rule.base(importance, participation)
        if rational is None:
            return values * factors, None
        mean = sum((p * k for p, k in zip(importance.exact, self.steps, strict=True)), Fraction(0))
        return values * factors, tuple(d * mean / k for d, k in zip(rational, self.steps, strict=True))

    def tracker(self, importance: Importance, num_clients: int) -> Tracker | None:
        track = self.rule.tracker(importance, num_clients)
        if track is None:
            return None
        factors = self._factors(importance)

        def weights(line: Timeline) -> Floats:
            return track(line) * factors[line.client]

        return weights

    def check(self, run: LongRun) -> None:
        self.rule.check(run)

    def fitted(self, own: WeightRule) -> WeightRule:
        return replace(self, rule=self.rule.fitted(own))

    def assured(self, importance: Importance) -> Floats | None:
        known = self.rule.assured(importance)
        return None if known is None else known * self._factors(importance)

    @property
    def needs_shares(self) -> bool:
        return self.rule.needs_shares
