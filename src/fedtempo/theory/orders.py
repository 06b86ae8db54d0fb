"""The printed forms of ε, scheme by scheme, in the orders of N, K, M, τ and W (sections 4.2 to 4.4, appendix C).

    FedAvg       D/√(KN) + (K−1)/N·Σ + 1/√(KN)·Σ/M
    asynchronous D/√(KN) + (K−1)/N·Σ + h/√(KN)·(R+Σ) + h³·K/N·M²·(R+Σ) + (W−1)/√(KN),    h = τ_M/τ_0
    FedFix       D/√(KN) + (K−1)/N·(R+Σ) + (1/√(KN) + K/N·c²)·(R + c·Σ/M) + (W−1)/√(KN),    c = ⌈τ_M/Δt⌉
    centralized  D/(η_l KN) + η_l·Σ
    unbiased     D/(η_g η_l KN) + η_g η_l·α·Σ/M + η_l²(K−1)²·Σ + η_g η_l·β·Σ
    biased       FedAvg + η_g η_l (W−1) K

Every O-constant is 1. D = ‖θ⁰−θ*‖² is `distance`, Σ `sigma`, R `disparity`, N `rounds`, K `local_steps`, M `clients`.
With η_l = 1/√(KN), ε_W of Theorem 3 is (W−1)·√(K/N) and ε_K has R beside Σ: the printed window terms lack a factor K,
the asynchronous second term lacks R. `as_printed=False` puts them back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError


@dataclass(frozen=True)
class Order:
    """ε term by term."""

    terms: dict[str, float]
    """By the names of Theorem 3, epsilon_F to epsilon_W; the part of ε_α and ε_β with τ² by itself, as "delayed"."""
    rounds: float
    """N."""

    @property
    def total(self) -> float:
        """ε."""
        return sum(self.terms.values())


def fedavg(*, rounds: float, local_steps: int, clients: int, distance: float, sigma: float) -> Order:
    """ε of synchronous FedAvg."""
    n, k = _positive(rounds, local_steps)
    return Order(
        {
            "epsilon_F": distance / sqrt(k * n),
            "epsilon_K": (k - 1) / n * sigma,
            "epsilon_alpha": sigma / clients / sqrt(k * n),
        },
        n,
    )


def asynchronous(
    *,
    rounds: float,
    local_steps: int,
    clients: int,
    distance: float,
    sigma: float,
    disparity: float,
    slowest_over_fastest: float,
    window: float,
    as_printed: bool = True,
) -> Order:
    """ε of asynchronous FedAvg; `slowest_over_fastest` is τ_M/τ_0."""
    n, k = _positive(rounds, local_steps)
    ratio = slowest_over_fastest
    residue = disparity + sigma
    terms = {
        "epsilon_F": distance / sqrt(k * n),
        "epsilon_K": (k - 1) / n * (sigma if as_printed else residue),
        "epsilon_beta": ratio / sqrt(k * n) * residue,
        "epsilon_beta, delayed": ratio**3 * k / n * clients**2 * residue,
        "epsilon_W": _window(window, n, k, as_printed),
    }
    return Order(terms, n)


def fedfix(
    *,
    rounds: float,
    local_steps: int,
    clients: int,
    distance: float,
    sigma: float,
    disparity: float,
    slowest_rounds: float,
    window: float,
    as_printed: bool = True,
) -> Order:
    """ε of FedFix; `slowest_rounds` is ⌈τ_M/Δt⌉."""
    n, k = _positive(rounds, local_steps)
    residue = disparity + slowest_rounds * sigma / clients
    terms = {
        "epsilon_F": distance / sqrt(k * n),
        "epsilon_K": (k - 1) / n * (disparity + sigma),
        "epsilon_alpha": residue / sqrt(k * n),
        "epsilon_alpha, delayed": k / n * slowest_rounds**2 * residue,
        "epsilon_W": _window(window, n, k, as_printed),
    }
    return Order(terms, n)


def centralized(*, rounds: float, local_steps: int, distance: float, sigma: float, local_lr: float) -> Order:
    """ε of centralized learning."""
    n, k = _positive(rounds, local_steps)
    return Order({"epsilon_F": distance / (local_lr * k * n), "epsilon_alpha": local_lr * sigma}, n)


def unbiased_sampling(
    *,
    rounds: float,
    local_steps: int,
    clients: int,
    distance: float,
    sigma: float,
    co_participation: float,
    weight_spread: float,
    local_lr: float,
    server_lr: float = 1.0,
) -> Order:
    """ε of FedAvg with clients sampled such that q_i(n) = p_i."""
    n, k = _positive(rounds, local_steps)
    step = server_lr * local_lr
    terms = {
        "epsilon_F": distance / (step * k * n),
        "epsilon_K": local_lr**2 * (k - 1) ** 2 * sigma,
        "epsilon_alpha": step * co_participation * sigma / clients,
        "epsilon_beta": step * weight_spread * sigma,
    }
    return Order(terms, n)


def biased_sampling(
    *,
    rounds: float,
    local_steps: int,
    clients: int,
    distance: float,
    sigma: float,
    window: float,
    local_lr: float,
    server_lr: float = 1.0,
) -> Order:
    """ε of sampling by a criterion in a part of each window, made up for in the rest of it."""
    plain = fedavg(rounds=rounds, local_steps=local_steps, clients=clients, distance=distance, sigma=sigma)
    return Order({**plain.terms, "epsilon_W": server_lr * local_lr * (window - 1) * local_steps}, plain.rounds)


def window_share(importance: Iterable[Exact] | None, chosen: Iterable[int], share: float, clients: int) -> Floats:
    """[2, clients] q_i(n) of the rounds by the criterion and of the other ones, such that the window's mean is p_i.

    The criterion's rounds, a `share` of the window, take the `chosen` in proportion to p_i with total weight 1. The
    others can make up for that as long as the share is at most Σ_{i chosen} p_i.
    """
    p = Importance(importance, clients).values
    taken = np.isin(np.arange(clients), list(chosen))
    most = float(p[taken].sum())
    if not 0.0 < share < 1.0 or share > most:
        raise InputError(
            f"share: {share} of the window by the criterion; it must lie above 0, below 1 and be at most {most:g}, "
            "the importance of the chosen clients, or the rest of the window cannot make up for it"
        )
    by_criterion = np.where(taken, p, 0.0) / most
    return np.stack([by_criterion, (p - share * by_criterion) / (1.0 - share)])


def _window(window: float, rounds: float, local_steps: int, as_printed: bool) -> float:
    steps = 1 if as_printed else local_steps
    return steps * (window - 1) / sqrt(local_steps * rounds)


def _positive(rounds: float, local_steps: int) -> tuple[float, int]:
    if rounds <= 0 or local_steps < 1:
        raise InputError(f"{rounds} rounds of {local_steps} local steps; both must be at least 1")
    return rounds, local_steps
