"""A folder of ``fedtempo reproduce`` as a page for a browser: which statements hold, and each figure's curves.

The results say themselves what was run; the scale is the one whose figures they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtempo.errors import DataMissing, InputError
from fedtempo.paper.claims import Claim, interval, judge, measured, show_claims, stored, tally, why
from fedtempo.paper.claims_runs import SETTINGS
from fedtempo.paper.drawing import note
from fedtempo.paper.figure_file import FIGURES, OWN_FIGURES, SCALES, TEXT, Figure, read_figure
from fedtempo.paper.stages import KEY, drawn_path, load, path_of, shared_rate, what_was_run
from fedtempo.report.browser.document import WebPage, document, escape
from fedtempo.report.browser.history import SCRIPTS, charts_html, scheme_names
from fedtempo.report.browser.study_curves import curve_data
from fedtempo.report.browser.tables import folded, grid_html, paragraph, section, settings_html
from fedtempo.report.page import BLANK, Column, Grid, Line, page, table, words
from fedtempo.report.text import NONE
from fedtempo.simulation.history.history import History

_VERDICTS = (
    "holds and fails are said only at the paper's own horizon, on enough partitions of the data, at rates with a worse "
    "one on both sides. Anything less is an observation: seen, or not seen, at the time that was run. Intervals are "
    "95 %, of paired differences; a diverged run counts as an infinite loss."
)

Judged = Mapping[str, Sequence[Claim]]
"""Claims by setting."""


@dataclass(frozen=True)
class Reproduction:
    """What is in a folder: by figure, the results of its parts."""

    folder: Path
    scale: str
    figures: tuple[Figure, ...]
    results: Mapping[str, Mapping[str, History]]
    own: Mapping[str, Mapping[str, History]]
    """Of figures that are not the paper's, of which there is no file here, and of the paper's in another setting."""


def is_reproduction(folder: Path) -> bool:
    """Whether a folder has results of a figure's part."""
    return next(_parts_in(folder), None) is not None


def _parts_in(folder: Path) -> Iterator[tuple[Path, History]]:
    """Files that are results of a part of a figure, with their histories."""
    if not folder.is_dir():
        return
    for path in sorted(folder.glob("*-*.nc")):
        try:
            history = History.load(path)
        except InputError:  # something else that lies there
            continue
        if _says_what_was_run(history):
            yield path, history


def _says_what_was_run(history: History) -> bool:
    if KEY not in history.attrs:
        return False
    try:
        about: object = what_was_run(history)
    except (ValueError, TypeError):  # not JSON, or not an object
        return False
    return isinstance(about, dict) and all(isinstance(about.get(name), dict) for name in ("study", "paper"))


def read_reproduction(folder: Path) -> Reproduction:
    """The figures of which there are results."""
    there = dict(_parts_in(folder))
    if not there:
        raise DataMissing(f"{folder}: no results of fedtempo reproduce are there; check the path")
    scale = _scale_of(there)
    figures, results = [], {}
    for name in FIGURES:
        figure = read_figure(name, scale)
        found = {part.name: load(drawn_path(folder, part)) for part in figure.parts}
        known = {part: history for part, history in found.items() if history is not None}
        if known:
            figures.append(figure)
            results[name] = known
    own: dict[str, dict[str, History]] = {}
    for path, history in there.items():
        about = what_was_run(history)
        is_text = about.get("figure") in FIGURES and about["setting"] == TEXT
        if not is_text and "run" not in about and not path.stem.endswith(".scout"):
            setting = "" if about["setting"] == TEXT else f", {SETTINGS.get(about['setting'], about['setting'])}"
            own.setdefault(f"{about.get('figure')}{setting}", {})[str(about.get("part"))] = history
    return Reproduction(folder, scale, tuple(figures), results, own)


def _scale_of(there: Mapping[Path, History]) -> str:
    """The scale at which most of the results were run."""

    def agree(scale: str) -> int:
        parts = [part for name in FIGURES for part in read_figure(name, scale).parts]
        horizons = {path_of(Path(), part).name: part.study.get("until") for part in parts}
        return sum(what_was_run(h)["study"].get("until") == horizons.get(p.name, -1) for p, h in there.items())

    return max(SCALES, key=agree)


def claims_of(found: Reproduction) -> Judged:
    """The paper's statements, judged by what is there, for each setting; none where nothing is of the paper's."""
    return {setting: judge(results, setting) for setting, results in stored(found.folder).items()}


def figure_document(figure: Figure, results: Mapping[str, History], folder: Path) -> WebPage:
    """The page of one figure that has parts, the paper's or one's own."""
    found = Reproduction(folder, figure.scale, (figure,), {figure.name: results} if results else {}, {})
    claims: Judged = {}
    if figure.name in FIGURES and results:
        setting = str(what_was_run(next(iter(results.values()))).get("setting", "text"))
        claims = {setting: _carried(figure, judge({figure.name: dict(results)}, setting))}
    return reproduction_document(found, claims, title=f"{figure.title} ({figure.scale})")


def reproduction_document(found: Reproduction, claims: Judged, *, title: str = "") -> WebPage:
    """The page; `title`: where it is not of a whole folder."""
    histories = [h for group in (*found.results.values(), *found.own.values()) for h in group.values()]
    schemes = scheme_names(histories)
    charts, sections = {}, []
    for figure in found.figures:
        parts = found.results.get(figure.name, {})
        if not parts:
            sections.append(section(figure.title, paragraph("Nothing of it was run.")))
            continue
        charts[figure.name] = _charts(figure, parts, schemes)
        sections.append(_figure_section(figure, parts, charts[figure.name], claims, found))
    for name, parts in found.own.items():
        key = f"own-{len(charts)}"
        charts[key] = curve_data(parts, schemes, {}) | {"settingName": "part"}
        sections.append(section(name, charts_html(key, charts[key]), *_settings(parts), name=key))
    links = [(name, f"Figure {name.removeprefix('fig')}") for name in found.results]
    links += [(key, name) for key, name in zip(list(charts)[len(links) :], found.own, strict=True)]
    nav = "".join(f'<a href="#{escape(key)}">{escape(name)}</a>' for key, name in links)
    head = title or f"{found.folder.resolve().name}: the paper's experiments run again"
    body = "\n".join(
        filter(
            None,
            (
                '<div class="bar" data-theme-button></div>',
                f"<h1>{escape(head)}</h1>",
                f'<nav class="pages">{nav}</nav>' if len(links) > 1 else "",
                _claims_section(claims) if claims else "",
                *sections,
            ),
        )
    )
    return document(head, body, data={"studies": charts}, scripts=SCRIPTS, schemes=schemes)


def show_reproduction(found: Reproduction, claims: Judged) -> None:
    """Print which figures there are, and which statements hold."""
    lines = [Line(f": {f.title}. {note(f, found.results[f.name])}", bold=f.name) for f in found.figures]
    lines += [Line(f": {', '.join(parts)}", bold=name) for name, parts in found.own.items()]
    page(*lines, BLANK).show()
    if found.results:
        show_claims(claims)


# -- statements


def _claims_section(claims: Judged) -> str:
    parts = []
    for setting, judged in claims.items():
        ran = _ran(judged)
        left = len(judged) - len(ran)
        missing = f" {left} of them are not listed: nothing of theirs was run." if left else ""
        title = f"{SETTINGS.get(setting, setting)}: " if len(claims) > 1 else ""
        parts.append(paragraph(f"{title}{tally(judged)}{missing}"))
        if ran:
            parts += [grid_html(_claims_grid(ran)), folded("Case by case", grid_html(_cases_grid(ran)))]
    return section("What of the paper's experiments holds", *parts, paragraph(_VERDICTS), name="claims")


def _ran(claims: Sequence[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.verdict.word != "not run"]


def _claims_grid(claims: Sequence[Claim]) -> Grid:
    columns = ("no.", words("statement"), words("place"), words("measured"), _verdict(), words("why no more than that"))
    rows = [(str(c.id), c.statement, c.place, measured(c), str(c.verdict), why(c) or NONE) for c in claims]
    return table("", columns, rows)


def _verdict() -> Column:
    return Column("verdict", right=False, keep=True)


def _cases_grid(claims: Sequence[Claim]) -> Grid:
    rows = [
        (
            str(claim.id),
            f"{case.group}, {case.name}" if case.group else case.name,
            interval(case),
            case.word + (", beside" if case.beside else ""),
            case.note,
        )
        for claim in claims
        for case in claim.cases
    ]
    return table("", ("no.", words("case"), words("number and interval"), _verdict(), words("note")), rows)


def _carried(figure: Figure, claims: Sequence[Claim]) -> list[Claim]:
    """The statements that stand on a figure."""
    if figure.name not in FIGURES:
        return []
    number = int(figure.name.removeprefix("fig"))
    return [c for c in _ran(claims) if number in _figures_named(c.place)]


def _figures_named(place: str) -> set[int]:
    """As 2 of "section 5.2.1, figure 2(a)", and 5, 6, 7 of "figures 5 to 7"."""
    found = re.search(r"figures? (\d+)(?:\([a-z]\))?(?: to (\d+))?", place)
    if found is None:
        return set()
    first = int(found[1])
    return set(range(first, int(found[2] or first) + 1))


# -- figures


def _charts(figure: Figure, parts: Mapping[str, History], schemes: Sequence[str]) -> dict[str, Any]:
    titles = {part.name: part.title for part in figure.parts if part.name in parts}
    named = {f"{title}" if list(titles.values()).count(title) == 1 else name: name for name, title in titles.items()}
    histories = {title: parts[name] for title, name in named.items()}
    shared = {title: _shared(history) for title, history in histories.items()} if figure.kind == "weights" else {}
    rates = {title: rate for title, rate in shared.items() if rate is not None}
    more = {"settingName": "part", "logTime": figure.kind == "weights"}
    return curve_data(histories, schemes, {}, rates) | more


def _shared(history: History) -> float | None:
    """The rate that is best for identical weights; None where that is not known."""
    if "identical" not in history.dataset["weights"].values or history.dataset.sizes["scheme"] > 1:
        return None
    rate = shared_rate(history)
    return None if rate is None or rate != rate else rate


def _figure_section(
    figure: Figure,
    parts: Mapping[str, History],
    charts: Mapping[str, Any],
    claims: Judged,
    found: Reproduction,
) -> str:
    said = "".join(
        f"<li>{c.id}. {escape(c.statement)} <b>{escape(c.verdict)}</b> ({escape(measured(c))})</li>"
        for judged in claims.values()
        for c in _carried(figure, judged)
    )
    named = figure.name if figure.name in (*FIGURES, *OWN_FIGURES) else f"{figure.name}.toml"
    named += f" --setting {figure.setting}" if figure.setting != TEXT else ""
    missing = [part.title for part in figure.parts if part.name not in parts]
    return section(
        f"{figure.title} ({figure.place})",
        paragraph(figure.about),
        paragraph(note(figure, parts)),
        paragraph(f"Not run: {', '.join(missing)}.") if missing else "",
        f"<ul>{said}</ul>" if said else "",
        charts_html(figure.name, charts),
        *_settings(parts),
        paragraph("How to repeat it:"),
        f"<pre>fedtempo reproduce {escape(named)} --scale {escape(found.scale)}</pre>",
        name=figure.name,
    )


def _settings(parts: Mapping[str, History]) -> list[str]:
    """What each part was run with, and what it is in the paper, or in full."""
    found = []
    for name, history in parts.items():
        about = what_was_run(history)
        tables = [
            settings_html(about["study"], "As run"),
            settings_html(about["paper"], "In the paper" if about.get("figure") in FIGURES else "In full"),
        ]
        found.append(f'<h3>{escape(name)}</h3><div class="panels">{"".join(f"<div>{t}</div>" for t in tables)}</div>')
    return [folded("Settings", *found)]
