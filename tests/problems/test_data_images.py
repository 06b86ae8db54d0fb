"""MNIST and CIFAR-10: every form that is taken, and every damage that is told."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

import fedtempo.problems.data.reading
from fedtempo.errors import DataMissing, InputError
from fedtempo.problems.data import Images, load_cifar10, load_mnist
from fedtempo.problems.data import images as cifar10
from fedtempo.problems.data import images as mnist
from support import true_formats as true

IMAGES, LABELS, _, TEST_LABELS = (f"{name}.gz" for name in true.MNIST_FILES)
ARCHIVE = "cifar10/cifar-10-binary.tar.gz"
INSIDE = "cifar-10-batches-bin"


def test_mnist_packed_and_unpacked(tmp_path: Path) -> None:
    packed = load_mnist(true.mnist(tmp_path / "a"))
    plain = load_mnist(str(true.mnist(tmp_path / "b", packed=False)))
    x, y = true.digits(60)
    assert [a.shape for a in packed] == [(60, 28, 28), (60,), (20, 28, 28), (20,)]
    assert (packed.train_x == x).all()
    assert (packed.train_y == y).all()
    assert same(packed, plain)
    assert all(a.dtype == np.uint8 and not a.flags.writeable and a.flags.c_contiguous for a in packed)


def test_mnist_half_packed(tmp_path: Path) -> None:
    true.mnist(tmp_path)
    path = tmp_path / "mnist" / LABELS
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert len(load_mnist(tmp_path).train_y) == 60


def test_the_folder_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTEMPO_DATA_DIR", str(true.mnist(tmp_path)))
    assert len(load_mnist().test_y) == 20
    monkeypatch.setenv("FEDTEMPO_DATA_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(DataMissing, match=r"mnist is not in .*fedtempo.*data"):
        load_mnist()


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing) as caught:
        load_mnist(tmp_path)
    message = str(caught.value)
    for words in (str(tmp_path / "mnist"), f"fedtempo data get mnist --data-dir {tmp_path}", "data_dir=", "four idx"):
        assert words in message
    (true.mnist(tmp_path) / "mnist" / TEST_LABELS).unlink()
    with pytest.raises(DataMissing, match=f"not complete .*without {TEST_LABELS}"):
        load_mnist(tmp_path)


def swap(change):
    """A damage done to the unpacked content of a .gz file."""
    return lambda data: gzip.compress(change(gzip.decompress(data)))


def header(*numbers: int):
    return swap(lambda data: struct.pack(f">{len(numbers)}I", *numbers) + data[4 * len(numbers) :])


MNIST_DAMAGES = {
    "cut short": (IMAGES, lambda data: data[:-20], "cut short"),
    "cut to nothing": (IMAGES, lambda data: b"", "cut short"),
    "not packed": (IMAGES, gzip.decompress, "damaged"),
    "a flipped bit": (IMAGES, lambda data: data[:5000] + bytes([data[5000] ^ 4]) + data[5001:], "damaged"),
    "a wrong checksum": (IMAGES, lambda data: data[:-8] + b"\0" * 4 + data[-4:], "damaged"),
    "labels for images": (IMAGES, header(0x0801), "begins with 2049, not 2051"),
    "images for labels": (LABELS, header(0x0803), "begins with 2051, not 2049"),
    "too many rows": (IMAGES, header(0x0803, 61), "announces 61 rows, which is 47824 bytes, but 47040 follow"),
    "too many bytes": (LABELS, swap(lambda data: data + b"\0"), "60 rows, which is 60 bytes, but 61 follow"),
    "other images": (IMAGES, header(0x0803, 240, 14, 14), "14 × 14 pixels"),
    "no rows": (LABELS, lambda _: gzip.compress(struct.pack(">II", 0x0801, 0)), "no rows"),
    "half a header": (LABELS, swap(lambda data: data[:6]), "cut short: 6 bytes"),
    "fewer labels": (LABELS, lambda _: gzip.compress(true.idx(true.digits(59)[1])), "59 labels for the 60 images"),
    "a label too high": (LABELS, swap(lambda data: data[:-1] + b"\x0a"), "row 59 has the label 10"),
}


@pytest.mark.parametrize("damage", MNIST_DAMAGES)
def test_a_damaged_mnist(tmp_path: Path, damage: str) -> None:
    name, change, words = MNIST_DAMAGES[damage]
    path = true.mnist(tmp_path) / "mnist" / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError) as caught:
        load_mnist(tmp_path)
    assert_told(caught.value, path, words, f"fedtempo data get mnist --data-dir {tmp_path}")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = true.mnist(tmp_path) / "mnist" / IMAGES
    path.write_bytes(gzip.compress(bytes(2**23)))
    monkeypatch.setattr(mnist, "LIMIT", 2**20)
    with pytest.raises(InputError, match="more than 1 MiB"):
        load_mnist(tmp_path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = true.mnist(tmp_path, packed=False) / "mnist" / true.MNIST_FILES[0]
    os.truncate(path, mnist.LIMIT + 1)
    with pytest.raises(InputError, match="more than 64 MiB"):
        load_mnist(tmp_path)


@pytest.mark.parametrize("ending", ["", ".xz", ".gz"])
@pytest.mark.parametrize("below", ["", INSIDE])
def test_cifar_as_files(tmp_path: Path, ending: str, below: str) -> None:
    true.cifar10(tmp_path, archive=False, ending=ending)
    if below:
        files = list((tmp_path / "cifar10").iterdir())
        (tmp_path / "cifar10" / below).mkdir()
        for path in files:
            path.rename(path.parent / below / path.name)
    assert same(load_cifar10(tmp_path), load_cifar10(true.cifar10(tmp_path / "other")))


def test_cifar_from_its_archive(tmp_path: Path) -> None:
    images = load_cifar10(true.cifar10(tmp_path, rows=(53, 7)))
    assert [a.shape for a in images] == [(53, 32, 32, 3), (53,), (7, 32, 32, 3), (7,)]
    assert all(a.dtype == np.uint8 and not a.flags.writeable and a.flags.c_contiguous for a in images)
    record = np.frombuffer(true.cifar_batches((53, 7))["data_batch_2.bin"], np.uint8).reshape(-1, 3073)[4]
    row = 11 + 4  # the first file has 11 rows
    assert images.train_y[row] == record[0]
    assert (images.train_x[row, 5, 9] == record[1:].reshape(3, 32, 32)[:, 5, 9]).all()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cifar-10-binary.tar.gz", "cifar10"]


def test_members_in_any_order(tmp_path: Path) -> None:
    batches = [(f"./{INSIDE}/{name}", data) for name, data in true.cifar_batches().items()]
    true.write(tmp_path / ARCHIVE, true.tar([(folder(INSIDE), b""), *reversed(batches)]))
    assert same(load_cifar10(tmp_path), load_cifar10(true.cifar10(tmp_path / "other")))


def test_cifar_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"cifar-10-binary.tar.gz, or its six .bin files"):
        load_cifar10(tmp_path)
    (true.cifar10(tmp_path, archive=False) / "cifar10" / "data_batch_4.bin").unlink()
    with pytest.raises(DataMissing, match=r"without data_batch_4\.bin"):
        load_cifar10(tmp_path)


def folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


FIRST = f"{INSIDE}/data_batch_1.bin"
ARCHIVE_DAMAGES = {
    "a way out": ([(f"{INSIDE}/../../evil", b"x")], "points outside"),
    "an absolute name": ([("/etc/evil", b"x")], "points outside"),
    "a symbolic link": ([(link(f"{INSIDE}/readme.html", "/etc/passwd"), b"")], "not a plain file"),
    "a hard link": ([(link(f"{INSIDE}/readme.html", FIRST, tarfile.LNKTYPE), b"")], "not a plain file"),
    "a device": ([(link(f"{INSIDE}/readme.html", "", tarfile.CHRTYPE), b"")], "not a plain file"),
    "a stranger": ([(f"{INSIDE}/more.bin", b"x")], "does not belong there"),
    "a member twice": ([(FIRST, true.records(3))], "twice"),
}


@pytest.mark.parametrize("damage", ARCHIVE_DAMAGES)
def test_an_archive_that_is_not_the_official_one(tmp_path: Path, damage: str) -> None:
    extra, words = ARCHIVE_DAMAGES[damage]
    batches = [(f"{INSIDE}/{name}", data) for name, data in true.cifar_batches().items()]
    true.write(tmp_path / ARCHIVE, true.tar([*batches, *extra]))
    with pytest.raises(InputError) as caught:
        load_cifar10(tmp_path)
    assert_told(caught.value, tmp_path / ARCHIVE, words, "fedtempo data get cifar10")
    assert [path.name for path in (tmp_path / "cifar10").iterdir()] == [Path(ARCHIVE).name]


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_an_archive_cut_short(tmp_path: Path, part: float) -> None:
    path = true.cifar10(tmp_path) / ARCHIVE
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(InputError) as caught:
        load_cifar10(tmp_path)
    assert_told(caught.value, path, "cut short", "fedtempo data get cifar10")


def test_an_archive_with_a_flipped_bit(tmp_path: Path) -> None:
    path = true.cifar10(tmp_path) / ARCHIVE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"damaged|lacks"):
        load_cifar10(tmp_path)


def test_an_archive_with_a_wrong_checksum(tmp_path: Path) -> None:
    path = true.cifar10(tmp_path) / ARCHIVE
    for padding in (0, 200_000):  # zeros after the end of the archive: the checksum comes later than the members
        data = gzip.compress(gzip.decompress(path.read_bytes()) + bytes(padding), 1)
        (tmp_path / "x" / "cifar10").mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / ARCHIVE).write_bytes(data[:-8] + bytes(4) + data[-4:])
        with pytest.raises(InputError, match="damaged"):
            load_cifar10(tmp_path / "x")


@pytest.mark.parametrize("data", [b"", b"no archive at all", gzip.compress(b"no archive at all", mtime=0)])
def test_no_archive_at_all(tmp_path: Path, data: bytes) -> None:
    true.write(tmp_path / ARCHIVE, data)
    with pytest.raises(InputError) as caught:
        load_cifar10(tmp_path)
    assert_told(caught.value, tmp_path / ARCHIVE, "", "fedtempo data get cifar10")


def test_an_archive_without_a_member(tmp_path: Path) -> None:
    batches = [(f"{INSIDE}/{name}", data) for name, data in true.cifar_batches().items()]
    true.write(tmp_path / ARCHIVE, true.tar(batches[:-1]))
    with pytest.raises(InputError, match=f"lacks {INSIDE}/test_batch.bin"):
        load_cifar10(tmp_path)


def test_an_archive_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true.cifar10(tmp_path)
    monkeypatch.setattr(cifar10, "ARCHIVE_LIMIT", 2**16)
    with pytest.raises(InputError, match="unpacks to more than"):
        load_cifar10(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(cifar10, "LIMIT", 2**15)
    with pytest.raises(InputError, match="holds more than"):
        load_cifar10(tmp_path)


def test_a_bounded_stream_reads_all_up_to_its_bound() -> None:
    bounded = fedtempo.problems.data.reading._Bounded
    assert io.BufferedReader(bounded(io.BytesIO(b"x" * 70_000), 70_000)).read() == b"x" * 70_000


CIFAR_DAMAGES = {
    "cut short": (lambda data: lzma.compress(data)[:-30], "cut short"),
    "a flipped bit": (lambda data: flipped(lzma.compress(data)), "damaged"),
    "half a record": (lambda data: lzma.compress(data[:-1]), "not a whole number of records of 3073 bytes"),
    "nothing": (lambda _: lzma.compress(b""), "0 bytes are not a whole number"),
    "a label too high": (lambda data: lzma.compress(b"\x0b" + data[1:]), "row 0 has the label 11"),
}


def flipped(data: bytes) -> bytes:
    return data[:900] + bytes([data[900] ^ 1]) + data[901:]


@pytest.mark.parametrize("damage", CIFAR_DAMAGES)
def test_a_damaged_file_of_records(tmp_path: Path, damage: str) -> None:
    change, words = CIFAR_DAMAGES[damage]
    path = true.cifar10(tmp_path, archive=False, ending=".xz") / "cifar10" / "data_batch_3.bin.xz"
    path.write_bytes(change(lzma.decompress(path.read_bytes())))
    with pytest.raises(InputError) as caught:
        load_cifar10(tmp_path)
    assert_told(caught.value, path, words, "fedtempo data get cifar10")


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    batches = true.cifar_batches() | {"data_batch_5.bin": b"\x0f" + bytes(3072)}
    true.write(tmp_path / ARCHIVE, true.tar((f"{INSIDE}/{name}", data) for name, data in batches.items()))
    with pytest.raises(InputError, match=r"data_batch_5.bin: row 0 has the label 15"):
        load_cifar10(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true.mnist(tmp_path, packed=False)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(mnist, "read", refuse)
    with pytest.raises(InputError, match=r"train-images.*cannot be read \(Permission denied\).*--data-dir"):
        load_mnist(tmp_path)


def same(one: Images, other: Images) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def assert_told(error: Exception, path: Path, why: str, cure: str) -> None:
    """The message names the file, what is wrong, and both cures, in one line."""
    message = str(error)
    assert message.startswith(f"{path}: ")
    for words in (why, "remove it", cure, "--data-dir"):
        assert words in message
    assert "\n" not in message
