"""The data sets: what is downloaded from where, with which digest, and in which forms a loader takes them.

A form is a list of files, each under one of several names; a folder holds a data set when it holds all files of a form.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from fedtempo.errors import InputError

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
