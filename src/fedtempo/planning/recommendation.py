"""What `recommend` gives back: the choice, how sure it is, what it was chosen from, and what that took."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedtempo import display
from fedtempo.clock.ticks import text
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Brief, Shown, frame_of, one_line
from fedtempo.errors import InputError
from fedtempo.planning.objective import Objective
from fedtempo.planning.pilot import Pilot
from fedtempo.planning.prediction import Model, Prediction
from fedtempo.schemes.named import FedFix, Scheme
from fedtempo.theory.stability import StabilityLimit, stability_limit
from fedtempo.training.solvers import LocalRule
from fedtempo.weighting.weight_rules import WeightRule

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FORMAT = 1


class Interval(NamedTuple):
    """From `low` to `high`, at 95 %."""

    low: float
    high: float


UNKNOWN = Interval(math.nan, math.nan)


@dataclass(frozen=True, eq=False, repr=False)
class Curve(Brief):
    """The measure over time of one cell: the mean over its seeds, and how sure that is."""

    times: Floats
    mean: Floats
    error: Floats
    """Standard error over seeds; NaN with one seed."""


@dataclass(frozen=True, repr=False)
class Choice(Brief):
    """A scheme at a learning rate, and what training it gave."""

    scheme: Scheme
    local_lr: float
    loss: float
    """The objective's value: the federated loss over the last tenth of the time, unless another was asked for.

    The mean over seeds; of what was not trained to the end, where it was left.
    """
    excess: float
    """By how much that is worse than the best of all that were trained to the end."""
    error: float = math.nan
    """Standard error of `loss` over seeds; NaN with one seed."""
    seeds: int = 0
    trained: float = 1.0
    """Up to which share of the time it was trained."""
    behind: Interval = UNKNOWN
    """By which share it is worse than the best choice; below 0 where it may be better."""
    predicted: float = math.nan
    """The loss that the pilot predicted; NaN where there was none."""
    why: str = ""
    """Why it was not trained further; empty if it was trained to the end."""


@dataclass(frozen=True)
class Crossing:
    """The last time at which another scheme was clearly ahead of the choice: with less time, it would be preferred."""

    time: float
    """Up to here …"""
    scheme: str
    """… this scheme was ahead."""
    behind: str
    """Of the choice, which is not behind it from then on."""


def _known(interval: Interval) -> dict[str, float | None]:
    """As JSON: an end that is not known makes both null, one that is infinite is null alone."""
    unknown = math.isnan(interval.low) or math.isnan(interval.high)
    return {"low": None, "high": None} if unknown else {"low": number(interval.low), "high": number(interval.high)}


@dataclass(frozen=True, eq=False, repr=False)
class Prior(Brief):
    """What a pilot of a few rows predicted, which put the cells in an order and left hopeless ones out."""

    pilot: Pilot
    model: Model
    predictions: tuple[Prediction, ...]
    accesses_an_update: float
    """K·B."""

    @property
    def updates(self) -> float:
        """What the pilot used, in client updates."""
        return self.pilot.used / self.accesses_an_update


@dataclass(frozen=True)
class Spent:
    """What the choice took."""

    updates: float
    """Client updates that were trained, over all cells and seeds, the pilot's included."""
    grid: float
    """Client updates of training every cell once."""
    seconds: float
    trainings: int
    """Runs that were begun."""
    to_the_end: int
    """Runs that were trained for the whole time."""

    @property
    def share(self) -> float:
        """Of the full grid."""
        return self.updates / self.grid if self.grid else math.nan


ENDED = {
    "sure": "the regret is below the tolerance",
    "budget": "the budget is spent",
    "settled": "more seeds would not make it surer",
    "alone": "nothing is left to compare",
    "stopped": "stopped before its end; this is the best so far",
}
"""Why a race ended."""


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation(Shown):
    """The choice and all that it was compared with; ``print`` shows the tables of ``fedtempo plan --problem``.

    It is what ``ft.recommend`` returns. `best` is the choice, with its `scheme`, `local_lr` and `loss`; `line` says it
    in Python.

    Example:
        >>> problem, times = ft.problems.quadratics(4, heterogeneity=2), ft.FixedTimes([4, 2, 1, 1])
        >>> found = ft.recommend(problem, times, until=60, schemes=[ft.FedAvg(), ft.FedFix(1)], rates=[0.1, 0.3])
        >>> found.line()  # for Flower
        'FedFix(wait=1.0)  # clients: lr=0.3, 1 local step, batches of 32'
        >>> found.line(flower=False)  # for ft.simulate
        'ft.FedFix(1)  # local: lr=0.3, 1 local step, batches of 32; weights="time-based"; step="stable"'
        >>> found.table()[["scheme", "local_lr", "loss"]].round(3)
              scheme  local_lr   loss
        0  FedFix(1)       0.3  1.047
        1     FedAvg       0.3  1.051
    """

    times: ClientTimes
    until: Fraction
    local: LocalRule
    server_lr: float
    rule: str | WeightRule
    step: str
    objective: Objective
    choices: tuple[Choice, ...]
    """Each scheme at its best learning rate, the best first; those trained to the end before the others."""
    cells: tuple[Choice, ...]
    """Every scheme and rate that was trained at all, in the order of schemes and rates."""
    fedavg: Choice | None
    """FedAvg at its best learning rate."""
    ties: tuple[Choice, ...]
    """Other schemes that cannot be told from the best one."""
    regret: Interval
    """By which share the choice may be worse than the best of all cells that were compared."""
    tolerance: float
    curves: dict[tuple[str, float], Curve]
    """By scheme and rate, the measure over time of all that were trained to the end."""
    crossings: tuple[Crossing, ...]
    """When another scheme was ahead, in the order of time; empty where the choice was ahead throughout."""
    spent: Spent
    ended: str
    """Why the race ended: a key of `ENDED`."""
    planned_updates: float
    """Client updates that the clients can make in the time."""
    prior: Prior | None
    """None where the pilot does not cover the problem."""
    notes: tuple[str, ...]
    """What else is to be known, in sentences."""

    @property
    def best(self) -> Choice:
        """The recommended one."""
        return self.choices[0]

    @property
    def measure_words(self) -> str:
        """What `loss` is called."""
        return self.objective.words(float(self.until))

    @property
    def local_steps(self) -> int:
        """K."""
        return int(self._number("local_steps") or 1)

    @property
    def batch_size(self) -> int | None:
        """B."""
        found = self._number("batch_size")
        return None if found is None else int(found)

    def _number(self, name: str) -> Any:
        return next((axis.values[0] for axis in self.local.axes if axis.name == name), None)

    def line(self, *, flower: bool = True) -> str:
        """The choice as a line of Python: a strategy for Flower, or a scheme for `simulate`."""
        from fedtempo.planning.deployment import scheme_line, strategy_line

        return strategy_line(self) if flower else scheme_line(self)

    def _line_or_none(self) -> str | None:
        try:
            return self.line()
        except InputError:  # Flower's strategies cannot host the choice
            return None

    # -- what the pilot said

    @property
    def pilot(self) -> Pilot | None:
        """What the pilot saw."""
        return None if self.prior is None else self.prior.pilot

    @property
    def model(self) -> Model | None:
        """The quadratic model that the pilot led to."""
        return None if self.prior is None else self.prior.model

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """The pilot's predictions of every scheme at every rate."""
        return () if self.prior is None else self.prior.predictions

    def prediction(self, scheme: Scheme) -> Prediction:
        """The pilot's prediction for one of the schemes."""
        for one in self.predictions:
            if one.scheme.label == scheme.label:
                return one
        if self.prior is None:
            raise InputError("prediction: there was no pilot; `notes` says why")
        raise InputError(f"{scheme} is not among the schemes compared; give it in schemes=")

    @property
    def pilot_updates(self) -> float:
        """What the pilot used, in client updates."""
        return 0.0 if self.prior is None else self.prior.updates

    @cached_property
    def limits(self) -> dict[str, StabilityLimit]:
        """By scheme's label, the learning rate from which the pilot expects instability, where it is known."""
        if self.prior is None or self.times.availability is not None:  # clients that come and go take long to tell
            return {}
        steepest = np.full(self.times.num_clients, self.prior.model.final_curvature)
        found = {}
        for one in self.predictions:
            with suppress(InputError):  # weights that depend on the rounds, as those of a cure
                found[one.scheme.label] = stability_limit(
                    steepest,
                    one.scheme,
                    self.times,
                    weights=self.rule,
                    local_steps=self.local_steps,
                    server_lr=self.server_lr * one.step,
                )
        return found

    @property
    def waits(self) -> list[tuple[Fraction, Choice]]:
        """FedFix's waits with the best choice for each, ascending."""
        found = [(one.scheme.wait, one) for one in self.choices if isinstance(one.scheme, FedFix)]
        return sorted(found, key=lambda pair: pair[0])

    @property
    def assumes(self) -> tuple[str, ...]:
        """What else is to be known, in sentences; the old name of `notes`."""
        return self.notes

    # -- how it is shown

    def plot(self, path: str | Path | None = None, *, style: str = "light") -> Figure:
        """The finalists over time with their intervals, and each scheme against the time between two models.

        The ending of `path` says whether it is SVG, PNG or PDF; `style` is light or dark.
        """
        return display.recommendation_figure(self, path=path, style=style)

    def to_html(self, path: str | Path | None = None) -> display.WebPage:
        """As a page for a browser: one file with tables that sort, and curves that can be zoomed.

        A notebook shows it; with `path`, which ends in .html, it is also written.
        """
        return display.recommendation_html(self, path=path)

    def table(self, *, every: bool = False) -> pd.DataFrame:
        """A row a scheme at its best learning rate, the best first; with `every` a row a scheme and rate."""
        return frame_of(self, every=every)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; what is not finite is null."""
        return {
            "format": FORMAT,
            "until": text(self.until),
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "step": self.step,
            "objective": str(self.objective),
            "best": self._choice_dict(self.best),
            "regret": {**_known(self.regret), "tolerance": self.tolerance},
            "ended": self.ended,
            "fedavg": None if self.fedavg is None else self._choice_dict(self.fedavg),
            "ties": [one.scheme.label for one in self.ties],
            "strategy": self._line_or_none(),
            "schemes": [{**self._choice_dict(one), **self._prediction_dict(one)} for one in self.choices],
            "cells": [self._choice_dict(one) for one in self.cells],
            "curves": [
                {
                    "label": label,
                    "local_lr": rate,
                    "time": curve.times.tolist(),
                    "mean": [number(v) for v in curve.mean],
                    "error": [number(v) for v in curve.error],
                }
                for (label, rate), curve in self.curves.items()
            ],
            "crossings": [{"time": c.time, "ahead_before": c.scheme, "ahead_after": c.behind} for c in self.crossings],
            "spent": {
                "updates": self.spent.updates,
                "grid_updates": self.spent.grid,
                "seconds": self.spent.seconds,
                "trainings": self.spent.trainings,
                "to_the_end": self.spent.to_the_end,
            },
            "pilot": self._pilot_dict(),
            "assumes": list(self.notes),
        }

    def _choice_dict(self, one: Choice) -> dict[str, Any]:
        return {
            "scheme": one.scheme.spec(),
            "label": one.scheme.label,
            "local_lr": one.local_lr,
            "loss": number(one.loss),
            "excess": number(one.excess),
            "error": number(one.error),
            "seeds": one.seeds,
            "trained": one.trained,
            "behind": _known(one.behind),
            "predicted_loss": number(one.predicted),
            "why": one.why,
        }

    def _prediction_dict(self, one: Choice) -> dict[str, Any]:
        if self.prior is None or all(p.scheme.label != one.scheme.label for p in self.predictions):
            return {}
        found, limit = self.prediction(one.scheme), self.limits.get(one.scheme.label)
        return {
            "rounds": found.num_rounds,
            "updates": found.num_updates,
            "server_step": found.step,
            "rates": found.lr.tolist(),
            "predicted_excess": [number(v) for v in found.excess],
            "progress": [number(v) for v in found.progress],
            "noise": [number(v) for v in found.noise],
            "heterogeneity": [number(v) for v in found.heterogeneity],
            "drift": [number(v) for v in found.drift],
            "stability_limit": number(limit.lr) if limit else None,
            "proven_lr": found.proven_lr,
            "proven_loss": found.proven_loss,
        }

    def _pilot_dict(self) -> dict[str, Any] | None:
        if self.prior is None:
            return None
        pilot, model = self.prior.pilot, self.prior.model
        return {
            "updates": self.pilot_updates,
            "planned_updates": self.planned_updates,
            "rows": pilot.used,
            "loss": pilot.end_loss,
            "remaining": model.remaining,
            "largest_curvature": pilot.largest_curvature,
            "final_curvature": model.final_curvature,
            "noise": pilot.mean_noise,
            "heterogeneity": pilot.mean_heterogeneity,
        }

    def __repr__(self) -> str:
        best = self.best
        return one_line(
            "Recommendation",
            f"{best.scheme.label} at local_lr {best.local_lr:g}, the best of {len(self.choices)} schemes for "
            f"{self.times.num_clients} clients: {self.measure_words} {best.loss:.4g}, at most "
            f"{self.regret.high:.0%} above the best compared",
        )


def number(value: float) -> float | None:
    """As JSON can hold it."""
    return float(value) if math.isfinite(value) else None
