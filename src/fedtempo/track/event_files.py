"""TensorBoard: an event file for each run, in a folder of its own.

    folder/FedAvg, time-based, lr 0.1, seed 0/events.out.tfevents.….fedtempo

Wall time is virtual time, so that TensorBoard's axis "Relative" has it. Labels are hyper-parameters.

A file begins with the note that the run starts at step 0: a TensorBoard that is running drops what it had read of it
before. Then what earlier processes have written of the run is removed; the last of those files stays, empty, since
TensorBoard stands still at a file that has gone. Files are opened to append to them only, so that any number of runs
has none open.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import socket
import time as clock
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedtempo.files import make_folder, storage_errors
from fedtempo.simulation.run_info import RunInfo
from fedtempo.track.sink import Point, Sink, Told, not_installed

try:
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError:
    raise not_installed("TensorBoard", "tensorboard") from None

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
            content = _records(map(_values, of_run.points.values()))
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
            path.write_bytes(_records([*_start(now), _labels(run, now)]) + content)
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


def _start(now: float) -> list[Any]:
    """The format, and that the run starts at step 0."""
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return [
        event_pb2.Event(wall_time=now, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=now, step=0, session_log=start),
    ]


def _labels(run: RunInfo, now: float) -> Any:
    """The labels of a run as hyper-parameters."""
    plain = {
        name: label if isinstance(label, bool | int | float | str) else str(label) for name, label in run.labels.items()
    }
    return event_pb2.Event(wall_time=now, summary=hparams_pb(plain, start_time_secs=now))


def _values(point: Point) -> Any:
    parts = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
    return event_pb2.Event(wall_time=point.time, step=point.step, summary=summary_pb2.Summary(value=parts))


def _records(events: Iterable[Any]) -> bytes:
    """Events as they lie in a file."""
    out = io.BytesIO()
    writer = RecordWriter(out)
    for event in events:
        writer.write(event.SerializeToString())
    return out.getvalue()
