"""Quadratic clients in closed form: L_i(θ) = ½ Σ_k ā_ik (θ_k − c̄_ik)² + const, ā the mean of a client's rows' a.

The gradient of row r is a_r (θ − c_r), so that mean_r ‖∇ℓ_r‖² is a quadratic in θ as well.
"""

from __future__ import annotations

import numpy as np

from fedtempo.clock.times import Floats, Ints
from fedtempo.problems.quadratics import Quadratics
from fedtempo.theory.losses import ClientLosses, Curvature, client_means


class QuadraticLosses(ClientLosses):
    """A family made by `quadratics`, from its rows."""

    def __init__(self, problem: Quadratics) -> None:
        super().__init__(problem)
        a, c = (np.asarray(leaf, dtype=np.float64) for leaf in problem.rows)
        self._a, self._c, self._begin = a, c, problem.offsets
        self.curvatures = client_means(a, problem)
        self.centers = client_means(a * c, problem) / self.curvatures
        own = np.repeat(self.centers, self.sizes, axis=0)
        self._floor = client_means(0.5 * (a * (c - own) ** 2).sum(axis=1), problem)
        self._square = client_means(a**2, problem)
        self._middle = client_means(a**2 * c, problem) / self._square
        away = np.repeat(self._middle, self.sizes, axis=0)
        self._spread = client_means((a**2 * (c - away) ** 2).sum(axis=1), problem)

    def losses(self, points: Floats) -> Floats:
        off = points[..., None, :] - self.centers
        return np.asarray(0.5 * (self.curvatures * off**2).sum(axis=-1) + self._floor)

    def gradients(self, points: Floats) -> Floats:
        return np.asarray(self.curvatures * (points[..., None, :] - self.centers))

    def row_squares(self, points: Floats) -> Floats:
        off = points[..., None, :] - self._middle
        return np.asarray((self._square * off**2).sum(axis=-1) + self._spread)

    def step(self, client: int, points: Floats, rows: Ints | None) -> Floats:
        if rows is None:
            return np.asarray(self.curvatures[client] * (points - self.centers[client]))
        which = rows + int(self._begin[client])
        return np.asarray((self._a[which] * (points[:, None, :] - self._c[which])).mean(axis=1))

    def hessian(self, point: Floats, weights: Floats) -> Floats:
        return np.diag(weights @ self.curvatures)

    def curvature(self) -> Curvature:
        rows = np.maximum.reduceat(self._a.max(axis=1), self._begin[:-1])
        return Curvature(rows, self.curvatures.max(axis=1), self.curvatures.min(axis=1), "exact")
