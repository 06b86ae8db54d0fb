"""Images with labels 0 to 9, as read-only arrays of bytes: MNIST from its idx files, CIFAR-10 from its binary release.

idx file     a magic number 0x08 (bytes) and the number of dimensions, then each dimension, all as big-endian 32-bit
             integers; then the bytes. Images have three dimensions (rows, 28, 28), labels one (rows).
CIFAR-10     six files of records; a record is one label byte, then 32 × 32 red, green and blue bytes, 3073 in all.
             The official archive is read as it is, without unpacking it to disk.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.problems.data.catalogue import CIFAR_ARCHIVE, CIFAR_BATCHES, CIFAR_FOLDER, Folder, needed
from fedtempo.problems.data.reading import Damage, members, read, reading

CLASSES = 10

Bytes = NDArray[np.uint8]


class Images(NamedTuple):
    """Images `[rows, height, width(, channels)]` and their labels `[rows]`, all uint8 and read-only."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes


def checked_labels(labels: Bytes, where: str = "") -> Bytes:
    """The labels, if all of them are classes."""
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        row = int(wrong[0])
        raise Damage(f"{where}row {row} has the label {labels[row]}, and labels go from 0 to {CLASSES - 1}")
    return labels


def sealed(train_x: Bytes, train_y: Bytes, test_x: Bytes, test_y: Bytes) -> Images:
    """The images as arrays that nobody writes to."""
    images = Images(*(np.ascontiguousarray(array) for array in (train_x, train_y, test_x, test_y)))
    for array in images:
        array.setflags(write=False)
    return images


MNIST_SIDE = 28
LIMIT = 64 * 2**20


def load_mnist(data_dir: Folder = None) -> Images:
    """MNIST's images `[rows, 28, 28]` and labels, from `mnist/` below the data folder, each file .gz or unpacked."""
    train_images, train_labels, test_images, test_labels = needed("mnist", data_dir)
    arrays = []
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        with reading(images, "mnist", data_dir):
            x = _idx(read(images, LIMIT), (MNIST_SIDE, MNIST_SIDE))
        with reading(labels, "mnist", data_dir):
            y = checked_labels(_idx(read(labels, LIMIT), ()))
            if len(x) != len(y):
                raise Damage(f"it has {len(y)} labels for the {len(x)} images in {images.name}")
        arrays += [x, y]
    return sealed(*arrays)


def _idx(data: bytes, item: tuple[int, ...]) -> Bytes:
    """The array in an idx file whose rows have the shape `item`."""
    header = struct.Struct(f">{2 + len(item)}I")
    if len(data) < header.size:
        raise Damage(f"it is cut short: {len(data)} bytes, fewer than its header")
    magic, rows, *shape = header.unpack_from(data)
    if magic != 0x0801 + len(item):
        raise Damage(f"it is not the idx file of its name: it begins with {magic}, not {0x0801 + len(item)}")
    if tuple(shape) != item:
        raise Damage(f"its images have {shape[0]} × {shape[1]} pixels, not {item[0]} × {item[1]}")
    expected, found = rows * math.prod(item), len(data) - header.size
    if expected != found:
        raise Damage(f"its header announces {rows} rows, which is {expected} bytes, but {found} follow")
    if not rows:
        raise Damage("it holds no rows")
    return np.frombuffer(data, np.uint8, offset=header.size).reshape(rows, *item)


CIFAR_SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * CIFAR_SIDE * CIFAR_SIDE
"""Of a file of records; the official ones have 29.3 MiB."""
ARCHIVE_LIMIT = 256 * 2**20

_MEMBERS = {f"{CIFAR_FOLDER}/{name}": name for name in CIFAR_BATCHES}
_IGNORED = (CIFAR_FOLDER, f"{CIFAR_FOLDER}/batches.meta.txt", f"{CIFAR_FOLDER}/readme.html")

_Batch = tuple[Bytes, Bytes]


def load_cifar10(data_dir: Folder = None) -> Images:
    """CIFAR-10's images `[rows, 32, 32, 3]` and labels, from `cifar10/` below the data folder.

    There it takes the archive, or its six files, plain, .xz or .gz, also in a folder cifar-10-batches-bin.
    """
    batches: dict[str, _Batch] = {}
    paths = needed("cifar10", data_dir)
    if paths[0].name == CIFAR_ARCHIVE:
        with reading(paths[0], "cifar10", data_dir):
            for member, data in members(paths[0], _MEMBERS, _IGNORED, limit=LIMIT, total=ARCHIVE_LIMIT):
                batches[_MEMBERS[member]] = _records(data, f"{member}: ")
    else:
        for name, path in zip(CIFAR_BATCHES, paths, strict=True):
            with reading(path, "cifar10", data_dir):
                batches[name] = _records(read(path, LIMIT))
    train = [batches[name] for name in CIFAR_BATCHES[:-1]]
    test_x, test_y = batches[CIFAR_BATCHES[-1]]
    return sealed(np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train]), test_x, test_y)


def _records(data: bytes, where: str = "") -> _Batch:
    """Images, channels last, and labels of a file of records."""
    rows, rest = divmod(len(data), RECORD)
    if rest or not rows:
        raise Damage(f"{where}{len(data)} bytes are not a whole number of records of {RECORD} bytes")
    records = np.frombuffer(data, np.uint8).reshape(rows, RECORD)
    planes = records[:, 1:].reshape(rows, CHANNELS, CIFAR_SIDE, CIFAR_SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), checked_labels(records[:, 0].copy(), where)
