"""Theorems 1, 2 and 3 with every constant written out, as printed and as they hold (section 3, appendices A and B).

Theorem 1, with η̃ = η_g η_l, e = η̃ + 16ρLη̃²K²τ², D = 6η_l²(K−1)²L² and Z̄ its left-hand side:

    Z̄ ≤ R + ε_F + ε_K + ε_α + ε_β                                            as it holds            as printed
    ε_F = ‖θ⁰ − θ̄‖²/(η̃KN)
    ε_K = 4D'R + a ρ η_l²(K−1)² L Σ_1                                          D' = κD, a = 12κ       D' = D, a = 6
    ε_α = α e [24ρLR + b ρ²D'Σ_1 + 6ρ²Σ_2]                                     b = 6                  b = 3
    ε_β = β e_β [12ρLR + 6ρ²Σ_1]                                               e_β = e + (K−1)η̃      e_β = e

Three lines of the proof are mended.

Lemma 3 divides by 1 − D ≥ ½ and so doubles every term, σ_1's too: 6η_l²(K−1)²σ_1 becomes 12, and 3Dσ_1 in Lemma 5
becomes 6D. Its q(n) before τΣQ is not there (it would be wrong below 1); ρ ≥ 1 covers it.

Lemma 3 also writes η_l Σ q̃_j g_j where θ^{n,k} moves by η̃ Σ ω_j g_j. With x_i = Σ_{l<k} g_i, x̄ = Σ q̃_i x_i and
c = η_g q(n), Lemma 1 gives

    Σ_i q̃_i E‖x_i − η_g Σ_j ω_j x_j‖² ≤ (1 + η_g²βq(n)) Σ_i q̃_i‖x_i‖² + (αc² − 2c)‖x̄‖² ≤ κ Σ_i q̃_i‖x_i‖²
    κ = 1 + η_g²βq(n) + max(0, αc² − 2c),  which is 1 for certain participation with η_g q(n) ≤ 2

Lemma 2 averages ⟨Σ ω_i g_i^k, θ^{n,k} − x⟩ over S_n as if θ^{n,k} did not depend on S_n. It does for k ≥ 1: with
V^k = Σ (ω_i − q_i) g_i^k, which has mean zero, θ^{n,k} carries −η̃ Σ_{l<k} V^l, so that a round gains

    2η̃² Σ_k E⟨V^k, Σ_{l<k} V^l⟩ = η̃² [E‖Σ_k V^k‖² − Σ_k E‖V^k‖²] ≤ η̃² (K−1) Σ_k E‖V^k‖²
    E‖V^k‖² ≤ Σ_i γ_i‖g_i^k‖² − (1−α)‖Σ_i q_i g_i^k‖² ≤ βq(n) S(n,k)                   (Lemma 1)

So Lemma 2 holds with Kβ for β, and Lemma 6, on whole rounds, as it stands: K before η̃ in e_β, none before its delay.

Theorem 2 has a 1/q(n) too many, which is wrong for q(n) > 1:

    ‖∇L(θ)‖² ≤ 4L(1+χ_n²)/q(n) · [L^n(θ) − L^n(θ̄^n)]
                + 4Lχ_n² Σ_{j∈W_n} s̃_j(n)[F_j(θ̄^n) − F_j*] + 4L Σ_{j∉W_n} r_j[F_j(θ) − F_j*]

Its proof loses a factor 2 as well, where 2‖∇L − ∇L̃^n‖² becomes Lemma 7 without the 2, but 4L holds. With sums over W_n,
x = Σ_{j∉W_n} r_j, v = ∇L̃^n = Σ s̃_j ∇F_j, b = Σ [r_j − (1−x)s̃_j] ∇F_j and c = Σ_{j∉W_n} r_j ∇F_j

    ∇L = (1−x)v + b + c,   so that  ‖∇L‖² ≤ 2/(2−x) ‖(1−x)v + b‖² + 2/x ‖c‖² ≤ 2(1−x)‖v‖² + 2‖b‖² + 2/x ‖c‖²
    ‖v‖² ≤ 2L [L̃^n(θ) − L̃^n(θ̄^n)],   ‖b‖² ≤ (χ_n²−x²) Σ s̃_j ‖∇F_j‖²,
    ‖c‖² ≤ x Σ_{j∉W_n} r_j ‖∇F_j‖²,          ‖∇F_j‖² ≤ 2L [F_j − F_j*]

Theorem 3 has ε_W = ½ q ρ η̃ K (W−1) B² with q = Σ q_i: in a window (1/W) Σ_{n,m} q_i(m) [L_i(θ^{n,k}) − L_i(θ^{m,k})] is
at most (1/W) Σ_{n,m} q_i(m) · B · |n−m|Kη̃ρB, and Σ_n |n−m| ≤ W(W−1)/2.

Corollary 2: which W = O(N^a), τ = O(N^b) and η_l ∝ N^−c let the bound of Theorem 3 go to 0, and how fast.

    1/(η_l N) = N^(c−1)    η_l = N^−c    η_l² τ² = N^(2(b−c))    η_l W = N^(a−c)    fall if max(a, b) < c < 1
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.simulation.arguments import local_rule, real
from fedtempo.theory.ceiling import Setting
from fedtempo.theory.round_residuals import Residuals
from fedtempo.training.solvers import LocalRule, LocalSGD


@dataclass(frozen=True)
class Steps:
    """K plain SGD steps of one rate, and a server step."""

    local_lr: float
    local_steps: int
    batch_size: int | None
    server_lr: float
    clip: float | None = None

    @property
    def effective_lr(self) -> float:
        """η̃ = η_g η_l."""
        return self.server_lr * self.local_lr

    @classmethod
    def of(cls, local: LocalRule, server_lr: float = 1.0) -> Steps:
        """From local work; the theory covers plain SGD with fresh rows in every step, one value of each number."""
        rule = local_rule(local)
        if not isinstance(rule, LocalSGD):
            raise InputError(f"local: the bounds cover SGD, not {rule!r}; give ft.LocalSGD(steps=5, lr=0.1)")
        if rule.options:
            raise InputError(f"local: the bounds cover SGD without {', '.join(rule.options)}; leave it out")
        chosen = {}
        for axis in rule.axes:
            if len(axis.values) != 1:
                raise InputError(f"{axis.name}: {list(axis.values)}; a bound is for one value, give one at a time")
            chosen[axis.name] = axis.values[0]
        batch = chosen["batch_size"]
        if rule.draw != "uniform" and batch is not None:
            raise InputError(
                f"draw: {rule.draw!r} makes a step's rows depend on the steps before, so that its gradient is biased "
                "(Assumption 3); use draw='uniform'"
            )
        clip = chosen.get("clip")
        return cls(
            local_lr=float(chosen["local_lr"] or 0.0),
            local_steps=int(chosen["local_steps"] or 1),
            batch_size=None if batch is None else int(batch),
            server_lr=real("server_lr", server_lr),
            clip=None if clip is None else float(clip),
        )


@dataclass(frozen=True)
class Convergence:
    """Whether Corollary 2's conditions hold, and those that do not.

    `converges` makes it; it is true where they hold.

    Example:
        >>> found = ft.theory.converges(a=0.6, b=0, c=0.5)
        >>> bool(found), found.failed
        (False, ("a < c: the window's term η_l W must vanish",))
    """

    failed: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.failed


def converges(a: float, b: float, c: float) -> Convergence:
    """Corollary 2: with W = O(N^a), τ = O(N^b), η_l ∝ N^−c the bound goes to 0 if max(a, b) < c < 1 (and so c > 0).

    Example:
        >>> bool(ft.theory.converges(a=0, b=0.2, c=0.5))  # W stays bounded, delays grow as N^0.2, rates fall as 1/√N
        True
        >>> bool(ft.theory.converges(a=0.6, b=0, c=0.5))  # the window grows faster than rates fall
        False
    """
    conditions = {
        "a < c: the window's term η_l W must vanish": a < c,
        "b < c: the delay's term η_l τ must vanish": b < c,
        "c < 1: the initial term 1/(η_l N) must vanish": c < 1,
        "c > 0: the learning rate must fall": c > 0,
    }
    return Convergence(tuple(name for name, holds in conditions.items() if not holds))


def slowest_exponent(a: float, b: float, c: float) -> float:
    """The largest power of N among 1/(η_l N), η_l, η_l² τ² and η_l W: the bound falls as N to this power.

    Example:
        >>> ft.theory.slowest_exponent(a=0, b=0, c=0.5), ft.theory.slowest_exponent(a=0, b=0, c=0.25)
        (-0.5, -0.25)
    """
    return max(c - 1.0, -c, 2.0 * (b - c), a - c)


def best_exponent(a: float, b: float) -> float:
    """The c that makes Theorem 3's bound fall fastest: c = max((1+a)/2, (1+2b)/3, 1/2), and the bound as N^(c−1).

    Example:
        >>> c = ft.theory.best_exponent(a=0, b=0)
        >>> c, ft.theory.slowest_exponent(0, 0, c)  # rates fall as 1/√N, and so does the bound
        (0.5, -0.5)
    """
    if a < 0 or b < 0 or max(a, b) >= 1:
        raise InputError(
            f"a = {a}, b = {b}: Corollary 2 needs exponents of at least 0 and below 1 (W = o(N), τ = o(N))"
        )
    return max((1.0 + a) / 2.0, (1.0 + 2.0 * b) / 3.0)


@dataclass(frozen=True)
class TheoremOne:
    """The terms of Theorem 1."""

    residual: float
    """R."""
    start: float
    """ε_F."""
    drift: float
    """ε_K."""
    joint: float
    """ε_α."""
    spread: float
    """ε_β."""

    @property
    def error(self) -> float:
        """ε_F + ε_K + ε_α + ε_β."""
        return self.start + self.drift + self.joint + self.spread

    @property
    def total(self) -> float:
        """The right-hand side."""
        return self.residual + self.error


def theorem_1(left: Residuals, setting: Setting, steps: Steps, start: Floats, *, printed: bool = False) -> TheoremOne:
    """The right-hand side of Theorem 1 from the model `start`."""
    s, lr, effective = setting, steps.local_lr, steps.effective_lr
    rho, smooth, moved = s.max_total_weight, s.smoothness, lr**2 * (s.local_steps - 1) ** 2
    kappa = 1.0 if printed else s.drift_factor
    drift = 6.0 * moved * smooth**2 * kappa
    delayed = 16.0 * rho * smooth * (effective * s.local_steps * s.max_delay) ** 2
    distance = float(((start - left.run_optimum) ** 2).sum())
    residual, one, two = left.residual, left.sigma_1, left.sigma_2
    twice = 1.0 if printed else 2.0
    own = effective * (1 if printed else s.local_steps) + delayed
    return TheoremOne(
        residual=residual,
        start=distance / (effective * s.local_steps * left.expected.num_rounds),
        drift=4.0 * drift * residual + twice * 6.0 * kappa * rho * moved * smooth * one,
        joint=s.co_participation
        * (effective + delayed)
        * (24.0 * rho * smooth * residual + twice * 3.0 * rho**2 * drift * one + 6.0 * rho**2 * two),
        spread=s.weight_spread * own * (12.0 * rho * smooth * residual + 6.0 * rho**2 * one),
    )


def theorem_2_at(left: Residuals, kind: int, point: Floats, *, printed: bool = False) -> float:
    """The right-hand side of Theorem 2's inequality at one θ, for a kind of round."""
    smooth = left.constants.full_smoothness
    losses = left.constants.losses.losses(point)
    total = float(left.expected.total[kind])
    gap = float(left.expected.weights[kind] @ losses) - float(left.round_minima[kind])
    chi, imbalance = float(left.by_type.chi_squared[kind]), float(left.round_imbalance[kind])
    unseen = float(left.type_gaps(losses) @ left.unseen[kind])
    if total == 0:
        return 4.0 * smooth * unseen
    own = 1 / total**2 if printed else 1 / total
    return 4.0 * smooth * ((chi / total + own) * gap + chi * imbalance + unseen)


def theorem_2_factor(left: Residuals) -> float:
    """The largest over rounds with participants of 4L(1+χ_n²)/q(n): it multiplies Theorem 1's bound."""
    chi, total = left.by_type.chi_squared[left.busy], left.expected.total[left.busy]
    return 4.0 * left.constants.full_smoothness * float(((1 + chi) / total).max())


def step_bound(steps: Steps, total_weight: float, gradient_bound: float) -> float:
    """E‖θ^{n+1} − θ^n‖ ≤ η̃ q(n) K B with B of what clients step with, mini-batch gradients (before Theorem 3)."""
    return steps.effective_lr * total_weight * steps.local_steps * gradient_bound


def window_term(left: Residuals, steps: Steps, gradient_bound: float, window: int) -> float:
    """ε_W = ½ q ρ η̃ K (W−1) B²."""
    whole = float(left.expected.expected_weight.sum())
    furthest = step_bound(steps, left.expected.max_total_weight, gradient_bound)
    return 0.5 * whole * furthest * (window - 1) * gradient_bound
