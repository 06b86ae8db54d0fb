"""The data sets: what is downloaded from where, with which digest, where it lies, and which forms a loader takes.

A form is a list of files, each under one of several names; a folder holds a data set when it holds all files of a form.
All lie below one folder, in `mnist/`, `cifar10/` and `shakespeare/`: the folder that is given, else that of the
environment variable FEDTEMPO_DATA_DIR, else `data` in the platform's cache folder. `get` downloads the files of the
official release that are not there yet.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedtempo.errors import DataMissing, InputError

Form = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class File:
    """A file of an official release."""

    name: str
    address: str
    algorithm: str
    """Of the published digest, as `hashlib` names it: md5 or sha256."""
    digest: str
    limit: int
    """Bytes, more than the file has: a longer answer is not this file."""


@dataclass(frozen=True)
class DataSet:
    """A data set: its official files, the forms that its loader takes, and what its users should know."""

    name: str
    title: str
    files: tuple[File, ...]
    forms: tuple[Form, ...]
    layout: str
    """The forms, in words."""
    licence: str
    citation: str


_MNIST_AT = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_MNIST = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 16_000_000),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 1_000_000),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 4_000_000),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 1_000_000),
}

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_BATCHES = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")

DATASETS: Mapping[str, DataSet] = {
    "mnist": DataSet(
        name="mnist",
        title="MNIST: 60 000 + 10 000 handwritten digits",
        files=tuple(
            File(f"{name}.gz", f"{_MNIST_AT}{name}.gz", "md5", digest, limit)
            for name, (digest, limit) in _MNIST.items()
        ),
        forms=(tuple((f"{name}.gz", name) for name in _MNIST),),
        layout="the four idx files (train-images-idx3-ubyte, …), as .gz or unpacked",
        licence="copyright Yann LeCun and Corinna Cortes, commonly given as CC BY-SA 3.0",
        citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, 1998",
    ),
    "cifar10": DataSet(
        name="cifar10",
        title="CIFAR-10: 50 000 + 10 000 small colour images of 10 classes",
        files=(
            File(
                CIFAR_ARCHIVE,
                f"https://www.cs.toronto.edu/~kriz/{CIFAR_ARCHIVE}",
                "sha256",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                200_000_000,
            ),
        ),
        forms=(
            ((CIFAR_ARCHIVE,),),
            *(
                tuple((f"{at}{name}", f"{at}{name}.xz", f"{at}{name}.gz") for name in CIFAR_BATCHES)
                for at in ("", f"{CIFAR_FOLDER}/")
            ),
        ),
        layout=f"{CIFAR_ARCHIVE}, or its six .bin files, plain, .xz or .gz, there or in {CIFAR_FOLDER}/",
        licence="no licence stated by its authors, who ask to be cited",
        citation="Krizhevsky: Learning multiple layers of features from tiny images, 2009",
    ),
    "shakespeare": DataSet(
        name="shakespeare",
        title="Shakespeare: what 715 roles of his plays say (TensorFlow Federated's release)",
        files=(
            File(
                "shakespeare.sqlite.lzma",
                "https://storage.googleapis.com/tff-datasets-public/shakespeare.sqlite.lzma",
                "sha256",
                "d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4",
                16_000_000,
            ),
        ),
        forms=(
            (
                (
                    "shakespeare.sqlite.lzma",
                    "shakespeare.sqlite",
                    "leaf_all_users_raw.json.gz",
                    "leaf_all_users_raw.json",
                    "all_data.json.gz",
                    "all_data.json",
                ),
            ),
        ),
        layout="shakespeare.sqlite.lzma (or .sqlite), or LEAF's roles in leaf_all_users_raw.json or all_data.json "
        "(or .json.gz)",
        licence="TensorFlow Federated's release; LEAF's source text forbids commercial distribution",
        citation="Caldas et al.: LEAF: a benchmark for federated settings, 2018",
    ),
}


def data_set(name: str) -> DataSet:
    """The data set of that name; an unknown name is refused with the nearest known one."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(str(name).lower(), DATASETS, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InputError(f"no data set is called {name!r}; {meant}Known: {', '.join(DATASETS)}")


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
        f"{name} {where} {folder}{some}; download it with `{command(name, data_dir)}`, or pass --data-dir FOLDER "
        f"(Python: data_dir=…) where FOLDER/{name}/ has {described.layout}"
    )


def command(name: str, data_dir: Folder = None) -> str:
    """The command that downloads a data set to the folder where it was looked for."""
    return f"fedtempo data get {name}" + ("" if data_dir is None else f" --data-dir {shlex.quote(os.fspath(data_dir))}")


def _present(folder: Path, form: Form) -> list[Path]:
    """For every file of a form the first of its names that is there."""
    found = (next((folder / name for name in names if os.path.isfile(folder / name)), None) for names in form)
    return [path for path in found if path is not None]


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
    from fedtempo.problems.data.download import fetch

    files, elsewhere = data_set(name).files, dict(addresses or {})
    if unknown := elsewhere.keys() - {file.name for file in files}:
        known = ", ".join(file.name for file in files)
        raise InputError(f"addresses: {name} has no file {', '.join(sorted(unknown))}; its files are {known}")
    folder = folder_of(name, data_dir)

    def fetched(file: File) -> Path:
        tell = None if on_progress is None else lambda done, total: on_progress(Fetching(file.name, done, total))
        return fetch(file, folder, address=elsewhere.get(file.name, file.address), tell=tell)

    return [fetched(file) for file in files]
