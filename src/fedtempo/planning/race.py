"""A race of cells: a scheme at a learning rate each. All are trained a little, the better ones further, few to the end.

    T/16   all cells, one seed        of every scheme the best goes on, and the best of all
    T/4    some two rates a scheme
    T/2    one or two a scheme
    T      about one a scheme         then around the best: the rates beside it, the other schemes at its rate, finer
                                      waits, sizes and rates; and more seeds, until the choice is sure enough

All cells see the same seeds (common random numbers), so that they are compared in pairs. The choice is the lowest mean.
Its regret, log(loss of the choice / least loss), is at most the sum of three parts at a joint level of 95 %:

    lost at T/16, T/4 and T/2     what dropped cells may have been better by: `calibration.lost`, 98 % each
    seeds                         max over finalists c of  log(mean of b / mean of c) + t·√((s_b² + s_c²)/n),  99 %

s is the standard deviation of the log of a score beside the means of cells and seeds, pooled over cells or the cell's
own where that is more, n the seeds that the choice b and c have in common. Scores that are not all positive are taken
over the size of the best one in place of logs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedtempo.errors import InputError
from fedtempo.planning.around import Around, Refine, Widen
from fedtempo.planning.calibration import kept_for, lost
from fedtempo.planning.comparison import Cell, Comparison
from fedtempo.planning.objective import gap
from fedtempo.planning.standings import Standing, Standings, Stopped, fraction

SPENT_BY = (1 / 3, 0.5, 0.6, 0.7)
"""Shares of the budget that may be spent by the end of the rungs at T/16, T/4, T/2 and T: the rest is for seeds."""
ASIDE = (0.2, 0.15, 0.2)
"""Shares of the tolerance that may be lost with the cells that are dropped at T/16, T/4 and T/2."""
HEDGE = 0.5
"""As many more go on, by what is forecast of them, as a share of those that go on by their score."""
AROUND = 0.88
"""Share of the budget that may be spent when what lies around the best cell has been tried: the rest is for seeds.

Of what the budget has beyond a quarter of the grid, half."""
REFERENCES = 3
"""Rates of FedAvg that go on from every rung."""
ALONG = 6
"""Finalists that get a second seed at least, where the budget allows."""


@dataclass(kw_only=True)
class Race(Standings):
    """Carries a race out; what is known when it is stopped remains."""

    reference: str | None
    """The scheme that always stays: FedAvg."""
    allowance: Callable[[], float]
    """How many client updates may be spent in all; where time is what is limited, a guess that gets better."""
    tolerance: float
    order: Mapping[Cell, float] = field(default_factory=dict)
    """What was predicted: where the budget cannot start all, the lowest start."""
    density: float = 1.0
    """Rates in a step from 1 to 2, 2 to 5 or 5 to 10: what is kept is counted in such steps."""
    widen: Widen | None = None
    refine: Refine | None = None
    guessed: bool = False
    """Whether the allowance is such a guess: then two cells go on in any case, until the time is over."""
    given: str = ""
    """The budget in words."""
    other: float = 0.0
    """Client updates that are not in it: a pilot's."""
    grid: float = 0.0
    """Client updates of training every cell once."""
    lost: dict[int, float] = field(default_factory=dict)
    """By rung, by how much a dropped cell may have been better than the best of those kept."""
    never: list[Cell] = field(default_factory=list)
    """Cells that were not trained at all, for want of budget."""

    def run(self) -> None:
        """To the end: sure enough, the budget spent, or stopped."""
        try:
            racing = self._start()
            for rung in range(self.last):
                racing = self._climb(racing, rung)
                racing = self._onward(racing, rung)
            self._climb(racing, self.last)
            looked = set[Cell]()
            while not self.ended:
                found = self._leader(looked)
                self.ended = self._sure(found) or self._next_seeds(found)
        except Stopped as stop:
            self.ended = stop.why
        except KeyboardInterrupt:  # between two trainings
            self.ended = "stopped"

    @property
    def budget(self) -> float:
        """Client updates that may be spent in all."""
        return self.allowance()

    def _room(self, rung: int) -> float:
        """Client updates that may still be spent by the end of a rung."""
        share = SPENT_BY[rung - len(self.track.rungs)] if len(self.track.rungs) <= len(SPENT_BY) else 1.0
        return share * self.budget - self.track.spent

    # -- the start

    def _start(self) -> list[Cell]:
        """The cells that begin: all, if a third of the budget brings them to the first rung."""
        self._check_budget()
        racing = set(self._affordable(self._by_promise(), self.cells, 0))
        self.never = [cell for cell in self.cells if cell not in racing]
        return [cell for cell in self.cells if cell in racing]

    def _check_budget(self) -> None:
        cells = self._one_a_scheme()[:1] if len(self.cells) == 1 else self._one_a_scheme()
        least = sum(sorted(self.whole(cell) for cell in cells)[:2])
        if self.budget < least * (1 - 1e-9):
            what = "race two cells" if len(cells) > 1 else "train a cell"
            raise InputError(
                f"budget: {self.given} client updates are too few to {what} to the end; the least is "
                f"{math.ceil(least + self.other)}"
            )

    def _affordable(
        self, wanted: Iterable[Cell], every: Sequence[Cell], rung: int, before: int | None = None
    ) -> list[Cell]:
        """Of those wanted, the first that there is room for up to a rung; two at least, which can come to the end."""
        listed, few = dict.fromkeys(wanted), self.guessed or len(self.cells) <= 2
        room, left = self._room(rung), (self.budget - self.track.spent) * (1 + 1e-9)
        whole = {cell: self.rest(cell, before) for cell in every}
        found: list[Cell] = []
        for cell in [*listed, *(cell for cell in every if cell not in listed)]:
            cost = self.track.cost(cell, rung, before)
            if len(found) < 2:
                second = 0.0 if found else min((w for other, w in whole.items() if other != cell), default=0.0)
                if whole[cell] + second > left and not few:
                    continue
                left -= whole[cell]
            elif cell not in listed or cost > min(room, left):
                continue
            else:
                left -= cost
            room -= cost
            found.append(cell)
        return found

    def _one_a_scheme(self) -> list[Cell]:
        """A cell of every scheme; of one scheme alone two of its rates."""
        found = {cell.scheme: cell for cell in self.cells}
        return list(found.values()) if len(found) > 1 else self.cells[:2]

    def _by_promise(self) -> list[Cell]:
        """FedAvg's cells and the others as predicted; without a prediction the middle rates first, scheme by scheme."""
        rates = sorted({cell.rate for cell in self.cells})
        thin = {rate: k for k, rate in enumerate(_spread_out(rates))}

        def promise(cell: Cell) -> tuple[float, float]:
            return self.order.get(cell, 0.0 if not self.order else math.inf), thin[cell.rate]

        return sorted(self.cells, key=promise)

    # -- a rung

    def _climb(self, racing: list[Cell], rung: int) -> list[Cell]:
        """Train to a rung; add rates where the best of a scheme is the last on its side."""
        self.train(racing, self.seeds[:1], rung)
        racing = racing + (self.bring_back(None, rung, self.budget) if rung else [])
        while rung == 0 and self.never and not any(math.isfinite(s) for s in self.scores(racing, rung).values()):
            left = set(self.never)
            others = self._affordable([cell for cell in self._by_promise() if cell in left], self.never, rung)
            if not others:
                break
            self.never = [cell for cell in self.never if cell not in set(others)]
            self.train(others, self.seeds[:1], rung)
            racing = racing + others
        room = min(self._room(rung), self.budget - self.track.spent - self._to_the_end(racing, rung))
        while self.widen is not None and rung < self.last:
            further = [cell for cell in self._beyond(racing, rung) if cell not in self.standing]
            cost = sum(self.track.cost(cell, rung) for cell in further)
            if not further or cost > room:
                break
            room -= cost
            self.train(further, self.seeds[:1], rung)
            self.cells += further
            racing = racing + further
        return racing

    def _to_the_end(self, racing: Sequence[Cell], rung: int) -> float:
        """Client updates that bring the two cheapest from a rung to the end."""
        scores = self.scores(racing, rung)
        return sum(sorted(self.rest(cell, rung) for cell in racing if math.isfinite(scores[cell]))[:2])

    def _beyond(self, racing: list[Cell], rung: int) -> list[Cell]:
        """Further rates of the schemes whose best is the last rate on its side and among the best of all."""
        assert self.widen is not None
        scores = self.scores(racing, rung)
        ranked = sorted(scores, key=scores.__getitem__)
        leading = ranked[: max(3, len({cell.scheme for cell in racing}))]
        found: list[Cell] = []
        for cell in leading:
            tried = sorted(c.rate for c in self.standing if c.scheme == cell.scheme)
            diverged = [r for r in tried if math.isinf(self.track.score(Cell(cell.scheme, r), self.seeds[0], 0))]
            further = self.widen(cell.scheme, tried, cell.rate, min(diverged, default=None))
            found += [Cell(cell.scheme, rate) for rate in further]
        return list(dict.fromkeys(found))

    def _onward(self, racing: list[Cell], rung: int) -> list[Cell]:
        """Who goes on to the next rung: as many as the tolerance asks for and the budget allows."""
        share = self.track.rungs[rung]
        scores = self.scores(racing, rung)
        ranked = sorted((cell for cell in racing if math.isfinite(scores[cell])), key=scores.__getitem__)
        if not ranked:
            if self.never:
                raise InputError("budget: every cell that there was room for diverged; give more, or smaller rates")
            raise InputError(
                "rates: every cell diverged or has no loss; give smaller rates, or a problem whose loss is finite"
            )
        schemes = len({cell.scheme for cell in ranked})
        aside = ASIDE[min(rung, len(ASIDE) - 1)] * self.tolerance
        aim = math.ceil(kept_for(share, aside, schemes) * self.density)
        hedge = self._by_forecast(ranked, scores, rung)[: math.ceil(HEDGE * aim)]
        wanted = [*self._must_stay(ranked, rung), *ranked[:aim], *hedge]
        staying = set(self._affordable(wanted, ranked, rung + 1, rung))
        if not staying:  # those that there was room for have diverged
            raise Stopped("budget")
        best_dropped = next((k for k, cell in enumerate(ranked) if cell not in staying), None)
        if best_dropped is not None:  # all before it in the order went on
            self.lost[rung] = lost(share, best_dropped / self.density, schemes)
        for cell in racing:
            if cell not in staying:
                self.standing[cell] = Standing(rung, self._why(cell, scores.get(cell, math.inf), ranked, rung))
        self.track.keep(staying)
        return [cell for cell in ranked if cell in staying]

    def _by_forecast(self, ranked: list[Cell], scores: Mapping[Cell, float], rung: int) -> list[Cell]:
        """By the score to be expected if it goes on falling as it did, half as fast: late risers are seen early so."""
        first, leader = self.seeds[0], ranked[0]
        doublings = -math.log2(self.track.rungs[rung]) / 2
        usual = self.track.fall(leader, first, rung)

        def expected(cell: Cell) -> float:
            fall = max(0.0, self.track.fall(cell, first, rung) - usual)
            return gap(scores.get(cell, math.inf), scores[leader]) - doublings * fall

        return sorted(ranked, key=expected)

    def _must_stay(self, ranked: list[Cell], rung: int) -> list[Cell]:
        """The leader, FedAvg at its best rates, and before T/4 every scheme at its best rate."""
        best = {cell.scheme: cell for cell in reversed(ranked)}
        must = [ranked[0], *[cell for cell in ranked if cell.scheme == self.reference][:REFERENCES]]
        if self.track.rungs[rung] < 0.25:
            must += [best[scheme] for scheme in sorted(best, key=lambda s: ranked.index(best[s]))]
        return list(dict.fromkeys(must))

    def _why(self, cell: Cell, score: float, ranked: list[Cell], rung: int) -> str:
        at = fraction(self.track.rungs[rung])
        if not math.isfinite(score):
            return f"diverged before {at} of the time"
        behind = ranked.index(cell)
        if not behind:
            return f"the budget did not bring it beyond {at} of the time"
        return f"behind {behind} other{'s' * (behind != 1)} at {at} of the time"

    # -- the end

    def _leader(self, looked: set[Cell]) -> Comparison:
        """The finalists, when what lies around the best one has been tried; `looked`: the best ones before."""
        found = self.compare()
        if not self.last or found.best in looked:
            return found
        quarter = min(self.budget, self.grid / 4) if self.grid else self.budget
        limit = AROUND * quarter + (self.budget - quarter) / 2
        Around(self, limit, self.reference, self.widen, self.refine).search()
        after = self.compare()
        looked |= {found.best, after.best}
        return after

    def _sure(self, found: Comparison) -> str:
        """Why it ends here: the regret is within the tolerance, or there is nothing to choose; else nothing."""
        several = self.seeds_of(found.best) > 1
        if several and sum(self.lost.values()) + found.regret <= math.log1p(self.tolerance):
            return "sure"
        if not found.upper:
            return "alone"
        return "settled" if several and not found.regret else ""

    def _next_seeds(self, found: Comparison) -> str:
        """Train finalists under further seeds; why it ends where there is none, or no budget for it."""
        asked = self._asked(self._contenders(found), found.best)
        if not asked:
            return "settled" if self.seeds_of(found.best) >= len(self.seeds) else "budget"
        for place in sorted(set(asked.values())):
            cells = [cell for cell, number in asked.items() if number == place]
            self.train(cells, self.seeds[place : place + 1], self.last)
        return ""

    def _contenders(self, found: Comparison) -> list[Cell]:
        """The best, some that may be better by more than is tolerated, and FedAvg's best.

        Half of them are those that look best, which makes the choice good; half those that are least known, which makes
        it sure.
        """
        left = max(0.0, math.log1p(self.tolerance) - sum(self.lost.values()))
        first = self.seeds_of(found.best) == 1
        rivals = [cell for cell in found.upper if first or found.upper[cell] > left]
        likely = sorted(rivals, key=found.careful.__getitem__)[: ALONG // 2]
        unknown = sorted(rivals, key=lambda cell: -found.upper[cell])
        wanted = [*likely, *(cell for cell in unknown if cell not in likely)][: ALONG - 1]
        reference = self.best_of(self.reference)
        if reference is not None and self.seeds_of(reference) < REFERENCES:
            wanted.insert(1, reference)
        return list(dict.fromkeys([found.best, *wanted]))

    def _asked(self, wanted: Sequence[Cell], best: Cell) -> dict[Cell, int]:
        """Which seed each of them is trained under next: first those that lag behind, then all; as far as it goes."""
        most = max(self.seeds_of(cell) for cell in wanted)
        lagging = [cell for cell in wanted if self.seeds_of(cell) < most]
        room = self.budget - self.track.spent
        asked: dict[Cell, int] = {}
        for cell in lagging or wanted:
            if self.whole(cell) <= room and self.seeds_of(cell) < len(self.seeds):
                asked[cell] = self.seeds_of(cell)
                room -= self.whole(cell)
        alone = not lagging and (best not in asked or len(asked) < 2)  # a seed of one cell alone compares nothing
        return {} if alone else asked


def _spread_out(values: Sequence[float]) -> list[float]:
    """The same values so that any number of the first ones is spread over all: the middle, then the quarters, …"""
    found: list[float] = []
    spans = [(0, len(values))]
    while spans:
        low, high = spans.pop(0)
        if low < high:
            middle = (low + high) // 2
            found.append(values[middle])
            spans += [(low, middle), (middle + 1, high)]
    return found
