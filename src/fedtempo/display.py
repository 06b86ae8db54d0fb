"""How objects print and plot themselves: the one file above `fedtempo.report` that loads it, and only when called.

An object knows its numbers; tables, sentences and figures are made of them in `fedtempo.report`, with libraries that
nobody waits for who does not look.

    print(x)       the tables and sentences that the command line prints of it; in a notebook the same as HTML
    repr(x)        one short line
    x.table()      its numbers as a pandas DataFrame
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedtempo.report.browser.document import WebPage as WebPage
    from fedtempo.report.page import Page

LONGEST = 200
"""Characters of a repr."""


def one_line(name: str, words: str) -> str:
    """As "<Plan: 7 schemes for 20 clients>", cut where it would be long."""
    room = LONGEST - len(name) - len("<: >")
    return f"<{name}: {words if len(words) <= room else words[: room - 1] + '…'}>"


class Brief:
    """A dataclass whose repr is one line: its numbers and names; of arrays their shapes alone."""

    def __repr__(self) -> str:
        held = ((field.name, getattr(self, field.name)) for field in fields(self) if field.repr)  # type: ignore[arg-type]
        return one_line(type(self).__name__, ", ".join(filter(None, (_brief(name, value) for name, value in held))))


def _brief(name: str, value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{name} [{'×'.join(map(str, value.shape))}]"
    if isinstance(value, float):
        return f"{name} {value:.4g}"
    if hasattr(value, "label"):
        value = value.label
    return f"{name} {value}" if isinstance(value, int | str | Fraction) else ""


PAGES = {
    "Bound": "theory_tables.bound_page",
    "Cycle": "client_tables.cycle_page",
    "History": "history_text.history_page",
    "Model": "model_table.model_page",
    "Participation": "client_tables.participation_page",
    "Plan": "tables.plan_page",
    "Quantities": "theory_tables.quantities_page",
    "Recommendation": "recommendation_tables.recommendation_page",
    "SchemePlan": "tables.scheme_page",
    "Summary": "history_text.summary_page",
    "Theory": "theory_tables.theory_page",
    "Timeline": "tables.timeline_page",
    "Weights": "client_tables.weights_page",
}
"""What makes the tables and sentences of an object, by its class: a module of `fedtempo.report` and its function."""


class Shown:
    """What prints as the command line prints it, and as HTML in a notebook; `PAGES` names who makes that."""

    def __str__(self) -> str:
        return page_of(self).text()

    def _repr_html_(self) -> str:
        return page_of(self).html()


def page_of(shown: Shown) -> Page:
    """The tables and sentences of an object."""
    module, _, function = PAGES[_kind(shown, PAGES)].partition(".")
    page: Page = getattr(import_module(f"fedtempo.report.{module}"), function)(shown)
    return page


def frame_of(shown: Shown, **options: Any) -> pd.DataFrame:
    """The numbers of an object as a DataFrame of pandas."""
    from fedtempo.report.frames import FRAMES

    return FRAMES[_kind(shown, FRAMES)](shown, **options)


def _kind(shown: Shown, known: Mapping[str, object]) -> str:
    """The name of its class, or of the one that this is derived from."""
    return next(kind.__name__ for kind in type(shown).__mro__ if kind.__name__ in known)


def history_line(history: Any) -> str:
    """A history in one line; an unfinished one says so first."""
    from fedtempo.report.history_text import headline

    left = int(history.unfinished.sum())
    state = "" if history.finished and not left else f"not finished, {left} of {history.diverged.size} runs open; "
    return one_line("History", f"{state}{headline(history)}")


def history_figure(
    history: Any, measure: str, *, over: str, axes: Axes | None, path: str | Path | None, style: str
) -> Figure:
    """A measure over virtual time, or over what else is counted; with `path` also a file."""
    from fedtempo.report.history_figure import measure_figure

    return measure_figure(history, measure, over=over, axes=axes, path=_path(path), style=style)


def timeline_figure(line: Any, *, path: str | Path | None, style: str) -> Figure:
    """Who works when, and for which round; with `path` also a file."""
    from fedtempo.report.timeline_figure import plot_timeline

    return plot_timeline(line, path=_path(path), style=style)


def plan_figure(plan: Any, *, path: str | Path | None, style: str) -> Figure:
    """Schemes side by side: pace, idle time, weights and bias; with `path` also a file."""
    from fedtempo.report.plan_figure import plan_figure as draw

    return draw(plan, path=_path(path), style=style)


def plan_html(plan: Any, *, path: str | Path | None, recommendation: Any = None) -> WebPage:
    """The page of a plan; with `path` also a file."""
    from fedtempo.report.browser.plan_page import plan_page

    return _kept(lambda: plan_page(plan, recommendation), path)


def _kept(make: Callable[[], WebPage], path: str | Path | None) -> WebPage:
    """A page, and a file of it where a path is given, whose name is looked at before the work."""
    if path is not None:
        from fedtempo.report.browser.document import check_page

        check_page(Path(path))
    made = make()
    if path is not None:
        made.save(path)
    return made


def recommendation_figure(made: Any, *, path: str | Path | None, style: str) -> Figure:
    """Predicted losses and rates; with `path` also a file."""
    from fedtempo.report.recommendation_figure import recommendation_figure as draw

    return draw(made, path=_path(path), style=style)


def quantities_figure(found: Any, *, path: str | Path | None, style: str) -> Figure:
    """How much each client counts, and its weight; with `path` also a file."""
    from fedtempo.report.theory_figure import quantities_figure as draw

    return draw(found, path=_path(path), style=style)


def bound_figure(found: Any, *, path: str | Path | None, style: str) -> Figure:
    """The terms of a bound as bars; with `path` also a file."""
    from fedtempo.report.theory_figure import bound_figure as draw

    return draw(found, path=_path(path), style=style)


def history_html(history: Any, *, target: float | None, path: str | Path | None) -> WebPage:
    """The study as a page for a browser; with `path` also a file."""
    from fedtempo.report.browser.history import history_document

    return _kept(lambda: history_document(history, target=target), path)


def recommendation_html(made: Any, *, path: str | Path | None) -> WebPage:
    """The choice and what it was compared with as a page for a browser; with `path` also a file."""
    from fedtempo.report.browser.recommendation import recommendation_document

    return _kept(lambda: recommendation_document(made), path)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
