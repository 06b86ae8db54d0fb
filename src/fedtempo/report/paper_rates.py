"""Figures of appendix D: the federated loss of every scheme at every local learning rate, for one data set each.

All panels have the same axes, so that what changes from one to the next is the rate: schemes that are flat at first
become fast, then unstable, and a cross is where a seed diverged. Losses above three times the first are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedtempo.grid import RATE
from fedtempo.history import History
from fedtempo.report.paper_curves import draw_schemes, rate_of, rule_of, scale_losses, scheme_curves, scheme_looks
from fedtempo.report.paper_parts import (
    blank,
    blank_figure,
    label_below,
    legend_below,
    linear_time,
    lone,
    name_of,
    panels,
    rate_head,
    scheme_handles,
)
from fedtempo.report.style import STYLE

_COLUMNS = (4, 5, 3)


def rates_figure(parts: Mapping[str, History], titles: Mapping[str, str], note: str) -> Figure:
    """One part, the first: a panel for each local learning rate, a curve for each scheme."""
    name = name_of(parts, titles)
    told = f"{titles.get(name, name)}. {note}"
    with rc_context(STYLE):
        if name not in parts:
            return blank_figure(told)
        history = lone(parts[name])
        looks = scheme_looks([history])
        rates = history.dataset[RATE].values.tolist() if RATE in history.hyper else []
        runs = [history.select(**{RATE: rate}) for rate in rates] or [history]
        columns = min(len(runs), min(_COLUMNS, key=lambda c: -len(runs) % c))
        rows = -(-len(runs) // columns)
        size = (min(10.0, max(7.0, 2.3 * columns)), 1.1 + 1.65 * rows)
        figure, grid = panels(rows, columns, size, told, sharex="all", sharey="all")
        drawn = [scheme_curves(run, looks) for run in runs]
        every = [curve for curves in drawn for curve in curves]
        scale_losses(grid[0][0], every, 0.0)
        linear_time(grid[0][0], history.dataset["time"].values)
        flat = [axes for row in grid for axes in row]
        for axes, run, curves in zip(flat, runs, drawn, strict=False):
            rate = rate_of(run, str(run.dataset["scheme"].values[0]), rule_of(run))
            rate_head(axes, rate)
            if curves:
                draw_schemes(axes, curves, every)
            else:
                blank(axes)
        for axes in flat[len(runs) :]:
            axes.set_axis_off()
        for column in zip(*grid, strict=True):
            label_below(column)
        for row in grid:
            row[0].set_ylabel("federated loss", fontsize=8.5)
        legend_below(figure, scheme_handles(looks, every))
    return figure
