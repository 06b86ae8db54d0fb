"""How measures went over the rounds: the last, the best, and what is plainly wrong with them.

A name says which way is better: a loss or an error falls, an accuracy or a score rises; of others only the last is
told. Sick is a measure whose last number is not finite, and a loss that has come to `SICK` times its best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

SICK = 10.0
WHOSE = {"server": "server", "evaluate": "clients' evaluation", "train": "clients' training"}
"""Whose measures, in words."""
_FALLS = ("loss", "error", "perplexity", "mse", "mae", "nll")
_RISES = ("acc", "auc", "f1", "precision", "recall", "score", "dice", "iou")

Measures = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""By whose they are, round and name."""


class Course(NamedTuple):
    """A measure over the rounds in which it was taken."""

    whose: str
    name: str
    rounds: int
    last: tuple[int, float]
    """Round and number."""
    best: tuple[int, float] | None
    """None where no number was finite, or nobody knows which way is better."""
    first_bad: int | None
    """The round from which on no number has been finite."""
    falls: bool | None
    """Whether less is better; None: nobody knows."""

    @property
    def wrong(self) -> str | None:
        """What is plainly wrong with it."""
        number, last = self.last
        before = "" if self.best is None else f"; its best was {self.best[1]:.4g} in round {self.best[0]}"
        if self.first_bad is not None:
            what = "NaN" if math.isnan(last) else "infinite"
            since = f"since round {self.first_bad}" if self.first_bad < number else f"in round {number}"
            return f"{self.name} ({self.whose}) is {what} {since}{before}"
        if self.falls and self.best is not None and self.best[1] > 0 and last >= SICK * self.best[1]:
            many, (best_round, best) = last / self.best[1], self.best
            return (
                f"{self.name} ({self.whose}) is {last:.4g} in round {number}, {many:.3g} times its best, {best:.4g} in "
                f"round {best_round}"
            )
        return None


def courses(measured: Measures) -> list[Course]:
    """Every measure that is one number: the server's first, losses before others."""
    found = []
    for kind, whose in WHOSE.items():
        rows: dict[str, list[tuple[int, float]]] = {}
        for number, metrics in sorted(measured.get(kind, {}).items()):
            for name, value in metrics.items():
                if isinstance(value, (int, float)):
                    rows.setdefault(name, []).append((number, float(value)))
        each = [_course(whose, name, points) for name, points in rows.items()]
        found += sorted(each, key=lambda course: {True: 0, False: 1, None: 2}[course.falls])
    return found


def _course(whose: str, name: str, points: list[tuple[int, float]]) -> Course:
    falls = _falls(name)
    good = [point for point in points if math.isfinite(point[1])]
    best = None
    if good and falls is not None:
        best = (min if falls else max)(good, key=lambda point: point[1])
    bad = None
    for number, value in reversed(points):
        if math.isfinite(value):
            break
        bad = number
    return Course(whose, name, len(points), points[-1], best, bad, falls)


def _falls(name: str) -> bool | None:
    low = name.lower()
    if any(word in low for word in _FALLS):
        return True
    return False if any(word in low for word in _RISES) else None
