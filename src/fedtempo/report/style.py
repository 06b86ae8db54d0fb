"""What every figure shares: fonts, how schemes and weight rules look, axes, and files.

A colour is a scheme (inks.py). A line is solid for time-based weights, dashed for identical ones, dotted for
importance alone. Axes are logarithmic where values spread far, and have names with units.

All of it is applied inside `rc_context`: a user's own settings of matplotlib stay as they are.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.files import write_whole
from fedtempo.report.inks import LIGHT, Theme
from fedtempo.simulation.history.summary import FAIR

ENDINGS = ("svg", "png", "pdf")


INK = LIGHT.ink
STYLE: Any = LIGHT.rc


# -- figures and files


class Picture(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(file, format="png", dpi=110)
        return file.getvalue()


def new_figure(width: float, height: float) -> Picture:
    """An empty figure, in inches, whose parts make room for each other; call within a theme."""
    figure = Picture(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def ending_of(path: Path, example: str) -> str:
    """The file's ending, which says whether it is SVG, PNG or PDF."""
    ending = path.suffix.lower().lstrip(".")
    if ending not in ENDINGS:
        raise InputError(f"{path}: the ending must be one of {', '.join(ENDINGS)}, as in {example}")
    return ending


def save_figure(figure: Figure, path: Path, *, example: str) -> None:
    """Write a figure whole or not at all; the same figure gives the same bytes."""
    ending = ending_of(path, example)
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
    with rc_context(STYLE):
        write_whole(path, lambda file: figure.savefig(file, format=ending, dpi=160, metadata=metadata))


def finished(figure: Figure, path: Path | None, *, example: str) -> Figure:
    """The figure; with `path` it is also written."""
    if path is not None:
        save_figure(figure, path, example=example)
    return figure


def note_above(figure: Figure, words: str) -> None:
    """A small line above all axes."""
    figure.suptitle(words, x=0.008, ha="left", fontsize=8.5)


# -- how schemes and weight rules look


_DASHES: dict[str, Any] = {
    FAIR: "-",
    "identical": (0, (4.0, 1.8)),
    "importance": (0, (1.0, 1.6)),
}
_OTHER_DASHES = ((0, (5.0, 1.5, 1.0, 1.5)), (0, (3.0, 1.2, 1.0, 1.2, 1.0, 1.2)))


def dashes(rules: Sequence[str]) -> dict[str, Any]:
    """A line style for each weight rule."""
    others = [rule for rule in rules if rule not in _DASHES]
    return {r: _DASHES[r] if r in _DASHES else _OTHER_DASHES[others.index(r) % len(_OTHER_DASHES)] for r in rules}


# -- legends and labels


_LETTER = 0.073
"""Inches of a letter of a legend, about."""
_ROW = 0.19
"""Inches of a row of a legend."""
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "handlelength": 2.6, "columnspacing": 1.6}


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend for all panels, below them, in place of one that is there; in as few rows as the width allows.

    The figure grows by the rows after the first.
    """
    for there in list(figure.legends):
        figure.set_figheight(figure.get_figheight() - _further_rows(there))
        there.remove()
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(figure.get_figwidth() / (0.55 + 0.8 * _LETTER * longest))))
    while True:
        rows = -(-len(handles) // columns)
        columns = -(-len(handles) // rows)
        legend = figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, **_LEGEND)
        if columns == 1 or legend.get_window_extent().width <= 0.98 * figure.bbox.width:
            break
        legend.remove()
        columns -= 1
    figure.set_figheight(figure.get_figheight() + _further_rows(legend))


def _further_rows(legend: Legend) -> float:
    """Inches that a legend takes beyond its first row."""
    figure = legend.get_figure(root=True)
    assert figure is not None
    return max(0.0, legend.get_window_extent().height / figure.dpi - _ROW - 0.12)


@dataclass(frozen=True)
class EndLabel:
    """What is written beside the end of a line."""

    value: float
    """Where the line ends on the axis."""
    text: str
    colour: str


_END_SIZE = 8.0
_MOST_LABELS = 10
_WIDEST = 0.36
"""Of the figure's width: the most that labels beside the lines may take."""
_FARTHEST = 0.2
"""Of the axes' height: how far a label may stand from the end of its line."""


def label_ends(axes: Axes, labels: Sequence[EndLabel], theme: Theme) -> bool:
    """Write labels beside the right ends of lines, none over another; False, and none written, where they do not fit.

    Call when the axes have their limits and the figure all its other parts.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    if not labels or len(labels) > _MOST_LABELS:
        return False
    figure.draw_without_rendering()
    box = axes.get_window_extent()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    drawn = [axes.text(0, 0, label.text, fontsize=_END_SIZE) for label in labels]
    sizes = [text.get_window_extent(renderer) for text in drawn]
    for text in drawn:
        text.remove()
    low, high = (axes.transData.transform((0, y))[1] for y in axes.get_ylim())
    ends = axes.transData.transform([(0, label.value) for label in labels])[:, 1]
    ends = (np.clip(ends, min(low, high), max(low, high)) - box.y0) / box.height
    height = 1.05 * max(size.height for size in sizes) / box.height
    places = spread_out(ends, height)
    too_wide = max(size.width for size in sizes) > _WIDEST * figure.bbox.width
    if too_wide or len(labels) * height > 1.0 or float(np.abs(places - ends).max()) > _FARTHEST:
        return False
    for label, end, place in zip(labels, ends.tolist(), places.tolist(), strict=True):
        axes.annotate(
            label.text,
            (1.0, end),
            xytext=(18, (place - end) * box.height * 72 / figure.dpi),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=_END_SIZE,
            color=_for_text(label.colour, theme),
            annotation_clip=False,
            arrowprops={
                **{"arrowstyle": "-", "color": label.colour, "linewidth": 0.7},
                **{"relpos": (0.0, 0.5), "shrinkA": 1, "shrinkB": 1},
            },
        )
    return True


def _for_text(colour: str, theme: Theme) -> str:
    """A line's colour, nearer to that of text: letters are thinner."""
    return mixed(colour, theme.ink, 0.7)


def mixed(colour: str, other: str, share: float) -> str:
    """Between two colours: `share` of the first."""
    red, green, blue = (share * a + (1 - share) * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True))
    return to_hex((red, green, blue))


def spread_out(wanted: Floats, gap: float) -> Floats:
    """Places in [gap/2, 1 − gap/2] at least `gap` apart, in the order of `wanted` and close to it."""
    order = np.argsort(wanted, kind="stable")
    count = len(wanted)
    steps = gap * np.arange(count)
    # with the gaps taken out, the closest ascending values are means over blocks (pooling adjacent violators)
    blocks: list[tuple[float, int]] = []
    for value in (wanted[order] - steps).tolist():
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    level = np.repeat([value for value, _ in blocks], [n for _, n in blocks])
    room = max(gap / 2, 1.0 - gap / 2 - gap * (count - 1))
    places = np.empty(count)
    places[order] = np.clip(level, gap / 2, room) + steps
    return places


# -- axes


_LARGE = 4.0  # from this ratio of the largest to the smallest value on, the axis is logarithmic


def scale(axes: Axes, which: Literal["x", "y"], values: Floats, *, logarithmic: bool) -> None:
    """Limits around the values, on a logarithmic axis when they are positive and spread far."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    limits, axis = (axes.set_xlim, axes.xaxis) if which == "x" else (axes.set_ylim, axes.yaxis)
    if logarithmic and low > 0 and high / low > _LARGE:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        margin = (high / low) ** 0.06
        limits(low / margin, high * margin)
        if high / low < 300:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    elif high > low:
        limits(low - 0.06 * (high - low), high + 0.06 * (high - low))


def bare(axes: Axes, theme: Theme = LIGHT, *, along: Literal["x", "y"] = "y") -> None:
    """Without a frame, on faint lines across the axis of values."""
    for side in ("top", "right", *(("left",) if along == "x" else ())):
        axes.spines[side].set_visible(False)
    axes.grid(axis=along, color=theme.grid, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)


def head(axes: Axes, title: str) -> None:
    """The name of a panel."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


def floor_of(values: Floats) -> float:
    """The smallest value when all are positive, for bands on a logarithmic axis."""
    finite = values[np.isfinite(values)]
    return float(finite.min()) / 2 if finite.size and finite.min() > 0 else 0.0
