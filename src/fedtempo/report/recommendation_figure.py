"""A recommendation as a picture: predicted loss against the time between two models, and below it the rates.

Above: the predicted loss, above the least, of every scheme at its best rate. FedFix is a line over its waits, FedBuff
one over the mean times of its rounds; a scheme without such a choice is a level line, with a mark at the mean time of
its rounds. Below: the rate chosen, and dashed the rate from which training is unstable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedtempo.planning.recommend import Choice, Recommendation
from fedtempo.report.style import Theme, bare, colours, ending_of, finished, head, legend_below, new_figure, theme_of
from fedtempo.schemes.named import FedFix

_EXAMPLE = "plan.svg"
_MARKS = {"FedFix": "^", "FedAvg": "o", "AsyncFedAvg": "s", "FedBuff": "D"}


def recommendation_figure(made: Recommendation, *, path: Path | None = None, style: str = "light") -> Figure:
    """The figure; with `path` also a file."""
    theme = theme_of(style)
    if path is not None:
        ending_of(path, _EXAMPLE)
    families = _families(made)
    ink = colours(list(families), theme)
    with rc_context(theme.rc):
        figure = new_figure(7.4, 5.8)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        places = _places(made)
        low, high = min(places.values()), max(places.values())
        margin = (high / low) ** 0.05 if high > low else 1.5
        upper.set_xscale("log")
        upper.set_xlim(low / margin, high * margin)
        for family, members in families.items():
            _draw_family(upper, lower, made, members, places, ink[family], _MARKS.get(family, "v"))
        _mark_best(upper, made, places, theme)
        _finish(upper, lower, made, theme)
        legend_below(figure, _handles(families, ink, theme))
    return finished(figure, path, example=_EXAMPLE)


def save_recommendation(made: Recommendation, path: Path, *, style: str = "light") -> None:
    """Write the figure; the ending says as what."""
    recommendation_figure(made, path=path, style=style)


def _places(made: Recommendation) -> dict[str, float]:
    """Where on the axis a scheme stands: FedFix at its wait, others where a round lasts as long on average."""
    return {
        one.scheme.label: float(one.scheme.wait)
        if isinstance(one.scheme, FedFix)
        else float(made.until) / max(one.num_rounds, 1)
        for one in made.predictions
    }


def _families(made: Recommendation) -> dict[str, list[Choice]]:
    """The choices by what differs in a number alone: FedFix(1/8), FedFix(1/4), … are one line."""
    found: dict[str, list[Choice]] = {}
    for choice in sorted(
        made.choices, key=lambda one: [p.scheme.label for p in made.predictions].index(one.scheme.label)
    ):
        label = choice.scheme.label
        alone = " + " in label  # with options of its own
        found.setdefault(label if alone else label.split("(")[0], []).append(choice)
    return found


def _draw_family(
    upper: Axes,
    lower: Axes,
    made: Recommendation,
    members: Sequence[Choice],
    places: dict[str, float],
    colour: str,
    mark: str,
) -> None:
    """A line over the members' places; level over all of the axis where there is one."""
    order = sorted(members, key=lambda one: places[one.scheme.label])
    x = np.array([places[one.scheme.label] for one in order])
    excess = np.array([one.excess if np.isfinite(one.excess) else np.nan for one in order])
    rate = np.array([one.local_lr for one in order])
    limit = np.array([made.limits[one.scheme.label].lr for one in order])
    dashed = (0, (4.0, 1.8))
    for axes, values, line in ((upper, excess, "-"), (lower, rate, "-"), (lower, limit, dashed)):
        if len(order) == 1 and np.isfinite(values).all():
            axes.axhline(values[0], color=colour, linewidth=1.4, linestyle=line, alpha=0.8, zorder=2)
        marked = None if line == dashed else mark
        kept = "" if len(order) == 1 else line
        axes.plot(x, values, color=colour, linestyle=kept, linewidth=1.6, marker=marked, markersize=5.5, zorder=3)
    if len(order) > 1 and not isinstance(order[0].scheme, FedFix):  # where FedFix stands is its wait
        for one, place, value in zip(order, x.tolist(), excess.tolist(), strict=True):
            number = one.scheme.label.partition("(")[2].rstrip(")")
            upper.annotate(number, (place, value), (0, -18), textcoords="offset points", ha="center", fontsize=7.5)


def _mark_best(axes: Axes, made: Recommendation, places: dict[str, float], theme: Theme) -> None:
    best = made.best
    axes.plot(
        places[best.scheme.label], best.excess, "o", mfc="none", mec=theme.ink, ms=14, mew=1.5, zorder=4, clip_on=False
    )


def _finish(upper: Axes, lower: Axes, made: Recommendation, theme: Theme) -> None:
    best = made.best
    head(
        upper,
        f"{best.scheme.label} at lr {best.local_lr:g}: predicted loss {best.loss:.3g} at time {float(made.until):g}",
    )
    upper.set_ylabel("predicted loss above the least,\neach scheme at its best rate")
    lower.set_ylabel("local learning rate")
    lower.set_xlabel("time from one model to the next: FedFix's wait, for others the mean [virtual time]")
    for axes in (upper, lower):
        low, high = _range(axes)
        if low > 0 and high / low > 4:
            axes.set_yscale("log")
            margin = (high / low) ** 0.08
            axes.set_ylim(low / margin, high * margin)
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        else:
            gap = 0.1 * (high - low) or 0.1 * high
            axes.set_ylim(low - gap, high + gap)
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        bare(axes, theme)
    lower.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    lower.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lower.xaxis.set_minor_locator(NullLocator())


def _range(axes: Axes) -> tuple[float, float]:
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.lines])
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _handles(families: dict[str, list[Choice]], ink: dict[str, str], theme: Theme) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], color=ink[family], marker=_MARKS.get(family, "v"), markersize=5.5, linewidth=1.8, label=family)
        for family in families
    ]
    ring: dict[str, Any] = {
        "color": theme.ink,
        "linestyle": "",
        "marker": "o",
        "markerfacecolor": "none",
        "markersize": 10,
    }
    handles.append(Line2D([], [], label="recommended", **ring))
    handles.append(Line2D([], [], color=theme.ink, linestyle=(0, (4.0, 1.8)), label="unstable from this rate on"))
    return handles
