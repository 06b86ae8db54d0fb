"""Pictures of a history: measures over virtual time, a study at a glance, and what identical weights cost.

A line is the mean over seeds; its band is one deviation over seeds to either side. A cross ends a line of which a seed
diverged. A colour is a scheme, a line style a weight rule; labels name the rates that were chosen, beside the ends of
the lines where there is room, else in a legend. An axis of accuracies leaves out their first steep rise. A history of
several problems or client times has a panel for each. The cost of identical weights is drawn as the final loss of each
scheme under both weight rules.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.report.history_text import headline
from fedtempo.report.inks import Theme, colours, theme_of
from fedtempo.report.style import (
    EndLabel,
    bare,
    dashes,
    ending_of,
    finished,
    floor_of,
    head,
    label_ends,
    legend_below,
    new_figure,
    note_above,
    save_figure,
    scale,
)
from fedtempo.report.text import plain, signed, titled
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import ALWAYS
from fedtempo.simulation.history.summary import FAIR, Summary, summarise

_EXAMPLE = "history.svg"
COSTS = ("time", "rounds", "updates", "bytes_up", "bytes_down")
"""What a measure can be drawn over."""


# -- figures


def measure_figure(
    history: History,
    measure: str,
    *,
    over: str = "time",
    axes: Axes | None = None,
    path: Path | None = None,
    style: str = "light",
) -> Figure:
    """One measure over virtual time, or another cost, on axes of its own or those given; with `path` also a file."""
    if over not in COSTS or over not in history.dataset:
        raise InputError(f"over: {over!r} cannot be drawn over; use one of {', '.join(COSTS)}")
    extra = [str(d) for d in history.values(measure).dims if d not in (*ALWAYS, *history.settings, *history.hyper)]
    if extra:
        raise InputError(
            f"{measure} is also over {', '.join(extra)}, which a line cannot show; take it from the dataset"
        )
    if path is not None:
        ending_of(path, _EXAMPLE)
    theme = theme_of(style)
    best = history.only(measure, *(() if over == "time" else (over,))).best("loss")
    with rc_context(theme.rc):
        if axes is not None:
            figure = _on_axes(axes, best, measure, over, theme)
        elif history.settings:
            figure = _settings_figure(best, measure, over, theme)
        else:
            figure = _one_panel(best, measure, over, theme)
    return finished(figure, path, example=_EXAMPLE)


def study_figure(history: History, *, target: float | None = None, style: str = "light") -> Figure:
    """A study at a glance: loss, then accuracy or spread over clients, then the cost of identical weights.

    Of a study with several settings, the loss in each of them.
    """
    theme = theme_of(style)
    best = history.only("loss_deviation", "test_accuracy").best("loss")
    said = headline(history) + "".join(f", {common}" for common in _common(best))
    with rc_context(theme.rc):
        if not history.settings:
            return _three_panels(history, best, summarise(history, target=target), said, theme)
        targets = {name: summarise(part, target=target).target for name, part in history.split().items()}
        return _settings_figure(best, "loss", "time", theme, targets=targets, said=said)


def _say(figure: Figure, said: str) -> None:
    """A line above the panels, in small letters; two where it is long."""
    letters = int(figure.get_figwidth() * 72 / (0.56 * 8.5))
    note_above(figure, textwrap.fill(said, letters))


def save_study(history: History, *paths: Path, target: float | None = None, style: str = "light") -> None:
    """Draw a study once and write it to every path; a file's ending says whether it is SVG, PNG or PDF."""
    for path in paths:
        ending_of(path, _EXAMPLE)
    figure = study_figure(history, target=target, style=style)
    for path in paths:
        save_figure(figure, path, example=_EXAMPLE)


def _one_panel(best: History, measure: str, over: str, theme: Theme) -> Figure:
    figure = new_figure(7.2, 4.4)
    axes = figure.add_subplot()
    _draw_measure(axes, best, measure, theme, over=over)
    if common := _common(best):
        axes.set_title(f"all at {', '.join(common)}", loc="left", fontsize=8.5)
    labels = scheme_labels(best)
    rules = _rule_handles(best, theme)
    legend_below(figure, rules)
    if not label_ends(axes, _ends(best, measure, over, labels, theme), theme):
        legend_below(figure, [*_scheme_handles(labels, best, theme), *rules])
    return figure


def _on_axes(axes: Axes, best: History, measure: str, over: str, theme: Theme) -> Figure:
    """On somebody else's axes, the legend beside them."""
    if best.settings:
        raise InputError("ax: a study with several settings needs a panel for each; leave it out, or split the history")
    figure = axes.get_figure(root=True)
    assert figure is not None
    _draw_measure(axes, best, measure, theme, over=over)
    handles = [*_scheme_handles(scheme_labels(best), best, theme), *_rule_handles(best, theme)]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    return figure


_COLUMNS = 3


def _settings_figure(
    best: History,
    measure: str,
    over: str,
    theme: Theme,
    *,
    targets: Mapping[object, float] | None = None,
    said: str = "",
) -> Figure:
    """A panel for each problem and client times."""
    parts = best.split()
    columns = min(len(parts), _COLUMNS)
    if len(best.settings) == 2 and best.dataset.sizes[best.settings[1]] <= 4:
        columns = best.dataset.sizes[best.settings[1]]  # a row a problem, a column a setting of times
    rows = -(-len(parts) // columns)
    figure = new_figure(max(6.4, 3.7 * columns + 0.4), 3.2 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in grid[len(parts) :]:
        axes.set_axis_off()
    for axes, (name, part) in zip(grid, parts.items(), strict=False):
        _draw_measure(axes, part, measure, theme, over=over)
        head(axes, " · ".join(map(str, name)) if isinstance(name, tuple) else str(name))
    if said:
        _say(figure, said)
    each = {name: scheme_labels(part) for name, part in parts.items()}
    first, *others = each.values()
    alike, rules = all(labels == first for labels in others), _rule_handles(best, theme)
    plainly = first if alike else {scheme: scheme for scheme in first}
    legend_below(figure, [*_scheme_handles(plainly, best, theme), *rules])
    beside = [
        _label_panel(axes, part, measure, over, theme, target=(targets or {}).get(name, np.nan), rates=not alike)
        for axes, (name, part) in zip(grid, parts.items(), strict=False)
    ]
    if not alike and not all(beside):
        rates = {s: dict.fromkeys(rates_label(part, s) for part in parts.values()) for s in first}
        listed = {s: f"{s}, {' | '.join(filter(None, texts))}" for s, texts in rates.items()}
        legend_below(figure, [*_scheme_handles(listed, best, theme), *rules])
    return figure


def _label_panel(
    axes: Axes, part: History, measure: str, over: str, theme: Theme, *, target: float, rates: bool
) -> bool:
    """The target, and with `rates` what was chosen for each scheme, beside the lines; whether the rates are there."""
    marked = _target_line(axes, target, theme)
    texts = {scheme: rates_label(part, scheme) for scheme in part.dataset["scheme"].values.tolist()}
    ends = _ends(part, measure, over, texts, theme) if rates else []
    goal = [EndLabel(target, f"target {target:g}", theme.ink)] if marked and ends else []
    written = label_ends(axes, [*ends, *goal], theme)
    if marked and not written:
        _target_label(axes, target)
    return written


def _three_panels(history: History, best: History, summary: Summary, said: str, theme: Theme) -> Figure:
    second = next((m for m in ("test_accuracy", "loss_deviation") if m in history.measures), None)
    biased = pairs(summary)
    panels = 1 + (second is not None) + bool(biased)
    names = 0.075 * max(map(len, biased), default=0)  # inches that the names of the last panel take
    width = 4.1 * panels + 0.3 + max(0.0, names - 1.0)
    figure = new_figure(width, 4.4 + 0.16 * max(0, len(biased) - 10))
    ratios = [1.0] * panels
    if biased:
        ratios[-1] += max(0.0, names - 1.0) / 4.1
    row = np.atleast_1d(figure.subplots(1, panels, width_ratios=ratios)).tolist()
    _draw_measure(row[0], best, "loss", theme, title="Federated loss")
    if _target_line(row[0], summary.target, theme):
        _target_label(row[0], summary.target)
    if second is not None:
        title = "Accuracy on test data" if second == "test_accuracy" else "Deviation of the loss over clients"
        _draw_measure(row[1], best, second, theme, title=title)
    if biased:
        draw_cost(row[-1], summary, theme)
    _say(figure, said)
    legend_below(figure, [*_scheme_handles(scheme_labels(best), best, theme), *_rule_handles(best, theme)])
    return figure


# -- labels


_SHORT = {RATE: "lr", "server_lr": "server lr", "local_steps": "K", "batch_size": "B"}


def _named(name: str, value: object) -> str:
    return f"{_SHORT.get(name, name.replace('_', ' '))} {plain(value)}"


def _chosen(best: History) -> dict[str, xr.DataArray]:
    """The hyper-parameters that were chosen for each scheme and weights."""
    over = {"scheme", "weights"}
    found = {str(name): values for name, values in best.dataset.coords.items() if name not in over}
    return {name: values for name, values in found.items() if over <= set(values.dims)}


def _common(best: History) -> list[str]:
    """The learning rate, where all runs have the same one."""
    coords = best.dataset.coords
    return [_named(RATE, coords[RATE].item())] if RATE in coords and not coords[RATE].dims else []


def _own(best: History) -> set[str]:
    """The schemes that bring their own weights: they were run once, under the first rule."""
    return set(json.loads(best.attrs.get("own_weights", "{}")))


def _rules_of(best: History, scheme: str) -> list[str]:
    rules: list[str] = best.dataset["weights"].values.tolist()
    return rules[:1] if scheme in _own(best) else rules


def rates_label(best: History, scheme: str) -> str:
    """What was chosen for a scheme, as "lr 0.5"; for further weight rules only where it is something else."""
    chosen = _chosen(best)
    if not chosen:
        return ""
    said: dict[str, str] = {}
    for rule in _rules_of(best, scheme):
        values = {name: values.sel(scheme=scheme, weights=rule).item() for name, values in chosen.items()}
        known = not any(isinstance(value, float) and np.isnan(value) for value in values.values())
        begun = bool(best.begun.sel(scheme=scheme, weights=rule).any())
        if known:
            said[rule] = ", ".join(_named(name, value) for name, value in values.items())
        elif begun:
            said[rule] = "diverged"
    if not said:
        return ""
    (_, text), *others = said.items()
    differing = [f"{rule}: {other}" for rule, other in others if other != text]
    return f"{text} ({'; '.join(differing)})" if differing else text


def scheme_labels(best: History) -> dict[str, str]:
    """By scheme, its name with the rates that were chosen for it."""
    rules = best.dataset["weights"].values.tolist()
    own = _own(best) if rules != [FAIR] else set()
    found = {}
    for scheme in best.dataset["scheme"].values.tolist():
        parts = [scheme, rates_label(best, scheme), "own weights" if scheme in own else ""]
        found[scheme] = ", ".join(filter(None, parts))
    return found


def _ends(best: History, measure: str, over: str, labels: Mapping[str, str], theme: Theme) -> list[EndLabel]:
    """Labels for the ends of the schemes' lines; none where a line does not go on to the right edge."""
    if over != "time" or len(best.dataset["time"]) < 2:
        return []
    mean = best.mean(measure)[measure]
    ink = colours(best.dataset["scheme"].values.tolist(), theme)
    ends = []
    for scheme, text in labels.items():
        line = mean.sel(scheme=scheme)
        lines = [line.sel(weights=rule) for rule in _rules_of(best, scheme)] if "weights" in line.dims else [line]
        known = [one.values for one in lines if not bool(np.isnan(one.values).all())]
        if known and np.isnan(known[0][-1]):
            return []
        if known:
            ends.append(EndLabel(float(known[0][-1]), text, ink[scheme]))
    return ends


def _scheme_handles(labels: Mapping[str, str], best: History, theme: Theme) -> list[Artist]:
    ink = colours(best.dataset["scheme"].values.tolist(), theme)
    return [Line2D([], [], color=ink[scheme], linewidth=2.4, label=label) for scheme, label in labels.items()]


def _rule_handles(best: History, theme: Theme) -> list[Artist]:
    """The weight rules where there is more than the time-based one, and what a cross is."""
    rules = best.dataset["weights"].values.tolist()
    handles: list[Artist] = []
    if rules != [FAIR]:
        styles = dashes(rules).items()
        handles += [
            Line2D([], [], color=theme.ink, linestyle=s, linewidth=1.4, label=f"{r} weights") for r, s in styles
        ]
    if bool(best.diverged.any()):
        handles.append(Line2D([], [], color=theme.ink, linestyle="", marker="x", label="a seed diverged"))
    return handles


# -- panels


def _draw_measure(
    axes: Axes, best: History, measure: str, theme: Theme, title: str | None = None, over: str = "time"
) -> None:
    """The lines of a measure, for hyper-parameters that are chosen."""
    dataset = best.dataset
    cost = dataset[over] if over == "time" else dataset[over].mean("seed")
    mean, deviation = best.mean(measure)[measure], best.deviation(measure)[measure]
    ink, style = colours(dataset["scheme"].values.tolist(), theme), dashes(dataset["weights"].values.tolist())
    lowest, own = floor_of(mean.values), _own(best)
    faint = min(0.13, 0.8 / (len(ink) * len(style)))  # many bands on one another would hide the lines
    ends: list[tuple[str, Floats, Floats]] = []
    for scheme in ink:
        for rule in _rules_of(best, scheme) if "weights" in mean.dims else [FAIR]:
            at = {"scheme": scheme, "weights": rule} if "weights" in mean.dims else {"scheme": scheme}
            line, band = mean.sel(at).values, deviation.sel(at).values
            places = cost.sel({d: v for d, v in at.items() if d in cost.dims}).values
            known = np.flatnonzero(~np.isnan(line))
            if not len(known):
                continue
            axes.plot(
                places,
                line,
                color=ink[scheme],
                linestyle="-" if scheme in own else style.get(rule, "-"),
                linewidth=1.6,
                marker="o" if len(known) == 1 else None,
                zorder=3,
            )
            if not np.isnan(band).all():
                low = np.maximum(line - band, lowest) if lowest > 0 else line - band
                axes.fill_between(places, low, line + band, color=ink[scheme], alpha=faint, linewidth=0, zorder=2)
            if "weights" in mean.dims and bool(best.diverged.sel(at).any()):
                ends.append((ink[scheme], places, line))
    _finish(axes, best, measure, mean.values, title, theme)
    if over != "time":
        axes.set_xlim(0, float(np.nanmax(cost.values)))
        axes.set_xlabel(titled(dict(dataset[over].attrs), over))
        if over.startswith("bytes"):
            axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    top = axes.get_ylim()[1]
    for colour, places, line in ends:
        # where the line leaves the picture, or else where it stops
        above = np.flatnonzero(line > top)
        last = above[0] if len(above) else np.flatnonzero(~np.isnan(line))[-1]
        axes.plot(places[last], min(line[last], top), "x", color=colour, markersize=7, zorder=4, clip_on=False)


def _finish(axes: Axes, best: History, measure: str, values: Floats, title: str | None, theme: Theme) -> None:
    stable = values
    if values.ndim == 3:
        gone = best.diverged.any("seed").transpose("scheme", "weights").values
        # a run on its way to infinity must not flatten the others
        stable = values[~gone] if np.isfinite(values[~gone]).any() else values
    finite = stable[np.isfinite(stable)]
    if "accuracy" in measure:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
        # the first steep rise would leave no room for what tells schemes apart
        later = stable[..., len(best.dataset["time"]) // 20 :]
        if np.isfinite(later).any():
            finite = later[np.isfinite(later)]
    scale(axes, "y", finite, logarithmic="accuracy" not in measure)
    times = best.dataset["time"]
    if len(times) > 1:
        axes.set_xlim(float(times[0]), float(times[-1]))
    else:
        axes.set_xticks([float(times[0])])
    axes.set_xlabel(titled(times.attrs, "virtual time"))
    name = titled(best.dataset[measure].attrs, measure.replace("_", " "))
    if title is None:
        axes.set_ylabel(name)
    else:
        head(axes, title)
    bare(axes, theme)


def _target_line(axes: Axes, target: float, theme: Theme) -> bool:
    """A line at the target, where that is on the axis."""
    low, high = axes.get_ylim()
    if not low < target < high:
        return False
    axes.axhline(target, color=theme.ink, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    return True


def _target_label(axes: Axes, target: float) -> None:
    """Outside, where no curve is."""
    axes.annotate(
        f"target\n{target:g}",
        (1.0, target),
        (3, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        annotation_clip=False,
    )


# -- what identical weights cost


def pairs(summary: Summary) -> list[str]:
    """The schemes of which the final loss is known under both weight rules."""
    known = {(r.scheme, r.weights) for r in summary.rows if np.isfinite(r.loss)}
    return [s for s in dict.fromkeys(r.scheme for r in summary.rows) if {(s, FAIR), (s, "identical")} <= known]


def draw_cost(axes: Axes, summary: Summary, theme: Theme) -> None:
    """The final loss of each scheme under both weight rules, and the difference in percent."""
    schemes = pairs(summary)
    shown = [r for r in summary.rows if r.scheme in schemes and r.weights in (FAIR, "identical")]
    ink = colours(list(dict.fromkeys(r.scheme for r in summary.rows)), theme)
    for place, scheme in enumerate(schemes):
        fair, biased = summary.row(scheme), summary.row(scheme, "identical")
        assert fair is not None
        assert biased is not None
        axes.plot([fair.loss, biased.loss], [place, place], color=ink[scheme], linewidth=2.2, alpha=0.35, zorder=2)
        for row, fill in ((biased, theme.background), (fair, ink[scheme])):
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
    axes.set_yticks(range(len(schemes)), schemes, fontsize=8)
    axes.set_ylim(len(schemes) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("final federated loss:  ● time-based  ○ identical")
    head(axes, "What identical weights cost")
    losses = [(r.loss, 0.0 if np.isnan(r.loss_over_seeds) else r.loss_over_seeds) for r in shown]
    scale(axes, "x", np.array([[a - b, a + b] for a, b in losses]), logarithmic=True)
    bare(axes, theme, along="x")
