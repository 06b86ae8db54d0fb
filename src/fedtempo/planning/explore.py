"""Many plans at once, for a page on which one turns wait, buffer, clients, their spread, law, scheme and weights.

Where the clients' times are evenly spread, as F<X>, there are federations of fewer clients and of other spreads beside
the one that was asked for, all with the same slowest client; under fixed and exponential times and the law that was
asked for. In each of them FedAvg, asynchronous FedAvg, FedFix at many waits and FedBuff at some sizes. What would take
a run of the clock of some seconds is left out: under random times the largest delays, and FedBuff without closed form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.importance import Importance
from fedtempo.clock.random_times import ExponentialTimes
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.errors import ClockOverflow, InputError
from fedtempo.planning.compare import Plan, costs_of, default_schemes, idle_share
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.schemes.timelines import timeline, timeline_chunks, weights_of
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule, weight_rule
from fedtempo.weighting.weights import expected_of
from fedtempo.weighting.windows import practical_window, window

CLIENTS = (5, 10, 20)
SPREADS = (0, 20, 40, 60, 80)
WAITS = 20
"""Waits up to the slowest client's time, evenly."""
SIZES = (0.25, 0.4, 0.5, 0.65, 0.8, 0.9)
"""Buffer sizes as shares of more than ten clients; smaller ones have long cycles, and are there if asked for."""
RULES = ("time-based", "identical", "importance")
SLOW = ("proven",)
"""Steps that take a run of the clock for each scheme and weight rule: only what was asked for is worked out."""
HORIZON = 4
"""Times of the slowest client that timelines show."""
FAMILY = 20
"""Clients up to which there are other federations beside the one that was asked for."""
MANY = 200
"""Clients up to which there are other waits and sizes than those that were asked for: runs of more take long."""
_UPDATES = 4_000
"""Updates over which staleness is counted, after a quarter as many."""
_ROUNDS = 2_000
"""Rounds of a timeline at most, or ten for each client, if that is more."""


@dataclass(frozen=True)
class Ruled:
    """What a weight rule makes of a scheme."""

    step: float
    pace: float
    """How far the server moves in a unit of time: step × Σ q_i × rounds."""
    weights: Floats
    expected: Floats
    """q_i over Σ q_j."""


@dataclass(frozen=True)
class Setting:
    """A scheme with the clients of one federation."""

    scheme: Scheme
    rounds_per_time: float
    updates_per_time: float
    idle_share: float
    mean_delay: float
    max_delay: tuple[int, bool, int | None] | None
    """The largest delay, whether it is the largest there is, and a bound on that; None: it was not looked for."""
    window: int | None
    practical_window: int | None
    counted_alike: Floats
    """q̃_i over Σ q̃_j, under identical weights."""
    rules: dict[str, Ruled]
    """By label; without those that the scheme cannot have."""
    identical_bias: float
    """Max |q̃_i/p_i − 1|."""
    delays: I64
    """How many updates of a run had which staleness."""
    config: ClockConfig
    line: Timeline
    """The first rounds."""


@dataclass(frozen=True)
class Federation:
    """Clients, and what schemes make of them."""

    times: ClientTimes
    importance: Importance
    spread: Fraction | None
    """X of F<X>; None where times are not evenly spread."""
    config: ClockConfig
    """Of the clients, under any rule."""
    horizon: Fraction
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Exploration:
    """Federations around the one that a plan is for, which is the first."""

    plan: Plan
    federations: tuple[Federation, ...]
    rules: tuple[str, ...]


def explore(plan: Plan) -> Exploration:
    """What a plan says, and what it would say if the clients, their law, the scheme or the weights were others."""
    given = [one.scheme for one in plan.schemes]
    rules = {plan.weight_rule.label: plan.weight_rule} | {name: weight_rule(name) for name in RULES}
    alike = bool(np.ptp(plan.importance.values) < 1e-12)
    waits, sizes = _sizes_of(plan.times, given)
    found: list[Federation] = []
    for times, spread in _around(plan, alike):
        asked = times is plan.times
        slow = plan.step in SLOW
        schemes = given if slow else _schemes(times, given if asked else (), waits, sizes if asked else ())
        importance = plan.importance if asked else Importance(None, times.num_clients)
        here = rules if asked else {name: rule for name, rule in rules.items() if name in RULES}
        made = _federation(times, spread, schemes, importance, here, plan)
        if made.settings:
            found.append(made)
    if not found:
        raise InputError("these times are too unequal for a page: no scheme's first rounds fit into a 64-bit clock")
    return Exploration(plan, tuple(found), tuple(rules))


# -- which federations and schemes


def spread_of(times: ClientTimes) -> tuple[Fraction, Fraction] | None:
    """The slowest client's mean time and X, where the mean times are those of F<X>, the slowest first; else None."""
    means = times.exact_mean_time
    if means is None:
        means = tuple(Fraction(text) for text in times.describe() if isinstance(text, str))
    if len(means) != times.num_clients or len(means) < 2 or means[0] < means[-1]:
        return None
    steps = {later - sooner for sooner, later in itertools.pairwise(means)}
    return (means[0], 100 * (1 - means[-1] / means[0])) if len(steps) == 1 else None


def _around(plan: Plan, alike: bool) -> Iterator[tuple[ClientTimes, Fraction | None]]:
    """The clients that were asked for, then others."""
    times = plan.times
    evenly = spread_of(times) if times.num_clients <= MANY and times.availability is None else None
    yield times, None if evenly is None else evenly[1]
    if times.num_clients > MANY or times.availability is not None or plan.step in SLOW:
        return
    if evenly is None or not alike or times.num_clients > FAMILY:
        means = times.exact_mean_time or [Fraction(text) for text in times.describe() if isinstance(text, str)]
        if len(means) == times.num_clients:
            yield from ((law, None if evenly is None else evenly[1]) for law in _laws(times, means) if law != times)
        return
    slowest, spread = evenly
    for clients in sorted({*CLIENTS, times.num_clients}):
        for slowdown in sorted({*map(Fraction, SPREADS), spread}):
            means = [slowest * part for part in FixedTimes.spread(clients, slowdown).exact_mean_time]
            yield from ((law, slowdown) for law in _laws(times, means) if law != times)


def _laws(times: ClientTimes, means: Sequence[Fraction]) -> Iterator[ClientTimes]:
    """Clients with these mean times under fixed and exponential times, and under the law of the given ones."""
    yield FixedTimes(means)
    yield ExponentialTimes(means)
    if not isinstance(times, FixedTimes | ExponentialTimes):
        other = times.with_means(means)
        if other is not None:
            yield other


def _sizes_of(times: ClientTimes, given: Sequence[Scheme]) -> tuple[list[Fraction], list[int]]:
    """The waits that all federations have, and the buffer sizes that were asked for."""
    slowest = Fraction(f"{float(times.mean_time.max()):.12g}")
    evenly = spread_of(times) if times.num_clients <= MANY else None
    slowest = slowest if evenly is None else evenly[0]
    asked = [*given, *(default_schemes(times) if times.availability is None else ())]
    waits = {slowest * k / WAITS for k in range(1, WAITS + 1)}
    waits |= {one.wait for one in asked if isinstance(one, FedFix)}
    return sorted(waits), sorted({one.size for one in asked if isinstance(one, FedBuff)})


def _schemes(
    times: ClientTimes, given: Sequence[Scheme], waits: Sequence[Fraction], sizes: Sequence[int]
) -> list[Scheme]:
    """The four schemes of the page at their waits and sizes, and what else was asked for."""
    clients = times.num_clients
    if clients > MANY or times.availability is not None:
        return list(given)
    some = set(range(clients)) if clients <= 10 else {round(share * clients) for share in SIZES} | set(sizes)
    if times.random and not isinstance(times, ExponentialTimes):  # no closed form: a run of a second each
        some = set(sizes)
    buffers = [FedBuff(size) for size in sorted(some) if 2 <= size < clients]
    usual: list[Scheme] = [FedAvg(), AsyncFedAvg(), *map(FedFix, waits), *buffers]
    labels = {scheme.label for scheme in usual}
    return [*usual, *(scheme for scheme in given if scheme.label not in labels)]


# -- what schemes make of clients


def _federation(
    times: ClientTimes,
    spread: Fraction | None,
    schemes: Sequence[Scheme],
    importance: Importance,
    rules: dict[str, WeightRule],
    plan: Plan,
) -> Federation:
    horizon = HORIZON * Fraction(f"{float(times.mean_time.max()):.3g}")
    settings = []
    for scheme in schemes:
        with suppress(ClockOverflow):  # times so unequal that ticks run out: the others are shown
            settings.append(_setting(scheme, times, importance, rules, plan, horizon))
    config = ClockConfig.of(FedAvg().waiting, times, importance.values, plan.seed)
    return Federation(times, importance, spread, config, horizon, tuple(settings))


def _setting(
    scheme: Scheme,
    times: ClientTimes,
    importance: Importance,
    rules: dict[str, WeightRule],
    plan: Plan,
    horizon: Fraction,
) -> Setting:
    run = LongRun(scheme.waiting, times, importance, plan.seed)
    costs = costs_of(run)
    share = run.after_last_change.participation.share
    alike = share / share.sum()
    quick = not times.random or scheme.waiting.synchronous
    made = Setting(
        scheme=scheme,
        rounds_per_time=run.rounds_per_time,
        updates_per_time=run.rounds_per_time * run.participation.updates_per_round,
        idle_share=idle_share(run) if costs is None else costs.work.idle,
        mean_delay=run.mean_delay,
        max_delay=run.max_delay if quick else None,
        window=None if times.random else window(run),
        practical_window=None if times.random else practical_window(run),
        counted_alike=alike,
        rules={name: found for name, rule in rules.items() if (found := _ruled(scheme, run, rule, plan)) is not None},
        delays=_delays(scheme, times, importance, plan.seed),
        config=run.record.config,
        line=_first_rounds(scheme, times, importance, plan.seed, horizon),
        identical_bias=float(np.abs(alike / run.after_last_change.importance.values - 1.0).max()),
    )
    run.record.forget()
    return made


def _ruled(scheme: Scheme, run: LongRun, rule: WeightRule, plan: Plan) -> Ruled | None:
    """None where the rule cannot be had."""
    try:
        weights = weights_of(scheme, run, scheme.options.own_weights or rule, plan.step)
        expected = expected_of(run, weights)
    except InputError:
        return None
    if weights.tracked or not np.isfinite(weights.values[-1]).all():
        return None
    step = 1.0 if weights.steps is None else weights.steps[-1]
    total = float(expected.sum())
    return Ruled(step, step * total * run.rounds_per_time, weights.values[-1], expected / total)


def _first_rounds(scheme: Scheme, times: ClientTimes, importance: Importance, seed: int, horizon: Fraction) -> Timeline:
    """Up to the horizon; the first one, where that lasts longer."""
    first = timeline(scheme, times, rounds=1, importance=importance.exact, seed=seed)
    if first.ends[0] * first.unit > horizon:
        return first
    most = max(_ROUNDS, 10 * times.num_clients)
    return timeline(scheme, times, until=horizon, rounds=most, importance=importance.exact, seed=seed)


def _delays(scheme: Scheme, times: ClientTimes, importance: Importance, seed: int) -> I64:
    """How many updates of a run had which staleness; its first fifth is left out."""
    if scheme.waiting.synchronous:
        return np.array([_UPDATES])
    seen: list[I64] = []
    for chunk in timeline_chunks(scheme, times, importance=importance.exact, seed=seed):
        seen.append(chunk.staleness)
        if sum(map(len, seen)) >= 5 * _UPDATES // 4:
            break
    return np.bincount(np.concatenate(seen)[_UPDATES // 4 : 5 * _UPDATES // 4])
