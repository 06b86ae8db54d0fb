"""`merge`: histories of several studies as one.

    merge([monday, tuesday])                       more schemes, rates or seeds of one problem
    merge({"F0": even, "F80": uneven}, dim="times")    the same study in several settings, which become a dimension

Every run keeps its numbers. A run that two histories have must be the same in both, but for rounding; one that none has
is NaN. What is not a dimension, as the client times, must be the same in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import xarray as xr

from fedtempo.errors import InputError
from fedtempo.problems.naming import EACH
from fedtempo.simulation.history.history import MODULE, History
from fedtempo.simulation.history.selection import ALWAYS, SEARCHED, SETTINGS

_ORDER = ("scheme", "weights", *SETTINGS)
"""Dimensions whose values stay in the order in which they come; numbers are sorted."""
_SUMMED = ("run_seconds", "compile_seconds")
_SAME_LOSS = 1e-4
"""Of a loss: how far one run may differ in two histories. Beside other runs it is rounded differently."""
_SAME_NUMBER = 1e-9
"""Of a hyper-parameter: 0.3 and 0.1 + 0.2 are one."""
_ALIKE = {
    "fingerprint": ("problem", "have other data"),
    "times": ("times", "have other client times"),
    "law": ("times", "have client times of another law"),
    "step": (None, "are at another step of the server"),
}
"""What must be the same in all histories: the setting that it belongs to, and what is said where it is not."""


def merge(histories: Mapping[str, History] | Sequence[History], *, dim: str | None = None) -> History:
    """Histories as one, over all their schemes, weight rules, hyper-parameters and seeds.

    With `dim`, "times" or "problem", give them by name: each is a setting, the names become a dimension, and `best`
    chooses in each setting by itself.

    Example:
        >>> problem, local = ft.problems.quadratics(4), ft.LocalSGD(lr=0.3)
        >>> fast, slow = ft.FixedTimes.spread(4, 20), ft.FixedTimes.spread(4, 80)
        >>> runs = {"F20": fast, "F80": slow}
        >>> found = {
        ...     name: ft.simulate(problem, ft.FedFix("1/2"), times, until=5, local=local)
        ...     for name, times in runs.items()
        ... }
        >>> history = ft.merge(found, dim="times")
        >>> history.final().squeeze().to_series().round(3)
        times
        F20    0.334
        F80    0.302
        Name: loss, dtype: float64
    """
    if dim is not None and dim not in SETTINGS:
        raise InputError(f"dim: {dim!r} is not a setting; use {' or '.join(map(repr, SETTINGS))}")
    if (dim is not None) != isinstance(histories, Mapping):
        raise InputError("merge: give a list of histories, or histories by name with dim='times' or dim='problem'")
    if isinstance(histories, History):
        raise InputError("merge: one history given; give a list of them, as [monday, tuesday]")
    given = list(histories.values()) if isinstance(histories, Mapping) else list(histories)
    for one in given:
        if not isinstance(one, History):
            raise InputError(f"merge: {type(one).__name__} is not a history; give what ft.simulate has returned")
    if not given:
        raise InputError("merge: there is nothing to merge; give at least one history")
    _check_times(given)
    _check_problems(given, dim)
    _check_alike(given, dim)
    datasets = [one.dataset for one in given]
    if isinstance(histories, Mapping) and dim is not None:
        if dim in given[0].settings:
            raise InputError(f"merge: these histories have several {dim} already; merge them as a list")
        datasets = [one.expand_dims({dim: [str(name)]}) for name, one in zip(histories, datasets, strict=True)]
    datasets, left_out = _of_one_shape(_with_dimensions(_snapped(datasets), given))
    whole = _in_order(reduce(_together, datasets), datasets)
    whole.attrs = _attributes(given, left_out)
    return History(
        whole,
        structure=None if left_out else _agreed([one.structure for one in given]),
        state_structure=None if left_out else _agreed([one.state_structure for one in given]),
    )


def _agreed(structures: Sequence[Any]) -> Any:
    """The structure of those that know theirs, where it is one; a history from a file does not."""
    known = [one for one in structures if one is not None]
    return known[0] if known and all(one == known[0] for one in known[1:]) else None


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


def _check_alike(given: Sequence[History], dim: str | None) -> None:
    settings = {dim, *(name for one in given for name in one.settings)}
    known = [_parts(one.attrs["configuration"])[0] for one in given if "configuration" in one.attrs]
    for key, (setting, said) in _ALIKE.items():
        values = [
            _data(one) if key == "fingerprint" else str(one.get(key, "paper" if key == "step" else None))
            for one in known
        ]
        if (setting is not None and setting in settings) or len(set(values)) < 2:
            continue
        cure = f"; give them by name with dim={setting!r}" if setting else "; simulate them with the same step"
        raise InputError(f"merge: some of the histories {said}{cure}")


def _data(configuration: dict[str, Any]) -> str:
    """What the data are told apart by: where each seed deals them anew, what they are dealt of."""
    about = configuration.get("problem")
    arguments = about.get("arguments", {}) if isinstance(about, dict) else {}
    return json.dumps(about) if arguments.get("seed") == EACH else str(configuration.get("fingerprint"))


def _snapped(datasets: list[xr.Dataset]) -> list[xr.Dataset]:
    """With numbers that differ in their last digits alone made the same."""
    seen: dict[str, list[float]] = {}
    found = []
    for one in datasets:
        changed = {}
        for name, values in one.coords.items():
            if values.dtype.kind != "f" or name == "time" or values.ndim > 1:
                continue
            known = seen.setdefault(str(name), [])
            kept = []
            for value in np.atleast_1d(values.values).tolist():
                near = (k for k in known if abs(k - value) <= _SAME_NUMBER * abs(k))
                kept.append(next(near, value))
            known += [value for value in kept if value not in known]
            changed[name] = values.copy(data=np.array(kept).reshape(values.shape))
        found.append(one.assign_coords(changed))
    return found


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
    if bool((known & (abs(here - there) > _SAME_LOSS * abs(there))).any()):
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
    for name in (SEARCHED, MODULE):
        if attrs.get(name) is None or any(name not in one.attrs for one in given):
            attrs.pop(name, None)
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
    if name == SEARCHED:
        return _searched(json.loads(a), json.loads(b))
    if name == MODULE:
        return None
    if name == "left_out":
        return json.dumps(sorted({*json.loads(a), *json.loads(b)}))
    if name == "seeds":
        return json.dumps(sorted({*json.loads(a), *json.loads(b)}))
    if name in ("own_weights", "versions"):
        return json.dumps(json.loads(a) | json.loads(b))
    if name in ("configuration", "problem"):
        return json.dumps({"merged": [*_parts(a), *(part for part in _parts(b) if part not in _parts(a))]})
    return a if str(b) in str(a) else f"{a}, {b}"


def _searched(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Two searches as one: it ended inside where both did."""
    ended = a["ended"] if a["ended"] == b["ended"] else "edge"
    rates = sorted({*a["rates"], *b["rates"]})
    return json.dumps({"rates": rates, "first": a["first"], "rounds": a["rounds"] + b["rounds"], "ended": ended})


def _parts(text: str) -> list[Any]:
    found = json.loads(text)
    return list(found["merged"]) if isinstance(found, dict) and "merged" in found else [found]
