"""From a figure's results to its picture, and the line beside it that says what was run and what the paper has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import FixedTimes
from fedtempo.paper.figure_file import FIGURES, OWN_FIGURES, TEXT, Figure
from fedtempo.paper.stages import what_was_run
from fedtempo.report.style import save_figure
from fedtempo.simulation.history.history import History
from fedtempo.simulation.study_file import merged

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

EXAMPLE = "fig2.svg"
SETTING_WORDS = {"authors": "that of the authors' scripts"}


def draw(figure: Figure, results: Mapping[str, History], path: Path) -> None:
    """Write the picture; the ending of `path` says whether it is SVG, PNG or PDF."""
    if figure.kind == "timeline":
        _draw_timeline(figure, path)
        return
    save_figure(picture(figure, results), path, example=EXAMPLE)


def picture(figure: Figure, results: Mapping[str, History]) -> Picture:
    """The picture of a figure with parts."""
    from fedtempo.paper.figure_schemes import rates_figure, schemes_figure, steady_figure
    from fedtempo.paper.figure_steps import steps_figure
    from fedtempo.paper.figure_weights import weights_figure

    drawn = {"weights": weights_figure, "steps": steps_figure, "schemes": schemes_figure, "rates": rates_figure}
    drawn |= {"steady": steady_figure}
    ordered = {part.name: results[part.name] for part in figure.parts if part.name in results}
    titles = {part.name: part.title for part in figure.parts}
    return drawn[figure.kind](ordered, titles=titles, note=caption(figure, ordered))


def caption(figure: Figure, results: Mapping[str, History]) -> str:
    """What the paper says with the figure, and below it what was run."""
    who = "" if figure.name in OWN_FIGURES else "The paper: "
    return "\n".join(filter(None, (who + figure.says if figure.says else "", note(figure, results))))


def _draw_timeline(figure: Figure, path: Path) -> None:
    from fedtempo.report.timeline_figure import save_timeline, title_of
    from fedtempo.schemes.named import FedFix
    from fedtempo.schemes.timelines import timeline

    times, until = FixedTimes(figure.timeline["times"]), exact(figure.timeline["until"], "until")
    scheme = FedFix(figure.timeline["wait"])
    line = timeline(scheme, times, until=until)
    config = ClockConfig.of(scheme.waiting, times, None, 0)
    title = title_of(scheme.label, times.num_clients, line)
    save_timeline(config, line, path, until=float(until), title=title)


def note(figure: Figure, results: Mapping[str, History]) -> str:
    """What was run, part by part, with the paper's numbers where they are others."""
    groups: dict[str, list[str]] = {}
    for part in figure.parts:
        if part.name in results:
            words = setting_words(results[part.name], "paper" if part.figure in FIGURES else "in full")
            groups.setdefault(words, []).append(part.title)
    sentences = [f"{' and '.join(titles)}: {words}" if len(groups) > 1 else words for words, titles in groups.items()]
    if sentences and figure.setting != TEXT:
        sentences[0] = f"Setting: {SETTING_WORDS.get(figure.setting, figure.setting)}. {sentences[0]}"
    where = sorted({h.attrs.get("hardware", "").split(",")[0].split(": ")[-1] for h in results.values()})
    return "; ".join(sentences) + (f". On {', '.join(where)}." if where else "")


def setting_words(history: History, full: str) -> str:
    """The setting of a part's results; in brackets, after the word `full`, that of the whole where it is another."""
    about = what_was_run(history)
    run, whole = merged(about["study"]), merged(about["paper"])
    ours, theirs = run["local"], whole["local"]
    seeds, every = len(run["seeds"]), _listed(theirs["lr"])
    words = [f"T = {_number(run['until'])}" + _beside(run["until"], whole["until"], full)]
    words.append(f"{seeds} seed{'s' if seeds != 1 else ''}" + _beside(seeds, len(whole["seeds"]), full))
    for key, name in (("steps", "K"), ("batch_size", "B")):
        if ours[key] != theirs[key]:
            words.append(f"{name} = {_values(ours[key])}" + _beside(ours[key], theirs[key], full))
    if "rates" in run:
        kept, first = max(map(len, run["rates"].values())), about["first_stage"]
        seeds_then = f"{first['seeds']} seed{'s' if first['seeds'] != 1 else ''}"
        words.append(
            f"the best {kept} of {len(every)} rates from {_values([every[0]])} to {_values([every[-1]])} after a first "
            f"stage of T = {_number(first['until'])}, {seeds_then}"
        )
    elif set(_listed(ours["lr"])) > set(every):
        words.append(f"rates {_values(ours['lr'])}" + _beside(ours["lr"], theirs["lr"], full))
    elif _listed(ours["lr"]) != every:
        words.append(f"rates {_values(ours['lr'])} of {len(every)}")
    if about.get("widened"):
        added = {rate for rates in about["widened"] for kept in rates.values() for rate in kept}
        words.append("then rates beside a best one that was the last" + _beyond(added, every))
    for key, name in (("rows", " images"), ("windows", " windows per role"), ("compute", "")):
        if run["problem"].get(key) != whole["problem"].get(key):
            words.append(f"{run['problem'].get(key, 'all')}{name}")
    if run.get("dtype") != whole.get("dtype"):
        words.append(str(run.get("dtype", "float32")))
    return ", ".join(words)


def _beyond(rates: set[float], grid: list[float]) -> str:
    """How far rates go beyond the ends of a grid."""
    down = f", down to {_number(min(rates))}" if min(rates) < min(grid) else ""
    return down + (f", up to {_number(max(rates))}" if max(rates) > max(grid) else "")


def _beside(ours: Any, theirs: Any, full: str) -> str:
    return "" if ours == theirs else f" ({full}: {_values(theirs)})"


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _values(values: Any) -> str:
    many = _listed(values)
    return ", ".join(map(_number, many)) if len(many) <= 8 else f"{_number(many[0])} to {_number(many[-1])}"


def _number(value: Any) -> str:
    return (
        f"{value:,}".replace(",", " ")
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else value
    )
