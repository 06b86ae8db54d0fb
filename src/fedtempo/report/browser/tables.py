"""Tables and sentences of a page for a browser: what the command line prints, with tables that sort.

A column of numbers sorts by value: "0.42±0.06" by 0.42, "−38 to +85%" by −0.38, "× 12" by the same share, "1/16" by
0.0625; words follow the numbers, and what there is not comes last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtempo.report.browser.document import escape
from fedtempo.report.page import BLANK, Column, Grid, Line, Page, table, words
from fedtempo.report.text import NONE

_SIZES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_NUMBER = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
_FIRST = re.compile(rf"^[≥≤<>~ ]*(×)?\s*{_NUMBER}(?:\s*/\s*(\d+))?(.*)$", re.IGNORECASE | re.DOTALL)
_MOST_ITEMS = 12
_LONG = 40
"""Characters from which on words are broken into lines."""


def parts_html(page: Page) -> str:
    """The lines and tables of a page, from the top."""
    return "\n".join(filter(None, map(_part, page.parts)))


def _part(part: Line | Grid) -> str:
    if isinstance(part, Grid):
        return grid_html(part)
    return "" if part == BLANK else paragraph(part.text, part.bold, alarm=part.alarm)


def paragraph(text: str, bold: str = "", *, alarm: bool = False) -> str:
    """A line of words; `bold` is what it begins with."""
    first = f"<b>{escape(bold)}</b>" if bold else ""
    kind = ' class="alarm"' if alarm else ""
    return f"<p{kind}>{first}{escape(text)}</p>"


def section(title: str, *parts: str, name: str = "") -> str:
    """Parts under a heading, which a link may name; nothing where there are none."""
    inside = "\n".join(filter(None, parts))
    mark = f' id="{escape(name)}"' if name else ""
    return f"<section{mark}>\n<h2>{escape(title)}</h2>\n{inside}\n</section>" if inside else ""


def folded(title: str, *parts: str) -> str:
    """Parts that are seen when one asks for them."""
    inside = "\n".join(filter(None, parts))
    return f"<details>\n<summary>{escape(title)}</summary>\n{inside}\n</details>" if inside else ""


def grid_html(grid: Grid, *, sortable: bool = True) -> str:
    """A table that sorts by a click on a column's name."""
    head = "".join(f"<th{_class(column)}>{escape(column.name)}</th>" for column in grid.columns)
    long = [max((len(row[k]) for row in grid.rows), default=0) > _LONG for k in range(len(grid.columns))]
    kinds = [_class(column, wraps=many) for column, many in zip(grid.columns, long, strict=True)]
    body = "\n".join(f"<tr>{''.join(map(_cell, grid.columns, kinds, row))}</tr>" for row in grid.rows)
    kind = ' class="sortable"' if sortable else ""
    caption = f"<caption>{escape(grid.title)}</caption>" if grid.title else ""
    return (
        f'<div class="scroll"><table{kind}>{caption}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _class(column: Column, *, wraps: bool = False) -> str:
    if column.right:
        return ""
    return ' class="words wrap"' if wraps and not column.keep else ' class="words"'


def _cell(column: Column, kind: str, text: str) -> str:
    value = sort_value(text) if column.right else None
    held = "" if value is None else f' data-value="{value:.12g}"'
    return f"<td{kind}{held}>{escape(text)}</td>"


def sort_value(text: str) -> float | None:
    """The number by which a cell sorts; None: what stands in it does."""
    bare = text.strip().replace("−", "-")
    if bare == "all":  # of the time
        return 1.0
    if bare in ("∞", "-∞"):
        return 1e308 if bare == "∞" else -1e308
    found = _FIRST.match(bare)
    if found is None:
        return None
    times, number, of, rest = found.groups()
    value = float(number)
    if times:
        return value - 1.0
    if of and float(of):
        value /= float(of)
    if "%" in rest:
        value /= 100.0
    return value * _SIZES.get(rest.strip(), 1.0)


# -- settings


def settings_html(settings: Mapping[str, Any], title: str = "") -> str:
    """What was set, a row each; tables inside are joined by points, long lists are cut."""
    rows = [(name, said) for name, value in _flat(settings) if (said := _said(value))]
    heads = (Column("setting", right=False, keep=True), words("value"))
    return grid_html(table(title, heads, rows), sortable=False) if rows else ""


def _flat(given: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _said(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join(_one(name, inner) for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = list(map(_said, value[:_MOST_ITEMS]))
        more = [f"… {len(value)} in all"] if len(value) > _MOST_ITEMS else []
        several = any(isinstance(one, Mapping) for one in value)
        return ("; " if several else ", ").join([*shown, *more])
    return str(value)


def _one(name: str, value: Any) -> str:
    return _said(value) if name == "name" else f"{name}={_said(value)}"
