"""α, β and γ_i: how the clients' weights in one round vary together (Assumption 5, Lemma 1).

    E‖Σ_i ω_i x_i‖² = Σ_i γ_i ‖x_i‖² + α ‖Σ_i q_i x_i‖²    if E[ω_i ω_j] = α q_i q_j for i ≠ j,   γ_i = E[ω_i²] − α q_i²

Where pairs differ, or for another α, the left-hand side is at most the right-hand side with

    γ_i = E[ω_i²] − α q_i² + Σ_{j≠i} |E[ω_i ω_j] − α q_i q_j|

and β = max γ_i/q_i over q_i > 0. α is `co_participation`, β `weight_spread`, E[ω_i²] `square`, q_i `expected`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.times import Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError


@dataclass(frozen=True, eq=False, repr=False)
class Covariance(Brief):
    """α, γ_i and β of one kind of round, or of several with one α.

    `Expected` has them for a scheme or a timeline.

    Example:
        >>> from fedtempo.theory.covariance import independent
        >>> found = independent(weights=np.array([2.0, 4.0]), share=np.array([0.5, 0.25]))
        >>> found.co_participation, found.gamma, found.weight_spread
        (1.0, array([1., 3.]), 3.0)
    """

    expected: Floats
    """[…, clients] q_i(n)."""
    gamma: Floats
    """[…, clients] γ_i(n)."""
    co_participation: float

    @property
    def weight_spread(self) -> float:
        """β; 0 where nobody takes part."""
        taking = self.expected > 0
        return float((self.gamma[taking] / self.expected[taking]).max(initial=0.0))


def one_ratio(expected: Floats, square: Floats, ratio: float, co_participation: float | None = None) -> Covariance:
    """Where E[ω_i ω_j] = ratio × q_i q_j for every pair: α is that ratio, unless another is asked for."""
    alpha = ratio if co_participation is None else checked(co_participation)
    others = expected * (expected.sum(axis=-1, keepdims=True) - expected)
    gamma = square - alpha * expected**2 + abs(ratio - alpha) * others
    return Covariance(expected, np.maximum(gamma, 0.0), alpha)


def by_pairs(expected: Floats, second_moments: Floats, co_participation: float | None = None) -> Covariance:
    """From E[ω_i ω_j] as a matrix: the α that makes β smallest, unless one is asked for."""
    if co_participation is not None:
        return _by_pairs(expected, second_moments, checked(co_participation))
    from scipy.optimize import minimize_scalar

    def spread(alpha: float) -> float:
        return _by_pairs(expected, second_moments, alpha).weight_spread

    inside = minimize_scalar(spread, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-12})
    return _by_pairs(expected, second_moments, min((0.0, 1.0, float(inside.x)), key=spread))


def _by_pairs(expected: Floats, second_moments: Floats, alpha: float) -> Covariance:
    left = second_moments - alpha * np.outer(expected, expected)
    apart = np.abs(left).sum(axis=1) - np.abs(np.diag(left))
    return Covariance(expected, np.maximum(np.diag(left) + apart, 0.0), alpha)


def fixed_set(expected: Floats, co_participation: float | None = None) -> Covariance:
    """Who takes part is known: α = 1 and γ_i = 0; with another α, γ_i = (1 − α) q_i q(n)."""
    return one_ratio(expected, expected**2, 1.0, co_participation)


def one_at_a_time(weights: Floats, share: Floats, co_participation: float | None = None) -> Covariance:
    """One client a round, client i with probability share_i (asynchronous): α = 0, γ_i = d_i q_i, β = max d_i."""
    if len(share) == 1:
        return fixed_set(weights * share, co_participation)
    return one_ratio(weights * share, weights**2 * share, 0.0, co_participation)


def independent(weights: Floats, share: Floats, co_participation: float | None = None) -> Covariance:
    """Each client by itself with probability share_i (FedFix, random times): α = 1, β = max d_i (1 − share_i)."""
    expected = weights * share
    if co_participation in (None, 1.0):  # E[ω_i²] − q_i² without the loss of digits
        return Covariance(expected, np.asarray(weights**2 * share * (1.0 - share)), 1.0)
    return one_ratio(expected, weights**2 * share, 1.0, co_participation)


def uniform_sample(weights: Floats, size: int, co_participation: float | None = None) -> Covariance:
    """`size` of M clients without replacement: α = M(m−1)/(m(M−1)), β = max d_i (M−m)/(M−1)."""
    clients = len(weights)
    if size == clients:
        return fixed_set(weights, co_participation)
    ratio = clients * (size - 1) / (size * (clients - 1))
    return one_ratio(weights * size / clients, weights**2 * size / clients, ratio, co_participation)


def multinomial_sample(
    weights: Floats, importance: Floats, size: int, co_participation: float | None = None
) -> Covariance:
    """`size` draws, client i with probability p_i: α = 1 − 1/m, β = max d_i (which is 1/m where q_i = p_i)."""
    if len(weights) == 1:
        return fixed_set(weights * size, co_participation)
    expected = weights * size * importance
    square = weights**2 * size * importance * (1.0 + (size - 1) * importance)
    return one_ratio(expected, square, 1.0 - 1.0 / size, co_participation)


def mean_square(second_moments: Floats, vectors: ArrayLike) -> float:
    """E‖Σ_i ω_i x_i‖² = Σ_ij E[ω_i ω_j] ⟨x_i, x_j⟩, the left of Lemma 1; `vectors` is [clients, dimension]."""
    x = np.asarray(vectors, dtype=np.float64)
    return float((second_moments * (x @ x.T)).sum())


def lemma_1(covariance: Covariance, vectors: ArrayLike) -> float:
    """Σ_i γ_i ‖x_i‖² + α ‖Σ_i q_i x_i‖², the right of Lemma 1.

    Example:
        >>> from fedtempo.theory.covariance import independent
        >>> covariance = independent(weights=np.array([2.0, 4.0]), share=np.array([0.5, 0.25]))
        >>> ft.theory.lemma_1(covariance, [[1.0], [-1.0]])  # E‖ω_1 x_1 + ω_2 x_2‖²
        4.0
    """
    x = np.asarray(vectors, dtype=np.float64)
    mean = covariance.expected @ x
    return float(covariance.gamma @ (x**2).sum(axis=1) + covariance.co_participation * (mean @ mean))


def checked(co_participation: float) -> float:
    """α, if it lies between 0 and 1."""
    if not 0.0 <= co_participation <= 1.0:
        raise InputError(f"co_participation: {co_participation} is not between 0 and 1, where Lemma 1 needs α")
    return float(co_participation)
