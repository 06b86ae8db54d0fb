"""Small data sets in the true formats, with content that can be learnt; each function writes below a data folder.

The folder is what `data_dir` takes; it is returned.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sqlite3
import struct
import tarfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

CLASSES = 10
MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_FILES = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")
_WORDS = ("sun", "moon", "rose", "king", "crown", "storm", "sword", "ghost", "lark", "fool")


def mnist(folder: Path, rows: tuple[int, int] = (60, 20), *, packed: bool = True) -> Path:
    """MNIST with that many training and test rows, as .gz or unpacked."""
    for (images, labels), count, seed in zip((MNIST_FILES[:2], MNIST_FILES[2:]), rows, (0, 1), strict=True):
        x, y = digits(count, seed)
        write(folder / "mnist" / images, idx(x), packed=packed)
        write(folder / "mnist" / labels, idx(y), packed=packed)
    return folder


def digits(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise, and a bright block whose place is the class; labels in turn."""
    labels = (np.arange(rows) % CLASSES).astype(np.uint8)
    images = np.random.default_rng(seed).integers(0, 40, (rows, 28, 28)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 2 + 5 * (int(label) % 5), 4 + 12 * (int(label) // 5)
        image[top : top + 4, left : left + 8] = 230
    return images, labels


def idx(array: np.ndarray) -> bytes:
    """An array of bytes as an idx file."""
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def cifar10(folder: Path, rows: tuple[int, int] = (100, 20), *, archive: bool = True, ending: str = "") -> Path:
    """CIFAR-10 with that many training rows and test rows: the archive, or six files .bin, .bin.xz or .bin.gz."""
    batches = cifar_batches(rows)
    if archive:
        members = [(f"cifar-10-batches-bin/{name}", data) for name, data in batches.items()]
        write(folder / "cifar10" / "cifar-10-binary.tar.gz", tar([*members, ("cifar-10-batches-bin/readme.html", b"")]))
    else:
        for name, data in batches.items():
            write(folder / "cifar10" / f"{name}{ending}", packed_as(data, ending))
    return folder


def cifar_batches(rows: tuple[int, int] = (100, 20)) -> dict[str, bytes]:
    """The six files of records, by name."""
    counts = [len(part) for part in np.array_split(np.arange(rows[0]), 5)]
    return {name: records(n, seed) for seed, (name, n) in enumerate(zip(CIFAR_FILES, [*counts, rows[1]], strict=True))}


def records(rows: int, seed: int = 0) -> bytes:
    """Records of noise with a colour and a bright row that tell the class; labels in turn."""
    labels = (np.arange(rows) % CLASSES).astype(np.uint8)
    planes = np.random.default_rng(seed).integers(0, 60, (rows, 3, 32, 32)).astype(np.uint8)
    for image, label in zip(planes, labels, strict=True):
        image[label % 3] += np.uint8(120)
        image[:, 3 * label : 3 * label + 3] = 250
    return np.concatenate([labels[:, None], planes.reshape(rows, -1)], axis=1).tobytes()


def speeches(roles: int, lines: int = 12) -> dict[str, list[str]]:
    """What each role says, line by line; about 45 characters a line."""
    return {
        f"THE_PLAY_ROLE_{chr(65 + role)}": [
            f"The {_WORDS[role % 10]} said to the {_WORDS[(role + line) % 10]},  come away,\nsay I."
            for line in range(lines)
        ]
        for role in range(roles)
    }


def shakespeare_leaf(folder: Path, roles: int = 4, *, name: str = "leaf_all_users_raw.json.gz") -> Path:
    """LEAF's roles; they are not in the order of their names."""
    said = {role: "\n".join(lines) for role, lines in reversed(speeches(roles).items())}
    document = {
        "users": list(said),
        "hierarchies": ["THE PLAY"] * roles,
        "num_samples": [max(len(text) - 80, 0) for text in said.values()],
        "user_data": {role: {"raw": text} for role, text in said.items()},
    }
    write(folder / "shakespeare" / name, packed_as(json.dumps(document).encode(), Path(name).suffix))
    return folder


def shakespeare_tff(folder: Path, roles: int = 4, *, name: str = "shakespeare.sqlite.lzma") -> Path:
    """TensorFlow Federated's database: of each role's lines the last two are for testing."""
    rows = []
    for role, lines in reversed(speeches(roles).items()):
        rows += [("test", role, example(line)) for line in lines[-2:]]
        rows += [("train", role, example(line)) for line in lines[:-2]]
    write(folder / "shakespeare" / name, packed_as(database(rows), Path(name).suffix))
    return folder


def database(rows: Sequence[tuple[str, str, bytes]], *, wal: bool = False) -> bytes:
    """An SQLite database with such rows (split, role, example)."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(
            """
            CREATE TABLE examples (
                split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
            CREATE INDEX idx_examples_client_id ON examples (client_id);
            CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
            CREATE TABLE client_metadata (
                client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
            CREATE INDEX idx_metadata_client_id ON client_metadata (client_id);
            """
        )
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
        connection.execute(
            "INSERT INTO client_metadata SELECT client_id, split_name, count(*) FROM examples GROUP BY 1, 2"
        )
        connection.commit()
        data = bytearray(connection.serialize())
    if wal:
        data[18:20] = b"\2\2"
    return bytes(data)


def example(text: str, feature: str = "snippets") -> bytes:
    """A serialized tf.train.Example with one bytes feature."""
    values = field(1, text.encode())
    return field(1, field(1, field(1, feature.encode()) + field(2, field(1, values))))


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """A number, seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tar(members: Iterable[tuple[str | tarfile.TarInfo, bytes]]) -> bytes:
    """A .tar.gz of members, in that order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def packed_as(data: bytes, ending: str) -> bytes:
    """The data as a file with that ending holds it."""
    if ending == ".gz":
        return gzip.compress(data, 1, mtime=0)
    if ending == ".lzma":
        return lzma.compress(data, format=lzma.FORMAT_ALONE, preset=0)
    return lzma.compress(data, preset=0) if ending == ".xz" else data


def write(path: Path, data: bytes, *, packed: bool = False) -> None:
    """Write a file, as .gz if it is to be packed, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.with_name(f"{path.name}.gz") if packed else path).write_bytes(packed_as(data, ".gz" if packed else ""))
