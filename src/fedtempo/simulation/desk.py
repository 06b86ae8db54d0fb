"""The desk of a process that gives orders to workers: a folder inside the study's, there while that process is.

    sign        who sits there; touched every few seconds
    stop        workers save and end
    0003.owner  the attempt that may save unit 3
    0003.npz    how far unit 3 is

What lies on a desk need not outlive a power cut, but is read whole: files are put there by a rename.
"""

from __future__ import annotations

import io
import os
import platform
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedtempo.errors import ResultsConflict, StorageError
from fedtempo.files import storage_errors
from fedtempo.simulation.checkpoint import DESKS
from fedtempo.simulation.engine.session import Session, Snapshot

SIGN_SECONDS = 5.0
"""How often a sign of life is given."""
GONE_SECONDS = 120.0
"""After so long without a sign workers save their units and end."""


def clear_desks(folder: Path, job: str) -> None:
    """Remove the desks of processes that are gone, whose workers, if there are any, then end without saving.

    `job`: which of several jobs with this folder; another process at the same one is a conflict.
    """
    for left in sorted(folder.glob(f"{DESKS}{job}.????????")):
        desk = Desk(left)
        if desk.is_in_use():
            raise ResultsConflict(
                f"{folder}: another process is training this study there ({desk.whose()}); wait for it, or end it"
            )
        desk.close()


def new_desk(folder: Path, job: str) -> Desk:
    """A desk in a study's folder."""
    desk = Desk(folder / f"{DESKS}{job}.{secrets.token_hex(4)}")
    with storage_errors(folder):
        desk.path.mkdir(parents=True)
    desk.touch()
    return desk


class Desk:
    """One desk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._sign: tuple[int, float] | None = None
        """When the sign was touched last, and since when it is known."""

    # what the one who gives orders does

    def touch(self) -> None:
        """Still there."""
        try:
            with storage_errors(self.path.parent):
                (self.path / "sign").write_text(f"{platform.node()} {os.getpid()} {time.time_ns()}", encoding="utf-8")
        except StorageError:
            if self.path.is_dir():
                raise
            raise ResultsConflict(
                f"{self.path.parent}: this folder, or what a running study keeps in it, was removed while it was "
                "trained; what is still there is as it was saved last"
            ) from None

    def whose(self) -> str:
        """Who sits there, in words."""
        host, pid = self._signed()
        return f"process {pid} on {host}" if pid else "somewhere"

    def _signed(self) -> tuple[str, int]:
        with suppress(OSError, ValueError):
            host, pid, _ = (self.path / "sign").read_text(encoding="utf-8").rsplit(" ", 2)
            return host, int(pid)
        return "", 0

    def is_in_use(self) -> bool:
        """Whether somebody sits there: of this machine by the process, of others by whether the sign is renewed."""
        host, pid = self._signed()
        if host == platform.node():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return False
            except PermissionError:  # somebody else's
                return True
            return pid > 0
        before, until = self._touched(), time.monotonic() + 3 * SIGN_SECONDS
        while before and time.monotonic() < until:
            time.sleep(SIGN_SECONDS / 5)
            if self._touched() not in (0, before):
                return True
        return False

    def _touched(self) -> int:
        with suppress(OSError):
            return (self.path / "sign").stat().st_mtime_ns
        return 0

    def stop(self) -> None:
        """Ask the workers to save and end."""
        with suppress(OSError):  # somebody has removed it: workers end all the same
            (self.path / "stop").touch()

    def read(self, unit: int, attempt: str) -> tuple[int, Snapshot] | None:
        """Client updates of an attempt, and what the unit has measured; None if it has told nothing."""
        with suppress(OSError, ValueError, KeyError, EOFError):
            content = io.BytesIO((self.path / f"{unit:04d}.npz").read_bytes())
            with np.load(content, allow_pickle=False) as told:
                if str(told["attempt"]) == attempt:
                    found = {name.replace("__", ":", 1): told[name] for name in told.files}
                    return int(found["updates"]), found
        return None

    def is_begun(self, unit: int, attempt: str) -> bool:
        """Whether a worker has begun an attempt at a unit, and no later one was begun."""
        return self._owner(unit).startswith(f"{attempt}.")

    def told_at(self, unit: int) -> int:
        """When a unit has told how far it is, as the file system counts; 0 if never."""
        with suppress(OSError):
            return (self.path / f"{unit:04d}.npz").stat().st_mtime_ns
        return 0

    def close(self) -> None:
        """Leave; workers that are still out keep what they have and end."""
        with suppress(OSError):
            for file in self.path.iterdir():
                file.unlink(missing_ok=True)
            self.path.rmdir()

    # what workers do

    def is_there(self) -> bool:
        """Whether this is the folder that the order means."""
        return (self.path / "sign").is_file()

    def take(self, unit: int, owner: str) -> None:
        """From now on this one alone saves the unit."""
        with storage_errors(self.path):
            self._put(f"{unit:04d}.owner", owner.encode())

    def is_mine(self, unit: int, owner: str) -> bool:
        """Whether this one has taken the unit last."""
        return self._owner(unit) == owner

    def _owner(self, unit: int) -> str:
        with suppress(OSError):
            return (self.path / f"{unit:04d}.owner").read_text(encoding="ascii")
        return ""

    def asks_to_stop(self) -> bool:
        """Whether to save and end: somebody said so, or nobody is there any more."""
        if (self.path / "stop").exists():
            return True
        touched = self._touched()
        if not touched:
            return True
        now = time.monotonic()
        if self._sign is None or self._sign[0] != touched:
            self._sign = touched, now
        return now - self._sign[1] > GONE_SECONDS

    def tell(self, unit: int, attempt: str, updates: int, session: Session) -> None:
        """How far a unit is: its measures without its state."""
        arrays: Mapping[str, Any] = session.recorder.snapshot(None)
        out = io.BytesIO()
        named = {name.replace(":", "__", 1): array for name, array in arrays.items()}
        np.savez(out, allow_pickle=False, attempt=np.array(attempt), updates=np.array(updates), **named)
        with suppress(OSError):  # the desk has gone: the next look finds out
            self._put(f"{unit:04d}.npz", out.getvalue())

    def _put(self, name: str, content: bytes) -> None:
        """Write a file whole; that it outlives a power cut is not needed."""
        half = self.path / f".{name}.{os.getpid()}.{threading.get_ident()}"
        half.write_bytes(content)
        os.replace(half, self.path / name)
