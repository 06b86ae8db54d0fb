"""A picture of a timeline in the manner of the paper's Figure 1: one lane a client, the server's lane on top.

A bar is a job, from the model sent to the update that comes back, in the colour of its delay n − ρ_i(n); a hatched bar
is an update that waits for its round to end. A vertical line is an aggregation, its arrow heads the models sent. Where
clients come, go and fail, their absences are hatched lanes, and work that is lost is red. The lanes are drawn by
functions of their own, which other figures of who works when share.

More than 20 clients, or thousands of jobs, are drawn by `dense_timeline`: thin rows, and the throughput above them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.report.inks import LIGHT, Theme, theme_of
from fedtempo.report.jobs import Jobs, Work, work_of
from fedtempo.report.style import ending_of, finished, mixed, new_figure, save_figure

SERVER = -1.1
"""Where the server's lane is; client i's is at i."""
LANES = 20
"""Clients up to which each has a lane."""
_MOST_BARS = 3_000
_MOST = {True: 20_000, False: 200_000}
"""Updates that make a readable picture: of clients with lanes, and of more."""
_AWAY = 6 * "\\"
"""How absences are hatched."""
_EXAMPLE = "timeline.svg"


def height_of_lane(clients: int) -> float:
    """Inches, so that a few lanes are not thick and many are not thin."""
    return float(np.clip(15.0 / clients, 0.16, 0.42))


def delay_colours(largest: int, theme: Theme = LIGHT) -> tuple[ListedColormap, BoundaryNorm]:
    """One colour per delay up to eight, then ranges; light to dark, readable without colour vision."""
    edges = np.unique(np.linspace(0, largest + 1, min(largest + 1, 8) + 1).round().astype(int))
    ends = (0.18, 0.95) if theme is LIGHT else (0.02, 0.78)
    picks = colormaps["viridis_r"](np.linspace(*ends, max(len(edges) - 1, 1)))
    return ListedColormap(picks), BoundaryNorm(edges, max(len(edges) - 1, 1))


def draw_bars(axes: Axes, jobs: Jobs, colours: ListedColormap, norm: BoundaryNorm, theme: Theme = LIGHT) -> None:
    """The jobs, and the updates that wait."""
    paint = colours(norm(jobs.delay))
    taken = jobs.delay >= 0
    waits = jobs.taken > jobs.back
    face, edge = theme.waiting
    axes.barh(
        jobs.client[waits],
        (jobs.taken - jobs.back)[waits],
        left=jobs.back[waits],
        height=0.30,
        zorder=2,
        color=face,
        edgecolor=edge,
        linewidth=0.4,
        hatch="////",
    )
    for which, colour in ((taken, paint[taken]), (~taken, theme.faint)):
        axes.barh(
            jobs.client[which],
            (jobs.back - jobs.sent)[which],
            left=jobs.sent[which],
            height=0.62,
            zorder=2,
            color=colour,
            edgecolor=theme.background,
            linewidth=0.7,
        )


def lost_colour(theme: Theme) -> str:
    """Of work that came to nothing: half red, half background."""
    return mixed(theme.lost, theme.background, 0.5)


def draw_trouble(axes: Axes, work: Work, theme: Theme) -> None:
    """Absences, and work that came to nothing: it ends with a cross where a job failed."""
    face, edge = theme.away
    axes.barh(
        work.away.client,
        work.away.end - work.away.begin,
        left=work.away.begin,
        height=0.86,
        zorder=1,
        color=face,
        edgecolor=edge,
        linewidth=0.4,
        hatch=_AWAY,
    )
    for spans in (work.failed, work.lost):
        axes.barh(
            spans.client,
            spans.end - spans.begin,
            left=spans.begin,
            height=0.62,
            zorder=2,
            color=lost_colour(theme),
            edgecolor=theme.background,
            linewidth=0.7,
        )
    axes.scatter(
        work.failed.end, work.failed.client, marker="x", s=30, color=theme.lost, linewidth=1.5, zorder=5, clip_on=False
    )


def draw_aggregations(axes: Axes, line: Timeline, *, returns: bool, theme: Theme = LIGHT) -> None:
    """The ends of rounds; `returns`: their contributors get the new model."""
    ends = line.ends.astype(np.float64) * float(line.unit)
    dense, ink = line.num_rounds > 150, theme.ink
    width, faint = (0.35, 0.3) if dense else (0.8, 0.6)
    axes.axhline(SERVER, color=ink, linewidth=1.4, zorder=1)
    filled = np.diff(line.offsets) > 0
    first = line.offsets[:-1]
    lowest = np.full(line.num_rounds, SERVER)
    lowest[filled] = np.maximum.reduceat(line.client, first[filled]) if filled.any() else 0
    axes.vlines(ends[filled], SERVER, lowest[filled] - 0.31, color=ink, linewidth=width, alpha=faint, zorder=0)
    size = 30 if line.num_rounds <= 60 else 14 if not dense else 5
    for which, fill in ((filled, ink), (~filled, theme.background)):
        level = np.full(int(which.sum()), SERVER)
        axes.scatter(ends[which], level, s=size, facecolor=fill, edgecolor=ink, zorder=4, clip_on=False)
    if returns and line.num_updates <= 4000:
        when = ends[line.round_of_update - line.first_round]
        heads = float(np.clip(700.0 / line.num_clients, 8, 34)) * (0.35 if dense else 1.0)
        axes.scatter(when, line.client - 0.36, s=heads, marker="v", color=ink, linewidth=0, zorder=5, clip_on=False)
    if line.num_rounds <= 40:
        _number_models(axes, line, ends)


_NARROW = 0.024
"""Of the picture's width: numbers of models that are nearer to each other would touch."""


def _number_models(axes: Axes, line: Timeline, ends: Floats) -> None:
    """θ^n above the rounds' ends; of those that are close together, the first, and the newest of those made at once."""
    newest = {end: n for n, end in enumerate(ends.tolist(), start=line.first_round + 1)}
    before = -np.inf
    for end, n in newest.items():
        if end - before >= _NARROW * float(line.duration):
            axes.annotate(f"$\\theta^{{{n}}}$", (end, SERVER), (0, 6), textcoords="offset points", ha="center")
            before = end


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
    figure: Figure,
    drawn: Sequence[Jobs],
    colours: ListedColormap,
    norm: BoundaryNorm,
    more: Sequence[Artist] = (),
    theme: Theme = LIGHT,
    *,
    hatched: bool = True,
) -> None:
    """What the colours mean, and `more`."""
    edges = norm.boundaries.astype(int).tolist()
    handles: list[Artist] = []
    for k, (low, high) in enumerate(pairwise(edges)):
        label = str(low) if high - low == 1 else f"{low}–{high - 1}"
        handles.append(Patch(facecolor=colours(k), label=label if k else f"delay {label}"))
    if any((jobs.taken > jobs.back).any() for jobs in drawn):
        face, edge = theme.waiting
        hatch = "////" if hatched else None
        handles.append(Patch(facecolor=face, edgecolor=edge if hatched else face, hatch=hatch, label="update waits"))
    if any((jobs.delay < 0).any() for jobs in drawn):
        handles.append(Patch(facecolor=theme.faint, label="not yet used"))
    handles += more
    close = {"columnspacing": 1.1, "handlelength": 1.4} if len(handles) > 9 else {}
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 14), frameon=False, fontsize=8.5, **close
    )


def trouble_handles(work: Work, theme: Theme, *, hatch: str = _AWAY) -> list[Artist]:
    """What a legend says of clients that come, go and fail."""
    face, edge = theme.away
    handles: list[Artist] = []
    if len(work.away.client):
        handles.append(Patch(facecolor=face, edgecolor=edge, hatch=hatch, label="client away"))
    if len(work.failed.client) or len(work.lost.client):
        handles.append(Patch(facecolor=lost_colour(theme), label="work lost"))
    if hatch == _AWAY and len(work.failed.client):
        handles.append(Line2D([], [], color=theme.lost, linestyle="", marker="x", markersize=5, label="job failed"))
    return handles


# -- whole pictures


def plot_timeline(line: Timeline, *, path: Path | None = None, style: str = "light") -> Figure:
    """A timeline that knows what it was made from, or a slice of one; with `path` also a file."""
    theme_of(style)
    if path is not None:
        ending_of(path, _EXAMPLE)
    origin = line.origin
    if origin is None:
        raise InputError(
            "plot: this timeline does not know its scheme and client times; ft.timeline(scheme, times, …) makes one "
            "that does, and fedtempo show draws a run on Flower"
        )
    if not line.num_rounds:
        raise InputError("plot: this timeline has no rounds; take more of it")
    if line.num_updates > most_updates(line.num_clients):
        rounds = max(1, line.num_rounds * most_updates(line.num_clients) // line.num_updates)
        raise InputError(f"plot: {line.num_updates} updates make no readable picture; draw line[:{rounds}]")
    end = int(line.ends[-1]) * line.unit
    figure = timeline_figure(
        origin.config,
        line,
        until=float(end if origin.until is None else origin.until),
        title=title_of(origin.label, line.num_clients, line),
        style=style,
    )
    return finished(figure, path, example=_EXAMPLE)


def most_updates(clients: int) -> int:
    """Up to how many updates a picture is readable."""
    return _MOST[clients <= LANES]


def timeline_figure(config: ClockConfig, line: Timeline, *, until: float, title: str, style: str = "light") -> Figure:
    """The picture of `line`, from its first round on."""
    theme = theme_of(style)
    begin = float(line.start * line.unit)
    whole = line if line.first_round == 0 else full_timeline(config, max_rounds=line.first_round + line.num_rounds)
    work = work_of(config, whole, until).between(begin, until)
    with rc_context(theme.rc):
        if line.num_clients > LANES or len(work.jobs.client) > _MOST_BARS:
            from fedtempo.report.dense_timeline import dense_figure

            return dense_figure(config, line, work, (begin, until), title, theme)
        return _draw(config, line, work, (begin, until), title, theme)


def save_timeline(
    config: ClockConfig, line: Timeline, path: Path, *, until: float, title: str, style: str = "light"
) -> None:
    """Draw and write; the file's ending says whether it is SVG, PNG or PDF."""
    ending_of(path, _EXAMPLE)
    save_figure(timeline_figure(config, line, until=until, title=title, style=style), path, example=_EXAMPLE)


def client_names(config: ClockConfig) -> list[str]:
    """Names of lanes: the clients' own where they have some, with their times."""
    times = config.times.always
    mark = "mean" if times.random else "τ"
    called = times.names or [f"client {i}" for i in range(config.num_clients)]
    return [f"{name}  ({mark} {mean:.3g})" for name, mean in zip(called, times.mean_time.tolist(), strict=True)]


def _draw(
    config: ClockConfig, line: Timeline, work: Work, span: tuple[float, float], title: str, theme: Theme
) -> Figure:
    lane = height_of_lane(line.num_clients)
    figure = new_figure(10.0, float(np.clip(1.75 + lane * line.num_clients, 2.6, 40.0)))
    axes = figure.add_subplot()
    colours, norm = delay_colours(int(work.jobs.delay.max(initial=0)), theme)
    draw_bars(axes, work.jobs, colours, norm, theme)
    if config.availability is not None:
        draw_trouble(axes, work, theme)
    draw_aggregations(axes, line, returns=config.rule.returns_to_contributors, theme=theme)
    axes.set_xlim(*span)
    axes.set_xlabel("virtual time")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    name_lanes(axes, client_names(config), lane, numbered=line.num_rounds <= 40)
    add_legend(figure, [work.jobs], colours, norm, trouble_handles(work, theme), theme)
    return figure


def title_of(label: str, clients: int, line: Timeline) -> str:
    """What the picture shows, in a line."""
    return f"{label}: {clients} clients, {line.num_rounds} rounds, {line.num_updates} updates"
