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
from typing import Protocol

import numpy as np

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.planning.calibration import kept_for, lost
from fedtempo.planning.comparison import Cell as Cell
from fedtempo.planning.comparison import Comparison, compared
from fedtempo.planning.objective import gap

SPENT_BY = (1 / 3, 0.5, 0.6, 0.7)
"""Shares of the budget that may be spent by the end of the rungs at T/16, T/4, T/2 and T: the rest is for seeds."""
ASIDE = (0.2, 0.15, 0.2)
"""Shares of the tolerance that may be lost with the cells that are dropped at T/16, T/4 and T/2."""
HEDGE = 0.5
"""As many more go on, by what is forecast of them, as a share of those that go on by their score."""
AROUND = 0.88
"""Share of the budget that may be spent when what lies around the best cell has been tried: the rest is for seeds.

Of what the budget has beyond a quarter of the grid, half."""
FURTHER = 2
"""Of the other schemes at its rate, how many go on from T/2 to the end; all, where half the budget is left."""
REFERENCES = 3
"""Rates of FedAvg that go on from every rung."""
ALONG = 6
"""Finalists that get a second seed at least, where the budget allows."""
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


Widen = Callable[[str, Sequence[float], float, float | None], Sequence[float]]
"""(scheme, rates tried, the best, the smallest that diverged) → further rates, where the best is the last one."""
Refine = Callable[[Cell, Mapping[Cell, float]], Sequence[Cell]]
"""(leader, scores at the rung) → cells to try around it; none when it is fine enough."""


@dataclass(frozen=True)
class Standing:
    """How far a cell came and why not further."""

    rung: int
    why: str = ""


@dataclass
class Race:
    """Carries a race out; what is known when it is stopped remains."""

    track: Track
    cells: list[Cell]
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
    seeds: Sequence[int] = tuple(range(MOST_SEEDS))
    tell: Callable[[str, int], None] = lambda stage, cells: None
    standing: dict[Cell, Standing] = field(default_factory=dict)
    """Of every cell that was trained."""
    lost: dict[int, float] = field(default_factory=dict)
    """By rung, by how much a dropped cell may have been better than the best of those kept."""
    used: list[int] = field(default_factory=list)
    """The seeds that were begun."""
    never: list[Cell] = field(default_factory=list)
    """Cells that were not trained at all, for want of budget."""
    ended: str = ""

    @property
    def budget(self) -> float:
        """Client updates that may be spent in all."""
        return self.allowance()

    # -- from the start to the end

    def run(self) -> None:
        """To the end: sure enough, the budget spent, or stopped."""
        try:
            racing = self._start()
            last = len(self.track.rungs) - 1
            for rung in range(last + 1):
                racing = self._climb(racing, rung)
                if rung < last:
                    racing = self._onward(racing, rung)
            self._more_seeds()
        except Stopped as stop:
            self.ended = stop.why
        except KeyboardInterrupt:  # between two trainings
            self.ended = "stopped"

    def _start(self) -> list[Cell]:
        """The cells that begin: all, if a third of the budget brings them to the first rung."""
        self._check_budget()
        racing = set(self._affordable(self._by_promise(), self.cells, 0))
        self.never = [cell for cell in self.cells if cell not in racing]
        return [cell for cell in self.cells if cell in racing]

    def _check_budget(self) -> None:
        last = len(self.track.rungs) - 1
        cells = self._one_a_scheme()[:1] if len(self.cells) == 1 else self._one_a_scheme()
        least = sum(sorted(self.track.cost(cell, last) for cell in cells)[:2])
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
        whole = {cell: self._rest(cell, before) for cell in every}
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

    def _climb(self, racing: list[Cell], rung: int) -> list[Cell]:
        """Train to a rung; add rates where the best of a scheme is the last on its side."""
        self._train(racing, self.seeds[:1], rung)
        racing = racing + (self._back(None, rung, self.budget) if rung else [])
        while rung == 0 and self.never and not any(math.isfinite(s) for s in self.scores(racing, rung).values()):
            left = set(self.never)
            others = self._affordable([cell for cell in self._by_promise() if cell in left], self.never, rung)
            if not others:
                break
            self.never = [cell for cell in self.never if cell not in set(others)]
            self._train(others, self.seeds[:1], rung)
            racing = racing + others
        room = min(self._room(rung), self.budget - self.track.spent - self._to_the_end(racing, rung))
        while self.widen is not None and rung < len(self.track.rungs) - 1:
            further = [cell for cell in self._beyond(racing, rung) if cell not in self.standing]
            cost = sum(self.track.cost(cell, rung) for cell in further)
            if not further or cost > room:
                break
            room -= cost
            self._train(further, self.seeds[:1], rung)
            self.cells += further
            racing = racing + further
        return racing

    def _back(self, scheme: str | None, rung: int, limit: float) -> list[Cell]:
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
            self._train([best], self.seeds[:1], rung)
            back.append(best)

    def _to_the_end(self, racing: Sequence[Cell], rung: int) -> float:
        """Client updates that bring the two cheapest from a rung to the end."""
        scores = self.scores(racing, rung)
        return sum(sorted(self._rest(cell, rung) for cell in racing if math.isfinite(scores[cell]))[:2])

    def _rest(self, cell: Cell, rung: int | None) -> float:
        """Client updates from a rung, or the start, to the end."""
        return self._whole(cell) - (0.0 if rung is None else self.track.cost(cell, rung))

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
        at = _fraction(self.track.rungs[rung])
        if not math.isfinite(score):
            return f"diverged before {at} of the time"
        behind = ranked.index(cell)
        if not behind:
            return f"the budget did not bring it beyond {at} of the time"
        return f"behind {behind} other{'s' * (behind != 1)} at {at} of the time"

    def _around(self) -> None:
        """Around the best cell, what early rungs left behind: the best rate moves with time, and is shared by schemes.

        The rates beside the best one, the other schemes at its rate, and finer waits, sizes and rates, until none of
        them gives a better cell; at last the rates beside FedAvg's best one.
        """
        quarter = min(self.budget, self.grid / 4) if self.grid else self.budget
        limit = AROUND * quarter + (self.budget - quarter) / 2
        best = None
        while best != (best := self._beside(lambda: self.compare().best, limit)):
            self._across(best, limit)
            self._finer(limit)
        if self.reference is not None:
            self._back(self.reference, len(self.track.rungs) - 1, limit)
            self._beside(lambda: self._best_of(self.reference), limit)

    def _beside(self, of: Callable[[], Cell | None], limit: float) -> Cell | None:
        """Train the rates beside a best one to the end, until it has worse ones on both sides."""
        last = len(self.track.rungs) - 1
        while (best := of()) is not None:
            tried = sorted(cell.rate for cell in self.standing if cell.scheme == best.scheme)
            place = tried.index(best.rate)
            rates = [*tried[max(0, place - 1) : place], *tried[place + 1 : place + 2]]
            if self.widen is not None and place in (0, len(tried) - 1):
                rates += self.widen(best.scheme, tried, best.rate, None)[:1]
            left = self._untrained((Cell(best.scheme, rate) for rate in rates), last)
            if not left or self.track.spent + sum(map(self._whole, left)) > limit:
                break
            self.cells += [cell for cell in left if cell not in self.standing]
            self._train(left, self.seeds[:1], last)
        return best

    def _across(self, best: Cell | None, limit: float) -> None:
        """Train the other schemes at the best cell's rate to T/2, and the best of them to the end."""
        last = len(self.track.rungs) - 1
        before = max(0, last - 1)
        if best is None:
            return
        labels = dict.fromkeys(cell.scheme for cell in self.standing)
        others = self._untrained((Cell(label, best.rate) for label in labels), last)
        room = limit - self.track.spent - FURTHER * self._whole(best)
        chosen: list[Cell] = []
        for cell in self._by_scheme(others):
            cost = self.track.cost(cell, before)
            if cost <= room:
                chosen.append(cell)
                room -= cost
        self.cells += [cell for cell in chosen if cell not in self.standing]
        if chosen:
            self._train(chosen, self.seeds[:1], before)
            scores = self.scores(chosen, before)
            ahead = [cell for cell in sorted(scores, key=scores.__getitem__) if math.isfinite(scores[cell])]
            plenty = self.track.spent + sum(map(self._whole, ahead)) < limit / 2
            going = ahead if plenty else ahead[:FURTHER]
            for cell in ahead[len(going) :]:
                why = f"behind other schemes at this rate, at {_fraction(self.track.rungs[before])} of the time"
                self.standing[cell] = Standing(before, why)
            self._train(going, self.seeds[:1], last)

    def _finer(self, limit: float) -> None:
        """New waits, sizes and rates around the best cell, trained to the end, as long as there is something to try."""
        last = len(self.track.rungs) - 1
        while self.refine is not None:
            means = {cell: float(np.nanmean(scores)) for cell, scores in self._table(last).items()}
            found = self._untrained(self.refine(self.compare().best, means), last)
            if not found or self.track.spent + sum(map(self._whole, found)) > limit:
                return
            self.cells += [cell for cell in found if cell not in self.standing]
            self._train(found, self.seeds[:1], last)

    def _untrained(self, cells: Iterable[Cell], rung: int) -> list[Cell]:
        """Those that did not come so far, and did not diverge."""
        first = self.seeds[0]
        found = [cell for cell in dict.fromkeys(cells) if math.isnan(self.track.score(cell, first, rung))]
        return [cell for cell in found if not math.isinf(self.track.score(cell, first, 0))]

    def _by_scheme(self, cells: Sequence[Cell]) -> list[Cell]:
        """By how well their schemes have done at any rate: who came farthest, then by the score there."""
        reached: dict[str, tuple[int, float]] = {}
        for rung in range(len(self.track.rungs)):
            for cell, score in self.scores(self.standing, rung).items():
                if math.isfinite(score):
                    before = reached.get(cell.scheme, (0, math.inf))
                    reached[cell.scheme] = min(before, (-rung, score))
        return sorted(cells, key=lambda cell: reached.get(cell.scheme, (0, math.inf)))

    # -- seeds

    def _more_seeds(self) -> None:
        """Seeds for the finalists, until the regret is within the tolerance, each new leader's surroundings first."""
        looked: set[Cell] = set()
        while True:
            found = self.compare()
            if len(self.track.rungs) > 1 and found.best not in looked:
                self._around()
                looked |= {found.best, self.compare().best}
                found = self.compare()
            before = sum(self.lost.values())
            several = self._seeds_of(found.best) > 1
            if several and before + found.regret <= math.log1p(self.tolerance):
                self.ended = "sure"
                return
            if not found.upper or (several and not found.regret):
                self.ended = "settled" if found.upper else "alone"
                return
            wanted = self._contenders(found, before)
            asked = self._next_seed(wanted, found.best)
            if not asked:
                self.ended = "settled" if self._seeds_of(found.best) >= len(self.seeds) else "budget"
                return
            for place in sorted(set(asked.values())):
                cells = [cell for cell, number in asked.items() if number == place]
                self._train(cells, self.seeds[place : place + 1], len(self.track.rungs) - 1)

    def _contenders(self, found: Comparison, before: float) -> list[Cell]:
        """The best, some that may be better by more than is tolerated, and FedAvg's best.

        Half of them are those that look best, which makes the choice good; half those that are least known, which makes
        it sure.
        """
        left = max(0.0, math.log1p(self.tolerance) - before)
        first = self._seeds_of(found.best) == 1
        rivals = [cell for cell in found.upper if first or found.upper[cell] > left]
        likely = sorted(rivals, key=found.careful.__getitem__)[: ALONG // 2]
        unknown = sorted(rivals, key=lambda cell: -found.upper[cell])
        wanted = [*likely, *(cell for cell in unknown if cell not in likely)][: ALONG - 1]
        reference = self._best_of(self.reference)
        if reference is not None and self._seeds_of(reference) < REFERENCES:
            wanted.insert(1, reference)
        return list(dict.fromkeys([found.best, *wanted]))

    def _next_seed(self, wanted: Sequence[Cell], best: Cell) -> dict[Cell, int]:
        """Which seed each of them is trained under next: first those that lag behind, then all; as far as it goes."""
        most = max(self._seeds_of(cell) for cell in wanted)
        lagging = [cell for cell in wanted if self._seeds_of(cell) < most]
        room = self.budget - self.track.spent
        asked: dict[Cell, int] = {}
        for cell in lagging or wanted:
            if self._whole(cell) <= room and self._seeds_of(cell) < len(self.seeds):
                asked[cell] = self._seeds_of(cell)
                room -= self._whole(cell)
        alone = not lagging and (best not in asked or len(asked) < 2)  # a seed of one cell alone compares nothing
        return {} if alone else asked

    def _whole(self, cell: Cell) -> float:
        return self.track.cost(cell, len(self.track.rungs) - 1)

    def compare(self) -> Comparison:
        """The finalists as they stand: those that have come farthest."""
        rung = self.farthest
        table = self._table(rung)
        if not table:
            raise InputError("rates: no cell could be compared; give other rates, or more time")
        return compared(table)

    def _table(self, rung: int) -> dict[Cell, Floats]:
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
        return next((r for r in reversed(range(len(self.track.rungs))) if len(self._table(r)) >= least), 0)

    # -- small things

    def scores(self, cells: Iterable[Cell], rung: int) -> dict[Cell, float]:
        """Scores under the first seed; infinite for what diverged."""
        found = {cell: self.track.score(cell, self.seeds[0], rung) for cell in cells}
        return {cell: score if math.isfinite(score) else math.inf for cell, score in found.items()}

    def _best_of(self, scheme: str | None) -> Cell | None:
        """The best rate of a scheme among the finalists."""
        rung = len(self.track.rungs) - 1
        table = {cell: float(np.nanmean(v)) for cell, v in self._table(rung).items() if cell.scheme == scheme}
        return min(table, key=table.__getitem__) if table else None

    def _seeds_of(self, cell: Cell) -> int:
        rung = len(self.track.rungs) - 1
        return sum(not math.isnan(self.track.score(cell, seed, rung)) for seed in self.used)

    def _room(self, rung: int) -> float:
        """Client updates that may still be spent by the end of a rung."""
        share = SPENT_BY[rung - len(self.track.rungs)] if len(self.track.rungs) <= len(SPENT_BY) else 1.0
        return share * self.budget - self.track.spent

    def _train(self, cells: Sequence[Cell], seeds: Sequence[int], rung: int) -> None:
        first = seeds == self.seeds[:1]
        words = (
            f"training to {_fraction(self.track.rungs[rung])} of the time"
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


def _fraction(share: float) -> str:
    return f"1/{round(1 / share)}" if share < 1 else "all"


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
