"""What the bounds of section 3 ask of a problem: its optima, and its constants with the rows it took to find them.

    argmin_θ Σ_i w_i L_i(θ):  θ* with w = p, θ_i* with one client, θ̄^n with q_i(n), θ̄ with q_i (section 2.5).

Quadratics have it in closed form. Else Newton's method with backtracking, in 64 bits, until the gradient is as small as
rounding lets it be and the Newton step is small too: a loss such as e^{−t}, whose gradient vanishes at infinity, keeps
steps of length 1 and is found to have no minimiser. Large models go through SciPy's Newton-CG with the same checks.

The constants:

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
from scipy.linalg import cho_solve
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedtempo.clock.ticks import positive_int
from fedtempo.clock.times import Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.simulation.arguments import a_problem
from fedtempo.theory.losses import ClientLosses, Curvature, QuadraticLosses, client_losses

GRADIENT_TOLERANCE = 1e-9
"""‖Σ w_i ∇L_i‖ at a minimiser, as a share of Σ w_i ‖∇L_i‖ at the start (or of 1 where that is small)."""
_STEP_TOLERANCE = 1e-5
_MAX_STEPS = 100
_MAX_IDLE_STEPS = 5
DENSE = 1500
"""Up to how many parameters a Hessian is built."""


@dataclass(frozen=True, repr=False)
class Optima(Brief):
    """Minimisers of several weighted sums of the clients' losses."""

    points: Floats
    """[sums, dimension]"""
    values: Floats
    """[sums]"""
    gradient_norms: Floats
    """[sums] what is left of the gradient."""
    passes: int
    """Passes over the rows of the clients with a weight, summed over the sums."""


def optimum(problem: Problem, weights: Floats | None = None) -> Floats:
    """The minimiser of Σ w_i L_i, with p_i for w_i unless given, as a flat vector.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[0.0], [1.0]])
        >>> ft.theory.optimum(problem), ft.theory.optimum(problem, np.array([0.25, 0.75]))
        (array([0.5]), array([0.75]))
    """
    losses = client_losses(a_problem(problem))
    w = problem.importance.values if weights is None else np.asarray(weights, dtype=np.float64)
    return np.asarray(optima(losses, w[None, :]).points[0])


def optima(losses: ClientLosses, weightings: Floats) -> Optima:
    """The minimisers for weightings [sums, clients], none of which may be zero everywhere."""
    table = np.asarray(weightings, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != losses.num_clients:
        raise InputError(f"weights: shape {table.shape}; give rows of {losses.num_clients} weights, one per client")
    if not (np.isfinite(table).all() and (table >= 0).all() and (table.sum(axis=1) > 0).all()):
        raise InputError("weights: some are below zero, or all are zero; give weights of at least zero, not all zero")
    if isinstance(losses, QuadraticLosses):
        curve = table @ losses.curvatures
        points = table @ (losses.curvatures * losses.centers) / curve
        passes = len(table)
    else:
        solved: list[tuple[Floats, int]] = []
        # Matrices are small: threads gain little on an idle machine, and wait for each other on a busy one.
        with threadpool_limits(1, user_api="blas"):
            for w in table:
                solved.append(_minimise(losses, w, solved[0][0] if solved else losses.start()))
        points = np.array([point for point, _ in solved])
        passes = sum(cost for _, cost in solved)
    values = (table * losses.losses(points)).sum(axis=1)
    left = np.linalg.norm((table[:, :, None] * losses.gradients(points)).sum(axis=1), axis=1)
    return Optima(points, values, left, passes)


def _minimise(losses: ClientLosses, weights: Floats, start: Floats) -> tuple[Floats, int]:
    """A minimiser of Σ w_i L_i, and passes over the rows."""
    scale = weights / weights.sum()  # the minimiser does not depend on the size of the weights; tolerances would
    point = start
    own = np.linalg.norm(losses.gradients(losses.start()), axis=1)
    tolerance = GRADIENT_TOLERANCE * min(1.0, max(float(scale @ own), 1e-6))
    value, gradient = _value(losses, scale, point)
    passes, still_moving = 2, 0
    for _ in range(_MAX_STEPS):
        step, cost = _newton_step(losses, scale, point, gradient)
        passes += cost
        small = float(np.linalg.norm(step)) <= _STEP_TOLERANCE * (1.0 + float(np.linalg.norm(point)))
        if float(np.linalg.norm(gradient)) <= tolerance:
            if small:
                return point, passes
            still_moving += 1
            if still_moving > _MAX_IDLE_STEPS:
                break
        length, slope = 1.0, float(gradient @ step)
        while True:
            there = point + length * step
            found, after = _value(losses, scale, there)
            passes += 1
            # Close to the minimum values agree to the last digit, and the gradient decides.
            flat = abs(found - value) <= 1e-14 * max(1.0, abs(value))
            better = flat and float(np.linalg.norm(after)) <= float(np.linalg.norm(gradient))
            if found <= value + 1e-4 * length * slope or better or length < 1e-10:
                break
            length /= 2
        if length < 1e-10 and float(np.linalg.norm(gradient)) <= 1e3 * tolerance and small:
            return point, passes
        point, value, gradient = there, found, after
    clients = np.flatnonzero(weights > 0)
    who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients"
    raise InputError(
        f"optimum: the loss of {who} has no minimiser that could be found: after {passes} passes the model has norm "
        f"{np.linalg.norm(point):.3g} and still moves (separable rows do this to a logistic loss); "
        "add a penalty, as l2=0.001"
    )


def _value(losses: ClientLosses, weights: Floats, point: Floats) -> tuple[float, Floats]:
    from fedtempo.theory.losses_generic import GenericLosses

    if isinstance(losses, GenericLosses):
        return losses.weighted(point, weights)
    return float(weights @ losses.losses(point)), np.asarray(weights @ losses.gradients(point))


def _newton_step(losses: ClientLosses, weights: Floats, point: Floats, gradient: Floats) -> tuple[Floats, int]:
    """−H⁻¹g, without the directions that have no curvature; a loss that curves downwards is refused."""
    if losses.dimension > DENSE:
        return _conjugate(losses, weights, point, gradient)
    hessian = losses.hessian(point, weights)
    try:
        lower = np.linalg.cholesky(hessian)
        if lower.diagonal().min() > 1e-6 * lower.diagonal().max():
            return -cho_solve((lower, True), gradient), 1
    except np.linalg.LinAlgError:
        pass  # not positive definite: flat in some directions, or not convex
    curves, axes = np.linalg.eigh(hessian)
    top = max(float(np.abs(curves).max()), 1e-30)
    if curves[0] < -1e-7 * top - 1e-13:
        raise InputError(
            f"optimum: the loss is not convex: its curvature is {curves[0]:.3g} in one direction (at most {top:.3g}); "
            "bounds and optima need a convex loss, such as logistic regression or least squares"
        )
    along = axes.T @ gradient
    keep = curves > 1e-13 * top
    return -axes[:, keep] @ (along[keep] / curves[keep]), 1


def _conjugate(losses: ClientLosses, weights: Floats, point: Floats, gradient: Floats) -> tuple[Floats, int]:
    """−H⁻¹g by conjugate gradients on Hessian-vector products."""
    from scipy.sparse.linalg import LinearOperator, cg

    from fedtempo.theory.losses_generic import GenericLosses

    generic = losses if isinstance(losses, GenericLosses) else GenericLosses(losses.problem)
    used = 0

    def product(vector: Floats) -> Floats:
        nonlocal used
        used += 1
        image = generic.product(point, weights, np.asarray(vector).ravel())
        if float(vector.ravel() @ image) < -1e-9 * float(vector.ravel() @ vector.ravel()):
            raise InputError(
                "optimum: the loss is not convex: a direction of negative curvature was found; bounds and optima need "
                "a convex loss, such as logistic regression or least squares"
            )
        return image

    size = len(point)
    hessian = LinearOperator((size, size), matvec=product, dtype=np.float64)
    step, _ = cg(hessian, -gradient, rtol=min(0.1, float(np.linalg.norm(gradient)) ** 0.5), maxiter=20 * size)
    return np.asarray(step), used


@dataclass(frozen=True, repr=False)
class Constants(Brief):
    """The constants of one problem with batches of one size; what needs a solver is worked out when asked for.

    Example:
        >>> found = ft.theory.constants(ft.problems.quadratics(centers=[[0.0], [1.0]]), batch_size=None)
        >>> found.optimum, found.client_optima.ravel()
        (array([0.5]), array([0., 1.]))
        >>> found.optimal_loss, found.heterogeneity  # what a single model costs
        (0.125, 0.125)
    """

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
    """L, μ, optima, noise and heterogeneity of a problem trained on batches of `batch_size` rows (None: all rows).

    Example:
        >>> problem = ft.problems.quadratics(4, noise=0.5)
        >>> found = ft.theory.constants(problem, batch_size=16)
        >>> round(found.smoothness, 3), round(found.convexity, 3), round(found.heterogeneity, 3)
        (1.0, 0.1, 0.262)
    """
    return Constants(a_problem(problem), None if batch_size is None else positive_int(batch_size, "batch_size"))
