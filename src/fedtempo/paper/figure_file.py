"""A figure of the paper as a short file: its parts, each a study, and how they are reduced at smaller scales.

    title, place, about       what it is, where in the paper, what to look at
    kind                      how it is drawn: timeline, weights, steps, schemes, rates
    [study]                   what all parts share, in the words of a study file of ``fedtempo run``
    [[parts]]                 name, title, and a `study` of its own; `of`: a part of another figure, of which the first
                              stage is drawn; `paper`: what the paper has, where the study differs at every scale
    [scales.quick]            what replaces it at a scale: `study` for all parts, `parts.NAME.study` for one;
                              `scout`: a first stage with all learning rates, replacing the study again; `keep`: how
                              many of them go on

The file itself is the paper's own setting, scale `full`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import nearest
from fedtempo.simulation.study_file import check_tables

FIGURES = ("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7")
SCALES = ("quick", "paper", "full")
KINDS = ("timeline", "weights", "steps", "schemes", "rates")

Table = dict[str, Any]

_TOP = ("title", "place", "about", "kind", "study", "parts", "scales", "timeline")
_PART = ("name", "title", "study", "of", "paper")
_SCALE = ("study", "parts", "scout", "keep", "about")
_SCALE_PART = ("study", "scout", "keep")


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
    """The same in the paper."""
    scout: Table | None = None
    """A shorter first stage with all learning rates."""
    keep: int = 3
    """How many of the rates go on from there."""
    only_scout: bool = False
    """Whether its first stage is what is drawn."""


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


def read_figure(name: str, scale: str, *, asked_by: tuple[str, ...] = ()) -> Figure:
    """A figure of the paper by its name, or one of one's own by the path of its file.

    `asked_by`: the figures of which it is a part, so that none is its own.
    """
    if name in asked_by:
        raise InputError(f"{name}: it is a part of itself; name another figure after of =")
    if scale not in SCALES:
        raise InputError(f"scale: {scale!r} is not known; use one of {', '.join(SCALES)}")
    label = Path(name).stem if name.endswith(".toml") else name
    return _figure(label, _document(name), scale, (*asked_by, name))


def _document(name: str) -> Table:
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise DataMissing(f"{name}: no such figure file; check the path") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}: cannot be read ({error}); give a TOML file") from None
    elif name in FIGURES:
        text = (files("fedtempo.paper") / "figures" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        hint = nearest(name, (*FIGURES, "claims", "all"))
        raise InputError(f"{name!r} is not a figure of the paper{hint}; known are {', '.join(FIGURES)}, claims, all")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None


def _figure(name: str, document: Table, scale: str, asked_by: tuple[str, ...]) -> Figure:
    _only(name, document, _TOP)
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
    for where in ("study", "scout", "parts"):
        _only(f"{name}: {where} at scale {scale}", reduced.get(where, {}), None)
    parts = [_part(name, document, given, reduced, scale, asked_by) for given in listed]
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
    )


def _part(figure: str, document: Table, given: Table, reduced: Table, scale: str, asked_by: tuple[str, ...]) -> Part:
    _only(f"{figure}: a part", given, _PART)
    name = given.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise InputError(f"{figure}: a part has no name ({name!r}); write name = letters, digits, . - and _")
    title = str(given.get("title", name))
    if "of" in given:
        theirs = read_figure(str(given["of"]), scale, asked_by=asked_by)
        for part in theirs.parts:
            if part.name == name:
                return Part(part.figure, name, title, part.study, part.full, part.scout, part.keep, only_scout=True)
        known = ", ".join(part.name for part in theirs.parts)
        raise InputError(f"{figure}: {given['of']} has no part {name}; it has {known}")
    own = reduced.get("parts", {}).get(name, {})
    _only(f"{figure}: part {name} at scale {scale}", own, _SCALE_PART)
    for table, where in ((given, ""), (own, f" at scale {scale}")):
        for key in ("study", "scout", "paper"):
            _only(f"{figure}: {key} of part {name}{where}", table.get(key, {}), None)
    keep = own.get("keep", reduced.get("keep", 3))
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise InputError(f"{figure}: keep: {keep!r} is not a number of learning rates; give a whole one from 1 on")
    full = replaced(document.get("study", {}), given.get("study", {}))
    study = replaced(full, reduced.get("study", {}), own.get("study", {}))
    _check_study(f"{figure}: part {name}", study)
    scouting = "scout" in reduced or "scout" in own
    return Part(
        figure=figure,
        name=name,
        title=title,
        study=study,
        full=replaced(full, given.get("paper", {})),
        scout=replaced(study, reduced.get("scout", {}), own.get("scout", {})) if scouting else None,
        keep=keep,
    )


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
