"""A recorded run as a picture: reality above, the simulation of it below if there is one, on one axis of seconds.

Bars and lines as in report/timeline_figure.py; a cross is a job that was lost. Of a long run its last rounds are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.timeline import Timeline
from fedtempo.flower.comparison import Comparison
from fedtempo.flower.journal import LoggedMeasure
from fedtempo.flower.record import Record
from fedtempo.flower.run_tables import order_of
from fedtempo.report.jobs import Jobs, jobs_of
from fedtempo.report.style import STYLE, ending_of, save_figure
from fedtempo.report.text import counted
from fedtempo.report.timeline_figure import (
    add_legend,
    delay_colours,
    draw_aggregations,
    draw_bars,
    height_of_lane,
    name_lanes,
)

READABLE = 30
"""Rounds that fit side by side with their numbers."""
MOST = 150
"""Rounds that still fit, where it takes more than those to see all clients."""
_LOST = ("error", "refused", "deadline", "not sent", "left", "guard", "memory")
_RED = "#b3261e"
_EXAMPLE = "run.svg"


def run_figure(run: Comparison) -> Figure:
    """Reality and simulation in their last rounds."""
    with rc_context(STYLE):
        return _draw(run)


def save_run(run: Comparison, path: Path) -> None:
    """Draw and write; the file's ending says whether it is SVG, PNG or PDF."""
    ending_of(path, _EXAMPLE)
    save_figure(run_figure(run), path, example=_EXAMPLE)


def _draw(run: Comparison) -> Figure:
    record, until = run.record, float(run.length)
    names = [record.names[i] for i in run.active]
    order = order_of(names)
    lane = np.argsort(order)
    real_lane = np.full(len(record.names), -1)
    real_lane[list(run.active)] = lane
    begin = _begin(record.timeline)
    config = ClockConfig.of(run.scheme.waiting, run.times)
    panels = [(f"{record.scheme.label} in reality", record.timeline, _real_jobs(record), real_lane)]
    if run.simulated is not None:
        virtual = jobs_of(config, run.simulated, until)
        panels.append(("simulation with the same durations", run.simulated, virtual, lane))
    seen = [_from(float(begin), jobs, where) for _, _, jobs, where in panels]
    colours, norm = delay_colours(max(int(jobs.delay.max(initial=0)) for jobs in seen))
    high = height_of_lane(len(panels) * len(names))
    height = float(np.clip(2.6 + len(panels) * high * len(names), 4.4, 60.0))
    figure = Figure(figsize=(10.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    both = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, line, _, where), jobs in zip(both, panels, seen, strict=True):
        late = line[line.up_to(int(begin // line.unit)).num_rounds :]
        draw_bars(axes, jobs, colours, norm)
        shown = replace(late, client=where[late.client].astype(np.int32), num_clients=len(names))
        draw_aggregations(axes, shown, returns=config.rule.returns_to_contributors)
        name_lanes(axes, [names[i] for i in order], high, numbered=late.num_rounds <= 40)
        axes.set_title(_title(title, line, late), loc="left", fontsize=11, fontweight="bold")
    marks = _mark_lost(both[0], record, real_lane, float(begin), until)
    both[-1].set_xlim(float(begin), until)
    both[-1].set_xlabel("seconds of training")
    add_legend(figure, seen, colours, norm, marks)
    return figure


def _begin(line: Timeline) -> Fraction:
    """Where the last readable stretch begins, in seconds: with some two updates a client, if they fit."""
    active = len(np.unique(line.client))
    since = int(line.round_of_update[-min(2 * active, line.num_updates)])
    rounds = min(max(READABLE, line.num_rounds - since), MOST)
    return int(line.ends[-rounds - 1]) * line.unit if rounds < line.num_rounds else Fraction(0)


def _title(title: str, line: Timeline, late: Timeline) -> str:
    of = "" if late.num_rounds == line.num_rounds else f"; the last {late.num_rounds} rounds are shown"
    return f"{title}: {counted(line.num_rounds, 'round')}, {counted(line.num_updates, 'update')}{of}"


def _from(begin: float, jobs: Jobs, lane: np.ndarray) -> Jobs:
    """The jobs that are seen from `begin` on, by lane."""
    seen = (np.maximum(jobs.taken, jobs.back) > begin) & (lane[jobs.client] >= 0)
    return Jobs(lane[jobs.client][seen], jobs.sent[seen], jobs.back[seen], jobs.taken[seen], jobs.delay[seen])


def _real_jobs(record: Record) -> Jobs:
    """The jobs that rounds have taken, and those that were out, or waited, when the last round ended."""
    line = record.timeline
    ends = record.ends
    horizon, taken = int(ends[-1]), ends[line.round_of_update]
    rows = [*zip(line.client, record.sent, record.arrived, taken, line.staleness, strict=True)]
    rows += [(client, sent, back, horizon, -1) for client, sent, back in _out(record, horizon)]
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    client, delay = table[:, 0], table[:, 4]
    return Jobs(client, table[:, 1] / 1e9, table[:, 2] / 1e9, table[:, 3] / 1e9, delay)


def _out(record: Record, horizon: int) -> Sequence[tuple[int, int, int]]:
    """(client, sent, back) of the jobs that no round has taken; back at `horizon` if they are still out then."""
    if not record.scheme.waiting.returns_to_contributors:
        return ()  # whom the rule had chosen is not in the record
    line = record.timeline
    sent = dict.fromkeys(record.first, 0)
    back: dict[int, tuple[int, int]] = {}
    gone: set[int] = set()
    for event in record.events:
        if isinstance(event, LoggedMeasure):
            continue
        time, kind, client, job = event
        if time > horizon:
            break
        if kind == "arrived":
            back[client] = job, time
        elif kind == "left":
            gone.add(client)
        elif kind in ("joined", "failed"):
            gone.discard(client)
            sent[client] = time
    last = {}
    ends = record.ends[line.round_of_update].tolist()
    for client, job, end in zip(line.client.tolist(), line.job.tolist(), ends, strict=True):
        sent[client], last[client] = max(sent.get(client, 0), end), job
    out = []
    for client, begin in sent.items():
        job, time = back.get(client, (-1, -1))
        waiting = job > last.get(client, -1) and time >= begin
        if begin < horizon and (waiting or client not in gone):
            out.append((client, begin, time if waiting else horizon))
    return out


def _mark_lost(axes: Axes, record: Record, lane: np.ndarray, begin: float, until: float) -> list[Artist]:
    """Crosses where a job was lost, and what to say of them in the legend."""
    lost = [
        (fault.time, lane[fault.client])
        for fault in record.faults
        if fault.kind in _LOST and fault.client >= 0 and lane[fault.client] >= 0 and begin <= fault.time <= until
    ]
    if not lost:
        return []
    when, where = zip(*lost, strict=True)
    axes.scatter(when, where, marker="x", s=36, color=_RED, linewidth=1.6, zorder=6)
    return [Line2D([], [], marker="x", linestyle="", color=_RED, markersize=6, label="job lost, or client left")]
