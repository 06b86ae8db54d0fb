"""A history as a NetCDF file, with a format number that later versions read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import xarray as xr

from fedtempo.errors import InputError
from fedtempo.files import write_whole
from fedtempo.simulation.history.model import hide, must_exist, reveal

FORMAT = 1
KIND = "fedtempo history"


def write_history(dataset: xr.Dataset, path: Path) -> None:
    """Write the file, whole or not at all."""
    stored = _attributes_as_text(_renamed(dataset, hide))
    stored = stored.assign_attrs(format=FORMAT, kind=KIND)
    for values in stored.variables.values():
        values.encoding = {"_FillValue": None} if values.dtype.kind == "f" else {}
    # in memory first: a disk that fills up under HDF5 leaves a file that cannot be closed
    with _without_a_cluster():
        content = bytes(stored.to_netcdf(engine="h5netcdf"))
    write_whole(path, lambda file: file.write(content))


def read_history(path: Path) -> xr.Dataset:
    """The data set that is in the file; the file is closed again."""
    must_exist(path, "the path of a saved history")
    try:
        with _without_a_cluster():
            stored = xr.load_dataset(path, engine="h5netcdf", decode_times=False, mask_and_scale=False)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not a NetCDF file that can be read ({reason}); give one of fedtempo's") from None
    if stored.attrs.get("kind") != KIND or "format" not in stored.attrs:
        raise InputError(f"{path}: a NetCDF file, but not a history of fedtempo; give one that it wrote")
    if int(stored.attrs["format"]) > FORMAT:
        raise InputError(
            f"{path}: written in format {int(stored.attrs['format'])}, and this version of fedtempo reads up to "
            f"{FORMAT}; install a newer one"
        )
    for values in stored.variables.values():
        values.encoding = {}
    return _attributes_from_text(_renamed(stored, reveal))


@contextmanager
def _without_a_cluster() -> Iterator[None]:
    """Xarray locks a file by Dask's scheduler where there is a client, and waits for it where it is gone."""
    dask = sys.modules.get("dask")
    with nullcontext() if dask is None else dask.config.set(scheduler="synchronous"):
        yield


def _renamed(dataset: xr.Dataset, change: Callable[[str], str]) -> xr.Dataset:
    names = {str(name) for name in (*dataset.variables, *dataset.dims)}
    return dataset.rename({name: change(name) for name in names if change(name) != name})


def _attributes_as_text(dataset: xr.Dataset) -> xr.Dataset:
    """Attributes that NetCDF would change (lists of one, truth values, nothing) as JSON, their names kept."""
    odd = [n for n, v in dataset.attrs.items() if isinstance(v, bool) or not isinstance(v, str | int | float)]
    if not odd:
        return dataset.copy()
    written = {n: json.dumps(dataset.attrs[n], default=lambda v: v.tolist()) for n in odd}
    return dataset.assign_attrs({**written, "json_attributes": json.dumps(odd)})


def _attributes_from_text(dataset: xr.Dataset) -> xr.Dataset:
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in dataset.attrs.items()}
    for name in json.loads(plain.pop("json_attributes", "[]")):
        plain[name] = json.loads(plain[name])
    renewed = dataset.copy()
    renewed.attrs = plain
    return renewed
