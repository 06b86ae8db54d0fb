"""`merge`: histories of several studies as one.

    merge([monday, tuesday])                       more schemes, rates or seeds of one problem
    merge({"F0": even, "F80": uneven}, dim="times")    the same study in several settings, which become a dimension

Every run keeps its numbers. A run that two histories have must be the same in both; one that none has is NaN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import xarray as xr

from fedtempo.errors import InputError
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import ALWAYS, SETTINGS

_ORDER = ("scheme", "weights", *SETTINGS)
"""Dimensions whose values stay in the order in which they come; numbers are sorted."""
_SUMMED = ("run_seconds", "compile_seconds")


def merge(histories: Mapping[str, History] | Sequence[History], *, dim: str | None = None) -> History:
    """Histories as one, over all their schemes, weight rules, hyper-parameters and seeds.

    With `dim`, "times" or "problem", give them by name: each is a setting, the names become a dimension, and `best`
    chooses in each setting by itself.
    """
    if dim is not None and dim not in SETTINGS:
        raise InputError(f"dim: {dim!r} is not a setting; use {' or '.join(map(repr, SETTINGS))}")
    if (dim is not None) != isinstance(histories, Mapping):
        raise InputError("merge: give a list of histories, or histories by name with dim='times' or dim='problem'")
    given = list(histories.values()) if isinstance(histories, Mapping) else list(histories)
    for one in given:
        if not isinstance(one, History):
            raise InputError(f"merge: {type(one).__name__} is not a history; give what ft.simulate has returned")
    if not given:
        raise InputError("merge: there is nothing to merge; give at least one history")
    _check_times(given)
    _check_problems(given, dim)
    datasets = [one.dataset for one in given]
    if isinstance(histories, Mapping) and dim is not None:
        if dim in given[0].settings:
            raise InputError(f"merge: these histories have several {dim} already; merge them as a list")
        datasets = [one.expand_dims({dim: [str(name)]}) for name, one in zip(histories, datasets, strict=True)]
    datasets, left_out = _of_one_shape(_with_dimensions(datasets, given))
    whole = _in_order(reduce(_together, datasets), datasets)
    whole.attrs = _attributes(given, left_out)
    first = given[0]
    same = all(one.structure == first.structure for one in given) and not left_out
    return History(
        whole,
        structure=first.structure if same else None,
        state_structure=first.state_structure if same else None,
    )


def _check_times(given: Sequence[History]) -> None:
    first = given[0].dataset["time"].values
    for one in given[1:]:
        times = one.dataset["time"].values
        if not np.array_equal(times, first):
            raise InputError(
                f"merge: one history has {len(first)} points up to time {first[-1]:g}, another {len(times)} up to "
                f"{times[-1]:g}; simulate them with the same until and points"
            )


def _check_problems(given: Sequence[History], dim: str | None) -> None:
    names = {str(one.attrs.get("problem")) for one in given}
    if len(names) > 1 and dim != "problem" and not any("problem" in one.settings for one in given):
        raise InputError(
            f"merge: the histories are of different problems ({'; '.join(sorted(names))}); give them by name with "
            "dim='problem'"
        )


def _with_dimensions(datasets: list[xr.Dataset], given: Sequence[History]) -> list[xr.Dataset]:
    """Every data set over all hyper-parameters in which they differ."""
    listed = {name for one in given for name in (*one.hyper, *one.settings)}
    scalars = {str(c) for one in datasets for c in one.coords if one[c].ndim == 0}
    for name in sorted(scalars):
        values = {one[name].item() if name in one.coords and one[name].ndim == 0 else None for one in datasets}
        if len({str(value) for value in values}) > 1:
            listed.add(name)
    found = []
    for one in datasets:
        chosen = [name for name in listed if name in one.coords and name not in one.dims and one[name].ndim > 0]
        if chosen:
            raise InputError(f"merge: {chosen[0]} was chosen by best() in one of the histories; merge before best()")
        missing = [name for name in sorted(listed) if name not in one.coords]
        if missing:
            raise InputError(
                f"merge: one of the histories does not say its {missing[0]}; its local solver is a different one"
            )
        found.append(_expanded(one, [name for name in sorted(listed) if name not in one.dims]))
    return found


def _expanded(dataset: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """With these numbers as dimensions of what is measured of each run."""
    for name in names:
        runs = [n for n, v in dataset.items() if {"scheme", "weights", "seed"} <= set(v.dims)]
        wide = dataset[runs].expand_dims(name)
        rest = dataset.drop_vars([*runs, name])
        dataset = wide.merge(rest, combine_attrs="override")
    return dataset


def _of_one_shape(datasets: list[xr.Dataset]) -> tuple[list[xr.Dataset], list[str]]:
    """Without the variables that have other shapes in other data sets, as models of other problems; their names."""
    shapes: dict[str, set[tuple[tuple[str, int], ...]]] = {}
    for one in datasets:
        for name, values in one.items():
            inner = tuple((str(d), values.sizes[d]) for d in values.dims if d not in one.coords)
            shapes.setdefault(str(name), set()).add(inner)
    left_out = sorted(name for name, seen in shapes.items() if len(seen) > 1)
    return [one.drop_vars(left_out, errors="ignore") for one in datasets], left_out


def _together(a: xr.Dataset, b: xr.Dataset) -> xr.Dataset:
    """Both, over all their coordinates."""
    here, there = xr.align(a["loss"], b["loss"], join="inner")
    known = here.notnull() & there.notnull()
    if bool((known & (here != there)).any()):
        raise InputError(
            "merge: two histories have the same run with different losses; select other runs of one of them"
        )
    return a.combine_first(b)


def _in_order(whole: xr.Dataset, datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Names in the order in which they came; dimensions as in every history."""
    for name in _ORDER:
        if name in whole.dims:
            seen = dict.fromkeys(value for one in datasets for value in one[name].values.tolist())
            whole = whole.sel({name: list(seen)}).assign_coords({name: np.array(list(seen), dtype=str)})
    hyper = [d for d in datasets[0]["loss"].dims if d not in (*SETTINGS, *ALWAYS)]
    order = (*SETTINGS, "scheme", "weights", *hyper, "seed", "time")
    whole = whole.transpose(*(d for d in order if d in whole.dims), ...)
    for variable in whole.variables:
        if variable in datasets[0].variables:
            whole[variable].attrs = dict(datasets[0][variable].attrs)
    return whole


def _attributes(given: Sequence[History], left_out: Sequence[str]) -> dict[str, Any]:
    """What is known about the studies: what they agree in, and what each says."""
    attrs = dict(given[0].attrs)
    for one in given[1:]:
        for name, value in one.attrs.items():
            if attrs.get(name) != value:
                attrs[name] = _both(name, attrs.get(name), value)
    if left_out:
        attrs["left_out"] = json.dumps(list(left_out))
    return attrs


def _both(name: str, a: Any, b: Any) -> Any:
    """One attribute of two histories that differ in it."""
    if a is None or b is None:
        return b if a is None else a
    if name == "finished":
        return min(a, b)
    if name in _SUMMED:
        return a + b
    if name == "created":
        return max(a, b)
    if name == "seeds":
        return json.dumps(sorted({*json.loads(a), *json.loads(b)}))
    if name in ("own_weights", "versions"):
        return json.dumps(json.loads(a) | json.loads(b))
    if name in ("configuration", "problem"):
        return json.dumps({"merged": [*_parts(a), *(part for part in _parts(b) if part not in _parts(a))]})
    return a if str(b) in str(a) else f"{a}, {b}"


def _parts(text: str) -> list[Any]:
    found = json.loads(text)
    return list(found["merged"]) if isinstance(found, dict) and "merged" in found else [found]
