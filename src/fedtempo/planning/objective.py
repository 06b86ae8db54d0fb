"""What a plan is to make small: a measure at the end of the time, or how soon a loss is reached.

    loss               federated loss, the mean over the last tenth of the time
    worst              the loss of the client that has the largest, likewise
    metric:NAME        a metric of the problem, likewise; as large as can be, with min:NAME as small as can be
    bytes:1e9          the loss once so many bytes have gone to and from clients, or at the end of the time
    time-to:0.3        the first time at which the loss is at most 0.3

A score is what is compared: smaller is better. The gap of two scores is log(score/best) where scores are positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem

KINDS = ("loss", "worst", "metric", "min", "max", "bytes", "time-to")
TAIL = 0.9
"""A measure at a time is the mean over the tenth before it."""


@dataclass(frozen=True)
class Objective:
    """What is compared, by a measure's name."""

    kind: str = "loss"
    measure: str = "loss"
    number: float = math.nan
    """The loss that is to be reached, or the bytes that may be used."""

    @property
    def largest(self) -> bool:
        """Whether larger values are better."""
        return self.kind in ("metric", "max")

    @property
    def per_client(self) -> bool:
        """Whether it needs every client's loss."""
        return self.kind == "worst"

    def __str__(self) -> str:
        if self.kind in ("metric", "min", "max"):
            return f"{self.kind}:{self.measure}"
        return self.kind if math.isnan(self.number) else f"{self.kind}:{self.number:g}"

    def words(self, until: float) -> str:
        """What a value of it is called."""
        if self.kind == "bytes":
            return f"loss after {self.number:.3g} bytes"
        if self.kind == "time-to":
            return f"time to a loss of {self.number:g}"
        named = {"loss": "loss", "worst": "worst client's loss"}.get(self.kind, self.measure.replace("_", " "))
        return f"{named} at time {until:g}"

    def value(self, score: float) -> float:
        """The value that a score stands for, as the measure has it."""
        return -score if self.largest else score

    def score(self, times: Floats, values: Floats, end: float, horizon: float) -> float:
        """The score at time `end` of a curve that is measured up to it; infinite if it has diverged."""
        if self.kind == "time-to":
            return self._time_to(times, values, end, horizon)
        there = (times >= TAIL * end - 1e-9 * end) & (times <= end * (1 + 1e-9))
        tail = values[there]
        if not len(tail) or not np.isfinite(tail).all():
            return math.inf
        mean = float(tail.mean())
        return -mean if self.largest else mean

    def _time_to(self, times: Floats, values: Floats, end: float, horizon: float) -> float:
        """The time of the first crossing; where there is none, later than `end` by how far the loss has to fall."""
        known = times <= end * (1 + 1e-9)
        t, v = times[known], values[known]
        below = np.flatnonzero(v <= self.number)
        if not len(below):
            if not np.isfinite(v).all():
                return math.inf
            last = v[t >= TAIL * end - 1e-9 * end].min()
            return float(end * (1 + (last - self.number) / max(abs(self.number), 1e-12)))
        k = int(below[0])
        if k == 0:
            return float(t[0])
        share = (v[k - 1] - self.number) / max(v[k - 1] - v[k], 1e-300)
        return float(t[k - 1] + share * (t[k] - t[k - 1]))

    def reached(self, score: float, horizon: float) -> bool:
        """Whether a score at the end of the time says that the loss was reached."""
        return self.kind != "time-to" or score <= horizon * (1 + 1e-9)


def gap(score: float, best: float) -> float:
    """How far a score lies behind the best one: log(score/best) of positive ones, 0.1 being about 10 %."""
    if not math.isfinite(score):
        return math.inf
    relative = (score - best) / max(abs(best), 1e-300)
    return math.log1p(max(relative, -1 + 1e-9))


def objective_of(given: object, problem: Problem) -> Objective:
    """An objective by its text, as ``time-to:0.3``."""
    if isinstance(given, Objective):
        return given
    kind, _, rest = str(given).partition(":")
    usage = "give loss, worst, metric:NAME, min:NAME, time-to:LOSS or bytes:NUMBER"
    if kind not in KINDS or (kind in ("loss", "worst") and rest) or (kind not in ("loss", "worst") and not rest):
        raise InputError(f"objective: {given!r} is not known; {usage}")
    if kind == "loss":
        return Objective()
    if kind == "worst":
        return Objective(kind, "client_loss")
    if kind in ("metric", "min", "max"):
        if rest not in problem.metrics:
            known = ", ".join(problem.metrics) or "none"
            raise InputError(f"objective: {problem.name} has no metric {rest!r}; it has: {known}")
        return Objective(kind, f"test_{rest}" if problem.test is not None else rest)
    try:
        number = float(rest)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (kind == "bytes" and number <= 0):
        raise InputError(f"objective: {rest!r} is not a number; write {kind}:{'1e9' if kind == 'bytes' else '0.3'}")
    return Objective(kind, "loss", number)
