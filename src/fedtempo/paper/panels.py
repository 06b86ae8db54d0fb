"""What the paper's figures share beside their curves: panels, heads, notes, legends, and what was not run."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.paper.curves import FAINT, SMALL, Curve, Look, Share, rate_text
from fedtempo.report.style import INK, bare
from fedtempo.simulation.history.history import History


def names_of(parts: Mapping[str, History], titles: Mapping[str, str]) -> list[str]:
    """The parts that have a title, whether they were run or not, and those that were run without one."""
    return list(dict.fromkeys((*titles, *parts)))


def name_of(parts: Mapping[str, History], titles: Mapping[str, str]) -> str:
    """The part of a figure that has only one: the first that was run, or else the first that has a title."""
    return next(iter((*parts, *titles)), "")


def lone(history: History, *measures: str) -> History:
    """The history with the measures named, without hyper-parameters that have only one value; the rate stays."""
    one = {d: history.dataset[d].values[0] for d in history.hyper if d != RATE and history.dataset.sizes[d] == 1}
    return history.only(*measures).select(**one)


def panels(
    rows: int, columns: int, size: tuple[float, float], note: str, sharex: Share = "none", sharey: Share = "none"
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows and columns under a note in small letters; call within the figures' style."""
    figure = _figure(size, note)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).tolist()
    for axes in (a for row in grid for a in row):
        _plain(axes)
    return figure, grid


def panels_below(
    rows: int, columns: int, size: tuple[float, float], note: str, height: float
) -> tuple[Figure, Axes, list[list[Axes]]]:
    """A panel over the whole width, `height` times as high as the others; below it rows and columns on equal axes."""
    figure = _figure(size, note)
    places = figure.add_gridspec(rows + 1, columns, height_ratios=[height] + [1.0] * rows)
    wide = figure.add_subplot(places[0, :])
    first = figure.add_subplot(places[1, 0])
    grid = [
        [
            first if r == c == 0 else figure.add_subplot(places[r + 1, c], sharex=first, sharey=first)
            for c in range(columns)
        ]
        for r in range(rows)
    ]
    for axes in (wide, *(a for row in grid for a in row)):
        _plain(axes)
    for axes in (a for row in grid for a in row):
        axes.label_outer()
    return figure, wide, grid


def _figure(size: tuple[float, float], note: str) -> Figure:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    if note:
        letters = int(size[0] * 72 / (0.54 * SMALL))
        lines = "\n".join(textwrap.fill(line, letters) for line in note.split("\n"))
        figure.suptitle(lines, x=0.008, ha="left", fontsize=SMALL, linespacing=1.3)
    return figure


def _plain(axes: Axes) -> None:
    bare(axes)
    axes.tick_params(labelsize=SMALL, length=3)
    axes.tick_params(which="minor", length=1.8)


def blank_figure(note: str) -> Figure:
    """A figure of a part that was not run."""
    figure, grid = panels(1, 1, (7.0, 2.4), note)
    blank(grid[0][0])
    return figure


def blank(axes: Axes, text: str = "not run") -> None:
    """A panel without values says why; its label stays, and so do the ticks of axes that it shares."""
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(which="both", left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=8.5)


def head(axes: Axes, title: str, pad: float = 4.0) -> None:
    """The name of a panel or column, in bold."""
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=pad)


def rate_head(axes: Axes, rate: float) -> None:
    """The local learning rate of a panel; nothing where it is not known."""
    if math.isfinite(rate):
        axes.set_title(f"$\\eta_l$ = {rate_text(rate)}", loc="left", fontsize=9, pad=4.0)


def linear_time(axes: Axes, times: Floats, most: int = 4) -> None:
    """The whole of virtual time on an even axis with few ticks, at most so many steps between them."""
    if times[-1] > times[0]:
        axes.set_xlim(float(times[0]), float(times[-1]))
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 4, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: thousands(value))


def thousands(value: float) -> str:
    """A number with its thousands apart."""
    return f"{value:,.0f}".replace(",", "\u2009") if abs(value) >= 1000 else f"{value:g}"


def end_handle(label: str, *, hollow: bool = False) -> Line2D:
    """What a legend shows of final values."""
    inner = "white" if hollow else INK
    return Line2D([], [], linestyle="", marker="o", color=INK, markerfacecolor=inner, markersize=3.2, label=label)


def band_handle(label: str) -> Patch:
    """What a legend shows of bands."""
    return Patch(facecolor=INK, alpha=0.22, linewidth=0, label=label)


def cross_handle() -> Line2D:
    """What a legend shows of divergence."""
    return Line2D([], [], linestyle="", marker="x", color=INK, markersize=6, markeredgewidth=1.6, label="diverged")


def has_bands(curves: Iterable[Curve]) -> bool:
    """Whether any curve is over several seeds."""
    return any(np.isfinite(curve.deviation).any() for curve in curves)


def label_below(column: Sequence[Axes], label: str = "virtual time") -> None:
    """A label below the lowest panel of a column that has values, with ticks; call when they are drawn."""
    lowest = next((k for k in reversed(range(len(column))) if column[k].has_data()), None)
    if lowest is not None:
        axes, below = column[lowest], column[lowest + 1 :]
        axes.set_xlabel(label, fontsize=8.5)
        axes.tick_params(labelbottom=True)
        axes.xaxis.set_in_layout(not below or any(a.axison for a in below))  # above an empty place there is room


def scheme_handles(looks: Mapping[str, Look], curves: Sequence[Curve]) -> list[Line2D | Patch]:
    """What a legend lists of schemes: their lines, and bands and crosses where there are any."""
    handles: list[Line2D | Patch] = [look.handle(scheme) for scheme, look in looks.items()]
    handles += [band_handle("one deviation over seeds")] if has_bands(curves) else []
    return handles + ([cross_handle()] if any(curve.diverged for curve in curves) else [])


def legend_below(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """One legend for all panels, below them, in as few rows as the width allows."""
    if not handles:
        return
    size = 8.0
    widths = [(0.54 * len(str(handle.get_label())) + 5.4) * size for handle in handles]
    room = figure.get_figwidth() * 72

    def fits(columns: int) -> bool:
        return sum(float(part.max()) for part in np.array_split(widths, columns)) <= room

    rows = -(-len(handles) // next((n for n in range(len(handles), 1, -1) if fits(n)), 1))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=-(-len(handles) // rows),
        frameon=False,
        fontsize=size,
        handlelength=2.6,
        columnspacing=1.8,
    )
