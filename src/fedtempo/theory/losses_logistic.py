"""Multinomial logistic regression in closed form.

    ∇ℓ = (p − y) x̃ᵀ + λΘ,    ∇²ℓ = (diag p − p pᵀ) ⊗ x̃x̃ᵀ + λI,    p = softmax(Θx̃),  x̃ = (x, 1),  Θ = (W, b)

The largest eigenvalue of diag p − p pᵀ is at most ½, and ½ at p = (½, ½, 0, …), which every row approaches at once when
all other biases fall. So sup_θ ‖∇²ℓ‖ = ½‖x̃‖² + λ for a row, ½ λ_max(mean x̃x̃ᵀ) + λ for a client; the infimum is λ.
Without a penalty no gradient is longer than √2 max‖x̃‖. λ is `penalty`, the model's `l2`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from fedtempo.clock.times import Floats, Ints
from fedtempo.engine.numerics import cast, numerics
from fedtempo.problems.problem import Problem
from fedtempo.theory.losses import ClientLosses, Curvature, client_means

_PROBES = 4


class LogisticLosses(ClientLosses):
    """Logistic regression on rows (x, y), as `fedtempo.models.logistic` makes it."""

    def __init__(self, problem: Problem, penalty: float) -> None:
        super().__init__(problem)
        x, y = problem.rows
        self._x, self.penalty = _augmented(x), penalty
        shapes = problem.parameter_shapes
        self.classes = int(shapes["bias"].shape[0])
        self._turned = shapes["weights"].shape[0] != self.classes
        self._label = np.eye(self.classes)[np.asarray(y)]
        self._norms = (self._x**2).sum(axis=1)
        self._begin = problem.offsets
        if penalty == 0:  # ‖p − y‖ ≤ √2
            self.gradient_bound = float((2 * self._norms.max()) ** 0.5)

    def _matrix(self, points: Floats) -> Floats:
        """[..., classes, features + 1] Θ, of points whose biases come first."""
        lead, features = points.shape[:-1], self._x.shape[1] - 1
        bias, weights = points[..., : self.classes], points[..., self.classes :]
        if self._turned:
            weights = np.swapaxes(weights.reshape(*lead, features, self.classes), -1, -2)
        return np.concatenate([weights.reshape(*lead, self.classes, features), bias[..., None]], axis=-1)

    def _point(self, matrix: Floats) -> Floats:
        lead, weights = matrix.shape[:-2], matrix[..., :-1]
        weights = np.swapaxes(weights, -1, -2) if self._turned else weights
        return np.concatenate([matrix[..., -1], weights.reshape(*lead, -1)], axis=-1)

    def _logits(self, points: Floats) -> Floats:
        """[..., rows, classes]."""
        return np.asarray(self._x @ np.swapaxes(self._matrix(points), -1, -2))

    def losses(self, points: Floats) -> Floats:
        z = self._logits(points)
        own = (z * self._label).sum(axis=-1)
        rows = logsumexp(z, axis=-1) - own
        size = (points**2).sum(axis=-1)[..., None]
        return np.asarray(client_means(rows, self.problem, axis=rows.ndim - 1) + self.penalty / 2 * size)

    def _off(self, points: Floats) -> Floats:
        """[..., rows, classes] p − y."""
        return np.asarray(_softmax(self._logits(points)) - self._label)

    def gradients(self, points: Floats) -> Floats:
        off = self._off(points)
        parts = [
            np.swapaxes(off[..., a:b, :], -1, -2) @ self._x[a:b] / (b - a)
            for a, b in zip(self._begin[:-1].tolist(), self._begin[1:].tolist(), strict=True)
        ]
        return np.stack([self._point(part) for part in parts], axis=-2) + self.penalty * points[..., None, :]

    def row_squares(self, points: Floats) -> Floats:
        off = self._off(points)
        cross = (off * self._logits(points)).sum(axis=-1)  # ⟨(p − y)x̃ᵀ, Θ⟩
        rows = (off**2).sum(axis=-1) * self._norms + 2 * self.penalty * cross
        size = (points**2).sum(axis=-1)[..., None]
        return np.asarray(client_means(rows, self.problem, axis=rows.ndim - 1) + self.penalty**2 * size)

    def step(self, client: int, points: Floats, rows: Ints | None) -> Floats:
        begin, end = int(self._begin[client]), int(self._begin[client + 1])
        which = np.arange(begin, end)[None, :] if rows is None else rows + begin
        x, label = self._x[which], self._label[which]
        off = _softmax(x @ np.swapaxes(self._matrix(points), -1, -2)) - label
        return self._point(np.swapaxes(off, -1, -2) @ x / which.shape[1]) + self.penalty * points

    def hessian(self, point: Floats, weights: Floats) -> Floats:
        share = np.repeat(weights / self.sizes, self.sizes)
        x, share = self._x[share > 0], share[share > 0]
        p = _softmax(x @ self._matrix(point).T)
        classes, features = self.classes, self._x.shape[1]
        blocks = np.empty((classes, features, classes, features))
        for c in range(classes):
            for e in range(c, classes):
                curve = share * p[:, c] * ((c == e) - p[:, e])
                blocks[c, :, e, :] = blocks[e, :, c, :] = (x * curve[:, None]).T @ x
        flat = blocks.reshape(classes * features, classes * features)
        order = self._point(np.arange(classes * features, dtype=np.float64).reshape(classes, features)).astype(int)
        found = flat[np.ix_(order, order)]
        found[np.diag_indices(len(found))] += self.penalty * weights.sum()
        return np.asarray(found)

    def curvature(self) -> Curvature:
        half = 0.5 if self.classes > 1 else 0.0
        rows = half * np.maximum.reduceat(self._norms, self._begin[:-1]) + self.penalty
        top = [
            float(np.linalg.norm(self._x[a:b], 2)) ** 2 / (b - a)
            for a, b in zip(self._begin[:-1].tolist(), self._begin[1:].tolist(), strict=True)
        ]
        return Curvature(rows, half * np.array(top) + self.penalty, np.full(len(top), self.penalty), "exact")


def logistic_penalty(problem: Problem) -> float | None:
    """λ, where the loss of a few rows at a few points is that of logistic regression; None where it is not."""
    shapes, rows = problem.parameter_shapes, problem.rows
    if not (isinstance(shapes, dict) and set(shapes) == {"weights", "bias"} and isinstance(rows, tuple)):
        return None
    if len(rows) != 2 or shapes["bias"].ndim != 1 or shapes["weights"].ndim != 2 or rows[0].ndim != 2:
        return None
    classes, features = shapes["bias"].shape[0], rows[0].shape[1]
    sizes = sorted(shapes["weights"].shape)
    if not np.issubdtype(rows[1].dtype, np.integer) or rows[1].ndim != 1 or sizes != sorted((classes, features)):
        return None
    few: Any = jax.tree.map(lambda leaf: leaf[:8], rows)
    wanted = LogisticLosses(Problem(problem.init, problem.loss, [few]), 0.0)
    points = np.random.default_rng(0).standard_normal((_PROBES, problem.num_parameters))
    with numerics("float64"):
        batch = cast(few, "float64")
        given = np.array([float(problem.loss(_tree(problem, point), batch)) for point in points])
    penalties = 2 * (given - wanted.losses(points)[:, 0]) / (points**2).sum(axis=1)
    penalty = float(penalties.mean())
    same = np.abs(penalties - penalty).max() <= 1e-9 * max(1.0, float(np.abs(given).max()))
    return (penalty if penalty > 1e-13 else 0.0) if same and penalty > -1e-13 else None


def _tree(problem: Problem, point: Floats) -> Any:
    """A point as parameters."""
    shapes = problem.parameter_shapes
    classes = int(shapes["bias"].shape[0])
    return {"bias": point[:classes], "weights": point[classes:].reshape(shapes["weights"].shape)}


def _softmax(z: Floats) -> Floats:
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.asarray(z / z.sum(axis=-1, keepdims=True))


def _augmented(x: Any) -> Floats:
    """x̃ = (x, 1); bytes as numbers from 0 to 1."""
    plain = np.asarray(x, dtype=np.float64) / (255.0 if x.dtype == np.uint8 else 1.0)
    return np.concatenate([plain, np.ones((len(plain), 1))], axis=1)
