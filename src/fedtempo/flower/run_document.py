"""A recorded run as a page for a browser: reality beside simulation and plan, measures, clients, what went wrong.

All names come from clients and folders, and are shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtempo.flower.comparison import Comparison
from fedtempo.flower.courses import WHOSE, courses
from fedtempo.flower.faults import Fault
from fedtempo.flower.record import Record
from fedtempo.flower.run_tables import run_page
from fedtempo.flower.text import clean
from fedtempo.report.browser.document import WebPage, document, escape, rounded
from fedtempo.report.browser.history import charts_html
from fedtempo.report.browser.measure_curves import Measured, measure_data
from fedtempo.report.browser.tables import folded, grid_html, paragraph, parts_html, section, settings_html
from fedtempo.report.page import Grid, Page, names, table, words
from fedtempo.report.text import NONE, counted

SCRIPTS = ("chart.js", "charts.js", "study.js", "table.js")
_MOST_MEASURES, _MOST_CHARTS = 500, 24
"""Clients may send hundreds: rows of the table, and those that are drawn."""
_MOST_CLIENTS, _SEEN_CLIENTS = 60, 12
_MOST_FAULTS = 2000
_MOST_POINTS = 400
"""Of a line of a run of many rounds."""
AXES = {"time": "seconds of training", "rounds": "rounds with updates"}


def run_document(run: Comparison, *, name: str = "", repeat: str = "") -> WebPage:
    """The page. `name`: of the run; `repeat`: the command that trains it again, where there is one."""
    record = run.record
    first, *rest = run_page(run, most=_MOST_MEASURES).parts
    measured = measures_of(record)
    charts = {"staleness": _staleness(record), "clients": _clients(run)}
    studies = {"measures": measured} if measured["measures"] else {}
    places = "".join(f'<div data-chart="{key}"></div>' for key in charts)
    said = Page((first,))
    body = "\n".join(
        filter(
            None,
            (
                '<div class="bar" data-theme-button></div>',
                f"<h1>{escape(name or clean(record.scheme.label))}</h1>",
                parts_html(said),
                parts_html(Page(tuple(rest))),
                section("Measures of the model", charts_html("measures", measured, "")) if studies else "",
                section("Rounds and clients", f'<div class="panels">{places}</div>'),
                folded(f"{counted(len(record.faults), 'event')}, one by one", grid_html(_faults(record)))
                if record.faults
                else "",
                section("Settings", settings_html(_settings(record))),
                section("How to repeat it", *_repeat(repeat)),
            ),
        )
    )
    inks = [*WHOSE.values(), "mean", "largest", *_by_updates(run)[:_MOST_CLIENTS]]
    data = {"studies": studies, "charts": charts}
    return document(name or "A run on Flower", body, data=data, scripts=SCRIPTS, schemes=inks)


def measures_of(record: Record) -> dict[str, Any]:
    """Every measure that is one number, over seconds and over rounds, a line for each party that takes it."""
    times = record.round_seconds
    lines: list[Measured] = []
    for course in courses(record.measured):
        kind = next(kind for kind, whose in WHOSE.items() if whose == course.whose)
        found = sorted((n, m[course.name]) for n, m in record.measured[kind].items() if course.name in m)
        points = [(n, float(value)) for n, value in found if n in times and isinstance(value, int | float)]
        if points and len({line.measure for line in lines} | {course.name}) <= _MOST_CHARTS:
            rounds, values = zip(*thinned(points), strict=True)
            places = ([times[n] for n in rounds], rounds)
            lines.append(Measured(clean(course.name), course.whose, places, values, course.falls))
    return measure_data(lines, list(WHOSE.values()), AXES, dim="by")


def thinned(points: Sequence[Any]) -> Sequence[Any]:
    """So many of them that a line is drawn quickly, the first and the last among them."""
    if len(points) <= _MOST_POINTS:
        return points
    places = np.unique(np.linspace(0, len(points) - 1, _MOST_POINTS).round().astype(int))
    return [points[k] for k in places.tolist()]


def _ink(place: int) -> str:
    return f"var(--c{place})"


def _staleness(record: Record) -> dict[str, Any]:
    """Of the updates that each round took: the mean and the largest."""
    line = record.timeline
    ends = record.ends / 1e9
    rows = [
        (float(ends[n]), line.staleness[line.offsets[n] : line.offsets[n + 1]])
        for n in range(line.num_rounds)
        if line.offsets[n + 1] > line.offsets[n]
    ]
    rows = list(thinned(rows))
    xs = rounded([end for end, _ in rows])
    values = {"mean": [float(each.mean()) for _, each in rows], "largest": [float(each.max()) for _, each in rows]}
    inks = {name: _ink(len(WHOSE) + k) for k, name in enumerate(values)}
    return {
        "title": "Staleness of a round's updates",
        "x": {"label": AXES["time"], "log": False},
        "y": {"label": "staleness"},
        "lines": [
            {"label": name, "keys": {"of its updates": name}, "colour": inks[name], "xs": xs, "ys": rounded(ys)}
            for name, ys in values.items()
        ],
        "dims": [{"name": "of its updates", "values": [{"value": n, "colour": ink} for n, ink in inks.items()]}],
    }


def _by_updates(run: Comparison) -> list[str]:
    """Clients, those with most updates first."""
    order = sorted(run.active, key=lambda i: -run.clients[i].jobs)
    return [clean(run.record.names[i]) for i in order]


def _clients(run: Comparison) -> dict[str, Any]:
    """How many updates of each client rounds have taken so far."""
    record, line = run.record, run.record.timeline
    ends = record.ends[line.round_of_update] / 1e9
    order = sorted(run.active, key=lambda i: -run.clients[i].jobs)[:_MOST_CLIENTS]
    lines, values = [], []
    for k, client in enumerate(order):
        name, ink = clean(record.names[client]), _ink(len(WHOSE) + 2 + k)
        points = thinned([(0.0, 0), *((end, n + 1) for n, end in enumerate(ends[line.client == client].tolist()))])
        xs, ys = zip(*points, strict=True)
        lines.append({"label": name, "keys": {"client": str(client)}, "colour": ink, "xs": rounded(xs), "ys": list(ys)})
        values.append({"value": str(client), "label": name, "colour": ink, "off": k >= _SEEN_CLIENTS})
    left = len(run.active) - len(order)
    more = f" ({left} with fewer are left out)" if left else ""
    return {
        "title": f"Updates of each client that rounds have taken{more}",
        "x": {"label": AXES["time"], "log": False},
        "y": {"label": "updates"},
        "lines": lines,
        "dims": [{"name": "client", "values": values}],
    }


def _faults(record: Record) -> Grid:
    """What happened, in order."""
    rows = [_fault(record, fault) for fault in record.faults[:_MOST_FAULTS]]
    left = len(record.faults) - len(rows)
    title = f"The first {len(rows)}; {left} more are in the folder's record" if left else ""
    return table(title, ("second", names("client"), names("what"), words("why")), rows)


def _fault(record: Record, fault: Fault) -> tuple[str, str, str, str]:
    name = clean(record.names[fault.client]) if fault.client >= 0 else clean(fault.identity) or NONE
    return (f"{fault.time:.4g}", name, clean(fault.kind), clean(fault.reason, 500))


def _settings(record: Record) -> Mapping[str, Any]:
    spec = {f"scheme.{key}": value for key, value in record.scheme.spec().items()}
    return {
        "scheme": clean(record.scheme.label),
        **{clean(key): _cleaned(value) for key, value in spec.items()},
        "step": clean(record.step),
        "server_lr": record.server_lr,
        "seed": record.seed,
        "clients": len(record.names),
        "clients at the start": len(record.first),
        "times back to an earlier version": len(record.recoveries) or None,
    }


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {clean(str(key)): _cleaned(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner) for inner in value]
    return clean(value) if isinstance(value, str) else value


def _repeat(command: str) -> list[str]:
    if command:
        return [f"<pre>{escape(command)}</pre>"]
    return [
        paragraph(
            "A run on devices cannot be repeated as it was: times, failures and clients were its own. What the "
            "simulator makes of the same durations is the column simulation above; fedtempo plan FOLDER --problem … "
            "compares other schemes under these times, and recorded(FOLDER).replay trains the same rounds again."
        )
    ]
