"""A history as a table, for terminals and notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from fedtempo.report.history_headline import headline
from fedtempo.report.history_summary import Row, Summary, summarise
from fedtempo.report.history_words import sentences
from fedtempo.report.phrases import NONE, cell, plain
from fedtempo.report.tables import console, short, titled_table

if TYPE_CHECKING:
    from fedtempo.history import History

_SPARE = ("rounds", "spread", "updates")  # what a narrow terminal is not shown, in this order


def show_history(history: History, *, target: float | None = None) -> None:
    """The table of a study, and what it says in a few sentences."""
    out = console()
    summary = summarise(history, target=target)
    out.print(headline(history), markup=False, soft_wrap=not out.is_terminal)
    table = titled_table(out, "Every scheme at its best rates" if summary.hyper else "Every scheme")
    names, cells = grid(summary)
    left_out = []
    if out.is_terminal and _width(names, cells) + len(names) + 1 > out.width:
        table.padding, table.show_edge = (0, 0), False
        while _width(names, cells) > out.width and (spare := [n for n in _SPARE if n in names]):
            left_out.append(spare[0])
            k = names.index(spare[0])
            names, cells = names[:k] + names[k + 1 :], [line[:k] + line[k + 1 :] for line in cells]
    for k, name in enumerate(names):
        table.add_column(name, justify="left" if k < 2 else "right")
    for line in cells:
        table.add_row(*map(escape, line))
    out.print(table)
    out.print()
    narrow = f"A wider terminal also shows: {', '.join(left_out)}." if left_out else ""
    for sentence in filter(None, (legend(history, summary), narrow, *sentences(history, summary))):
        out.print(sentence, markup=False, soft_wrap=not out.is_terminal)


def _width(names: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 1 for column in zip(names, *cells, strict=True)) - 1


def grid(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """The table's heads and cells; columns in which nothing is known are left out."""
    level = NONE if math.isnan(summary.target) else short(summary.target)
    columns = {
        "loss": ["diverged" if math.isnan(r.loss) and r.diverged else _pm(r) for r in summary.rows],
        "spread": [cell(r.loss_over_clients, ".3g") for r in summary.rows],
        "test": [cell(r.accuracy, ".1%") for r in summary.rows],
        f"to {level}": [cell(r.time_to_target, ".4g") for r in summary.rows],
        "rounds": [cell(r.rounds, ".0f") for r in summary.rows],
        "updates": [cell(r.updates, ".0f") for r in summary.rows],
    }
    told = {name: cells for name, cells in columns.items() if name == "loss" or set(cells) != {NONE}}
    names = ["scheme", "weights", *summary.hyper, *told]
    rows = [
        [
            r.scheme,
            r.weights,
            *(plain(r.chosen[name]) for name in summary.hyper),
            *(cells[k] for cells in told.values()),
        ]
        for k, r in enumerate(summary.rows)
    ]
    return names, rows


def html_table(summary: Summary) -> str:
    """The same table for a notebook."""
    names, rows = grid(summary)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def legend(history: History, summary: Summary) -> str:
    """What the columns mean."""
    seeds = history.dataset.sizes["seed"]
    parts = [
        "loss: the federated loss, averaged over the last tenth of the time"
        + (f", ± its deviation over {seeds} seeds" if seeds > 1 else "")
    ]
    if any(not math.isnan(r.loss_over_clients) for r in summary.rows):
        parts.append("spread: its deviation over clients")
    if any(not math.isnan(r.accuracy) for r in summary.rows):
        parts.append("test: accuracy on test data")
    if any(not math.isnan(r.time_to_target) for r in summary.rows):
        parts.append(f"to {short(summary.target)}: time to that loss, the target ({summary.target_rule})")
    return f"{'; '.join(parts)}."


def _pm(row: Row) -> str:
    """The final loss to the first digit of its deviation over seeds, and at most four."""
    value, deviation = row.loss, row.loss_over_seeds
    if math.isnan(value):
        return NONE
    if math.isnan(deviation) or deviation <= 1e-4 * abs(value):
        return short(value)
    if not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}±{deviation:.1g}"
    places = max(-math.floor(math.log10(deviation)), 2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{places}f}±{deviation:.{places}f}"
