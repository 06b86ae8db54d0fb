"""Figures 4 to 7: FedAvg, asynchronous FedAvg, FedFix and FedBuff.

    figure 4          each at its best local learning rate:  (a) M = 20   (b) M = 50 clients; identical hardware (F0)
                      beside the fastest five times as fast (F80)
    figures 5 to 7    all at every local learning rate, for one data set each (appendix D): the loss at the end against
                      the rate, and below it the curves of each rate

Panels that are compared have the same axes. In figure 4 above a panel is the rate that is best for each scheme there;
mean lines are inside the frame, bands are cut at it. In the others schemes that are flat at small rates become fast,
then unstable, and a cross is where a seed diverged. Their axes end a little above the loss at the start: what is above
says no more than that it is unstable, and a loss at the end that is there is an arrow at the upper edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
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
    beginning,
    crosses,
    draw_curve,
    draw_ends,
    draw_schemes,
    rate_of,
    rate_text,
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
    panels_below,
    rate_head,
    scheme_handles,
)
from fedtempo.paper.stages import at_own_rates, at_rate_of, rule_of
from fedtempo.report.style import INK, STYLE, scale
from fedtempo.simulation.history.history import History

_COLUMNS = (4, 5, 3)
_ROOM = 1.12  # times the loss at the start: where the axes of figures 5 to 7 end


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
        size = (min(10.0, max(7.0, 2.3 * columns)), 3.6 + 1.5 * rows)
        figure, wide, grid = panels_below(rows, columns, size, heading, height=1.7)
        drawn = [scheme_curves(run, looks) for run in runs]
        every = [curve for curves in drawn for curve in curves]
        scale_losses(grid[0][0], every, 0.0, _ROOM)
        _ends_by_rate(wide, rates or [_only_rate(history)], drawn)
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


def _only_rate(history: History) -> float:
    return rate_of(history, str(history.dataset["scheme"].values[0]), rule_of(history))


def _ends_by_rate(axes: Axes, rates: Sequence[float], drawn: Sequence[Sequence[Curve]]) -> None:
    """The loss at the end of each scheme against the rate; crosses where a seed diverged."""
    lines: dict[Look, list[tuple[float, Curve]]] = {}
    for rate, curves in zip(rates, drawn, strict=True):
        for curve in curves:
            lines.setdefault(curve.look, []).append((rate, curve))
    found = [curve for curves in drawn for curve in curves]
    if not found or not all(map(math.isfinite, rates)):
        blank(axes)
        return
    top = _ROOM * beginning(found)
    known = np.array([curve.end for curve in found if math.isfinite(curve.end)])
    scale(axes, "y", np.minimum(np.append(known, beginning(found)), top), logarithmic=True)
    upper = axes.get_ylim()[1]
    axes.set_xscale("log")
    axes.set_xlim(rates[0] * 0.8, rates[-1] * 1.25)
    axes.set_xticks(list(rates), [rate_text(rate) for rate in rates])
    axes.set_xticks([], minor=True)
    gone, above = [], []
    for look, points in lines.items():
        at = np.array([rate for rate, _ in points])
        ends = np.array([curve.end for _, curve in points])
        spread = np.array([curve.end_deviation for _, curve in points])
        inside = ends <= upper
        draw_curve(axes, Curve(at, np.where(inside, ends, np.nan), spread, False, look))
        gone += [(rate, upper, look) for rate, curve in points if curve.diverged]
        above += [(rate, upper, look) for rate in at[ends > upper].tolist()]
    axes.set_ylim(top=upper)
    crosses(axes, [*gone, *above], above=len(above))
    axes.set_ylabel("federated loss,\nlast tenth of the time", fontsize=8.5)
    axes.set_xlabel("local learning rate $\\eta_l$", fontsize=8.5)


CLIENTS = (20, 50)
DATA = {"cifar10": "CIFAR-10", "shakespeare": "Shakespeare"}
TIMES = ("F0", "F80")


def steady_figure(parts: Mapping[str, History], titles: Mapping[str, str], note: str) -> Figure:
    """As `schemes_figure`, every scheme at the rate that is best for FedAvg; ends at its own best rate are hollow."""
    return schemes_figure(parts, titles, note, lambda history: at_rate_of(history, "FedAvg"), at_own_rates)


def schemes_figure(
    parts: Mapping[str, History],
    titles: Mapping[str, str],
    note: str,
    chosen: Callable[[History], History] = at_own_rates,
    beside: Callable[[History], History] | None = None,
) -> Figure:
    """The parts named `{cifar10,shakespeare}-{20,50}-{F0,F80}`; panels without a title are named after them.

    Rates are `chosen`; ends of schemes whose rate is another one in `beside` are hollow, and that rate is in brackets.
    """
    looks = scheme_looks(parts.values())
    with rc_context(STYLE):
        figure, grid = panels(len(CLIENTS), len(DATA) * len(TIMES), (9.8, 5.6), note)
        drawn: list[Curve] = []
        others: list[Curve] = []
        for d, (data, words) in enumerate(DATA.items()):
            places = {
                f"{data}-{clients}-{times}": (r, d * len(TIMES) + c)
                for r, clients in enumerate(CLIENTS)
                for c, times in enumerate(TIMES)
            }
            best = {name: chosen(lone(parts[name])) for name in places if name in parts}
            curves = {name: scheme_curves(history, looks) for name, history in best.items()}
            second = {name: history if beside is None else beside(lone(parts[name])) for name, history in best.items()}
            hollow = {name: scheme_curves(second[name], _others(best[name], second[name], looks)) for name in best}
            limits_of = [curve for found in curves.values() for curve in found]
            beyond = [_ends(curve) for found in hollow.values() for curve in found]
            for name, (r, c) in places.items():
                axes = grid[r][c]
                title = titles.get(name, f"{words}, {name.rsplit('-')[-1]}")
                head(axes, title.removesuffix(f", M = {CLIENTS[r]}"), pad=26.0)  # which the row says
                if not curves.get(name):
                    blank(axes)
                    continue
                scale_losses(axes, [*limits_of, *beyond], 0.0)
                linear_time(axes, best[name].dataset["time"].values)
                draw_schemes(axes, curves[name], limits_of)
                draw_ends(axes, curves[name], hollow[name])
                _rates(axes, best[name], looks, second[name])
                left = f"{data}-{CLIENTS[r]}-{TIMES[0]}"
                axes.tick_params(labelleft=name == left or not curves.get(left))
            drawn += limits_of
            others += beyond
        for row, letter, clients in zip(grid, "ab", CLIENTS, strict=True):
            row[0].set_ylabel(f"({letter}) $M$ = {clients}\nfederated loss", fontsize=8.5)
        figure.align_ylabels([row[0] for row in grid])
        for column in zip(*grid, strict=True):
            label_below(column)
        ends = [end_handle("last tenth of the time")] if drawn else []
        ends += [end_handle("at its own best rate, in brackets", hollow=True)] if others else []
        legend_below(figure, [*scheme_handles(looks, drawn), *ends])
    return figure


def _rate(history: History, scheme: str) -> str:
    """The rate of a scheme, in few letters."""
    return rate_text(rate_of(history, scheme, rule_of(history)))


def _others(best: History, second: History, looks: Mapping[str, Look]) -> dict[str, Look]:
    """The schemes whose second rate is another one."""
    return {scheme: look for scheme, look in looks.items() if _rate(second, scheme) != _rate(best, scheme)}


def _ends(curve: Curve) -> Curve:
    """Where a curve begins, and its final value: what an axis has to have room for where no line is drawn."""
    mean = np.full_like(curve.mean, math.nan)
    mean[0], mean[-1] = curve.mean[0], curve.end
    return replace(curve, mean=mean)


def _rates(axes: Axes, best: History, looks: Mapping[str, Look], second: History) -> None:
    """The rate of each scheme beside a piece of its line, above the panel in two rows; in brackets its second one."""
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
            rates = [_rate(history, scheme) for history in (best, second)]
            words = rates[0] if rates[0] == rates[1] else f"{rates[0]} ({rates[1]})"
            text = TextArea(words, textprops={"fontsize": SMALL, "color": INK})
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
