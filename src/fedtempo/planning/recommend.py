"""`recommend`: which scheme, wait and learning rate to use, how sure that is, and what it took.

    a pilot's predictions put cells in order and leave hopeless ones out → a race of the others → the choice

Candidates are schemes with waits and buffer sizes, and learning rates in steps of 1, 2, 5. The race trains them with
the simulator itself, so that whatever can be simulated can be planned. Where the pilot does not cover the problem, the
race does without.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

from fedtempo.clock.ticks import Exact
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.planning.answer import Answer
from fedtempo.planning.asked import Asked, Budget, asked_of, budget_of, slowest_of
from fedtempo.planning.asked import schemes_for as schemes_for
from fedtempo.planning.comparison import Cell
from fedtempo.planning.objective import Objective, objective_of
from fedtempo.planning.prior import begun, is_trusted, predicted_losses, prior_of
from fedtempo.planning.prior import rates_around as rates_around
from fedtempo.planning.progress import RaceProgress
from fedtempo.planning.race import Race
from fedtempo.planning.recommendation import Prior
from fedtempo.planning.recommendation import Recommendation as Recommendation
from fedtempo.planning.refinement import Refinement
from fedtempo.planning.standings import MOST_SEEDS
from fedtempo.planning.track import FieldTrack, Make, study_maker
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import Scheme
from fedtempo.simulation.arguments import EngineName, real
from fedtempo.simulation.compilation import keep_on_disk
from fedtempo.simulation.engine.numerics import Precision
from fedtempo.simulation.executors import workers_of
from fedtempo.simulation.field import Field
from fedtempo.simulation.rate_search import beyond, first_rates, ladder
from fedtempo.simulation.study import Study, study_of
from fedtempo.training.solvers import LocalRule
from fedtempo.weighting.weight_rules import WeightRule

SHARE = 0.05
"""Of the planned client updates: what the pilot may use."""
BUDGET = "100%"
"""As much as training every cell once; most races are sure enough long before."""
TOLERANCE = 0.1


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
    executor: Executor | None = None,
    workers: int | None = None,
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

    Ctrl-C ends it with the best so far. `on_progress` is told several times a second how far it is. `executor` or
    `workers` say where cells are trained, as for `simulate`.

    Example:
        >>> problem, times = ft.problems.quadratics(4, heterogeneity=2), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg(), ft.FedFix(1)]
        >>> found = ft.recommend(problem, times, until=30, schemes=schemes, rates=[0.1, 0.3])
        >>> print(found.best.scheme, found.best.local_lr, round(found.best.loss, 3))
        FedFix(1) 0.3 1.051
    """
    began = time.monotonic()
    keep_on_disk()
    asked = asked_of(
        problem, times, until, local, schemes, waits, sizes, rates, weights, step, server_lr, dtype, engine
    )
    aim = objective_of(objective, asked.problem)
    allowed, tolerance = budget_of(budget), real("tolerance", tolerance)
    if not 0 < share <= 1:
        raise InputError(f"share: {share} is not a share of the client updates; give a number such as 0.05")
    maker = _maker(asked, times, aim)
    maker(asked.compared, [1.0], {}, [seed])  # everything is checked before anything is run
    prior, why = prior_of(asked, share, seed)
    with workers_of(executor, workers) as pool:
        race = _race(asked, aim, maker, prior, allowed, tolerance, seed, Field(pool))
        _Teller(race, on_progress, began)
        race.run()
    return Answer(asked, aim, race, prior, why, tolerance, began).made()


def _maker(asked: Asked, times: ClientTimes, aim: Objective) -> Make:
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


# -- the race


def _race(
    asked: Asked,
    aim: Objective,
    maker: Make,
    prior: Prior | None,
    allowed: Budget,
    tolerance: float,
    seed: int,
    lanes: Field,
) -> Race:
    first = first_rates(asked.local) if asked.rated else ()
    if asked.rates is not None:
        rates = list(asked.rates)
    else:
        rates = ladder(first) if prior is None else prior.predictions[0].lr.tolist()
    cells = [Cell(scheme.label, rate) for scheme in asked.compared for rate in rates]
    predicted = predicted_losses(prior)
    track = FieldTrack(
        maker,
        {scheme.label: scheme for scheme in asked.compared},
        asked.until,
        float(asked.times.mean_time.max()),
        aim,
        lanes=lanes,
    )
    grid = sum(track.cost(cell, len(track.rungs) - 1) for cell in cells)
    piloted = 0.0 if prior is None or allowed.kind == "share" else prior.updates
    began = time.monotonic()
    if allowed.kind == "seconds":
        track.deadline = began + allowed.number

    def allowance() -> float:
        if allowed.kind != "seconds":
            whole = allowed.number * grid if allowed.kind == "share" else allowed.number
            return whole - (piloted if len(cells) > 2 or allowed.kind == "updates" else 0.0)
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
        begun(cells, prior if aim.kind in ("loss", "time-to", "bytes") else None, asked.reference),
        reference=asked.reference,
        allowance=allowance,
        tolerance=tolerance,
        order=predicted if is_trusted(prior) else {},
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
