"""A timeline of many clients, or of many jobs: thin rows sorted by the clients' times, and the throughput above them.

A row is a client, the fastest on top. What it does is painted pixel by pixel, so that a file's size does not grow with
the number of jobs: a job in the colour of its delay n − ρ_i(n), an update that waits in grey, idle time left blank. The
band above has the updates that rounds take in a unit of time, by their delay.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats, Ints
from fedtempo.report.inks import Theme
from fedtempo.report.jobs import Spans, Work
from fedtempo.report.style import bare, new_figure
from fedtempo.report.timeline_figure import add_legend, client_names, delay_colours, lost_colour, trouble_handles

_WIDTH = 1600
"""Pixels of the rows, from left to right."""
_MOST_PIXELS = 1200
"""Pixels from top to bottom that are shared by the rows while there are few of them."""
_STRIPES = 7
"""Pixels from one stripe of an absence to the next."""
_SHOWN = 12
"""Rows that are named."""
_BINS = 80
_MOST_ROUNDS = 400
"""Rounds up to which their ends are marked."""


def rows_by_time(mean_time: Floats) -> Ints:
    """[clients] the row of each client, the fastest in row 0."""
    rows = np.empty(len(mean_time), dtype=np.int64)
    rows[np.argsort(mean_time, kind="stable")] = np.arange(len(mean_time))
    return rows


def dense_figure(
    config: ClockConfig, line: Timeline, work: Work, span: tuple[float, float], title: str, theme: Theme
) -> Figure:
    """The figure; call within the theme."""
    clients = line.num_clients
    figure = new_figure(10.0, float(np.clip(3.0 + 0.06 * clients, 4.6, 7.2)))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, float(np.clip(0.06 * clients, 2.0, 3.6))])
    colours, norm = delay_colours(int(work.jobs.delay.max(initial=0)), theme)
    _throughput(above, line, span, colours, norm, theme)
    rows = rows_by_time(config.times.mean_time)
    image = painted(work, rows, span, colours, norm, theme)
    below.imshow(image, aspect="auto", extent=(*span, clients - 0.5, -0.5), zorder=2)
    _name_rows(below, client_names(config), rows)
    below.set_xlim(*span)
    below.set_xlabel("virtual time")
    above.set_title(title, loc="left", fontsize=11, fontweight="bold")
    add_legend(figure, [work.jobs], colours, norm, trouble_handles(work, theme, hatch="||||"), theme, hatched=False)
    return figure


def painted(
    work: Work, rows: Ints, span: tuple[float, float], colours: ListedColormap, norm: BoundaryNorm, theme: Theme
) -> NDArray[np.float32]:
    """[rows × pixels a row, pixels, 4] what each client does, as an image."""
    clients = len(rows)
    thick = max(1, min(40, _MOST_PIXELS // clients))
    image = np.empty((clients, _WIDTH, 4), dtype=np.float32)
    image[:] = to_rgba(theme.background)
    jobs = work.jobs
    _paint(image, work.away, rows, span, theme.away[1])
    image[:, np.arange(_WIDTH) % _STRIPES > 1] = to_rgba(theme.background)  # what is left of absences is stripes
    for spans in (work.failed, work.lost):
        _paint(image, spans, rows, span, lost_colour(theme), seam=theme.background)
    waits = jobs.taken > jobs.back
    waiting = Spans(jobs.client[waits], jobs.back[waits], jobs.taken[waits])
    _paint(image, waiting, rows, span, theme.waiting[0])
    inks = colours(norm(jobs.delay))
    inks[jobs.delay < 0] = to_rgba(theme.faint)
    _paint(image, Spans(jobs.client, jobs.sent, jobs.back), rows, span, inks, seam=theme.background)
    image = np.repeat(image, thick, axis=0)
    if thick > 2:
        between = np.arange(len(image)) % thick >= thick - max(1, thick // 10)
        image[between] = to_rgba(theme.background)
    return image


def _paint(
    image: NDArray[np.float32],
    spans: Spans,
    rows: Ints,
    span: tuple[float, float],
    inks: NDArray[np.float64] | str,
    seam: str | None = None,
) -> None:
    """Fill each client's times; a pixel of `seam` ends what is long enough, so that jobs can be told apart."""
    begin, end = span
    if isinstance(inks, str):
        inks = np.tile(to_rgba(inks), (len(spans.client), 1))
    scale = image.shape[1] / (end - begin)
    first = np.floor((spans.begin - begin) * scale).astype(int).tolist()
    last = np.maximum(np.floor((spans.end - begin) * scale), np.add(first, 1)).astype(int).tolist()
    for row, a, b, ink in zip(rows[spans.client].tolist(), first, last, inks, strict=True):
        image[row, a:b] = ink
        if seam is not None and b - a >= 6:
            image[row, b - 1] = to_rgba(seam)


def _throughput(
    axes: Axes, line: Timeline, span: tuple[float, float], colours: ListedColormap, norm: BoundaryNorm, theme: Theme
) -> None:
    """Updates that rounds take in a unit of time, stacked by their delay."""
    ends = line.ends * float(line.unit)
    edges = bins_of(np.concatenate([[span[0]], ends]))
    widths = np.diff(edges)
    # a round belongs to the bin that it ends, or ends in
    place = np.searchsorted(edges, ends[line.round_of_update - line.first_round], side="left") - 1
    bottom = np.zeros(len(widths))
    for k, (low, high) in enumerate(pairwise(norm.boundaries.tolist())):
        inside = (line.staleness >= low) & (line.staleness < high)
        height = np.bincount(place[inside], minlength=len(widths)) / widths
        axes.bar(edges[:-1], height, widths, bottom, align="edge", color=colours(k), linewidth=0)
        bottom += height
    mean = line.num_updates / float(line.duration)
    axes.axhline(mean, color=theme.ink, linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
    axes.annotate(
        f"mean\n{mean:.3g}" if mean < 1000 else f"mean\n{mean:.0f}",
        (1.0, mean),
        (4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=8,
        annotation_clip=False,
    )
    if line.num_rounds <= _MOST_ROUNDS:
        axes.plot(ends, np.zeros(len(ends)), "|", color=theme.ink, markersize=7, markeredgewidth=0.7, clip_on=False)
    axes.set_ylim(0, None)
    axes.set_ylabel("updates taken\nin a unit of time")
    bare(axes, theme)


def bins_of(moments: Floats) -> Floats:
    """Edges of bins that end where rounds end, from a start and the ends of all rounds.

    A bin is a round where all last equally long, else three of them, or as many as make 80 bins: with edges in the
    middle of rounds the bars would rise and fall with where they lie.
    """
    moments = np.unique(moments)
    lasts = np.diff(moments)
    even = bool(np.allclose(lasts, lasts[0]))
    step = max(1 if even else 3, -(-len(lasts) // _BINS))
    edges = moments[::step]
    return edges if edges[-1] == moments[-1] else np.append(edges[: max(1, len(edges) - 1)], moments[-1])


def _name_rows(axes: Axes, names: list[str], rows: Ints) -> None:
    order = np.argsort(rows)
    shown = np.unique(np.linspace(0, len(names) - 1, min(len(names), _SHOWN)).round().astype(int)).tolist()
    axes.set_yticks(shown, [names[order[row]] for row in shown], fontsize=8)
    axes.tick_params(axis="y", length=2)
    axes.set_ylabel(f"{len(names)} clients, the fastest on top")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
