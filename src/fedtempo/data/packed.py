"""Reading a file whole, plain or packed (.gz, .xz, .lzma), up to a limit: a small file must not fill the memory."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import BinaryIO, cast

from fedtempo.data.damage import Damage

_CHUNK = 2**20


def read(path: Path, limit: int) -> bytes:
    """The unpacked content of a file, which has at most `limit` bytes."""
    with unpacked(path) as file:
        return read_up_to(file, limit)


def unpacked(path: Path) -> BinaryIO:
    """The file, open for reading, unpacked as its ending says."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return cast(BinaryIO, lzma.open(path)) if path.suffix in (".xz", ".lzma") else path.open("rb")


def read_up_to(file: BinaryIO, limit: int) -> bytes:
    """All that is left in `file`."""
    chunks, size = [], 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        if size > limit:
            raise Damage(f"it holds more than {limit / 2**20:,.0f} MiB, far more than this data set has")
        chunks.append(chunk)
    return b"".join(chunks)
