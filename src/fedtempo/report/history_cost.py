"""A picture of what identical weights cost: the final loss of each scheme under both weight rules."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from fedtempo.report.history_axes import scale
from fedtempo.report.history_style import colours
from fedtempo.report.history_summary import FAIR, Summary
from fedtempo.report.phrases import signed


def pairs(summary: Summary) -> list[str]:
    """The schemes of which the final loss is known under both weight rules."""
    known = {(r.scheme, r.weights) for r in summary.rows if np.isfinite(r.loss)}
    return [s for s in dict.fromkeys(r.scheme for r in summary.rows) if {(s, FAIR), (s, "identical")} <= known]


def draw_cost(axes: Axes, summary: Summary) -> None:
    """The final loss of each scheme under both weight rules, and the difference in percent."""
    schemes = pairs(summary)
    shown = [r for r in summary.rows if r.scheme in schemes and r.weights in (FAIR, "identical")]
    ink = colours(list(dict.fromkeys(r.scheme for r in summary.rows)))
    for place, scheme in enumerate(schemes):
        fair, biased = summary.row(scheme), summary.row(scheme, "identical")
        assert fair is not None
        assert biased is not None
        axes.plot([fair.loss, biased.loss], [place, place], color=ink[scheme], linewidth=2.2, alpha=0.35, zorder=2)
        for row, fill in ((biased, "white"), (fair, ink[scheme])):
            error = None if np.isnan(row.loss_over_seeds) else row.loss_over_seeds
            axes.errorbar(
                row.loss,
                place,
                xerr=error,
                fmt="o",
                markersize=7,
                color=ink[scheme],
                markerfacecolor=fill,
                markeredgewidth=1.5,
                elinewidth=1.0,
                capsize=2.5,
                zorder=3,
            )
        if np.isfinite(biased.bias_cost):
            axes.annotate(
                signed(biased.bias_cost),
                (1.0, place),
                (4, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set_yticks(range(len(schemes)), schemes)
    axes.set_ylim(len(schemes) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("final federated loss:  ● time-based  ○ identical")
    axes.set_title("What identical weights cost", loc="left", fontsize=10, fontweight="bold")
    losses = [(r.loss, 0.0 if np.isnan(r.loss_over_seeds) else r.loss_over_seeds) for r in shown]
    scale(axes, "x", np.array([[a - b, a + b] for a, b in losses]), logarithmic=True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.7)
    axes.set_axisbelow(True)
