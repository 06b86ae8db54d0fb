"""A study as a page that follows it: how far it is, its units, its measures over virtual time, what has diverged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.report.browser.live import Row, Section, Sections, chart, dash_of, head, inks_of, line, span, table
from fedtempo.report.text import counted, printable, short
from fedtempo.simulation.watching import Curve, StudySeen

MOST_LINES = 48
"""Lines of one chart; of more runs those with the lowest loss so far."""
MOST_BANDS = 12
"""Lines that have a band; of more, bands hide each other."""
NAMES = {
    "loss": "Federated loss",
    "test_loss": "Test loss",
    "surrogate_loss": "Surrogate loss",
}
_LEFT_OUT = ("loss_deviation", "surrogate_deviation")
_GONE = ("stopped", "failed", "killed", "silent")


def sections_of(seen: StudySeen) -> Sections:
    """The sections of the page."""
    found: dict[str, Section] = {"head": _head(seen)}
    found |= _charts(seen.curves)
    if seen.units:
        found["table:units"] = _units(seen)
    diverged = _diverged(seen.curves)
    if diverged:
        found["table:diverged"] = diverged
    return found


def facts_of(seen: StudySeen) -> list[tuple[str, str]]:
    """What is to be said of it, name by name."""
    facts = [("done", f"{100 * seen.done:.1f} %" if seen.done < 1 else "100 %")]
    if seen.condition == "running":
        facts.append(("left", "not known yet" if seen.left is None else f"about {span(seen.left)}"))
    if seen.elapsed is not None:
        facts.append(("has run" if seen.condition == "running" else "ran", span(seen.elapsed)))
    if seen.units:
        ready = sum(unit.finished for unit in seen.units)
        facts.append(("units", f"{ready} of {len(seen.units) + seen.others} done"))
        facts.append(("runs", str(sum(unit.runs for unit in seen.units))))
    if seen.heard is not None:
        facts.append(("last heard of", f"{span(seen.heard)} ago"))
    return facts


def _head(seen: StudySeen) -> Section:
    cure = ""
    if seen.condition in ("stopped", "killed", "failed"):
        cure = f"fedtempo run --resume {seen.folder} goes on from what was saved, and this page with it."
    return head(
        f"Study in {seen.folder.name or seen.folder}",
        str(seen.folder),
        seen.condition,
        ". ".join(filter(None, (printable(seen.words), cure))),
        facts_of(seen),
        seen.done,
    )


def _units(seen: StudySeen) -> Section:
    rows = []
    for k, unit in enumerate(seen.units):
        seeds = ", ".join(map(str, unit.seeds[:6])) + (", …" if len(unit.seeds) > 6 else "")
        said, tone = state_of(unit.share, unit.finished, unit.running)
        diverged = f"{unit.diverged} of {unit.runs}" if unit.diverged else ""
        cells = (printable(unit.name), seeds, str(unit.runs), said, unit.share, diverged)
        rows.append(Row(str(k), cells, "bad" if unit.diverged else tone))
    note = f"{counted(seen.others, 'unit')} of other jobs not begun" if seen.others else ""
    return table("Units", ("<scheme", "seeds", "runs", "<", "%done", "diverged"), rows, note=note)


def state_of(share: float, finished: bool, running: bool) -> tuple[str, str]:
    """What a unit does, in a word, and how it stands out."""
    if finished:
        return "done", ""
    if not running:
        return ("cut off" if share else "not begun"), "soft"
    return ("training" if share else "waiting"), "" if share else "soft"


def varying(curves: Sequence[Curve]) -> dict[str, list[str]]:
    """The labels in which curves differ, with all their values; the scheme comes first."""
    values: dict[str, dict[str, None]] = {"scheme": {}}
    for curve in curves:
        for name, value in curve.labels.items():
            values.setdefault(name, {})[_label(value)] = None
    return {name: [*there] for name, there in values.items() if len(there) > 1 or name == "scheme"}


def _label(value: object) -> str:
    return printable(f"{value:g}" if isinstance(value, float) else str(value))


def _charts(curves: Sequence[Curve]) -> dict[str, Section]:
    names = dict.fromkeys(name for curve in curves for name in curve.values if name not in _LEFT_OUT)
    ordered = sorted(names, key=lambda name: (name == "surrogate_loss", name != "loss", not name.endswith("loss")))
    differ = varying(curves)
    inks = inks_of(differ["scheme"])
    kept = _kept(curves)
    note = f" (the {len(kept)} of {len(curves)} with the lowest loss)" if len(kept) < len(curves) else ""
    second = next((name for name in differ if name != "scheme"), None)
    dims = [_dim(name, values, inks, name == second) for name, values in differ.items() if len(values) > 1]
    found = {}
    for name in ordered:
        lines = [
            _line(curve, name, differ, inks, second, banded=len(kept) <= MOST_BANDS)
            for curve in kept
            if name in curve.values
        ]
        title = printable(NAMES.get(name, name.replace("_", " ").capitalize()))
        found[f"chart:{name}"] = chart(title + note, "virtual time", title, lines, log=name.endswith("loss"), dims=dims)
    return found


def _kept(curves: Sequence[Curve]) -> Sequence[Curve]:
    if len(curves) <= MOST_LINES:
        return curves
    order = sorted(range(len(curves)), key=lambda k: last_of(curves[k], "loss"))
    chosen = set(order[:MOST_LINES])
    return [curve for k, curve in enumerate(curves) if k in chosen]


def last_of(curve: Curve, name: str) -> float:
    """The last value of a measure, the mean over its seeds; infinity where there is none."""
    mean = mean_of(curve.values[name]) if name in curve.values else np.array([])
    there = mean[np.isfinite(mean)]
    return float(there[-1]) if len(there) else float("inf")


def mean_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[times] over the seeds that are there."""
    there = np.isfinite(values)
    total, count = np.where(there, values, 0.0).sum(0), there.sum(0)
    out: NDArray[np.float64] = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return out


def _line(
    curve: Curve,
    name: str,
    differ: Mapping[str, Sequence[str]],
    inks: Mapping[str, str],
    second: str | None,
    *,
    banded: bool,
) -> Section:
    values, labels = curve.values[name], {k: _label(v) for k, v in curve.labels.items()}
    scheme = labels.get("scheme", "")
    band: dict[str, Any] = {}
    if len(values) > 1 and banded:
        there = np.isfinite(values)
        band["low"] = np.where(there, values, np.inf).min(0)
        band["high"] = np.where(there, values, -np.inf).max(0)
    said = ", ".join([scheme, *(f"{_said(k)} {labels[k]}" for k in differ if k != "scheme" and k in labels)])
    dash = dash_of(differ[second].index(labels[second])) if second in labels else None
    keys = {_said(k): labels[k] for k, there in differ.items() if k in labels and len(there) > 1}
    colour = inks.get(scheme, "var(--ink)")
    return line(said, list(curve.times), list(mean_of(values)), colour, keys=keys, dash=dash, **band)


def _dim(name: str, values: Sequence[str], inks: Mapping[str, str], dashed: bool) -> Section:
    many: list[dict[str, str | None]] = [{"value": value} for value in values]
    for k, one in enumerate(many):
        if name == "scheme":
            one["colour"] = inks[values[k]]
        elif dashed:
            one["dash"] = dash_of(k)
    return {"name": _said(name), "values": many}


def _said(name: str) -> str:
    return printable(name.replace("_", " "))


def _diverged(curves: Sequence[Curve]) -> Section | None:
    differ = varying(curves)
    rows = []
    for curve in curves:
        if curve.diverged:
            labels = [
                f"{_said(k)} {_label(v)}" if k != "scheme" else _label(v)
                for k, v in curve.labels.items()
                if k in differ
            ]
            seeds = max((len(values) for values in curve.values.values()), default=len(curve.diverged))
            cells = (", ".join(labels), f"{len(curve.diverged)} of {seeds}", short(min(curve.diverged)))
            rows.append(Row(", ".join(labels), cells, "bad"))
    return table("Diverged", ("<runs", "seeds", "first at"), rows) if rows else None
