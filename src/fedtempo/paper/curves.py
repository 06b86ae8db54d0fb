"""Curves of the paper's figures: how they look, their ends, and where a run diverged.

A line is the mean over seeds; its band is one deviation over seeds to either side. A cross ends a line of which a seed
diverged. Beside its colour a line has a dash (weight rules) or a mark (schemes), so that it can be told without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedtempo.clock.times import Floats
from fedtempo.grid import RATE
from fedtempo.paper.stages import rule_of
from fedtempo.report.inks import colours
from fedtempo.report.style import dashes, floor_of, scale
from fedtempo.report.text import plain
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.summary import FAIR

BIASED = "identical"
Share = Literal["none", "all", "col"]
SMALL = 7.5
"""Points: the size of ticks, notes and what is said inside a panel."""
FAINT = "#8a9099"
_BIASED_INK = "#5e3c99"
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MARKS_A_LINE = 4
_HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 0.8}
_MARK = 4.5
HIGHEST = 3.0  # times the loss at the start: what is above says no more than that it is unstable
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


def scale_losses(axes: Axes, curves: Sequence[Curve], left_out: float, highest: float = HIGHEST) -> None:
    """A vertical axis for all the curves after a share of the time, up to a multiple of where they begin."""
    stable = [curve for curve in curves if curve.known and not curve.diverged] or [c for c in curves if c.known]
    around = [curve.mean[(curve.at >= left_out * curve.at[-1]) & np.isfinite(curve.mean)] for curve in stable]
    values = np.concatenate(around) if around else np.zeros(0)
    scale(axes, "y", np.minimum(values, highest * beginning(stable)), logarithmic=True)


def beginning(curves: Iterable[Curve]) -> float:
    """The lowest loss at which a curve begins: all of them begin with the same model."""
    return min((float(curve.mean[np.isfinite(curve.mean)][0]) for curve in curves if curve.known), default=np.inf)


def draw_schemes(axes: Axes, curves: Sequence[Curve], every: Sequence[Curve]) -> None:
    """The curves of a panel whose limits are set, with bands that end below the lowest loss of any."""
    lowest = floor_of(np.concatenate([curve.mean for curve in every]))
    for k, curve in enumerate(curves):
        draw_curve(axes, curve, lowest=lowest, marks_from=(k + 0.5) / len(curves))
    mark_divergence(axes, curves)


def draw_ends(axes: Axes, curves: Iterable[Curve], hollow: Iterable[Curve] = ()) -> None:
    """The final values with their deviation over seeds, right of a panel; limits must be set before.

    Those of `hollow` are above or below those of the same look.
    """
    where, limits = axes.get_yaxis_transform(), axes.get_ylim()
    ends = [(curve, fill) for group, fill in ((curves, True), (hollow, False)) for curve in group]
    ends = [(curve, fill) for curve, fill in ends if limits[0] <= curve.end <= limits[1]]
    looks = list(dict.fromkeys(curve.look for curve, _ in ends))
    for curve, fill in ends:
        place, ink = 1.03 + 0.035 * looks.index(curve.look), curve.look.colour
        mark, inner = curve.look.mark or "o", {} if fill else _HOLLOW
        axes.plot(
            [place], [curve.end], mark, transform=where, color=ink, markersize=3.2, clip_on=False, zorder=4, **inner
        )
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


ABOVE = r"$\uparrow$"
"""The mark of a value above the frame."""


def crosses(axes: Axes, points: Sequence[tuple[float, float, Look]], above: int = 0) -> None:
    """Crosses at the points, arrows at the last `above` of them; side by side where they would cover each other."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    size = axes.get_position().size * figure.get_size_inches() * 72
    inside = size - np.array([0.0, 3.0])
    taken: list[Floats] = []
    for k, (x, y, look) in enumerate(points):
        mark = ABOVE if k >= len(points) - above else "x"
        place = np.clip(axes.transLimits.transform(axes.transScale.transform((x, y))), 0.0, 1.0) * inside
        while any(math.hypot(*(place - other)) < _NARROW for other in taken):
            place[0] += _NARROW
        taken.append(place)
        axes.plot(
            *(place / size),
            marker=mark,
            linestyle="",
            transform=axes.transAxes,
            color=look.colour,
            markersize=6 if mark == "x" else 9,
            markeredgewidth=1.6 if mark == "x" else 0.4,
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


def rate_of(history: History, scheme: str, rule: str) -> float:
    """The local learning rate of a scheme and weight rule for which it is chosen; NaN where it is not known."""
    if RATE not in history.dataset.coords or not _has(history, scheme, rule):
        return math.nan
    rates = history.dataset[RATE]
    return float(rates.sel({d: v for d, v in (("scheme", scheme), ("weights", rule)) if d in rates.dims}))


def rate_text(rate: float) -> str:
    """A learning rate in few letters."""
    return plain(rate).replace("e-0", "e-")
