"""The clients' losses as plain 64-bit functions of a flat vector θ, for many points at once.

    L_i(θ) = mean over client i's rows of ℓ(θ; row)        E‖∇L_i(θ, ξ)‖² = ‖∇L_i‖² + (mean_r ‖∇ℓ_r‖² − ‖∇L_i‖²)/B

θ is a `point`, the parameters' leaves end to end; B is `batch_size`: ξ is B rows drawn with replacement, or all rows
where B is None. Quadratics and logistic regression have closed forms, every other loss goes through JAX
(losses_generic.py).

    quadratic    L_i(θ) = ½ Σ_k ā_ik (θ_k − c̄_ik)² + const,  ā the mean of a client's rows' a;  ∇ℓ_r = a_r (θ − c_r)
    logistic     ∇ℓ = (p − y) x̃ᵀ + λΘ,    ∇²ℓ = (diag p − p pᵀ) ⊗ x̃x̃ᵀ + λI,    p = softmax(Θx̃),  x̃ = (x, 1),  Θ = (W, b)

Of a quadratic mean_r ‖∇ℓ_r‖² is a quadratic in θ as well. Of logistic regression with several classes the largest
eigenvalue of diag p − p pᵀ is at most ½, and ½ at p = (½, ½, 0, …), which every row approaches at once when all other
biases fall. So sup_θ ‖∇²ℓ‖ = ½‖x̃‖² + λ for a row, ½ λ_max(mean x̃x̃ᵀ) + λ for a client; the infimum is λ. Without a
penalty no gradient is longer than √2 max‖x̃‖. λ is `penalty`, the model's `l2`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp

from fedtempo.clock.times import Floats, Ints
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.problems.quadratic import Quadratics
from fedtempo.simulation.engine.numerics import cast, numerics
from fedtempo.training.batches import init_key


@dataclass(frozen=True, repr=False)
class Curvature(Brief):
    """How curved the clients' losses are, everywhere or, where estimated, at the points that were tried."""

    rows: Floats
    """[clients] the largest curvature of a single row's loss: of every mini-batch drawn with replacement."""
    full: Floats
    """[clients] the largest curvature of L_i."""
    convexity: Floats
    """[clients] the smallest curvature of L_i; below zero: not convex."""
    how: Literal["exact", "estimate"]
    smooth: bool = True
    """False: a gradient jumps."""
    rows_read: int = 0
    """Rows read to find estimates; closed forms read each row once."""


class ClientLosses(ABC):
    """L_i of every client; points have shape [..., dimension]."""

    dimension: int
    sizes: Ints
    gradient_bound: float | None = None
    """The longest gradient of a row, anywhere; None: there is none, or none is known."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sizes = problem.sizes
        self.dimension = problem.num_parameters

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.sizes)

    def start(self, seed: int = 0) -> Floats:
        """θ⁰ under a seed, as the engines start."""
        with numerics("float64"):
            return np.asarray(ravel_pytree(cast(self.problem.init(init_key(seed)), "float64"))[0])

    def flat(self, params: Any) -> Floats:
        """Parameters, or a flat vector already, as a point."""
        shapes = jax.tree.leaves(self.problem.parameter_shapes)
        leaves = [np.asarray(leaf, dtype=np.float64) for leaf in jax.tree.leaves(params)]
        if [leaf.shape for leaf in leaves] == [s.shape for s in shapes]:
            return np.concatenate([leaf.ravel() for leaf in leaves])
        if sum(leaf.size for leaf in leaves) == self.dimension and isinstance(
            params, (np.ndarray, jax.Array, Sequence)
        ):
            return np.asarray(params, dtype=np.float64).ravel()
        raise InputError(
            f"init: arrays of shapes {[leaf.shape for leaf in leaves]}; give parameters as the problem's init makes "
            f"them, {[s.shape for s in shapes]}, or one vector of {self.dimension} numbers"
        )

    @abstractmethod
    def losses(self, points: Floats) -> Floats:
        """[..., clients] L_i."""

    @abstractmethod
    def gradients(self, points: Floats) -> Floats:
        """[..., clients, dimension] ∇L_i."""

    @abstractmethod
    def row_squares(self, points: Floats) -> Floats:
        """[..., clients] the mean over a client's rows of ‖∇ℓ_r‖²."""

    @abstractmethod
    def step(self, client: int, points: Floats, rows: Ints | None) -> Floats:
        """[runs, dimension] ∇L_i(θ, ξ) of points [runs, dimension] and batches [runs, B] of the client's own rows."""

    @abstractmethod
    def hessian(self, point: Floats, weights: Floats) -> Floats:
        """[dimension, dimension] of Σ w_i L_i."""

    @abstractmethod
    def curvature(self) -> Curvature:
        """Largest and smallest curvatures."""

    def gradient_squares(self, points: Floats, batch_size: int | None) -> Floats:
        """[..., clients] E‖∇L_i(θ, ξ)‖², for batches of `batch_size` rows drawn with replacement; None: all rows."""
        full = (self.gradients(points) ** 2).sum(axis=-1)
        if batch_size is None:
            return np.asarray(full)
        return np.asarray(full + (self.row_squares(points) - full) / batch_size)


@lru_cache(maxsize=4)
def client_losses(problem: Problem) -> ClientLosses:
    """The losses of a problem, in closed form where it is known to have one."""
    from fedtempo.theory.losses_generic import GenericLosses

    if isinstance(problem, Quadratics):
        return QuadraticLosses(problem)
    penalty = logistic_penalty(problem)
    return GenericLosses(problem) if penalty is None else LogisticLosses(problem, penalty)


def client_means(values: Floats, problem: Problem, axis: int = 0) -> Floats:
    """The mean over each client's rows, along `axis`."""
    sums = np.add.reduceat(values, problem.offsets[:-1], axis=axis)
    shape = [1] * values.ndim
    shape[axis] = problem.num_clients
    return np.asarray(sums / problem.sizes.reshape(shape))


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


_PROBES = 4


class LogisticLosses(ClientLosses):
    """Logistic regression on rows (x, y), as `fedtempo.problems.models.logistic` makes it."""

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
    if not problem.form.plain:
        return None
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
