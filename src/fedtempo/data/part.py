"""A download in the making: `NAME.part` beside its target, and in `NAME.part.version` of which version it is a part.

The version is what the server calls it, an ETag or a date; going on with another version's part would mix two files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtempo.errors import InputError

CHUNK = 2**18


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the file system refuses becomes a message."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror or error}; make room or give permission there, or choose another folder "
            "with --data-dir (Python: data_dir=…)"
        ) from None


def digest_of(path: Path, algorithm: str) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


class Part:
    """The part of a file that is here so far."""

    def __init__(self, target: Path, algorithm: str) -> None:
        self._target, self._algorithm = target, algorithm
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.version")

    @property
    def size(self) -> int:
        """Bytes; 0 if nothing is here."""
        with writing(self.path):
            return self.path.stat().st_size if self.path.exists() else 0

    @property
    def digest(self) -> str:
        """The digest of what is here."""
        with writing(self.path):
            return digest_of(self.path, self._algorithm) if self.path.exists() else ""

    @property
    def version(self) -> str | None:
        """What the server called the version of which this is a part."""
        with writing(self._note):
            note = self._note.read_text("latin-1") if self._note.exists() else ""
        return note if note.isprintable() and note else None

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Callable[[bytes], None]]:
        """Go on at the end, or from the beginning where `start` is 0; yields what writes a piece."""
        with writing(self.path):
            if not start:
                self.remove()
                self._note.write_text(version or "", "latin-1")
            file = self.path.open("ab", buffering=0)
        with file:

            def write(piece: bytes) -> None:
                with writing(self.path):
                    left = memoryview(piece)
                    while left:
                        left = left[file.write(left) :]

            yield write

    def put_in_place(self) -> None:
        """Make the part the target."""
        with writing(self._target):
            with self.path.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(self.path, self._target)
            self._note.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget what is here."""
        with writing(self.path):
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
