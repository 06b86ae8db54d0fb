"""A study's page: its table and sentences, its curves, its settings, and how to repeat it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedtempo.report.browser.document import WebPage, document, escape
from fedtempo.report.browser.study_curves import curve_data
from fedtempo.report.browser.tables import folded, grid_html, paragraph, parts_html, section, settings_html
from fedtempo.report.history_text import headline, summaries_of, summaries_page
from fedtempo.report.page import Grid, Page, table, words
from fedtempo.report.text import NONE, cell, plain, short
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.summary import Summary
from fedtempo.simulation.study_file import names_own_code
from fedtempo.simulation.study_text import study_text

SCRIPTS = ("chart.js", "study.js", "table.js")
_MOST_ROWS = 3000
"""Of the table of all combinations."""
_HINT = (
    "Click a name to hide or show its lines, double-click to see them alone. Draw a box to zoom; with a chart in "
    "focus, the arrow keys read its values."
)
_SEEDS = " A band is one deviation over seeds to either side, a cross is where a seed diverged."


def history_document(
    history: History,
    *,
    name: str = "",
    target: float | None = None,
    description: Mapping[str, Any] | None = None,
    jobs: str = "",
) -> WebPage:
    """The page. `name`: of the study; `description`: its study file; `jobs`: of what it was put together, in words."""
    schemes = scheme_names([history])
    summaries = summaries_of(history, target=target)
    said = summaries_page(history, summaries)
    charts = study_charts(history, schemes, summaries)
    title = name or "A study"
    body = "\n".join(
        filter(
            None,
            (
                '<div class="bar" data-theme-button></div>',
                f"<h1>{escape(title)}</h1>",
                paragraph(headline(history)),
                f'<p class="soft">Put together of {escape(jobs)}.</p>' if jobs else "",
                parts_html(Page(said.parts[1:])),
                section("Curves", charts_html("study", charts)),
                folded("The ends of all runs, at all rates", *map(grid_html, _all_runs(history)))
                if history.hyper
                else "",
                section("Settings", *settings_parts(history)),
                section("How to repeat it", *repeat_parts(history, description)),
            ),
        )
    )
    return document(title, body, data={"studies": {"study": charts}}, scripts=SCRIPTS, schemes=schemes)


def scheme_names(histories: Sequence[History]) -> list[str]:
    """All schemes, each once."""
    return list(dict.fromkeys(s for h in histories for s in h.dataset["scheme"].values.tolist()))


def study_charts(history: History, schemes: Sequence[str], summaries: Mapping[Any, Summary]) -> dict[str, Any]:
    """The charts of a study, of each problem and times of its own."""
    named = {_setting(key): summary for key, summary in summaries.items()}
    parts = {name: summary.history or history for name, summary in named.items()}
    found = curve_data(parts, schemes, {name: summary.target for name, summary in named.items()})
    return found | {"settingName": " and ".join(history.settings)}


def _setting(key: Any) -> str:
    return " · ".join(map(str, key if isinstance(key, tuple) else (key,)))


def charts_html(name: str, charts: Mapping[str, Any], about: str = _SEEDS) -> str:
    """The place of charts, how they are used, what bands and crosses are, and what is left out."""
    left_out = f'<p class="soft small">{escape(charts["left_out"])}</p>' if charts["left_out"] else ""
    return f'<p class="soft small">{escape(_HINT + about)}</p>{left_out}<div data-study="{escape(name)}"></div>'


# -- all runs


def _all_runs(history: History) -> Iterator[Grid]:
    """A row for each combination, the mean over its seeds."""
    if not history.settings:
        yield _runs(history, "")
        return
    for key, one in history.split().items():
        yield _runs(one, ", ".join(map(str, key if isinstance(key, tuple) else (key,))))


def _runs(history: History, where: str) -> Grid:
    hyper, order = history.hyper, ("scheme", "weights", *history.hyper, "seed")
    ends = {
        name: history.final(name).transpose(*order).values.astype(float)
        for name in ("loss", "loss_deviation", "test_accuracy")
        if name in history.measures and set(order) == set(history.final(name).dims)
    }
    begun, gone = (values.transpose(*order).values for values in (history.begun, history.diverged))
    coords = [history.dataset[d].values.tolist() for d in order[:-1]]
    rows: list[list[str]] = []
    for at in np.ndindex(begun.shape[:-1]):
        if not begun[at].any() or len(rows) >= _MOST_ROWS:
            continue
        named = [coords[d][i] for d, i in enumerate(at)]
        many, lost = int(begun[at].sum()), int(gone[at].sum())
        cells = ["diverged" if lost == many else _pm(ends["loss"][at])]
        cells += [cell(_mean(ends[n][at]), form) for n, form in _FORMS.items() if n in ends]
        rows.append([str(named[0]), str(named[1]), *map(plain, named[2:]), *cells, str(many), str(lost)])
    heads = [_HEADS[name] for name in ("loss", *_FORMS) if name in ends]
    title = f"{where}: the mean over seeds at the end" if where else "The mean over seeds at the end"
    title += f" (the first {_MOST_ROWS})" if len(rows) >= _MOST_ROWS else ""
    return table(title, (words("scheme"), words("weights"), *hyper, *heads, "seeds", "diverged"), rows)


_FORMS = {"loss_deviation": ".3g", "test_accuracy": ".1%"}
_HEADS = {"loss": "loss", "loss_deviation": "spread", "test_accuracy": "test"}


def _mean(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else math.nan


def _pm(values: np.ndarray) -> str:
    there = values[np.isfinite(values)]
    if not len(there):
        return NONE
    return short(float(there.mean())) + (f"±{float(there.std(ddof=1)):.1g}" if len(there) > 1 else "")


# -- settings


def settings_parts(history: History) -> Iterator[str]:
    """What the study was: its problem, its times, its training, and with what it was computed."""
    problem, configuration = _read(history, "problem"), _read(history, "configuration")
    configuration.pop("problem", None)
    attrs = history.attrs
    known = {n: attrs[n] for n in ("engine", "dtype", "hardware", "surrogate", "created") if attrs.get(n)}
    seconds = {n.replace("_", " "): float(attrs[n]) for n in ("run_seconds", "compile_seconds") if n in attrs}
    versions = " ".join(f"{n} {v}," for n, v in _read(history, "versions").items()).rstrip(",")
    state = {} if history.finished else {"finished": False}
    computed = {**known, **seconds, "versions": versions, **state}
    tables = {"Problem": problem, "Study": configuration, "Computed with": computed}
    each = "".join(f"<div>{settings_html(values, title)}</div>" for title, values in tables.items() if values)
    yield f'<div class="panels">{each}</div>'


def _read(history: History, name: str) -> dict[str, Any]:
    """An attribute that is JSON; as it is where it is not."""
    given = history.attrs.get(name, {})
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        found = given
    return dict(found) if isinstance(found, Mapping) else {name: found}


def repeat_parts(history: History, description: Mapping[str, Any] | None) -> Iterator[str]:
    """The study file and the command, or what is known in their place."""
    if description is not None:
        trust = " --trust" if names_own_code(dict(description)) else ""
        yield paragraph("Save this as study.toml, and:")
        yield f"<pre>fedtempo run study.toml{trust}</pre>"
        yield f"<pre>{escape(study_text(description))}</pre>"
        return
    yield paragraph(
        "No study file of this study is known; it may have been started from Python: call fedtempo.simulate with the "
        "settings above and the same seeds. Batches, times and initial models follow from the seeds."
    )
    whole = _read(history, "configuration")
    if whole:
        text = json.dumps(whole, indent=2, ensure_ascii=False, default=str)
        yield folded("The settings in full, as JSON", f"<pre>{escape(text)}</pre>")
