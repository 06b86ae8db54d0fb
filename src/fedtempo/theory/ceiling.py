"""The largest local learning rate for which Theorem 1 is proved (its statement; appendix A.5).

    as printed     η_l ≤ 1/(48KL) · min(1, 1/(3ρ²η_g(τ + 1)))
    drift          D = 6η_l²(K−1)²L² ≤ 1/2                                        Lemma 3
    delay          12ρ²(α+β) η̃²K²τ²L² ≤ 1/2                                      Lemma 6
    step           3ρ(α+β) η̃L ≤ 1                                                Theorem 1
    descent        4D + 12ρ(2α+β)[η̃ + 16ρLη̃²K²τ²]L ≤ 1                          Theorem 1
    weight         3ρ²η̃L ≤ 1                                                     Theorem 1, for the O(·) form
    weight_delay   48ρ³η̃²K²τ²L² ≤ 1                                              Theorem 1, for the O(·) form

Descent implies drift, delay and step, term by term. The printed formula takes β ≤ 1. The corrected bound (`bounds.py`)
needs the first four with D·κ for D and, before η̃ alone, Kβ for β. η̃ = η_g η_l; τ is taken as N − 1 where it has no
bound. K is `local_steps`, L `smoothness`, η_g `server_lr`, κ `drift_factor`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedtempo.clock.ticks import positive_int
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.simulation.arguments import real
from fedtempo.theory.expected import Expected


@dataclass(frozen=True)
class Setting:
    """What the conditions depend on, besides the rate."""

    smoothness: float
    local_steps: int
    server_lr: float
    co_participation: float
    weight_spread: float
    max_delay: int
    max_total_weight: float
    drift_factor: float
    """κ = max_n 1 + η_g²βq(n) + max(0, αc² − 2c), c = η_g q(n): what Lemma 3 lacks where η_g ω_i is not q̃_i."""

    @classmethod
    def of(cls, expected: Expected, *, smoothness: float, local_steps: int, server_lr: float = 1.0) -> Setting:
        """Of a run."""
        steps, rate = positive_int(local_steps, "local_steps"), real("server_lr", server_lr)
        alpha, beta = expected.co_participation, expected.weight_spread
        c = rate * expected.total
        factor = 1.0 + rate**2 * beta * expected.total + np.maximum(0.0, alpha * c**2 - 2 * c)
        delay = expected.num_rounds - 1 if expected.max_delay is None else expected.max_delay
        return cls(
            real("smoothness", smoothness),
            steps,
            rate,
            alpha,
            beta,
            delay,
            expected.max_total_weight,
            float(factor.max()) if steps > 1 else 1.0,
        )

    @property
    def delayed(self) -> float:
        """(η_g K τ L)², what η_l² is multiplied with in the terms of delay."""
        return (self.server_lr * self.local_steps * self.max_delay * self.smoothness) ** 2

    @property
    def drifted(self) -> float:
        """6(K−1)²L², so that D = η_l² × this."""
        return 6.0 * ((self.local_steps - 1) * self.smoothness) ** 2


@dataclass(frozen=True)
class Condition:
    """linear · η_l + square · η_l² ≤ 1."""

    name: str
    linear: float
    square: float

    @property
    def largest(self) -> float:
        """The largest η_l that meets it; infinite if all do."""
        root = self.linear + (self.linear**2 + 4 * self.square) ** 0.5
        return 2.0 / root if root > 0 else float("inf")

    def holds(self, local_lr: float) -> bool:
        """Whether a rate meets it, up to rounding."""
        return local_lr <= self.largest * (1 + 1e-12)


def drift(s: Setting, *, corrected: bool = False) -> Condition:
    """D ≤ 1/2 (Lemma 3); corrected, κD ≤ 1/2."""
    return Condition("drift", 0.0, 2.0 * s.drifted * (s.drift_factor if corrected else 1.0))


def delay(s: Setting, *, corrected: bool = False) -> Condition:
    """12ρ²(α+β)η̃²K²τ²L² ≤ 1/2 (Lemma 6)."""
    return Condition("delay", 0.0, 24.0 * s.max_total_weight**2 * (s.co_participation + s.weight_spread) * s.delayed)


def step(s: Setting, *, corrected: bool = False) -> Condition:
    """3ρ(α+β)η̃L ≤ 1 (proof of Theorem 1); corrected, Kβ for β."""
    both = s.co_participation + s.weight_spread * (s.local_steps if corrected else 1)
    return Condition("step", 3.0 * s.max_total_weight * both * s.server_lr * s.smoothness, 0.0)


def descent(s: Setting, *, corrected: bool = False) -> Condition:
    """4D + 12ρ(2α+β)[η̃ + 16ρLη̃²K²τ²]L ≤ 1 (proof of Theorem 1); corrected, κD for D and Kβ for the first β."""
    rho, alpha, beta = s.max_total_weight, s.co_participation, s.weight_spread
    first = 2 * alpha + beta * (s.local_steps if corrected else 1)
    drifting = 4.0 * s.drifted * (s.drift_factor if corrected else 1.0)
    return Condition(
        "descent",
        12.0 * rho * first * s.server_lr * s.smoothness,
        drifting + 192.0 * rho**2 * (2 * alpha + beta) * s.delayed,
    )


def weight(s: Setting, *, corrected: bool = False) -> Condition:
    """3ρ²η̃L ≤ 1 (proof of Theorem 1)."""
    return Condition("weight", 3.0 * s.max_total_weight**2 * s.server_lr * s.smoothness, 0.0)


def weight_delay(s: Setting, *, corrected: bool = False) -> Condition:
    """48ρ³η̃²K²τ²L² ≤ 1 (proof of Theorem 1)."""
    return Condition("weight_delay", 0.0, 48.0 * s.max_total_weight**3 * s.delayed)


SIX: tuple[Callable[..., Condition], ...] = (drift, delay, step, descent, weight, weight_delay)


@dataclass(frozen=True, repr=False)
class Ceiling(Brief):
    """Rates below which the bound is proved.

    `learning_rate_ceiling` makes it.

    Example:
        >>> law = ft.theory.expected_from_scheme(ft.AsyncFedAvg(), ft.FixedTimes([4, 2, 1]))
        >>> found = ft.theory.learning_rate_ceiling(law, smoothness=1.0)
        >>> round(found.printed, 5), round(found.largest, 5), found.binding
        (0.00018, 0.00329, 'descent')
    """

    setting: Setting
    printed: float
    """The formula of Theorem 1."""
    conditions: tuple[Condition, ...]
    """The six of appendix A.5, with the true β."""
    corrected_conditions: tuple[Condition, ...]
    """The four that the corrected bound needs."""

    @property
    def largest(self) -> float:
        """The largest η_l that meets all six."""
        return min(c.largest for c in self.conditions)

    @property
    def binding(self) -> str:
        """The condition that sets it."""
        return min(self.conditions, key=lambda c: c.largest).name

    @property
    def corrected(self) -> float:
        """The largest η_l of the corrected bound."""
        return min(c.largest for c in self.corrected_conditions)

    @property
    def broken(self) -> tuple[str, ...]:
        """Which of the six conditions the printed rate does not meet."""
        return tuple(c.name for c in self.conditions if not c.holds(self.printed))

    @property
    def note(self) -> str | None:
        """What to know about the printed formula here."""
        beta = self.setting.weight_spread
        if beta <= 1:
            return None
        said = f"the printed formula takes β ≤ 1, but β is {beta:.3g} here"
        if not self.broken:
            return f"{said}; its rate still meets all six conditions (ρ is {self.setting.max_total_weight:.3g})"
        return f"{said}: its rate breaks {' and '.join(self.broken)}; use {self.largest:.3g}"


def learning_rate_ceiling(
    expected: Expected, *, smoothness: float, local_steps: int = 1, server_lr: float = 1.0
) -> Ceiling:
    """The rates up to which Theorem 1 is proved, for a run with these expected weights and a problem of this L.

    Example:
        >>> law = ft.theory.expected_from_scheme(ft.FedFix("1/2"), ft.FixedTimes.spread(10, 80))
        >>> found = ft.theory.learning_rate_ceiling(law, smoothness=1.0, local_steps=5)
        >>> round(found.printed, 5), round(found.corrected, 5)
        (0.00027, 0.00561)
    """
    if not isinstance(expected, Expected):
        raise InputError(f"expected: {expected!r}; give expected_from_timeline(…) or expected_from_scheme(…)")
    s = Setting.of(expected, smoothness=smoothness, local_steps=local_steps, server_lr=server_lr)
    shrink = 3.0 * s.max_total_weight**2 * s.server_lr * (s.max_delay + 1)
    printed = min(1.0, 1.0 / shrink) / (48.0 * s.local_steps * s.smoothness)
    return Ceiling(s, printed, tuple(c(s) for c in SIX), tuple(c(s, corrected=True) for c in SIX[:4]))
