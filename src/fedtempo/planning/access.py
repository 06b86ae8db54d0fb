"""Clients' rows behind a counter: everything that the planner knows of a problem comes through here.

    loss and gradient of a row at a point: 1 access        a row's Hessian times a direction: 2 accesses

A client update of K steps on batches of B rows is K·B accesses. Clients are asked in turn, in a drawn order, so that
any number of rows is spread evenly over them; which row of a client is drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.times import Floats
from fedtempo.problems.problem import Problem
from fedtempo.problems.rows import Ints
from fedtempo.training.batches import init_key

_HELD = 1 << 25
"""About how many numbers of gradients are held at once."""


class Access:
    """A problem whose rows are counted as they are looked at."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        plain = problem.plain_loss("the planner")
        self.problem = problem
        self.used = 0
        """Accesses so far."""
        start, back = ravel_pytree(problem.init(init_key(seed)))
        self.start: Floats = np.asarray(start, dtype=np.float64)
        """[parameters] θ^0 as one vector."""
        self._key = stream_key("pilot", seed)
        self._drawn = 0
        self._turn = 0
        clients = np.arange(problem.num_clients)
        self._order = np.argsort(uniforms(stream_key("pilot order", seed), clients, 0), kind="stable")

        def loss(point: Any, row: Any) -> Any:
            return plain(back(point), jax.tree.map(lambda leaf: leaf[None], row))

        def bent(point: Any, direction: Any, row: Any) -> Any:
            return jax.jvp(lambda at: jax.grad(loss)(at, row), (point,), (direction,))[1]

        self._gradients = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))
        self._one_direction = jax.jit(jax.vmap(bent, (None, None, 0)))
        self._own_directions = jax.jit(jax.vmap(bent, (None, 0, 0)))

    @property
    def most_rows(self) -> int:
        """How many rows' gradients are held at once."""
        return max(2, _HELD // len(self.start))

    def turn(self, count: int) -> Ints:
        """[count] the next clients in turn."""
        clients = self._order[(self._turn + np.arange(count)) % len(self._order)]
        self._turn = (self._turn + count) % len(self._order)
        return clients

    def rows(self, clients: Ints) -> Ints:
        """[count] a drawn row of each of these clients."""
        number = self._drawn + np.arange(len(clients))
        self._drawn += len(clients)
        place = uniforms(self._key, number >> 16, number & 0xFFFF)
        return np.asarray(self.problem.offsets[clients] + np.floor(place * self.problem.sizes[clients]), dtype=np.int64)

    def gradients(self, point: Floats, rows: Ints) -> tuple[Floats, Floats]:
        """[rows] losses and [rows, parameters] gradients."""
        self.used += len(rows)
        loss, gradient = self._padded(self._gradients, rows, point)
        return loss, gradient

    def hessian(self, point: Floats, direction: Floats, rows: Ints, share: Floats) -> Floats:
        """[parameters] Σ share_r ∇²ℓ_r · direction."""
        self.used += 2 * len(rows)
        (found,) = self._padded(lambda p, r: (self._one_direction(p, direction.astype(np.float32), r),), rows, point)
        return share @ found

    def own_hessians(self, point: Floats, directions: Floats, rows: Ints) -> Floats:
        """[rows, parameters] ∇²ℓ_r · direction_r."""
        self.used += 2 * len(rows)
        place = _padded_places(len(rows))
        taken = self._own_directions(
            point.astype(np.float32), directions[place].astype(np.float32), self._taken(rows[place])
        )
        return np.asarray(taken, dtype=np.float64)[: len(rows)]

    def _taken(self, rows: Ints) -> Any:
        return jax.tree.map(lambda leaf: leaf[rows], self.problem.rows)

    def _padded(self, function: Callable[..., tuple[Any, ...]], rows: Ints, point: Floats) -> tuple[Floats, ...]:
        """Rows in numbers that are powers of two, so that few programs are compiled."""
        place = _padded_places(len(rows))
        found = function(point.astype(np.float32), self._taken(rows[place]))
        return tuple(np.asarray(part, dtype=np.float64)[: len(rows)] for part in found)


def _padded_places(count: int) -> Ints:
    size = 1 << max(0, count - 1).bit_length()
    return np.minimum(np.arange(size), count - 1)
