"""What is kept on disk, so that nothing slow is done twice: results by name, which may be lost at any time.

    FEDTEMPO_CACHE=<folder>   kept there, in place of the user's cache folder
    FEDTEMPO_CACHE=off        nothing is kept

A result is a few arrays (.npz, no pickles), written whole. A file that is damaged, or not ours, is as good as none and
is written again; a folder that cannot be written to is no cache. When there is too much, what was not used for longest
goes.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import FedtempoError
from fedtempo.files import disk, make_folder, write_whole

VARIABLE = "FEDTEMPO_CACHE"
MAX_BYTES = 1 << 28
"""Of all results together."""

Arrays = Mapping[str, NDArray[Any]]


def cache_folder() -> Path | None:
    """Where things are kept; None if nothing is to be."""
    given = os.environ.get(VARIABLE, "")
    if given.lower() == "off":
        return None
    if given:
        return Path(given).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("fedtempo")


def read_result(name: str) -> dict[str, NDArray[Any]] | None:
    """The arrays that are kept under a name; None if there are none that can be read."""
    path = _path(name)
    if path is None:
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            found = {key: file[key] for key in file.files}
        os.utime(path)  # used now: others go first
    except Exception:  # a damaged file may lead to anything
        return None
    return found


def write_result(name: str, arrays: Arrays) -> None:
    """Keep arrays under a name, if that can be done."""
    path = _path(name)
    if path is None:
        return
    with suppress(OSError, FedtempoError):
        make_folder(path.parent)
        write_whole(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
        _make_room(path.parent)


def _path(name: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "long-runs" / f"{name}.npz"


def _make_room(folder: Path) -> None:
    """Remove what was not used for longest, half-written files included, until all that is left fits."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process may have removed it
            about = path.lstat()
            if ".npz" in path.suffixes and stat.S_ISREG(about.st_mode):  # whatever else is there is not ours
                found.append((about.st_mtime, about.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MAX_BYTES:
            return
        with suppress(OSError):  # the others can go all the same
            disk.remove(path)
            total -= size
