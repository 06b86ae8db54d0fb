"""Quadratic clients, coordinate by coordinate, and what one job does to a coordinate.

    L_i(θ) = ℓ_i + ½ Σ_k a_ik (θ_k − c_ik)²          a batch's gradient: a_ik (θ_k − c_ik) + noise of variance s_ik
    Δ_ik = −φ_ik (θ_k − c_ik) + noise of variance v_ik
    φ = 1 − (1 − η_l a)^K  (Example 1),      v = s η_l² Σ_{k<K} (1 − η_l a)^{2k}

a is `curvature`, c `center`, s `noise`, ℓ `floor`; φ is `pull`, v `jitter`, η_l `lr`, K `steps`. The noise of one
client's coordinates may be correlated: expected losses need the variance of each coordinate alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.importance import Importance
from fedtempo.problems.quadratics import Quadratics


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Quadratic clients along the axes of their curvature, known or estimated."""

    curvature: Floats
    """[clients, coordinates] a."""
    center: Floats
    """[clients, coordinates] c."""
    noise: Floats
    """[clients, coordinates] s, the variance of the gradient of one batch."""
    start: Floats
    """[coordinates] θ^0."""
    importance: Importance
    """p_i."""
    floor: Floats | float = 0.0
    """[clients] ℓ_i, the least value of each client's loss."""

    def __post_init__(self) -> None:
        shape = np.shape(self.curvature)
        for name in ("curvature", "center", "noise"):
            if len(shape) != 2 or np.shape(getattr(self, name)) != shape:
                found = np.shape(getattr(self, name))
                raise InputError(f"{name}: shape {found} beside curvature {shape}; give [clients, coordinates] of each")
        if np.shape(self.start) != shape[1:] or len(self.importance.values) != shape[0]:
            raise InputError(
                f"start has shape {np.shape(self.start)} and importance {len(self.importance.values)} values for "
                f"{shape[0]} clients × {shape[1]} coordinates; give one start a coordinate, one importance a client"
            )

    @classmethod
    def of(cls, problem: Quadratics, batch_size: int | None) -> Coordinates:
        """Those of a family of quadratics under batches of so many rows, with replacement; None: full gradients."""
        a, c = (np.asarray(leaf, dtype=np.float64) for leaf in problem.rows)
        owner = np.repeat(np.arange(problem.num_clients), problem.sizes)
        off = c - problem.centers[owner]
        sizes = problem.sizes[:, None]
        begin = problem.offsets[:-1]
        variance = np.add.reduceat((a * off) ** 2, begin, axis=0) / sizes
        return cls(
            curvature=problem.curvatures,
            center=problem.centers,
            noise=np.zeros_like(variance) if batch_size is None else variance / batch_size,
            start=np.zeros(problem.curvatures.shape[1]),
            importance=problem.importance,
            floor=(np.add.reduceat(a * off**2, begin, axis=0) / sizes).sum(axis=1) / 2,
        )

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.curvature)

    def losses(self, mean: ArrayLike, variance: ArrayLike = 0.0) -> Floats:
        """[…, clients] E[L_i(θ)] for a model with this mean and variance [… , coordinates]."""
        away = np.asarray(mean, dtype=np.float64)[..., None, :] - self.center
        spread = np.asarray(variance, dtype=np.float64)
        square = away**2 + (spread[..., None, :] if spread.ndim else spread)
        return np.asarray(self.floor + 0.5 * (self.curvature * square).sum(axis=-1))

    @property
    def optimum(self) -> Floats:
        """[coordinates] argmin Σ p_i L_i."""
        pull = self.importance.values[:, None] * self.curvature
        return np.asarray((pull * self.center).sum(axis=0) / pull.sum(axis=0))

    @property
    def optimal_loss(self) -> float:
        """The least value of L = Σ p_i L_i."""
        return float(self.importance.values @ self.losses(self.optimum))


class Job(NamedTuple):
    """What K local steps do, for each client, learning rate and coordinate."""

    pull: Floats
    """[clients, rates, coordinates] φ; [clients, rates, d, d] where curvatures are matrices."""
    jitter: Floats
    """[clients, rates, coordinates] v."""


def pull_of(curvature: ArrayLike, lr: ArrayLike, steps: int) -> Floats:
    """φ of curvatures [clients, coordinates], or of symmetric matrices [clients, d, d], at rates [rates]."""
    a = np.asarray(curvature, dtype=np.float64)
    rates = np.atleast_1d(np.asarray(lr, dtype=np.float64))
    if a.ndim == 3:
        values, vectors = np.linalg.eigh(a)
        return np.asarray((vectors[:, None] * pull_of(values, rates, steps)[..., None, :]) @ vectors[:, None].mT)
    move = rates[:, None] * a[:, None, :]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        gentle = -np.expm1(steps * np.log1p(-np.minimum(move, 0.5)))  # keeps its digits for small steps
        return np.where(move <= 0.5, gentle, 1.0 - (1.0 - move) ** steps)


def job(coordinates: Coordinates, lr: ArrayLike, steps: int) -> Job:
    """φ and v at each rate."""
    rates = np.atleast_1d(np.asarray(lr, dtype=np.float64))
    keep = (1.0 - rates[:, None] * coordinates.curvature[:, None, :]) ** 2
    series: Any = np.zeros_like(keep)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            series = series * keep + 1.0
        jitter = coordinates.noise[:, None, :] * rates[:, None] ** 2 * series
    return Job(pull_of(coordinates.curvature, rates, steps), jitter)
