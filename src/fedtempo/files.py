"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedtempo.errors import InputError


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Let `write` fill a temporary file beside `path`, and put it in place when it is complete."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"{path}: cannot write there ({error.strerror}); choose another place") from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except OSError as error:
        os.unlink(name)
        raise InputError(f"{path}: cannot write it ({error.strerror}); choose another place") from None
    except BaseException:
        os.unlink(name)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""

    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    write_whole(path, write)
