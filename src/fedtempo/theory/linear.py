"""The exact recursion of a quadratic coordinate under stale updates (equation 4 with Example 1's φ).

    θ^{n+1} = θ^n + Σ_{i∈S_n} g_i (c_i − θ^{ρ_i(n)}) + noise,       g_i = η_g ω_i(n) φ_i

The models that jobs still out started from, and θ^n itself, make up the state z; a round replaces one of them:

    z' = T_n z + u_n,    E z' = T_n E z + u_n,    Cov z' = T_n Cov(z) T_nᵀ + Q_n,    Q_n = Σ_{i∈S_n} (η_g ω_i(n))² v_i

A model lives in a slot from its making to its last use, so that z has at most min(M, largest delay + 1) + 1 numbers and
a round costs one row of the covariance. A round without updates changes nothing and is left out. g is `gain`, φ `pull`,
v `jitter`, c `center`. Arrays are [slots, rates, coordinates], covariances [slots, slots, rates, coordinates].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.theory.coordinates import Job
from fedtempo.weighting import Weights

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
