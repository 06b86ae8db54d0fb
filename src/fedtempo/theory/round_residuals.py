"""What is left at the optima of the rounds (section 2.5, Theorems 1 and 2, appendix A.2).

    L^n = Σ q_i(n) L_i with optimum θ̄^n,    L̄ = Σ q_i L_i = (1/N) Σ_n L^n with optimum θ̄
    R   = (1/N) Σ_n [L^n(θ̄) − L^n(θ̄^n)]
    Σ_1 = (1/N) Σ_n Σ_i q̃_i(n) E‖∇L_i(θ̄^n, ξ)‖²,      Σ_2 the same with q̃_i(n)²,      Σ = Σ_i q_i E‖∇L_i(θ̄, ξ)‖²
    P   = (1/N) Σ_n χ_n² Σ_{j∈W_n} s̃_j(n) [F_j(θ̄^n) − F_j*]
    U   = (1/N) Σ_n (1/K) Σ_k Σ_{j∉W_n} r_j [F_j(θ^{n,k}) − F_j*],  with the models that were met (virtual_models.py)

Empty rounds count in N and add nothing to R, Σ_1, Σ_2 and P. Rounds of one kind share an optimum, so that asynchronous
FedAvg needs M of them and not N. Without `types` every client has a data type of its own (j = i, r_j = p_i).
R is `residual`, Σ `sigma`, Σ_1 `sigma_1`, Σ_2 `sigma_2`, P `unfairness`, L̄(θ̄) − Σ s_j F_j* `heterogeneity`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedtempo.clock.times import Floats, Ints
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.theory.data_types import DataTypes, TypeWeights
from fedtempo.theory.expected import Expected
from fedtempo.theory.problem_constants import Constants, optima


@dataclass(frozen=True, repr=False)
class Residuals(Brief):
    """R, Σ, Σ_1, Σ_2 and P of a run, by kinds of rounds.

    Example:
        >>> constants = ft.theory.constants(ft.problems.quadratics(centers=[[0.0], [1.0]]), batch_size=None)
        >>> law = ft.theory.expected_from_scheme(ft.AsyncFedAvg(), ft.FixedTimes([2, 1]), weights="identical")
        >>> left = ft.theory.residuals(constants, law)
        >>> left.run_optimum.round(3)  # 1/2 is the optimum that was meant
        array([0.667])
        >>> round(left.residual, 3), round(left.sigma_1, 3), round(left.chi_squared, 3)
        (0.111, 0.0, 0.125)
    """

    constants: Constants
    expected: Expected
    types: DataTypes

    @cached_property
    def busy(self) -> Ints:
        """Kinds of rounds in which somebody takes part."""
        return np.flatnonzero(self.expected.total > 0)

    @cached_property
    def run_optimum(self) -> Floats:
        """[dimension] θ̄."""
        return np.asarray(optima(self.constants.losses, self.expected.expected_weight[None, :]).points[0])

    @cached_property
    def round_optima(self) -> Floats:
        """[kinds, dimension] θ̄^n; zeros for empty rounds."""
        found = np.zeros((len(self.expected.weights), self.constants.losses.dimension))
        rows, which = np.unique(self.expected.normalised[self.busy], axis=0, return_inverse=True)
        found[self.busy] = optima(self.constants.losses, rows).points[which.ravel()]
        return found

    @cached_property
    def round_minima(self) -> Floats:
        """[kinds] L^n(θ̄^n); 0 for empty rounds."""
        return np.asarray((self.expected.weights * self.constants.losses.losses(self.round_optima)).sum(axis=1))

    def _mean(self, per_kind: Floats) -> float:
        return float(self.expected.rounds @ per_kind / self.expected.num_rounds)

    @cached_property
    def round_gaps(self) -> Floats:
        """[kinds] L^n(θ̄) − L^n(θ̄^n), which is not negative."""
        at = self.expected.weights @ self.constants.losses.losses(self.run_optimum)
        return np.maximum(at - self.round_minima, 0.0)

    @property
    def residual(self) -> float:
        """R."""
        return self._mean(self.round_gaps)

    @cached_property
    def run_minimum(self) -> float:
        """L̄(θ̄)."""
        return float(self.expected.expected_weight @ self.constants.losses.losses(self.run_optimum))

    @cached_property
    def _squares(self) -> Floats:
        """[kinds, clients] E‖∇L_i(θ̄^n, ξ)‖²."""
        return self.constants.losses.gradient_squares(self.round_optima, self.constants.batch_size)

    @property
    def sigma_1(self) -> float:
        """Σ_1."""
        return self._mean((self.expected.normalised * self._squares).sum(axis=1))

    @property
    def sigma_2(self) -> float:
        """Σ_2."""
        return self._mean((self.expected.normalised**2 * self._squares).sum(axis=1))

    @property
    def sigma(self) -> float:
        """Σ."""
        losses = self.constants.losses
        squares = losses.gradient_squares(self.run_optimum, self.constants.batch_size)
        return float(self.expected.expected_weight @ squares)

    @cached_property
    def by_type(self) -> TypeWeights:
        """r_j, s_j(n), s_j and χ_n²."""
        return TypeWeights.of(self.types, self.expected, self.constants.problem.importance.values)

    def type_gaps(self, losses: Floats) -> Floats:
        """[..., types] F_j − F_j*, of clients' losses [..., clients]: those of a type share theirs."""
        first = [clients[0] for clients in self.types.clients]
        return np.asarray((losses - self.constants.client_minima)[..., first])

    @cached_property
    def round_imbalance(self) -> Floats:
        """[kinds] Σ_{j∈W_n} s̃_j(n) [F_j(θ̄^n) − F_j*]."""
        gaps = self.type_gaps(self.constants.losses.losses(self.round_optima))
        return np.asarray((self.by_type.normalised * gaps).sum(axis=1))

    @property
    def unfairness(self) -> float:
        """P, without the constant that Theorem 2 puts before it."""
        return max(0.0, self._mean(self.by_type.chi_squared * self.round_imbalance))

    @cached_property
    def unseen(self) -> Floats:
        """[kinds, types] r_j where type j takes no part in the round, else 0: the weights of U."""
        return np.where(self.by_type.represented, 0.0, self.by_type.type_importance)

    @property
    def never_seen(self) -> Floats:
        """[types] r_j where type j never takes part, else 0."""
        return np.where(self.by_type.expected_weight > 0, 0.0, self.by_type.type_importance)

    @property
    def chi_squared(self) -> float:
        """χ², over the types that take part at all."""
        share, importance = self.by_type.normalised_run, self.by_type.type_importance
        here = share > 0
        return float(((importance[here] - share[here]) ** 2 / share[here]).sum())

    @property
    def heterogeneity(self) -> float:
        """L̄(θ̄) − Σ s_j F_j*."""
        return self.run_minimum - float(self.expected.expected_weight @ self.constants.client_minima)


def residuals(constants: Constants, expected: Expected, *, types: DataTypes | None = None) -> Residuals:
    """What is left at the optima of a run's rounds.

    Example:
        >>> times = ft.FixedTimes([2, 1])
        >>> constants = ft.theory.constants(ft.problems.quadratics(centers=[[0.0], [1.0]]), batch_size=None)
        >>> for scheme in (ft.FedAvg(), ft.FedFix(1), ft.AsyncFedAvg()):
        ...     law = ft.theory.expected_from_scheme(scheme, times)
        ...     print(scheme, round(ft.theory.residuals(constants, law).residual, 4))
        FedAvg 0.0
        FedFix(1) 0.0417
        AsyncFedAvg 0.125
    """
    clients = constants.problem.num_clients
    if expected.num_clients != clients:
        raise InputError(
            f"expected weights of {expected.num_clients} clients, but the problem has {clients}; "
            "give the timeline or the times of its clients"
        )
    if not expected.total.any():
        raise InputError("no client takes part in any round, so there is nothing to minimise; give more rounds")
    return Residuals(constants, expected, DataTypes.all_different(clients) if types is None else types)
