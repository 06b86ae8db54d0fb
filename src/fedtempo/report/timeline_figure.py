"""A picture of a timeline in the manner of the paper's Figure 1: one lane a client, the server's lane on top.

A bar is a job, from the model sent to the update that comes back, in the colour of its delay n − ρ_i(n); a hatched bar
is an update that waits for its round to end. A vertical line is an aggregation, its arrow heads the models sent. The
lanes are drawn by functions of their own, which other figures of who works when share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.report.style import INK, STYLE, ending_of, save_figure

SERVER = -1.1
"""Where the server's lane is; client i's is at i."""
_RUNNING = "#b9bec7"


@dataclass(frozen=True)
class Jobs:
    """Jobs as (client, sent, back, taken) in time; `delay` is −1 while a job is not taken."""

    client: I64
    sent: Floats
    back: Floats
    taken: Floats
    delay: I64


def jobs_of(config: ClockConfig, line: Timeline, horizon: float) -> Jobs:
    """The jobs of a timeline from its first round on, and those still out at its end."""
    unit = float(line.unit)
    begins = np.concatenate([[line.start], line.ends])
    client, job = line.client.astype(np.int64), line.job.astype(np.int64)
    sent = begins[line.base - line.first_round]
    taken = begins[line.round_of_update - line.first_round + 1]
    delay = line.staleness
    if config.rule.returns_to_contributors:
        everyone = np.arange(line.num_clients)
        last_sent, last_job = np.full(line.num_clients, line.start), np.zeros(line.num_clients, dtype=np.int64)
        last_sent[line.client] = taken
        last_job[line.client] = job + 1
        client, job = np.concatenate([client, everyone]), np.concatenate([job, last_job])
        sent = np.concatenate([sent, last_sent])
        taken = np.concatenate([taken, np.full(line.num_clients, np.iinfo(np.int64).max)])
        delay = np.concatenate([delay, np.full(line.num_clients, -1)])
    back = sent + config.times.draw(client, job, seed=config.seed) * config.scale
    seen = sent * unit < horizon
    return Jobs(
        client[seen],
        (sent * unit)[seen],
        np.minimum(back * unit, horizon)[seen],
        np.minimum(taken.astype(np.float64) * unit, horizon)[seen],
        delay[seen],
    )


def height_of_lane(clients: int) -> float:
    """Inches, so that a few lanes are not thick and many are not thin."""
    return float(np.clip(15.0 / clients, 0.16, 0.42))


def delay_colours(largest: int) -> tuple[ListedColormap, BoundaryNorm]:
    """One colour per delay up to eight, then ranges; light to dark, readable without colour vision."""
    edges = np.unique(np.linspace(0, largest + 1, min(largest + 1, 8) + 1).round().astype(int))
    picks = colormaps["viridis_r"](np.linspace(0.18, 0.95, max(len(edges) - 1, 1)))
    return ListedColormap(picks), BoundaryNorm(edges, max(len(edges) - 1, 1))


def draw_bars(axes: Axes, jobs: Jobs, colours: ListedColormap, norm: BoundaryNorm) -> None:
    """The jobs, and the updates that wait."""
    paint = colours(norm(jobs.delay))
    taken = jobs.delay >= 0
    waits = jobs.taken > jobs.back
    axes.barh(
        jobs.client[waits],
        (jobs.taken - jobs.back)[waits],
        left=jobs.back[waits],
        height=0.30,
        zorder=2,
        color="#e4e7ec",
        edgecolor="#9aa1ad",
        linewidth=0.4,
        hatch="////",
    )
    for which, colour in ((taken, paint[taken]), (~taken, _RUNNING)):
        axes.barh(
            jobs.client[which],
            (jobs.back - jobs.sent)[which],
            left=jobs.sent[which],
            height=0.62,
            zorder=2,
            color=colour,
            edgecolor="white",
            linewidth=0.7,
        )


def draw_aggregations(axes: Axes, line: Timeline, *, returns: bool) -> None:
    """The ends of rounds; `returns`: their contributors get the new model."""
    ends = line.ends.astype(np.float64) * float(line.unit)
    dense = line.num_rounds > 150
    width = 0.35 if dense else 0.8
    axes.axhline(SERVER, color=INK, linewidth=1.4, zorder=1)
    filled = np.diff(line.offsets) > 0
    first = line.offsets[:-1]
    lowest = np.full(line.num_rounds, SERVER)
    lowest[filled] = np.maximum.reduceat(line.client, first[filled]) if filled.any() else 0
    axes.vlines(
        ends[filled], SERVER, lowest[filled] - 0.31, color=INK, linewidth=width, alpha=0.3 if dense else 0.6, zorder=0
    )
    size = 30 if line.num_rounds <= 60 else 14 if not dense else 5
    for which, fill in ((filled, INK), (~filled, "white")):
        level = np.full(int(which.sum()), SERVER)
        axes.scatter(ends[which], level, s=size, facecolor=fill, edgecolor=INK, zorder=4, clip_on=False)
    if returns and line.num_updates <= 4000:
        when = ends[line.round_of_update - line.first_round]
        heads = float(np.clip(700.0 / line.num_clients, 8, 34)) * (0.35 if dense else 1.0)
        axes.scatter(when, line.client - 0.36, s=heads, marker="v", color=INK, linewidth=0, zorder=5, clip_on=False)
    if line.num_rounds <= 40:
        newest = {end: n for n, end in enumerate(ends.tolist(), start=line.first_round + 1)}  # of those made together
        for end, n in newest.items():
            axes.annotate(f"$\\theta^{{{n}}}$", (end, SERVER), (0, 6), textcoords="offset points", ha="center")


def name_lanes(axes: Axes, names: Sequence[str], lane: float, *, numbered: bool) -> None:
    """Labels of lanes of that height, of every few where there are many; `numbered`: leave room for models' numbers."""
    clients = len(names)
    axes.set_ylim(clients - 0.3, -1.5 - (0.25 / lane if numbered else 0.0))
    shown = range(0, clients, max(1, round(clients / 50)))
    axes.set_yticks([SERVER, *shown], ["server", *(names[i] for i in shown)])
    axes.tick_params(axis="y", length=0, labelsize=9 if lane > 0.25 else 7)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def add_legend(
    figure: Figure, drawn: Sequence[Jobs], colours: ListedColormap, norm: BoundaryNorm, more: Sequence[Artist] = ()
) -> None:
    """What the colours mean, and `more`."""
    edges = norm.boundaries.astype(int).tolist()
    handles: list[Artist] = []
    for k, (low, high) in enumerate(pairwise(edges)):
        label = str(low) if high - low == 1 else f"{low}–{high - 1}"
        handles.append(Patch(facecolor=colours(k), label=label if k else f"delay {label}"))
    if any((jobs.taken > jobs.back).any() for jobs in drawn):
        handles.append(Patch(facecolor="#e4e7ec", edgecolor="#9aa1ad", hatch="////", label="update waits"))
    if any((jobs.delay < 0).any() for jobs in drawn):
        handles.append(Patch(facecolor=_RUNNING, label="not yet used"))
    handles += more
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 10), frameon=False, fontsize=8.5)


_EXAMPLE = "timeline.svg"


def timeline_figure(config: ClockConfig, line: Timeline, *, until: float, title: str) -> Figure:
    """The picture of `line`, a whole timeline from its first round on."""
    with rc_context(STYLE):
        return _draw(config, line, until, title)


def save_timeline(config: ClockConfig, line: Timeline, path: Path, *, until: float, title: str) -> None:
    """Draw and write; the file's ending says whether it is SVG, PNG or PDF."""
    ending_of(path, _EXAMPLE)
    save_figure(timeline_figure(config, line, until=until, title=title), path, example=_EXAMPLE)


def _draw(config: ClockConfig, line: Timeline, until: float, title: str) -> Figure:
    clients = line.num_clients
    lane = height_of_lane(clients)
    height = float(np.clip(1.75 + lane * clients, 2.6, 40.0))
    figure = Figure(figsize=(10.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    jobs = jobs_of(config, line, until)
    colours, norm = delay_colours(int(jobs.delay.max(initial=0)))
    draw_bars(axes, jobs, colours, norm)
    draw_aggregations(axes, line, returns=config.rule.returns_to_contributors)
    axes.set_xlim(0.0, until)
    axes.set_xlabel("virtual time")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    mark = "τ" if not config.times.random else "mean"
    names = [f"client {i}  ({mark} {mean:.3g})" for i, mean in enumerate(config.times.mean_time.tolist())]
    name_lanes(axes, names, lane, numbered=line.num_rounds <= 40)
    add_legend(figure, [jobs], colours, norm)
    return figure


def title_of(label: str, clients: int, line: Timeline) -> str:
    """What the picture shows, in a line."""
    return f"{label}: {clients} clients, {line.num_rounds} rounds, {line.num_updates} updates"
