"""A statement of the paper, and the cases in which it is measured.

    every case      unless the claim says otherwise
    most, some      more than half of them, or one
    groups          settings of which the paper does not say which one it means: each is judged by itself

A case is two sets of runs against each other, run by run. Cases that were not run leave a statement undecided, unless
the others settle it. Cases shown beside it do not count. Which verdict follows is said in `claims_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import xarray as xr

from fedtempo.paper.claims_cost import Work
from fedtempo.paper.claims_rules import (
    MISSING,
    Choice,
    Comparison,
    Evidence,
    Finding,
    Kind,
    Numbers,
    Verdict,
    estimate,
    examine,
)
from fedtempo.paper.claims_runs import Book, NotRun, Part, Runs
from fedtempo.paper.statistics import Estimate, differences


@dataclass(frozen=True)
class Case:
    """One measurement: a number with its 95 % interval, if there is one, and what it says."""

    name: str
    number: float | None = None
    low: float | None = None
    high: float | None = None
    finding: Finding = MISSING
    note: str = ""
    group: str = ""
    beside: bool = False
    word: str = "not run"

    @classmethod
    def of(cls, name: str, comparison: Comparison, note: str = "", shown: Estimate | None = None) -> Case:
        """A case from a comparison; `shown` is the number for the page, where it is not the first that is compared."""
        found = shown if shown is not None else estimate(comparison.numbers[0])
        finding = examine(comparison)
        number = None if math.isnan(found.number) else found.number
        return cls(name, number, found.low, found.high, finding, note, word=finding.word)

    def moved(self, *, group: str = "", beside: bool = False) -> Case:
        """The same case in a group, or beside the others."""
        return replace(self, group=group, beside=beside)


@dataclass(frozen=True)
class Deciding:
    """What would decide a claim."""

    horizon: str
    """As far as the paper goes, in units of time."""
    unit: str
    margin: str
    what: str
    """The runs that would decide it."""
    work: tuple[Work, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A statement, where the paper makes it, what was measured, and what came out."""

    id: int
    place: str
    statement: str
    measured: str
    cases: tuple[Case, ...]
    verdict: Verdict
    deciding: Deciding
    remark: str = ""


def no_remark(cases: Sequence[Case]) -> str:
    """Nothing to add."""
    return ""


@dataclass(frozen=True)
class Question:
    """A statement that results can be asked about."""

    id: int
    place: str
    statement: str
    measured: str
    ask: Callable[[Book], Iterable[Case]]
    deciding: Deciding
    most: bool = False
    some: bool = False
    remark: Callable[[Sequence[Case]], str] = no_remark
    judge: Callable[[Sequence[Case]], Verdict] | None = None
    """For what is no statement about noisy numbers: its verdict, without Holm's procedure."""

    def evidence(self, cases: Sequence[Case]) -> Evidence:
        """The findings that count, by group."""
        groups: dict[str, list[Finding]] = {}
        for case in cases:
            if not case.beside:
                groups.setdefault(case.group, []).append(case.finding)
        return Evidence(groups, most=self.most, some=self.some)

    def claim(self, cases: Sequence[Case], verdict: Verdict) -> Claim:
        """The statement with what came out."""
        remark = self.remark([case for case in cases if not case.beside])
        return Claim(self.id, self.place, self.statement, self.measured, tuple(cases), verdict, self.deciding, remark)


def claim(
    number: int,
    place: str,
    statement: str,
    measured: str,
    deciding: Deciding,
    *,
    most: bool = False,
    some: bool = False,
    remark: Callable[[Sequence[Case]], str] = no_remark,
    judge: Callable[[Sequence[Case]], Verdict] | None = None,
) -> Callable[[Callable[[Book], Iterable[Case]]], Question]:
    """Make a question of a function from results to cases."""
    return lambda ask: Question(number, place, statement, measured, ask, deciding, most, some, remark, judge)


def over(
    book: Book,
    figure: str,
    names: Sequence[str],
    measure: Callable[[Part], Case | Iterable[Case]],
    *beside: str,
) -> Iterator[Case]:
    """The cases of each part of a figure, or of a run beside it; one that says why for a part that is not there."""
    for name in names:
        yield from tried(name, partial(_in_part, book, figure, name, measure, *beside))


def _in_part(
    book: Book, figure: str, name: str, measure: Callable[[Part], Case | Iterable[Case]], *beside: str
) -> Case | Iterable[Case]:
    return measure(book.part(figure, name, *beside))


def tried(name: str, measure: Callable[[], Case | Iterable[Case]]) -> Iterator[Case]:
    """The cases of a measurement, or one that says what was not run."""
    try:
        found = measure()
        yield from [found] if isinstance(found, Case) else list(found)
    except NotRun as missing:
        yield Case(name, note=str(missing))


def compared(
    part: Part,
    *values: xr.DataArray,
    choices: Iterable[Choice | None] = (),
    kind: Kind = "above",
    margin: float | tuple[float, float] | None = None,
    flaws: tuple[str, ...] = (),
) -> Comparison:
    """Values over partition and seed as plain ones, with how far their runs went and how their rates were chosen."""
    return Comparison(
        numbers=tuple(map(numbers, values)),
        time=part.time,
        horizon=part.horizon,
        choices=tuple(choice for choice in choices if choice is not None),
        kind=kind,
        margin=margin,
        flaws=flaws,
    )


def numbers(values: xr.DataArray) -> Numbers:
    """What is known, by partition and seed."""
    table = values.transpose("partition", "seed")
    found: dict[int, dict[int, float]] = {}
    for p, row in zip(table["partition"].values.tolist(), table.values.tolist(), strict=True):
        known = {
            int(s): value for s, value in zip(table["seed"].values.tolist(), row, strict=True) if not math.isnan(value)
        }
        if known:
            found[int(p)] = known
    return found


def minus(x: xr.DataArray, y: xr.DataArray) -> xr.DataArray:
    """The difference x − y for each run; 0 where both are infinite."""
    x, y = xr.align(x, y, join="inner")
    known = x.notnull() & y.notnull()
    out = xr.full_like(x, np.nan, dtype=np.float64)
    out.values[known.values] = differences(x.values[known.values], y.transpose(*x.dims).values[known.values])
    return out


def larger(part: Part, a: Runs, b: Runs, measure: str = "loss") -> Case:
    """Whether a's final value is above b's."""
    x, y = a.final(measure), b.final(measure)
    known(part.name, x, y)
    rates = a.at if a.rate == b.rate else f"{a.at or '–'} against {b.at or '–'}"
    choices = dict.fromkeys((a.choice, b.choice))
    note = "; ".join(filter(None, (against(x, y), rates)))
    return Case.of(part.name, compared(part, minus(x, y), choices=choices), note)


def against(x: xr.DataArray, y: xr.DataArray) -> str:
    """The two means over the runs that have both, and how many of them diverged."""
    both = (x.notnull() & y.notnull()).values
    means = [float(v.values[both].mean()) for v in (x, y)]
    said = " against ".join("∞" if np.isinf(m) else f"{m:.4g}" for m in means)
    lost = [int(np.isinf(v.values[both]).sum()) for v in (x, y)]
    return said + (f", {lost[0]} and {lost[1]} of {both.sum()} runs diverged" if any(lost) else "")


def known(name: str, *values: xr.DataArray) -> None:
    """Make sure that some run has all values."""
    if not np.logical_and.reduce([v.notnull().values for v in values]).any():
        raise NotRun(f"{name}: no seed was carried to the end under both")
