"""TensorBoard: an event file for each run, in a folder of its own; nothing has to be installed to write it.

    folder/FedAvg, time-based, lr 0.1, seed 0/events.out.tfevents.….fedtempo

A record is its length, the checksum of that, a protocol buffer (Event), and its checksum; checksums are CRC-32C, masked
as TensorFlow masks them. Wall time is virtual time, so that TensorBoard's axis "Relative" has it. Labels are
hyper-parameters.

A file begins with the note that the run starts at step 0: a TensorBoard that is running drops what it had read of it
before. Then what earlier processes have written of the run is removed; the last of those files stays, empty, since
TensorBoard stands still at a file that has gone. Files are opened to append to them only, so that any number of runs
has none open.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import socket
import struct
import time as clock
from collections.abc import Sequence
from pathlib import Path

from fedtempo.files import make_folder, storage_errors
from fedtempo.simulation.run_info import RunInfo
from fedtempo.track.sink import Point, Sink, Told

_OURS = ".fedtempo"
_UNSAFE = re.compile(r'[\x00-\x1f\\:*?"<>|]')
_SLASH = "\u2215"
"""Looks like one, and may stand in the name of a folder: as FedFix(1/2)."""
_LONGEST = 200
"""Bytes of a folder's name."""


class TensorBoard(Sink):
    """Event files in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._files: dict[str, Path] = {}
        """By the name of a run."""

    def _write(self, told: Sequence[Told]) -> None:
        for of_run in told:
            content = b"".join(_record(_values(point)) for point in of_run.points.values())
            name = of_run.run.name
            if name in self._files:
                with storage_errors(self._files[name]), self._files[name].open("ab") as file:
                    file.write(content)
            else:
                self._files[name] = self._begin(of_run.run, content)

    def _begin(self, run: RunInfo, content: bytes) -> Path:
        """A new file in the place of those that are there of the run."""
        folder, now = self.folder / folder_name(run.name), clock.time()
        stamp = f"{now:017.6f}.{socket.gethostname()}.{os.getpid()}"  # TensorBoard reads files in the order of names
        path = folder / f"events.out.tfevents.{stamp}{_OURS}"
        with storage_errors(folder):
            make_folder(folder)
            earlier = sorted(folder.glob(f"events.out.tfevents.*{_OURS}"))
            path.write_bytes(b"".join(map(_record, (_version(now), _start(now), _labels(run, now)))) + content)
            for other in earlier[:-1]:
                other.unlink(missing_ok=True)
            for other in earlier[-1:]:
                os.truncate(other, 0)
        return path

    def _end(self, stopped: bool) -> None:
        self._files.clear()


def folder_name(run: str) -> str:
    """The name of a run as a folder's; where that has to differ, with a digest of the run's."""
    slashes = run.replace("/", _SLASH)
    short = _UNSAFE.sub("-", slashes).strip(" .").encode()[:_LONGEST].decode(errors="ignore").rstrip(" .")
    if short and short == slashes and _SLASH not in run:
        return short
    return f"{short or 'run'} {hashlib.sha256(run.encode()).hexdigest()[:8]}"


# -- events


def _version(now: float) -> bytes:
    return _double(1, now) + _text(3, "brain.Event:2")


def _start(now: float) -> bytes:
    """The run starts at step 0."""
    return _double(1, now) + _whole(2, 0) + _part(7, _whole(1, 1))


def _labels(run: RunInfo, now: float) -> bytes:
    """The labels of a run as hyper-parameters, in the words of TensorBoard's plugin."""
    entries = b"".join(_part(1, _text(1, name) + _part(2, _label(label))) for name, label in run.labels.items())
    session = _part(3, entries + _double(5, now))
    plugin = _part(9, _part(1, _text(1, "hparams") + _part(2, session)))
    return _double(1, now) + _part(5, _part(1, _text(1, "_hparams_/session_start_info") + plugin))


def _label(label: object) -> bytes:
    if isinstance(label, bool):
        return _whole(4, int(label))
    if isinstance(label, str):
        return _text(3, label)
    try:
        return _double(2, float(label))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return _text(3, str(label))


def _values(point: Point) -> bytes:
    parts = (_part(1, _text(1, name) + _number_of(value)) for name, value in point.values.items())
    return _double(1, point.time) + _whole(2, point.step) + _part(5, b"".join(parts))


# -- protocol buffers and records


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _whole(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _double(field: int, number: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", number)


def _number_of(value: float) -> bytes:
    """A value in 32 bits, as TensorBoard keeps it."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _varint(2 << 3 | 5) + packed


def _part(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode())


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked(length)) + event + struct.pack("<I", _masked(event))


def _masked(content: bytes) -> int:
    crc = _crc(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


def _crc(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
