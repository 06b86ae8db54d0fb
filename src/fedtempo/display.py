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


def history_figure(history: Any, measure: str, *, over: str, axes: Axes | None, path: str | Path | None) -> Figure:
    """A measure over virtual time, or over what else is counted; with `path` also a file."""
    from fedtempo.report.history_figure import measure_figure

    return measure_figure(history, measure, over=over, axes=axes, path=None if path is None else Path(path))
