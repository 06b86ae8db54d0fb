"""A recommendation as a picture: predicted loss against FedFix's wait, and below it the rates.

Above: the predicted loss, above the least, of FedFix at its best rate for every wait; the others stand at the mean
time of a round. Below: the rate chosen, and the rate from which training is unstable.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from fedtempo.planning.recommend import Recommendation
from fedtempo.report.style import INK, STYLE, colours, save_figure
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme

_EXAMPLE = "plan.svg"
_MARKS = {"fedfix": "^", "fedavg": "o", "async": "s", "fedbuff": "D"}


def recommendation_figure(made: Recommendation) -> Figure:
    """The figure; nothing is written."""
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 5.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        places = _places(made)
        ink = _inks(made)
        _losses(upper, made, places, ink)
        _rates(lower, made, places, ink)
        best = made.best
        figure.suptitle(
            f"{best.scheme.label} at {best.local_lr:g}: predicted loss {best.loss:.3g} at time {float(made.until):g}",
            x=0.01,
            ha="left",
            fontsize=10,
            fontweight="bold",
        )
    return figure


def save_recommendation(made: Recommendation, path: Path) -> None:
    """Write the figure; the ending says as what."""
    save_figure(recommendation_figure(made), path, example=_EXAMPLE)


def _places(made: Recommendation) -> dict[str, float]:
    """Where on the axis of waits a scheme stands: FedBuff where a round lasts as long on average."""
    found: dict[str, float] = {}
    for one in made.predictions:
        scheme = one.scheme
        mean = float(made.until) / max(one.num_rounds, 1)
        found[scheme.label] = float(scheme.wait) if isinstance(scheme, FedFix) else mean
    return found


def _inks(made: Recommendation) -> dict[str, str]:
    kinds = colours([_kind(one.scheme) for one in made.predictions])
    return {one.scheme.label: kinds[_kind(one.scheme)] for one in made.predictions}


def _kind(scheme: Scheme) -> str:
    for kind, name in ((FedAvg, "FedAvg"), (AsyncFedAvg, "AsyncFedAvg"), (FedFix, "FedFix"), (FedBuff, "FedBuff")):
        if isinstance(scheme, kind):
            return name
    return scheme.label


def _losses(axes: Axes, made: Recommendation, places: dict[str, float], ink: dict[str, str]) -> None:
    fix = [(float(wait), choice.excess) for wait, choice in made.waits if np.isfinite(choice.excess)]
    shown: set[str] = set()
    if fix:
        axes.plot(*zip(*fix, strict=True), color=ink[f"{made.waits[0][1].scheme.label}"], linewidth=1.6, zorder=2)
    for choice in made.choices:
        if not np.isfinite(choice.excess):
            continue
        label, kind = choice.scheme.label, _kind(choice.scheme)
        axes.plot(
            places[label],
            choice.excess,
            marker=_MARKS.get(choice.scheme.name, "v"),
            color=ink[label],
            markersize=6,
            linestyle="none",
            label=None if kind in shown else kind,
            zorder=3,
        )
        shown.add(kind)
    best = made.best
    axes.plot(places[best.scheme.label], best.excess, "o", mfc="none", mec=INK, ms=13, mew=1.4, label="recommended")
    axes.set_yscale("log")
    axes.set_ylabel("predicted loss\nabove the least, at its best rate")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    _plain(axes)


def _rates(axes: Axes, made: Recommendation, places: dict[str, float], ink: dict[str, str]) -> None:
    limits = made.limits
    order = sorted(made.choices, key=lambda one: places[one.scheme.label])
    x = [places[one.scheme.label] for one in order]
    limit = [limits[one.scheme.label].lr for one in order]
    axes.plot(x, limit, "_", color=INK, markersize=11, mew=1.6, label="unstable from here on")
    for one in order:
        label = one.scheme.label
        axes.plot(
            places[label], one.local_lr, marker=_MARKS.get(one.scheme.name, "v"), color=ink[label], ms=5.5, ls="none"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("local learning\nrate")
    axes.set_xlabel("wait of FedFix; for others the mean time of a round")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)
