"""From a race that has ended to a recommendation."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.planning.asked import Asked
from fedtempo.planning.calibration import lost
from fedtempo.planning.comparison import Cell, Comparison
from fedtempo.planning.objective import Objective
from fedtempo.planning.prior import is_trusted, predicted_losses
from fedtempo.planning.race import Race
from fedtempo.planning.recommendation import Choice, Crossing, Curve, Interval, Prior, Spent
from fedtempo.planning.recommendation import Recommendation as Recommendation
from fedtempo.planning.track import FieldTrack
from fedtempo.simulation.field import Run

MOST = 700.0
"""A difference of logs beyond which nothing is known."""
SAME = 0.02
"""Curves that differ by less are taken for the same."""


def _ratio(logs: float) -> float:
    """e^x − 1: a difference of logs as a share; infinite where it is beyond all numbers."""
    return math.expm1(logs) if logs < MOST else math.inf


@dataclass
class Answer:
    """Makes a recommendation of a race that has ended."""

    asked: Asked
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
            regret=Interval(0.0, _ratio(self._lost + found.regret)),
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
        """By how much a cell that was dropped may have been better; stopped on the way, that is all but one.

        What was still on its way to the rung that is compared counts as dropped at the one before.
        """
        race, rung, rungs = self.race, self.race.farthest, self.track.rungs
        schemes, dropped = len({cell.scheme for cell in race.standing}), sum(race.lost.values())
        if race.ended in ("stopped", "time") and rung > 0:
            here = sum(self._rung(cell) >= rung for cell in race.standing)
            dropped += lost(rungs[rung - 1], here, schemes) if rung - 1 not in race.lost else 0.0
        return dropped if rung == len(rungs) - 1 else dropped + lost(rungs[rung], 1.0, schemes)

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
            behind = Interval(_ratio(found.lower[cell]), _ratio(2 * found.mean[cell] - found.lower[cell]))
        else:
            dropped = [value for k, value in self.race.lost.items() if k >= rung]
            behind = Interval(-_ratio(sum(dropped)) if dropped else math.nan, math.nan)
        return Choice(
            scheme=self.track.schemes[cell.scheme],
            local_lr=cell.rate,
            loss=self.aim.value(self._mean(cell)),
            excess=self._mean(cell) - self._mean(found.best),
            error=float(scores.std(ddof=1)) / math.sqrt(len(scores)) if many else math.nan,
            seeds=len(scores),
            trained=self.track.rungs[rung],
            behind=behind,
            predicted=predicted_losses(self.prior).get(cell, math.nan) if is_trusted(self.prior) else math.nan,
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
