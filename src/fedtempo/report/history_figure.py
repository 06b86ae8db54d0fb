"""Pictures of a history: measures over virtual time, a study at a glance, and what identical weights cost.

A line is the mean over seeds; its band is one deviation over seeds to either side. A cross ends a line of which a seed
diverged. An axis of accuracies leaves out their first steep rise. The cost of identical weights is drawn as the final
loss of each scheme under both weight rules.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.report.history_text import headline
from fedtempo.report.style import (
    INK,
    STYLE,
    bare,
    colours,
    dashes,
    ending_of,
    entries,
    floor_of,
    legend,
    save_figure,
    scale,
    titled,
)
from fedtempo.report.text import signed
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import ALWAYS
from fedtempo.simulation.history.summary import FAIR, Summary, summarise


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


_EXAMPLE = "history.svg"


class _Picture(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with rc_context(STYLE):
            self.savefig(file, format="png", dpi=110)
        return file.getvalue()


COSTS = ("time", "rounds", "updates", "bytes_up", "bytes_down")
"""What a measure can be drawn over."""


def measure_figure(
    history: History, measure: str, *, over: str = "time", axes: Axes | None = None, path: Path | None = None
) -> Figure:
    """One measure over virtual time, or another cost, on axes of its own or those given; with `path` also a file."""
    if over not in COSTS or over not in history.dataset:
        raise InputError(f"over: {over!r} is not one; a measure is drawn over {', '.join(COSTS)}")
    kept = () if over == "time" else (over,)
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
            _draw_measure(axes, history.only(measure, *kept).best("loss"), measure, over=over)
            legend(figure, history)
        else:
            whole = axes.get_figure(root=True)
            assert whole is not None
            figure = whole
            _draw_measure(axes, history.only(measure, *kept).best("loss"), measure, over=over)
            axes.legend(handles=entries(history), loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    if path is not None:
        save_figure(figure, path, example=_EXAMPLE)
    return figure


def study_figure(history: History, *, target: float | None = None) -> Figure:
    """A study at a glance: loss, then accuracy or spread over clients, then the cost of identical weights."""
    summary = summarise(history, target=target)
    best = history.only("loss_deviation", "test_accuracy").best("loss")
    second = next((m for m in ("test_accuracy", "loss_deviation") if m in history.measures), None)
    biased = pairs(summary)
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
            draw_cost(row[-1], summary)
        legend(figure, history)
        figure.suptitle(headline(history), x=0.008, ha="left", fontsize=8.5)
    return figure


def save_study(history: History, path: Path, *, target: float | None = None) -> None:
    """Draw a study and write it; the file's ending says whether it is SVG, PNG or PDF."""
    ending_of(path, _EXAMPLE)
    save_figure(study_figure(history, target=target), path, example=_EXAMPLE)


def _draw_measure(axes: Axes, best: History, measure: str, title: str | None = None, over: str = "time") -> None:
    """The lines of a measure, for hyper-parameters that are chosen."""
    dataset = best.dataset
    cost = dataset[over] if over == "time" else dataset[over].mean("seed")
    mean, deviation = best.mean(measure)[measure], best.deviation(measure)[measure]
    ink, style = colours(dataset["scheme"].values.tolist()), dashes(dataset["weights"].values.tolist())
    lowest = floor_of(mean.values)
    ends: list[tuple[str, Floats, Floats]] = []
    for scheme in ink:
        for rule in style if "weights" in mean.dims else [FAIR]:
            at = {"scheme": scheme, "weights": rule} if "weights" in mean.dims else {"scheme": scheme}
            line, band = mean.sel(at).values, deviation.sel(at).values
            places = cost.sel({d: v for d, v in at.items() if d in cost.dims}).values
            known = np.flatnonzero(~np.isnan(line))
            if not len(known):
                continue
            dot = "o" if len(known) == 1 else None
            axes.plot(
                places, line, color=ink[scheme], linestyle=style.get(rule, "-"), linewidth=1.5, marker=dot, zorder=3
            )
            if not np.isnan(band).all():
                low = np.maximum(line - band, lowest) if lowest > 0 else line - band
                axes.fill_between(places, low, line + band, color=ink[scheme], alpha=0.13, linewidth=0, zorder=2)
            if "weights" in mean.dims and bool(best.diverged.sel(at).any()):
                ends.append((ink[scheme], places, line))
    _finish(axes, best, measure, mean.values, title)
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
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    bare(axes)


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
