"""Which runs of a history are meant, and its numbers: final values, times to a target, means over seeds.

Runs are named by their coordinates, or are the best by a measure's final value. A run's final value is the mean over
the last tenth of the grid of virtual time, of one point at least. In an unfinished study the grid ends, for each scheme
and weights, at the last recorded time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from fedtempo.errors import InputError

ALWAYS = ("scheme", "weights", "seed", "time")
"""The dimensions of every history; beside them there are hyper-parameters that were given as lists."""
SETTINGS = ("problem", "times")
"""Dimensions that say what is trained, where a study has several problems or client times: nobody chooses over them."""
SEARCHED = "rate_search"
"""Attribute of a history whose rates were searched: how they were found."""
_CLOSE = 1e-6  # values given in 32 bits, or with seven digits, name a coordinate in 64 bits


def at_coordinates(dataset: xr.Dataset, coords: Mapping[str, Any]) -> xr.Dataset:
    """The runs at the given coordinates; dimensions of every history stay dimensions."""
    for name, wanted in coords.items():
        if name in dataset.dims and name in dataset.coords:
            if isinstance(wanted, slice):
                dataset = dataset.sel({name: wanted})
            elif isinstance(wanted, list | tuple | range | np.ndarray):
                if not len(wanted):
                    raise InputError(f"{name}: an empty list selects no runs; give at least one value")
                dataset = dataset.isel({name: [_position(dataset[name], name, w) for w in wanted]})
            else:
                at = _position(dataset[name], name, wanted)
                dataset = dataset.isel({name: [at] if name in ALWAYS else at})
        elif name in dataset.coords and not dataset[name].dims:
            _position(dataset[name], name, wanted)
        elif name in dataset.coords:
            raise InputError(f"{name} was chosen for each scheme and weights; select those, or before best()")
        else:
            names = ", ".join(str(c) for c in dataset.coords if dataset[c].ndim < 2)
            raise InputError(f"no coordinate {name!r} in this history; it has {names}")
    return dataset


def compared(dims: Iterable[Hashable]) -> tuple[str, ...]:
    """Of some dimensions, those over which runs are compared and none is chosen: settings, schemes, weight rules."""
    there = set(dims)
    return tuple(d for d in (*SETTINGS, "scheme", "weights") if d in there)


def lowest(scores: xr.DataArray, hyper: Sequence[str]) -> tuple[dict[str, Any], xr.DataArray]:
    """For each scheme and weights, the place of the lowest score along each hyper-parameter; whether there is one."""
    sizes = [scores.sizes[d] for d in hyper]
    flat = scores.stack(combination=hyper, create_index=False).transpose(*compared(scores.dims), "combination")
    best = flat.fillna(np.inf).argmin("combination")
    index = dict(zip(hyper, np.unravel_index(best.values, sizes), strict=True))
    return index, flat.notnull().any("combination")


def at_positions(dataset: xr.Dataset, index: Mapping[str, Any], known: xr.DataArray) -> xr.Dataset:
    """One combination for each scheme and weights, where `known`; elsewhere nothing."""
    over = compared(known.dims)
    pointers: dict[str, Any] = {d: xr.DataArray(np.arange(dataset.sizes[d]), dims=d) for d in over}
    pointers |= {name: xr.DataArray(at, dims=over) for name, at in index.items()}
    # chosen by pairs of positions, so that a variable that has no hyper-parameters is left as it is
    chosen = dataset.map(lambda v: v.isel({d: p for d, p in pointers.items() if d in v.dims}))
    for name in index:
        values = dataset[name].isel({name: pointers[name]}).drop_vars(name)
        chosen = chosen.assign_coords({name: values if known.all() else _where(values, known)})
    if not known.all():
        measured = [n for n, v in chosen.items() if set(over) <= set(v.dims) and n != "diverged_at"]
        chosen = chosen.assign({n: _where(chosen[n], known) for n in measured})
        if "diverged_at" in chosen:
            last = dataset["diverged_at"].max(list(index))
            chosen["diverged_at"] = chosen["diverged_at"].where(known, last)
    chosen = chosen.transpose(*(d for d in (*SETTINGS, *ALWAYS) if d in chosen.dims), ...).assign_attrs(dataset.attrs)
    for variable in chosen.variables:
        chosen[variable].attrs = dict(dataset[variable].attrs)
    return chosen


def listed(values: xr.DataArray, most: int = 12) -> str:
    """The values of a coordinate, as text."""
    items = [f"{v:g}" if isinstance(v, float) else str(v) for v in np.atleast_1d(values.values).tolist()]
    return ", ".join(items) if len(items) <= most else f"{', '.join(items[: most - 2])}, …, {items[-1]}"


def _position(values: xr.DataArray, name: str, wanted: Any) -> int:
    """Where a coordinate has a value, or what it has instead."""
    there = np.atleast_1d(values.values)
    wanted = getattr(wanted, "label", wanted)
    if there.dtype.kind in "iuf":
        try:
            number = float("nan") if wanted is None else float(wanted)
        except (TypeError, ValueError):
            number, there = 0.0, there[:0]
        same = np.isclose(there.astype(float), number, rtol=_CLOSE, atol=0.0, equal_nan=True)
    else:
        same = np.array([str(value) == str(wanted) for value in there], dtype=bool)
    if not same.any():
        raise InputError(f"{name} has no value {wanted!r}; it has {listed(values)}")
    if there.dtype.kind in "iuf" and same.sum() > 1:
        return int(np.argmin(np.where(same, np.abs(there.astype(float) - number), np.inf)))
    return int(np.argmax(same))


def _where(values: xr.DataArray, known: xr.DataArray) -> xr.DataArray:
    """Values where they are known, elsewhere nothing: NaN, or no text."""
    return values.where(known, "" if values.dtype.kind in "UOT" else np.nan).transpose(*values.dims)


def reach(values: xr.DataArray) -> xr.DataArray:
    """The last place on the grid with a value for each scheme and weights; −1 where there is none."""
    runs = [d for d in values.dims if d not in (*compared(values.dims), "time")]
    place = xr.DataArray(np.arange(values.sizes["time"]), dims="time")
    return place.where(values.notnull().any(runs), -1).max("time").astype(int)


def final_value(values: xr.DataArray) -> xr.DataArray:
    """The mean over the last tenth of the grid; NaN where a value is."""
    last = reach(values)
    count = -(-(last + 1) // 10)
    place = xr.DataArray(np.arange(values.sizes["time"]), dims="time")
    inside = (place > last - count) & (place <= last)
    total = values.where(inside, 0.0).sum("time", skipna=False)
    mean = (total / count.where(count > 0)).transpose(*(d for d in values.dims if d != "time"))
    return mean.assign_attrs(values.attrs)


def at_the_end(values: xr.DataArray, share: float) -> xr.DataArray:
    """The values in the last `share` of the time, not of the points: a grid may begin late."""
    times = values["time"].values
    return values.isel(time=np.flatnonzero(times >= (1 - share) * times[-1] * (1 - 1e-9)))


def first_time(times: xr.DataArray, hit: xr.DataArray) -> xr.DataArray:
    """The first time on the grid with a hit; NaN where there is none."""
    first = times.where(hit).min("time")
    return first.transpose(*(d for d in hit.dims if d != "time")).assign_attrs(times.attrs)


def over_seeds(
    dataset: xr.Dataset, values: Mapping[str, xr.DataArray], take: Callable[[xr.DataArray], xr.DataArray]
) -> dict[str, xr.DataArray]:
    """What `take` makes of each measure's seeds; NaN from the time on at which one of them diverged."""
    kept = {name: take(v) for name, v in values.items() if "seed" in v.dims}
    if "diverged_at" not in dataset:
        return kept
    gone = (dataset["diverged_at"] <= dataset["time"]).any("seed")
    runs = set(dataset["diverged_at"].dims) - {"seed"}
    return {name: v.where(~gone).transpose(*v.dims) if runs <= set(v.dims) else v for name, v in kept.items()}
