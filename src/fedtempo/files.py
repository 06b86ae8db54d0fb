"""Files that survive a crash and a power cut: written whole or not at all, and on the disk when the call returns.

    write_whole   a temporary file in the same folder, fsync, rename, fsync of the folder; the file that it replaces can
                  be kept under another name
    write_first   the same where no file is, else nothing: of several processes one writes
    append        at the end that the caller has counted, fsync; what lay beyond that end is cut off
    make_folder   with its parents, each entered in a folder that is synced
    hold          a lock that the system takes back when the process ends, however it ends; `is_held` asks for it

Until the rename is on the disk the old file is there, afterwards the new one, never a mixture: a file system may write
a rename before the data that it names, so the data go first. Whatever touches the disk goes through `disk`, the one
place where tests cut the power, fill the disk or take the right to write away.
"""

from __future__ import annotations

import errno
import os
import platform
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast

from fedtempo.errors import StorageError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not a Unix: done without
    fcntl = None

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""What some network file systems say when a folder is to be synced: done without."""


class Disk:
    """What is done to files, one method for each thing at which the machine can fail."""

    def open(self, path: Path, mode: str) -> BinaryIO:
        """An open file; modes `xb`, `ab` and `r+b`."""
        return cast(BinaryIO, path.open(mode))

    def open_nameless(self, folder: Path) -> BinaryIO:
        """A file without a name, to write and read: its room is the system's again when it is closed."""
        return cast(BinaryIO, tempfile.TemporaryFile(dir=folder, buffering=0))

    def free_bytes(self, folder: Path) -> int:
        """Bytes that may be written there."""
        return shutil.disk_usage(folder).free

    def sync(self, file: BinaryIO) -> None:
        """Return when what was written to the file is on the disk."""
        file.flush()
        os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what has it."""
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name, if nothing has that; whether it has got it."""
        try:
            os.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:  # a file system without links
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():
                return False
            self.replace(source, target)
        return True

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def cut(self, path: Path, size: int) -> None:
        """Cut a file off at a size, if it is longer."""
        if path.stat().st_size > size:
            os.truncate(path, size)

    def make_folder(self, path: Path) -> None:
        """Make one folder, if it is not there."""
        path.mkdir(exist_ok=True)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        if os.name == "nt":  # folders cannot be opened there, and a rename is written through
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NOT_FOR_FOLDERS:
                raise
        finally:
            os.close(handle)


disk = Disk()
"""The disk in use; tests put another in its place."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """What the file system refuses becomes one sentence: what happened, what is still there, what to change."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot write it ({error.strerror or error}); what was saved there before is intact; "
            f"{_cure(error)}"
        ) from None


def _cure(error: OSError) -> str:
    if error.errno in _NO_ROOM:
        return "make room on that disk, or choose another place"
    if error.errno in _NO_RIGHT:
        return "get permission to write there, or choose another place"
    return "check that disk, or choose another place"


def write_whole(path: Path, fill: Callable[[BinaryIO], object], *, keep: Path | None = None) -> None:
    """Let `fill` write a temporary file beside `path`, and put it in place when all of it is on the disk.

    What was in that place is then found at `keep`. Between the two renames it is only there.
    """
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with storage_errors(path):
        if not path.parent.is_dir():
            raise StorageError(f"{path}: the folder {path.parent} does not exist; create it first")
        try:
            with disk.open(half, "xb") as file:
                fill(file)
                disk.sync(file)
            if keep is not None and path.exists():
                disk.replace(path, keep)
            disk.replace(half, path)
        except BaseException:
            with suppress(OSError):
                disk.remove(half)
            raise
        disk.sync_folder(path.parent)


def write_first(path: Path, text: str) -> bool:
    """Write a text where no file is, whole; whether it was written: of several that try at once only one does."""
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with storage_errors(path):
        try:
            with disk.open(half, "xb") as file:
                file.write(text.encode())
                disk.sync(file)
            return disk.link(half, path)
        finally:
            with suppress(OSError):
                disk.remove(half)
            disk.sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    write_whole(path, lambda file: file.write(text.encode()))


def put_in_place(part: Path, target: Path) -> None:
    """Give a finished file its name, once it is on the disk; an OSError is left to the caller."""
    with disk.open(part, "r+b") as file:
        disk.sync(file)
    disk.replace(part, target)
    disk.sync_folder(target.parent)


def append(path: Path, end: int, content: bytes) -> int:
    """Write at byte `end` of a file that is there, and cut off what lay beyond; the new end, when it is on the disk.

    A call that fails half-way leaves no trace: the caller's `end` has not moved, and what was written is cut off, now
    or by the next call.
    """
    with storage_errors(path):
        try:
            with disk.open(path, "r+b") as file:
                file.truncate(end)
                file.seek(end)
                file.write(content)
                disk.sync(file)
        except OSError:
            with suppress(OSError):
                disk.cut(path, end)
            raise
    return end + len(content)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, so that a power cut does not take them away again."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    disk.make_folder(path)
    disk.sync_folder(path.parent)


def remove(*paths: Path) -> None:
    """Remove the files that are there, and let no power cut bring them back."""
    found = [path for path in paths if path.exists()]
    for path in found:
        disk.remove(path)
    for folder in {path.parent for path in found}:
        disk.sync_folder(folder)


def remove_unfinished(folder: Path, name: str = "") -> None:
    """Remove what a process that was killed in `write_whole` has left: of one file, or of all in a folder."""
    for half in folder.glob(f".{name}.*" if name else ".*"):
        disk.remove(half)


def hold(file: BinaryIO) -> bool:
    """Lock an open file until it is closed, which the end of the process does; whether that could be done.

    Somebody who only asks (`is_held`) has the lock for an instant: it is tried again. A BlockingIOError: another
    process has it for longer.
    """
    if fcntl is None:
        return False
    for left in reversed(range(10)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


def is_held(path: Path) -> bool | None:
    """Whether a process holds a file, as far as this machine sees; None where that cannot be known."""
    if fcntl is None:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def process() -> dict[str, str | int]:
    """Who this is, for those who find what it has left: `machine` tells whether they can ask for its locks."""
    return {"host": platform.node(), "pid": os.getpid(), "machine": this_machine()}


def this_machine() -> str:
    """A name of the machine since it was started; what a process of another one holds may not be seen here."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return platform.node()
