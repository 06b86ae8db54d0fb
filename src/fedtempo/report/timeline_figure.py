"""A picture of a timeline in the manner of the paper's Figure 1: one lane a client, the server's lane on top."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedtempo.clock.setting import Setting
from fedtempo.clock.timeline import Timeline
from fedtempo.report.lanes import (
    add_legend,
    delay_colours,
    draw_aggregations,
    draw_bars,
    height_of_lane,
    jobs_of,
    name_lanes,
)
from fedtempo.report.style import STYLE, ending_of, save_figure

_EXAMPLE = "timeline.svg"


def timeline_figure(setting: Setting, line: Timeline, *, until: float, title: str) -> Figure:
    """The picture of `line`, a whole timeline from its first round on."""
    with rc_context(STYLE):
        return _draw(setting, line, until, title)


def save_timeline(setting: Setting, line: Timeline, path: Path, *, until: float, title: str) -> None:
    """Draw and write; the file's ending says whether it is SVG, PNG or PDF."""
    ending_of(path, _EXAMPLE)
    save_figure(timeline_figure(setting, line, until=until, title=title), path, example=_EXAMPLE)


def _draw(setting: Setting, line: Timeline, until: float, title: str) -> Figure:
    clients = line.num_clients
    lane = height_of_lane(clients)
    height = float(np.clip(1.75 + lane * clients, 2.6, 40.0))
    figure = Figure(figsize=(10.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    jobs = jobs_of(setting, line, until)
    colours, norm = delay_colours(int(jobs.delay.max(initial=0)))
    draw_bars(axes, jobs, colours, norm)
    draw_aggregations(axes, line, returns=setting.rule.returns_to_contributors)
    axes.set_xlim(0.0, until)
    axes.set_xlabel("virtual time")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    mark = "τ" if not setting.times.random else "mean"
    names = [f"client {i}  ({mark} {mean:.3g})" for i, mean in enumerate(setting.times.mean_time.tolist())]
    name_lanes(axes, names, lane, numbered=line.num_rounds <= 40)
    add_legend(figure, [jobs], colours, norm)
    return figure


def title_of(label: str, clients: int, line: Timeline) -> str:
    """What the picture shows, in a line."""
    return f"{label}: {clients} clients, {line.num_rounds} rounds, {line.num_updates} updates"
