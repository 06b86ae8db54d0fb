"""Pictures of a history: measures over virtual time, and what identical weights cost.

A colour is a scheme, a family of schemes a hue. A line is the mean over seeds, solid for time-based weights, dashed for
identical ones, dotted for importance alone; its band is one deviation over seeds to either side. A cross ends a line of
which a seed diverged. An axis of accuracies leaves out their first steep rise.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.history import ALWAYS, History
from fedtempo.report.history_tables import FAIR, Summary, headline, signed, summarise
from fedtempo.report.style import INK, STYLE, ending_of, save_figure

_EXAMPLE = "history.svg"
_FAMILIES = {
    "FedAvg": ("#2b2b2b",),
    "AsyncFedAvg": ("#d55e00",),
    "FedFix": ("#0072b2", "#56b4e9", "#0a3a66", "#8fa8d8"),
    "FedBuff": ("#009e73", "#7fcfa8", "#00523b", "#a6b34b"),
}
_OTHERS = ("#cc79a7", "#e69f00", "#7a4b2a", "#8c8c8c", "#5e3c99", "#b2182b")
_DASHES: dict[str, Any] = {
    FAIR: "-",
    "identical": (0, (4.0, 1.8)),
    "importance": (0, (1.0, 1.6)),
}
_OTHER_DASHES = ((0, (5.0, 1.5, 1.0, 1.5)), (0, (3.0, 1.2, 1.0, 1.2, 1.0, 1.2)))
_LARGE = 4.0  # from this ratio of the largest to the smallest value on, the axis is logarithmic


class _Picture(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(file, format="png", dpi=110)
        return file.getvalue()


def colours(schemes: list[str]) -> dict[str, str]:
    """A colour for each scheme, which its family decides; distinct without colour vision through lightness."""
    used: dict[str, int] = {}
    chosen = {}
    for scheme in schemes:
        family = scheme.split("(")[0]
        shades = _FAMILIES.get(family, _OTHERS)
        key = family if family in _FAMILIES else ""
        chosen[scheme] = shades[used.get(key, 0) % len(shades)]
        used[key] = used.get(key, 0) + 1
    return chosen


def dashes(rules: list[str]) -> dict[str, Any]:
    """A line style for each weight rule."""
    others = [rule for rule in rules if rule not in _DASHES]
    return {r: _DASHES[r] if r in _DASHES else _OTHER_DASHES[others.index(r) % len(_OTHER_DASHES)] for r in rules}


def measure_figure(history: History, measure: str, *, axes: Axes | None = None, path: Path | None = None) -> Figure:
    """One measure over virtual time, on axes of its own or those given; with `path` also a file."""
    extra = [str(d) for d in history.values(measure).dims if d not in (*ALWAYS, *history.hyper)]
    if extra:
        raise InputError(
            f"{measure} is also over {', '.join(extra)}, which a line cannot show; take it from the dataset"
        )
    if path is not None:
        ending_of(path, _EXAMPLE)
    with rc_context(STYLE):
        if axes is None:
            figure: Figure = _Picture(figsize=(7.2, 4.2), layout="constrained")
            FigureCanvasAgg(figure)
            axes = figure.add_subplot()
            _draw_measure(axes, history.only(measure).best("loss"), measure)
            _legend(figure, history)
        else:
            whole = axes.get_figure(root=True)
            assert whole is not None
            figure = whole
            _draw_measure(axes, history.only(measure).best("loss"), measure)
            axes.legend(handles=_handles(history), loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    if path is not None:
        save_figure(figure, path, example=_EXAMPLE)
    return figure


def study_figure(history: History, *, target: float | None = None) -> Figure:
    """A study at a glance: loss, then accuracy or spread over clients, then the cost of identical weights."""
    summary = summarise(history, target=target)
    best = history.only("loss_deviation", "test_accuracy").best("loss")
    second = next((m for m in ("test_accuracy", "loss_deviation") if m in history.measures), None)
    biased = _pairs(summary)
    panels = 1 + (second is not None) + bool(biased)
    with rc_context(STYLE):
        figure = _Picture(figsize=(4.1 * panels + 0.3, 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        row = np.atleast_1d(figure.subplots(1, panels)).tolist()
        _draw_measure(row[0], best, "loss", title="Federated loss")
        _mark_target(row[0], summary)
        if second is not None:
            title = "Accuracy on test data" if second == "test_accuracy" else "Deviation of the loss over clients"
            _draw_measure(row[1], best, second, title=title)
        if biased:
            _draw_cost(row[-1], summary)
        _legend(figure, history)
        figure.suptitle(headline(history), x=0.008, ha="left", fontsize=8.5)
    return figure


def save_study(history: History, path: Path, *, target: float | None = None) -> None:
    """Draw a study and write it; the file's ending says whether it is SVG, PNG or PDF."""
    ending_of(path, _EXAMPLE)
    save_figure(study_figure(history, target=target), path, example=_EXAMPLE)


def _draw_measure(axes: Axes, best: History, measure: str, title: str | None = None) -> None:
    """The lines of a measure, for hyper-parameters that are chosen."""
    dataset = best.dataset
    times = dataset["time"].values
    mean, deviation = best.mean(measure)[measure], best.deviation(measure)[measure]
    ink, style = colours(dataset["scheme"].values.tolist()), dashes(dataset["weights"].values.tolist())
    lowest = _lowest(mean.values)
    ends: list[tuple[str, Floats]] = []
    for scheme in ink:
        for rule in style if "weights" in mean.dims else [FAIR]:
            at = {"scheme": scheme, "weights": rule} if "weights" in mean.dims else {"scheme": scheme}
            line, band = mean.sel(at).values, deviation.sel(at).values
            known = np.flatnonzero(~np.isnan(line))
            if not len(known):
                continue
            dot = "o" if len(known) == 1 else None
            axes.plot(
                times, line, color=ink[scheme], linestyle=style.get(rule, "-"), linewidth=1.5, marker=dot, zorder=3
            )
            if not np.isnan(band).all():
                low = np.maximum(line - band, lowest) if lowest > 0 else line - band
                axes.fill_between(times, low, line + band, color=ink[scheme], alpha=0.13, linewidth=0, zorder=2)
            if "weights" in mean.dims and bool(best.diverged.sel(at).any()):
                ends.append((ink[scheme], line))
    _finish(axes, best, measure, mean.values, title)
    top = axes.get_ylim()[1]
    for colour, line in ends:
        # where the line leaves the picture, or else where it stops
        over = np.flatnonzero(line > top)
        last = over[0] if len(over) else np.flatnonzero(~np.isnan(line))[-1]
        axes.plot(times[last], min(line[last], top), "x", color=colour, markersize=7, zorder=4, clip_on=False)


def _finish(axes: Axes, best: History, measure: str, values: Floats, title: str | None) -> None:
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
    _scale(axes, "y", finite, logarithmic="accuracy" not in measure)
    times = best.dataset["time"]
    if len(times) > 1:
        axes.set_xlim(float(times[0]), float(times[-1]))
    else:
        axes.set_xticks([float(times[0])])
    axes.set_xlabel(_label(times.attrs, "virtual time"))
    label = _label(best.dataset[measure].attrs, measure.replace("_", " "))
    if title is None:
        axes.set_ylabel(label)
    else:
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    _bare(axes)


def _scale(axes: Axes, which: Literal["x", "y"], values: Floats, *, logarithmic: bool) -> None:
    """Limits around the values, on a logarithmic axis when they are positive and spread far."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    limits, axis = (axes.set_xlim, axes.xaxis) if which == "x" else (axes.set_ylim, axes.yaxis)
    if logarithmic and low > 0 and high / low > _LARGE:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        margin = (high / low) ** 0.06
        limits(low / margin, high * margin)
        if high / low < 300:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    elif high > low:
        limits(low - 0.06 * (high - low), high + 0.06 * (high - low))


def _bare(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e3e6ea", linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)


def _mark_target(axes: Axes, summary: Summary) -> None:
    low, high = axes.get_ylim()
    if low < summary.target < high:
        axes.axhline(summary.target, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        text = f"target {summary.target:g}"
        axes.annotate(
            text,
            (1.0, summary.target),
            (-2, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
        )


def _pairs(summary: Summary) -> list[str]:
    """The schemes of which the final loss is known under both weight rules."""
    known = {(r.scheme, r.weights) for r in summary.rows if np.isfinite(r.loss)}
    return [s for s in dict.fromkeys(r.scheme for r in summary.rows) if {(s, FAIR), (s, "identical")} <= known]


def _draw_cost(axes: Axes, summary: Summary) -> None:
    """The final loss of each scheme under both weight rules, and the difference in percent."""
    schemes = _pairs(summary)
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
    _scale(axes, "x", np.array([[a - b, a + b] for a, b in losses]), logarithmic=True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.7)
    axes.set_axisbelow(True)


def _handles(history: History) -> list[Line2D]:
    dataset = history.dataset
    schemes, rules = dataset["scheme"].values.tolist(), dataset["weights"].values.tolist()
    handles = [Line2D([], [], color=colour, linewidth=2.4, label=name) for name, colour in colours(schemes).items()]
    if rules != [FAIR]:
        styles = dashes(rules).items()
        handles += [Line2D([], [], color=INK, linestyle=s, linewidth=1.4, label=f"{r} weights") for r, s in styles]
    return handles


def _legend(figure: Figure, history: History) -> None:
    """Below the axes, where it covers no line."""
    handles = _handles(history)
    width = figure.get_figwidth()
    columns = max(1, min(len(handles), int(width / 1.75)))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5, handlelength=2.6
    )


def _label(attrs: dict[str, object], other: str) -> str:
    name, units = str(attrs.get("long_name", "") or other), str(attrs.get("units", ""))
    return f"{name} [{units}]" if units not in ("", "1") and units not in name else name


def _lowest(values: Floats) -> float:
    """The smallest value when all are positive, for bands on a logarithmic axis."""
    finite = values[np.isfinite(values)]
    return float(finite.min()) / 2 if finite.size and finite.min() > 0 else 0.0
