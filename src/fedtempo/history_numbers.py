"""Numbers of a history: final values, times to a target, means over seeds.

A run's final value is the mean over the last tenth of the grid of virtual time, of one point at least. In an unfinished
study the grid ends, for each scheme and weights, at the last recorded time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr


def reach(values: xr.DataArray) -> xr.DataArray:
    """The last place on the grid with a value for each scheme and weights; −1 where there is none."""
    runs = [d for d in values.dims if d not in ("scheme", "weights", "time")]
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
