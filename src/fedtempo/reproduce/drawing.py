"""From a figure's results to its picture, and the line beside it that says what was run and what the paper has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtempo.clock.setting import Setting
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import FixedTimes
from fedtempo.history import History
from fedtempo.report.style import save_figure
from fedtempo.reproduce.figure_file import Figure, Part
from fedtempo.reproduce.results import told

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

EXAMPLE = "fig2.svg"


def draw(figure: Figure, results: Mapping[str, History], path: Path) -> None:
    """Write the picture; the ending of `path` says whether it is SVG, PNG or PDF."""
    if figure.kind == "timeline":
        _draw_timeline(figure, path)
        return
    save_figure(picture(figure, results), path, example=EXAMPLE)


def picture(figure: Figure, results: Mapping[str, History]) -> Picture:
    """The picture of a figure with parts."""
    from fedtempo.report.paper_rates import rates_figure
    from fedtempo.report.paper_schemes import schemes_figure
    from fedtempo.report.paper_steps import steps_figure
    from fedtempo.report.paper_weights import weights_figure

    drawn = {"weights": weights_figure, "steps": steps_figure, "schemes": schemes_figure, "rates": rates_figure}
    ordered = {part.name: results[part.name] for part in figure.parts if part.name in results}
    titles = {part.name: part.title for part in figure.parts}
    return drawn[figure.kind](ordered, titles=titles, note=note(figure, ordered))


def _draw_timeline(figure: Figure, path: Path) -> None:
    from fedtempo.report.timeline_figure import save_timeline, title_of
    from fedtempo.running import timeline
    from fedtempo.schemes import FedFix

    times, until = FixedTimes(figure.timeline["times"]), exact(figure.timeline["until"], "until")
    scheme = FedFix(figure.timeline["wait"])
    line = timeline(scheme, times, until=until)
    setting = Setting.of(scheme.waiting, times, None, 0)
    title = title_of(scheme.label, times.num_clients, line)
    save_timeline(setting, line, path, until=float(until), title=title)


def note(figure: Figure, results: Mapping[str, History]) -> str:
    """What was run, part by part, with the paper's numbers where they are others."""
    groups: dict[str, list[str]] = {}
    for part in figure.parts:
        if part.name in results:
            groups.setdefault(setting_words(part, results[part.name]), []).append(part.title)
    told_all = [f"{', '.join(titles)}: {words}" if len(groups) > 1 else words for words, titles in groups.items()]
    where = sorted({h.attrs.get("hardware", "").split(",")[0].split(": ")[-1] for h in results.values()})
    return "; ".join(told_all) + (f". On {', '.join(where)}." if where else "")


def setting_words(part: Part, history: History) -> str:
    """The setting of a part's results; in brackets the paper's, where it is another."""
    about = told(history)
    run: dict[str, Any] = about["study"]
    paper: dict[str, Any] = about["paper"]
    words = [_horizon(run, paper)]
    count = len(run.get("seeds", []))
    words.append(f"{count} seed{'s' if count != 1 else ''}" + _other(count, len(paper.get("seeds", [])), "paper: {}"))
    ours, theirs = run.get("local", {}), paper.get("local", {})
    for key, name in (("steps", "K"), ("batch_size", "B")):
        if ours.get(key) != theirs.get(key):
            words.append(f"{name} = {_values(ours.get(key))} (paper: {_values(theirs.get(key))})")
    rates, every = ours.get("lr", []), theirs.get("lr", [])
    if "rates" in run:
        words.append(f"the best {max(map(len, run['rates'].values()))} of {len(every)} rates of a short first stage")
    elif rates != every:
        words.append(f"rates {_values(rates)} of {len(every)}")
    for key, name in (("rows", "images"), ("windows", "windows a role"), ("compute", "")):
        if key in run.get("problem", {}) and run["problem"].get(key) != paper.get("problem", {}).get(key):
            words.append(f"{run['problem'][key]} {name}".strip())
    if run.get("dtype", "float32") != paper.get("dtype", "float32"):
        words.append(str(run["dtype"]))
    return ", ".join(words)


def _horizon(run: Mapping[str, Any], paper: Mapping[str, Any]) -> str:
    return f"T = {_number(run['until'])}" + _other(run["until"], paper.get("until"), "paper: {}")


def _other(ours: Any, theirs: Any, words: str) -> str:
    return "" if ours == theirs or theirs in (None, 0) else f" ({words.format(_number(theirs))})"


def _number(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)


def _values(values: Any) -> str:
    if isinstance(values, list):
        return ", ".join(f"{v:g}" for v in values) if len(values) <= 8 else f"{values[0]:g} to {values[-1]:g}"
    return str(values)
