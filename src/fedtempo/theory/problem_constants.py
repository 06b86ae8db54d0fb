"""The constants of a problem that the bounds of section 3 ask for, each with the rows it took to find.

    L     smoothness of every mini-batch loss L_i(·, ξ), not of L_i alone
    μ     convexity of every L_i
    θ*, θ_i*                                 optima of L and of L_i
    σ_i² = E‖∇L_i(θ*, ξ)‖²                   gradient noise at the optimum, exact for B rows drawn with replacement
    H = Σ p_i [L_i(θ*) − L_i(θ_i*)]          heterogeneity, the R of asynchronous FedAvg

L is `smoothness`, that of the full losses `full_smoothness`; μ is `convexity`, σ_i² `noise`, H `heterogeneity`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from fedtempo.arguments import a_problem
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.schemes import whole
from fedtempo.theory.losses import ClientLosses, Curvature, client_losses
from fedtempo.theory.optima import Optima, optima


@dataclass(frozen=True)
class Constants:
    """The constants of one problem with batches of one size; what needs a solver is worked out when asked for."""

    problem: Problem
    batch_size: int | None
    """B; None: all rows in every step, and L that of the full losses."""
    _cost: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def losses(self) -> ClientLosses:
        """The clients' losses as functions of a flat vector."""
        return client_losses(self.problem)

    @cached_property
    def curvature(self) -> Curvature:
        """Largest and smallest curvatures of each client's losses."""
        found = self.losses.curvature()
        self._cost["smoothness"] = self.problem.num_rows if found.how == "exact" else found.rows_read
        return found

    @property
    def how(self) -> Literal["exact", "estimate"]:
        """Whether L and μ hold everywhere, or were met at a few points."""
        return self.curvature.how

    @property
    def smoothness(self) -> float:
        """L."""
        return float((self.curvature.full if self.batch_size is None else self.curvature.rows).max())

    @property
    def full_smoothness(self) -> float:
        """The smoothness of every L_i."""
        return float(self.curvature.full.max())

    @property
    def convexity(self) -> float:
        """μ; below zero: a direction of negative curvature was found."""
        return float(self.curvature.convexity.min())

    @cached_property
    def _solved(self) -> Optima:
        clients = np.eye(self.problem.num_clients)
        found = optima(self.losses, np.concatenate([self.problem.importance.values[None, :], clients]))
        self._cost["optima"] = found.passes * self.problem.num_rows
        return found

    @property
    def optimum(self) -> Floats:
        """[dimension] θ*."""
        return np.asarray(self._solved.points[0])

    @property
    def optimal_loss(self) -> float:
        """L(θ*)."""
        return float(self._solved.values[0])

    @property
    def client_optima(self) -> Floats:
        """[clients, dimension] θ_i*."""
        return self._solved.points[1:]

    @property
    def client_minima(self) -> Floats:
        """[clients] L_i(θ_i*)."""
        return self._solved.values[1:]

    @cached_property
    def noise(self) -> Floats:
        """[clients] σ_i²."""
        self._cost["noise"] = self.problem.num_rows
        return self.losses.gradient_squares(self.optimum, self.batch_size)

    @property
    def heterogeneity(self) -> float:
        """H."""
        at_optimum = self.losses.losses(self.optimum)
        return float(self.problem.importance.values @ (at_optimum - self.client_minima))

    @property
    def rows_read(self) -> dict[str, int]:
        """Rows that were read to find what has been asked for so far, by name; a row read twice counts twice."""
        return dict(self._cost)

    def check(self) -> None:
        """Refuses a problem that the bounds do not cover."""
        name = self.problem.name
        if not self.curvature.smooth:
            raise InputError(
                f"{name}: the loss is not smooth: its gradient jumps along a line, so that no L bounds it; "
                "the bounds of section 3 need a smooth loss, such as logistic regression or least squares"
            )
        if self.convexity < -1e-6 * self.full_smoothness:
            raise InputError(
                f"{name}: the loss is not convex: it curves by {self.convexity:.3g} in one direction and by "
                f"{self.full_smoothness:.3g} in another; the bounds of section 3 need a convex loss. "
                "ft.simulate and ft.recommend work without one"
            )


def constants(problem: Problem, *, batch_size: int | None = 32) -> Constants:
    """L, μ, optima, noise and heterogeneity of a problem trained on batches of `batch_size` rows (None: all rows)."""
    return Constants(a_problem(problem), None if batch_size is None else whole(batch_size, "batch_size"))
