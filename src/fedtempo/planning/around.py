"""The search around the best cell, for what early rungs left behind: the best rate moves with time.

beside    the rates next to the best one, until it has worse ones on both sides
across    the other schemes at its rate: good rates are shared by schemes
finer     new waits, sizes and rates around it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedtempo.planning.comparison import Cell
from fedtempo.planning.standings import Standing, Standings, fraction

FURTHER = 2
"""Of the other schemes at its rate, how many go on from T/2 to the end; all, where half the budget is left."""

Widen = Callable[[str, Sequence[float], float, float | None], Sequence[float]]
"""(scheme, rates tried, the best, the smallest that diverged) → further rates, where the best is the last one."""
Refine = Callable[[Cell, Mapping[Cell, float]], Sequence[Cell]]
"""(leader, scores at the rung) → cells to try around it; none when it is fine enough."""


@dataclass
class Around:
    """Trains around the best cell of the standings, until so many client updates are spent in all."""

    known: Standings
    limit: float
    reference: str | None
    """The scheme whose rates are looked at, too: FedAvg."""
    widen: Widen | None = None
    refine: Refine | None = None

    def search(self) -> None:
        """All three, until none of them gives a better cell; at last the rates beside the reference's best one."""
        best = None
        while best != (best := self._beside(lambda: self.known.compare().best)):
            self._across(best)
            self._finer()
        if self.reference is not None:
            self.known.bring_back(self.reference, self.known.last, self.limit)
            self._beside(lambda: self.known.best_of(self.reference))

    def _beside(self, of: Callable[[], Cell | None]) -> Cell | None:
        """Train the rates beside a best one to the end, until it has worse ones on both sides."""
        while (best := of()) is not None:
            tried = sorted(cell.rate for cell in self.known.standing if cell.scheme == best.scheme)
            place = tried.index(best.rate)
            rates = [*tried[max(0, place - 1) : place], *tried[place + 1 : place + 2]]
            if self.widen is not None and place in (0, len(tried) - 1):
                rates += self.widen(best.scheme, tried, best.rate, None)[:1]
            left = self._untrained(Cell(best.scheme, rate) for rate in rates)
            if not self._tried(left):
                break
        return best

    def _across(self, best: Cell | None) -> None:
        """Train the other schemes at the best cell's rate to T/2, and the best of them to the end."""
        if best is None:
            return
        known, before = self.known, max(0, self.known.last - 1)
        labels = dict.fromkeys(cell.scheme for cell in known.standing)
        others = self._untrained(Cell(label, best.rate) for label in labels)
        room = self.limit - known.track.spent - FURTHER * known.whole(best)
        chosen: list[Cell] = []
        for cell in self._by_scheme(others):
            cost = known.track.cost(cell, before)
            if cost <= room:
                chosen.append(cell)
                room -= cost
        known.cells += [cell for cell in chosen if cell not in known.standing]
        if chosen:
            known.train(chosen, known.seeds[:1], before)
            scores = known.scores(chosen, before)
            ahead = [cell for cell in sorted(scores, key=scores.__getitem__) if math.isfinite(scores[cell])]
            plenty = known.track.spent + sum(map(known.whole, ahead)) < self.limit / 2
            going = ahead if plenty else ahead[:FURTHER]
            for cell in ahead[len(going) :]:
                why = f"behind other schemes at this rate, at {fraction(known.track.rungs[before])} of the time"
                known.standing[cell] = Standing(before, why)
            known.train(going, known.seeds[:1], known.last)

    def _finer(self) -> None:
        """New waits, sizes and rates around the best cell, trained to the end, as long as there is something to try."""
        while self.refine is not None:
            means = {cell: float(np.nanmean(scores)) for cell, scores in self.known.table(self.known.last).items()}
            found = self._untrained(self.refine(self.known.compare().best, means))
            if not self._tried(found):
                return

    def _tried(self, cells: list[Cell]) -> bool:
        """Train them to the end, if there are any and there is room for all of them."""
        known = self.known
        if not cells or known.track.spent + sum(map(known.whole, cells)) > self.limit:
            return False
        known.cells += [cell for cell in cells if cell not in known.standing]
        known.train(cells, known.seeds[:1], known.last)
        return True

    def _untrained(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those that did not come to the end, and did not diverge."""
        first, score = self.known.seeds[0], self.known.track.score
        found = [cell for cell in dict.fromkeys(cells) if math.isnan(score(cell, first, self.known.last))]
        return [cell for cell in found if not math.isinf(score(cell, first, 0))]

    def _by_scheme(self, cells: Sequence[Cell]) -> list[Cell]:
        """By how well their schemes have done at any rate: who came farthest, then by the score there."""
        reached: dict[str, tuple[int, float]] = {}
        for rung in range(len(self.known.track.rungs)):
            for cell, score in self.known.scores(self.known.standing, rung).items():
                if math.isfinite(score):
                    before = reached.get(cell.scheme, (0, math.inf))
                    reached[cell.scheme] = min(before, (-rung, score))
        return sorted(cells, key=lambda cell: reached.get(cell.scheme, (0, math.inf)))
