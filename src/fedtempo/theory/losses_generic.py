"""Any loss, through JAX: Σ_r w_r ℓ(θ; row r) with one weight a row gives every weighted sum of clients' losses.

Curvatures are those that `probes.py` meets at a few points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedtempo.clock.times import Floats, Ints
from fedtempo.engine.numerics import cast, numerics
from fedtempo.problems.problem import Problem
from fedtempo.theory.losses import ClientLosses, Curvature


class GenericLosses(ClientLosses):
    """Every problem, at the price of compiling its loss."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._owner = np.repeat(np.arange(problem.num_clients), problem.sizes)
        with numerics("float64"):
            self._rows = cast(problem.rows, "float64")
            _, back = ravel_pytree(cast(problem.init(jax.random.key(0)), "float64"))
            owner = jnp.asarray(self._owner)

        def row(theta: jax.Array, one: Any) -> Any:
            return problem.loss(back(theta), jax.tree.map(lambda leaf: leaf[None], one))

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
        from fedtempo.theory.probes import probed

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
