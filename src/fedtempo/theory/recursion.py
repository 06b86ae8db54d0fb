"""Quadratic clients, coordinate by coordinate: what one job does, and the exact recursion of rounds with stale updates.

    L_i(θ) = ℓ_i + ½ Σ_k a_ik (θ_k − c_ik)²          a batch's gradient: a_ik (θ_k − c_ik) + noise of variance s_ik
    Δ_ik = −φ_ik (θ_k − c_ik) + noise of variance v_ik
    φ = 1 − (1 − η_l a)^K  (Example 1),      v = s η_l² Σ_{k<K} (1 − η_l a)^{2k}

Equation 4 with these contributions is, for each coordinate,

    θ^{n+1} = θ^n + Σ_{i∈S_n} g_i (c_i − θ^{ρ_i(n)}) + noise,       g_i = η_g ω_i(n) φ_i

The models that jobs still out started from, and θ^n itself, make up the state z; a round replaces one of them:

    z' = T_n z + u_n,    E z' = T_n E z + u_n,    Cov z' = T_n Cov(z) T_nᵀ + Q_n,    Q_n = Σ_{i∈S_n} (η_g ω_i(n))² v_i

A model lives in a slot from its making to its last use, so that z has at most min(M, largest delay + 1) + 1 numbers and
a round costs one row of the covariance. A round without updates changes nothing and is left out. The noise of one
client's coordinates may be correlated: expected losses need the variance of each coordinate alone.

a is `curvature`, c `center`, s `noise`, ℓ `floor`; φ is `pull`, v `jitter`, g `gain`, η_l `lr`, K `steps`. Arrays are
[slots, rates, coordinates], covariances [slots, slots, rates, coordinates].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.importance import Importance
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.display import Brief
from fedtempo.errors import InputError
from fedtempo.problems.quadratic import Quadratics
from fedtempo.weighting.weights import Weights


@dataclass(frozen=True, eq=False, repr=False)
class Coordinates(Brief):
    """Quadratic clients along the axes of their curvature, known or estimated.

    Example:
        >>> problem = ft.problems.quadratics(centers=[[0.0], [1.0]])
        >>> found = ft.theory.Coordinates.of(problem, batch_size=None)
        >>> found.optimum, found.optimal_loss
        (array([0.5]), 0.125)
        >>> found.losses([0.25])  # of each client at this model
        array([0.03125, 0.28125])
    """

    curvature: Floats
    """[clients, coordinates] a."""
    center: Floats
    """[clients, coordinates] c."""
    noise: Floats
    """[clients, coordinates] s, the variance of the gradient of one batch."""
    start: Floats
    """[coordinates] θ^0."""
    importance: Importance
    """p_i."""
    floor: Floats | float = 0.0
    """[clients] ℓ_i, the least value of each client's loss."""

    def __post_init__(self) -> None:
        shape = np.shape(self.curvature)
        for name in ("curvature", "center", "noise"):
            if len(shape) != 2 or np.shape(getattr(self, name)) != shape:
                found = np.shape(getattr(self, name))
                raise InputError(
                    f"{name}: shape {found}, but curvature has shape {shape}; give [clients, coordinates] for both"
                )
        if np.shape(self.start) != shape[1:] or len(self.importance.values) != shape[0]:
            raise InputError(
                f"start has shape {np.shape(self.start)} and importance {len(self.importance.values)} values for "
                f"{shape[0]} clients × {shape[1]} coordinates; give one start per coordinate, and one importance per "
                "client"
            )

    @classmethod
    def of(cls, problem: Quadratics, batch_size: int | None) -> Coordinates:
        """Those of a family of quadratics under batches of so many rows, with replacement; None: full gradients."""
        a, c = (np.asarray(leaf, dtype=np.float64) for leaf in problem.rows)
        owner = np.repeat(np.arange(problem.num_clients), problem.sizes)
        off = c - problem.centers[owner]
        sizes = problem.sizes[:, None]
        begin = problem.offsets[:-1]
        variance = np.add.reduceat((a * off) ** 2, begin, axis=0) / sizes
        return cls(
            curvature=problem.curvatures,
            center=problem.centers,
            noise=np.zeros_like(variance) if batch_size is None else variance / batch_size,
            start=np.zeros(problem.curvatures.shape[1]),
            importance=problem.importance,
            floor=(np.add.reduceat(a * off**2, begin, axis=0) / sizes).sum(axis=1) / 2,
        )

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.curvature)

    def losses(self, mean: ArrayLike, variance: ArrayLike = 0.0) -> Floats:
        """[…, clients] E[L_i(θ)] for a model with this mean and variance [… , coordinates]."""
        away = np.asarray(mean, dtype=np.float64)[..., None, :] - self.center
        spread = np.asarray(variance, dtype=np.float64)
        square = away**2 + (spread[..., None, :] if spread.ndim else spread)
        return np.asarray(self.floor + 0.5 * (self.curvature * square).sum(axis=-1))

    @property
    def optimum(self) -> Floats:
        """[coordinates] argmin Σ p_i L_i."""
        pull = self.importance.values[:, None] * self.curvature
        return np.asarray((pull * self.center).sum(axis=0) / pull.sum(axis=0))

    @property
    def optimal_loss(self) -> float:
        """The least value of L = Σ p_i L_i."""
        return float(self.importance.values @ self.losses(self.optimum))


class Job(NamedTuple):
    """What K local steps do, for each client, learning rate and coordinate."""

    pull: Floats
    """[clients, rates, coordinates] φ; [clients, rates, d, d] where curvatures are matrices."""
    jitter: Floats
    """[clients, rates, coordinates] v."""


def pull_of(curvature: ArrayLike, lr: ArrayLike, steps: int) -> Floats:
    """φ of curvatures [clients, coordinates], or of symmetric matrices [clients, d, d], at rates [rates]."""
    a = np.asarray(curvature, dtype=np.float64)
    rates = np.atleast_1d(np.asarray(lr, dtype=np.float64))
    if a.ndim == 3:
        values, vectors = np.linalg.eigh(a)
        return np.asarray((vectors[:, None] * pull_of(values, rates, steps)[..., None, :]) @ vectors[:, None].mT)
    move = rates[:, None] * a[:, None, :]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        gentle = -np.expm1(steps * np.log1p(-np.minimum(move, 0.5)))  # keeps its digits for small steps
        return np.where(move <= 0.5, gentle, 1.0 - (1.0 - move) ** steps)


def job(coordinates: Coordinates, lr: ArrayLike, steps: int) -> Job:
    """φ and v at each rate."""
    rates = np.atleast_1d(np.asarray(lr, dtype=np.float64))
    keep = (1.0 - rates[:, None] * coordinates.curvature[:, None, :]) ** 2
    series: Any = np.zeros_like(keep)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            series = series * keep + 1.0
        jitter = coordinates.noise[:, None, :] * rates[:, None] ** 2 * series
    return Job(pull_of(coordinates.curvature, rates, steps), jitter)


Product = Callable[[Floats, Floats], Floats]
_RESCALED_EVERY = 32


@dataclass(frozen=True, eq=False)
class Schedule:
    """A stretch of a timeline as steps on slots: who contributes, from which slot, and where the new model goes."""

    num_slots: int
    entry: I64
    """[models] slots of the models at hand before the first step, the newest first."""
    exit: I64
    """[models] the same after the last step."""
    current: I64
    """[steps] slot of θ^n."""
    made: I64
    """[steps] slot of θ^{n+1}."""
    offsets: I64
    """[steps + 1] where each step's updates begin."""
    client: I64
    source: I64
    """[updates] slot of θ^{ρ_i(n)}."""
    weight: Floats
    """[updates] η_g ω_i(n)."""
    steps_done: I64 = field(repr=False)
    """[rounds + 1] steps made before each round of the stretch, and after all."""

    @property
    def num_steps(self) -> int:
        """Rounds with updates."""
        return len(self.made)


def applied(weights: Weights | ArrayLike, line: Timeline) -> Floats:
    """[updates] ω_i(n), of d_i as `fedtempo.weights` gives them or as plain numbers."""
    if isinstance(weights, Weights):
        return weights.applied(line)
    plain = np.asarray(weights, dtype=np.float64)
    if plain.shape != (line.num_clients,):
        raise InputError(f"weights: shape {plain.shape} for {line.num_clients} clients; give one per client")
    return np.asarray(plain[line.client] * (1 if line.draws is None else line.draws))


def schedule(
    line: Timeline, weights: Weights | ArrayLike, *, server_lr: float = 1.0, begin: int = 0, end: int | None = None
) -> Schedule:
    """Rounds `begin` … `end` − 1 of a timeline, by position; models that a later round of it reads are kept."""
    end = line.num_rounds if end is None else end
    filled = np.diff(line.offsets) > 0
    count = np.concatenate([[0], np.cumsum(filled)])  # the model that each version of the line is
    base = line.base.astype(np.int64) - line.first_round
    model = np.where(base < 0, base, count[np.maximum(base, 0)])
    place = line.round_of_update - line.first_round
    oldest = int(model.min(initial=0))
    last_use = np.full(int(count[-1]) - oldest + 1, -1, dtype=np.int64)  # by model − oldest
    np.maximum.at(last_use, model - oldest, place)
    steps = np.flatnonzero(filled[begin:end]) + begin
    shelf = _Shelf(int(count[begin]), last_use, oldest, begin)
    entry = shelf.at_hand()
    updates = slice(int(line.offsets[begin]), int(line.offsets[end]))
    current, made, source = shelf.walk(steps, line.offsets, model)
    return Schedule(
        num_slots=shelf.size,
        entry=entry,
        exit=shelf.at_hand(),
        current=current,
        made=made,
        offsets=np.append(line.offsets[steps], line.offsets[end]) - line.offsets[begin],
        client=line.client[updates].astype(np.int64),
        source=source,
        weight=server_lr * applied(weights, line)[updates],
        steps_done=count[begin : end + 1] - count[begin],
    )


class _Shelf:
    """Which model lies in which slot."""

    def __init__(self, newest: int, last_use: I64, oldest: int, begin: int) -> None:
        self._newest, self._oldest = newest, oldest
        self._last = last_use.tolist()
        older = [m for m in range(oldest, newest) if self._last[m - oldest] >= begin]
        self._where = {m: slot for slot, m in enumerate([newest, *reversed(older)])}
        self.size = len(self._where)
        self._free: list[int] = []

    def at_hand(self) -> I64:
        return np.array([self._where[m] for m in sorted(self._where, reverse=True)], dtype=np.int64)

    def walk(self, steps: I64, offsets: I64, model: I64) -> tuple[I64, I64, I64]:
        """[steps] current and made, [updates] source. A slot whose last reader is this step takes the new model."""
        current: list[int] = []
        made: list[int] = []
        source: list[int] = []
        for step in steps.tolist():
            bases = model[offsets[step] : offsets[step + 1]].tolist()
            current.append(self._where[self._newest])
            source.extend(self._where[m] for m in bases)
            for m in {*bases, self._newest}:
                if self._last[m - self._oldest] <= step:
                    self._free.append(self._where.pop(m))
            self._newest += 1
            if not self._free:
                self._free.append(self.size)
                self.size += 1
            self._where[self._newest] = self._free.pop()
            made.append(self._where[self._newest])
        return tuple(np.array(x, dtype=np.int64) for x in (current, made, source))  # type: ignore[return-value]


class Moments(NamedTuple):
    """Mean and covariance of the models at hand; both are changed in place by `advance`."""

    mean: Floats
    """[slots, rates, coordinates]"""
    cov: Floats | None
    """[slots, slots, rates, coordinates]; None where only the mean is asked for."""


def starting(plan: Schedule, start: Floats, rates: int, *, covariance: bool) -> Moments:
    """Every model at hand is θ^0, known for sure."""
    shape = (plan.num_slots, rates, len(start))
    cov = np.zeros((plan.num_slots, *shape)) if covariance else None
    return Moments(np.broadcast_to(start, shape).copy(), cov)


def handed_over(moments: Moments, before: Schedule, after: Schedule) -> Moments:
    """The state at the end of one stretch in the slots of the next."""
    mean = np.zeros((after.num_slots, *moments.mean.shape[1:]))
    mean[after.entry] = moments.mean[before.exit]
    if moments.cov is None:
        return Moments(mean, None)
    cov = np.zeros((after.num_slots, *mean.shape))
    cov[np.ix_(after.entry, after.entry)] = moments.cov[np.ix_(before.exit, before.exit)]
    return Moments(mean, cov)


def advance(plan: Schedule, moments: Moments, job: Job, center: Floats, begin: int = 0, end: int | None = None) -> None:
    """Carry mean and covariance through steps `begin` … `end` − 1, in place."""
    mean, cov = moments
    offsets, sources = plan.offsets.tolist(), plan.source.tolist()
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(begin, plan.num_steps if end is None else end):
            part = slice(offsets[step], offsets[step + 1])
            who, weight = plan.client[part], plan.weight[part][:, None, None]
            gain = weight * job.pull[who]
            current, made = plan.current[step], plan.made[step]
            source = sources[part]
            if cov is not None:
                row = _moved(cov, int(current), source, gain)  # with every model at hand
                noise = (weight**2 * job.jitter[who]).sum(axis=0)
                cov_new = _moved(row, int(current), source, gain) + noise
                cov[made] = row
                cov[:, made] = row
                cov[made, made] = cov_new
            mean[made] = mean[current] + (gain * (center[who][:, None, :] - mean[source])).sum(axis=0)


def _moved(table: Floats, current: int, source: list[int], gain: Floats) -> Floats:
    """table[current] − Σ gain · table[source]."""
    row: Floats = table[current].copy()
    if len(set(source)) == 1:
        row -= gain.sum(axis=0) * table[source[0]]
        return row
    for slot, own in zip(source, gain, strict=True):
        row -= own * table[slot]
    return row


def carried(plan: Schedule, pull: Floats, state: Floats, begin: int = 0, end: int | None = None) -> Floats:
    """Differences of two runs: `state` [slots, rates, coordinates, columns] moved in place by T_n, round after round.

    Pulls may be matrices [clients, rates, d, d]. The state is divided by its size now and then; the logarithm of all
    divisors [rates, coordinates], or [rates, 1] for matrices, is given back.
    """
    whole = pull.ndim == 4
    product: Product = np.matmul if whole else lambda g, z: g[..., None] * z
    axes = (0, 2, 3) if whole else (0, 3)
    log_size = np.zeros((state.shape[1], 1 if whole else state.shape[2]))
    offsets = plan.offsets.tolist()
    stop = plan.num_steps if end is None else end
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for step in range(begin, stop):
            new = state[plan.current[step]].copy()
            for u in range(offsets[step], offsets[step + 1]):
                new -= plan.weight[u] * product(pull[plan.client[u]], state[plan.source[u]])
            state[plan.made[step]] = new
            if (step - begin + 1) % _RESCALED_EVERY == 0 or step == stop - 1:
                recent = np.unique(plan.made[max(begin, step + 1 - _RESCALED_EVERY) : step + 1])
                size = np.abs(state[recent]).max(axis=axes)  # a slot that nobody reads any more keeps what it held
                size = np.where((size > 0) & np.isfinite(size), size, 1.0)
                state /= size.reshape((1, len(size), -1, 1))
                log_size += np.log(size).reshape(log_size.shape)
    return log_size


def product_of(plan: Schedule, pull: Floats) -> tuple[Floats, Floats]:
    """All T_n multiplied [rates, coordinates, models, models], as (matrix / size, log size); blocks of d × d."""
    models, (rates, width) = len(plan.entry), pull.shape[1:3]
    if pull.ndim == 4:
        state = np.zeros((plan.num_slots, rates, width, models * width))
        for k, slot in enumerate(plan.entry):
            state[slot, :, :, k * width : (k + 1) * width] = np.eye(width)
        log_size = carried(plan, pull, state)
        whole = np.moveaxis(state[plan.exit], 0, 1).reshape(rates, 1, models * width, models * width)
        return whole, log_size
    state = np.zeros((plan.num_slots, rates, width, models))
    state[plan.entry, :, :, np.arange(models)] = 1.0
    log_size = carried(plan, pull, state)
    return np.ascontiguousarray(np.moveaxis(state[plan.exit], 0, 2)), log_size
