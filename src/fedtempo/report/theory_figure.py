"""Pictures of the theory's objects: how much each client counts under a scheme, and a bound term by term."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedtempo.clock.times import Floats
from fedtempo.report.inks import Theme, theme_of
from fedtempo.report.style import bare, ending_of, finished, head, legend_below, new_figure, note_above, scale
from fedtempo.report.theory_tables import TERMS, TOTALS
from fedtempo.theory.bounds import Bound
from fedtempo.theory.tables import Quantities

_EXAMPLE = "theory.svg"


def quantities_figure(found: Quantities, *, path: Path | None = None, style: str = "light") -> Figure:
    """Importance p_i beside q̃_i, how much each client counts, and the weights d_i; with `path` also a file."""
    theme = theme_of(style)
    if path is not None:
        ending_of(path, _EXAMPLE)
    q = found.expected
    share, due, weight = (theme.families[name] for name in ("FedFix", "FedAvg", "AsyncFedAvg"))
    with rc_context(theme.rc):
        figure = new_figure(9.0 if found.weights is not None else 5.0, 3.8)
        row = figure.subplots(1, 1 if found.weights is None else 2, squeeze=False)[0].tolist()
        _clients(row[0], found, [(share, q.normalised_run), (due, found.importance)], theme)
        head(row[0], "How much a client counts")
        row[0].set_ylabel("share of the objective")
        if found.weights is not None:
            _clients(row[1], found, [(weight, found.weights)], theme)
            head(row[1], "Its weight")
            row[1].set_ylabel("weight $d_i$")
        lines: list[tuple[str, Any, str]] = [
            (share, "-", "counts, in the mean over rounds: $\\tilde q_i$"),
            (due, (0, (3, 3)), "is due: $p_i$"),
        ]
        legend_below(
            figure, [Line2D([], [], color=c, linestyle=dash, linewidth=1.8, label=name) for c, dash, name in lines]
        )
        delay = "unbounded" if q.max_delay is None else str(q.max_delay)
        numbers = f"α = {q.co_participation:.3g}, β = {q.weight_spread:.3g}, τ = {delay}"
        note_above(
            figure, f"{q.num_clients} clients, N = {q.num_rounds}, {numbers}, χ² = {found.by_type.chi_squared_run:.3g}"
        )
    return finished(figure, path, example=_EXAMPLE)


def _clients(axes: Axes, found: Quantities, lines: list[tuple[str, Floats]], theme: Theme) -> None:
    """Values of the clients, over their mean times where these are known."""
    places = np.arange(found.expected.num_clients) if found.mean_time is None else found.mean_time
    order = np.argsort(places, kind="stable")
    marker = "o" if len(places) <= 40 else None
    for k, (colour, values) in enumerate(lines):
        look = {"linestyle": (0, (3, 3))} if k else {"marker": marker, "markersize": 4}  # two may lie on each other
        axes.plot(places[order], values[order], color=colour, linewidth=1.5, zorder=3, **look)
    every = np.concatenate([values for _, values in lines])
    scale(axes, "y", every, logarithmic=True)
    if axes.get_yscale() == "linear":
        axes.set_ylim(0, 1.08 * float(every.max()))
    if found.mean_time is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        scale(axes, "x", found.mean_time, logarithmic=True)
    axes.set_xlabel("client" if found.mean_time is None else "a client's mean time for a job")
    bare(axes, theme)


def bound_figure(found: Bound, *, path: Path | None = None, style: str = "light") -> Figure:
    """The terms of a bound as bars, and the theorems that they add up to; with `path` also a file."""
    theme = theme_of(style)
    if path is not None:
        ending_of(path, _EXAMPLE)
    terms = {f"{TERMS[name]}  {name}": value for name, value in found.terms.items()}
    sums = {
        f"{what}  {name if name.strip() == name else 'Theorem 3'}": getattr(found, key) for key, name, what in TOTALS
    }
    with rc_context(theme.rc):
        figure = new_figure(7.4, 4.6)
        axes = figure.add_subplot()
        _bars(axes, {**terms, **sums}, len(terms), theme)
        head(axes, "What the theory promises, term by term")
        steps = found.steps
        note_above(
            figure, f"N = {found.expected.num_rounds} rounds, local lr {steps.local_lr:g}, K = {steps.local_steps}"
        )
    return finished(figure, path, example=_EXAMPLE)


def _bars(axes: Axes, values: dict[str, float | None], terms: int, theme: Theme) -> None:
    """Bars on a logarithmic axis; what is nothing, or not known, is said."""
    known = [value for value in values.values() if value is not None and np.isfinite(value) and value > 0]
    low = 10.0 ** np.floor(np.log10(max(min(known), max(known) * 1e-6)) - 0.3) if known else 0.1
    for place, (_, value) in enumerate(values.items()):
        at = place + 0.5 * (place >= terms)
        colour = theme.families["FedFix"] if place < terms else theme.families["AsyncFedAvg"]
        end = low if value is None or not np.isfinite(value) else max(low, value)
        if end > low:
            axes.barh(at, end, color=colour, height=0.66)
        said = "not known" if value is None else f"{value:.3g}"
        axes.annotate(said, (end, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(low, 6 * max(known, default=1.0))
    places = [place + 0.5 * (place >= terms) for place in range(len(values))]
    axes.set_yticks(places, list(values), fontsize=8)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("bound on a mean over the run")
    bare(axes, theme, along="x")
