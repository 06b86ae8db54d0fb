"""How a scheme goes on for ever, as the quadratic recursion sees it: what the growth of distances and the stationary
loss are worked out from.

    Repeating     fixed times: rounds repeat after a transient;       growth = log ρ(T_W … T_1) / W
    Independent   exponential times: S_n is drawn afresh each round;  growth = ½ log ρ(P ↦ E[T_S P T_Sᵀ])
    Sampled       sampling, FedAvg: all start from θ^n;               growth = ½ log E[(1 − Σ_i n_i g_i)²]
    Drawn         anything else: along a long timeline;               growth = mean of log ‖T_n z‖/‖z‖, an estimate

Growth is a round's, of the distance between two runs (of its root mean square where rounds are random); n_i is how
often client i was drawn. The first three are exact. A growth comes with its standard error, zero where it is exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedtempo.clock.cycle import observe
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme, without_options
from fedtempo.schemes.timelines import weights_of
from fedtempo.theory.recursion import Schedule, carried, product_of, schedule
from fedtempo.theory.rounds import check_always_there
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule, weight_rule
from fedtempo.weighting.weights import Weights

MAX_CYCLE = 20_000
"""Longest cycle whose product is formed; a longer one is followed for a while instead."""
LONG = 20_000
"""Rounds of a timeline that is followed for an estimate."""
MAX_SETS = 4096
"""Up to how many sets of participants are listed one by one."""
_PARTS = 10

Sense = Literal["mean-square", "typical"]
Growth = tuple[Floats, Floats]
"""[rates, coordinates] growth and its standard error; one coordinate for all where curvatures are matrices."""


class Regime(ABC):
    """A scheme in the long run; weights and server learning rate included.

    `regime` makes it, and `forecast` follows it for ever.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> found = ft.theory.regime(ft.AsyncFedAvg(), times)
        >>> found.kind, found.rounds_per_time
        ('cycle', 1.75)
        >>> curve = ft.theory.forecast(ft.problems.quadratics(3), found, local=ft.LocalSGD(lr=0.1), at=[0, 20, 200])
        >>> curve.loss.round(3)
        array([[0.606, 0.288, 0.283]])
    """

    rounds_per_time: float
    exact: bool = True
    kind: str

    @abstractmethod
    def growth(self, pull: Floats) -> Growth:
        """Of distances, a round, for pulls [clients, rates, coordinates] or [clients, rates, d, d]."""


@dataclass(frozen=True, eq=False)
class Repeating(Regime):
    """Rounds `start` … `start + length − 1` of a timeline repeat for ever."""

    line: Timeline
    """From round 0 to the end of the second repetition."""
    start: int
    length: int
    head: Schedule
    """The transient."""
    body: Schedule
    """One cycle."""
    kind = "cycle"

    @classmethod
    def of(cls, line: Timeline, start: int, length: int, weights: Weights | ArrayLike, server_lr: float) -> Repeating:
        """From a timeline that holds the transient and two cycles."""
        head = schedule(line, weights, server_lr=server_lr, end=start)
        body = schedule(line, weights, server_lr=server_lr, begin=start, end=start + length)
        return cls(line, start, length, head, body)

    @property
    def num_clients(self) -> int:
        """M."""
        return self.line.num_clients

    @property
    def cycle_ticks(self) -> int:
        """Duration of one cycle, in ticks."""
        return int(self.line.ends[self.start + self.length - 1]) - self.begin_tick

    @property
    def begin_tick(self) -> int:
        """When the first cycle starts."""
        return int(self.line.ends[self.start - 1]) if self.start else self.line.start

    @property
    def rounds_per_time(self) -> float:  # type: ignore[override]
        return self.length / float(self.cycle_ticks * self.line.unit)

    def growth(self, pull: Floats) -> Growth:
        product, log_size = product_of(self.body, pull)
        with np.errstate(divide="ignore"):
            value = (np.log(np.abs(np.linalg.eigvals(product)).max(axis=-1)) + log_size) / self.length
        return value, np.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Independent(Regime):
    """The participants of a round are drawn afresh, and each starts again from the new model."""

    sets: Floats
    """[sets, clients] 1 for those who take part."""
    probability: Floats
    weight: Floats
    """[clients] η_g d_i."""
    rounds_per_time: float
    kind = "mean-square"

    def growth(self, pull: Floats) -> Growth:
        blocks = pull if pull.ndim == 4 else pull[..., None, None]  # [clients, rates, (coordinates,) d, d]
        cells = np.moveaxis(blocks, 0, -3).reshape(-1, *blocks.shape[:1], *blocks.shape[-2:])
        radius = np.array([self._radius(cell) for cell in cells])
        with np.errstate(divide="ignore"):
            value = 0.5 * np.log(radius).reshape(blocks.shape[1], -1)
        return value, np.zeros_like(value)

    def _radius(self, pull: Floats) -> float:
        """Spectral radius of the second moment's map: it keeps positive matrices positive, so an eigenvalue itself."""
        from scipy.sparse.linalg import LinearOperator, eigs

        size = (1 + len(pull)) * pull.shape[-1]
        once = self.second_moment(pull)
        if size**2 <= 36:
            table = np.stack([once(unit.reshape(size, size)).ravel() for unit in np.eye(size**2)], axis=1)
            return float(np.abs(np.linalg.eigvals(table)).max())
        map_ = LinearOperator((size**2, size**2), matvec=lambda v: once(v.reshape(size, size)).ravel(), dtype=float)
        found = eigs(map_, k=1, which="LR", v0=np.eye(size).ravel(), return_eigenvectors=False, tol=1e-11)
        return float(found.real.max())

    def second_moment(self, pull: Floats) -> Any:
        """P ↦ E[T_S P T_Sᵀ] on the state (θ, b_1, …, b_M), b_i the model that client i works from; blocks of d."""
        width, count = pull.shape[-1], 1 + len(pull)
        gain = self.weight[:, None, None] * pull
        parts = np.zeros((len(self.sets), width, count, width))  # θ' as a function of the state
        parts[:, :, 0] = np.eye(width)
        parts[:, :, 1:] = -np.moveaxis(self.sets[:, :, None, None] * gain, 2, 1)
        new = parts.reshape(len(self.sets), width, count * width)
        hit = np.concatenate([np.ones((len(self.sets), 1)), self.sets], axis=1)  # replaced by θ'
        likely = self.probability[:, None] * hit
        kept = (1 - hit).T @ (self.probability[:, None] * (1 - hit))

        def once(state: Floats) -> Floats:
            state = (state + state.T) / 2  # solvers also try what is no second moment
            row = new @ state  # [sets, d, state]
            both = row @ new.mT
            twice = np.einsum("sa,sbij->aibj", likely, hit[:, :, None, None] * both[:, None], optimize=True)
            other = (1 - hit)[:, :, None, None] * row.reshape(len(new), width, count, width).swapaxes(1, 2)
            mixed = np.einsum("sa,sbij->aibj", likely, other, optimize=True).reshape(state.shape)
            still = np.repeat(np.repeat(kept, width, 0), width, 1) * state
            return np.asarray(twice.reshape(state.shape) + mixed + mixed.T + still)

        return once


@dataclass(frozen=True, eq=False)
class Sampled(Regime):
    """Every participant starts from θ^n: the state is θ alone."""

    first: Floats
    """[clients] E n_i."""
    second: Floats
    """[clients, clients] E n_i n_j."""
    weight: Floats
    rounds_per_time: float
    kind = "mean-square"

    def growth(self, pull: Floats) -> Growth:
        gain = self.weight.reshape(-1, *[1] * (pull.ndim - 1)) * pull
        if pull.ndim == 3:
            square = (
                1 - 2 * np.einsum("i,irc->rc", self.first, gain) + np.einsum("ij,irc,jrc->rc", self.second, gain, gain)
            )
        else:
            width = pull.shape[-1]
            mean = np.eye(width) - np.einsum("i,irab->rab", self.first, gain)
            spread = self.second - np.outer(self.first, self.first)
            pairs = np.einsum("rab,rcd->racbd", mean, mean) + np.einsum("ij,irab,jrcd->racbd", spread, gain, gain)
            table = pairs.reshape(len(pairs), width**2, width**2)
            square = np.abs(np.linalg.eigvals(table)).max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            value = 0.5 * np.log(np.maximum(square, 0.0))  # a square: below zero by rounding only
        return value, np.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Drawn(Regime):
    """One long timeline, taken for all."""

    line: Timeline
    plan: Schedule
    kind = "timeline"
    exact = False

    @property
    def rounds_per_time(self) -> float:  # type: ignore[override]
        return self.line.num_rounds / float(self.line.duration)

    def growth(self, pull: Floats) -> Growth:
        plan = self.plan
        state = np.random.default_rng(0).standard_normal((plan.num_slots, *pull.shape[1:3], 1))
        cuts = np.linspace(plan.num_steps // 5, plan.num_steps, _PARTS + 1).astype(int)
        carried(plan, pull, state, 0, int(cuts[0]))
        parts = [carried(plan, pull, state, int(a), int(b)) for a, b in pairwise(cuts)]
        per_round = np.array(parts) / np.diff(cuts)[:, None, None] * plan.num_steps / self.line.num_rounds
        return per_round.mean(axis=0), per_round.std(axis=0, ddof=1) / np.sqrt(_PARTS)


def regime(
    scheme: Scheme,
    times: ClientTimes,
    *,
    importance: Iterable[Exact] | None = None,
    weights: str | WeightRule | Weights | ArrayLike = "time-based",
    server_lr: float = 1.0,
    sense: Sense = "mean-square",
    rounds: int = LONG,
    seed: int = 0,
) -> Regime:
    """The long run of a scheme. `sense` "typical" follows one long timeline of `rounds` where times are random.

    Example:
        >>> found = ft.theory.regime(ft.FedFix(1), ft.FixedTimes([4, 2, 1]))
        >>> found.kind, found.exact, found.rounds_per_time
        ('cycle', True, 1.0)
    """
    if sense not in ("mean-square", "typical"):
        raise InputError(f"sense: {sense!r} is not known; use mean-square or typical")
    if times.availability is not None and times.availability.changes:
        check_always_there(times, "the long run of all clients", "give absences a period, or times.always")
    run = LongRun(without_options(scheme).waiting, times, Importance(importance, times.num_clients), seed)
    d = _weights(scheme, run, weights)
    plain = not isinstance(d, Weights) or type(d.rule).discount is WeightRule.discount
    random = times.random or run.rule.random
    if plain and not (random and sense == "typical"):
        found = _known(run, server_lr * np.asarray(d))
        if found is not None:
            return found
    if not random and (cycle := observe(run.record, max_rounds=2 * MAX_CYCLE).cycle) and cycle.length <= MAX_CYCLE:
        line = Timeline.joined(run.record.rounds(cycle.start + 2 * cycle.length))
        return Repeating.of(line, cycle.start, cycle.length, d, server_lr)
    line = Timeline.joined(run.record.rounds(rounds))
    return Drawn(line, schedule(line, d, server_lr=server_lr))


def _weights(scheme: Scheme, run: LongRun, given: str | WeightRule | Weights | ArrayLike) -> Weights | Floats:
    """d_i; of stages, the last."""
    if isinstance(given, (str, WeightRule)):
        given = weights_of(scheme, run, weight_rule(given))
    if isinstance(given, Weights):
        return given.stage(given.num_stages - 1)
    return np.asarray(given, dtype=np.float64)


def _known(run: LongRun, weight: Floats) -> Regime | None:
    """The regimes whose law is known, whatever the durations; of clients that come and go, none."""
    if run.times.availability is not None:
        return None
    law = run.closed.round_law
    if law is None or not law.fresh:
        return None
    if run.rule.synchronous:
        return Sampled(law.mean(), law.second(), weight, run.rounds_per_time)
    sets = law.sets(MAX_SETS)
    return None if sets is None else Independent(*sets, weight, run.rounds_per_time)
