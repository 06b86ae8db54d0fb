"""The clients' losses where they have no closed form: any loss, through JAX, and how curved it seems to be.

Σ_r w_r ℓ(θ; row r) with one weight a row gives every weighted sum of clients' losses. How curved it is can only be told
from a few points and a few rows: largest and smallest curvatures by power iteration on Hessian-vector products, at the
start and at points around it. They are estimates, since the loss can be more curved elsewhere. Two things are certain
where they are found: a direction of negative curvature (not convex), and a gradient that jumps (not smooth). The latter
by halving again and again the interval of a line in which the gradient changes most: its slope settles where the
gradient is continuous, and doubles each time where it jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedtempo.clock.times import Floats, Ints
from fedtempo.problems.problem import Problem
from fedtempo.simulation.engine.numerics import cast, numerics
from fedtempo.theory.losses import ClientLosses, Curvature


class GenericLosses(ClientLosses):
    """Every problem, at the price of compiling its loss."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        loss = problem.plain_loss("the theory")
        self._owner = np.repeat(np.arange(problem.num_clients), problem.sizes)
        with numerics("float64"):
            self._rows = cast(problem.rows, "float64")
            _, back = ravel_pytree(cast(problem.init(jax.random.key(0)), "float64"))
            owner = jnp.asarray(self._owner)

        def row(theta: jax.Array, one: Any) -> Any:
            return loss(back(theta), jax.tree.map(lambda leaf: leaf[None], one))

        def total(theta: jax.Array, weight: jax.Array, rows: Any) -> jax.Array:
            return jnp.dot(weight, jax.vmap(row, (None, 0))(theta, rows))

        def means(theta: jax.Array) -> jax.Array:
            each = jax.vmap(row, (None, 0))(theta, self._rows)
            sums: jax.Array = jax.ops.segment_sum(each, owner, problem.num_clients)
            return sums / self.sizes

        def squares(theta: jax.Array) -> jax.Array:
            each = jax.vmap(lambda one: jnp.sum(jax.grad(row)(theta, one) ** 2))(self._rows)
            sums: jax.Array = jax.ops.segment_sum(each, owner, problem.num_clients)
            return sums / self.sizes

        def product(theta: jax.Array, weight: jax.Array, rows: Any, v: jax.Array) -> jax.Array:
            found: jax.Array = jax.jvp(lambda t: jax.grad(total)(t, weight, rows), (theta,), (v,))[1]
            return found

        self._means, self._squares = _compiled(means), _compiled(squares)
        self._jacobian = _compiled(jax.jacrev(means))
        self._value = _compiled(jax.value_and_grad(total))
        self._batch = _compiled(jax.vmap(jax.grad(total), (0, None, 0)))
        self._product = _compiled(product)
        self._hessian = _compiled(jax.hessian(total))

    def losses(self, points: Floats) -> Floats:
        return _each(self._means, points)

    def gradients(self, points: Floats) -> Floats:
        return _each(self._jacobian, points)

    def row_squares(self, points: Floats) -> Floats:
        return _each(self._squares, points)

    def step(self, client: int, points: Floats, rows: Ints | None) -> Floats:
        begin, size = int(self.problem.offsets[client]), int(self.sizes[client])
        which = np.broadcast_to(np.arange(size), (len(points), size)) if rows is None else rows
        with numerics("float64"):
            batch = jax.tree.map(lambda leaf: leaf[jnp.asarray(which + begin)], self._rows)
        return self._batch(points, np.full(which.shape[1], 1.0 / which.shape[1]), batch)

    def weighted(self, point: Floats, weights: Floats) -> tuple[float, Floats]:
        """Σ w_i L_i and its gradient."""
        value, gradient = self._value(point, self._per_row(weights), self._rows)
        return float(value), gradient

    def product(self, point: Floats, weights: Floats, vector: Floats) -> Floats:
        """The Hessian of Σ w_i L_i times a vector."""
        return self._product(point, self._per_row(weights), self._rows, vector)

    def hessian(self, point: Floats, weights: Floats) -> Floats:
        return self._hessian(point, self._per_row(weights), self._rows)

    def _per_row(self, weights: Floats) -> Floats:
        return (weights / self.sizes)[self._owner]

    def curvature(self) -> Curvature:

        return probed(self)

    def gradient_of(self, rows: Ints, point: Floats) -> Floats:
        """The gradient of the mean loss of some rows."""
        return np.asarray(self._value(point, np.full(len(rows), 1.0 / len(rows)), self._some(rows))[1])

    def product_of(self, rows: Ints, point: Floats, vector: Floats) -> Floats:
        """The Hessian of the mean loss of some rows, times a vector."""
        return self._product(point, np.full(len(rows), 1.0 / len(rows)), self._some(rows), vector)

    def _some(self, rows: Ints) -> Any:
        with numerics("float64"):
            return jax.tree.map(lambda leaf: leaf[jnp.asarray(rows)], self._rows)


def _compiled(function: Callable[..., Any]) -> Callable[..., Floats]:
    """The function in 64 bits, back as NumPy arrays."""
    compiled = jax.jit(function)

    def call(*arguments: Any) -> Any:
        with numerics("float64"):
            return jax.tree.map(np.asarray, compiled(*arguments))

    return call


def _each(function: Callable[..., Floats], points: Floats) -> Floats:
    """A function of one point, at many."""
    lead = points.shape[:-1]
    found = [function(point) for point in points.reshape(-1, points.shape[-1])]
    return np.array(found).reshape(*lead, *found[0].shape)


_POINTS = 3
_ROWS = 64
"""Of each client, at most this many rows are tried together, and a quarter of them one by one."""
_POWER_STEPS = 60
_PLACES = 33
"""Gradients along a line, before the halvings."""
_HALVINGS = 25
_JUMP = 1e4
"""A slope that grows by this much over the halvings, of the 3·10⁷ that a jump makes, belongs to a jump."""


def probed(losses: GenericLosses) -> Curvature:
    """The curvatures met; looking ends at the first direction of negative curvature."""
    rng = np.random.default_rng(0)
    start, offsets = losses.start(), losses.problem.offsets
    points = [start]
    points += [start + rng.standard_normal(losses.dimension) / losses.dimension**0.5 for _ in range(_POINTS - 1)]
    spread = np.unique(np.linspace(0, losses.problem.num_rows - 1, _ROWS).astype(np.int64))
    read = _POINTS * (_PLACES + _HALVINGS) * len(spread)
    smooth = all(_continuous(losses, spread, point, rng) for point in points)
    clients = losses.num_clients
    full, single, low = np.zeros(clients), np.zeros(clients), np.full(clients, np.inf)
    for i in range(clients):
        own = np.arange(int(offsets[i]), int(offsets[i + 1]))
        some = np.sort(rng.permutation(own)[:_ROWS])
        for point in points:
            size = abs(_extreme(losses, some, point, 0.0, rng))
            # The eigenvalue farthest from `size`, once everything is shifted by it, is the smallest one.
            full[i] = max(full[i], size)
            low[i] = min(low[i], _extreme(losses, some, point, size, rng) + size)
            read += 2 * _POWER_STEPS * len(some)
        if low[i] < -1e-6 * full[i] or not smooth:
            break
        for row in some[: _ROWS // 4]:
            single[i] = max(single[i], abs(_extreme(losses, np.array([row]), start, 0.0, rng)))
            read += _POWER_STEPS
    return Curvature(np.maximum(single, full), full, low, "estimate", smooth, read)


def _extreme(losses: GenericLosses, rows: Ints, point: Floats, shift: float, rng: np.random.Generator) -> float:
    """The eigenvalue of largest size of H − shift, by power iteration: a Rayleigh quotient, so never beyond it."""
    vector, value = rng.standard_normal(losses.dimension), 0.0
    for _ in range(_POWER_STEPS):
        vector = vector / np.linalg.norm(vector)
        image = losses.product_of(rows, point, vector) - shift * vector
        value = float(vector @ image)
        if not np.any(image):
            return 0.0
        vector = image
    return value


def _continuous(losses: GenericLosses, rows: Ints, point: Floats, rng: np.random.Generator) -> bool:
    """Whether the gradient is continuous along a line through `point`."""
    direction = rng.standard_normal(losses.dimension)
    direction /= np.linalg.norm(direction)

    def gradient(t: float) -> Floats:
        return losses.gradient_of(rows, point + t * direction)

    places = np.linspace(-2.0, 2.0, _PLACES)
    found = [gradient(float(t)) for t in places]
    changes = [float(np.linalg.norm(b - a)) for a, b in pairwise(found)]
    k = int(np.argmax(changes))
    left, right, low, high = float(places[k]), float(places[k + 1]), found[k], found[k + 1]
    first = changes[k] / (right - left)
    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        between = gradient(middle)
        if np.linalg.norm(between - low) > np.linalg.norm(high - between):
            right, high = middle, between
        else:
            left, low = middle, between
    return float(np.linalg.norm(high - low)) / (right - left) <= _JUMP * max(first, 1e-12)
