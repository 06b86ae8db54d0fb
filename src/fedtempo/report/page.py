"""A page: lines and tables, as the command line prints them, as plain text and as HTML, all from one description.

On a terminal long lines are wrapped, and a table leaves out what it can do without where there is no room. Plain text,
which a pipe and Python's `print` get, has no colours, and no line of it is cut or broken.
"""

from __future__ import annotations

import html
import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Literal, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNCUT = 1_000_000
"""Characters of a line of plain text: more than any has."""


@dataclass(frozen=True)
class Line:
    """A line of words; `bold` is what it begins with."""

    text: str
    bold: str = ""
    alarm: bool = False
    """Whether it says that something is plainly wrong."""


@dataclass(frozen=True)
class Column:
    """The head of a column, and how it stands: numbers to the right, words to the left; a name is kept in one line."""

    name: str
    right: bool = True
    keep: bool = False
    least: int | None = None
    """Characters that it has on a terminal at least."""


def words(name: str) -> Column:
    """A column of words, which may be wrapped on a terminal."""
    return Column(name, right=False)


def names(name: str) -> Column:
    """A column of names, each in one line."""
    return Column(name, right=False, keep=True)


@dataclass(frozen=True)
class Grid:
    """A table under its title."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    spare: tuple[str, ...] = ()
    """Columns that a narrow terminal is not shown, in this order."""
    narrow: Grid | None = None
    """What a terminal is shown instead that has fewer characters than `room`."""
    room: int = 0

    @property
    def heads(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.columns]

    def without(self, name: str) -> Grid:
        """The same without a column."""
        k = self.heads.index(name)
        rows = tuple(row[:k] + row[k + 1 :] for row in self.rows)
        return replace(self, columns=self.columns[:k] + self.columns[k + 1 :], rows=rows)

    @property
    def width(self) -> int:
        """Characters of its lines with one blank between columns."""
        return sum(max(map(len, column)) + 1 for column in zip(self.heads, *self.rows, strict=True)) - 1


def table(title: str, columns: Iterable[Column | str], rows: Iterable[Sequence[str]]) -> Grid:
    """A table; a column that is given by its name alone is one of numbers."""
    heads = tuple(Column(column) if isinstance(column, str) else column for column in columns)
    return Grid(title, heads, tuple(map(tuple, rows)))


BLANK = Line("")


@dataclass(frozen=True)
class Page:
    """Lines and tables, from the top."""

    parts: tuple[Line | Grid, ...]

    def text(self) -> str:
        """Plain text, without a line break at its end."""
        out = io.StringIO()
        self._print(_plain_console(out))
        return "\n".join(line.rstrip() for line in out.getvalue().removesuffix("\n").split("\n"))

    def show(self) -> None:
        """On standard output: with Rich on a terminal, elsewhere as plain text."""
        if sys.stdout.isatty():
            self._print(console())
        else:
            sys.stdout.write(f"{self.text()}\n")

    def html(self) -> str:
        """Tables and paragraphs, in the colours of what is around them."""
        return f'<div style="color:inherit">{"".join(map(_html, self.parts))}</div>'

    def _print(self, out: Console) -> None:
        for k, part in enumerate(self.parts):
            if isinstance(part, Line):
                text = Text.assemble((part.bold, "bold"), part.text)
                text.stylize("bold red" if part.alarm else "")
                out.print(text, soft_wrap=not out.is_terminal)
            else:
                _print_grid(out, part, first=k == 0)


def page(*parts: Line | Grid | str | None) -> Page:
    """A page of lines and tables; None is left out."""
    return Page(tuple(Line(part) if isinstance(part, str) else part for part in parts if part is not None))


def _print_grid(out: Console, grid: Grid, *, first: bool) -> None:
    if out.is_terminal and grid.narrow is not None and out.width < grid.room:
        grid = grid.narrow
    left_out: list[str] = []
    tight = out.is_terminal and bool(grid.spare) and grid.width + len(grid.columns) + 1 > out.width
    while tight and grid.width > out.width and len(left_out) < len(grid.spare):
        left_out.append(grid.spare[len(left_out)])
        grid = grid.without(left_out[-1])
    made = titled_table(out, grid.title, first=first)
    if tight:
        made.padding, made.show_edge = (0, 0), False
    for column in grid.columns:
        justify: Literal["left", "right"] = "right" if column.right else "left"
        made.add_column(Text(column.name), justify=justify, no_wrap=column.keep, min_width=column.least)
    for row in grid.rows:
        made.add_row(*map(Text, row))
    out.print(made)
    if left_out:
        out.print(f"A wider terminal also shows: {', '.join(left_out)}.")


def titled_table(out: Console, title: str, *, first: bool = False) -> Table:
    """An empty table under its title, which is a line of its own so that it is never broken."""
    if not first:
        out.print()
    out.print(Text(title, style="bold"), soft_wrap=not out.is_terminal)
    return Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, collapse_padding=out.is_terminal)


# -- consoles


class _Plain(io.TextIOBase):
    """Standard output without the blanks with which tables pad their lines."""

    def write(self, text: str) -> int:
        sys.stdout.write("\n".join(line.rstrip() for line in text.split("\n")))
        return len(text)


def console() -> Console:
    """Standard output: Rich on a terminal, at least as wide as the tables; elsewhere plain and never cut."""
    if sys.stdout.isatty():
        return Console(highlight=False, width=max(80, shutil.get_terminal_size().columns))
    return _plain_console(cast(IO[str], _Plain()))


def _plain_console(file: IO[str]) -> Console:
    """A console that only aligns, whatever the environment says of colours, terminals and notebooks."""
    return Console(
        file=file,
        highlight=False,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        width=_UNCUT,
    )


# -- HTML

_TABLE = "border-collapse:collapse;background:transparent;color:inherit;margin:0.6em 0"
_CAPTION = "caption-side:top;text-align:left;color:inherit;font-weight:bold;padding:0 0 0.3em"
_ROW = "background:transparent"
_CELL = "padding:0.15em 0.7em;border:0"
_HEAD = f"{_CELL};border-bottom:1px solid currentColor"


def _html(part: Line | Grid) -> str:
    if isinstance(part, Grid):
        return html_table(part)
    if part == BLANK:
        return ""
    bold = f"<b>{html.escape(part.bold)}</b>" if part.bold else ""
    alarm = ";color:red;font-weight:bold" if part.alarm else ""
    return f'<p style="margin:0.3em 0{alarm}">{bold}{html.escape(part.text)}</p>'


def html_table(grid: Grid) -> str:
    """A table for a notebook: without colours of its own, so that it can be read on light and on dark ground."""
    styles = [f"text-align:{'right' if c.right else 'left'};white-space:{_breaking(c)}" for c in grid.columns]
    head = "".join(
        f'<th style="{_HEAD};{style}">{html.escape(column.name)}</th>'
        for column, style in zip(grid.columns, styles, strict=True)
    )
    body = "".join(
        f'<tr style="{_ROW}">'
        + "".join(
            f'<td style="{_CELL};{style}">{html.escape(cell)}</td>' for cell, style in zip(row, styles, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    )
    caption = f'<caption style="{_CAPTION}">{html.escape(grid.title)}</caption>'
    return (
        f'<table style="{_TABLE}">{caption}<thead><tr style="{_ROW}">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _breaking(column: Column) -> str:
    """Blanks count in names and numbers, which stay in one line; words may be wrapped."""
    return "pre" if column.right or column.keep else "pre-wrap"
