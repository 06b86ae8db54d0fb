"""What the paper's figures share: curves over seeds, how they look, heads, notes, and panels of what was not run.

A line is the mean over seeds; its band is one deviation over seeds to either side. A cross ends a line of which a seed
diverged. Beside its colour a line has a dash (weight rules) or a mark (schemes), so that it can be told without colour.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.history import History
from fedtempo.report.history_axes import bare, floor_of, scale
from fedtempo.report.history_style import colours, dashes
from fedtempo.report.history_summary import FAIR
from fedtempo.report.phrases import plain
from fedtempo.report.style import INK

BIASED = "identical"
Share = Literal["none", "all", "col"]
SMALL = 7.5
"""Points: the size of ticks, notes and what is said inside a panel."""
_FAINT = "#8a9099"
_BIASED_INK = "#5e3c99"
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MARKS_A_LINE = 4
_MARK = 4.5
_HIGHEST = 3.0  # times the loss at the start: what is above says no more than that it is unstable
_DENSE = 250  # points of a line from which on it is drawn finer
_NARROW = 4.5  # points between crosses that can be told apart


# -- curves


@dataclass(frozen=True)
class Look:
    """How a line is drawn."""

    colour: Any
    dash: Any = "-"
    width: float = 1.4
    mark: str = ""

    def handle(self, label: str) -> Line2D:
        """What a legend shows of it."""
        return Line2D(
            [],
            [],
            color=self.colour,
            linestyle=self.dash,
            linewidth=self.width,
            marker=self.mark,
            markersize=_MARK,
            markeredgecolor="white",
            markeredgewidth=0.5,
            label=label,
        )


@dataclass(frozen=True)
class Curve:
    """A measure at times, or at other places: its mean and deviation over seeds, and whether a seed diverged.

    `end` is its final value, the mean over the last tenth of the time, averaged over seeds.
    """

    at: Floats
    mean: Floats
    deviation: Floats
    diverged: bool
    look: Look
    end: float = math.nan
    end_deviation: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there is anything to draw."""
        return bool(np.isfinite(self.mean).any())

    def around(self, start: float, lowest: float) -> Floats:
        """The values from a time on, with their band, none of them below `lowest`."""
        kept = self.at >= start
        mean, band = self.mean[kept], np.nan_to_num(self.deviation[kept])
        values: Floats = np.concatenate([np.maximum(mean - band, np.minimum(mean, lowest)), mean + band])
        finite: Floats = values[np.isfinite(values)]
        return finite


def curve_of(history: History, measure: str, look: Look, *, scheme: str, rule: str) -> Curve | None:
    """The curve of a scheme and weight rule whose hyper-parameters are chosen; None where nothing was measured."""
    if measure not in history.measures or not _has(history, scheme, rule):
        return None
    run = history.only(measure).select(scheme=scheme, weights=rule)
    mean, deviation = run.mean(measure)[measure], run.deviation(measure)[measure]
    ends = run.final(measure).values.ravel()
    ends = ends[np.isfinite(ends)] if not run.diverged.any() else ends[:0]
    curve = Curve(
        run.dataset["time"].values.astype(float),
        mean.values.ravel(),
        deviation.values.ravel(),
        bool(run.diverged.any()),
        look,
        float(ends.mean()) if len(ends) else math.nan,
        float(ends.std(ddof=1)) if len(ends) > 1 else math.nan,
    )
    return curve if curve.known or curve.diverged else None


def _has(history: History, scheme: str, rule: str) -> bool:
    return scheme in history.dataset["scheme"].values and rule in history.dataset["weights"].values


def draw_curve(axes: Axes, curve: Curve, *, lowest: float = 0.0, marks_from: float | None = None) -> None:
    """A line with its band, and marks: a few from a share of their distance on, or all of them."""
    known = np.flatnonzero(np.isfinite(curve.mean))
    if not len(known):
        return
    look = curve.look
    width = look.width * (0.75 if len(known) > _DENSE else 1.0)
    alone = "o" if len(known) == 1 else ""
    few = None
    if marks_from is not None:
        shares = (np.arange(_MARKS_A_LINE) + marks_from) / _MARKS_A_LINE
        few = np.unique(known[(shares * len(known)).astype(int)]).tolist()
    axes.plot(
        curve.at,
        curve.mean,
        color=look.colour,
        linestyle=look.dash,
        linewidth=width,
        marker=look.mark or alone,
        markevery=few,
        markersize=_MARK,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
    )
    if np.isfinite(curve.deviation).any():
        low = curve.mean - curve.deviation
        low = np.maximum(low, lowest) if lowest > 0 else low
        axes.fill_between(
            curve.at, low, curve.mean + curve.deviation, color=look.colour, alpha=0.16, linewidth=0, zorder=2
        )


def scheme_curves(history: History, looks: Mapping[str, Look]) -> list[Curve]:
    """The federated loss of the schemes of a history whose hyper-parameters are chosen."""
    found = [curve_of(history, "loss", look, scheme=scheme, rule=rule_of(history)) for scheme, look in looks.items()]
    return [curve for curve in found if curve is not None]


def scale_losses(axes: Axes, curves: Sequence[Curve], left_out: float) -> None:
    """A vertical axis for all the curves after a share of the time, up to a multiple of where they begin."""
    stable = [curve for curve in curves if curve.known and not curve.diverged] or [c for c in curves if c.known]
    begin = max((float(curve.mean[np.isfinite(curve.mean)][0]) for curve in stable), default=np.inf)
    around = [curve.mean[(curve.at >= left_out * curve.at[-1]) & np.isfinite(curve.mean)] for curve in stable]
    values = np.concatenate(around) if around else np.zeros(0)
    scale(axes, "y", np.minimum(values, _HIGHEST * begin), logarithmic=True)


def draw_schemes(axes: Axes, curves: Sequence[Curve], every: Sequence[Curve]) -> None:
    """The curves of a panel whose limits are set, with bands that end below the lowest loss of any."""
    lowest = floor_of(np.concatenate([curve.mean for curve in every]))
    for k, curve in enumerate(curves):
        draw_curve(axes, curve, lowest=lowest, marks_from=(k + 0.5) / len(curves))
    mark_divergence(axes, curves)


def draw_ends(axes: Axes, curves: Iterable[Curve]) -> None:
    """The final values with their deviation over seeds, right of a panel; limits must be set before."""
    where, limits = axes.get_yaxis_transform(), axes.get_ylim()
    for k, curve in enumerate(c for c in curves if limits[0] <= c.end <= limits[1]):
        place, ink = 1.03 + 0.035 * k, curve.look.colour
        mark = curve.look.mark or "o"
        axes.plot([place], [curve.end], mark, transform=where, color=ink, markersize=3.2, clip_on=False, zorder=4)
        if math.isfinite(curve.end_deviation):
            span = np.clip([curve.end - curve.end_deviation, curve.end + curve.end_deviation], *limits)
            axes.plot([place] * 2, span, "-", transform=where, color=ink, linewidth=1.0, clip_on=False, zorder=3)


def mark_divergence(axes: Axes, curves: Iterable[Curve]) -> None:
    """A cross where a diverged line leaves the picture, or else where it stops; limits must be set before."""
    top = axes.get_ylim()[1]
    points = []
    for curve in (c for c in curves if c.diverged):
        known = np.flatnonzero(np.isfinite(curve.mean))
        # a line may also come from above the picture: what counts is where it leaves for good
        inside = known[curve.mean[known] <= top]
        last = known[known >= inside.max(initial=0)][:2][-1] if len(known) else 0
        height = min(curve.mean[last], top) if len(known) else top
        points.append((float(curve.at[last]), float(height), curve.look))
    crosses(axes, points)


def crosses(axes: Axes, points: Sequence[tuple[float, float, Look]]) -> None:
    """Crosses at the points, side by side where they would cover each other."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    size = axes.get_position().size * figure.get_size_inches() * 72
    inside = size - np.array([0.0, 3.0])
    taken: list[Floats] = []
    for x, y, look in points:
        place = np.clip(axes.transLimits.transform(axes.transScale.transform((x, y))), 0.0, 1.0) * inside
        while any(math.hypot(*(place - other)) < _NARROW for other in taken):
            place[0] += _NARROW
        taken.append(place)
        axes.plot(
            *(place / size),
            "x",
            transform=axes.transAxes,
            color=look.colour,
            markersize=6,
            markeredgewidth=1.6,
            zorder=4,
            clip_on=False,
        )


# -- how they look


def rule_looks(scheme: str) -> dict[str, Look]:
    """Both weight rules of one scheme: a colour and a dash each; time-based weights keep the scheme's colour."""
    dash = dashes([BIASED, FAIR])
    return {
        BIASED: Look(_BIASED_INK, dash[BIASED]),
        FAIR: Look(colours([scheme])[scheme], dash[FAIR]),
    }


def scheme_looks(histories: Iterable[History]) -> dict[str, Look]:
    """A colour and a mark for each scheme of any of the histories."""
    found = dict.fromkeys(str(s) for history in histories for s in history.dataset["scheme"].values)
    inks = colours(list(found))
    return {scheme: Look(ink, mark=_MARKS[k % len(_MARKS)]) for k, (scheme, ink) in enumerate(inks.items())}


def rule_of(history: History) -> str:
    """The weight rule that schemes are compared with: time-based, or the only one there is."""
    rules = [str(rule) for rule in history.dataset["weights"].values]
    return FAIR if FAIR in rules else rules[0]


def rate_of(history: History, scheme: str, rule: str) -> float:
    """The local learning rate of a scheme and weight rule for which it is chosen; NaN where it is not known."""
    if RATE not in history.dataset.coords or not _has(history, scheme, rule):
        return math.nan
    rates = history.dataset[RATE]
    return float(rates.sel({d: v for d, v in (("scheme", scheme), ("weights", rule)) if d in rates.dims}))


def rate_text(rate: float) -> str:
    """A learning rate in few letters."""
    return plain(rate).replace("e-0", "e-")


# -- figures and panels


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
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).tolist()
    for axes in (a for row in grid for a in row):
        bare(axes)
        axes.tick_params(labelsize=SMALL, length=3)
        axes.tick_params(which="minor", length=1.8)
    if note:
        letters = int(size[0] * 72 / (0.54 * SMALL))
        figure.suptitle(textwrap.fill(note, letters), x=0.008, ha="left", fontsize=SMALL, linespacing=1.3)
    return figure, grid


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
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=_FAINT, fontsize=8.5)


def head(axes: Axes, title: str, pad: float = 4.0) -> None:
    """The name of a panel or column, in bold."""
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=pad)


def rate_head(axes: Axes, rate: float) -> None:
    """The local learning rate of a panel; nothing where it is not known."""
    if math.isfinite(rate):
        axes.set_title(f"$\\eta_l$ = {rate_text(rate)}", loc="left", fontsize=9, pad=4.0)


def linear_time(axes: Axes, times: Floats) -> None:
    """The whole of virtual time on an even axis with few ticks."""
    if times[-1] > times[0]:
        axes.set_xlim(float(times[0]), float(times[-1]))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: thousands(value))


def thousands(value: float) -> str:
    """A number with its thousands apart."""
    return f"{value:,.0f}".replace(",", "\u2009") if abs(value) >= 1000 else f"{value:g}"


def end_handle(label: str) -> Line2D:
    """What a legend shows of final values."""
    return Line2D([], [], linestyle="", marker="o", color=INK, markersize=3.2, label=label)


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
