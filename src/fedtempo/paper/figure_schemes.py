"""Figures 4 to 7: FedAvg, asynchronous FedAvg, FedFix and FedBuff.

    figure 4          each at its best local learning rate:  (a) M = 20   (b) M = 50 clients; identical hardware (F0)
                      beside the fastest five times as fast (F80)
    figures 5 to 7    all at every local learning rate, for one data set each (appendix D)

Panels that are compared have the same axes. In figure 4 they leave out the first twentieth of the time, and above a
panel is the rate that is best for each scheme there. In the others what changes from panel to panel is the rate:
schemes that are flat at first become fast, then unstable, and a cross is where a seed diverged. Losses above three
times the first are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, TextArea, VPacker

from fedtempo.grid import RATE
from fedtempo.paper.curves import (
    SMALL,
    Curve,
    Look,
    draw_ends,
    draw_schemes,
    rate_of,
    rate_text,
    rule_of,
    scale_losses,
    scheme_curves,
    scheme_looks,
)
from fedtempo.paper.panels import (
    blank,
    blank_figure,
    end_handle,
    head,
    label_below,
    legend_below,
    linear_time,
    lone,
    name_of,
    panels,
    rate_head,
    scheme_handles,
)
from fedtempo.paper.stages import at_own_rates
from fedtempo.report.style import INK, STYLE
from fedtempo.simulation.history.history import History

_COLUMNS = (4, 5, 3)


def rates_figure(parts: Mapping[str, History], titles: Mapping[str, str], note: str) -> Figure:
    """One part, the first: a panel for each local learning rate, a curve for each scheme."""
    name = name_of(parts, titles)
    heading = f"{titles.get(name, name)}. {note}"
    with rc_context(STYLE):
        if name not in parts:
            return blank_figure(heading)
        history = lone(parts[name])
        looks = scheme_looks([history])
        rates = history.dataset[RATE].values.tolist() if RATE in history.hyper else []
        runs = [history.select(**{RATE: rate}) for rate in rates] or [history]
        columns = min(len(runs), min(_COLUMNS, key=lambda c: -len(runs) % c))
        rows = -(-len(runs) // columns)
        size = (min(10.0, max(7.0, 2.3 * columns)), 1.1 + 1.65 * rows)
        figure, grid = panels(rows, columns, size, heading, sharex="all", sharey="all")
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


CLIENTS = (20, 50)
DATA = {"cifar10": "CIFAR-10", "shakespeare": "Shakespeare"}
TIMES = ("F0", "F80")
_LEFT_OUT = 1 / 20


def schemes_figure(parts: Mapping[str, History], titles: Mapping[str, str], note: str) -> Figure:
    """The parts named `{cifar10,shakespeare}-{20,50}-{F0,F80}`; panels without a title are named after them."""
    looks = scheme_looks(parts.values())
    with rc_context(STYLE):
        figure, grid = panels(len(CLIENTS), len(DATA) * len(TIMES), (9.8, 5.6), note)
        drawn: list[Curve] = []
        for d, (data, words) in enumerate(DATA.items()):
            places = {
                f"{data}-{clients}-{times}": (r, d * len(TIMES) + c)
                for r, clients in enumerate(CLIENTS)
                for c, times in enumerate(TIMES)
            }
            best = {name: at_own_rates(lone(parts[name])) for name in places if name in parts}
            curves = {name: scheme_curves(history, looks) for name, history in best.items()}
            limits_of = [curve for found in curves.values() for curve in found]
            for name, (r, c) in places.items():
                axes = grid[r][c]
                title = titles.get(name, f"{words}, {name.rsplit('-')[-1]}")
                head(axes, title.removesuffix(f", M = {CLIENTS[r]}"), pad=26.0)  # which the row says
                if not curves.get(name):
                    blank(axes)
                    continue
                scale_losses(axes, limits_of, _LEFT_OUT)
                linear_time(axes, best[name].dataset["time"].values)
                draw_schemes(axes, curves[name], limits_of)
                draw_ends(axes, curves[name])
                _rates(axes, best[name], looks)
                left = f"{data}-{CLIENTS[r]}-{TIMES[0]}"
                axes.tick_params(labelleft=name == left or not curves.get(left))
            drawn += limits_of
        for row, letter, clients in zip(grid, "ab", CLIENTS, strict=True):
            row[0].set_ylabel(f"({letter}) $M$ = {clients}\nfederated loss", fontsize=8.5)
        figure.align_ylabels([row[0] for row in grid])
        for column in zip(*grid, strict=True):
            label_below(column)
        ends = [end_handle("last tenth of the time")] if drawn else []
        legend_below(figure, [*scheme_handles(looks, drawn), *ends])
    return figure


def _rates(axes: Axes, best: History, looks: Mapping[str, Look]) -> None:
    """The rate of each scheme beside a piece of its line, above the panel in two rows."""
    rule = rule_of(best)
    items: list[Artist] = []
    for scheme, look in looks.items():
        if scheme in best.dataset["scheme"].values:
            swatch = DrawingArea(14, 6)
            swatch.add_artist(Line2D([0, 14], [3, 3], color=look.colour, linewidth=look.width))
            swatch.add_artist(
                Line2D(
                    [7],
                    [3],
                    color=look.colour,
                    marker=look.mark,
                    markersize=4,
                    markeredgecolor="white",
                    markeredgewidth=0.5,
                )
            )
            text = TextArea(rate_text(rate_of(best, scheme, rule)), textprops={"fontsize": SMALL, "color": INK})
            items.append(HPacker(children=[swatch, text], pad=0, sep=3, align="center"))
    half = -(-len(items) // 2)
    columns: list[Artist] = [VPacker(children=items[k::half], pad=0, sep=2, align="left") for k in range(half)]
    name: list[Artist] = [TextArea("$\\eta_l$", textprops={"fontsize": 8.5, "color": INK})]
    whole = HPacker(children=name + columns, pad=0, sep=8, align="center")
    box = AnchoredOffsetbox(
        "lower left",
        child=whole,
        pad=0.0,
        borderpad=0.2,
        frameon=False,
        bbox_to_anchor=(0.0, 1.0),
        bbox_transform=axes.transAxes,
    )
    axes.add_artist(box)
