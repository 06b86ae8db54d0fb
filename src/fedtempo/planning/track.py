"""Cells trained by the simulator, as a race asks for them: together, up to a rung, and then fewer of them further.

A scheme's time ends at `until`, or, where the objective is what can be had for so many bytes, when at its mean pace
they have gone. Scores are taken at T/16, T/4, T/2 and T; a rung that would come before the slowest client has answered
twice is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import stream
from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.planning.comparison import Cell
from fedtempo.planning.objective import Objective, gap
from fedtempo.planning.standings import Stopped
from fedtempo.simulation.field import Field, Run, Trained
from fedtempo.simulation.rate_search import at_rates
from fedtempo.simulation.units import times_under, traffic_under
from fedtempo.weighting.long_run import LongRun

if TYPE_CHECKING:
    from fedtempo.schemes.named import Scheme
    from fedtempo.simulation.study import Study

RUNGS = (Fraction(1, 16), Fraction(1, 4), Fraction(1, 2), Fraction(1))
_TAIL = tuple(Fraction(k, 100) for k in (92, 94, 96, 98, 100))
"""Where a score is measured, as shares of the rung."""
_BETWEEN = tuple(Fraction(k, 64) for k in (0, 1, 2, 8, 12, 16, 24, 32, 40, 48, 56))
"""Where curves are measured as well, as shares of the time."""
_FINE = 128
"""Points of a curve whose crossing of a level is sought."""
_CUT = 16
"""Updates by which a training may go beyond a rung, where the engine takes several in one step."""
_COUNTED = 2_000_000
"""Updates that are counted one by one; beyond, the mean pace says how many there are."""

Make = Callable[[Sequence["Scheme"], Sequence[float], Mapping[str, Sequence[float]], Sequence[int]], "Study"]
"""(schemes, all rates, rates by scheme, seeds) → study."""


@dataclass
class Horizon:
    """How long a scheme is trained, and what that takes."""

    end: Fraction
    updates: float
    """Client updates until then."""
    rounds: float


@dataclass
class FieldTrack:
    """Trains cells in a field of the simulator."""

    make: Make
    schemes: dict[str, Scheme]
    """By label; more may be added at any time."""
    until: Fraction
    slowest: float
    """The slowest client's mean time."""
    objective: Objective
    tell: Callable[[], None] | None = None
    deadline: float | None = None
    """Of `time.monotonic`, from which on nothing is trained."""
    lanes: Field = field(default_factory=Field)
    _horizons: dict[str, Horizon] = field(default_factory=dict)

    @property
    def rungs(self) -> tuple[float, ...]:
        """Shares of the time at which cells are compared."""
        return tuple(float(share) for share in self._rungs)

    @cached_property
    def _rungs(self) -> tuple[Fraction, ...]:
        return tuple(s for s in RUNGS if s == 1 or float(s * self.until) >= 2 * self.slowest)

    @cached_property
    def shares(self) -> tuple[Fraction, ...]:
        """Shares of the time at which models are measured."""
        fine = {Fraction(k, _FINE) for k in range(_FINE + 1)} if self.objective.kind == "time-to" else set()
        return tuple(sorted({*_BETWEEN, *fine, *(rung * part for rung in self._rungs for part in _TAIL)}))

    @property
    def spent(self) -> float:
        """Client updates so far, over all runs."""
        return float(self.lanes.updates)

    def train(self, cells: Iterable[Cell], seeds: Sequence[int], rung: int) -> None:
        """Each cell under each seed up to a rung; where a loss is to be reached, to the rung where it is."""
        cells = list(cells)
        for step in range(rung + 1) if self.objective.kind == "time-to" else (rung,):
            self._train([cell for cell in cells if not self._all_there(cell, seeds)], seeds, step)

    def _all_there(self, cell: Cell, seeds: Sequence[int]) -> bool:
        """Whether a loss that is to be reached has been, under all of these seeds."""
        if self.objective.kind != "time-to":
            return False
        return all(self._reached(Run(*cell, seed)) is not None for seed in seeds)

    def _reached(self, run: Run) -> float | None:
        """When the loss that is to be reached was."""
        trained = self.lanes.found.get(run)
        if self.objective.kind != "time-to" or trained is None or not trained.points:
            return None
        end = float(trained.times[trained.points - 1])
        score = self.objective.score(trained.times, self.values(trained), end, float(self.until))
        return score if score <= end else None

    def ended(self, run: Run) -> bool:
        """Whether a run was trained to its end."""
        trained = self.lanes.found[run]
        return trained.points == len(trained.times) or self._reached(run) is not None

    def _train(self, cells: Sequence[Cell], seeds: Sequence[int], rung: int) -> None:
        if not cells:
            return
        runs = [Run(*cell, seed) for cell in cells for seed in seeds]
        points = self.shares.index(self._rungs[rung]) + 1
        for seed in seeds:
            fresh = [cell for cell in cells if not self._is_there(Run(*cell, seed), points)]
            if fresh:
                self._enter(fresh, seed)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Stopped("time")
        try:
            on_time = self.lanes.train(runs, points, tell=self.tell, deadline=self.deadline)
        except KeyboardInterrupt:
            raise Stopped("stopped") from None
        if not on_time:
            raise Stopped("time")

    def _enter(self, cells: Sequence[Cell], seed: int) -> None:
        labels = list(dict.fromkeys(cell.scheme for cell in cells))
        rates = {label: sorted({cell.rate for cell in cells if cell.scheme == label}) for label in labels}
        every = sorted({rate for some in rates.values() for rate in some})
        study = self.make([self.schemes[label] for label in labels], every, rates, [seed])
        times = {label: tuple(share * self.horizon(label).end for share in self.shares) for label in labels}
        self.lanes.enter(study, times)

    def _is_there(self, run: Run, points: int) -> bool:
        """Whether a run has come so far, or stands ready to go on."""
        known = self.lanes.found.get(run)
        return run in self.lanes or (known is not None and (known.points >= points or known.diverged))

    def keep(self, cells: Iterable[Cell]) -> None:
        """Forget the states of all other cells."""
        kept = set(cells)
        self.lanes.leave(run for run in self.lanes.found if Cell(run.scheme, run.rate) in kept)

    def score(self, cell: Cell, seed: int, rung: int) -> float:
        """What is compared; NaN if the cell was not trained so far."""
        trained = self.lanes.found.get(Run(*cell, seed))
        if trained is None:
            return math.nan
        if (reached := self._reached(Run(*cell, seed))) is not None:
            return reached
        if trained.diverged:
            return math.inf
        place = self.shares.index(self._rungs[rung])
        if trained.points <= place:
            return math.nan
        end = float(self._rungs[rung]) * float(self.horizon(cell.scheme).end)
        return self.objective.score(trained.times, self.values(trained), end, float(self.until))

    def fall(self, cell: Cell, seed: int, rung: int) -> float:
        """By how much the score fell over the second half of the time to a rung; 0 where that means nothing."""
        trained, score = self.lanes.found.get(Run(*cell, seed)), self.score(cell, seed, rung)
        half = self._rungs[rung] / 2
        if trained is None or half not in self.shares or not math.isfinite(score) or self.objective.kind == "time-to":
            return 0.0
        before = float(self.values(trained)[self.shares.index(half)])
        before = -before if self.objective.largest else before
        return gap(before, score) if math.isfinite(before) else 0.0

    def values(self, trained: Trained) -> Floats:
        """[points] the objective's measure of a run."""
        values = trained.measures[self.objective.measure]
        return values.max(axis=-1) if self.objective.kind == "worst" else values

    def cost(self, cell: Cell, rung: int, before: int | None = None) -> float:
        """Client updates of one training to a rung, from an earlier one or from the start."""
        start = 0.0 if before is None else self.rungs[before]
        share = max(0.0, self._share(cell, rung) - start)
        return self.horizon(cell.scheme).updates * share + _CUT

    def _share(self, cell: Cell, rung: int) -> float:
        """Up to which share of the time a cell is trained to come to a rung."""
        known = (
            [self._reached(run) for run in self.lanes.found if Cell(run.scheme, run.rate) == cell]
            if (self.objective.kind == "time-to")
            else []
        )
        times = [time for time in known if time is not None]
        if not times:
            return self.rungs[rung]
        return min(self.rungs[rung], next(r for r in self.rungs if r * float(self.until) >= max(times) * (1 - 1e-9)))

    def horizon(self, label: str) -> Horizon:
        """How long a scheme is trained, and what that takes."""
        if label not in self._horizons:
            scheme = self.schemes[label]
            study = self.make([scheme], [1.0], {}, [0])
            times = times_under(study, scheme)
            rounds, updates = _counts(ClockConfig.of(scheme.waiting, times, study.problem.importance.values, 0), study)
            end = self.until
            if self.objective.kind == "bytes":
                total = traffic_under(study, scheme).totals(np.array(updates), np.array(rounds))
                gone = float(total["bytes_up"] + total["bytes_down"])
                share = Fraction(min(1.0, self.objective.number / max(gone, 1.0))).limit_denominator(10_000)
                end, rounds, updates = end * max(share, Fraction(1, 10_000)), rounds * share, updates * share
            self._horizons[label] = Horizon(end, float(updates), float(rounds))
        return self._horizons[label]


def _counts(config: ClockConfig, study: Study) -> tuple[float, float]:
    """Rounds and client updates until the end."""
    pace = float((1 / config.times.mean_time).sum())
    if config.rule.by_training or float(study.until) * pace > _COUNTED:
        if config.rule.by_training:
            rounds = float(study.until) / float(config.times.mean_time.max())
            drawn = config.rule.draws_a_round(config.num_clients)
            return rounds, rounds * float(drawn if drawn is not None else config.num_clients)
        run = LongRun(config.rule, config.times, study.problem.importance)
        rounds = run.rounds_per_time * float(study.until)
        return rounds, rounds * run.participation.updates_per_round
    lines = list(stream(config, until=study.until))
    return float(sum(line.num_rounds for line in lines)), float(sum(line.num_updates for line in lines))


def study_maker(make: Callable[..., Study], local: object) -> Make:
    """Studies of cells, by the function that makes one of schemes, local work, rates and seeds."""
    rated = any(axis.name == RATE for axis in local.axes)  # type: ignore[attr-defined]

    def made(
        schemes: Sequence[Scheme],
        rates: Sequence[float],
        by_scheme: Mapping[str, Sequence[float]],
        seeds: Sequence[int],
    ) -> Study:
        work = at_rates(local, list(rates)) if rated else local  # type: ignore[type-var]
        return make(schemes, work, rates=dict(by_scheme) if rated and by_scheme else None, seeds=tuple(seeds))

    return made
