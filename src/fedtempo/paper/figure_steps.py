"""Figure 3: the federated loss at the end against the number of local steps K, for both weight rules.

    mean and deviation of L over the last 5 % of the time, each averaged over seeds

One panel for each local learning rate; below it the deviation alone. A cross is a K of which a seed diverged. A rate
that is mostly crosses says nothing about K: where others are left, it is named above instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.paper.curves import BIASED, Curve, Look, crosses, draw_curve, rate_text, rule_looks
from fedtempo.paper.panels import (
    band_handle,
    blank,
    blank_figure,
    cross_handle,
    has_bands,
    label_below,
    legend_below,
    name_of,
    panels,
    rate_head,
)
from fedtempo.report.style import STYLE, floor_of, scale
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import at_the_end
from fedtempo.simulation.history.summary import FAIR

STEPS = "local_steps"
_LAST = 0.05
_MANY = 1 / 3
_MARKS = {"identical": "s", "time-based": "o"}


def steps_figure(parts: Mapping[str, History], titles: Mapping[str, str], note: str) -> Figure:
    """One part, the first: a history of one scheme over `local_steps`, under both weight rules."""
    name = name_of(parts, titles)
    heading = f"{titles.get(name, name)}. {note}"
    with rc_context(STYLE):
        if name not in parts:
            return blank_figure(heading)
        ends = _ends(parts[name])
        lost = _lost(ends)
        rates = [rate for rate in ends[RATE].values.tolist() if rate not in lost]
        heading += "".join(f" At {rate_text(rate)} {share}, which is not drawn." for rate, share in lost.items())
        size = (float(np.clip(1.0 + 2.3 * len(rates), 7.0, 10.0)), 5.2)
        figure, grid = panels(2, len(rates), size, heading, sharex="all")
        handles: list[Line2D | Patch] = []
        for k, rate in enumerate(rates):
            run = ends.isel({RATE: ends[RATE].values.tolist().index(rate) if np.isfinite(rate) else k})
            handles = [*handles, *_panels(grid[0][k], grid[1][k], run)]
            rate_head(grid[0][k], rate)
            label_below([grid[0][k], grid[1][k]], "local steps $K$")
        grid[0][0].set_ylabel("(a) federated loss\n(mean ± deviation)", fontsize=8.5)
        grid[1][0].set_ylabel("(b) the deviation\nalone", fontsize=8.5)
        figure.align_ylabels([row[0] for row in grid])
        legend_below(figure, list({str(h.get_label()): h for h in handles}.values()))
    return figure


def _ends(history: History) -> xr.Dataset:
    """Mean and deviation over the end of the time, averaged over seeds, and whether a seed diverged."""
    history = history.only()
    dataset = history.dataset.isel(scheme=0)
    if STEPS not in dataset.coords:
        raise InputError(f"the history has no {STEPS}; run the study with a list of them")
    last = at_the_end(dataset["loss"], _LAST)
    gone = history.diverged.isel(scheme=0).any("seed")
    deviation = last.std("time", ddof=1, skipna=False) if last.sizes["time"] > 1 else last.isel(time=0) * np.nan
    means = {"mean": last.mean("time", skipna=False), "deviation": deviation}
    ends = xr.Dataset({n: v.mean("seed").where(~gone) for n, v in means.items()}).assign(gone=gone)
    if RATE not in ends.coords:
        ends = ends.assign_coords({RATE: np.nan})
    return ends.expand_dims([d for d in (STEPS, RATE) if d not in ends.dims])


def _lost(ends: xr.Dataset) -> dict[float, str]:
    """The rates at which a seed diverged in too many places, with how many; none if there are no others."""
    gone = ends["gone"].sel(weights=[r for r in (BIASED, FAIR) if r in ends["weights"].values])
    places = gone.size // gone.sizes[RATE]
    counts = gone.sum([d for d in gone.dims if d != RATE]).values.tolist()
    found = {
        rate: f"a seed diverged at {count} of {places} points"
        for rate, count in zip(ends[RATE].values.tolist(), counts, strict=True)
        if count > _MANY * places
    }
    return found if len(found) < len(counts) else {}


def _panels(upper: Axes, lower: Axes, ends: xr.Dataset) -> list[Line2D | Patch]:
    """Both panels of a rate; what a legend lists of them."""
    steps = ends[STEPS].values.astype(float)
    looks = {rule: replace(look, mark=_MARKS[rule]) for rule, look in rule_looks(str(ends["scheme"].values)).items()}
    rules = [rule for rule in looks if rule in ends["weights"].values]
    loss, spread, gone = {}, {}, []
    for rule in rules:
        run = ends.sel(weights=rule)
        mean, deviation = run["mean"].values.astype(float), run["deviation"].values.astype(float)
        loss[rule] = Curve(steps, mean, deviation, bool(run["gone"].any()), looks[rule])
        spread[rule] = Curve(steps, deviation, deviation * np.nan, False, looks[rule])
        gone += [(k, looks[rule]) for k in steps[run["gone"].values]]
    _draw(upper, list(loss.values()), gone, "not run")
    _draw(lower, list(spread.values()), gone, "not known" if any(c.known for c in loss.values()) else "not run")
    if len(steps) > 1:
        margin = 0.04 * (steps[-1] - steps[0])
        upper.set_xlim(steps[0] - margin, steps[-1] + margin)
    upper.set_xticks(_far_apart(steps))
    handles: list[Line2D | Patch] = [looks[rule].handle(f"{rule} weights") for rule in rules]
    if has_bands(loss.values()):
        handles.append(band_handle("± deviation over the last 5 % of the time"))
    return [*handles, *([cross_handle()] if gone else [])]


def _draw(axes: Axes, curves: list[Curve], gone: list[tuple[float, Look]], otherwise: str) -> None:
    known = [curve for curve in curves if curve.known]
    if not known:
        blank(axes, "diverged" if gone else otherwise)
        return
    lowest = floor_of(np.concatenate([curve.mean for curve in known]))
    values = np.concatenate([curve.around(-np.inf, lowest) for curve in known])
    if gone and values.min() > 0:  # room for crosses above the lines
        values = np.append(values, values.max() * (values.max() / values.min()) ** 0.1)
    scale(axes, "y", values, logarithmic=True)
    for curve in known:
        draw_curve(axes, curve, lowest=lowest)
    crosses(axes, [(steps, axes.get_ylim()[1], look) for steps, look in gone])


def _far_apart(steps: Floats) -> list[float]:
    """The first and those of the others that leave room for their labels."""
    kept = [float(steps[0])]
    for k in steps[1:].tolist():
        if k - kept[-1] >= 0.07 * (steps[-1] - steps[0]):
            kept.append(k)
    return kept
