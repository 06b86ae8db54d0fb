"""A recommendation as a picture: the finalists over time, and below it every scheme against the wait.

Above: the measure over virtual time of schemes that were trained to the end, each at its best rate, the choice as the
thickest line; a band is two standard errors over seeds to either side. Below: what each scheme gave against the time
between two models. FedFix stands at its wait, others where a round lasts as long on average if a pilot said so; a
scheme of which that is not known is a level line with its mark beside the axis. Hollow marks were not trained to the
end: theirs is what they had when they were left.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedtempo.planning.recommendation import Choice, Recommendation
from fedtempo.report.inks import Theme, colours, theme_of
from fedtempo.report.recommendation_tables import measure_name, value_words
from fedtempo.report.style import (
    EndLabel,
    bare,
    ending_of,
    finished,
    floor_of,
    head,
    label_ends,
    legend_below,
    new_figure,
    scale,
)
from fedtempo.schemes.named import FedFix

_EXAMPLE = "plan.svg"
_MARKS = {"FedFix": "^", "FedAvg": "o", "AsyncFedAvg": "s", "FedBuff": "D"}
_MOST = 8
"""Lines of the upper panel."""
_UPRIGHT = 5
"""Names side by side on the lower axis; more of them are slanted."""
_DASHED: Any = (0, (4.0, 1.8))


def recommendation_figure(made: Recommendation, *, path: Path | None = None, style: str = "light") -> Figure:
    """The figure; with `path` also a file."""
    theme = theme_of(style)
    if path is not None:
        ending_of(path, _EXAMPLE)
    ink = colours([one.scheme.label for one in made.choices], theme)  # the best of a family has the family's
    with rc_context(theme.rc):
        figure = new_figure(7.4, 6.4)
        upper, lower = figure.subplots(2, 1, height_ratios=[1, 1])
        lines = _finalists(made)
        _draw_curves(upper, made, lines, ink, theme)
        _draw_values(lower, made, ink, theme)
        legend_below(figure, _handles(made, ink, theme))
        ends = [EndLabel(_last(made, one), _named(one), ink[one.scheme.label]) for one in lines]
        label_ends(upper, [end for end in ends if np.isfinite(end.value)], theme)
    return finished(figure, path, example=_EXAMPLE)


def save_recommendation(made: Recommendation, path: Path, *, style: str = "light") -> None:
    """Write the figure; the ending says as what."""
    recommendation_figure(made, path=path, style=style)


def _family(one: Choice) -> str:
    """What FedFix(1/8), FedFix(1/4), … have in common; a scheme with options of its own stands alone."""
    label = one.scheme.label
    return label if " + " in label else label.split("(")[0]


def _in_order(made: Recommendation) -> list[Choice]:
    """As they were asked for."""
    asked = {label: k for k, label in enumerate(dict.fromkeys(one.scheme.label for one in made.cells))}
    return sorted(made.choices, key=lambda one: asked.get(one.scheme.label, len(asked)))


def _named(one: Choice) -> str:
    return f"{one.scheme.label}, lr {one.local_lr:g}"


def _ended(one: Choice) -> bool:
    return one.trained >= 1


# -- over time


def _finalists(made: Recommendation) -> list[Choice]:
    """The best of those with a curve; FedAvg among them wherever it has one."""
    found = [one for one in made.choices if (one.scheme.label, one.local_lr) in made.curves]
    first = found[:_MOST]
    fedavg = [one for one in found[_MOST:] if made.fedavg is not None and one.scheme == made.fedavg.scheme]
    return [*first[: _MOST - len(fedavg)], *fedavg]


def _last(made: Recommendation, one: Choice) -> float:
    return float(made.curves[one.scheme.label, one.local_lr].mean[-1])


def _draw_curves(
    axes: Axes, made: Recommendation, lines: Sequence[Choice], ink: Mapping[str, str], theme: Theme
) -> None:
    found = [made.curves[one.scheme.label, one.local_lr] for one in lines]
    # the first steep rise of an accuracy would leave no room for what tells schemes apart
    first = float(made.until) / 20 if made.objective.largest else 0.0
    values = np.concatenate([curve.mean[curve.times >= first] for curve in found]) if found else np.empty(0)
    values = values[np.isfinite(values)]
    lowest, faint = floor_of(values), min(0.16, 0.8 / max(len(lines), 1))
    for one, curve in zip(lines, found, strict=True):
        colour, chosen = ink[one.scheme.label], one is made.best
        axes.plot(curve.times, curve.mean, color=colour, linewidth=2.8 if chosen else 1.3, zorder=4 if chosen else 3)
        if one.seeds > 1 and np.isfinite(curve.error).any():
            with np.errstate(invalid="ignore"):  # what has diverged has no band
                low, high = curve.mean - 2 * curve.error, curve.mean + 2 * curve.error
            low = np.maximum(low, lowest) if lowest > 0 else low
            axes.fill_between(curve.times, low, high, color=colour, alpha=faint, linewidth=0, zorder=2)
    to_reach = made.objective.kind == "time-to"
    if to_reach:
        values = np.append(values, made.objective.number)
        axes.axhline(made.objective.number, color=theme.ink, linewidth=1.0, linestyle=_DASHED, zorder=1)
    scale(axes, "y", values, logarithmic=not made.objective.largest)
    if not found:
        axes.text(0.5, 0.5, "nothing was trained to the end", transform=axes.transAxes, ha="center", va="center")
    axes.set_xlim(0, float(made.until))
    axes.set_xlabel("virtual time")
    axes.set_ylabel("loss" if to_reach else measure_name(made))
    head(axes, textwrap.fill(f"{made.best.scheme.label} at lr {made.best.local_lr:g}: {value_words(made)}", 80))
    bare(axes, theme)


# -- against the wait


def _places(made: Recommendation) -> dict[str, float]:
    """Where on the axis a scheme stands, of those of which it is known."""
    rounds = {one.scheme.label: one.num_rounds for one in made.predictions}
    found = {}
    for one in made.choices:
        label = one.scheme.label
        if isinstance(one.scheme, FedFix):
            found[label] = float(one.scheme.wait)
        elif rounds.get(label, 0) > 0:
            found[label] = float(made.until) / rounds[label]
    return found


def _draw_values(axes: Axes, made: Recommendation, ink: Mapping[str, str], theme: Theme) -> None:
    shown = [one for one in _in_order(made) if np.isfinite(one.loss)]
    places = _places(made)
    if places:
        _wait_axis(axes, list(places.values()))
        _join(axes, shown, places, theme)
    else:
        places = {one.scheme.label: float(k) for k, one in enumerate(shown)}
        _name_axis(axes, [one.scheme.label for one in shown])
    level = [one for one in shown if one.scheme.label not in places]
    for one in shown:
        if one.scheme.label in places:
            _mark(axes, one, places[one.scheme.label], made, ink[one.scheme.label], theme)
    for k, one in enumerate(level):
        colour, beside = ink[one.scheme.label], 1.02 + 0.028 * k
        look: dict[str, Any] = {"linewidth": 1.1, "linestyle": "-" if _ended(one) else _DASHED, "alpha": 0.6}
        where = axes.get_yaxis_transform()
        axes.plot([0, beside], [one.loss, one.loss], color=colour, zorder=2, clip_on=False, transform=where, **look)
        _mark(axes, one, beside, made, colour, theme, across=True)
    _value_axis(axes, made, shown)
    if level:
        names = "FedFix's wait, for others the mean" if made.predictions else "FedFix's wait; others are level lines"
        axes.set_xlabel(f"time from one model to the next: {names} [virtual time]")
    bare(axes, theme)


def _mark(
    axes: Axes, one: Choice, place: float, made: Recommendation, colour: str, theme: Theme, *, across: bool = False
) -> None:
    """A scheme's mark with its error; around the choice a ring. With `across`, `place` is a share of the width."""
    where: dict[str, Any] = {"transform": axes.get_yaxis_transform()} if across else {}
    if one.seeds > 1 and np.isfinite(one.error):
        low, high = one.loss - 2 * one.error, one.loss + 2 * one.error
        ends = [low if low > 0 or one.loss <= 0 else one.loss, high]
        axes.plot([place, place], ends, color=colour, linewidth=1.6, zorder=3, clip_on=False, **where)
    face = colour if _ended(one) else theme.background
    look: dict[str, Any] = {"marker": _MARKS.get(_family(one), "v"), "markersize": 6.5, "linestyle": ""}
    axes.plot(place, one.loss, color=colour, markerfacecolor=face, zorder=4, clip_on=False, **look, **where)
    if one is made.best:
        ring: dict[str, Any] = {"mfc": "none", "mec": theme.ink, "ms": 14, "mew": 1.5}
        axes.plot(place, one.loss, "o", zorder=5, clip_on=False, **ring, **where)


def _join(axes: Axes, shown: Sequence[Choice], places: Mapping[str, float], theme: Theme) -> None:
    """A faint line over those of a family that were trained to the end."""
    families: dict[str, list[tuple[float, float]]] = {}
    for one in shown:
        if _ended(one) and one.scheme.label in places:
            families.setdefault(_family(one), []).append((places[one.scheme.label], one.loss))
    for members in families.values():
        if len(members) > 1:
            x, y = zip(*sorted(members), strict=True)
            axes.plot(x, y, color=theme.faint, linewidth=1.1, zorder=2)


def _wait_axis(axes: Axes, places: Sequence[float]) -> None:
    low, high = min(places), max(places)
    margin = (high / low) ** 0.06 if high > 1.1 * low else 1.5
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin)
    few = high * margin < 8 * low / margin
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]) if few else LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("time from one model to the next: FedFix's wait, for others the mean [virtual time]")


def _name_axis(axes: Axes, labels: Sequence[str]) -> None:
    """Where no wait is known: the schemes side by side."""
    many = len(labels) > _UPRIGHT
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_xticks(range(len(labels)), labels, rotation=30 if many else 0, ha="right" if many else "center")


def _value_axis(axes: Axes, made: Recommendation, shown: Sequence[Choice]) -> None:
    values = [one.loss for one in shown]
    values += [one.loss + side * 2 * one.error for one in shown if one.seeds > 1 for side in (-1, 1)]
    known = np.array([value for value in values if np.isfinite(value)])
    positive = all(one.loss > 0 for one in shown)
    scale(axes, "y", known[known > 0] if positive else known, logarithmic=not made.objective.largest)
    if axes.get_yscale() != "log":
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_ylabel(textwrap.fill(made.measure_words, 34) + ",\neach scheme at its best rate")


# -- legend


def _handles(made: Recommendation, ink: Mapping[str, str], theme: Theme) -> list[Artist]:
    """Every scheme's colour and mark, and what a ring and hollow marks are."""
    handles: list[Artist] = []
    for one in _in_order(made):
        look: dict[str, Any] = {"marker": _MARKS.get(_family(one), "v"), "markersize": 6, "linewidth": 1.8}
        face = ink[one.scheme.label] if _ended(one) else theme.background
        handles.append(
            Line2D([], [], color=ink[one.scheme.label], markerfacecolor=face, label=one.scheme.label, **look)
        )
    ring: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "linestyle": ""}
    handles.append(Line2D([], [], color=theme.ink, markersize=10, label="recommended", **ring))
    if not all(map(_ended, made.choices)):
        handles.append(Line2D([], [], color=theme.ink, markersize=6, label="not trained to the end", **ring))
    if made.objective.kind == "time-to":
        handles.append(
            Line2D([], [], color=theme.ink, linestyle=_DASHED, linewidth=1.0, label=f"loss {made.objective.number:g}")
        )
    return handles
