"""Random convex problems with a run on each, and the two sides of Theorems 1, 2 and 3: for the tests and `make bounds`.

A case is drawn from its number alone. On a timeline participation is certain (α = 1, β = 0), also where a draw made it;
`law` cases take the stationary law of sampling, or of exponential times, and average over drawn timelines.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

import fedtempo as ft
from fedtempo.problems import Problem, Quadratics, quadratics
from fedtempo.problems.models import logistic
from fedtempo.theory.bounds import Bound, bound
from fedtempo.theory.ceiling import learning_rate_ceiling
from fedtempo.theory.expected import expected_from_scheme, expected_from_timeline
from fedtempo.theory.problem_constants import constants
from fedtempo.theory.round_residuals import residuals
from fedtempo.theory.virtual_models import Measured, measure

SCHEMES = ("fedavg", "async", "fedfix", "fedbuff", "uniform", "multinomial", "fastest")
RANDOM_RUNS = 24
"""Runs behind a mean over seeds."""


@dataclass(frozen=True)
class Case:
    """Both sides of the theorems for one random problem and run."""

    number: int
    said: str
    bound: Bound
    measured: Measured

    def ratios(self) -> dict[str, tuple[float, float]]:
        """Of each theorem, measured/bound and the standard error of that; theorems without a bound are left out."""
        sides = {
            "Theorem 1": (self.measured.theorem_1, self.bound.theorem_1),
            "Theorem 2": (self.measured.theorem_2, self.bound.theorem_2),
            "Theorem 3": (self.measured.theorem_3, self.bound.theorem_3),
            "Theorem 3, gradient": (self.measured.theorem_2, self.bound.theorem_3_gradient),
        }
        beyond = self.bound.parts.error
        sides["Theorem 1, beyond R"] = (self.measured.theorem_1 - self.bound.parts.residual, beyond)
        return {
            name: (float(left.mean()) / right, Measured.error(left) / right)
            for name, (left, right) in sides.items()
            if right is not None and right > 1e-13
        }


def draw(number: int) -> Case:
    """Case number `number`."""
    rng = np.random.default_rng([20261115, number])
    clients = int(rng.integers(1, 21))
    problem = _quadratic(rng, clients) if number % 2 else _logistic(rng, clients)
    times, random = _times(rng, clients)
    scheme = _scheme(rng, clients)
    law = bool(rng.integers(2)) and (scheme.waiting.random or random)
    rule = str(rng.choice(["time-based", "time-based", "identical", "importance"]))
    if isinstance(scheme, ft.FastestSampling):
        rule = "identical"  # clients that never take part have no time-based weight
    stochastic = bool(rng.integers(2))
    steps, server_lr = int(rng.integers(1, 11)), float(rng.choice([0.5, 1.0, 1.0, 2.0]))
    batch = int(rng.integers(1, 5)) if stochastic else None
    share = float(rng.choice([1.0, 1.0, 0.3, 0.03]))
    importance = problem.importance.exact
    weights = ft.weights(scheme, times, importance=importance, rule=rule)
    seeds = range(RANDOM_RUNS) if law else range(1)
    rounds = int(rng.integers(8, 60 if not law else 30))
    lines = [ft.timeline(scheme, times, rounds=rounds, importance=importance, seed=s) for s in seeds]
    if law:
        expected = expected_from_scheme(scheme, times, problem.importance, weights, rounds=rounds)
    else:
        expected = expected_from_timeline(lines[0], weights)
    known = constants(problem, batch_size=batch)
    ceiling = learning_rate_ceiling(expected, smoothness=known.smoothness, local_steps=steps, server_lr=server_lr)
    local = ft.LocalSGD(steps=steps, lr=share * ceiling.corrected, batch_size=batch)
    left = residuals(known, expected)
    away = float(rng.choice([0.0, 0.0, 0.1, 1.0])) if left.sigma_1 > 1e-9 else 1.0  # else both sides would be 0
    init = left.run_optimum + away * rng.standard_normal(known.losses.dimension)
    measured = measure(
        left,
        lines if law else lines[0],
        weights,
        local,
        server_lr=server_lr,
        init=init,
        runs=RANDOM_RUNS if stochastic and not law else 1,
        seed=number,
    )
    found = bound(
        problem,
        **({"scheme": scheme, "times": times, "rounds": rounds} if law else {"timeline": lines[0]}),
        weights=weights,
        local=local,
        server_lr=server_lr,
        init=init,
        measured=measured,
    )
    said = (
        f"{problem.name} M={clients} {scheme} {times.law} {rule} K={steps} B={batch} η_g={server_lr:g} N={rounds} "
        f"{share:g}×ceiling {'law' if law else 'timeline'}"
    )
    return Case(number, said, found, measured)


@dataclass(frozen=True)
class Sampled:
    """One client a round, drawn; scalar quadratics; full gradients: expectations follow from a recursion."""

    bound: Bound
    left: float
    """E of Theorem 1's left-hand side."""


def opposite(steps: int, rounds: int) -> Sampled:
    """One of two opposite clients a round, at the printed ceiling, from the optimum on."""
    problem = quadratics(centers=[[1.0], [-1.0]], curvatures=1.0, rows=1)
    return _sampled(problem, ft.UniformSampling(1), steps, rounds, 1.0, 0.0, printed=True)


def sampled(number: int) -> Sampled:
    """A random one, with up to 100 local steps, up to the ceiling."""
    rng = np.random.default_rng([3, number])
    clients = int(rng.integers(2, 7))
    problem = quadratics(
        centers=rng.standard_normal((clients, 1)),
        curvatures=rng.uniform(0.05, 1.0, size=(clients, 1)) if rng.integers(2) else 1.0,
        rows=1,
        importance=_importance(rng, clients),
    )
    scheme = ft.UniformSampling(1) if number % 2 else ft.MultinomialSampling(1)
    steps, rounds = int(rng.choice([2, 5, 10, 30, 100])), int(rng.choice([5, 100, 2000]))
    server_lr, away = float(rng.choice([0.5, 1.0, 1.0, 3.0])), float(rng.choice([0.0, 0.0, 0.1]))
    return _sampled(problem, scheme, steps, rounds, server_lr, away, printed=bool(rng.integers(2)))


def _sampled(
    problem: Quadratics, scheme: ft.Scheme, steps: int, rounds: int, server_lr: float, away: float, *, printed: bool
) -> Sampled:
    """With u = θ − θ* and client i drawn, u^{n,k} = (1 − φ_ik) u^n + φ_ik c_i, φ_ik = η_g d_i (1 − (1 − η_l a_i)^k).

    So E[u] and E[u²] obey a linear recursion, and L(θ) − L(θ*) = ½ Σ p_i a_i u².
    """
    clients = problem.num_clients
    times = ft.FixedTimes([1] * clients)
    law = expected_from_scheme(scheme, times, problem.importance, rounds=rounds)
    smooth = problem.smoothness
    ceiling = learning_rate_ceiling(law, smoothness=smooth, local_steps=steps, server_lr=server_lr)
    rate = min(ceiling.printed, ceiling.corrected) if printed else ceiling.corrected
    local = ft.LocalSGD(steps=steps, lr=rate, batch_size=None)
    init = problem.optimum() + away
    found = bound(problem, scheme=scheme, times=times, rounds=rounds, local=local, server_lr=server_lr, init=init)
    d = np.asarray(ft.weights(scheme, times, importance=problem.importance.exact))
    importance = problem.importance.values
    chance = importance if isinstance(scheme, ft.MultinomialSampling) else np.full(clients, 1 / clients)
    moved = server_lr * d[:, None] * (1 - (1 - rate * problem.curvatures) ** np.arange(steps + 1))
    center = problem.centers - problem.optimum()
    keep, once, pull = chance @ (1 - moved), chance @ (moved * center), chance @ (moved * center) ** 2
    square, cross = chance @ (1 - moved) ** 2, chance @ (2 * (1 - moved) * moved * center)
    mean, second, total = away, away**2, 0.0
    for _ in range(rounds):
        total += float(np.mean((square * second + cross * mean + pull)[:-1]))
        mean, second = keep[-1] * mean + once[-1], square[-1] * second + cross[-1] * mean + pull[-1]
    return Sampled(found, total / rounds / 2 * float(importance @ problem.curvatures[:, 0]))


def _quadratic(rng: np.random.Generator, clients: int) -> Problem:
    return quadratics(
        clients,
        dimension=int(rng.integers(1, 6)),
        convexity=float(rng.choice([0.01, 0.3, 1.0])),
        heterogeneity=float(rng.choice([0.0, 0.1, 1.0, 10.0])),
        noise=float(rng.choice([0.0, 0.1, 1.0])),
        rows=int(rng.integers(2, 9)),
        seed=int(rng.integers(10**6)),
        importance=_importance(rng, clients),
    )


def _logistic(rng: np.random.Generator, clients: int) -> Problem:
    features, classes = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    apart = float(rng.choice([0.0, 1.0, 3.0]))
    model = logistic(features, classes, l2=float(rng.choice([0.01, 0.1])))
    data = []
    for _ in range(clients):
        rows = int(rng.integers(1, 9))
        x = rng.standard_normal((rows, features)) + apart * rng.standard_normal(features)
        data.append((x, rng.integers(classes, size=rows)))
    return Problem(model.init, model.loss, data, importance=_importance(rng, clients), name="logistic")


def _importance(rng: np.random.Generator, clients: int) -> object:
    if rng.integers(2):
        return "uniform"
    parts = rng.integers(1, 6, size=clients)
    return [Fraction(int(p), int(parts.sum())) for p in parts]


def _times(rng: np.random.Generator, clients: int) -> tuple[ft.ClientTimes, bool]:
    means = [Fraction(int(t), 4) for t in rng.integers(1, 9, size=clients)]
    random = rng.random() < 0.25
    return (ft.ExponentialTimes(means) if random else ft.FixedTimes(means)), random


def _scheme(rng: np.random.Generator, clients: int) -> ft.Scheme:
    if clients == 1 and rng.integers(2):
        return ft.Centralized()
    size = int(rng.integers(1, clients + 1))
    return {
        "fedavg": ft.FedAvg(),
        "async": ft.AsyncFedAvg(),
        "fedfix": ft.FedFix(Fraction(int(rng.integers(1, 9)), 4)),
        "fedbuff": ft.FedBuff(size),
        "uniform": ft.UniformSampling(size),
        "multinomial": ft.MultinomialSampling(size),
        "fastest": ft.FastestSampling(size),
    }[str(rng.choice(SCHEMES))]
