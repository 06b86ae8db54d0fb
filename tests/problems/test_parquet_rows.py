"""Rows of a Parquet file become memory-mapped arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedtempo as ft
from fedtempo.problems import from_parquet, mapped, parquet_rows

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = {"x": ["a", "b"], "y": "label"}


def _file(path: Path, **changed: Any) -> Path:
    table = {
        "who": ["u", "u", "u", "v", "w", "w"],
        "a": np.arange(6.0, dtype=np.float32),
        "b": np.arange(6.0, dtype=np.float32) * 10,
        "label": np.array([0, 1, 0, 2, 1, 1], dtype=np.int64),
    } | changed
    parquet.write_table(pa.table(table), path)
    return path


def test_rows_lie_client_after_client_and_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "_ROWS", 2)  # a client's rows come in two parts
    rows, parts = from_parquet(_file(tmp_path / "t.parquet"), tmp_path / "maps", COLUMNS, client="who")
    assert parts == [range(0, 3), range(3, 4), range(4, 6)]
    assert rows["y"].dtype == np.int32
    np.testing.assert_array_equal(rows["x"][4], [4, 40])
    problem = ft.Problem.from_rows(
        lambda key: jnp.zeros(2), lambda p, batch: jnp.mean((batch["x"] @ p - batch["y"]) ** 2), rows, parts
    )
    assert all(mapped.is_mapped(leaf) for leaf in problem.rows.values())
    np.testing.assert_array_equal(problem.client_data(2)["y"], [1, 1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"who": ["u", "v", "u", "v", "w", "w"]}, "do not lie together; sort the file by column who"),
        ({"label": [0, 1, None, 2, 1, 1]}, "column label has empty values"),
        ({"label": ["0", "1", "0", "2", "1", "1"]}, "does not hold numbers"),
        ({"label": [0, 1, 2**40, 2, 1, 1]}, "goes beyond 32 bits"),
    ],
)
def test_what_cannot_be_rows_is_refused_and_leaves_no_file(changed: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ft.InputError, match=message):
        from_parquet(_file(tmp_path / "t.parquet", **changed), tmp_path / "maps", {"y": "label"}, client="who")
    assert not list((tmp_path / "maps").iterdir())


def test_a_file_that_is_not_there_or_has_other_columns(tmp_path: Path) -> None:
    with pytest.raises(ft.DataMissing, match="no such file"):
        from_parquet(tmp_path / "no.parquet", tmp_path, COLUMNS)
    with pytest.raises(ft.InputError, match="it has no column client; it has who, a, b, label"):
        from_parquet(_file(tmp_path / "t.parquet"), tmp_path, COLUMNS)
