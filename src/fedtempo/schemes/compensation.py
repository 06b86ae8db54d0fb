"""Three ways to make clients that come rarely count as they should: by weight, by learning rate, by work (section 4.5).

    by weight   ω_i = d_i               every client takes K steps of size η_l
    by rate     ω_i = c,  η_l(i) = η_l d_i/c
    by work     ω_i = c,  K(i) = K d_i/c          c = min_j d_j, the weight that all clients get

d_i are the weights that a rule gives. To first order in η_l all three move the model alike: ω_i K(i) η_l(i) is the
same. They differ in how far clients drift from the model that they were sent (by work and by rate d_i/c times as far)
and in the noise of their batches (by work more rows). Job times are taken as given: where a job takes longer the more
steps it has, a client's steps per time do not depend on K(i), and work compensates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.schemes.options import SchemeOptions
from fedtempo.weighting.weight_rules import Identical, WeightRule
from fedtempo.weighting.weights import Weights


@dataclass(frozen=True)
class Compensated:
    """Weights, and in what else clients differ."""

    weights: Weights
    rates: Floats | None = None
    """[clients] factors of η_l."""
    steps: NDArray[np.int64] | None = None
    """[clients] K(i)."""


def compensated(options: SchemeOptions, weights: Weights, local_steps: int, label: str) -> Compensated:
    """What a scheme with these options does about `weights`, at K = `local_steps`."""
    if options.compensate not in ("rate", "work"):
        steps = None if options.client_steps is None else np.array(options.client_steps, dtype=np.int64)
        rates = None if options.client_rates is None else np.array(options.client_rates, dtype=np.float64)
        return Compensated(weights, rates, steps)
    discounted = type(weights.rule).discount is not WeightRule.discount
    if weights.num_stages > 1 or weights.tracked or discounted:
        raise InputError(
            f"{label}: its weights change from round to round, so no fixed rate or work can replace them; compensate "
            "by weights"
        )
    values, precise = weights.values[0], weights.exact[0]
    least = float(values.min())
    if least <= 0:
        raise InputError(
            f"{label}: a client has weight 0, which no rate or work of other clients can replace; compensate by weights"
        )
    exact = None if precise is None else tuple([min(precise)] * len(precise))
    same = Weights(np.full((1, len(values)), least), (exact,), (0,), Identical(), steps=weights.steps)
    if options.compensate == "rate":
        return Compensated(same, rates=values / least)
    found: list[Any] = list(values / least) if precise is None else [w / min(precise) for w in precise]
    wanted = [local_steps * f for f in found]
    steps = np.array([round(w) for w in wanted], dtype=np.int64)
    for client, (k, w) in enumerate(zip(steps.tolist(), wanted, strict=True)):
        if abs(k - w) > (0 if isinstance(w, Fraction) else 1e-9 * max(1.0, float(w))):
            needed = _whole_steps(found)
            hint = "compensate by weights or by rate" if needed is None else f"use K = {needed} or a multiple of it"
            raise InputError(
                f"{label}: compensated by work, client {client} would take {float(w):g} steps, which is not a whole "
                f"number; {hint}"
            )
    return Compensated(same, steps=steps)


def _whole_steps(factors: list[Any]) -> int | None:
    """The smallest K at which all steps are whole, where that is known and not absurd."""
    if not all(isinstance(f, Fraction) for f in factors):
        return None
    common = int(np.lcm.reduce([f.denominator for f in factors], dtype=object))
    return common if common <= 1000 else None
