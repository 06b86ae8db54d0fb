"""Disks that fail: one on which the power is cut at any moment, and one that refuses.

What a power cut leaves is up to the file system. Of what was not synced it may have written any part: changes of names
in any order, each whole or not at all, and of a file's bytes none, some or all. `PowerCutDisk` works on real files,
notes what was synced, and makes a folder of each thing that may be left.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedtempo import files


class PowerCut(BaseException):
    """The machine goes dark."""


@dataclass(eq=False)
class Node:
    """A file, whatever it is called, or a folder."""

    folder: bool = False
    synced: bytes = b""
    last: bytes = b""
    """Its bytes when it lost its name."""


Names = dict[Path, Node]
Change = tuple[tuple[Path, Node | None], ...]


class PowerCutDisk(files.Disk):
    """The disk below `root`; before its operation number `at` the power is cut, and nothing more happens."""

    def __init__(self, root: Path, at: int | None = None) -> None:
        self.root, self.at, self.count = root, at, 0
        self._lock = threading.RLock()
        self._synced: Names = {}
        self._names: Names = {}
        self._pending: list[tuple[Path, Change]] = []
        for path in sorted(root.rglob("*")):
            node = Node(folder=True) if path.is_dir() else Node(synced=path.read_bytes())
            self._synced[path] = self._names[path] = node

    def _moment(self) -> None:
        self.count += 1
        if self.at is not None and self.count >= self.at:
            raise PowerCut

    def _change(self, folder: Path, *changes: tuple[Path, Node | None]) -> None:
        for path, node in changes:
            old = self._names.pop(path, None)
            if old is not None and node is not old and path.is_file():
                old.last = path.read_bytes()
            if node is not None:
                self._names[path] = node
        self._pending.append((folder, changes))

    # -- the operations

    def open(self, path: Path, mode: str):
        with self._lock:
            self._moment()
            raw = _Raw(path, mode, self)
            if path not in self._names:
                self._change(path.parent, (path, Node()))
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def sync(self, file) -> None:
        file.flush()
        with self._lock:
            self._moment()
            path = Path(file.name)
            self._names[path].synced = path.read_bytes()

    def replace(self, source: Path, target: Path) -> None:
        with self._lock:
            self._moment()
            node = self._names[source]
            self._change(source.parent, (source, None), (target, node))
            super().replace(source, target)

    def link(self, source: Path, target: Path) -> bool:
        with self._lock:
            self._moment()
            if target in self._names:
                return False
            self._change(source.parent, (target, self._names[source]))
            return super().link(source, target)

    def remove(self, path: Path) -> None:
        with self._lock:
            if path not in self._names:
                return
            self._moment()
            self._change(path.parent, (path, None))
            super().remove(path)

    def make_folder(self, path: Path) -> None:
        with self._lock:
            self._moment()
            super().make_folder(path)
            self._change(path.parent, (path, Node(folder=True)))

    def sync_folder(self, path: Path) -> None:
        with self._lock:
            self._moment()
            for folder, changes in self._pending:
                if folder == path:
                    _apply(self._synced, changes)
            self._pending = [(folder, changes) for folder, changes in self._pending if folder != path]

    # -- what is left

    def images(self, folder: Path) -> Iterator[Path]:
        """Every folder that may be found when the power is back; made below `folder`."""
        number = itertools.count()
        for kept in _choices(len(self._pending)):
            names = dict(self._synced)
            for place in kept:
                _apply(names, self._pending[place][1])
            for data in (_lost, _torn, _written):
                yield self._image(folder / str(next(number)), names, data)

    def worst(self, folder: Path) -> Path:
        """What is left if nothing was written that was not synced."""
        return self._image(folder, self._synced, _lost)

    def _image(self, image: Path, names: Names, data: Callable[[bytes, bytes], bytes]) -> Path:
        image.mkdir(parents=True)
        current = {id(node): path for path, node in self._names.items()}
        for path, node in sorted(names.items()):
            place = image / path.relative_to(self.root)
            if not place.parent.is_dir():
                continue  # its folder is lost
            if node.folder:
                place.mkdir()
            else:
                now = current[id(node)].read_bytes() if id(node) in current else node.last
                place.write_bytes(data(node.synced, now))
        return image


class _Raw(io.FileIO):
    """A file whose every change is a moment at which the power may be cut."""

    def __init__(self, path: Path, mode: str, disk: PowerCutDisk) -> None:
        super().__init__(path, mode)
        self._disk = disk

    def write(self, data) -> int | None:
        with self._disk._lock:
            self._disk._moment()
            return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        with self._disk._lock:
            self._disk._moment()
            return super().truncate(size)


def _apply(names: Names, changes: Change) -> None:
    for path, node in changes:
        names.pop(path, None)
        if node is not None:
            names[path] = node


def _choices(changes: int) -> Iterator[tuple[int, ...]]:
    """Which changes of names are kept: any, or of many the first few, and all but one."""
    everything = tuple(range(changes))
    if changes <= 3:
        for size in range(changes + 1):
            yield from itertools.combinations(everything, size)
    else:
        yield from (everything[:size] for size in range(changes + 1))
        yield from (everything[:left] + everything[left + 1 :] for left in range(changes - 1))


def _lost(synced: bytes, now: bytes) -> bytes:
    return synced


def _torn(synced: bytes, now: bytes) -> bytes:
    start = len(synced) if now.startswith(synced) else 0
    return now[: start + (len(now) - start + 1) // 2]


def _written(synced: bytes, now: bytes) -> bytes:
    return now


@contextmanager
def using(disk: files.Disk) -> Iterator[None]:
    """Let the package write to another disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "disk", disk)
        yield


def survives_power_cuts(folder: Path, steps: list[Callable[[Path], object]], read: Callable[[Path], object]) -> None:
    """Cut the power at every moment of `steps`, and look at everything that may be left.

    `read` finds what was there after the last step that had returned, or after the one in which the power was cut.
    """
    root = folder / "whole"
    root.mkdir()
    disk = PowerCutDisk(root)
    states = [read(root)]
    with using(disk):
        for step in steps:
            step(root)
            states.append(read(root))
    assert all(a != b for a, b in itertools.pairwise(states)), "every step can be seen"
    for moment in range(1, disk.count + 1):
        root = folder / str(moment)
        root.mkdir()
        cut = PowerCutDisk(root, at=moment)
        done = 0
        with using(cut), pytest.raises(PowerCut):  # noqa: PT012 - what had returned before is counted
            for step in steps:
                step(root)
                done += 1
        for image in cut.images(folder / f"left {moment}"):
            found = read(image)
            assert found in (states[done], states[done + 1]), f"moment {moment}: {image}"


# -- refusals


class RefusingDisk(files.Disk):
    """Refuses one kind of operation with an error number; a write that finds no room has written some of it."""

    def __init__(self, operation: str, number: int) -> None:
        self.operation, self.number = operation, number

    def _refuse(self, operation: str) -> None:
        if operation == self.operation:
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: Path, mode: str):
        self._refuse("open")
        if self.operation == "write":
            raw = _Full(path, mode)
            raw.number = self.number
            return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return super().open(path, mode)

    def sync(self, file) -> None:
        file.flush()
        self._refuse("sync")
        super().sync(file)

    def replace(self, source: Path, target: Path) -> None:
        self._refuse("replace")
        super().replace(source, target)

    def make_folder(self, path: Path) -> None:
        self._refuse("open")
        super().make_folder(path)


class _Full(io.FileIO):
    number = errno.ENOSPC
    left = 20

    def write(self, data) -> int | None:
        part = bytes(data)[: self.left]
        self.left -= len(part)
        if not part:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(part)


REFUSALS = {
    "full disk": ("write", errno.ENOSPC, "No space left on device", "make room on that disk"),
    "quota": ("sync", errno.EDQUOT, "Disk quota exceeded", "make room on that disk"),
    "read-only": ("open", errno.EROFS, "Read-only file system", "get permission to write there"),
    "no permission": ("open", errno.EACCES, "Permission denied", "get permission to write there"),
    "broken disk": ("sync", errno.EIO, "Input/output error", "check that disk"),
    "no rename": ("replace", errno.EPERM, "Operation not permitted", "get permission to write there"),
}
"""By name: the operation, the error, what is said of it, and the cure."""
