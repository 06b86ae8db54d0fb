"""Schemes side by side for given client times, without a model: `compare`, and what deserves a word in a plan.

For each scheme its pace, staleness, windows and weights, and what identical weights would cost:

    bias = max_i |q̃_i/p_i − 1|,    χ² = Σ (p_i − q̃_i)²/q̃_i (Theorem 3),    q̃_i the participation share
    idle = 1 − mean_i τ_i × contributions_i per time,    mean delay = M / (updates a round) − 1

The last holds whatever the times: between two contributions of a client lie exactly (delay + 1) rounds. Of clients that
come, go and fail, idle and delay are measured along a run of the clock, and beside them are those of the same clients
always there: the difference is what their absences cost. Schemes with a worst-case guarantee are held against the least
that any method can guarantee (theory/optimality.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtempo import display
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact, text
from fedtempo.clock.time_use import Work, work_of
from fedtempo.clock.times import MANY_CLIENTS, ClientTimes, FixedTimes, Floats
from fedtempo.display import Shown, frame_of, one_line
from fedtempo.errors import InputError
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.schemes.options import SchemeOptions
from fedtempo.schemes.timelines import weights_of
from fedtempo.theory.optimality import OverOptimal, asynchronous_over_optimal, synchronous_over_optimal
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule, weight_rule
from fedtempo.weighting.weights import Weights, expected_of
from fedtempo.weighting.windows import practical_window, window

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from fedtempo.display import WebPage
    from fedtempo.planning.recommendation import Recommendation


@dataclass(frozen=True)
class Costs:
    """What clients do with their time, and what they would do if they were always there and no job failed."""

    work: Work
    rounds_per_time: float
    """If they were always there; so are the next ones."""
    updates_per_time: float
    idle_share: float
    mean_delay: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        always = {name: value for name, value in asdict(self).items() if name != "work"}
        return {**asdict(self.work), "always_there": always}


def costs_of(run: LongRun) -> Costs | None:
    """None if the clients are always there."""
    if run.times.availability is None:
        return None
    plain = LongRun(run.rule, run.times.always, run.importance, run.seed)
    costs = Costs(
        work_of(run.after_last_change.record.config),
        plain.rounds_per_time,
        plain.rounds_per_time * plain.participation.updates_per_round,
        idle_share(plain),
        plain.mean_delay,
    )
    plain.record.forget()
    return costs


def idle_share(run: LongRun) -> float:
    """Share of their time in which clients that are always there have nothing to do."""
    part = run.participation
    taking = part.share if part.taking_part is None else part.taking_part
    busy = float((run.times.clock_mean_time * taking).mean()) * run.rounds_per_time
    return max(0.0, 1.0 - busy)


FORMAT = 1
_EXACT_LISTS = 100
"""Up to how many clients a plan's document lists rationals."""


@dataclass(frozen=True, repr=False)
class SchemePlan(Shown):
    """What one scheme does with these clients."""

    scheme: Scheme
    run: LongRun
    weights: Weights | None
    """None if no weights can do what was asked; with the server's step in what is applied."""
    expected_weights: Floats | None
    window: int | None
    practical_window: int | None
    max_delay: int
    max_delay_exact: bool
    max_delay_bound: int | None
    remarks: tuple[str, ...]
    costs: Costs | None = None
    """What it costs that clients come, go and fail; None if they are always there."""
    over_optimal: OverOptimal | None = None
    """Worst-case guarantee over the lower bound; None without a guarantee."""

    @property
    def rounds_per_time(self) -> float:
        """Rounds in a unit of time."""
        return self.run.rounds_per_time

    @property
    def updates_per_time(self) -> float:
        """Client updates in a unit of time."""
        return self.run.rounds_per_time * self.run.participation.updates_per_round

    @property
    def idle_share(self) -> float:
        """Share of the time that the clients are there in which they have nothing to do."""
        return self.costs.work.idle if self.costs is not None else idle_share(self.run)

    @property
    def mean_delay(self) -> float:
        """Mean of n − ρ_i(n) over updates."""
        return self.run.mean_delay

    @property
    def identical_share(self) -> Floats:
        """q̃_i under identical weights; where clients come or go for good, of those who stay."""
        share = self.run.after_last_change.participation.share
        return np.asarray(share / share.sum())

    @property
    def identical_bias(self) -> float:
        """Max |q̃_i/p_i − 1| under identical weights."""
        return float(np.abs(self.identical_share / self.run.after_last_change.importance.values - 1.0).max())

    @property
    def identical_chi2(self) -> float | None:
        """χ² of Theorem 3 under identical weights; None (infinite) if a client never takes part."""
        share = self.identical_share
        if float(share.min()) <= 0:
            return None
        return float(((self.run.after_last_change.importance.values - share) ** 2 / share).sum())

    @property
    def step(self) -> float:
        """The server's step: 1 is the paper's."""
        return 1.0 if self.weights is None or self.weights.steps is None else self.weights.steps[-1]

    @property
    def server_step_per_time(self) -> float | None:
        """Step × Σ q_i × rounds in a unit of time: how far the server moves."""
        if self.expected_weights is None:
            return None
        return self.step * float(self.expected_weights.sum()) * self.run.rounds_per_time

    @property
    def ratios(self) -> dict[str, float | None]:
        """`over_optimal` by the names of the JSON document: those at a given noise are None if none is given."""
        known = self.over_optimal
        found: dict[str, float | None] = {}
        for kind in ("heterogeneous", "homogeneous"):
            name = "over_optimal" if kind == "heterogeneous" else f"{kind}_over_optimal"
            found[name] = None if known is None or known.at_noise is None else getattr(known.at_noise, kind)
            found[f"{name}_no_noise"] = None if known is None else getattr(known.no_noise, kind)
            found[f"{name}_all_noise"] = None if known is None else getattr(known.all_noise, kind)
        return found

    def to_dict(self) -> dict[str, Any]:
        """The scheme's part of a plan's JSON document."""
        part = self.run.participation
        few = self.run.times.num_clients <= _EXACT_LISTS
        values = None if self.weights is None else self.weights.values[-1]
        precise = None if self.weights is None or not few else self.weights.exact[-1]
        expected = self.expected_weights
        cycle = self.run.observation.cycle if part.source == "cycle" else None
        document: dict[str, Any] = {
            "scheme": self.scheme.spec(),
            "label": self.scheme.label,
            "weights": _listed(values),
            "weights_exact": None if precise is None else [text(w) for w in precise],
            "participation": _listed(part.share),
            "participation_exact": None if part.exact is None or not few else [text(s) for s in part.exact],
            "participation_source": part.source,
            "participation_error": _listed(part.error),
            "expected_weights": _listed(expected),
            "expected_over_importance": None if expected is None else _listed(expected / self.run.importance.values),
            "window": self.window,
            "practical_window": self.practical_window,
            "cycle": None if cycle is None else {"start": cycle.start, "length": cycle.length},
            "max_delay": self.max_delay,
            "max_delay_exact": self.max_delay_exact,
            "max_delay_bound": self.max_delay_bound,
            "mean_delay": self.mean_delay,
            "rounds_per_time": self.rounds_per_time,
            "rounds_per_time_source": self.run.rounds_per_time_source,
            "updates_per_time": self.updates_per_time,
            "idle_share": self.idle_share,
            "min_weight": None if values is None else float(values.min()),
            "max_weight": None if values is None else float(values.max()),
            "identical_bias": self.identical_bias,
            "identical_chi2": self.identical_chi2,
            "server_step": self.step,
            "server_step_per_time": self.server_step_per_time,
            **self.ratios,
            "remarks": list(self.remarks),
        }
        if self.weights is not None and self.weights.num_stages > 1:
            document["stages"] = [
                {**begin, "weights": _listed(row)}
                for begin, row in zip(_begins(self.weights), self.weights.values, strict=True)
            ]
        if self.costs is not None:
            document["availability"] = self.costs.to_dict()
        return document

    def table(self) -> pd.DataFrame:
        """A row a client: `client`, `mean_time`, `importance`, `participation`, `weight`, `expected_weight`.

        Weights are those of the last stage.
        """
        return frame_of(self)

    def __repr__(self) -> str:
        pace = f"{self.rounds_per_time:.4g} rounds and {self.updates_per_time:.4g} updates a unit of time"
        return one_line("SchemePlan", f"{self.scheme.label} with {self.run.times.num_clients} clients, {pace}")


def _listed(values: Floats | None) -> list[float] | None:
    """Numbers of each client; of more than a million none are listed."""
    return None if values is None or len(values) > MANY_CLIENTS else values.tolist()


def _begins(weights: Weights) -> list[dict[str, Any]]:
    """When each set of weights begins to hold: with a round, or at a time."""
    if weights.first_times is not None:
        return [{"first_time": text(begin)} for begin in weights.first_times]
    return [{"first_round": first} for first in weights.first_rounds]


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A comparison of schemes for given client times; ``print(plan)`` shows the tables of ``fedtempo plan``.

    It is what ``ft.compare`` returns; `schemes` has what is known of each.

    Example:
        >>> plan = ft.compare(ft.FixedTimes.spread(clients=20, slowdown=80), [ft.FedAvg(), ft.FedFix("1/2")])
        >>> plan.table()[["scheme", "rounds_per_time", "idle_share", "mean_delay"]]
                scheme  rounds_per_time  idle_share  mean_delay
        0       FedAvg              1.0    0.400000    0.000000
        1  FedFix(1/2)              2.0    0.261053    0.428571
        >>> plan.schemes[1].practical_window
        100
        >>> _ = plan.plot("plan.svg")
    """

    times: ClientTimes
    importance: Importance
    weight_rule: WeightRule
    seed: int
    schemes: tuple[SchemePlan, ...]
    step: str = "paper"
    noise: float | None = None
    """σ²/ε, at which `over_optimal` is asked for."""

    def to_dict(self) -> dict[str, Any]:
        """The plan as a JSON document."""
        return {
            "format": FORMAT,
            "clients": self.times.num_clients,
            "law": self.times.always.law,
            "times": self.times.describe() if self.times.num_clients <= MANY_CLIENTS else None,
            **({} if self.times.availability is None else {"availability": self.times.availability.to_dict()}),
            "names": None if self.times.names is None else list(self.times.names),
            "importance": _listed(self.importance.values),
            "weight_rule": self.weight_rule.label,
            "step": self.step,
            "seed": self.seed,
            "noise": self.noise,
            "schemes": [scheme.to_dict() for scheme in self.schemes],
        }

    def table(self) -> pd.DataFrame:
        """A row a scheme; the columns have the names of `to_dict`, and `plan.schemes[k].table()` has the clients.

        What there is not is missing (NaN, `pd.NA`); an infinite χ² is infinite.
        """
        return frame_of(self)

    def __repr__(self) -> str:
        means, number = self.times.mean_time, len(self.schemes)
        return one_line(
            "Plan",
            f"{number} scheme{'s' * (number != 1)} for {self.times.num_clients} clients, {self.times.always.law} times "
            f"from {means.min():.4g} to {means.max():.4g}, {self.weight_rule.label} weights, {self.step} step",
        )

    def plot(self, path: str | Path | None = None, *, style: str = "light") -> Figure:
        """Pace against staleness, idle time, weights, and what identical weights would do; with `path` also a file.

        The ending of `path` says whether it is SVG, PNG or PDF; `style` is light or dark.
        """
        return display.plan_figure(self, path=path, style=style)

    def to_html(self, path: str | Path | None = None, *, recommendation: Recommendation | None = None) -> WebPage:
        """A page for a browser on which wait, buffer, clients, spread, law, scheme and weights can be turned.

        One file that needs no network; with `path` it is written, and a notebook shows it. A `recommendation` for the
        same clients adds what was trained. Beside this plan it works out some hundred others, in seconds.
        """
        return display.plan_html(self, path=path, recommendation=recommendation)


def compare(
    times: ClientTimes,
    schemes: Scheme | Sequence[Scheme] | None = None,
    *,
    importance: Iterable[Exact] | None = None,
    weights: str | WeightRule = "time-based",
    seed: int = 0,
    step: str = "stable",
    noise: float | None = None,
) -> Plan:
    """A plan: each scheme's pace, staleness, windows and weights for these clients, at the server's `step`.

    `noise` is σ²/ε: at it, guarantees are compared with the lower bound, else from 0 to infinity (docs/optimality.md).

    Without `schemes`: FedAvg, asynchronous FedAvg, and some waits of FedFix and sizes of FedBuff. `importance` is p_i,
    uniform unless given. `weights` is a weight rule or its name.

    Example:
        >>> plan = ft.compare(ft.FixedTimes.spread(clients=20, slowdown=80), [ft.FedAvg(), ft.FedFix("1/2")])
        >>> print(plan)
        20 clients, fixed times from 0.2 to 1, time-based weights, stable step
        <BLANKLINE>
        Pace and staleness
        scheme       rounds/time  updates/time  idle  delay mean  max   step  step/time  over optimal
        FedAvg                 1            20   40%           0    0      1          1        1–1.67
        FedFix(1/2)            2            28   26%      0.4286    1  0.625       1.25             –
        <BLANKLINE>
        over optimal: worst-case guarantee over the lower bound, from no noise to noise alone.
        If all clients drew from the same data: FedAvg 5 to 2.07.
        <BLANKLINE>
        Windows, weights d_i, and what identical weights would cost
        scheme       window  practical  d min  d max  bias    χ²
        FedAvg            1          1   0.05   0.05    0%     0
        FedFix(1/2)       2        100   0.05    0.1   43%  0.12
    """
    given: object = times
    if not isinstance(given, ClientTimes):
        raise InputError(f"times: {times!r} is not a law of client times; give one, as ft.FixedTimes([1, 2, 3])")
    known = Importance(importance, times.num_clients)
    rule = weight_rule(weights)
    if isinstance(schemes, Scheme):
        schemes = [schemes]
    chosen = tuple(schemes) if schemes is not None else default_schemes(times)
    for one in chosen:
        some: object = one
        if not isinstance(some, Scheme):
            raise InputError(f"schemes: {one!r} is not a scheme; give one, as ft.FedFix('1/2')")
    noise = None if noise is None else _noise(noise)
    plans = tuple(_plan(scheme, times, known, rule, seed, check_step(step)) for scheme in chosen)
    plans = tuple(replace(plan, over_optimal=over_optimal(plan.scheme, times, known, noise)) for plan in plans)
    return Plan(times, known, rule, seed, _with_pace(plans, times), step, noise)


def _noise(given: Any) -> float:
    number = isinstance(given, Real) and not isinstance(given, bool)
    if not number or not 0 <= given <= _MOST_NOISE:
        raise InputError(f"noise: {given!r} is not σ²/ε; give a number from 0 on, as 10")
    return float(given)


_MOST_NOISE = 1e300
_GUARANTEES: dict[type[Scheme], Callable[[Floats, float | None], OverOptimal]] = {
    FedAvg: synchronous_over_optimal,
    AsyncFedAvg: asynchronous_over_optimal,
}


def over_optimal(
    scheme: Scheme, times: ClientTimes, importance: Importance, noise: float | None = None
) -> OverOptimal | None:
    """The scheme's worst-case guarantee over the lower bound; None without a guarantee for these clients.

    There is one for FedAvg and asynchronous FedAvg as they are, and for equally important clients that are always
    there. Random times count with their means.
    """
    guarantee = _GUARANTEES.get(type(scheme))
    alike = np.allclose(importance.values, 1.0 / times.num_clients, rtol=1e-9, atol=0.0)
    if guarantee is None or scheme.options != SchemeOptions() or times.availability is not None or not alike:
        return None
    return guarantee(times.mean_time, noise)


def _with_pace(plans: tuple[SchemePlan, ...], times: ClientTimes) -> tuple[SchemePlan, ...]:
    """The plans, with a word on those that move the model more slowly than FedAvg does, at a step that is not raw."""
    if times.availability is not None or all(plan.step == 1.0 for plan in plans):
        return plans
    first = plans[0].run
    usual = LongRun(FedAvg().waiting, times, first.importance, first.seed).rounds_per_time
    return tuple(_slower(plan, usual) for plan in plans)


def _slower(plan: SchemePlan, usual: float) -> SchemePlan:
    pace = plan.server_step_per_time
    if plan.step == 1.0 or pace is None or pace > 0.995 * usual:
        return plan
    cure = ": clients wait for rounds to end; choose a wait that divides their times" if plan.run.rule.waits else ""
    said = f"moves the model at {pace / usual:.0%} of FedAvg's pace{cure}"
    return replace(plan, remarks=(*plan.remarks, said))


def default_schemes(times: ClientTimes) -> tuple[Scheme, ...]:
    """FedAvg, asynchronous, FedFix at a few waits and FedBuff at two sizes."""
    fixes = [FedFix(wait) for wait in sensible_waits(times)]
    return (FedAvg(), AsyncFedAvg(), *fixes, *(FedBuff(size) for size in sensible_sizes(times)))


def sensible_sizes(times: ClientTimes) -> list[int]:
    """A quarter and a half of the clients, or what fits between asynchronous FedAvg (1) and FedAvg (all)."""
    small = max(2, times.num_clients // 4)
    return [size for size in (small, max(small + 1, times.num_clients // 2)) if size < times.num_clients]


def sensible_waits(times: ClientTimes) -> list[Fraction]:
    """The fastest client's time, half and three quarters of the slowest's; to two digits where times are random."""
    times = times.always
    if isinstance(times, FixedTimes):
        fastest, slowest = int(times.ticks.min()) * times.unit, int(times.ticks.max()) * times.unit
    else:
        fastest, slowest = Fraction(float(times.mean_time.min())), Fraction(float(times.mean_time.max()))
    waits = {fastest, slowest / 2, slowest * 3 / 4}
    if isinstance(times, FixedTimes):
        return sorted(waits)
    return sorted({Fraction(f"{float(wait):.1e}") for wait in waits})


def _plan(
    scheme: Scheme, times: ClientTimes, importance: Importance, rule: WeightRule, seed: int, step: str
) -> SchemePlan:
    run = LongRun(scheme.waiting, times, importance, seed)
    remarks = []
    weights = expected = None
    try:
        weights = weights_of(scheme, run, scheme.options.own_weights or rule, step)
        expected = expected_of(run, weights)
    except InputError as error:
        remarks.append(str(error))
    delay, sure, bound = run.max_delay
    plan = SchemePlan(
        scheme=scheme,
        run=run,
        weights=weights,
        expected_weights=expected,
        window=window(run),
        practical_window=practical_window(run),
        max_delay=delay,
        max_delay_exact=sure,
        max_delay_bound=bound,
        remarks=(),
    )
    plan = replace(plan, remarks=(*remarks, *remarks_on(plan)))
    plan = replace(plan, costs=costs_of(run))
    run.record.forget()
    return plan


def remarks_on(plan: SchemePlan) -> list[str]:
    """What deserves a word."""
    run, waiting = plan.run.after_last_change, plan.scheme.waiting
    part = run.participation
    out = _stretches(plan.run)
    out += waiting.remarks(run.times)
    if part.source == "cycle" and run.observation.cycle is not None:
        by_speed = (1.0 / run.times.mean_time) / (1.0 / run.times.mean_time).sum()
        off = float(np.abs(plan.identical_share / by_speed - 1.0).max())
        cycle = run.observation.cycle
        out.append(
            f"clients lock into a cycle of {cycle.length} rounds after {cycle.start}; "
            f"their participation is off 1/time by up to {off:.0%}"
        )
    if part.source == "estimate" and part.error is not None:
        seen = part.share > 0
        error = float((part.error[seen] / part.share[seen]).max(initial=0.0))
        out.append(
            f"no closed form and no cycle found: participation is estimated from {run.observation.rounds} rounds, "
            f"to about {max(error, 0.001):.1%}"
        )
    if plan.window is not None and plan.practical_window is not None and plan.window > 10**6 > plan.practical_window:
        out.append(
            f"the exact window is too long to compute; {plan.practical_window} rounds give each client its share to 1 %"
        )
    return out


def _stretches(run: LongRun) -> list[str]:
    """Of clients that come or go for good."""
    availability = run.times.availability
    if availability is None or not availability.changes:
        return []
    stretches = availability.stretches
    begin, clients = stretches[-1]
    return [
        f"clients join or leave for good {len(stretches) - 1} times; the numbers are those from {text(begin)} on, when "
        f"{len(clients)} of {run.times.num_clients} are there; weights change each time"
    ]
