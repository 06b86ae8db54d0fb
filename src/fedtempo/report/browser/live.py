"""A page that follows something: its sections, which a server sends again when they have changed (server.py).

    head           what it is, its condition, facts, how much is done
    table:units    a table; rows have keys, so that they stay where they are
    chart:loss     a chart, as chart.js draws it

A section is plain JSON. `assets/live.js` puts what is new in the place of what was there, and leaves the rest alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtempo.report.browser.document import WebPage, asset, document, escape
from fedtempo.report.inks import DARK, LIGHT, colours

Section = Mapping[str, Any]
Sections = Mapping[str, Section]
"""In the order in which they stand on the page."""

LABELS = {
    "running": "Running",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "killed": "Killed",
    "silent": "Not heard of",
    "unknown": "Not known",
    "unreadable": "Cannot be read",
}
_POINTS = 300
_DOTS = 25
"""So few points are drawn as such."""
_DIGITS = 5
_DASHES = (None, "6 3", "2 3", "9 3 2 3", "1 2", "12 4")


def live_page(title: str) -> WebPage:
    """The page itself, the same for all that can be followed; what it shows comes from its server."""
    body = (
        f"<style>{asset('live.css')}</style>\n"
        '<div class="bar"><span id="link" class="soft small"></span><span data-theme-button></span></div>\n'
        f'<main id="live"><h1>{escape(title)}</h1><p class="soft">Connecting …</p></main>\n'
        '<div id="said" class="hidden" role="status" aria-live="polite"></div>\n'
        "<noscript><p>This page needs JavaScript; fedtempo watch --text shows the same in a terminal.</p></noscript>\n"
    )
    return document(title, body, scripts=("chart.js", "live.js"), live=True)


def head(
    title: str,
    where: str,
    condition: str,
    words: str,
    facts: Sequence[tuple[str, str]],
    done: float | None = None,
    warning: str = "",
    label: str = "",
) -> Section:
    """The first section; `done` from 0 to 1 is a bar, None is none."""
    share = None if done is None or not math.isfinite(done) else round(min(max(done, 0.0), 1.0), 4)
    return {
        "title": title,
        "where": where,
        "condition": condition,
        "label": label or LABELS.get(condition, condition),
        "words": words,
        "facts": [list(fact) for fact in facts],
        "done": share,
        "warning": warning,
    }


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    key: str
    cells: tuple[Any, ...]
    """Text; a number from 0 to 1 in a column of shares."""
    tone: str = ""
    """"bad" and "soft" stand out and step back."""


def table(caption: str, columns: Sequence[str], rows: Sequence[Row], *, most: int = 200, note: str = "") -> Section:
    """A table; a column whose name begins with "<" holds words, with "%" shares."""
    more = len(rows) - most
    return {
        "caption": caption,
        "columns": list(columns),
        "rows": [{"key": row.key, "cells": list(row.cells), "tone": row.tone} for row in rows[:most]],
        "note": f"and {more} more" if more > 0 else note,
    }


def chart(
    title: str, x: str, y: str, lines: Sequence[Section], *, log: bool = False, dims: Sequence[Section] = ()
) -> Section:
    """A chart of lines."""
    return {
        "title": title,
        "x": {"label": x},
        "y": {"label": y, "log": log},
        "lines": list(lines),
        "dims": list(dims),
        "height": 260,
    }


def line(label: str, xs: Sequence[float], ys: Sequence[float], colour: str, **more: Any) -> Section:
    """A line; of long ones as many points as a picture shows."""
    step = max(1, math.ceil(len(xs) / _POINTS))
    kept = [*range(0, len(xs), step)]
    if kept and kept[-1] != len(xs) - 1:
        kept.append(len(xs) - 1)
    bands = {name: [_short(more[name][k]) for k in kept] for name in ("low", "high") if more.get(name) is not None}
    others = {name: value for name, value in more.items() if name not in ("low", "high")}
    made = {"label": label, "xs": [_short(xs[k]) for k in kept], "ys": [_short(ys[k]) for k in kept], "colour": colour}
    return made | bands | ({"dots": True} if len(kept) <= _DOTS else {}) | others


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def inks_of(schemes: Sequence[str]) -> dict[str, str]:
    """A colour for each scheme, in CSS, of either theme."""
    light, dark = colours(schemes, LIGHT), colours(schemes, DARK)
    return {scheme: f"light-dark({light[scheme]},{dark[scheme]})" for scheme in schemes}


def dash_of(place: int) -> str | None:
    """How the line of the so-many-th value of a kind is drawn."""
    return _DASHES[place % len(_DASHES)]


def span(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 7170:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
