"""Tables as Parquet files, written whole or not at all, with what is known of them as JSON in the file's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtempo.errors import InputError
from fedtempo.files import write_whole

KEY = "fedtempo"
"""Of the metadata."""


def check_parquet(path: Path) -> None:
    """Refuse to write where what writes it is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError(f"{path}: writing Parquet needs an extra: pip install 'fedtempo[parquet]'") from None


def write_parquet(columns: Mapping[str, Sequence[Any]], path: Path, about: Mapping[str, Any]) -> None:
    """Write columns of one length."""
    check_parquet(path)
    import pyarrow
    from pyarrow import parquet

    def column(values: Sequence[Any]) -> Any:
        try:
            return pyarrow.array(values, from_pandas=False)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):  # of several types
            return pyarrow.array([None if value is None else str(value) for value in values])

    table = pyarrow.table({name: column(values) for name, values in columns.items()})
    table = table.replace_schema_metadata({KEY: json.dumps(dict(about), default=_plain)})
    write_whole(path, lambda file: parquet.write_table(table, file))


def _plain(value: Any) -> Any:
    """What JSON does not know: arrays and numbers of NumPy."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
