"""Where data lies: below one folder, in `mnist/`, `cifar10/` and `shakespeare/`.

The folder is the one that is given, else that of the environment variable FEDTEMPO_DATA_DIR, else `data` in the
platform's cache folder.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from fedtempo.data.catalogue import Form, data_set
from fedtempo.errors import DataMissing

VARIABLE = "FEDTEMPO_DATA_DIR"

Folder = str | os.PathLike[str] | None


def folder_of(name: str, data_dir: Folder = None) -> Path:
    """The folder of one data set."""
    known = data_set(name).name
    if data_dir is None:
        data_dir = os.environ.get(VARIABLE) or None
    if data_dir is not None:
        return Path(data_dir).expanduser() / known
    from platformdirs import user_cache_path

    return user_cache_path("fedtempo") / "data" / known


def held(name: str, data_dir: Folder = None) -> list[Path]:
    """The files that a loader reads, in the order of their form; empty if the data set is not there."""
    folder = folder_of(name, data_dir)
    for form in data_set(name).forms:
        paths = _present(folder, form)
        if len(paths) == len(form):
            return paths
    return []


def needed(name: str, data_dir: Folder = None) -> list[Path]:
    """The files that a loader reads; if the data set is not there, what to do about it."""
    if paths := held(name, data_dir):
        return paths
    folder, described = folder_of(name, data_dir), data_set(name)
    fullest = max(described.forms, key=lambda form: len(_present(folder, form)))
    lacking = [names[0] for names in fullest if not _present(folder, (names,))]
    some = f" (without {', '.join(lacking)})" if len(lacking) < len(fullest) else ""
    where = "is not complete in" if some else "is not in"
    raise DataMissing(
        f"{name} {where} {folder}{some}; download it with `{command(name, data_dir)}`, or say --data-dir FOLDER "
        f"(Python: data_dir=…) where FOLDER/{name}/ has {described.layout}"
    )


def command(name: str, data_dir: Folder = None) -> str:
    """The command that downloads a data set to the folder where it was looked for."""
    return f"fedtempo data get {name}" + ("" if data_dir is None else f" --data-dir {shlex.quote(os.fspath(data_dir))}")


def _present(folder: Path, form: Form) -> list[Path]:
    """For every file of a form the first of its names that is there."""
    found = (next((folder / name for name in names if os.path.isfile(folder / name)), None) for names in form)
    return [path for path in found if path is not None]
