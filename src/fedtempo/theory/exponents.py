"""Corollary 2: which W = O(N^a), τ = O(N^b) and η_l ∝ N^−c let the bound of Theorem 3 go to 0, and how fast.

terms:  1/(η_l N) = N^(c−1)    η_l = N^−c    η_l² τ² = N^(2(b−c))    η_l W = N^(a−c)    fall if max(a, b) < c < 1
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtempo.errors import InputError


@dataclass(frozen=True)
class Convergence:
    """Whether Corollary 2's conditions hold, and those that do not."""

    failed: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.failed


def converges(a: float, b: float, c: float) -> Convergence:
    """Corollary 2: with W = O(N^a), τ = O(N^b), η_l ∝ N^−c the bound goes to 0 if max(a, b) < c < 1 (and so c > 0)."""
    conditions = {
        "a < c: the window's term η_l W must vanish": a < c,
        "b < c: the delay's term η_l τ must vanish": b < c,
        "c < 1: the initial term 1/(η_l N) must vanish": c < 1,
        "c > 0: the learning rate must fall": c > 0,
    }
    return Convergence(tuple(name for name, holds in conditions.items() if not holds))


def slowest_exponent(a: float, b: float, c: float) -> float:
    """The largest power of N among 1/(η_l N), η_l, η_l² τ² and η_l W: the bound falls as N to this power."""
    return max(c - 1.0, -c, 2.0 * (b - c), a - c)


def best_exponent(a: float, b: float) -> float:
    """The c that makes Theorem 3's bound fall fastest: c = max((1+a)/2, (1+2b)/3, 1/2), and the bound as N^(c−1)."""
    if a < 0 or b < 0 or max(a, b) >= 1:
        raise InputError(
            f"a = {a}, b = {b}: Corollary 2 needs exponents of at least 0 and below 1 (W = o(N), τ = o(N))"
        )
    return max((1.0 + a) / 2.0, (1.0 + 2.0 * b) / 3.0)
