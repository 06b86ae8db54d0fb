"""A study as its folder shows it, as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedtempo.report.browser.live import LABELS
from fedtempo.report.browser.live_study import facts_of, last_of, state_of, varying
from fedtempo.report.text import NONE, plain, printable, short
from fedtempo.simulation.watching import StudySeen

_UNITS, _CURVES, _MEASURES = 16, 24, 4


def rendered(seen: StudySeen, *, terminal: bool) -> RenderableType:
    """What the folder shows."""
    facts = ", ".join(f"{name} {value}" for name, value in facts_of(seen))
    parts: list[RenderableType] = [
        _text(f"Study in {seen.folder}: ", "bold").append(_text(LABELS[seen.condition], "bold")),
        _text(facts),
    ]
    if seen.words:
        parts.append(_text(seen.words))
    if terminal:
        parts.append(ProgressBar(total=1.0, completed=seen.done, width=60))
    if seen.units:
        parts += _units(seen, terminal)
    if seen.curves:
        parts += _curves(seen, terminal)
    return Group(*parts)


def _units(seen: StudySeen, terminal: bool) -> list[RenderableType]:
    order = sorted(range(len(seen.units)), key=lambda k: (not 0 < seen.units[k].share < 1, seen.units[k].finished, k))
    rows = []
    for k in order[:_UNITS]:
        unit = seen.units[k]
        said, _ = state_of(unit.share, unit.finished, unit.running)
        diverged = f"{unit.diverged} diverged" if unit.diverged else ""
        seeds = ",".join(map(str, unit.seeds[:6])) + (",…" if len(unit.seeds) > 6 else "")
        rows.append((unit.name, seeds, str(unit.runs), said, f"{100 * unit.share:.0f}%", diverged))
    more = len(seen.units) - _UNITS
    rest = [_text(f"and {more} more")] if more > 0 else []
    return [_text("\nUnits", "bold"), _table(terminal, ("scheme", "seeds", "runs", "", "done", ""), rows), *rest]


def _curves(seen: StudySeen, terminal: bool) -> list[RenderableType]:
    """The last of what is measured, the best loss first."""
    differ = [*varying(seen.curves)]
    names = [*dict.fromkeys(name for curve in seen.curves for name in curve.values if "deviation" not in name)]
    names = names[:_MEASURES]
    rows = []
    for curve in sorted(seen.curves, key=lambda curve: last_of(curve, "loss"))[:_CURVES]:
        last = [last_of(curve, name) for name in names]
        at = f"{curve.times[-1]:g}" if len(curve.times) else NONE
        values = [NONE if math.isinf(value) else short(value) for value in last]
        diverged = f"{len(curve.diverged)} diverged" if curve.diverged else ""
        rows.append((*(plain(curve.labels.get(name, "")) for name in differ), at, *values, diverged))
    more = len(seen.curves) - _CURVES
    said = [_text(f"and {more} more")] if more > 0 else []
    columns = (*differ, "time", *(name.replace("_", " ") for name in names), "")
    return [_text("\nMeasured, mean over seeds", "bold"), _table(terminal, columns, rows), *said]


def _table(terminal: bool, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, collapse_padding=terminal)
    for place, name in enumerate(columns):
        table.add_column(_text(name), justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(said: str, style: str = "") -> Text:
    """What a folder says is neither markup nor orders to the terminal."""
    return Text(printable(said, lines=True), style)
