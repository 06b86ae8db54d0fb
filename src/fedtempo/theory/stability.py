"""The largest learning rate below which training on quadratic clients is stable, for every scheme.

    limit = inf {η_l : growth(η_l) ≥ 0}          growth of the distance between two runs, a round (regimes.py)

Stale contributions overshoot: a gain g applied with delay τ is stable up to g = 2 sin(π / (2(2τ + 1))), which is 2
without delay and about π/(2τ) with much. Growth is not monotone in η_l, so rates are scanned upwards in small steps
for the first crossing, which is then closed in on. η_l is `lr`, K `local_steps`, η_g `server_lr`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.ticks import Exact
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.problems.quadratics import Quadratics
from fedtempo.schemes import Scheme
from fedtempo.theory.coordinates import Coordinates, pull_of
from fedtempo.theory.regimes import LONG, Growth, Independent, Regime, Sense, regime
from fedtempo.weighting import WeightRule, Weights

Curved = Quadratics | Coordinates | ArrayLike
"""A problem, or curvatures alone: [clients], [clients, coordinates], or symmetric matrices [clients, d, d]."""

_AT_ONCE = 16
_STEP, _EXACT_STEP = 1.02, 1.05
_TRIES = 12


@dataclass(frozen=True)
class StabilityLimit:
    """The smallest learning rate at which training is no longer stable."""

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
        raise InputError("curvatures: matrices that are not symmetric are no second derivatives; give A = Aᵀ")
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
        raise InputError(f"curvatures: the largest is {steepest:g}; a loss that is nowhere curved upwards has no limit")
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
            "no learning rate is stable: a direction in which the weighted curvatures do not add up to something "
            "positive never contracts; give clients that are curved upwards together, and positive weights"
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
