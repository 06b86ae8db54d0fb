"""Curves of measures that somebody took now and then, each at places of its own, as a page's data for study.js."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtempo.report.browser.document import rounded
from fedtempo.report.text import NONE

_WIDE = 4.0
"""So many times the smallest value is the largest where an axis is logarithmic."""


class Measured(NamedTuple):
    """One measure of one run, or by one party, over each of the axes."""

    measure: str
    who: str
    places: tuple[Sequence[float], ...]
    values: Sequence[float]
    falls: bool | None = None
    """Whether less is better; None: nobody knows."""


def measure_data(lines: Sequence[Measured], who: Sequence[str], axes: Mapping[str, str], *, dim: str) -> dict[str, Any]:
    """A chart for each measure, in the order in which they come.

    `who`: all to whom lines may belong, in the order of their colours; `axes`: names and labels; `dim`: what `who` is.
    """
    names = list(dict.fromkeys(line.measure for line in lines))
    there = {line.who for line in lines}
    pool: list[Any] = []

    def place(values: Sequence[float]) -> int:
        found = rounded(list(values))
        if found not in pool:
            pool.append(found)
        return pool.index(found)

    combos = [
        {
            "at": [line.who, NONE],
            "label": line.who,
            "setting": 0,
            "best": True,
            "own": True,
            "gone": not math.isfinite(line.values[-1]),
            "xs": [place(values) for values in line.places],
            "means": [rounded(list(line.values)) if name == line.measure else None for name in names],
            "deviations": [None] * len(names),
            "seeds": [],
        }
        for line in lines
    ]
    values = [{"value": one, "colour": f"var(--c{k})"} for k, one in enumerate(who) if one in there]
    return {
        "settings": [""],
        "axes": [{"name": name, "label": label} for name, label in axes.items()],
        "measures": [{"name": name, "title": name, "share": False, **_axis(name, lines)} for name in names],
        "targets": [None],
        "dims": [{"name": "scheme", "label": dim, "values": values}],
        "views": [],
        "left_out": "",
        "combos": combos,
        "ends": [],
        "pool": pool,
    }


def _axis(name: str, lines: Sequence[Measured]) -> dict[str, Any]:
    own = [line for line in lines if line.measure == name]
    values = [value for line in own for value in line.values if math.isfinite(value)]
    wide = bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)
    return {"log": wide and own[0].falls is True}
