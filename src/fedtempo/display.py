"""How objects print and plot themselves: the one file above `fedtempo.report` that loads it, and only when called.

An object knows its numbers; tables, sentences and figures are made of them in `fedtempo.report`, with libraries that
nobody waits for who does not look.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def history_text(history: Any) -> str:
    """The few lines that Python shows of a history."""
    from fedtempo.report.history_text import described

    return described(history)


def history_html(history: Any) -> str:
    """What a notebook shows of it: the lines, the table, the data set."""
    from fedtempo.report.history_text import html_page

    return html_page(history)


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


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
