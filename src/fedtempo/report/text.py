"""Numbers and names as words, for tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NONE = "–"
"""What stands in a table for what there is not."""


def signed(share: float) -> str:
    """A relative difference in percent, or as a multiple where percents grow long."""
    if share > 9.995:
        return f"× {1.0 + share:.2g}"
    percent = f"{100 * share:+.0f}%" if abs(share) >= 0.0995 else f"{100 * share:+.1f}%"
    return "0%" if percent in ("+0.0%", "-0.0%") else percent.replace("-", "−")


def differing(a: float, b: float) -> str:
    """Two numbers with as many digits as it takes to tell them apart."""
    digits = next((d for d in range(3, 12) if f"{a:.{d}g}" != f"{b:.{d}g}"), 12)
    return f"{a:.{digits}g} instead of {b:.{digits}g}"


def cell(value: float, form: str) -> str:
    """A number in a table."""
    return NONE if math.isnan(value) else format(value, form)


def plain(value: Any) -> str:
    """A value of a hyper-parameter."""
    if isinstance(value, float):
        return NONE if math.isnan(value) else f"{value:g}"
    return str(value) or NONE


def counted(number: int, name: str) -> str:
    """As "1 run", "2 runs"."""
    return f"{number} {name}{'s' * (number != 1)}"


def both(names: Sequence[str]) -> str:
    """As "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def some(items: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more there are."""
    more = len(items) - most
    return "; ".join(items[:most]) + (f"; and so for {more} more" if more > 0 else "")


def verb_for(several: Sequence[object], verb: str) -> str:
    """As "a reaches", "a and b reach"."""
    return verb if len(several) > 1 else f"{verb}es"


def short(number: float) -> str:
    """A number with the digits that a table needs."""
    return f"{float(number):.4g}"


def titled(attrs: Mapping[str, object], other: str) -> str:
    """The name of a variable, with its unit."""
    name, units = str(attrs.get("long_name", "") or other), str(attrs.get("units", ""))
    return f"{name} [{units}]" if units not in ("", "1") and units not in name else name


def printable(said: str, *, lines: bool = False) -> str:
    """Words of others without what a terminal takes for orders, in one line unless `lines` may stay."""
    return "".join(char if char.isprintable() or (lines and char == "\n") else "�" for char in said)
