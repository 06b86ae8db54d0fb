"""CIFAR-10 from its binary release.

Six files of records; a record is one label byte, then 32 × 32 red, green and blue bytes, 3073 in all. The official
archive is read as it is, without unpacking it to disk.
"""

from __future__ import annotations

import numpy as np

from fedtempo.data.archive import members
from fedtempo.data.catalogue import CIFAR_ARCHIVE, CIFAR_BATCHES, CIFAR_FOLDER
from fedtempo.data.damage import Damage, reading
from fedtempo.data.images import Bytes, Images, checked_labels, sealed
from fedtempo.data.packed import read
from fedtempo.data.places import Folder, needed

SIDE, CHANNELS = 32, 3
RECORD = 1 + CHANNELS * SIDE * SIDE
LIMIT = 64 * 2**20
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
    planes = records[:, 1:].reshape(rows, CHANNELS, SIDE, SIDE)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), checked_labels(records[:, 0].copy(), where)
