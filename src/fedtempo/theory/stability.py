"""Training on quadratic clients, for every scheme: up to which learning rate it is stable, and where it ends if it is.

    limit           inf {η_l : growth(η_l) ≥ 0}          growth of the distance between two runs, a round (regimes.py)
    rate            −growth × rounds in a unit of time: distances shrink as exp(−rate × time)
    cycle           E z = (I − T)⁻¹ u,  Cov z = T Cov(z) Tᵀ + Q,  carried once through the cycle and averaged over time
    random rounds   m = E[T_S] m + E[u_S],  P = E[T_S P T_Sᵀ] + E[v_S v_Sᵀ] + noise,  v_S = T_S m + u_S − m

The limit (`stability_limit`): stale contributions overshoot; a gain g applied with delay τ is stable up to
g = 2 sin(π / (2(2τ + 1))), which is 2 without delay and about π/(2τ) with much. Growth is not monotone in η_l, so rates
are scanned upwards in small steps for the first crossing, which is then closed in on.

The end (`stationary_loss`): with a constant η_l training ends in a cycle or a cloud around a point, not at it; the
stationary loss is its mean over time. Both equations are solved, the cycle's by doubling (Smith's method), the other by
GMRES on the map itself. η_l is `lr`, K `local_steps`, η_g `server_lr`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.ticks import Exact
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Brief
from fedtempo.errors import FedtempoError, InputError
from fedtempo.problems.quadratic import Quadratics
from fedtempo.schemes.named import Scheme
from fedtempo.theory.forecasting import Affine, coordinates_of, placed, plain_sgd
from fedtempo.theory.recursion import Coordinates, Job, Moments, Schedule, advance, job, pull_of, starting
from fedtempo.theory.regimes import LONG, Drawn, Growth, Independent, Regime, Repeating, Sampled, Sense, regime
from fedtempo.training.solvers import LocalSGD
from fedtempo.weighting.weight_rules import WeightRule
from fedtempo.weighting.weights import Weights

Curved = Quadratics | Coordinates | ArrayLike
"""A problem, or curvatures alone: [clients], [clients, coordinates], or symmetric matrices [clients, d, d]."""

_AT_ONCE = 16
_STEP, _EXACT_STEP = 1.02, 1.05
_TRIES = 12


@dataclass(frozen=True)
class StabilityLimit:
    """The smallest learning rate at which training is no longer stable.

    Example:
        >>> found = ft.theory.stability_limit(ft.problems.quadratics(3), ft.FedFix(1), ft.FixedTimes([4, 2, 1]))
        >>> round(found.lr, 3), found.kind, found.exact
        (0.768, 'cycle', True)
    """

    lr: float
    error: float
    """Standard error of `lr`; 0 where it is exact."""
    kind: str
    """How it is known: from the limit `cycle`, from the `mean-square` of random rounds, or along a `timeline`."""
    coordinate: int
    """The coordinate that is the first to grow."""

    @property
    def exact(self) -> bool:
        """Whether it is more than an estimate along one timeline."""
        return self.kind != "timeline"


def curvatures_of(given: Curved) -> tuple[Floats, Any]:
    """Curvatures [clients, coordinates] or [clients, d, d], and the clients' importance where it is known."""
    if isinstance(given, Quadratics):
        return given.curvatures, given.importance.exact
    if isinstance(given, Coordinates):
        return given.curvature, given.importance.exact
    found = np.asarray(given, dtype=np.float64)
    if found.ndim not in (1, 2, 3) or (found.ndim == 3 and found.shape[1] != found.shape[2]):
        raise InputError(
            f"curvatures: shape {found.shape}; give [clients], [clients, coordinates] or matrices [clients, d, d]"
        )
    if found.ndim == 3 and not np.allclose(found, found.mT):
        raise InputError("curvatures: matrices that are not symmetric are not second derivatives; give A = Aᵀ")
    return (found[:, None] if found.ndim == 1 else found), None


def curved_regime(
    problem: Curved, scheme: Scheme, times: ClientTimes, importance: Iterable[Exact] | None, **asked: Any
) -> tuple[Floats, Regime]:
    """Curvatures, and how rounds follow each other, with the problem's own importance unless another is given."""
    curvature, own = curvatures_of(problem)
    return curvature, regime(scheme, times, importance=own if importance is None else importance, **asked)


def stability_limit(
    problem: Curved,
    scheme: Scheme,
    times: ClientTimes,
    *,
    importance: Iterable[Exact] | None = None,
    weights: str | WeightRule | Weights | ArrayLike = "time-based",
    local_steps: int = 1,
    server_lr: float = 1.0,
    sense: Sense = "mean-square",
    rounds: int = LONG,
    seed: int = 0,
) -> StabilityLimit:
    """The first local learning rate at which distances between runs stop shrinking.

    With random times or sampling, `sense` "mean-square" asks for the mean over runs (a few runs that explode count),
    "typical" for one run along a drawn timeline of `rounds`: its limit is higher.

    Example:
        >>> problem, times = ft.problems.quadratics(10), ft.FixedTimes.spread(10, 80)
        >>> for scheme in (ft.FedAvg(), ft.FedFix("1/2"), ft.AsyncFedAvg()):
        ...     print(scheme, round(ft.theory.stability_limit(problem, scheme, times).lr, 2))
        FedAvg 2.78
        FedFix(1/2) 1.56
        AsyncFedAvg 0.22
    """
    asked = {"weights": weights, "server_lr": server_lr, "sense": sense, "rounds": rounds, "seed": seed}
    curvature, law = curved_regime(problem, scheme, times, importance, **asked)
    return limit_of(law, curvature, times.num_clients, local_steps, server_lr)


def limit_of(law: Regime, curvature: Floats, num_clients: int, steps: int, server_lr: float = 1.0) -> StabilityLimit:
    """The limit of a regime that is known."""
    if len(curvature) != num_clients:
        raise InputError(f"curvatures: {len(curvature)} for {num_clients} clients; give one per client")

    def growth(lr: Floats, columns: Any) -> Growth:
        pull = pull_of(curvature, lr, steps)
        return law.growth(pull if pull.ndim == 4 else pull[:, :, columns])

    steepest = float(np.linalg.eigvalsh(curvature).max() if curvature.ndim == 3 else curvature.max())
    if not steepest > 0:
        raise InputError(
            f"curvatures: the largest is {steepest:g}; a loss without positive curvature has no stability limit"
        )
    stride = _EXACT_STEP if law.kind == "mean-square" else _STEP
    begin = 0.02 / (steps * steepest * server_lr * num_clients)
    low, high, columns = _first_crossing(growth, begin, stride, law)
    wanted = 1e-10 if law.exact else 1e-5
    while high / low - 1 > wanted:
        lr = np.geomspace(low, high, _AT_ONCE + 1)
        value, _ = growth(lr[1:-1], columns)
        over = (value >= 0).any(axis=1)
        place = int(over.argmax()) if over.any() else _AT_ONCE - 1
        low, high = float(lr[place]), float(lr[place + 1])
    around = high * np.array([1 / 1.01, 1.0, 1.01])
    value, spread = growth(around, columns)
    worst = int(value[1].argmax())
    slope = (value[2, worst] - value[0, worst]) / np.log(1.01**2)
    error = float(high * spread[1, worst] / slope) if spread[1, worst] > 0 and slope > 0 else 0.0
    return StabilityLimit(high, error, law.kind, int(columns[worst]))


def _first_crossing(
    growth: Callable[[Floats, Any], Growth], begin: float, stride: float, law: Regime
) -> tuple[float, float, Any]:
    """Two neighbouring rates of the scan, stable and not, and the coordinates that are not at the second."""
    everything = slice(None)
    for _ in range(_TRIES):
        value, _ = growth(np.array([begin]), everything)
        if (value < 0).all():
            break
        begin /= 4
    else:
        raise InputError(
            "no learning rate is stable: in one direction the weighted curvatures do not sum to a positive number; "
            "give losses whose sum has positive curvature, and positive weights"
        )
    at_once = 1 if isinstance(law, Independent) else _AT_ONCE
    low = begin
    while low < 1e12 * begin:
        lr = low * stride ** np.arange(1.0, at_once + 1)
        value, _ = growth(lr, everything)
        over = ~(value < 0)
        if over.any():
            place = int(over.any(axis=1).argmax())
            return float(lr[place - 1] if place else low), float(lr[place]), np.flatnonzero(over[place])
        low = float(lr[-1])
    raise InputError("no learning rate is unstable: the weights of all clients are zero; give positive weights")


Totals = tuple[Floats, Floats]
"""[rates, coordinates] mean and variance, over batches, rounds and time."""


@dataclass(frozen=True, eq=False, repr=False)
class Stationary(Brief):
    """What training comes to in the long run, for each learning rate; infinite where it is not stable.

    Example:
        >>> problem = ft.problems.quadratics(4, noise=0.5)
        >>> local = ft.LocalSGD(lr=0.5, batch_size=1)
        >>> found = ft.theory.stationary_loss(problem, ft.FedFix(1), ft.FixedTimes([4, 2, 1, 1]), local=local)
        >>> found.lr, found.loss.round(3), found.client_loss.round(3)
        (array([0.5]), array([0.68]), array([[0.655, 0.843, 0.552, 0.67 ]]))
    """

    lr: Floats
    loss: Floats
    """[rates] mean over time of E L."""
    client_loss: Floats
    """[rates, clients]"""
    mean: Floats
    """[rates, coordinates] of the model, over time."""
    variance: Floats
    """[rates, coordinates] of the model around that mean: noise, and the way along the cycle."""
    error: Floats
    """[rates] how far two halves of an estimate's timeline are apart; 0 where it is exact."""


def rate(
    problem: Curved,
    scheme: Scheme,
    times: ClientTimes,
    *,
    local: LocalSGD,
    importance: Iterable[Exact] | None = None,
    weights: str | WeightRule | Weights | ArrayLike = "time-based",
    server_lr: float = 1.0,
    sense: Sense = "mean-square",
    rounds: int = LONG,
) -> Floats:
    """[rates] how fast distances shrink in a unit of time, in the slowest coordinate; below zero where they grow.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> for scheme in (ft.FedAvg(), ft.FedFix(1)):
        ...     print(scheme, ft.theory.rate(problem, scheme, times, local=ft.LocalSGD(lr=[0.1, 0.5])).round(3))
        FedAvg [0.008 0.044]
        FedFix(1) [0.034 0.202]
    """
    lr, steps = plain_sgd(local)
    asked = {"weights": weights, "server_lr": server_lr, "sense": sense, "rounds": rounds}
    curvature, law = curved_regime(problem, scheme, times, importance, **asked)
    return np.asarray(-law.growth(pull_of(curvature, lr, steps))[0].max(axis=1) * law.rounds_per_time)


def stationary_loss(
    problem: Quadratics | Coordinates,
    scheme: Scheme,
    times: ClientTimes,
    *,
    local: LocalSGD,
    weights: str | WeightRule | Weights | ArrayLike = "time-based",
    server_lr: float = 1.0,
    sense: Sense = "mean-square",
    rounds: int = LONG,
) -> Stationary:
    """The expected loss in the long run, at each learning rate.

    Example:
        >>> problem = ft.problems.quadratics(4, noise=0.5)
        >>> local = ft.LocalSGD(lr=[0.05, 0.5], batch_size=1)
        >>> found = ft.theory.stationary_loss(problem, ft.FedFix(1), ft.FixedTimes([4, 2, 1, 1]), local=local)
        >>> (found.loss - problem.optimal_loss).round(4)
        array([0.0033, 0.0499])
    """
    clients = coordinates_of(problem, local)
    lr, steps = plain_sgd(local)
    law = regime(
        scheme,
        times,
        importance=clients.importance.exact,
        weights=weights,
        server_lr=server_lr,
        sense=sense,
        rounds=rounds,
    )
    stable = np.asarray((law.growth(pull_of(clients.curvature, lr, steps))[0] < 0).all(axis=1))
    shape = (len(lr), clients.curvature.shape[1])
    mean, variance, error = np.full(shape, np.nan), np.full(shape, np.inf), np.zeros(len(lr))
    if stable.any():
        work = job(clients, lr[stable], steps)
        halves = settled(law, clients, work)
        mean[stable] = np.mean([m for m, _ in halves], axis=0)
        variance[stable] = np.mean([v + (m - mean[stable]) ** 2 for m, v in halves], axis=0)
        ends = [clients.losses(m, v) @ clients.importance.values for m, v in halves]
        error[stable] = np.ptp(ends, axis=0) / 2
    losses = np.where(stable[:, None], clients.losses(np.nan_to_num(mean), variance), np.inf)
    return Stationary(lr, losses @ clients.importance.values, losses, mean, variance, error)


def settled(law: Regime, clients: Coordinates, work: Job) -> list[Totals]:
    """Mean and variance in the long run; of two parts of the timeline where it is an estimate."""
    match law:
        case Repeating():
            return [_of_cycle(law, clients, work)]
        case Sampled():
            return [_of_sampling(law, clients, work)]
        case Independent():
            return [_of_sets(law, clients, work)]
        case Drawn():
            return _along(law, clients, work)
    raise TypeError(f"no stationary law for {type(law).__name__}")


def _of_cycle(law: Repeating, clients: Coordinates, work: Job) -> Totals:
    step = Affine.of(clients, work, law.body)
    unit = np.eye(step.product.shape[-1])
    mean = np.asarray(np.linalg.solve(unit - step.product, step.shift[..., None])[..., 0], dtype=np.float64)
    whole = step
    while np.abs(whole.product).max() > 1e-18:  # what is left out is the square of it
        whole = whole.twice()
    moments = placed(law.body, mean, whole.noise)
    ticks = np.diff(law.line.ends[law.start - 1 + (law.start == 0) : law.start + law.length])
    first = law.line.ends[law.start] - law.begin_tick
    held = np.append(first, ticks) if law.start == 0 else ticks
    return _over_time(law.body, moments, clients, work, held, 0, law.length)


def _over_time(
    plan: Schedule, moments: Moments, clients: Coordinates, work: Job, held: Floats, begin: int, end: int
) -> Totals:
    """Totals while rounds `begin` … `end` − 1 go on: the model is θ^n for as long as round n takes."""
    total = np.zeros(work.pull.shape[1:])
    square, around = np.zeros_like(total), np.zeros_like(total)
    newest = np.append(plan.entry[0], plan.made)
    reference = moments.mean[newest[plan.steps_done[begin]]].copy()
    weight = held / held.sum()
    for n in range(begin, end):
        slot = newest[plan.steps_done[n]]
        away = moments.mean[slot] - reference
        total += weight[n - begin] * away
        square += weight[n - begin] * away**2
        if moments.cov is not None:
            around += weight[n - begin] * moments.cov[slot, slot]
        advance(plan, moments, work, clients.center, int(plan.steps_done[n]), int(plan.steps_done[n + 1]))
    return reference + total, around + square - total**2


def _of_sampling(law: Sampled, clients: Coordinates, work: Job) -> Totals:
    gain = law.weight[:, None, None] * work.pull
    pulled = np.einsum("i,irc->rc", law.first, gain)
    center = clients.center[:, None, :]
    mean = np.einsum("i,irc->rc", law.first, gain * center) / pulled
    away = gain * (center - mean)
    drawn = np.einsum("ij,irc,jrc->rc", law.second, away, away)
    noise = np.einsum("i,irc->rc", np.diag(law.second) * law.weight**2, work.jitter)
    kept = 1 - 2 * pulled + np.einsum("ij,irc,jrc->rc", law.second, gain, gain)
    return mean, (drawn + noise) / (1 - kept)


def _of_sets(law: Independent, clients: Coordinates, work: Job) -> Totals:
    mean, variance = np.empty(work.pull.shape[1:]), np.empty(work.pull.shape[1:])
    for cell in np.ndindex(mean.shape):
        own = (slice(None), *cell)
        mean[cell], variance[cell] = _of_cell(law, clients.center[:, cell[1]], work.pull[own], work.jitter[own])
    return mean, variance


def _of_cell(law: Independent, center: Floats, pull: Floats, jitter: Floats) -> tuple[float, float]:
    """Mean and variance of θ in one coordinate at one rate."""
    from scipy.sparse.linalg import LinearOperator, gmres

    gain = law.weight * pull
    hit = np.concatenate([np.ones((len(law.sets), 1)), law.sets], axis=1)
    new = np.concatenate([np.ones((len(law.sets), 1)), -law.sets * gain], axis=1)
    shift = law.sets @ (gain * center)
    likely = law.probability[:, None] * hit
    size = hit.shape[1]
    average = likely.T @ new + np.diag(1 - likely.sum(axis=0))
    state = np.linalg.solve(np.eye(size) - average, likely.T @ shift)
    moved = hit * ((new @ state + shift)[:, None] - state)
    noise = law.sets @ (law.weight**2 * jitter)
    source = moved.T @ (law.probability[:, None] * moved) + (likely * noise[:, None]).T @ hit
    once = law.second_moment(pull[:, None, None])
    rest = LinearOperator(
        (size**2, size**2), matvec=lambda v: v - once(v.reshape(size, size)).ravel(), dtype=np.float64
    )
    found, failed = gmres(rest, source.ravel(), x0=source.ravel(), rtol=1e-12, atol=0.0, restart=100, maxiter=100)
    if failed:
        raise FedtempoError("the stationary variance was not found: this rate is too close to the stability limit")
    return float(state[0]), float(found[0])


def _along(law: Drawn, clients: Coordinates, work: Job) -> list[Totals]:
    """Over the third and the fourth quarter of the timeline."""
    plan = law.plan
    moments = starting(plan, clients.optimum, work.pull.shape[1], covariance=bool(clients.noise.any()))
    cuts = np.linspace(0, law.line.num_rounds, 5).astype(int)[2:].tolist()
    advance(plan, moments, work, clients.center, 0, int(plan.steps_done[cuts[0]]))
    held = np.diff(np.append(law.line.start, law.line.ends))
    return [_over_time(plan, moments, clients, work, held[a:b], a, b) for a, b in pairwise(cuts)]
