"""Figure 2: identical and time-based weights under asynchronous FedAvg, on the federated and the surrogate problem.

    (a) L = Σ p_i L_i    (b) its deviation over clients    (c) Σ q_i L_i    (d) its deviation, weighted by q_i

Both rules at the rate that is best for identical weights (section 5.1), and, where that differs, at their own best rate
as a thin line. Time is the whole of it, from zero, on an even axis. A vertical axis leaves out as much of the first
fall as it takes to tell the ends apart; points beside a panel are means over the last tenth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedtempo.clock.times import Floats
from fedtempo.paper.curves import (
    BIASED,
    SMALL,
    Curve,
    curve_of,
    draw_curve,
    draw_ends,
    mark_divergence,
    rate_of,
    rate_text,
    rule_looks,
)
from fedtempo.paper.panels import (
    band_handle,
    blank,
    cross_handle,
    end_handle,
    has_bands,
    head,
    label_below,
    legend_below,
    linear_time,
    lone,
    names_of,
    panels,
)
from fedtempo.paper.stages import at_own_rates, at_shared_rate, shared_rate
from fedtempo.report.style import STYLE, floor_of, scale
from fedtempo.report.text import signed
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.summary import FAIR

_ROWS = {
    "loss": "(a) federated loss",
    "loss_deviation": "(b) its deviation\nover clients",
    "surrogate_loss": "(c) surrogate loss",
    "surrogate_deviation": "(d) its deviation\nover clients",
}
_Lines = dict[str, Curve]
_OWN = ", at their own best rate"
_STARTS = (0.0, 1 / 1000, 1 / 300, 1 / 100, 1 / 30, 1 / 10)  # shares of the time that a vertical axis may leave out
_APART = 0.08  # of a panel's height, the distance of final values that can be seen


def weights_figure(parts: Mapping[str, History], titles: Mapping[str, str], note: str) -> Figure:
    """A column for each title, whether its part was run or not; histories of one scheme under both weight rules."""
    names = names_of(parts, titles)
    with rc_context(STYLE):
        size = (float(np.clip(0.8 + 2.2 * len(names), 7.0, 9.6)), 7.6)
        figure, grid = panels(len(_ROWS), len(names), size, note, sharex="col")
        drawn: list[_Lines] = []
        for k, name in enumerate(names):
            column = [row[k] for row in grid]
            head(column[0], titles.get(name, name), pad=16.0)
            if name in parts:
                drawn += _column(column, parts[name])
                continue
            for axes in column:
                blank(axes)
        for row, label in zip(grid, _ROWS.values(), strict=True):
            row[0].set_ylabel(label, fontsize=8.5)
        figure.align_ylabels([row[0] for row in grid])
        legend_below(figure, _handles(drawn))
    return figure


def _column(column: list[Axes], history: History) -> list[_Lines]:
    """Draw one part; the lines of its panels."""
    history = lone(history, *_ROWS)
    scheme = str(history.dataset["scheme"].values[0])
    rate, own = shared_rate(history), at_own_rates(history)
    shared = at_shared_rate(history) if rate is None or not math.isnan(rate) else None
    found = [_lines(measure, scheme, shared, own, rate) for measure in _ROWS]
    if any(found):
        column[0].text(0.0, 1.04, _rates(rate, own, scheme), transform=column[0].transAxes, fontsize=SMALL)
        linear_time(column[0], history.dataset["time"].values.astype(float), most=2)
    for axes, measure, lines in zip(column, _ROWS, found, strict=True):
        if lines:
            _draw(axes, lines, _start(lines))
        else:
            blank(axes, "not run" if measure in history.measures else "not measured")
    label_below(column)
    return [lines for lines in found if lines]


def _lines(measure: str, scheme: str, shared: History | None, own: History, rate: float | None) -> _Lines:
    """The curves of a panel by what a legend calls them, the most important last."""
    looks = rule_looks(scheme)
    found: dict[str, Curve | None] = {}
    for rule, look in looks.items():
        alone = rate_of(own, scheme, rule)
        if rate is not None and alone != rate and not math.isnan(alone):
            thin = replace(look, colour=_lighter(look.colour), width=0.9)
            found[f"{rule} weights{_OWN}"] = curve_of(own, measure, thin, scheme=scheme, rule=rule)
    if shared is not None:
        for rule in (FAIR, BIASED):
            found[f"{rule} weights"] = curve_of(shared, measure, looks[rule], scheme=scheme, rule=rule)
    return {label: curve for label, curve in found.items() if curve is not None}


def _rates(rate: float | None, own: History, scheme: str) -> str:
    """The rate that both rules have, and the time-based weights' own."""
    if rate is not None and math.isnan(rate):
        gone = bool(own.diverged.sel(weights=BIASED).any())
        return "identical weights diverged at every rate" if gone else "identical weights were not run"
    both, other = rate_of(own, scheme, BIASED), rate_of(own, scheme, FAIR)
    if math.isnan(both):
        return ""
    alone = "" if other == both or math.isnan(other) else f" (own best: {rate_text(other)})"
    return f"$\\eta_l$ = {rate_text(both)}{alone}"


def _around(lines: _Lines, share: float) -> Floats:
    """What a vertical axis shows when it leaves out the values of a share of the time."""
    stable = [curve for curve in lines.values() if curve.known and not curve.diverged] or list(lines.values())
    # a band that reaches far down is cut off by the axis
    return np.concatenate([curve.around(share * curve.at[-1], 1.6 * _lowest(lines)) for curve in stable])


def _lowest(lines: _Lines) -> float:
    return floor_of(np.concatenate([curve.mean for curve in lines.values()]))


def _ends(lines: _Lines) -> tuple[float, float]:
    """The final values of identical and time-based weights at the rate that they share; NaN where unknown."""
    biased, fair = (lines.get(f"{rule} weights") for rule in (BIASED, FAIR))
    return (biased.end, fair.end) if biased is not None and fair is not None else (math.nan, math.nan)


def _start(lines: _Lines) -> float:
    """The share of the time that a vertical axis leaves out, so that the ends are apart."""
    return next((s for s in _STARTS if _apart(_ends(lines), _around(lines, s)) >= _APART), _STARTS[-1])


def _apart(ends: tuple[float, float], values: Floats) -> float:
    """How far apart two values are on an axis around the values, as a share of its height."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not high > low or not math.isfinite(sum(ends)):
        return 0.0
    return abs(math.log(ends[1] / ends[0])) / math.log(high / low) if low > 0 else abs(ends[1] - ends[0]) / (high - low)


def _draw(axes: Axes, lines: _Lines, start: float) -> None:
    """The lines of a panel, around their values from a share of the time on, and their ends beside it."""
    curves = list(lines.values())
    scale(axes, "y", _around(lines, start), logarithmic=True)
    for curve in curves:
        draw_curve(axes, curve, lowest=_lowest(lines))
    mark_divergence(axes, curves)
    draw_ends(axes, reversed(curves))
    biased, fair = _ends(lines)
    if math.isfinite(biased + fair) and biased > 0:
        axes.text(
            1.0,
            0.99,
            signed(fair / biased - 1.0),
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=SMALL,
            zorder=5,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.0},
        )


def _lighter(colour: str) -> tuple[float, float, float]:
    red, green, blue = (0.5 + 0.5 * c for c in to_rgb(colour))
    return red, green, blue


def _handles(drawn: list[_Lines]) -> list[Line2D | Patch]:
    looks = {label: curve.look for lines in drawn for label, curve in lines.items()}
    order = sorted(looks, key=lambda label: (label.endswith(_OWN), label))
    handles: list[Line2D | Patch] = [looks[label].handle(label) for label in order]
    curves = [curve for lines in drawn for curve in lines.values()]
    if has_bands(curves):
        handles.append(band_handle("one deviation over seeds"))
    if any(math.isfinite(curve.end) for curve in curves):
        handles.append(end_handle("last tenth of the time; %: time-based against identical"))
    return [*handles, *([cross_handle()] if any(curve.diverged for curve in curves) else [])]
