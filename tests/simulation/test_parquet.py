"""A history as a Parquet file."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fedtempo as ft
from fedtempo.errors import InputError, StorageError


def history() -> ft.History:
    loss = np.arange(12, dtype=float).reshape(2, 1, 2, 3)
    loss[1, 0, 1, 2] = np.nan
    dims = ("scheme", "weights", "seed", "time")
    coords = {"scheme": ["FedAvg", "FedFix(1/2)"], "weights": ["time-based"], "seed": [0, 5], "time": [0.0, 0.5, 1.0]}
    dataset = xr.Dataset({"loss": (dims, loss)}, coords, {"problem": "digits", "seeds": np.array([0, 5])})
    return ft.History(dataset)


def test_the_rows_are_those_of_the_dataframe(tmp_path) -> None:
    path = tmp_path / "history.parquet"
    path.write_bytes(b"an older one")
    history().to_parquet(path)
    found = pd.read_parquet(path)
    pd.testing.assert_frame_equal(found, history().to_dataframe(), check_exact=True, check_dtype=False)
    assert found["loss"].dtype == np.float64
    assert found["seed"].dtype == np.int64
    from pyarrow import parquet

    about = json.loads(parquet.read_schema(path).metadata[b"fedtempo"])
    assert about["kind"] == "fedtempo history"
    assert (about["problem"], about["seeds"], about["measures"]) == ("digits", [0, 5], ["loss"])
    assert [other.name for other in tmp_path.iterdir()] == ["history.parquet"]


def test_where_it_cannot_be_written(tmp_path, monkeypatch) -> None:
    with pytest.raises(StorageError, match="does not exist; create it first"):
        history().to_parquet(tmp_path / "nowhere" / "history.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(InputError, match=r"pip install 'fedtempo\[parquet\]'"):
        history().to_parquet(tmp_path / "history.parquet")
