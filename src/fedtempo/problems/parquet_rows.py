"""Rows of a Parquet file as memory-mapped arrays, for data that do not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import DataMissing, InputError
from fedtempo.files import make_folder, write_whole

_ROWS = 1 << 16
"""Rows that are in memory at a time."""


def from_parquet(
    path: str | Path, folder: str | Path, columns: Mapping[str, str | Sequence[str]], *, client: str = "client"
) -> tuple[dict[str, NDArray[Any]], list[range]]:
    """Rows and parts for ``Problem.from_rows``, of a file that is read a part at a time and never whole.

    ``rows, parts = ft.problems.from_parquet("rows.parquet", "maps", {"x": ["age", "height"], "y": "label"})``
    Each name of `columns` becomes an array NAME.npy in `folder`: of one column, or of several side by side. Column
    `client` says whose a row is; the rows of a client must lie together, as in a file sorted by client.

    Example:
        >>> import pandas
        >>> table = {"client": [0, 0, 1], "age": [31.0, 40.0, 52.0], "height": [1.8, 1.7, 1.6], "label": [0, 1, 1]}
        >>> pandas.DataFrame(table).to_parquet("rows.parquet")
        >>> columns = {"x": ["age", "height"], "y": "label"}
        >>> rows, parts = ft.problems.from_parquet("rows.parquet", "maps", columns)
        >>> parts, rows["x"].shape
        ([range(0, 2), range(2, 3)], (3, 2))
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs an extra: pip install 'fedtempo[parquet]'") from None
    if not Path(path).is_file():
        raise DataMissing(f"{path}: no such file; check the path")
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a Parquet file ({str(error).splitlines()[0]})") from None
    wanted = {name: [one] if isinstance(one, str) else list(one) for name, one in columns.items()}
    missing = sorted({client, *(one for some in wanted.values() for one in some)} - set(file.schema_arrow.names))
    if missing:
        raise InputError(f"{path}: it has no column {', '.join(missing)}; it has {', '.join(file.schema_arrow.names)}")
    if not file.metadata.num_rows or not wanted:
        raise InputError(f"{path}: no rows or no columns to read; give a file with rows, and name its columns")
    make_folder(Path(folder))
    parts = _parts(file, client, str(path))
    rows = {}
    for name, some in wanted.items():
        target = Path(folder) / f"{name}.npy"
        write_whole(target, lambda out, some=some: _write(out, file, some, str(path)))  # type: ignore[misc]
        rows[name] = np.load(target, mmap_mode="r", allow_pickle=False)
    return rows, parts


def _parts(file: Any, client: str, path: str) -> list[range]:
    """Where each client's rows lie."""
    owners: list[object] = []
    starts: list[int] = []
    begin = 0
    for batch in file.iter_batches(_ROWS, columns=[client]):
        values = batch.column(0).to_numpy(zero_copy_only=False)
        if batch.column(0).null_count:
            raise InputError(f"{path}: column {client} has empty values; every row needs a client")
        new = np.flatnonzero(np.concatenate([[not owners or values[0] != owners[-1]], values[1:] != values[:-1]]))
        owners += values[new].tolist()
        starts += (begin + new).tolist()
        begin += len(values)
    if len(set(owners)) < len(owners):
        raise InputError(f"{path}: the rows of a client do not lie together; sort the file by column {client}")
    return [range(a, b) for a, b in zip(starts, [*starts[1:], begin], strict=True)]


def _write(out: BinaryIO, file: Any, columns: list[str], path: str) -> None:
    """The columns as one .npy file; whole numbers of 64 bits in 32."""
    kept: np.dtype[Any] | None = None
    for batch in file.iter_batches(_ROWS, columns=columns):
        parts = []
        for name in columns:
            column = batch.column(batch.schema.names.index(name))
            if column.null_count:
                raise InputError(f"{path}: column {name} has empty values; fill them, or leave such rows out")
            parts.append(column.to_numpy(zero_copy_only=False))
        block = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        if block.dtype == object:
            raise InputError(f"{path}: column {', '.join(columns)} does not hold numbers; encode it as numbers first")
        if kept is None:
            kept = np.dtype(np.int32) if block.dtype.kind in "iu" and block.dtype.itemsize == 8 else block.dtype
            shape = (file.metadata.num_rows, *block.shape[1:])
            np.lib.format.write_array_header_1_0(
                out, {"descr": np.lib.format.dtype_to_descr(kept), "fortran_order": False, "shape": shape}
            )
        if kept == np.int32 and block.size and (block.max() > 2**31 - 1 or block.min() < -(2**31)):
            raise InputError(f"{path}: column {', '.join(columns)} goes beyond 32 bits; use smaller whole numbers")
        out.write(np.ascontiguousarray(block, dtype=kept).tobytes())
