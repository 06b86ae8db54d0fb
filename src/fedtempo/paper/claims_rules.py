"""The rules of a verdict: which word a statement of the paper gets from results, and why it gets no stronger one.

    holds, fails                    every rule below is kept, and the numbers are clear
    holds with a correction         it holds once the statement is mended, and the correction is said
    seen at T = …, not seen at …    otherwise, with the reasons

A statement is compared with numbers whose mean is above zero where it is true, one for each partition and seed:

    horizon         the runs go as far as the claim's own horizon
    unit            of a claim about a data set the partition is the unit: seeds are averaged within, ten are needed
    rate            no best rate is at an edge of its grid; a rate whose neighbour diverges is not at an edge there
    seeds           a rate is chosen on other runs than those that are judged
    margin          "same", "no worse" and "about" state how much counts as a difference
    worst           a diverged seed is infinitely bad, not left out
    all claims      p-values pass Holm's procedure over all claims of a page (5 %, both directions)

Everything here takes plain values and knows nothing of figures, schemes or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedtempo.paper.statistics import FEWEST, LEVEL, Estimate, chance_above, mean_of

PARTITIONS = 10
"""So many partitions a claim about a data set needs."""

Numbers = Mapping[int, Mapping[int, float]]
"""Partition, seed, number."""

Kind = Literal["above", "same", "no worse", "about"]
Word = Literal["holds", "holds with a correction", "fails", "seen", "not seen", "answered", "open", "not run"]


@dataclass(frozen=True)
class Choice:
    """How a learning rate was chosen."""

    rate: float
    grid: tuple[float, ...]
    """Every rate that is known to the study, run so far or not."""
    finished: tuple[float, ...]
    """Those that were run as far as the runs that are judged."""
    diverged: tuple[float, ...]
    """Those at which a seed diverged, in a first stage or later."""
    runs: frozenset[tuple[int, int]]
    """Partition and seed of the runs by which it was chosen."""


@dataclass(frozen=True)
class Comparison:
    """One measurement of a statement, as plain values."""

    numbers: tuple[Numbers, ...]
    """The statement is true where the mean of each is above zero (`same`: where each is within the margin)."""
    time: float
    horizon: float | None
    """How far the runs go, and how far the claim speaks of; None where the paper does not say."""
    about_data: bool = True
    choices: tuple[Choice, ...] = ()
    kind: Kind = "above"
    margin: float | tuple[float, float] | None = None
    flaws: tuple[str, ...] = ()
    """What else keeps it from deciding anything, in short words."""


@dataclass(frozen=True)
class Finding:
    """What a comparison says: the p-values of the statement and of its opposite, both 1 where a rule is broken."""

    as_stated: bool
    contrary: bool
    holds: float
    fails: float
    reasons: tuple[str, ...]
    time: float | None

    @property
    def word(self) -> str:
        """As the page says it, of one case."""
        return "as stated" if self.as_stated else "the other way" if self.contrary else "unclear"


MISSING = Finding(as_stated=False, contrary=False, holds=1.0, fails=1.0, reasons=("not all of it was run",), time=None)
"""A case of which there are no results."""


@dataclass(frozen=True)
class Verdict:
    """A word, the times of the runs behind it, and the reasons why it is no stronger one."""

    word: Word
    times: tuple[float, ...] = ()
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.word not in ("seen", "not seen", "open") or not self.times:
            return self.word
        return f"{self.word} at T = {listed([grouped(t) for t in self.times])}"


# -- the rules: each gives the reason why a comparison decides nothing, or ""


def short_horizon(c: Comparison) -> str:
    """The runs must go as far as the claim speaks of."""
    if c.horizon is None:
        return "the paper's horizon is not known"
    return "" if c.time >= c.horizon * (1 - 1e-9) else f"horizon {grouped(c.time)} of {grouped(c.horizon)}"


def few_partitions(c: Comparison) -> str:
    """A claim about a data set is not one about a single way of dealing it."""
    there = min((len(_partitions(numbers)) for numbers in c.numbers), default=0)
    if not c.about_data or there >= PARTITIONS:
        return ""
    return f"{there} partition{'s' * (there != 1)} of {PARTITIONS}"


def few_values(c: Comparison) -> str:
    """An interval needs three values."""
    there = min((len(sample(numbers)) for numbers in c.numbers), default=0)
    if there >= FEWEST:
        return ""
    return "one seed, no interval" if there == 1 else f"{there} seeds, no interval"


def rate_at_edge(c: Comparison) -> str:
    """A best rate has a worse one on both sides that was run as far, or that diverged."""
    return "best rate at the edge" if any(at_edge(choice) for choice in c.choices) else ""


def chosen_on_judged(c: Comparison) -> str:
    """A rate that was best on the runs that are judged looks better than it is."""
    judged = {(p, seed) for numbers in c.numbers for p, seeds in numbers.items() for seed in seeds}
    return "rate chosen on the seeds judged" if any(judged & choice.runs for choice in c.choices) else ""


def no_margin(c: Comparison) -> str:
    """Without a margin nothing is the same, and everything is about as much."""
    return "no margin stated" if c.kind != "above" and c.margin is None else ""


RULES = (short_horizon, few_partitions, few_values, rate_at_edge, chosen_on_judged, no_margin)


def reasons(c: Comparison) -> tuple[str, ...]:
    """Why a comparison decides nothing; empty where it may."""
    return (*(said for rule in RULES if (said := rule(c))), *c.flaws)


def at_edge(choice: Choice) -> str:
    """Which end a rate is at: "smallest" or "largest" where no rate beyond is known to be worse, else "".

    The next rate of the grid counts if it was run as far, or diverged, not if only a short first stage tried it.
    """
    judged = {*choice.finished, *choice.diverged}
    above = [r for r in {*choice.grid, *judged} if r > choice.rate]
    below = [r for r in {*choice.grid, *judged} if r < choice.rate]
    if not above or min(above) not in judged:
        return "largest"
    return "smallest" if not below or max(below) not in judged else ""


# -- numbers


def sample(numbers: Numbers) -> list[float]:
    """A number for each partition, its seeds averaged; with fewer than three partitions one for each seed.

    A seed that diverged makes its partition infinite; of two that diverged in opposite ways neither counts.
    """
    there = _partitions(numbers)
    if len(there) >= FEWEST:
        return [_mean(values) for values in there]
    return [value for values in there for value in values]


def _partitions(numbers: Numbers) -> list[list[float]]:
    """The known numbers of each partition that has any."""
    known = ([v for v in seeds.values() if not math.isnan(v)] for seeds in numbers.values())
    return [values for values in known if values]


def _mean(values: Sequence[float]) -> float:
    endless = [math.copysign(1.0, v) for v in values if math.isinf(v)]
    if endless:
        return math.copysign(math.inf, sum(endless)) if sum(endless) else 0.0
    return math.fsum(values) / len(values)


def estimate(numbers: Numbers) -> Estimate:
    """The mean over units with its 95 % interval."""
    return mean_of(sample(numbers))


def sides(c: Comparison) -> list[list[float]]:
    """Samples whose means are all above zero where the statement is true: the numbers, moved by the margin."""
    found = [sample(numbers) for numbers in c.numbers]
    shift = c.margin if isinstance(c.margin, int | float) else 0.0
    if c.kind == "no worse":
        return [[v + shift for v in values] for values in found]
    if c.kind == "same":
        return [[shift - sign * v for v in values] for values in found for sign in (1, -1)]
    return found


# -- from comparisons to findings, and from findings to verdicts


def examine(c: Comparison) -> Finding:
    """What a comparison says; of several numbers all have to be above zero, and one below refutes them.

    As stated means: the whole 95 % interval, or the sign alone where there are too few values for one.
    """
    why, found = reasons(c), sides(c)
    estimates = [mean_of(values) for values in found]
    as_stated = bool(found) and all(e.above if e.seeds >= FEWEST else e.number > 0 for e in estimates)
    contrary = any(e.below if e.seeds >= FEWEST else e.number < 0 for e in estimates)
    if why or not found:
        return Finding(as_stated, contrary, 1.0, 1.0, why, c.time)
    holds = together([chance_above(values) for values in found], len(found))
    fails = together([chance_above([-v for v in values]) for values in found], 1)
    return Finding(as_stated, contrary, holds, fails, (), c.time)


def together(chances: Sequence[float], needed: int) -> float:
    """The p-value of "at least `needed` of these are true", from one for each; whatever their dependence."""
    return min(1.0, (len(chances) - needed + 1) * sorted(chances)[needed - 1])


def holm(chances: Sequence[float], level: float = 1 - LEVEL) -> list[bool]:
    """Which p-values are small enough when all are looked at: Holm's procedure."""
    order = sorted(range(len(chances)), key=lambda k: chances[k])
    passed = [False] * len(chances)
    for rank, k in enumerate(order):
        if chances[k] > level / (len(chances) - rank):
            break
        passed[k] = True
    return passed


@dataclass(frozen=True)
class Evidence:
    """The findings of a claim, in groups: settings of which the paper does not say which one it means."""

    groups: Mapping[str, Sequence[Finding]]
    most: bool = False
    some: bool = False
    """How many findings of a group have to be as stated: all, more than half, or one."""

    def needed(self, number: int) -> int:
        """Of so many findings."""
        return 1 if self.some else number // 2 + 1 if self.most else number

    @property
    def chances(self) -> dict[str, tuple[float, float]]:
        """For each group the p-values of the statement and of its opposite."""
        found = {}
        for name, findings in self.groups.items():
            n = len(findings)
            needed = self.needed(n)
            found[name] = (
                together([f.holds for f in findings], needed),
                together([f.fails for f in findings], n - needed + 1),
            )
        return found

    @property
    def chance(self) -> float:
        """The p-value of the claim, in either direction: that of its least clear group."""
        return max((min(1.0, 2 * min(pair)) for pair in self.chances.values()), default=1.0)

    @property
    def seen(self) -> list[str]:
        """The groups in which as many findings are as stated as have to be."""
        return [
            name
            for name, findings in self.groups.items()
            if sum(f.as_stated for f in findings) >= self.needed(len(findings))
        ]


def verdicts(claims: Sequence[Evidence]) -> list[Verdict]:
    """The verdict on each claim of a page, in order; Holm's procedure is over all of them."""
    passed = holm([claim.chance for claim in claims])
    return [_verdict(claim, clear) for claim, clear in zip(claims, passed, strict=True)]


def _verdict(claim: Evidence, clear: bool) -> Verdict:
    findings = [f for group in claim.groups.values() for f in group]
    ran = [f for f in findings if f is not MISSING]
    if not ran:
        return Verdict("not run")
    times = tuple(sorted({f.time for f in ran if f.time is not None}, reverse=True))
    if clear:
        true = [name for name, (holds, fails) in claim.chances.items() if holds < fails]
        if not true:
            return Verdict("fails", times)
        if len(true) < len(claim.groups):
            return Verdict("holds with a correction", times, (f"{listed(true)} only",))
        return Verdict("holds", times)
    seen = claim.seen
    where = (f"{listed(seen)} only",) if seen and len(seen) < len(claim.groups) else ()
    why = unique(reason for f in findings for reason in f.reasons)
    return Verdict("seen" if seen else "not seen", times, (*where, *(why or ("not clear enough among all claims",))))


def exact(distance_ok: bool, correction: str = "") -> Verdict:
    """The verdict on an identity that is checked to rounding: it has no horizon, no seeds and no data."""
    if not distance_ok:
        return Verdict("fails")
    return Verdict("holds with a correction", (), (correction,)) if correction else Verdict("holds")


def answer(findings: Sequence[Finding], certain: bool) -> Verdict:
    """The verdict on a question that asks for a place, not for yes or no."""
    ran = [f for f in findings if f is not MISSING]
    if not ran:
        return Verdict("not run")
    times = tuple(sorted({f.time for f in ran if f.time is not None}, reverse=True))
    why = unique(reason for f in findings for reason in f.reasons)
    if not why and certain:
        return Verdict("answered", times)
    return Verdict("open", times, why or ("not clear enough",))


# -- words


def unique(texts: Iterable[str]) -> tuple[str, ...]:
    """Each once, in the order in which they came."""
    return tuple(dict.fromkeys(texts))


def grouped(number: float) -> str:
    """A time as the page writes it: 200 000, 0.4."""
    return f"{number:,.0f}".replace(",", " ") if number >= 1000 else f"{number:.4g}"


def listed(texts: Sequence[str]) -> str:
    """As "a, b and c"."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""
