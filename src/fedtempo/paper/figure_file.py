"""A figure of the paper as a short file: its parts, each a study, and how they are reduced at smaller scales.

    title, place, about       what it is, where in the paper, what to look at
    says                      what the paper says with it; its picture has that as caption
    kind                      how it is drawn: timeline, weights, steps, schemes, rates, steady
    [study]                   what all parts share, in the words of a study file of ``fedtempo run``
    [[parts]]                 name, title, and a `study` of its own; `of`: a part of another figure, of which the first
                              stage is drawn; `paper`: what the paper has, where the study differs at every scale
    [scales.quick]            what replaces it at a scale: `study` for all parts, `parts.NAME.study` for one;
                              `scout`: a first stage with all learning rates, replacing the study again; `keep`: how
                              many of them go on; `widen`: how many times rates are added beyond a best one that is
                              the last on its side, `together`: for all schemes; `runs.NAME`: a study beside,
                              replacing it again, for the claims; `choosers`: of the seeds of `runs.partitions`, how
                              many are run at every learning rate, the others at the best of those alone
    [settings.authors]        what another setting lays over the file: `study` for all parts, `parts.NAME` for one of
                              them, `scales` for what it replaces at a scale

The file itself is the setting `text`, what the paper says, at the scale `full`. The setting `authors` is what the
scripts of the paper's authors do.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import nearest
from fedtempo.simulation.study_file import check_tables

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7")
OWN_FIGURES = ("stable",)
"""Beside the paper's."""
SCALES = ("quick", "paper", "full")
TEXT = "text"
SETTINGS = (TEXT, "authors")
KINDS = ("timeline", "weights", "steps", "schemes", "rates", "steady")

Table = dict[str, Any]

_TOP = ("title", "place", "about", "says", "kind", "study", "parts", "scales", "settings", "timeline")
_SETTING = ("study", "parts", "scales")
_PART = ("name", "title", "study", "of", "paper")
_SCALE = ("study", "parts", "scout", "keep", "widen", "together", "runs", "choosers", "about")
_SCALE_PART = ("study", "scout", "keep", "widen", "together", "runs", "choosers")
RUNS = ("partitions", "beginning", "small-rates")
"""What claims are judged by beside a figure's own study: data dealt anew by every seed, the first of the time, rates at
which nothing is unstable."""
_TAKEN = (TEXT, "scout", "choosers", *RUNS)
"""What settings cannot be called: names of files have it."""


@dataclass(frozen=True)
class Part:
    """One study of a figure, at one scale."""

    figure: str
    """The figure to which it belongs, whose results hold it."""
    name: str
    title: str
    study: Table
    """In the words of a study file."""
    full: Table
    """The same in the paper, or in what its setting follows."""
    scout: Table | None = None
    """A shorter first stage with all learning rates."""
    keep: int = 3
    """How many of the rates go on from there."""
    widen: int = 0
    """How many times rates are added where a best one is the last on its side."""
    together: bool = False
    """Whether they are added for all schemes."""
    runs: Mapping[str, Table] = field(default_factory=dict)
    """Studies beside it, for the claims."""
    choosers: int = 0
    """Of the partitions, how many are run at every learning rate: all of them if none is said."""
    only_scout: bool = False
    """Whether its first stage is what is drawn."""
    setting: str = TEXT


@dataclass(frozen=True)
class Figure:
    """A figure at one scale."""

    name: str
    title: str
    place: str
    about: str
    kind: str
    scale: str
    parts: tuple[Part, ...] = ()
    timeline: Table = field(default_factory=dict)
    setting: str = TEXT
    says: str = ""
    """What the paper says with it."""

    @property
    def stem(self) -> str:
        """What its picture is called, without the ending: another for each setting."""
        return self.name + suffix(self.setting)


def suffix(setting: str) -> str:
    """What files of a setting have in their names, so that those of several can lie in one folder."""
    return "" if setting == TEXT else f".{setting}"


def read_figure(name: str, scale: str, setting: str = TEXT, *, asked_by: tuple[str, ...] = ()) -> Figure:
    """A figure of the paper by its name, or one of one's own by the path of its file.

    `setting` is "text", "authors" or one that the file of one's own has. `asked_by`: the figures of which it is a part,
    so that none is its own.
    """
    if name in asked_by:
        raise InputError(f"{name}: it is a part of itself; name another figure after of =")
    if scale not in SCALES:
        raise InputError(f"scale: {scale!r} is not known; use one of {', '.join(SCALES)}")
    label = Path(name).stem if name.endswith(".toml") else name
    document = _laid_over(label, _document(name), setting)
    return _figure(label, document, scale, setting, (*asked_by, name))


def _document(name: str) -> Table:
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise DataMissing(f"{name}: no such figure file; check the path") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}: cannot be read ({error}); give a TOML file") from None
    elif name in (*FIGURES, *OWN_FIGURES):
        text = (files("fedtempo.paper") / "figures" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        known = (*FIGURES, *OWN_FIGURES, "claims", "all")
        raise InputError(f"{name!r} is not a figure{nearest(name, known)}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None


def _laid_over(name: str, document: Table, setting: str) -> Table:
    """The file in a setting: with what that replaces in its place."""
    _only(name, document, _TOP)
    settings = document.get("settings", {})
    _only(f"{name}: settings", settings, None)
    parts = document.get("parts", [])
    listed = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    for label, table in settings.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", label) or label in _TAKEN:
            raise InputError(
                f"{name}: a setting cannot be called {label!r}; use letters, digits and -, not {', '.join(_TAKEN)}"
            )
        _only(f"{name}: setting {label}", table, _SETTING)
        for key in _SETTING:
            _only(f"{name}: {key} of setting {label}", table.get(key, {}), None)
        names = tuple(str(part.get("name")) for part in listed)
        _only(f"{name}: parts of setting {label}", table.get("parts", {}), names)
    # a figure without studies of its own is in whatever setting the others are
    own = any("of" not in part for part in listed)
    known = tuple(dict.fromkeys((TEXT, *settings))) if own else tuple(dict.fromkeys((*SETTINGS, *settings)))
    if setting not in known:
        raise InputError(f"setting: {setting!r} is not known for {name}; use one of {', '.join(known)}")
    laid = settings.get(setting, {})
    whole = {k: v for k, v in document.items() if k != "settings"}
    whole |= replaced(
        {k: whole.get(k, {}) for k in ("study", "scales")}, {k: v for k, v in laid.items() if k != "parts"}
    )
    if laid.get("parts"):
        whole["parts"] = [replaced(part, laid["parts"].get(part.get("name"), {})) for part in listed]
    return whole


def _figure(name: str, document: Table, scale: str, setting: str, asked_by: tuple[str, ...]) -> Figure:
    _only(f"{name}: study", document.get("study", {}), None)
    kind = document.get("kind")
    if kind not in KINDS:
        raise InputError(f"{name}: kind {kind!r} is not known; use one of {', '.join(KINDS)}")
    scales = document.get("scales", {})
    _only(f"{name}: scales", scales, SCALES)
    reduced = scales.get(scale, {})
    _only(f"{name}: scale {scale}", reduced, _SCALE)
    listed = document.get("parts", [])
    if kind == "timeline":
        missing = [key for key in ("times", "wait", "until") if key not in document.get("timeline", {})]
        if missing or listed:
            raise InputError(f"{name}: a timeline has no parts; write [timeline] with times, wait and until")
    elif not isinstance(listed, list) or not listed:
        raise InputError(f"{name}: it has no parts; write [[parts]] with a name and a study")
    for where in ("study", "scout", "parts", "runs"):
        _only(f"{name}: {where} at scale {scale}", reduced.get(where, {}), None)
    parts = [_part(name, document, given, reduced, scale, setting, asked_by) for given in listed]
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise InputError(f"{name}: two parts have one name ({', '.join(names)}); give each its own")
    return Figure(
        name=name,
        title=str(document.get("title", name)),
        place=str(document.get("place", "")),
        about=str(document.get("about", "")),
        kind=kind,
        scale=scale,
        parts=tuple(parts),
        timeline=document.get("timeline", {}),
        setting=setting,
        says=str(document.get("says", "")),
    )


def _part(
    figure: str, document: Table, given: Table, reduced: Table, scale: str, setting: str, asked_by: tuple[str, ...]
) -> Part:
    _only(f"{figure}: a part", given, _PART)
    name = given.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise InputError(f"{figure}: a part has no name ({name!r}); write name = letters, digits, . - and _")
    title = str(given.get("title", name))
    if "of" in given:
        theirs = read_figure(str(given["of"]), scale, setting, asked_by=asked_by)
        for part in theirs.parts:
            if part.name == name:
                return replace(part, title=title, only_scout=True)
        known = ", ".join(part.name for part in theirs.parts)
        raise InputError(f"{figure}: {given['of']} has no part {name}; it has {known}")
    own = reduced.get("parts", {}).get(name, {})
    _only(f"{figure}: part {name} at scale {scale}", own, _SCALE_PART)
    for table, where in ((given, ""), (own, f" at scale {scale}")):
        for key in ("study", "scout", "paper", "runs"):
            _only(f"{figure}: {key} of part {name}{where}", table.get(key, {}), None)
    keep = _counted(f"{figure}: keep", own.get("keep", reduced.get("keep", 3)), 1, "learning rates")
    widen = _counted(f"{figure}: widen", own.get("widen", reduced.get("widen", 0)), 0, "times")
    full = replaced(document.get("study", {}), given.get("study", {}))
    study = replaced(full, reduced.get("study", {}), own.get("study", {}))
    _check_study(f"{figure}: part {name}", study)
    scouting = "scout" in reduced or "scout" in own
    beside = (reduced.get("runs", {}), own.get("runs", {}))
    for given_runs in beside:
        _only(f"{figure}: runs of part {name}", given_runs, RUNS)
        for run, table in given_runs.items():
            _only(f"{figure}: run {run} of part {name}", table, None)
    runs = {run: replaced(study, *(t.get(run, {}) for t in beside)) for run in RUNS if any(run in t for t in beside)}
    for run, table in runs.items():
        _check_study(f"{figure}: run {run} of part {name}", table)
    if widen and study.get("local", {}).get("lr") == "auto":
        raise InputError(f'{figure}: widen of part {name}: lr = "auto" widens itself; leave widen out, or list rates')
    return Part(
        figure=figure,
        name=name,
        title=title,
        study=study,
        full=replaced(full, given.get("paper", {})),
        scout=replaced(study, reduced.get("scout", {}), own.get("scout", {})) if scouting else None,
        keep=keep,
        widen=widen,
        together=_said(f"{figure}: together", own.get("together", reduced.get("together", False))),
        runs=runs,
        choosers=_choosers(f"{figure}: choosers of part {name}", own.get("choosers", reduced.get("choosers", 0)), runs),
        setting=setting,
    )


def _counted(where: str, given: Any, least: int, what: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise InputError(f"{where}: {given!r} is not a number of {what}; give a whole one from {least} on")
    return given


def _choosers(where: str, given: Any, runs: Mapping[str, Table]) -> int:
    """How many seeds of the partitions choose the rates of the others."""
    choosers, study = _counted(where, given, 0, "seeds"), runs.get(RUNS[0])
    if choosers and study is not None:
        seeds = study.get("seeds")
        if not isinstance(seeds, list) or len(set(seeds)) < len(seeds) or len(seeds) <= choosers:
            raise InputError(f"{where}: {choosers} of the seeds {seeds!r}; list more than that, each once")
        if study.get("problem", {}).get("seed") != "each":
            raise InputError(f'{where}: seeds are partitions where each deals the data anew; write seed = "each"')
    return choosers


def _said(where: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"{where}: {given!r} is neither true nor false; give one of the two")
    return given


def _check_study(where: str, study: Table) -> None:
    """Refuse what a study file could not say."""
    try:
        check_tables(study)
        json.dumps(study)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from None


def replaced(first: Mapping[str, Any], *others: Mapping[str, Any]) -> Table:
    """A table with what the others say in the place of what it said; tables inside are joined likewise."""
    out = dict(first)
    for other in others:
        for key, value in other.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = replaced(out[key], value) if both else value
    return out


def _only(where: str, given: Any, known: tuple[str, ...] | None) -> None:
    """Refuse what is no table, or has a key that is not known; None: any key."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {given!r} is not a table; write its keys below a head in brackets")
    for key in given:
        if known is not None and key not in known:
            raise InputError(f"{where}: the key {key!r} does not exist{nearest(key, known)}")
