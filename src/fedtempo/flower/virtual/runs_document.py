"""Several runs of one app as a page for a browser: the table, the sentences, measures over virtual time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtempo.flower.courses import WHOSE, courses
from fedtempo.flower.run_document import SCRIPTS, thinned
from fedtempo.flower.text import clean
from fedtempo.flower.virtual.runs import RUNS, AppRun, read_asked, runs_page
from fedtempo.report.browser.document import WebPage, document, escape
from fedtempo.report.browser.history import charts_html
from fedtempo.report.browser.measure_curves import Measured, measure_data
from fedtempo.report.browser.tables import paragraph, parts_html, section, settings_html

_MOST_CHARTS = 24
_AXES = {"time": "virtual time", "rounds": "rounds with updates", "updates": "client updates"}
_FLAG = re.compile(r"[A-Za-z0-9_./:,+-]+")


def runs_document(folder: Path, runs: Sequence[AppRun]) -> WebPage:
    """The page."""
    labels = [clean(run.label) for run in runs]
    charts = _charts(runs, labels)
    asked = read_asked(folder)
    title = folder.resolve().name
    body = "\n".join(
        filter(
            None,
            (
                '<div class="bar" data-theme-button></div>',
                f"<h1>{escape(title)}</h1>",
                parts_html(runs_page(runs)),
                section("Curves", charts_html("runs", charts, "")) if charts["measures"] else "",
                section("Settings", settings_html(_known(asked["asked"]))),
                section("How to repeat it", *_repeat(folder, asked)),
            ),
        )
    )
    bare = [label.removeprefix("flwr ") for label in labels]
    inks = bare if len(set(bare)) == len(bare) else labels
    return document(title, body, data={"studies": {"runs": charts}}, scripts=SCRIPTS, schemes=inks)


def _charts(runs: Sequence[AppRun], labels: Sequence[str]) -> dict[str, Any]:
    """Every measure of every run, over virtual time, rounds and updates."""
    lines: list[Measured] = []
    for run, label in zip(runs, labels, strict=True):
        record = run.record
        times, updates = record.round_seconds, record.round_updates
        for course in courses(record.measured):
            kind = next(kind for kind, whose in WHOSE.items() if whose == course.whose)
            found = sorted((n, m[course.name]) for n, m in record.measured[kind].items() if course.name in m)
            points = [(n, float(v)) for n, v in found if n in times and isinstance(v, int | float)]
            name = f"{clean(course.name)}, {course.whose}"
            if points and len({line.measure for line in lines} | {name}) <= _MOST_CHARTS:
                rounds, values = zip(*thinned(points), strict=True)
                places = ([times[n] for n in rounds], rounds, [float(updates[n]) for n in rounds])
                lines.append(Measured(name, label, places, values, course.falls))
    return measure_data(lines, labels, _AXES, dim="strategy")


def _known(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was said; what was not has the command's default."""
    return {
        clean(name): clean(value) if isinstance(value, str) else value
        for name, value in asked.items()
        if value not in (None, False, [], {})
    }


def _repeat(folder: Path, asked: Mapping[str, Any]) -> list[str]:
    """What is known of the command: the app's own folder is not written down."""
    given = asked["asked"]
    name = clean(str(given.get("app", "")))
    strategies = ", ".join(clean(str(label)) for label in asked["runs"])
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in given.items() if _is_flag(name, value)]
    command = f"fedtempo app APP {' '.join(flags)}"
    return [
        paragraph(f"With the folder of the app {name} for APP, and --scheme as given, which made: {strategies}."),
        f"<pre>{escape(command)}</pre>",
        paragraph(f"All that was asked for is in {RUNS}."),
    ]


def _is_flag(name: str, value: Any) -> bool:
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return name != "app" and plain and _FLAG.fullmatch(str(value)) is not None and not str(value).startswith("-")
