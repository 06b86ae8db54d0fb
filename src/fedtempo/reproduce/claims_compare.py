"""Two sets of runs against each other, seed by seed; and what is said where runs are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from fedtempo.reproduce.claims_kinds import Case
from fedtempo.reproduce.claims_runs import Book, NotRun, Part, Runs
from fedtempo.reproduce.statistics import paired


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
