"""Models that wait in a file until somebody needs them: one file, in which each has a place of the same size.

    place k    bytes k·s … (k + 1)·s,  s: the bytes of a model's arrays, each at a multiple of 64

The file has no name: when the process ends, however it ends, the system takes its room back (where files need a name,
it is removed when it is closed). A place is free again when nobody holds it. What is read has the CRC-32 of what was
written, or it is an error: a model that a disk has changed enters no update. Its place is not used again, and after
`MOST_LOST` of them nothing more is put away.

It lies in the folder that is given, where it leaves room to save the run; else where TMPDIR says, in /var/tmp, or where
the system puts temporary files, which on some is memory.
"""

from __future__ import annotations

import errno
import heapq
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo import files
from fedtempo.errors import StorageError

Arrays = dict[str, NDArray[Any]]

_EVEN = 64
"""Bytes: arrays begin at multiples of this."""
LEFT = 4
"""Models for which there must be room beside the file in the folder that is given: a run is saved there."""
MOST_LOST = 3
"""Models that cannot be read back before the file is given up."""


class _Part(NamedTuple):
    """Where an array lies in a place."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


class Place:
    """A model in the file, as long as somebody holds this."""

    def __init__(self, file: ModelFile, number: int, crc: int) -> None:
        self._file, self._number, self._crc = file, number, crc
        weakref.finalize(self, file.free, number).atexit = False

    def read(self) -> Arrays:
        """The model, in memory of its own; a StorageError if it is not what was written."""
        return self._file.read(self._number, self._crc)


class ModelFile:
    """A file of models with the same arrays; it is opened when the first one comes."""

    def __init__(self, folder: Path | None = None, *, otherwise: str = "so they stay in memory") -> None:
        """`otherwise`: what becomes of models that cannot be written, as errors say it."""
        self._folder, self._otherwise = folder, otherwise
        self._file: BinaryIO | None = None
        self._where = Path()
        self._parts: dict[str, _Part] = {}
        self._size = self._end = 0
        """Bytes of a place, and where the last array ends in it."""
        self._places = 0
        """How many the file has."""
        self._free: list[int] = []
        """Those of them that nobody holds."""
        self._lost: set[int] = set()
        """Those of which a model could not be read back."""

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> Place:
        """Write a model; a StorageError where the disk refuses, or has lost too many."""
        if len(self._lost) >= MOST_LOST:
            raise StorageError(
                f"{len(self._lost)} models of jobs that are out could not be read back from {self._where}, "
                f"{self._otherwise}; check that disk"
            )
        if self._file is None:
            self._file = self._opened()
            weakref.finalize(self, self._file.close)
            self._lay_out(arrays)
        number = heapq.heappop(self._free) if self._free else self._places  # low ones first: the file stays short
        grows, crc = number == self._places, 0
        try:
            if grows and self._where == self._folder and files.disk.free_bytes(self._where) < (1 + LEFT) * self._size:
                raise OSError(errno.ENOSPC, "the room that is left is needed to save the run")
            for name, part in self._parts.items():
                data = _bytes_of(arrays[name])
                self._file.seek(number * self._size + part.begin)
                _write(self._file, data)
                crc = zlib.crc32(data, crc)
        except OSError as error:
            if grows:
                with suppress(OSError):
                    self._file.truncate(number * self._size)
            else:
                self.free(number)
            other = (
                "choose a checkpoint on a larger one"
                if self._where == self._folder
                else "set TMPDIR to a folder on another disk"
            )
            raise StorageError(
                f"models of jobs that are out cannot be written to {self._where} ({error.strerror}), "
                f"{self._otherwise}; make room there, or {other}"
            ) from None
        self._places = max(self._places, number + 1)
        return Place(self, number, crc)

    def read(self, number: int, crc: int) -> Arrays:
        """The model at a place; where it cannot be read back, the place is not used again."""
        try:
            return self._checked(number, crc)
        except StorageError:
            self._lost.add(number)
            raise

    def _checked(self, number: int, crc: int) -> Arrays:
        assert self._file is not None
        memory = np.empty(self._end, np.uint8)
        found = 0
        try:
            self._file.seek(number * self._size)
            _fill(self._file, memory.data)
        except OSError as error:
            raise StorageError(f"a model cannot be read back from {self._where} ({error.strerror})") from None
        for part in self._parts.values():
            found = zlib.crc32(memory[part.begin : part.end].data, found)
        if found != crc:
            raise StorageError(f"a model that was put into a file in {self._where} has changed there; check that disk")
        return {
            name: memory[part.begin : part.end].view(part.dtype).reshape(part.shape)
            for name, part in self._parts.items()
        }

    def free(self, number: int) -> None:
        """Nobody needs what is at this place."""
        if number not in self._lost:
            heapq.heappush(self._free, number)

    def close(self) -> None:
        """Give the room back."""
        if self._file is not None:
            self._file.close()

    def _lay_out(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name, array in arrays.items():
            begin = _even(self._end) if array.nbytes else self._end  # nothing is written before an empty one
            self._end = begin + array.nbytes
            self._parts[name] = _Part(array.dtype, array.shape, begin, self._end)
        self._size = _even(self._end)

    def _opened(self) -> BinaryIO:
        refused = []
        for folder in self._folders():
            try:
                file = files.disk.open_nameless(folder)
            except OSError as error:
                refused.append(f"{folder} ({error.strerror})")
            else:
                self._where = folder
                return file
        raise StorageError(
            f"models of jobs that are out cannot be written to {' or '.join(refused)}, {self._otherwise}; "
            "set TMPDIR to a folder that can be written"
        )

    def _folders(self) -> Iterator[Path]:
        if self._folder is not None:
            yield self._folder
        if not any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")) and os.path.isdir("/var/tmp"):
            yield Path("/var/tmp")
        yield Path(tempfile.gettempdir())


def _even(end: int) -> int:
    return -(-end // _EVEN) * _EVEN


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _write(file: BinaryIO, left: memoryview) -> None:
    while left:
        left = left[file.write(left) :]


def _fill(file: BinaryIO, room: memoryview) -> None:
    while room:
        count = file.readinto(room)  # type: ignore[attr-defined]
        if not count:
            raise OSError(0, "it is shorter than what was written")
        room = room[count:]
