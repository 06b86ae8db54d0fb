"""A statement of the paper, the cases in which it is measured, and how verdicts of cases make one of the statement.

    every        holds if every case holds, fails if one fails
    some         holds if one case holds, fails if every case fails
    generally    holds if most cases hold and none fails, fails if half of them fail

A case is two sets of runs against each other, seed by seed. Cases that were not run leave a statement undecided, unless
the others settle it, and say what is missing. Cases shown beside it do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import xarray as xr

from fedtempo.paper.claims_runs import Book, NotRun, Part, Runs
from fedtempo.paper.statistics import FEWEST, Estimate, paired

Verdict = Literal["holds", "fails", "undecided", "not run", "answered"]


@dataclass(frozen=True)
class Case:
    """One measurement: a number with its 95 % interval, if there is one, over so many seeds."""

    name: str
    number: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "not run"
    note: str = ""
    seeds: int = 0
    group: str = ""
    beside: bool = False

    @classmethod
    def of(cls, name: str, found: Estimate, verdict: Verdict, note: str = "") -> Case:
        """A case from an estimate; with too few seeds it is undecided, whatever the number says."""
        number = None if math.isnan(found.number) else found.number
        if found.seeds < FEWEST:
            few = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
            verdict, note = "undecided", "; ".join(filter(None, (note, f"{few}, too few for an interval")))
        return cls(name, number, found.low, found.high, verdict, note, found.seeds)

    @classmethod
    def positive(cls, name: str, found: Estimate, note: str = "") -> Case:
        """Holds if the number is significantly above zero, fails if it is significantly below."""
        return cls.of(name, found, "holds" if found.above else "fails" if found.below else "undecided", note)

    @classmethod
    def within(cls, name: str, found: Estimate, low: float, high: float, note: str = "") -> Case:
        """Holds if the whole interval is between the bounds, fails if nothing of it is."""
        verdict: Verdict = "holds" if found.inside(low, high) else "fails" if found.outside(low, high) else "undecided"
        return cls.of(name, found, verdict, note)

    def moved(self, *, group: str = "", beside: bool = False) -> Case:
        """The same case in a group, or beside the others."""
        return replace(self, group=group, beside=beside)


@dataclass(frozen=True)
class Claim:
    """A statement, where the paper makes it, what was measured, and what came out."""

    id: int
    place: str
    statement: str
    measured: str
    cases: tuple[Case, ...]
    verdict: Verdict
    horizon: str
    remark: str = ""


@dataclass(frozen=True)
class Question:
    """A statement that results can be asked about."""

    id: int
    place: str
    statement: str
    measured: str
    ask: Callable[[Book], Iterable[Case]]
    rule: Callable[[Sequence[Case]], Verdict]
    remark: Callable[[Sequence[Case]], str]

    def judged(self, book: Book) -> Claim:
        """What the results say to it."""
        cases = tuple(self.ask(book))
        counted = [case for case in cases if not case.beside]
        remark = self.remark(counted)
        verdict = self.rule(counted)
        horizon = book.horizon()
        return Claim(self.id, self.place, self.statement, self.measured, cases, verdict, horizon, remark)


def every(cases: Sequence[Case]) -> Verdict:
    """All of them."""
    found = {case.verdict for case in cases}
    if found <= {"not run"}:
        return "not run"
    return "fails" if "fails" in found else "holds" if found == {"holds"} else "undecided"


def some(cases: Sequence[Case]) -> Verdict:
    """One at least."""
    found = {case.verdict for case in cases}
    if found <= {"not run"}:
        return "not run"
    return "holds" if "holds" in found else "fails" if found == {"fails"} else "undecided"


def generally(cases: Sequence[Case]) -> Verdict:
    """Most of them, and none significantly the other way; half the other way is a failure."""
    found = [case.verdict for case in cases]
    if set(found) <= {"not run"}:
        return "not run"
    if 2 * found.count("fails") >= len(found):
        return "fails"
    settled = not {"fails", "not run"} & set(found)
    return "holds" if 2 * found.count("holds") > len(found) and settled else "undecided"


def no_remark(cases: Sequence[Case]) -> str:
    """Nothing to add."""
    return ""


def by_group(cases: Sequence[Case]) -> str:
    """The verdict for each group by itself."""
    groups = dict.fromkeys(case.group for case in cases)
    verdicts = {name: every([case for case in cases if case.group == name]) for name in groups}
    return "; ".join(f"at {name}: {verdict}" for name, verdict in verdicts.items())


def claim(
    number: int,
    place: str,
    statement: str,
    measured: str,
    *,
    rule: Callable[[Sequence[Case]], Verdict] = every,
    remark: Callable[[Sequence[Case]], str] = no_remark,
) -> Callable[[Callable[[Book], Iterable[Case]]], Question]:
    """Make a question of a function from results to cases."""
    return lambda ask: Question(number, place, statement, measured, ask, rule, remark)


def over(
    book: Book, figure: str, names: Sequence[str], measure: Callable[[Part], Case | Iterable[Case]]
) -> Iterator[Case]:
    """The cases of each part of a figure; one that says why for a part that is not there."""
    for name in names:
        yield from tried(name, partial(_in_part, book, figure, name, measure))


def _in_part(
    book: Book, figure: str, name: str, measure: Callable[[Part], Case | Iterable[Case]]
) -> Case | Iterable[Case]:
    return measure(book.part(figure, name))


def tried(name: str, measure: Callable[[], Case | Iterable[Case]]) -> Iterator[Case]:
    """The cases of a measurement, or one that says what was not run."""
    try:
        found = measure()
        yield from [found] if isinstance(found, Case) else list(found)
    except NotRun as missing:
        yield Case(name, note=str(missing))


def larger(name: str, a: Runs, b: Runs, measure: str = "loss") -> Case:
    """Whether a's final value is above b's."""
    x, y = a.final(measure), b.final(measure)
    known(name, x, y)
    rates = a.at if a.rate == b.rate else f"{a.at or '–'} against {b.at or '–'}"
    case = Case.positive(name, paired(x.values, y.values), "; ".join(filter(None, (against(x, y), rates))))
    higher = {"holds": a, "fails": b}.get(case.verdict)
    if higher is not None and higher.open and a.rate != b.rate:  # a rate that was not run might be better for it
        return replace(case, verdict="undecided", note=f"{case.note}; rates beyond were not run to the end")
    return case


def against(x: xr.DataArray, y: xr.DataArray) -> str:
    """The two means over the seeds that have both, and how many of them diverged."""
    both = (x.notnull() & y.notnull()).values
    means = [float(v.values[both].mean()) for v in (x, y)]
    said = " against ".join("∞" if np.isinf(m) else f"{m:.4g}" for m in means)
    lost = [int(np.isinf(v.values[both]).sum()) for v in (x, y)]
    return said + (f", {lost[0]} and {lost[1]} of {both.sum()} seeds diverged" if any(lost) else "")


def known(name: str, *values: xr.DataArray) -> None:
    """Make sure that some seed has all values."""
    if not np.logical_and.reduce([v.notnull().values for v in values]).any():
        raise NotRun(f"{name}: no seed was carried to the end under both")
