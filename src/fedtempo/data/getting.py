"""Downloading a data set: the files of its official release that are not in its folder yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedtempo.data.catalogue import File, data_set
from fedtempo.data.places import Folder, folder_of
from fedtempo.errors import InputError


class Fetching(NamedTuple):
    """How far the download of a file is, in bytes; `total` is None while the server does not say."""

    file: str
    done: int
    total: int | None


def get(
    name: str,
    data_dir: Folder = None,
    *,
    on_progress: Callable[[Fetching], None] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> list[Path]:
    """Download what is missing of a data set; its files, in the catalogue's order.

    A file that is there with its published digest stays; one with another digest is replaced. `addresses` says for file
    names where to download them instead, from a mirror; their digests stay the published ones.
    """
    from fedtempo.data.download import fetch

    files, elsewhere = data_set(name).files, dict(addresses or {})
    if unknown := elsewhere.keys() - {file.name for file in files}:
        known = ", ".join(file.name for file in files)
        raise InputError(f"addresses: {name} has no file {', '.join(sorted(unknown))}; its files are {known}")
    folder = folder_of(name, data_dir)

    def fetched(file: File) -> Path:
        tell = None if on_progress is None else lambda done, total: on_progress(Fetching(file.name, done, total))
        return fetch(file, folder, address=elsewhere.get(file.name, file.address), tell=tell)

    return [fetched(file) for file in files]
