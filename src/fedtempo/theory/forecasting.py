"""The expected loss of quadratic clients along a timeline, exactly: no run is simulated.

    E[L_i(θ^n)] = ℓ_i + ½ Σ_k a_ik [(E θ_k^n − c_ik)² + Var θ_k^n]

Mean and variance follow recursion.py, round by round. Where rounds repeat, a whole cycle is the affine map
(T, u, Q): E z ↦ T E z + u, Cov z ↦ T Cov(z) Tᵀ + Q, and its powers by doubling reach any horizon. Expectations are over
batches, given the timeline; several timelines are averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.ticks import Exact, exact
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.problems.quadratic import Quadratics
from fedtempo.theory.recursion import (
    Coordinates,
    Job,
    Moments,
    Schedule,
    advance,
    handed_over,
    job,
    product_of,
    schedule,
    starting,
)
from fedtempo.theory.regimes import Repeating
from fedtempo.training.solvers import LocalSGD
from fedtempo.weighting.weights import Weights

Line = Timeline | Sequence[Timeline] | Repeating


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Brief):
    """Expected losses over virtual time, for each learning rate; infinite where they are too large to be held.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> line, d = ft.timeline(ft.FedFix(1), times, until=40), ft.weights(ft.FedFix(1), times)
        >>> found = ft.theory.forecast(problem, line, d, local=ft.LocalSGD(lr=0.3), at=[0, 40])
        >>> found.time, found.loss.round(3), found.client_loss[0, -1].round(3)
        (array([ 0., 40.]), array([[0.579, 0.262]]), array([0.203, 0.465, 0.137, 0.243]))
    """

    lr: Floats
    """[rates] η_l."""
    time: Floats
    """[points] virtual time; of points given as rounds, the end of the round."""
    loss: Floats
    """[rates, points] E L = Σ p_i E L_i."""
    client_loss: Floats
    """[rates, points, clients] E L_i."""
    mean: Floats
    """[rates, points, coordinates] E θ."""
    variance: Floats
    """[rates, points, coordinates] Var θ: over batches, and over timelines where there are several."""


def coordinates_of(problem: Quadratics | Coordinates, local: LocalSGD) -> Coordinates:
    """The clients under this local work; coordinates that are given know the noise of their batches themselves."""
    if isinstance(problem, Coordinates):
        return problem
    if not isinstance(problem, Quadratics):
        raise InputError(f"problem: {problem!r} is not quadratic; give quadratics, or Coordinates that approximate it")
    size = local.batch_size
    if isinstance(size, Iterable):
        raise InputError(f"batch_size: {size} is a list; forecast one batch size at a time")
    return Coordinates.of(problem, size)


def plain_sgd(local: LocalSGD) -> tuple[Floats, int]:
    """(learning rates, K) of local work that the recursion describes."""
    given: object = local
    if not isinstance(given, LocalSGD) or local.momentum is not None or local.clip is not None:
        raise InputError(f"local: {local!r}; the exact recursion needs LocalSGD without momentum and clip")
    if local.draw != "uniform" and local.batch_size is not None:
        raise InputError("local: batches by epochs depend on each other; use draw='uniform' or batch_size=None")
    if not isinstance(local.steps, int):
        raise InputError(f"steps: {local.steps} is a list; forecast one number of local steps at a time")
    return np.atleast_1d(np.asarray(local.lr, dtype=np.float64)), local.steps


def forecast(
    problem: Quadratics | Coordinates,
    line: Line,
    weights: Weights | ArrayLike | None = None,
    *,
    local: LocalSGD,
    server_lr: float = 1.0,
    at: Iterable[Exact] | None = None,
    rounds: Iterable[int] | None = None,
) -> Forecast:
    """Expected losses at the times `at`, or after so many `rounds`; at 101 even times unless given.

    `line` is a timeline, several of them (their mean is forecast), or what repeats for ever, from
    `fedtempo.theory.regimes.regime`, which knows its weights and server learning rate. After the last round of a
    timeline its last model stays.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> line, d = ft.timeline(ft.FedFix(1), times, until=40), ft.weights(ft.FedFix(1), times)
        >>> found = ft.theory.forecast(problem, line, d, local=ft.LocalSGD(lr=[0.1, 0.3]), at=[0, 10, 40])
        >>> found.loss.round(3)  # a row a learning rate; nothing was trained
        array([[0.579, 0.362, 0.266],
               [0.579, 0.27 , 0.262]])
    """
    lr, steps = plain_sgd(local)
    clients = coordinates_of(problem, local)
    work = job(clients, lr, steps)
    lines = [line] if isinstance(line, (Timeline, Repeating)) else list(line)
    if not lines:
        raise InputError("line: no timelines; give at least one")
    if at is None and rounds is None:
        last = lines[0].ends[-1] * lines[0].unit if isinstance(lines[0], Timeline) else None
        if last is None:
            raise InputError("at: a repeating timeline has no end; give the times to forecast, as at=[1, 10, 100]")
        at = [last * k / 100 for k in range(101)]
    chosen = None if rounds is None else np.array(list(rounds), dtype=np.int64)
    moments = []
    for one in lines:
        if one.num_clients != clients.num_clients:
            raise InputError(f"line: {one.num_clients} clients, the problem has {clients.num_clients}; make them equal")
        if isinstance(one, Repeating):
            moments.append(_repeated(clients, work, one, _places(one, at, chosen)))
        elif weights is None:
            raise InputError("weights: a timeline needs them; give fedtempo.weights(scheme, times)")
        else:
            plan = schedule(one, weights, server_lr=server_lr)
            moments.append(_followed(clients, work, plan, plan.steps_done[_rounds_done(one, at, chosen)]))
    mean = np.mean([m for m, _ in moments], axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = np.mean([v + (m - mean) ** 2 for m, v in moments], axis=0)
        losses = np.nan_to_num(clients.losses(mean, variance), nan=np.inf, posinf=np.inf)
    if chosen is None:
        time = np.array([float(exact(t, "at")) for t in at or ()])
    else:
        time = np.mean([_times_of(one, chosen) for one in lines], axis=0)
    return Forecast(lr, time, losses @ clients.importance.values, losses, mean, variance)


def _rounds_done(line: Timeline, at: Iterable[Exact] | None, chosen: I64 | None) -> I64:
    """[points] rounds done at each point."""
    if chosen is not None:
        if (chosen < 0).any() or (chosen > line.num_rounds).any():
            raise InputError(f"rounds: {chosen.tolist()} go beyond the timeline's {line.num_rounds}; make it longer")
        return chosen
    ticks = [int(exact(t, "at") / line.unit) for t in at or ()]
    return np.searchsorted(line.ends, np.array(ticks, dtype=np.int64), side="right")


def _times_of(one: Timeline | Repeating, chosen: I64) -> Floats:
    if isinstance(one, Timeline):
        return np.append(one.start, one.ends)[chosen] * float(one.unit)
    cycles, left = _split(one, chosen)
    return np.asarray(
        (np.append(one.line.start, one.line.ends)[left] + cycles * one.cycle_ticks) * float(one.line.unit)
    )


def _split(one: Repeating, chosen: I64) -> tuple[I64, I64]:
    """Whole cycles done, and the rounds of the line that lead to the same place in the first of them."""
    cycles = np.maximum(0, chosen - one.start) // one.length
    return cycles, chosen - cycles * one.length


def _places(one: Repeating, at: Iterable[Exact] | None, chosen: I64 | None) -> tuple[I64, I64]:
    """As `_split`, of times or of rounds."""
    if chosen is not None:
        return _split(one, chosen)
    ticks = np.array([int(exact(t, "at") / one.line.unit) for t in at or ()], dtype=np.int64)
    cycles = np.maximum(0, ticks - one.begin_tick) // one.cycle_ticks
    left = np.searchsorted(one.line.ends, ticks - cycles * one.cycle_ticks, side="right")
    more = np.maximum(0, left - one.start) // one.length  # rounds that end with the cycle
    return cycles + more, left - more * one.length


def _followed(clients: Coordinates, work: Job, plan: Schedule, steps: I64) -> tuple[Floats, Floats]:
    """[rates, points, coordinates] mean and variance after so many steps."""
    moments = starting(plan, clients.start, work.pull.shape[1], covariance=bool(clients.noise.any()))
    return _at_steps(clients, work, plan, moments, steps)


def _at_steps(clients: Coordinates, work: Job, plan: Schedule, moments: Moments, steps: I64) -> tuple[Floats, Floats]:
    shape = (work.pull.shape[1], len(steps), work.pull.shape[2])
    mean, variance = np.empty(shape), np.zeros(shape)
    done = 0
    newest = np.append(plan.entry[0], plan.made)
    for point in np.argsort(steps, kind="stable"):
        step = int(steps[point])
        advance(plan, moments, work, clients.center, done, step)
        done = step
        mean[:, point] = moments.mean[newest[step]]
        if moments.cov is not None:
            variance[:, point] = moments.cov[newest[step], newest[step]]
    return mean, variance


class Affine(NamedTuple):
    """A stretch of rounds as one map of the models at hand, [rates, coordinates, models(, models)]."""

    product: Floats
    shift: Floats
    noise: Floats

    @classmethod
    def of(cls, clients: Coordinates, work: Job, plan: Schedule) -> Affine:
        """Of a whole schedule."""
        product, log_size = product_of(plan, work.pull)
        moments = starting(plan, np.zeros_like(clients.start), work.pull.shape[1], covariance=True)
        advance(plan, moments, work, clients.center)
        assert moments.cov is not None
        noise = moments.cov[np.ix_(plan.exit, plan.exit)]
        with np.errstate(over="ignore"):
            whole = product * np.exp(log_size)[..., None, None]
        return cls(whole, np.moveaxis(moments.mean[plan.exit], 0, -1), np.moveaxis(noise, (0, 1), (-2, -1)))

    def twice(self) -> Affine:
        """The map applied two times."""
        with np.errstate(over="ignore", invalid="ignore"):
            t, u, q = self
            return Affine(t @ t, (t @ u[..., None])[..., 0] + u, t @ q @ t.mT + q)

    def __call__(self, mean: Floats, cov: Floats) -> tuple[Floats, Floats]:
        """Moments [rates, coordinates, models(, models)] after the stretch."""
        with np.errstate(over="ignore", invalid="ignore"):
            t, u, q = self
            return (t @ mean[..., None])[..., 0] + u, t @ cov @ t.mT + q


def _repeated(clients: Coordinates, work: Job, one: Repeating, places: tuple[I64, I64]) -> tuple[Floats, Floats]:
    """As `_followed`, with whole cycles taken by powers of their map."""
    cycles, left = places
    shape = (work.pull.shape[1], len(cycles), work.pull.shape[2])
    mean, variance = np.empty(shape), np.zeros(shape)
    early = left < one.start
    if early.any():
        plan = one.head
        mean[:, early], variance[:, early] = _followed(clients, work, plan, plan.steps_done[left[early]])
    head = starting(one.head, clients.start, shape[0], covariance=True)
    advance(one.head, head, work, clients.center)
    state = handed_over(head, one.head, one.body)
    assert state.cov is not None
    entry = one.body.entry
    z = np.moveaxis(state.mean[entry], 0, -1)
    p = np.moveaxis(state.cov[np.ix_(entry, entry)], (0, 1), (-2, -1))
    doubles = [Affine.of(clients, work, one.body)]
    done = 0
    for count in np.unique(cycles[~early]):
        for bit in range(int(count - done).bit_length()):
            if bit == len(doubles):
                doubles.append(doubles[-1].twice())
            if int(count - done) >> bit & 1:
                z, p = doubles[bit](z, p)
        done = int(count)
        here = np.flatnonzero(~early & (cycles == count))
        moments = placed(one.body, z, p)
        steps = one.body.steps_done[left[here] - one.start]
        mean[:, here], variance[:, here] = _at_steps(clients, work, one.body, moments, steps)
    return mean, variance


def placed(plan: Schedule, mean: Floats, cov: Floats) -> Moments:
    """Moments [rates, coordinates, models(, models)] in the slots with which a schedule begins."""
    slots = np.zeros((plan.num_slots, *mean.shape[:2]))
    slots[plan.entry] = np.moveaxis(mean, -1, 0)
    table = np.zeros((plan.num_slots, *slots.shape))
    table[np.ix_(plan.entry, plan.entry)] = np.moveaxis(cov, (-2, -1), (0, 1))
    return Moments(slots, table)
