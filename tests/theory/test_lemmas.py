"""Lemmas 1 to 6 on small rounds in which every set of participants and every batch is enumerated, so that expectations
are exact; where a printed form fails, its failure is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import quadratics
from fedtempo.theory.bounds import bound
from fedtempo.theory.expected import expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.round_residuals import residuals
from fedtempo.theory.theorems import Steps
from fedtempo.theory.virtual_models import virtual_models

ROUNDING = 1e-11


@dataclass
class Round:
    """Row r of client i has the gradient a_i (θ − c_ir); `law` lists (probability, ω) of every set of participants."""

    law: list
    a: np.ndarray  # [clients, dimension]
    c: np.ndarray  # [clients, rows, dimension]
    base: np.ndarray  # [clients, dimension] θ^{ρ_i(n)}
    model: np.ndarray  # [dimension] θ^n
    steps: int
    local_lr: float
    server_lr: float
    x: np.ndarray

    def __post_init__(self):
        self.q = sum(p * w for p, w in self.law)
        self.total = self.q.sum()
        self.share = self.q / self.total
        second = sum(p * np.outer(w, w) for p, w in self.law)
        ratio = second / np.outer(self.q, self.q)
        pairs = ratio[~np.eye(len(self.q), dtype=bool)]
        if len(pairs):
            assert np.ptp(pairs) < 1e-12  # Assumption 5
        self.alpha = float(pairs[0]) if len(pairs) else 1.0
        self.gamma = np.diag(second) - self.alpha * self.q**2
        self.beta = float((self.gamma / self.q).max())
        self.L = float(self.a.max())
        self.rate = self.server_lr * self.local_lr
        center = self.c.mean(axis=1)
        self.optimum = (self.share[:, None] * self.a * center).sum(axis=0) / (self.share[:, None] * self.a).sum(axis=0)

    def losses(self, theta):
        return 0.5 * (self.a[:, None] * (theta - self.c) ** 2).sum(axis=2).mean(axis=1)

    def gap(self, theta, other):
        return float(self.q @ (self.losses(theta) - self.losses(other)))

    @cached_property
    def outcomes(self):
        """(probability, ω, gradients [K, clients, d], local models [K, clients, d], virtual models [K + 1, d])."""
        clients, rows, _ = self.c.shape
        paths = []  # of each client, one for each sequence of rows
        for i in range(clients):
            own = []
            for batch in product(range(rows), repeat=self.steps):
                theta, local, gradients = self.base[i], [], []
                for r in batch:
                    local.append(theta)
                    gradients.append(self.a[i] * (theta - self.c[i, r]))
                    theta = theta - self.local_lr * gradients[-1]
                own.append((np.array(gradients), np.array(local)))
            paths.append(own)
        found = []
        for chosen in product(*paths):
            g = np.stack([gradients for gradients, _ in chosen], axis=1)
            local = np.stack([theta for _, theta in chosen], axis=1)
            for p, w in self.law:
                moved = np.concatenate([np.zeros((1, g.shape[2])), np.cumsum(w @ g, axis=0)])
                virtual = self.model - self.rate * moved
                found.append((p / rows ** (self.steps * clients), w, g, local, virtual))
        return found

    def mean(self, function):
        """The expectation of a function of (ω, gradients, local, virtual)."""
        return sum(o[0] * function(*o[1:]) for o in self.outcomes)

    @cached_property
    def delta(self):
        return self.mean(lambda w, g, t, v: _sq(v[-1] - self.x) - _sq(v[0] - self.x)) / self.steps

    @cached_property
    def inner(self):
        """D(x, n)."""

        def one(w, g, local, v):
            full = self.a * (local - self.c.mean(axis=1))
            return ((self.q @ full) * (v[:-1] - self.x)).sum() / self.steps

        return self.mean(one)

    @cached_property
    def R(self):
        return self.mean(lambda w, g, t, v: ((self.share @ g) ** 2).sum() / self.steps)

    @cached_property
    def S(self):
        return self.mean(lambda w, g, t, v: ((g**2).sum(axis=2) @ self.share).sum() / self.steps)

    @cached_property
    def phi(self):
        return self.mean(lambda w, g, t, v: (((t - v[:-1, None]) ** 2).sum(axis=2) @ self.share).sum() / self.steps)

    @cached_property
    def Z(self):
        return self.mean(lambda w, g, t, v: sum(self.gap(y, self.optimum) for y in v[:-1]) / self.steps)

    @cached_property
    def Xi(self):
        return self.mean(lambda w, g, t, v: sum(self.gap(y, self.x) for y in v[:-1]) / self.steps)

    @cached_property
    def Q(self):
        return self.mean(lambda w, g, t, v: _sq(v[-1] - v[0]))

    @property
    def T(self):
        """Σ q̃_i ‖θ^{ρ_i(n)} − θ^n‖², which the delays bound by τ Σ_s Q(n − s)."""
        return float(self.share @ ((self.base - self.model) ** 2).sum(axis=1))

    def sigma(self, power):
        rows = ((self.a[:, None] * (self.optimum - self.c)) ** 2).sum(axis=2).mean(axis=1)
        return float(self.share**power @ rows)

    @property
    def kappa(self):
        c = self.server_lr * self.total
        return 1 + self.server_lr**2 * self.beta * self.total + max(0.0, self.alpha * c**2 - 2 * c)

    def drift(self, kappa=1.0):
        """D = 6η_l²(K−1)²L², times κ."""
        return 6 * kappa * (self.local_lr * (self.steps - 1) * self.L) ** 2


def _sq(vector):
    return float((vector**2).sum())


def uniform(d, size):
    sets = list(combinations(range(len(d)), size))
    return [(1 / len(sets), np.array([d[i] if i in s else 0.0 for i in range(len(d))])) for s in sets]


def independent(d, share):
    found = []
    for here in product([0, 1], repeat=len(d)):
        p = np.prod([s if h else 1 - s for s, h in zip(share, here, strict=True)])
        found.append((float(p), d * np.array(here)))
    return found


def drawn(number):
    """A random round with a random law, at a rate with κD ≤ ½."""
    rng = np.random.default_rng([5, number])
    clients, dimension = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    steps = int(rng.integers(1, 4)) if clients < 3 else int(rng.integers(1, 3))
    rows = int(rng.integers(1, 3))
    d = rng.uniform(0.05, 3.0, size=clients)
    kind = number % 3
    if kind == 0 or clients == 1:
        law = [(1.0, d)]
    elif kind == 1:
        law = uniform(d, int(rng.integers(1, clients + 1)))
    else:
        law = independent(d, rng.uniform(0.1, 1.0, size=clients))
    scale = float(rng.choice([0.0, 0.1, 1.0]))
    model = rng.standard_normal(dimension)
    made = Round(
        law,
        a=rng.uniform(0.05, 1.0, size=(clients, dimension)),
        c=rng.standard_normal((clients, 1, dimension)) + scale * rng.standard_normal((clients, rows, dimension)),
        base=model + float(rng.choice([0.0, 0.1, 1.0])) * rng.standard_normal((clients, dimension)),
        model=model,
        steps=steps,
        local_lr=1.0,
        server_lr=float(rng.choice([0.3, 1.0, 3.0])),
        x=rng.standard_normal(dimension),
    )
    most = (1 / (12 * made.kappa)) ** 0.5 / (max(steps - 1, 1) * made.L)
    made.local_lr = float(rng.choice([1.0, 0.3, 0.01])) * most
    made.rate = made.server_lr * made.local_lr
    return made


ROUNDS = [drawn(k) for k in range(150)]


def opposite(steps, local_lr=0.01, *, spread=1.0, server_lr=1.0, d=(1.0, 1.0)):
    """Two opposite quadratics, one of them sampled, from the optimum on."""
    return Round(
        uniform(np.array(d), 1),
        a=np.ones((2, 1)),
        c=np.array([[[spread]], [[-spread]]]),
        base=np.zeros((2, 1)),
        model=np.zeros(1),
        steps=steps,
        local_lr=local_lr,
        server_lr=server_lr,
        x=np.zeros(1),
    )


# Lemma 1


def test_lemma_1_is_an_identity():
    rng = np.random.default_rng(0)
    for r in ROUNDS:
        x = rng.standard_normal((len(r.q), 2))
        left = sum(p * _sq(w @ x) for p, w in r.law)
        right = r.gamma @ (x**2).sum(axis=1) + r.alpha * _sq(r.q @ x)
        assert left == pytest.approx(right, rel=1e-12)
        assert (r.gamma >= -ROUNDING).all()


def test_lemma_1_remark_fails_for_opposite_vectors():
    """Σ_{i≠j} ⟨q_i x_i, q_j x_j⟩ ≥ 0 is false with x_1 = −x_2: E‖Σ ω_i x_i‖² does not grow with α."""
    q, x = np.array([0.5, 0.5]), np.array([[1.0], [-1.0]])
    cross = _sq(q @ x) - (q**2) @ (x**2).sum(axis=1)
    assert cross == -0.5


# Lemma 2


def _lemma_2(r, steps):
    return -2 * r.rate * r.inner + r.rate**2 * r.alpha * r.total**2 * r.R + r.rate**2 * steps * r.beta * r.total * r.S


def test_lemma_2_holds_with_beta_times_k():
    for r in ROUNDS:
        assert r.delta <= _lemma_2(r, r.steps) + ROUNDING
        if r.steps == 1:  # as printed, and then K is 1
            assert r.delta <= _lemma_2(r, 1) + ROUNDING


@pytest.mark.parametrize("steps", [2, 3, 10])
def test_lemma_2_as_printed_fails_where_the_sample_moves_the_virtual_model(steps):
    """Line "taking the expectation over S_n": θ^{n,k} for k ≥ 1 already depends on S_n."""
    r = opposite(steps)
    assert r.delta > _lemma_2(r, 1) * 1.5
    assert r.delta <= _lemma_2(r, steps) + ROUNDING
    assert r.delta / _lemma_2(r, steps) > 0.9  # so that no smaller power of K would do


def test_lemma_2_gains_exactly_the_covariance_along_the_round():
    """Δ = −2η̃D + η̃²[E‖Σ_k V^k‖² + Σ_k E‖Σ q_i g_i^k‖²]/K, V^k = Σ (ω_i − q_i) g_i^k: nothing else is lost."""
    for r in ROUNDS[:60]:
        inner = r.mean(lambda w, g, t, v, r=r: ((r.q @ g) * (v[:-1] - r.x)).sum() / r.steps)
        noise = r.mean(lambda w, g, t, v, r=r: _sq((w - r.q) @ g.sum(axis=0)))
        plain = r.mean(lambda w, g, t, v, r=r: ((r.q @ g) ** 2).sum())
        assert r.delta == pytest.approx(-2 * r.rate * inner + r.rate**2 * (noise + plain) / r.steps, abs=1e-10)


# Lemma 3


def _phi(r, *, kappa, noise=12):
    D = r.drift(kappa)
    return 4 * r.T + 4 * D / r.L / r.total * r.Z + noise * kappa * (r.local_lr * (r.steps - 1)) ** 2 * r.sigma(1)


def test_lemma_3_holds_with_its_factors():
    for r in ROUNDS:
        assert r.drift(r.kappa) <= 0.5 + ROUNDING
        assert r.phi <= _phi(r, kappa=r.kappa) + ROUNDING
        assert 12 * r.L**2 * r.T + 12 * r.L / r.total * r.Z + 6 * r.sigma(1) + ROUNDING >= r.S


def test_lemma_3_as_printed_fails_below_weight_one():
    """The q(n) before τ Σ Q: with K = 1, φ(n) is the delays' part itself, and q(n) may be small."""
    line = ft.timeline(ft.AsyncFedAvg(), ft.FixedTimes([1, 1]), rounds=6)
    problem = quadratics(centers=[[1.0], [1.0]], curvatures=1.0, rows=1)
    steps = Steps(0.1, 1, None, 1.0)
    thetas = [v.models[0, 0] for v in virtual_models(constants(problem).losses, line, [0.1, 0.1], steps, init=[0.0])]
    phi = _sq(thetas[3] - thetas[2])  # of the client whose update from θ² comes in round 3
    assert line.staleness[3] == 1
    assert phi > 4 * 0.1 * 1 * phi  # 4 q(n) τ Q(n − 1)
    assert phi <= 4 * 1 * phi


@pytest.mark.parametrize("server_lr", [8.0, 20.0])
def test_lemma_3_as_printed_fails_above_server_weight_two(server_lr):
    """It writes η_l Σ q̃_j g_j where the virtual model moves by η_g η_l Σ ω_j g_j: (η_g q − 1)² is missing."""
    r = Round(
        [(1.0, np.ones(1))],
        a=np.ones((1, 1)),
        c=np.zeros((1, 1, 1)),
        base=np.ones((1, 1)),
        model=np.ones(1),
        steps=2,
        local_lr=0.001,
        server_lr=server_lr,
        x=np.zeros(1),
    )
    assert r.kappa == pytest.approx((server_lr - 1) ** 2)
    assert r.phi > _phi(r, kappa=1.0)
    assert r.phi <= _phi(r, kappa=r.kappa)


@pytest.mark.parametrize(("server_lr", "d"), [(5.0, (1.0, 1.0)), (1.0, (24.0, 24.0))])
def test_lemma_3_as_printed_fails_under_sampling(server_lr, d):
    """The same line: the sample's own spread, η_g²βq(n), is missing even where η_g q(n) ≤ 2 on average."""
    r = opposite(2, 0.001, server_lr=server_lr, d=d)
    assert r.phi > _phi(r, kappa=1.0)
    assert r.phi <= _phi(r, kappa=r.kappa)


# Lemmas 4, 5 and 6


def test_lemma_4_holds_with_the_factor_of_lemma_3():
    for r in ROUNDS:
        right = -2 * r.Xi + r.L * r.total * _phi(r, kappa=r.kappa)
        assert -2 * r.inner <= right + ROUNDING
        assert -2 * r.inner <= -2 * r.Xi + r.L * r.total * r.phi + ROUNDING


def test_lemma_5_holds_with_the_factor_of_lemma_3():
    for r in ROUNDS:
        D = r.drift(r.kappa)
        right = 12 * r.L**2 * r.T + 24 * r.L / r.total * r.Z + 6 * D * r.sigma(1) + 6 * r.sigma(2)
        assert right + ROUNDING >= r.R


def test_lemma_6_holds_round_by_round_for_random_participation():
    """Q(n) ≤ η̃²K²[αq²R + βqS]: whole rounds need no correction, since the contributions do not depend on S_n."""
    for r in ROUNDS:
        right = (r.rate * r.steps) ** 2 * (r.alpha * r.total**2 * r.R + r.beta * r.total * r.S)
        assert right + ROUNDING >= r.Q


@pytest.mark.parametrize("seed", range(6))
def test_lemma_6_holds_over_a_run(seed):
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(2, 6))
    problem = quadratics(clients, dimension=3, seed=seed, rows=1)
    times = ft.FixedTimes([int(t) for t in rng.integers(1, 5, size=clients)])
    scheme = [ft.AsyncFedAvg(), ft.FedFix(1), ft.FedBuff(2)][seed % 3]
    weights, line = ft.weights(scheme, times), ft.timeline(scheme, times, rounds=40)
    known, steps_ = constants(problem, batch_size=None), int(rng.integers(1, 5))
    left = residuals(known, expected_from_timeline(line, weights))
    ceiling = bound(problem, timeline=line, weights=weights, local=ft.LocalSGD(steps=steps_, lr=1e-9, batch_size=None))
    s = ceiling.ceiling.setting
    steps = Steps(ceiling.ceiling.corrected, steps_, None, 1.0)
    models = [v.models[0] for v in virtual_models(known.losses, line, weights, steps, init=np.ones(3))]
    kinds = expected_from_timeline(line, weights)
    moved = np.mean([_sq(m[-1] - m[0]) for m in models])
    gap = 0.0
    for n, m in enumerate(models):
        row = np.zeros(clients)
        part = slice(int(line.offsets[n]), int(line.offsets[n + 1]))
        row[line.client[part]] = weights.applied(line)[part]
        if row.any():
            best = problem.optimum(row)
            gap += np.mean([row @ (problem.client_losses(y) - problem.client_losses(best)) for y in m[:-1]])
    gap /= line.num_rounds
    rho, D = kinds.max_total_weight, 6 * s.drift_factor * (steps.local_lr * (steps_ - 1) * s.smoothness) ** 2
    right = 24 * rho * 2 * s.smoothness * gap + 12 * rho**2 * (D * left.sigma_1 + left.sigma_2)
    assert 0 < moved <= (steps.local_lr * steps_) ** 2 * right
