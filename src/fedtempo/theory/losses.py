"""The clients' losses as plain 64-bit functions of a flat vector θ, for many points at once.

    L_i(θ) = mean over client i's rows of ℓ(θ; row)        E‖∇L_i(θ, ξ)‖² = ‖∇L_i‖² + (mean_r ‖∇ℓ_r‖² − ‖∇L_i‖²)/B

θ is a `point`, the parameters' leaves end to end; B is `batch_size`: ξ is B rows drawn with replacement, or all rows
where B is None. Quadratics and logistic regression have closed forms, every other loss goes through JAX.
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

from fedtempo.clock.times import Floats, Ints
from fedtempo.engine.numerics import cast, numerics
from fedtempo.errors import InputError
from fedtempo.local.batches import init_key
from fedtempo.problems.problem import Problem
from fedtempo.problems.quadratics import Quadratics


@dataclass(frozen=True)
class Curvature:
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
    from fedtempo.theory.losses_logistic import LogisticLosses, logistic_penalty
    from fedtempo.theory.losses_quadratic import QuadraticLosses

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
