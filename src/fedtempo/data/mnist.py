"""MNIST from its four idx files.

An idx file: a magic number 0x08 (bytes) and the number of dimensions, then each dimension, all as big-endian 32-bit
integers; then the bytes. Images have three dimensions (rows, 28, 28), labels one (rows).
"""

from __future__ import annotations

import math
import struct

import numpy as np

from fedtempo.data.damage import Damage, reading
from fedtempo.data.images import Bytes, Images, checked_labels, sealed
from fedtempo.data.packed import read
from fedtempo.data.places import Folder, needed

SIDE = 28
LIMIT = 64 * 2**20


def load_mnist(data_dir: Folder = None) -> Images:
    """MNIST's images `[rows, 28, 28]` and labels, from `mnist/` below the data folder, each file .gz or unpacked."""
    train_images, train_labels, test_images, test_labels = needed("mnist", data_dir)
    arrays = []
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        with reading(images, "mnist", data_dir):
            x = _idx(read(images, LIMIT), (SIDE, SIDE))
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
