"""`recommend`: which scheme, wait and learning rate to use, how sure that is, and what it took.

    a pilot's predictions put cells in order and leave hopeless ones out → a race of the others → the choice

Candidates are schemes with waits and buffer sizes, and learning rates in steps of 1, 2, 5. The race trains them with
the simulator itself, so that whatever can be simulated can be planned. Where the pilot does not cover the problem, the
race does without.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from fedtempo.clock.ticks import Exact, positive
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.planning.calibration import lost
from fedtempo.planning.objective import Objective, objective_of
from fedtempo.planning.pilot import run_pilot
from fedtempo.planning.prediction import Model
from fedtempo.planning.progress import RaceProgress
from fedtempo.planning.race import MOST_SEEDS, Cell, Comparison, Race
from fedtempo.planning.recommendation import Choice, Crossing, Curve, Interval, Prior, Spent
from fedtempo.planning.recommendation import Recommendation as Recommendation
from fedtempo.planning.refinement import Refinement
from fedtempo.planning.track import FieldTrack, Make, study_maker
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.simulation.arguments import EngineName, a_problem, client_times, engine_for, local_rule, one_of, real
from fedtempo.simulation.compilation import keep_on_disk
from fedtempo.simulation.costs import model_bytes
from fedtempo.simulation.engine.numerics import PRECISIONS, Precision
from fedtempo.simulation.field import Run
from fedtempo.simulation.rate_search import at_rates, between, beyond, first_rates, ladder, searches
from fedtempo.simulation.study import Study, study_of
from fedtempo.training.solvers import LocalRule, LocalSGD
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule

_WAITS = tuple(Fraction(n, 8) for n in (1, 2, 4, 6))
"""Of the slowest client's mean time."""
_SIZES = (0.1, 0.25, 0.5, 0.75)
"""Of the number of clients."""
_LOWEST, _HIGHEST = 1e-4, 20.0
"""Times one over the largest curvature at the start."""
SHARE = 0.05
"""Of the planned client updates: what the pilot may use."""
BUDGET = "100%"
"""As much as training every cell once; most races are sure enough long before."""
TOLERANCE = 0.1
HOPELESS = 20.0
"""A rate below the best whose predicted loss is this many times the least is not begun."""
BEYOND = 10.0
"""A rate that is this many times the largest stable one is not begun."""
SAME = 0.02
"""Curves that differ by less are taken for the same."""
_UNITS = {"s": 1, "m": 60, "h": 3600}


def schemes_for(
    times: ClientTimes, waits: Iterable[Exact] | None = None, sizes: Iterable[int] | None = None
) -> tuple[Scheme, ...]:
    """FedAvg, asynchronous FedAvg, FedFix over waits, FedBuff over sizes."""
    clients = times.num_clients
    slowest = slowest_of(times)
    waits = [slowest * part for part in _WAITS] if waits is None else [positive(w, "wait") for w in waits]
    if sizes is None:
        sizes = sorted({round(clients * part) for part in _SIZES} - {0, 1, clients})
    if clients == 1:
        return (FedAvg(),)
    return (FedAvg(), AsyncFedAvg(), *(FedFix(wait) for wait in waits), *(FedBuff(size) for size in sizes))


def slowest_of(times: ClientTimes) -> Fraction:
    """The slowest client's mean time, to a hundredth."""
    return Fraction(round(100 * float(times.mean_time.max())), 100) or Fraction(1, 100)


def rates_around(curvature: float) -> Floats:
    """1-2-5 steps over all rates that a loss of this largest curvature may stand."""
    low, high = _LOWEST / curvature, _HIGHEST / curvature
    return np.array(between(low * (1 - 1e-9), high * (1 + 1e-9)))


def checked_rates(rates: Iterable[float]) -> Floats:
    """Given rates, ascending."""
    found = np.unique(np.array([float(rate) for rate in rates]))
    if not len(found) or not np.isfinite(found).all() or found[0] <= 0:
        raise InputError(f"rates: {found.tolist()} must be positive numbers; give at least one")
    return found


@dataclass(frozen=True)
class Budget:
    """What a race may spend: client updates, a share of the full grid's, or seconds."""

    kind: str
    number: float


def budget_of(given: object) -> Budget:
    """From a number of client updates, or from text: 50000, 25%, 60s, 5m, 1h."""
    words = "budget: {!r} is not known; give client updates as 50000, a share of the grid as 25%, or seconds as 60s"
    if isinstance(given, Budget):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = str(given)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*(%|s|m|h)?\s*", str(given))
    if match is None or not 0 < float(match[1]) < math.inf:
        raise InputError(words.format(given))
    number, unit = float(match[1]), match[2]
    if unit == "%":
        return Budget("share", number / 100)
    return Budget("updates", number) if unit is None else Budget("seconds", number * _UNITS[unit])


def recommend(
    problem: Problem,
    times: ClientTimes,
    *,
    until: Exact,
    local: LocalRule | None = None,
    schemes: Sequence[Scheme] | None = None,
    waits: Iterable[Exact] | None = None,
    sizes: Iterable[int] | None = None,
    rates: Iterable[float] | None = None,
    weights: str | WeightRule = "time-based",
    step: str = "stable",
    server_lr: float = 1.0,
    objective: str | Objective = "loss",
    budget: float | str = BUDGET,
    tolerance: float = TOLERANCE,
    share: float = SHARE,
    seed: int = 0,
    dtype: Precision = "float32",
    engine: EngineName = "auto",
    on_progress: Callable[[RaceProgress], None] | None = None,
) -> Recommendation:
    """Choose scheme, wait and learning rate for a time `until`, by racing them in the simulator.

    `local` is the clients' work. Its learning rate does not matter unless it is a list: then those are compared, as
    with `rates`; else they are found. `schemes`, or `waits` and `sizes`, say what is compared; else waits and buffer
    sizes are refined around the best.

    `objective` is what is to be small: "loss" at the end, "worst" (the loss of the client with the largest),
    "metric:accuracy" (as large as can be) or "min:NAME", "time-to:0.3" (the time at which the loss is there),
    "bytes:1e9" (the loss for so many bytes).

    The race ends when the choice is at most `tolerance` worse than the best of all that were compared, at 95 %, or when
    `budget` is spent: client updates, or "25%" of training every cell once, or "60s". A pilot that uses at most `share`
    of one training's updates goes before it, where it covers the problem. Seeds are `seed`, `seed` + 1, ….

    Ctrl-C ends it with the best so far. `on_progress` is told several times a second how far it is.
    """
    began = time.monotonic()
    keep_on_disk()
    asked = _asked(problem, times, until, local, schemes, waits, sizes, rates, weights, step, server_lr, dtype, engine)
    aim = objective_of(objective, asked.problem)
    allowed, tolerance = budget_of(budget), real("tolerance", tolerance)
    if not 0 < share <= 1:
        raise InputError(f"share: {share} is not a share of the client updates; give a number such as 0.05")
    maker = _maker(asked, times, aim)
    maker(asked.compared, [1.0], {}, [seed])  # everything is checked before anything is run
    prior, why = _prior(asked, share, seed)
    race = _race(asked, aim, maker, prior, allowed, tolerance, seed)
    _Teller(race, on_progress, began)
    race.run()
    return _Result(asked, aim, race, prior, why, tolerance, began).made()


@dataclass(frozen=True)
class _Asked:
    """What is to be planned, checked."""

    problem: Problem
    times: ClientTimes
    """With the bytes of a model, where they depend on bytes."""
    until: Fraction
    local: LocalRule
    rates: tuple[float, ...] | None
    """To be compared; None: to be found."""
    compared: tuple[Scheme, ...]
    free: bool
    """Whether waits and sizes are refined."""
    rule: str | WeightRule
    step: str
    server_lr: float
    dtype: Precision
    engine: EngineName

    @property
    def rated(self) -> bool:
        """Whether the local work has a learning rate."""
        return any(axis.name == RATE for axis in self.local.axes)

    @property
    def planned(self) -> float:
        """Client updates that the clients can make in the time."""
        return float(self.until) * float((1 / self.times.mean_time).sum())

    @property
    def reference(self) -> str | None:
        """FedAvg's label, if it is compared."""
        return next((scheme.label for scheme in self.compared if type(scheme) is FedAvg), None)

    def number(self, name: str) -> Any:
        """A number of the local work."""
        return next((axis.values[0] for axis in self.local.axes if axis.name == name), None)


def _asked(
    problem: Problem,
    times: ClientTimes,
    until: Exact,
    local: LocalRule | None,
    schemes: Sequence[Scheme] | None,
    waits: Iterable[Exact] | None,
    sizes: Iterable[int] | None,
    rates: Iterable[float] | None,
    weights: str | WeightRule,
    step: str,
    server_lr: float,
    dtype: Precision,
    engine: EngineName,
) -> _Asked:
    horizon, precision = positive(until, "until"), one_of("dtype", dtype, PRECISIONS)
    work = local_rule(local)
    if searches(work):
        work = at_rates(work, first_rates(work)[1:2])
    listed = [axis for axis in work.axes if axis.listed and len(axis.values) > 1]
    given = None if rates is None else tuple(checked_rates(rates).tolist())
    for axis in listed:
        if axis.name != RATE:
            raise InputError(f"local: {axis.name} has {len(axis.values)} values; give one and plan each separately")
        given = given or tuple(sorted(float(rate) for rate in axis.values if rate is not None))
    problem = a_problem(problem)
    called, problem = engine_for(engine, problem, work, precision)
    if called == "oracle":
        raise InputError("engine: the oracle trains one run after the other; choose events, waves or torch to plan")
    times = client_times(times, problem.num_clients)
    if times.availability is not None and times.availability.changes:
        raise InputError("times: clients come or go for good, and what is best changes with them; give a period")
    timed = times.for_traffic(model_bytes(problem), model_bytes(problem)) if times.by_traffic else times
    compared = tuple(schemes) if schemes is not None else schemes_for(timed, waits, sizes)
    if not any(axis.name == RATE for axis in work.axes):
        given = (0.0,)
    return _Asked(
        problem=problem,
        times=timed,
        until=horizon,
        local=work,
        rates=given,
        compared=compared,
        free=schemes is None and waits is None and sizes is None,
        rule=weights,
        step=check_step(step),
        server_lr=real("server_lr", server_lr),
        dtype=precision,
        engine=called,
    )


def _maker(asked: _Asked, times: ClientTimes, aim: Objective) -> Make:
    """Makes studies of the simulator."""

    def study(schemes: Sequence[Scheme], local: LocalRule, **more: Any) -> Study:
        return study_of(
            asked.problem,
            schemes,
            times,
            until=asked.until,
            local=local,
            weights=asked.rule,
            step=asked.step,
            server_lr=asked.server_lr,
            dtype=asked.dtype,
            engine=asked.engine,
            per_client=aim.per_client,
            **more,
        )

    return study_maker(study, asked.local)


# -- the pilot


def _prior(asked: _Asked, share: float, seed: int) -> tuple[Prior | None, str]:
    """What a pilot predicts; or why there is none."""
    local = asked.local
    steps, batch_size = asked.number("local_steps"), asked.number("batch_size")
    if not isinstance(local, LocalSGD) or not local.plain:
        return None, "there was no pilot, which covers plain SGD alone"
    usual = FedAvg().options
    if any(scheme.options != usual for scheme in asked.compared):
        return None, "there was no pilot, which covers schemes without options alone"
    accesses = steps * (float(asked.problem.sizes.mean()) if batch_size is None else batch_size)
    try:
        pilot = run_pilot(asked.problem, int(share * asked.planned * accesses), local_steps=steps, seed=seed)
        model = Model.of(pilot, asked.problem.importance, steps, batch_size)
        rates = rates_around(pilot.start_curvature) if asked.rates is None else np.array(asked.rates)
        predict = partial(model.predict, until=asked.until, lr=rates, rule=asked.rule, step=asked.step, seed=seed)
        found = tuple(predict(scheme, asked.times, server_lr=asked.server_lr) for scheme in asked.compared)
    except InputError as error:
        return None, f"there was no pilot ({error})"
    if not any(np.isfinite(one.excess).any() for one in found):
        return None, "the pilot expected every cell to be unstable, and was not listened to"
    return Prior(pilot, model, found, accesses), ""


def _predicted(prior: Prior | None) -> dict[Cell, float]:
    """The predicted loss of every cell; infinite where training is expected to be unstable."""
    if prior is None:
        return {}
    least = prior.model.least_loss
    return {
        Cell(one.scheme.label, float(rate)): least + float(excess)
        for one in prior.predictions
        for rate, excess in zip(one.lr, one.excess, strict=True)
    }


def _trusted(prior: Prior | None) -> bool:
    """Whether what the pilot predicts is listened to: not where it found that the loss is not convex."""
    return prior is not None and prior.pilot.least_curvature >= 0


def _begun(cells: Sequence[Cell], prior: Prior | None, reference: str | None) -> list[Cell]:
    """The cells that are not hopeless: neither far beyond the stable rates, nor small rates far above the best loss.

    Where the loss is not convex at the pilot's end, what it predicts is not listened to. FedAvg always stays.
    """
    if prior is None or not _trusted(prior):
        return list(cells)
    predicted = _predicted(prior)
    least = min(predicted.values())
    kept: list[Cell] = []
    for scheme in dict.fromkeys(cell.scheme for cell in cells):
        rates = [cell for cell in cells if cell.scheme == scheme]
        best = min(rates, key=predicted.__getitem__)
        stable = max((cell.rate for cell in rates if math.isfinite(predicted[cell])), default=best.rate)
        low = [cell for cell in rates if cell.rate < best.rate and predicted[cell] > HOPELESS * least > 0]
        high = [cell for cell in rates if cell.rate > BEYOND * stable]
        kept += [cell for cell in rates if scheme == reference or cell not in {*low, *high}]
    return kept


# -- the race


def _race(
    asked: _Asked,
    aim: Objective,
    maker: Make,
    prior: Prior | None,
    allowed: Budget,
    tolerance: float,
    seed: int,
) -> Race:
    first = first_rates(asked.local) if asked.rated else ()
    if asked.rates is not None:
        rates = list(asked.rates)
    else:
        rates = ladder(first) if prior is None else prior.predictions[0].lr.tolist()
    cells = [Cell(scheme.label, rate) for scheme in asked.compared for rate in rates]
    predicted = _predicted(prior)
    track = FieldTrack(
        maker,
        {scheme.label: scheme for scheme in asked.compared},
        asked.until,
        float(asked.times.mean_time.max()),
        aim,
    )
    grid = sum(track.cost(cell, len(track.rungs) - 1) for cell in cells)
    piloted = 0.0 if prior is None or allowed.kind == "share" else prior.updates
    began = time.monotonic()
    if allowed.kind == "seconds":
        track.deadline = began + allowed.number

    def allowance() -> float:
        if allowed.kind != "seconds":
            return allowed.number * grid if allowed.kind == "share" else allowed.number - piloted
        elapsed = time.monotonic() - began
        return track.spent * allowed.number / elapsed if track.spent else math.inf

    def widen(scheme: str, tried: Sequence[float], best: float, diverged: float | None) -> Sequence[float]:
        if asked.rates is None:
            return beyond(tried, best, diverged, (rates[0], rates[-1]))
        further = [r for r in rates if (best == tried[-1] and r > best) or (best == tried[0] and r < best)]
        return sorted(further, key=lambda r: abs(math.log(r / best)))[:1]

    refinement = Refinement(
        track.schemes,
        asked.problem.num_clients,
        slowest_of(asked.times),
        asked.free,
        asked.rates is None,
        tolerance / 2,
    )
    return Race(
        track,
        _begun(cells, prior if aim.kind in ("loss", "time-to", "bytes") else None, asked.reference),
        asked.reference,
        allowance,
        tolerance,
        order=predicted if _trusted(prior) else {},
        density=1.0 if asked.rates is None else _density(asked.rates),
        widen=widen if asked.rated else None,
        refine=refinement if asked.free or (asked.rates is None and asked.rated) else None,
        seeds=tuple(range(seed, seed + MOST_SEEDS)),
        other=piloted,
        grid=grid,
        guessed=allowed.kind == "seconds",
        given=f"{allowed.number * grid:.4g}" if allowed.kind == "share" else f"{allowed.number:g}",
    )


def _density(rates: Sequence[float]) -> float:
    """Rates in a step from 1 to 2, 2 to 5 or 5 to 10."""
    if len(rates) < 2:
        return 1.0
    return max(1.0, (len(rates) - 1) / (3 * math.log10(rates[-1] / rates[0])))


class _Teller:
    """Passes on how far the race is."""

    def __init__(self, race: Race, on_progress: Callable[[RaceProgress], None] | None, began: float) -> None:
        self._race, self._on_progress, self._began = race, on_progress, began
        self._stage, self._cells, self._leader = "", 0, ""
        if on_progress is not None:
            race.tell = self._next
            assert isinstance(race.track, FieldTrack)
            race.track.tell = self._now

    def _next(self, stage: str, cells: int) -> None:
        self._stage, self._cells = stage, cells
        if self._race.standing:
            best = self._race.compare().best
            self._leader = f"{best.scheme} at lr {best.rate:g}"
        self._now()

    def _now(self) -> None:
        assert self._on_progress is not None
        spent, budget = self._race.track.spent, self._race.budget
        done = min(1.0, spent / budget) if budget > 0 and math.isfinite(budget) else 0.0
        seconds = time.monotonic() - self._began
        self._on_progress(RaceProgress(done, self._stage, self._cells, int(spent), seconds, self._leader))


# -- the answer


@dataclass
class _Result:
    """Makes a recommendation of a race that has ended."""

    asked: _Asked
    aim: Objective
    race: Race
    prior: Prior | None
    why: str
    tolerance: float
    began: float

    @property
    def track(self) -> FieldTrack:
        """Where it was run."""
        assert isinstance(self.race.track, FieldTrack)
        return self.race.track

    def made(self) -> Recommendation:
        """All of it."""
        race, track = self.race, self.track
        if race.ended in ("stopped", "time") and len(race.standing) < min(2, len(race.cells)):
            if race.ended == "stopped":
                raise KeyboardInterrupt
            raise InputError("budget: the time was over before two cells could be compared; give more")
        found = race.compare()
        self._check_reached(found)
        cells = {cell: self._choice(cell, found) for cell in race.cells if cell in race.standing}
        ranked = sorted(cells, key=lambda c: (-self._rung(c), self._mean(c)) if c != found.best else (-math.inf, 0.0))
        best_of: dict[str, Cell] = {}
        for cell in ranked:
            best_of.setdefault(cell.scheme, cell)
        choices = tuple(cells[cell] for cell in best_of.values())
        ties = tuple(
            cells[cell] for cell in best_of.values() if cell != found.best and found.lower.get(cell, math.inf) <= 0
        )
        reference = best_of.get(self.asked.reference or "")
        curves = {tuple(cell): self._curve(cell) for cell in cells if self._rung(cell) == len(track.rungs) - 1}
        runs = track.lanes.found.values()
        return Recommendation(
            times=self.asked.times,
            until=self.asked.until,
            local=self.asked.local,
            server_lr=self.asked.server_lr,
            rule=self.asked.rule,
            step=self.asked.step,
            objective=self.aim,
            choices=choices,
            cells=tuple(cells.values()),
            fedavg=None if reference is None else cells[reference],
            ties=ties,
            regret=Interval(0.0, math.expm1(self._lost + found.regret)),
            tolerance=self.tolerance,
            curves=curves,  # type: ignore[arg-type]
            crossings=self._crossings(found.best, best_of.values()),
            spent=Spent(
                updates=track.spent + (0.0 if self.prior is None else self.prior.updates),
                grid=race.grid,
                seconds=time.monotonic() - self.began,
                trainings=len(runs),
                to_the_end=sum(self.track.ended(run) for run in track.lanes.found),
            ),
            ended="budget" if race.ended == "time" else race.ended,
            planned_updates=self.asked.planned,
            prior=self.prior,
            notes=tuple(self._notes(found.best)),
        )

    @property
    def _lost(self) -> float:
        """By how much a cell that was dropped may have been better; before the end, that is all but one."""
        race, rung = self.race, self.race.farthest
        dropped = sum(race.lost.values())
        if rung == len(self.track.rungs) - 1:
            return dropped
        return dropped + lost(self.track.rungs[rung], 1.0, len({cell.scheme for cell in race.standing}))

    def _check_reached(self, found: Comparison) -> None:
        """Refuse to recommend what does not come to the loss that is asked for."""
        if self.aim.kind != "time-to" or self._mean(found.best) <= float(self.asked.until):
            return
        lowest = {
            cell: min(
                float(np.nanmin(self.track.values(run)))
                for run_of, run in self.track.lanes.found.items()
                if Cell(run_of.scheme, run_of.rate) == cell and np.isfinite(self.track.values(run)).any()
            )
            for cell in self.race.standing
        }
        best = min(lowest, key=lowest.__getitem__)
        raise InputError(
            f"objective: no cell came to a loss of {self.aim.number:g} by time {float(self.asked.until):g}; the "
            f"lowest was {lowest[best]:.4g}, of {best.scheme} at lr {best.rate:g}; give a larger loss, or more time"
        )

    def _rung(self, cell: Cell) -> int:
        """The last rung that a cell came to."""
        rungs = range(len(self.track.rungs))
        first = self.race.seeds[0]
        return max((k for k in rungs if math.isfinite(self.track.score(cell, first, k))), default=0)

    def _scores(self, cell: Cell) -> Floats:
        rung = self._rung(cell)
        scores = np.array([self.track.score(cell, seed, rung) for seed in self.race.used])
        there: Floats = scores[~np.isnan(scores)]
        return there

    def _mean(self, cell: Cell) -> float:
        scores = self._scores(cell)
        return float(scores.mean()) if len(scores) else math.inf

    def _choice(self, cell: Cell, found: Comparison) -> Choice:
        scores, rung = self._scores(cell), self._rung(cell)
        many = len(scores) > 1 and np.isfinite(scores).all()
        if cell == found.best:
            behind = Interval(0.0, 0.0)
        elif cell in found.upper:
            behind = Interval(math.expm1(found.lower[cell]), math.expm1(2 * found.mean[cell] - found.lower[cell]))
        else:
            dropped = [value for k, value in self.race.lost.items() if k >= rung]
            behind = Interval(-math.expm1(sum(dropped)) if dropped else math.nan, math.nan)
        return Choice(
            scheme=self.track.schemes[cell.scheme],
            local_lr=cell.rate,
            loss=self.aim.value(self._mean(cell)),
            excess=self._mean(cell) - self._mean(found.best),
            error=float(scores.std(ddof=1)) / math.sqrt(len(scores)) if many else math.nan,
            seeds=len(scores),
            trained=self.track.rungs[rung],
            behind=behind,
            predicted=_predicted(self.prior).get(cell, math.nan) if _trusted(self.prior) else math.nan,
            why=self.race.standing[cell].why if rung < len(self.track.rungs) - 1 else "",
        )

    def _curve(self, cell: Cell) -> Curve:
        """The mean over seeds, as far as all of them were trained."""
        found = self.track.lanes.found
        ended = [run for run in (Run(*cell, seed) for seed in self.race.used) if run in found and self.track.ended(run)]
        runs = [found[run] for run in ended if not found[run].diverged]
        values = np.array([self.track.values(run) for run in runs])
        mean, many = values.mean(axis=0), len(values) > 1
        error = values.std(axis=0, ddof=1) / math.sqrt(len(values)) if many else np.full_like(mean, np.nan)
        return Curve(runs[0].times, mean, error)

    def _crossings(self, best: Cell, others: Iterable[Cell]) -> tuple[Crossing, ...]:
        """When others were ahead of the choice, by more than what is taken for the same."""
        last = len(self.track.rungs) - 1
        if self._rung(best) < last:
            return ()
        mine, found = self._curve(best), []
        sign = -1.0 if self.aim.largest else 1.0
        for cell in others:
            if cell == best or self._rung(cell) < last:
                continue
            theirs = self._curve(cell)
            values = np.interp(mine.times, theirs.times, theirs.mean)
            ahead = sign * (mine.mean - values) > SAME * np.abs(values)
            known = np.isfinite(mine.mean) & np.isfinite(values)
            if not known.any():
                continue
            ahead = ahead[known]
            if ahead.any() and not ahead[-1] and cell.scheme != best.scheme:
                found.append(Crossing(float(mine.times[known][np.flatnonzero(ahead)[-1]]), cell.scheme, best.scheme))
        return tuple(sorted(found, key=lambda one: one.time))

    def _notes(self, best: Cell) -> Iterable[str]:
        if self.why:
            yield self.why[0].upper() + self.why[1:] + "."
        elif self.prior is not None and self.prior.pilot.least_curvature < 0:
            yield (
                f"The pilot found negative curvature ({self.prior.pilot.least_curvature:.2g}): the loss is not convex "
                "there, and its predictions were not listened to."
            )
        tried = sorted(cell.rate for cell in self.race.standing if cell.scheme == best.scheme)
        if len(tried) > 1 and best.rate in (tried[0], tried[-1]) and self._rung(best) == len(self.track.rungs) - 1:
            side = "smallest" if best.rate == tried[0] else "largest"
            yield f"The best learning rate is the {side} of those compared; give more in rates."
        if self.race.never:
            yield (
                f"{len(self.race.never)} cells were not trained at all, for want of budget; what is said of the regret "
                "leaves them out."
            )
        if self.aim.kind != "loss":
            yield "How far early scores can be trusted was measured on losses at the end of the time."
