"""Several runs of one app in a folder, side by side in virtual time: a table, a sentence, a picture.

    FOLDER/runs.json       what was asked for, and the folder of each run
    FOLDER/<scheme>/       a run, as a strategy on Flower writes it: fedtempo show FOLDER/<scheme>

The measure is the first that there is of: the server's loss, the clients' of evaluation, the clients' of training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedtempo import files
from fedtempo.errors import DataMissing, InputError
from fedtempo.flower.courses import WHOSE, courses
from fedtempo.flower.record import Record, recorded
from fedtempo.flower.text import clean
from fedtempo.report.inks import colours
from fedtempo.report.page import Column, Page, names, page, table
from fedtempo.report.style import STYLE, bare, save_figure, scale
from fedtempo.report.text import NONE

RUNS = "runs.json"
OWN = "app"
"""In the place of a scheme: the app's own strategy."""
FORMAT = 1
_EXAMPLE = "app.svg"


class Curve(NamedTuple):
    """A measure over virtual time."""

    whose: str
    name: str
    falls: bool | None
    times: tuple[float, ...]
    values: tuple[float, ...]

    def reaches(self, target: float) -> float | None:
        """When it is first as good as `target`."""
        sign = 1 if self.falls else -1
        pairs = zip(self.times, self.values, strict=True)
        return next((time for time, value in pairs if sign * value <= sign * target), None)


class AppRun(NamedTuple):
    """A run that is done."""

    label: str
    record: Record

    @property
    def curves(self) -> list[Curve]:
        """Every measure of which somebody knows which way is better, the server's first."""
        ends = self.record.round_seconds
        found = []
        for course in courses(self.record.measured):
            kind = next(kind for kind, whose in WHOSE.items() if whose == course.whose)
            rows = sorted(self.record.measured[kind].items())
            points = [(ends[n], float(m[course.name])) for n, m in rows if course.name in m and n in ends]
            if course.falls is not None and points:
                times, values = zip(*points, strict=True)
                found.append(Curve(course.whose, course.name, course.falls, times, values))
        return found

    def curve(self, falls: bool) -> Curve | None:
        """The first measure that falls, or rises."""
        return next((curve for curve in self.curves if curve.falls == falls), None)


def write_runs(folder: Path, asked: dict[str, Any], runs: dict[str, str]) -> None:
    """Write down what was asked for, and the folder of each scheme."""
    files.make_folder(folder)
    files.write_text(folder / RUNS, json.dumps({"format": FORMAT, "asked": asked, "runs": runs}, indent=1))


def read_asked(folder: Path) -> dict[str, Any]:
    """What `write_runs` has written."""
    try:
        found = json.loads((folder / RUNS).read_text(encoding="utf-8"))
        if not isinstance(found["runs"], dict) or not isinstance(found["asked"], dict):
            raise ValueError("it does not name any run")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{folder / RUNS}: it cannot be read ({error}); run fedtempo app again") from None
    return dict(found)


def read_runs(folder: Path) -> list[AppRun]:
    """The runs that are done."""
    named = read_asked(folder)["runs"]
    done = {label: folder / Path(name).name for label, name in named.items()}
    records = {label: recorded(path) for label, path in done.items() if (path / "state.npz").is_file()}
    found = [AppRun(made.scheme.label if label == OWN else label, made) for label, made in records.items()]
    if not found:
        raise DataMissing(f"{folder}: no run has finished yet; run the same command again to continue")
    return found


def show_runs(runs: Sequence[AppRun]) -> None:
    """Print it."""
    runs_page(runs).show()


def runs_page(runs: Sequence[AppRun]) -> Page:
    """A row a run, and who is done sooner."""
    falling, rising = runs[0].curve(True), runs[0].curve(False)
    measures = [curve for curve in (falling, rising) if curve is not None]
    heads: list[Column | str] = [names("strategy"), "rounds", "updates", "staleness", "until"]
    for curve in measures:
        heads += [f"{clean(curve.name)}, last", "best"]
    compares = falling is not None and len(runs) > 1
    if falling is not None and compares:
        heads.append(f"reaches {clean(runs[0].label)}'s last loss after")
    rows = []
    for run in runs:
        line = run.record.timeline
        cells = [str(line.num_rounds), str(line.num_updates), f"{line.staleness.mean():.2f}"]
        cells.append(f"{run.record.ends[-1] / 1e9:.4g}")
        for like in measures:
            own = run.curve(bool(like.falls))
            cells += [NONE, NONE] if own is None else [f"{own.values[-1]:.4g}", f"{_best(own):.4g}"]
        if falling is not None and compares:
            time = _done_after(run, falling)
            cells.append(NONE if time is None else f"{time:.4g}")
        rows.append((clean(run.label), *cells))
    return page(table("The app in virtual time", heads, rows), *sentences(runs))


def _best(curve: Curve) -> float:
    finite = [value for value in curve.values if math.isfinite(value)]
    return (min if curve.falls else max)(finite, default=math.nan)


def _done_after(run: AppRun, first: Curve) -> float | None:
    """When a run is as good as the first one at its end."""
    curve = run.curve(True)
    return None if curve is None or not math.isfinite(first.values[-1]) else curve.reaches(first.values[-1])


def sentences(runs: Sequence[AppRun]) -> list[str]:
    """What the table comes to."""
    first = runs[0].curve(True)
    if first is None:
        return ["No loss was measured. To compare it here, pass evaluate_fn to start, or let clients evaluate."]
    said = [f"{clean(first.name)}: of the {first.whose}. Times are virtual, in the unit of the clients' times."]
    reached = [(time, run.label) for run in runs[1:] if (time := _done_after(run, first)) is not None and time > 0]
    end = first.reaches(first.values[-1])
    if reached and end is not None and min(reached)[0] < end:
        time, label = min(reached)
        said.append(
            f"{clean(label)} reaches {clean(runs[0].label)}'s last {clean(first.name)} of {first.values[-1]:.4g} "
            f"after {time:.4g} instead of {end:.4g}: {end / time:.2g} times as fast."
        )
    return said


def runs_figure(runs: Sequence[AppRun]) -> Figure:
    """Measures over virtual time, a line a run."""
    with rc_context(STYLE):
        ways = [falls for falls in (True, False) if any(run.curve(falls) is not None for run in runs)]
        figure = Figure(figsize=(4.2 + 4.2 * max(len(ways), 1) / 2, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        ink = colours([run.label.removeprefix("flwr ") for run in runs])
        panels = figure.subplots(1, max(len(ways), 1), squeeze=False)[0]
        for axes, falls in zip(panels, ways, strict=False):
            values: list[float] = []
            for run in runs:
                curve = run.curve(falls)
                if curve is None:
                    continue
                colour = ink[run.label.removeprefix("flwr ")]
                style = (0, (4.0, 1.8)) if run.label.startswith("flwr ") else "-"
                axes.plot(curve.times, curve.values, color=colour, linestyle=style, linewidth=1.7, label=run.label)
                values += [value for value in curve.values if math.isfinite(value)]
                axes.set_title(f"{curve.name}, {curve.whose}", loc="left", fontsize=10, fontweight="bold")
            bare(axes)
            scale(axes, "y", np.array(values), logarithmic=falls)
            axes.set_xlabel("virtual time")
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(handles), 4), frameon=False)
        return figure


def save_runs(runs: Sequence[AppRun], path: Path) -> None:
    """Draw and write; the file's ending says whether it is SVG, PNG or PDF."""
    save_figure(runs_figure(runs), path, example=_EXAMPLE)
