"""Images with labels 0 to 9, as read-only arrays of bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.data.damage import Damage

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
