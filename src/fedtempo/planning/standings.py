"""Where the cells of a race stand: how far each was trained, its scores, and which is best.

A race trains through this page alone, so that what is known is complete whenever it is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.planning.comparison import Cell, Comparison, compared

MOST_SEEDS = 64


class Stopped(Exception):
    """Training was stopped, by the user or because its time was over."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Track(Protocol):
    """Where cells are trained."""

    @property
    def rungs(self) -> tuple[float, ...]:
        """Shares of the time at which cells are compared, the last 1."""

    def train(self, cells: Iterable[Cell], seeds: Sequence[int], rung: int) -> None:
        """Each cell under each seed to a rung, from where it is; raises `Stopped` when it has to end before."""

    def score(self, cell: Cell, seed: int, rung: int) -> float:
        """What is compared, smaller being better; infinite if it diverged, NaN if it was not trained so far."""

    def fall(self, cell: Cell, seed: int, rung: int) -> float:
        """By how much the score fell over the second half of the time to a rung, as a difference of logs."""

    def cost(self, cell: Cell, rung: int, before: int | None = None) -> float:
        """Client updates of one training to a rung, from an earlier one or from the start."""

    def keep(self, cells: Iterable[Cell]) -> None:
        """Nothing but these will be trained further; others may be forgotten."""

    @property
    def spent(self) -> float:
        """Client updates so far."""


@dataclass(frozen=True)
class Standing:
    """How far a cell came and why not further."""

    rung: int
    why: str = ""


@dataclass
class Standings:
    """The cells, how far each came, and their scores under the seeds that were begun."""

    track: Track
    cells: list[Cell]
    seeds: Sequence[int] = tuple(range(MOST_SEEDS))
    tell: Callable[[str, int], None] = lambda stage, cells: None
    standing: dict[Cell, Standing] = field(default_factory=dict)
    """Of every cell that was trained."""
    used: list[int] = field(default_factory=list)
    """The seeds that were begun."""
    ended: str = ""
    """Why it ended; empty before."""

    @property
    def last(self) -> int:
        """The rung at the end of the time."""
        return len(self.track.rungs) - 1

    # -- training

    def train(self, cells: Sequence[Cell], seeds: Sequence[int], rung: int) -> None:
        """Cells under seeds to a rung; where it is stopped, what came so far stands there."""
        first = seeds == self.seeds[:1]
        words = (
            f"training to {fraction(self.track.rungs[rung])} of the time"
            if self.track.rungs[rung] < 1
            else ("training to the end" if first else f"training under seed {seeds[0]}")
        )
        self.tell(words, len(cells))
        self.used += [seed for seed in seeds if seed not in self.used]
        try:
            self.track.train(cells, seeds, rung)
        finally:
            for cell in cells:
                if first and not math.isnan(self.track.score(cell, seeds[0], rung)):
                    self.standing[cell] = Standing(rung)

    def bring_back(self, scheme: str | None, rung: int, limit: float) -> list[Cell]:
        """Where all that went on have diverged, those that were left behind, the best first, until one comes here."""
        first, back = self.seeds[0], list[Cell]()
        while True:
            cells = [cell for cell in self.standing if scheme in (None, cell.scheme)]
            if any(math.isfinite(self.track.score(cell, first, rung)) for cell in cells):
                return back
            left = {cell: self.track.score(cell, first, self.standing[cell].rung) for cell in cells}
            left = {cell: score for cell, score in left.items() if math.isfinite(score)}
            best = min(left, key=lambda cell: (-self.standing[cell].rung, left[cell]), default=None)
            if best is None or self.track.spent + self.track.cost(best, rung) > limit:
                return back
            self.train([best], self.seeds[:1], rung)
            back.append(best)

    # -- costs

    def whole(self, cell: Cell) -> float:
        """Client updates of a training from the start to the end."""
        return self.track.cost(cell, self.last)

    def rest(self, cell: Cell, rung: int | None) -> float:
        """Client updates from a rung, or the start, to the end."""
        return self.whole(cell) - (0.0 if rung is None else self.track.cost(cell, rung))

    # -- scores

    def scores(self, cells: Iterable[Cell], rung: int) -> dict[Cell, float]:
        """Scores under the first seed; infinite for what diverged."""
        found = {cell: self.track.score(cell, self.seeds[0], rung) for cell in cells}
        return {cell: score if math.isfinite(score) else math.inf for cell, score in found.items()}

    def best_of(self, scheme: str | None) -> Cell | None:
        """The best rate of a scheme among the finalists."""
        table = {cell: float(np.nanmean(v)) for cell, v in self.table(self.last).items() if cell.scheme == scheme}
        return min(table, key=table.__getitem__) if table else None

    def seeds_of(self, cell: Cell) -> int:
        """Under how many seeds it was trained to the end."""
        return sum(not math.isnan(self.track.score(cell, seed, self.last)) for seed in self.used)

    def compare(self) -> Comparison:
        """The finalists as they stand: those that have come farthest."""
        rung = self.farthest
        table = self.table(rung)
        if not table:
            raise InputError("rates: no cell could be compared; give other rates, or more time")
        return compared(table)

    def table(self, rung: int) -> dict[Cell, Floats]:
        """[seeds] scores of the cells that came to a rung and did not diverge."""
        found = {}
        for cell in self.standing:
            scores = np.array([self.track.score(cell, seed, rung) for seed in self.used])
            if np.isfinite(scores).any() and not np.isinf(scores).any():
                found[cell] = scores
        return found

    @property
    def farthest(self) -> int:
        """The last rung at which there is something to compare; where it was stopped on the way, two cells at least."""
        least = 2 if self.ended in ("stopped", "time") and len(self.cells) > 1 else 1
        return next((r for r in reversed(range(len(self.track.rungs))) if len(self.table(r)) >= least), 0)


def fraction(share: float) -> str:
    """A share of the time, in words."""
    return f"1/{round(1 / share)}" if share < 1 else "all"
