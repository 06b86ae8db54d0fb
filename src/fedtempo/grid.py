"""The axes of a study: any number may be a list, and each list becomes a dimension.

An axis that only changes numbers (learning rates) is `traced`: its runs go through the engine together. One that
changes the shape of the work (local steps, batch size) makes a group of runs of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from numbers import Real
from typing import Any

from fedtempo.errors import InputError

Value = float | int | None

RATE = "local_lr"
"""The axis of local learning rates."""
AUTO = "auto"
"""In the place of local learning rates: `ft.simulate` searches them (simulation/rate_search.py)."""


@dataclass(frozen=True)
class Axis:
    """The values of one hyper-parameter; `listed` says whether it is a dimension of the history."""

    name: str
    values: tuple[Value, ...]
    listed: bool
    traced: bool = True


def is_auto(given: object) -> bool:
    """Whether rates are to be searched."""
    return isinstance(given, str) and given == AUTO


def numbers(name: str, given: object, *, above: float = 0.0, reaches: bool = False) -> Axis:
    """A real number above `above` (or from it on, if it `reaches` it), or a list of such."""
    values, listed = _listed(name, given)
    for value in values:
        if not _real(value) or not (value > above or (reaches and value == above)) or not isfinite(value):
            least = "at least" if reaches else "above"
            raise InputError(
                f"{name}: {value!r} is not allowed; give a number {least} {above:g}, or a list of such numbers"
            )
    return Axis(name, _distinct(name, [float(value) for value in values]), listed)


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def counts(name: str, given: object, *, none: str | None = None) -> Axis:
    """A whole number of at least 1, or a list of such; None where it has a meaning, as `none` says."""
    values, listed = _listed(name, given)
    for value in values:
        if value is None and none is not None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            other = f", or None for {none}" if none else ""
            raise InputError(f"{name}: {value!r} is not a whole number of at least 1{other}")
    return Axis(name, _distinct(name, values), listed, traced=False)


def _listed(name: str, given: object) -> tuple[list[Any], bool]:
    """The values, and whether they were given as a list."""
    if is_auto(given) and name == RATE:
        raise InputError("lr: 'auto' is searched by ft.simulate and fedtempo run alone; give a number here")
    if isinstance(given, str):
        raise InputError(f"{name}: {given!r} is text; give a number or a list of numbers")
    if isinstance(given, Iterator):
        raise InputError(f"{name}: {given!r} can be read only once; give a list")
    given = _plain(given)
    values = [_plain(v) for v in given] if isinstance(given, Iterable) else [given]
    if not values:
        raise InputError(f"{name}: the list is empty; give at least one value")
    return values, isinstance(given, Iterable)


def _plain(value: Any) -> Any:
    """An array of one number, of whatever library, as that number."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _distinct(name: str, values: list[Any]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise InputError(f"{name}: {values} names a value twice; give each once")
    return tuple(values)


def combinations(axes: Sequence[Axis]) -> list[dict[str, Value]]:
    """Every combination of the axes' values, the last axis fastest."""
    return [dict(zip((a.name for a in axes), chosen, strict=True)) for chosen in product(*(a.values for a in axes))]
