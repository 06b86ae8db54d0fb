"""A plan at a glance: pace against staleness, idle time, each client's weight, and what identical weights would do.

A colour is a scheme. Clients lie on an axis of their mean times: weights d_i make up for how often each contributes,
and beside them is how much each would count, q̃_i/p_i, if all weights were equal; 1 is fair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from fedtempo.clock.times import Floats
from fedtempo.planning.compare import Plan, SchemePlan
from fedtempo.report.inks import Theme, colours, theme_of
from fedtempo.report.style import bare, ending_of, finished, head, legend_below, new_figure, note_above, scale
from fedtempo.report.text import counted

_EXAMPLE = "plan.svg"
_STALE = 10.0
"""Mean staleness from which its axis is logarithmic above 1."""
_ONE_TWO_FIVE = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
_MARKED = 30
_POINTS = 10_000
"""Clients that a line goes through, at most."""
"""Clients up to which each has a mark."""


def plan_figure(plan: Plan, *, path: Path | None = None, style: str = "light") -> Figure:
    """The figure; with `path` also a file."""
    theme = theme_of(style)
    if path is not None:
        ending_of(path, _EXAMPLE)
    ink = colours([one.scheme.label for one in plan.schemes], theme)
    with rc_context(theme.rc):
        names = 0.07 * max(len(one.scheme.label) for one in plan.schemes)
        figure = new_figure(9.2 + max(0.0, names - 1.0), 6.4 + 0.14 * max(0, len(plan.schemes) - 8))
        (pace, idle), (weights, bias) = figure.subplots(2, 2)
        _pace(pace, plan, ink, theme)
        _idle(idle, plan, ink, theme)
        _by_client(weights, plan, ink, theme, _weights_of, "The weight of a client's update", "weight $d_i$")
        _by_client(bias, plan, ink, theme, _bias_of, "With identical weights", "how much it counts, 1 is its due")
        bias.axhline(1.0, color=theme.ink, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        legend_below(figure, [_handle(label, colour) for label, colour in ink.items()])
        sizes = f"{counted(len(plan.schemes), 'scheme')}, {counted(plan.times.num_clients, 'client')}"
        note_above(figure, f"{sizes}, {plan.weight_rule.label} weights")
    return finished(figure, path, example=_EXAMPLE)


def _handle(label: str, colour: str) -> Artist:
    return Line2D([], [], color=colour, linewidth=2.4, marker="o", markersize=5, label=label)


def _pace(axes: Axes, plan: Plan, ink: Mapping[str, str], theme: Theme) -> None:
    """Client updates in a unit of time against how stale they are."""
    stale = np.array([one.mean_delay for one in plan.schemes])
    updates = np.array([one.updates_per_time for one in plan.schemes])
    for one, x, y in zip(plan.schemes, stale, updates, strict=True):
        axes.plot(x, y, "o", color=ink[one.scheme.label], markersize=8, markeredgecolor=theme.background, zorder=3)
    scale(axes, "x", stale, logarithmic=False)
    if float(stale.max()) > _STALE:  # asynchronous rounds would push all others into a corner
        axes.set_xscale("symlog", linthresh=1.0, linscale=0.7)
        axes.set_xlim(-0.15, 1.4 * float(stale.max()))
        axes.xaxis.set_major_locator(FixedLocator([0, 0.5, *_ONE_TWO_FIVE]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    scale(axes, "y", np.append(updates, 0.0), logarithmic=False)
    axes.set_ylim(0, None)
    axes.set_xlabel("mean staleness of an update [rounds]")
    axes.set_ylabel("updates in a unit of time")
    head(axes, "Pace and staleness")
    bare(axes, theme)


def _idle(axes: Axes, plan: Plan, ink: Mapping[str, str], theme: Theme) -> None:
    """The share of their time in which clients have nothing to do; beside it what is lost where they come and go."""
    labels = [one.scheme.label for one in plan.schemes]
    shares = [one.idle_share for one in plan.schemes]
    wasted = [0.0 if one.costs is None else one.costs.work.failed + one.costs.work.lost for one in plan.schemes]
    axes.barh(range(len(labels)), shares, color=[ink[label] for label in labels], height=0.66)
    for place, (share, gone) in enumerate(zip(shares, wasted, strict=True)):
        text = f"{share:.0%}" + (f", {gone:.0%} of the work lost" if gone else "")
        axes.annotate(text, (share, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(0.1, max(shares) * (1.7 if any(wasted) else 1.18)))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("share of the clients' time")
    head(axes, "Clients without work")
    bare(axes, theme, along="x")


def _weights_of(one: SchemePlan) -> Floats | None:
    return None if one.weights is None else np.asarray(one.weights.values[-1], dtype=np.float64)


def _bias_of(one: SchemePlan) -> Floats | None:
    return np.asarray(one.identical_share / one.run.after_last_change.importance.values)


def _by_client(
    axes: Axes,
    plan: Plan,
    ink: Mapping[str, str],
    theme: Theme,
    of: Callable[[SchemePlan], Floats | None],
    title: str,
    label: str,
) -> None:
    """A line a scheme over the clients' mean times."""
    drawn, at = [np.empty(0)], [np.empty(0)]
    for one in plan.schemes:
        values, means = of(one), plan.times.mean_time
        if values is None:
            continue
        if len(values) != len(means):  # of those who stay, where some leave for good
            means = one.run.after_last_change.times.mean_time
        order = np.argsort(means, kind="stable")
        if len(order) > _POINTS:  # evenly spread, the ends among them
            order = order[np.linspace(0, len(order) - 1, _POINTS).astype(np.int64)]
        marker = "o" if len(means) <= _MARKED else None
        look: dict[str, Any] = {"color": ink[one.scheme.label], "linewidth": 1.5, "marker": marker, "markersize": 3.5}
        axes.plot(means[order], values[order], zorder=3, **look)
        drawn.append(values[order])
        at.append(means[order])
    values = np.concatenate(drawn)
    scale(axes, "y", values[np.isfinite(values)], logarithmic=True)
    scale(axes, "x", np.concatenate(at), logarithmic=True)
    axes.set_xlabel("a client's mean time for a job")
    axes.set_ylabel(label)
    head(axes, title)
    bare(axes, theme)
