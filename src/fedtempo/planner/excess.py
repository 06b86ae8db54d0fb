"""How far above the least loss the flow is from the pilot's end on, from the way there.

    L(s) = c + (L(0) − c) (1 + s/s_0)^{−γ},      −L'(s_e) = ‖∇L(θ_e)‖²

Curves with all c, s_0 and γ from 1 to 5 are weighted by their likelihood under what the path, the end and the
gradient's square said; the excess at s ≥ s_e is the weighted mean of L(s) − c. The path's own noise, about
h·(variance of a step's gradient)/4 above the flow, is taken off first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.times import Floats
from fedtempo.planner.pilot import Pilot

_POWERS = (1.0, 1.5, 2.0, 3.0, 5.0)
_SCALES, _FLOORS = 24, 80
_NEARBY = 9
"""Steps over which the spread of the path's losses is averaged."""
_DOUBT = 0.3
"""Relative doubt in the gradient's square: it is that of a mean point, not of the flow."""


_LIKELY = 1e-6
"""Of the likeliest curve's weight: curves below are left out."""


class Curves(NamedTuple):
    """Likely curves of the excess."""

    weight: Floats
    height: Floats
    """L(0) − c."""
    scale: Floats
    power: Floats

    def at(self, time: ArrayLike) -> Floats:
        """[…] the mean excess at times s of the flow."""
        far = 1 + np.asarray(time, dtype=np.float64)[..., None] / self.scale
        return np.asarray((self.height * far**-self.power) @ self.weight)


def likely_curves(pilot: Pilot) -> Curves:
    """What the pilot's numbers say of L − min L along the flow."""
    path = pilot.path
    settled = -np.expm1(-2 * pilot.of_noise.mean * path.time)
    loss = path.loss - 1.1 * path.step * path.spread / (4 * path.rows) * settled
    jumps = np.diff(loss) ** 2 / 2
    near = min(_NEARBY, len(loss))
    deviation = np.sqrt(np.convolve(np.append(jumps, jumps[-1:]), np.ones(near) / near, "same")) + 1e-4
    first = pilot.start_loss
    lowest = 0.0 if first > 0 else 2 * first - 1  # losses below zero: some floor below the start
    powers, scales, floors = np.meshgrid(
        _POWERS,
        np.geomspace(0.3, 10 * max(3.0, pilot.start_curvature * float(path.time[-1])), _SCALES) / pilot.start_curvature,
        lowest + (first - lowest) * np.linspace(0, 0.99, _FLOORS),
        indexing="ij",
    )
    unlikely = np.zeros(powers.shape)
    for time, seen, error in zip(
        np.append(path.time[1:], pilot.end_time),
        np.append(loss[1:], pilot.end_loss),
        np.append(deviation[1:], max(pilot.end_loss_error, 1e-4)),
        strict=True,
    ):
        unlikely += ((floors + (first - floors) * (1 + time / scales) ** -powers - seen) / error) ** 2
    slope = powers * (first - floors) * (1 + pilot.end_time / scales) ** (-powers - 1) / scales
    error = pilot.gradient_square_error + _DOUBT * abs(pilot.gradient_square)
    unlikely += ((slope - pilot.gradient_square) / max(error, 1e-12)) ** 2
    weight = np.exp(-(unlikely - unlikely.min()) / 2)
    kept = weight > _LIKELY
    return Curves(weight[kept] / weight[kept].sum(), (first - floors)[kept], scales[kept], powers[kept])
