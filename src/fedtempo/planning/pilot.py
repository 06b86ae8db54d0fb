"""The pilot: a few steps of descent on rows of all clients, then a look around from where they lead.

    θ ← θ − h ∇L(θ),  h = 0.7 / largest curvature           path time s = Σ h: the time of the gradient flow
    at the mean of the last third, θ_e at s_e:   noise E‖∇ℓ − ∇L_i‖²,  heterogeneity E‖∇L_i − ∇L‖²,  ‖∇L‖²
    the energy of θ^0 − θ_e, of noise, heterogeneity and gradient over curvatures (spectrum.py)
    for K > 1: the curvature along a client's own gradient and ‖Σ p_i H_i ∇L_i‖, what makes local work drift

Unbiased products of independent samples stand for squares. The budget is in accesses (access.py) and is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.planning.access import Access
from fedtempo.planning.spectrum import Lanczos, Spectrum, deflated, lanczos
from fedtempo.problems.problem import Problem
from fedtempo.problems.rows import Ints

FEWEST = 160
"""Accesses without which nothing can be said."""
_ENOUGH = 1000
_START, _CURVES, _OWN = 0.04, 0.66, 0.08
"""Shares: of the budget, the first curvature; of what the path leaves, spectra and clients' own curvature."""
_PATH, _FIRST_PATH, _SHORT = 0.40, 0.60, 800
"""The path's share of the budget, that of a short pilot, and accesses halfway between: what is measured closely but far
from where training leads says little.
"""
_REST = 130
"""Accesses that the path leaves to the rest, at least."""
_CAUTION = 0.7
_MOST_STEPS, _MOST_ROUNDS, _MOST_ROWS = 240, 64, 512


class Path(NamedTuple):
    """What was seen on the way, a number a step."""

    time: Floats
    """s before the step."""
    loss: Floats
    spread: Floats
    """Variance of a row's gradient around the mean over clients: noise and heterogeneity together."""
    step: Floats
    """h."""
    rows: int
    """Rows a step."""


@dataclass(frozen=True, eq=False, repr=False)
class Pilot(Brief):
    """What the pilot found."""

    used: int
    """Accesses."""
    budget: int
    path: Path
    start_loss: float
    start_curvature: float
    """The largest at θ^0."""
    end_time: float
    """s_e."""
    end_loss: float
    end_loss_error: float
    clients: Ints
    """Those looked at in the end."""
    noise: Floats
    """[clients] E‖∇ℓ − ∇L_i‖² of one row."""
    heterogeneity: Floats
    """[clients] ‖∇L_i − ∇L‖²."""
    mean_noise: float
    mean_heterogeneity: float
    gradient_square: float
    """‖∇L(θ_e)‖²; may be below zero by chance."""
    gradient_square_error: float
    distance: float
    """‖θ^0 − θ_e‖."""
    way: Spectrum
    """Of H(θ^0 − θ_e)."""
    way_energy: float
    """‖H(θ^0 − θ_e)‖²."""
    of_noise: Spectrum
    of_heterogeneity: Spectrum
    of_gradient: Spectrum
    own_curvature: float | None
    """Along clients' own gradients; None for K = 1."""
    drift_square: float
    """‖Σ p_i H_i ∇L_i‖²."""
    least_curvature: float
    """As measured; below zero where the loss is not convex."""
    flattening: float
    """Curvature at the end over that after a third of the path, along one direction and on the same rows."""

    @property
    def largest_curvature(self) -> float:
        """At θ_e."""
        every = (self.way, self.of_noise, self.of_heterogeneity, self.of_gradient)
        return max(float(one.curvature.max()) for one in every)


def run_pilot(problem: Problem, budget: int, *, local_steps: int, seed: int = 0) -> Pilot:
    """Look at a problem through at most `budget` accesses to rows."""
    if budget < FEWEST:
        raise InputError(
            f"the pilot may use {budget} rows, but needs {FEWEST}; plan for a longer time, or allow a larger share"
        )
    access = Access(problem, seed)
    weight = problem.importance.values * problem.num_clients  # of a row of a client that is asked in turn
    few = int(np.clip(_START * budget / 7, 2, 128))
    path, start_curvature, early, point, mean_gradient, late_rows = _descend(access, weight, budget, few)
    left = budget - access.used
    own = int(_OWN * left) if local_steps > 1 else 0
    curves = int(_CURVES * left)
    seen = _Seen.at(access, point.place, left - own - curves)
    share = problem.importance.values[seen.clients] / problem.importance.values[seen.clients].sum()
    gradient = share @ seen.by_client
    steps = 4 if budget >= _ENOUGH else 3
    rows = int(np.clip(curves // (2 * (4 * steps + 4)), 2, _MOST_ROWS))
    look = _Look(access, point.place, weight, rows)
    way = look.hessian(access.start - point.place)
    half = len(seen.gradients) // 2
    firsts, seconds = seen.gradients[:half].mean(axis=0), seen.gradients[half:].mean(axis=0)
    sign = np.where(np.arange(len(seen.clients)) % 2 == 0, 1.0, -1.0)[:, None]
    late, here = late_rows, seen.gradients.shape[0] * len(seen.clients)
    found = {
        "way": lanczos(look.hessian, way, steps),
        "noise": lanczos(look.hessian, share @ (firsts - seconds), steps),
        "gradient": lanczos(look.hessian, (late * mean_gradient + here * gradient) / (late + here), steps),
        "heterogeneity": lanczos(look.hessian, (sign * (seen.by_client - gradient)).sum(axis=0), steps),
    }
    largest = max(one.spectrum.curvature[-1] for one in found.values())
    if largest <= 0:
        raise InputError("no positive curvature was found; the quadratic model does not fit such a loss")
    factor = look.agreement([found["noise"], found["heterogeneity"]])
    before = look.along(early, found["heterogeneity"].steepest)
    own_curvature, drift = None, 0.0
    if local_steps > 1:
        own_curvature, drift = _own(access, point.place, seen.clients, share, firsts, seconds, own)
    noise = float(share @ seen.noise)
    return Pilot(
        used=access.used,
        budget=budget,
        path=path,
        start_loss=float(path.loss[0]),
        start_curvature=start_curvature,
        end_time=point.time,
        end_loss=float(share @ seen.loss),
        end_loss_error=float(np.sqrt((share**2 * seen.loss_error**2).sum())),
        clients=seen.clients,
        noise=seen.noise,
        heterogeneity=seen.heterogeneity(share, gradient),
        mean_noise=noise,
        mean_heterogeneity=seen.mean_heterogeneity(share, gradient),
        gradient_square=float(mean_gradient @ gradient),
        gradient_square_error=noise / np.sqrt(8 * late * here),  # as if it lay evenly in eight directions
        distance=float(np.linalg.norm(access.start - point.place)),
        way=deflated(found["way"].spectrum, largest, factor),
        way_energy=float(way @ way),
        of_noise=deflated(found["noise"].spectrum, largest, factor),
        of_heterogeneity=deflated(found["heterogeneity"].spectrum, largest, factor),
        of_gradient=deflated(found["gradient"].spectrum, largest, factor),
        own_curvature=own_curvature,
        drift_square=drift,
        least_curvature=float(min(one.spectrum.curvature[0] for one in found.values())),
        flattening=float(found["heterogeneity"].spectrum.curvature[-1] / before) if before > 0 else 1.0,
    )


class _Point(NamedTuple):
    place: Floats
    time: float


def _descend(access: Access, weight: Floats, budget: int, few: int) -> tuple[Path, float, Floats, _Point, Floats, int]:
    """The path; the largest curvature at its start; where it was after a third; the mean point of its last third, the
    gradient there, its rows.
    """
    clients = len(weight)
    going = _PATH + (_FIRST_PATH - _PATH) / (1 + (budget / _SHORT) ** 6)
    most = min(going * budget, budget - _REST)
    steps = int(np.clip(most / max(clients, 3), 9, _MOST_STEPS))
    rows = int(np.clip(most / steps, 3, access.most_rows))
    place = access.start.copy()
    asked = access.turn(few)
    _, gradients = access.gradients(place, access.rows(asked))
    first = largest = _steepest(access, place, weight, few, (weight[asked] / few) @ gradients)
    step, time = _CAUTION / largest, 0.0
    early = place
    seen: list[tuple[float, float, float, float]] = []
    late: list[tuple[Floats, float, Floats]] = []
    for number in range(steps):
        asked = access.turn(rows)
        share = weight[asked] / rows
        loss, gradients = access.gradients(place, access.rows(asked))
        gradient = share @ gradients
        spread = share @ ((gradients - gradient) ** 2).sum(axis=1) * rows / (rows - 1)
        seen.append((time, float(share @ loss), float(spread), step))
        if number >= 2 * steps // 3:
            late.append((place, time, gradient))
        if number == steps // 3:
            early = place
        place, time = place - step * gradient, time + step
        if number == steps // 2:
            step = min(_CAUTION / _steepest(access, place, weight, few, gradient), 3 * step)
    at, losses, spreads, sizes = (np.array(part) for part in zip(*seen, strict=True))
    path = Path(at, losses, spreads, sizes, rows)
    places, times, slopes = zip(*late, strict=True)
    end = _Point(np.mean(places, axis=0), float(np.mean(times)))
    return path, first, early, end, np.mean(slopes, axis=0), rows * len(late)


def _steepest(access: Access, place: Floats, weight: Floats, few: int, direction: Floats) -> float:
    """The largest curvature, by three products from a gradient."""
    look = _Look(access, place, weight, few)
    found = float(lanczos(look.hessian, direction, 3).spectrum.curvature[-1])
    if not np.isfinite(found) or found <= 0:
        raise InputError(
            f"curvature {found:g} at the start; the quadratic model needs a finite loss with positive curvature there"
        )
    return found


class _Look:
    """The mean Hessian of a few rows at a point."""

    def __init__(self, access: Access, place: Floats, weight: Floats, rows: int) -> None:
        self._access, self._place, self._weight = access, place, weight
        self._share, self._rows = self._drawn(rows)

    def _drawn(self, rows: int) -> tuple[Floats, Ints]:
        asked = self._access.turn(rows)
        return self._weight[asked] / rows, self._access.rows(asked)

    def hessian(self, direction: Floats) -> Floats:
        return self._access.hessian(self._place, direction, self._rows, self._share)

    def along(self, place: Floats, direction: Floats) -> float:
        """The curvature along a direction at another point, on the same rows."""
        return float(direction @ self._access.hessian(place, direction, self._rows, self._share))

    def agreement(self, found: list[Lanczos]) -> float:
        """√(other rows' curvature / this one's) along the steepest directions: between too large and too small."""
        share, rows = self._drawn(len(self._rows))
        ratio = [
            max(one.steepest @ self._access.hessian(self._place, one.steepest, rows, share), 0.0)
            / one.spectrum.curvature[-1]
            for one in found
        ]
        return float(np.sqrt(np.clip(np.mean(ratio), 0.04, 1.0)))


@dataclass(frozen=True, eq=False)
class _Seen:
    """Rows of clients at one point."""

    clients: Ints
    gradients: Floats
    """[rounds, clients, parameters] a row of each client a round."""
    loss: Floats
    loss_error: Floats

    @classmethod
    def at(cls, access: Access, place: Floats, budget: int) -> _Seen:
        clients = np.arange(access.problem.num_clients)
        if budget < 2 * len(clients):
            clients = np.sort(access.turn(max(2, budget // 2)))
        rounds = int(np.clip(budget // len(clients), 2, _MOST_ROUNDS))
        rounds = max(2, min(rounds, access.most_rows // len(clients)) // 2 * 2)
        seen = [access.gradients(place, access.rows(clients)) for _ in range(rounds)]
        loss = np.array([one for one, _ in seen])
        error = loss.std(axis=0, ddof=1) / np.sqrt(rounds)
        return cls(clients, np.array([gradients for _, gradients in seen]), loss.mean(axis=0), error)

    @property
    def by_client(self) -> Floats:
        return np.asarray(self.gradients.mean(axis=0))

    @property
    def noise(self) -> Floats:
        return np.asarray(self.gradients.var(axis=0, ddof=1).sum(axis=-1))

    def _raw(self, gradient: Floats) -> Floats:
        apart = ((self.by_client - gradient) ** 2).sum(axis=-1)
        return np.asarray(apart - self.noise / len(self.gradients))

    def heterogeneity(self, share: Floats, gradient: Floats) -> Floats:
        return np.maximum(self._raw(gradient), 0.0)

    def mean_heterogeneity(self, share: Floats, gradient: Floats) -> float:
        if len(share) == 1:
            return 0.0
        return max(0.0, float(share @ self._raw(gradient)) / (1 - float((share**2).sum())))


def _own(
    access: Access, place: Floats, clients: Ints, share: Floats, firsts: Floats, seconds: Floats, budget: int
) -> tuple[float, float]:
    """gᵀHg/gᵀg along clients' own gradients, and ‖Σ p_i H_i g_i‖², from two independent halves of the rows."""
    repeats = int(np.clip(budget // (4 * len(clients)), 1, 4))
    if 4 * len(clients) > budget:
        kept = np.argsort(-share, kind="stable")[: max(1, budget // 4)]
        clients, firsts, seconds, share = clients[kept], firsts[kept], seconds[kept], share[kept] / share[kept].sum()

    def bent(gradients: Floats) -> Floats:
        every = [access.own_hessians(place, gradients, access.rows(clients)) for _ in range(repeats)]
        return np.asarray(np.mean(every, axis=0))

    one, other = bent(firsts), bent(seconds)
    along = float(share @ ((one * seconds).sum(axis=1) + (other * firsts).sum(axis=1))) / 2
    square = float(share @ (seconds * firsts).sum(axis=1))
    return max(along, 1e-9) / max(square, 1e-9), max(0.0, float((share @ one) @ (share @ other)))
