"""A recommendation's page: the choice and how sure it is, all that it was compared with, and their curves.

`recommendation_body` is its part of another page: HTML, and the data of its charts, whose names begin with "choice-".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtempo.errors import InputError
from fedtempo.planning.recommendation import Choice, Recommendation
from fedtempo.planning.saved_recommendation import AnyRecommendation
from fedtempo.report.browser.document import WebPage, document, escape, rounded
from fedtempo.report.browser.tables import folded, grid_html, parts_html, section, settings_html
from fedtempo.report.page import Page
from fedtempo.report.recommendation_tables import cells_grid, measure_name, recommendation_page, value_words

SCRIPTS = ("chart.js", "charts.js", "table.js")
_BEST, _OTHERS = "each scheme's best", "others"
_ENDED, _LEFT = "to the end", "left earlier"
_WIDE = 4.0


def recommendation_document(made: AnyRecommendation) -> WebPage:
    """The page."""
    schemes = recommendation_schemes(made)
    body, charts = recommendation_body(made, schemes)
    title = f"{made.best.scheme.label} with local learning rate {made.best.local_lr:g}"
    head = f'<div class="bar" data-theme-button></div>\n<h1>{escape(title)}: {escape(value_words(made))}</h1>'
    whole = "\n".join((head, body, section("Settings", _settings(made)), section("How to use it", *_uses(made))))
    return document(title, whole, data={"charts": charts}, scripts=SCRIPTS, schemes=schemes)


def recommendation_schemes(made: AnyRecommendation) -> list[str]:
    """The schemes in the order of their colours: the best of a family has the family's."""
    return list(dict.fromkeys(one.scheme.label for one in (*made.choices, *made.cells)))


def recommendation_body(made: AnyRecommendation, schemes: Sequence[str] | None = None) -> tuple[str, dict[str, Any]]:
    """The sentences, tables and places of charts, and the charts' data.

    `schemes`: those of the page that it becomes a part of, as `document` is given them, for their colours.
    """
    order = recommendation_schemes(made) if schemes is None else list(schemes)
    ink = {label: f"var(--c{k})" for k, label in enumerate(order)}
    charts = {"choice-curves": _curves(made, ink), "choice-rates": _rates(made, ink)}
    charts = {name: chart for name, chart in charts.items() if chart["lines"]}
    places = "".join(f'<div data-chart="{name}"></div>' for name in charts)
    parts = recommendation_page(made).parts[1:]  # the first line is the heading
    html = "\n".join(
        (
            parts_html(Page(parts)),
            section("Curves", f'<div class="panels">{places}</div>') if places else "",
            folded(f"All {len(made.cells)} cells that were trained", grid_html(cells_grid(made)))
            if len(made.cells) > len(made.choices)
            else "",
        )
    )
    return html, charts


def _named(one: Choice) -> str:
    return f"{one.scheme.label}, lr {one.local_lr:g}"


def _scheme_dim(labels: Sequence[str], ink: Mapping[str, str]) -> dict[str, Any]:
    there = dict.fromkeys(labels)
    return {"name": "scheme", "values": [{"value": s, "colour": ink.get(s, "var(--ink)")} for s in there]}


def _curves(made: AnyRecommendation, ink: Mapping[str, str]) -> dict[str, Any]:
    """The measure over time of all that was trained to the end; a band is two standard errors."""
    best = {(one.scheme.label, one.local_lr) for one in made.choices}
    choices = {(one.scheme.label, one.local_lr): one for one in made.cells}
    ordered = sorted(made.curves, key=lambda cell: cell not in best)
    lines = []
    for cell in ordered:
        curve, label = made.curves[cell], cell[0]
        known = choices.get(cell)
        line = {
            "label": _named(known) if known is not None else f"{label}, lr {cell[1]:g}",
            "keys": {"scheme": label, "rates": _BEST if cell in best else _OTHERS},
            "colour": ink.get(label, "var(--ink)"),
            "dash": None if cell in best else "2 3",
            "xs": rounded(curve.times),
            "ys": rounded(curve.mean),
            "cut": not np.isfinite(curve.mean).all(),
        }
        if np.isfinite(curve.error).any():
            with np.errstate(invalid="ignore"):  # what has diverged has no band
                line |= {"low": rounded(curve.mean - 2 * curve.error), "high": rounded(curve.mean + 2 * curve.error)}
        lines.append(line)
    dims = [_scheme_dim([line["keys"]["scheme"] for line in lines], ink)]
    if any(cell not in best for cell in made.curves):
        dims.append({"name": "rates", "values": [{"value": _BEST}, {"value": _OTHERS, "off": True, "dash": "2 3"}]})
    to_reach = made.objective.kind == "time-to"
    name = "loss" if to_reach else measure_name(made)
    values = np.concatenate([curve.mean for curve in made.curves.values()] or [np.empty(0)])
    return {
        "title": f"{name[0].upper()}{name[1:]} over virtual time, of what was trained to the end",
        "x": {"label": "virtual time", "log": False},
        "y": {"label": name, "log": False if made.objective.largest else _is_wide(values)},
        "lines": lines,
        "dims": dims,
        "marksY": [{"y": made.objective.number, "label": f"to be reached: {made.objective.number:g}"}]
        if to_reach
        else [],
    }


def _rates(made: AnyRecommendation, ink: Mapping[str, str]) -> dict[str, Any]:
    """What each scheme gave at each rate; what was left earlier, at the time at which it was left."""
    lines = []
    for kind in (_ENDED, _LEFT):
        for label in dict.fromkeys(one.scheme.label for one in made.cells):
            cells = [one for one in made.cells if one.scheme.label == label and (one.trained >= 1) == (kind == _ENDED)]
            cells = sorted((one for one in cells if np.isfinite(one.loss)), key=lambda one: one.local_lr)
            if cells:
                line = {
                    "label": label if kind == _ENDED else f"{label}, {kind}",
                    "keys": {"scheme": label, "trained": kind},
                    "colour": ink.get(label, "var(--ink)"),
                    "dash": None if kind == _ENDED else "2 3",
                    "dots": True,
                    "xs": [one.local_lr for one in cells],
                    "ys": rounded([one.loss for one in cells]),
                }
                errors = np.array([one.error for one in cells])
                if np.isfinite(errors).any():
                    losses = np.array([one.loss for one in cells])
                    line |= {"low": rounded(losses - errors), "high": rounded(losses + errors)}
                lines.append(line)
    dims = [_scheme_dim([line["keys"]["scheme"] for line in lines], ink)]
    if any(line["keys"]["trained"] == _LEFT for line in lines):
        kinds = [{"value": _ENDED}, {"value": _LEFT, "off": True, "dash": "2 3"}]
        dims.append({"name": "trained", "values": kinds})
    name = measure_name(made)
    return {
        "title": f"{name[0].upper()}{name[1:]} against the learning rate",
        "x": {"label": "local_lr", "log": True},
        "y": {
            "label": name,
            "log": False if made.objective.largest else _is_wide(np.array([y for line in lines for y in line["ys"]])),
        },
        "lines": lines,
        "dims": dims,
    }


def _is_wide(values: Any) -> bool:
    there = values[np.isfinite(values)]
    return bool(len(there)) and there.min() > 0 and bool(there.max() > _WIDE * there.min())


def _settings(made: AnyRecommendation) -> str:
    return settings_html(
        {
            **_of_times(made),
            "until": float(made.until),
            "objective": str(made.objective),
            "step": made.step,
            "local steps": made.local_steps,
            "batch size": "all" if made.batch_size is None else made.batch_size,
            "tolerance": f"{made.tolerance:.0%}",
            "learning rates": sorted({one.local_lr for one in made.cells}),
        }
    )


def _of_times(made: AnyRecommendation) -> dict[str, Any]:
    """What the JSON of a recommendation does not say."""
    if not isinstance(made, Recommendation):
        return {}
    times = {"clients": made.times.num_clients, "client times": str(made.times)}
    return {**times, "weights": str(made.rule), "server_lr": made.server_lr}


def _uses(made: AnyRecommendation) -> list[str]:
    """The choice as lines of Python."""
    found = []
    for words, flower in (("For simulate, among schemes:", False), ("In a server app of Flower:", True)):
        try:
            found += [f"<p>{words}</p>", f"<pre>{escape(made.line(flower=flower))}</pre>"]
        except InputError:  # Flower's strategies cannot host the choice
            continue
    return found
