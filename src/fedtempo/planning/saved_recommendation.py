"""A recommendation that was written as JSON (``fedtempo plan --problem … --json``), to be printed and shown again.

Schemes are their labels: nothing is imported, and nothing can be trained on. What was not finite is null there: a loss
that is null diverged, an interval without an upper end has none; of other numbers it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtempo import display
from fedtempo.display import one_line
from fedtempo.errors import InputError
from fedtempo.planning.objective import KINDS, Objective
from fedtempo.planning.recommendation import ENDED, FORMAT, Choice, Crossing, Curve, Interval, Recommendation, Spent
from fedtempo.schemes.table import only_named_scheme

_NEEDED = ("best", "cells", "regret", "objective", "spent")


class SavedPilot(NamedTuple):
    """What a page says of a pilot."""

    end_loss: float


@dataclass(frozen=True, eq=False, repr=False)
class SavedRecommendation:
    """What the JSON says, by the names of `Recommendation`."""

    until: Fraction
    step: str
    local_steps: int
    batch_size: int | None
    objective: Objective
    choices: tuple[Choice, ...]
    cells: tuple[Choice, ...]
    fedavg: Choice | None
    ties: tuple[Choice, ...]
    regret: Interval
    tolerance: float
    curves: dict[tuple[str, float], Curve]
    crossings: tuple[Crossing, ...]
    spent: Spent
    ended: str
    notes: tuple[str, ...]
    strategy: str | None
    """The line of Python for Flower; None where its strategies cannot host the choice."""
    pilot: SavedPilot | None
    pilot_updates: float

    @property
    def best(self) -> Choice:
        """The recommended one."""
        return self.choices[0]

    @property
    def prior(self) -> SavedPilot | None:
        """None where there was no pilot."""
        return self.pilot

    def line(self, *, flower: bool = True) -> str:
        """The choice as a line of Python for Flower."""
        if flower and self.strategy is not None:
            return self.strategy
        raise InputError("line: the JSON of a recommendation has the line for Flower alone, where there is one")

    def to_html(self, path: str | Path | None = None) -> display.WebPage:
        """As a page for a browser; with `path`, which ends in .html, it is also written."""
        return display.recommendation_html(self, path=path)

    def __repr__(self) -> str:
        best = self.best
        return one_line("SavedRecommendation", f"{best.scheme.label} at local_lr {best.local_lr:g}, read from JSON")


AnyRecommendation = Recommendation | SavedRecommendation
"""What pages and tables are made of."""


def is_recommendation(document: object) -> bool:
    """Whether JSON is a recommendation's."""
    return isinstance(document, Mapping) and all(key in document for key in _NEEDED)


def read_recommendation(document: Mapping[str, Any], where: str) -> SavedRecommendation:
    """The recommendation that `Recommendation.to_dict` gave."""
    if not isinstance(document.get("format"), int) or document["format"] > FORMAT:
        raise InputError(f"{where}: written by a newer fedtempo, or changed since; use the version that wrote it")
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"{where}: not a whole recommendation ({type(error).__name__}: {error}); plan again") from None


def _read(document: Mapping[str, Any]) -> SavedRecommendation:
    choices = tuple(map(_choice, document["schemes"]))
    if not choices or document["ended"] not in ENDED:
        raise ValueError("it has no choice, or no reason for its end")
    regret, spent, pilot = document["regret"], document["spent"], document["pilot"]
    tied = set(document["ties"])
    return SavedRecommendation(
        until=Fraction(document["until"]),
        step=str(document["step"]),
        local_steps=int(document["local_steps"]),
        batch_size=None if document["batch_size"] is None else int(document["batch_size"]),
        objective=_objective(str(document["objective"])),
        choices=choices,
        cells=tuple(map(_choice, document["cells"])),
        fedavg=None if document["fedavg"] is None else _choice(document["fedavg"]),
        ties=tuple(one for one in choices if one.scheme.label in tied),
        regret=_interval(regret),
        tolerance=float(regret["tolerance"]),
        curves={(str(c["label"]), float(c["local_lr"])): _curve(c) for c in document["curves"]},
        crossings=tuple(
            Crossing(float(c["time"]), str(c["ahead_before"]), str(c["ahead_after"])) for c in document["crossings"]
        ),
        spent=Spent(
            updates=float(spent["updates"]),
            grid=float(spent["grid_updates"]),
            seconds=float(spent["seconds"]),
            trainings=int(spent["trainings"]),
            to_the_end=int(spent["to_the_end"]),
        ),
        ended=str(document["ended"]),
        notes=tuple(map(str, document["assumes"])),
        strategy=None if document["strategy"] is None else str(document["strategy"]),
        pilot=None if pilot is None else SavedPilot(_number(pilot["loss"])),
        pilot_updates=0.0 if pilot is None else float(pilot["updates"]),
    )


def _number(value: Any, otherwise: float = math.nan) -> float:
    return otherwise if value is None else float(value)


def _interval(given: Mapping[str, Any]) -> Interval:
    low = _number(given["low"])
    return Interval(low, _number(given["high"], math.nan if math.isnan(low) else math.inf))


def _choice(given: Mapping[str, Any]) -> Choice:
    return Choice(
        scheme=only_named_scheme({**given["scheme"], "label": str(given["label"])}),
        local_lr=float(given["local_lr"]),
        loss=_number(given["loss"], math.inf),
        excess=_number(given["excess"]),
        error=_number(given["error"]),
        seeds=int(given["seeds"]),
        trained=float(given["trained"]),
        behind=_interval(given["behind"]),
        predicted=_number(given["predicted_loss"]),
        why=str(given["why"]),
    )


def _curve(given: Mapping[str, Any]) -> Curve:
    times, mean, error = (_numbers(given[key]) for key in ("time", "mean", "error"))
    if not len(times) == len(mean) == len(error):
        raise ValueError("a curve has as many means and errors as times")
    return Curve(times, mean, error)


def _numbers(values: Sequence[Any]) -> np.ndarray:
    return np.array([_number(value) for value in values], dtype=float)


def _objective(given: str) -> Objective:
    """As `Objective.__str__` writes it."""
    kind, _, rest = given.partition(":")
    if kind not in KINDS:
        raise ValueError(f"{given!r} is no objective")
    if kind in ("metric", "min", "max"):
        return Objective(kind, rest)
    if kind == "worst":
        return Objective(kind, "client_loss")
    return Objective(kind, "loss", float(rest)) if rest else Objective(kind)
