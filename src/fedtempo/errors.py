"""What can go wrong, as a small tree.

    FedtempoError
    ├── InputError          what was given cannot work            exit code 2   (also a ValueError)
    │   ├── ClockOverflow   exact time does not fit 64-bit ticks
    │   ├── UnlawfulRule    a waiting rule broke its contract
    │   └── StorageError    the disk refuses to be written
    ├── DataMissing         a file or data set is not there       exit code 3
    ├── ResultsConflict     results of something else are there   exit code 4
    ├── WorkersLost         an executor's workers are gone        exit code 5
    └── Interrupted         stopped by the user, results kept     exit code 130

Every message says what was given, why it cannot work and what to change. An interrupted command exits with 130.
"""

import sysconfig
from pathlib import Path
from traceback import walk_tb
from typing import ClassVar

INTERRUPTED = 130
_OURS = Path(__file__).parent
_NOT_THE_USERS = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


class FedtempoError(Exception):
    """Anything that fedtempo raises on purpose."""

    exit_code: ClassVar[int] = 1


class InputError(FedtempoError, ValueError):
    """What was given cannot work."""

    exit_code = 2


class ClockOverflow(InputError):
    """Exact time does not fit 64-bit ticks."""


class UnlawfulRule(InputError):
    """A waiting rule broke its contract."""


class StorageError(InputError):
    """The disk refuses to be written; what was there is still there."""


class DataMissing(FedtempoError):
    """A file or data set is not there."""

    exit_code = 3


class ResultsConflict(FedtempoError):
    """The folder for results contains something else."""

    exit_code = 4


class WorkersLost(FedtempoError):
    """An executor is closed, or its workers are gone; what was saved is kept."""

    exit_code = 5


class Interrupted(FedtempoError):
    """Stopped by the user; what was done so far is kept."""

    exit_code = INTERRUPTED


def user_line(error: BaseException) -> str | None:
    """Where in the user's own files an error came up, as "line 12 of mine.py"; None if it did nowhere there.

    Code of one's own is what is neither fedtempo's, nor Python's, nor an installed package's.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return f"line {error.lineno} of {Path(error.filename).name}"
    found = None
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_file() and not any(path.is_relative_to(home) for home in (_OURS, *_NOT_THE_USERS)):
            found = f"line {line} of {path.name}"
    return found


def in_one_line(error: BaseException) -> str:
    """An error of somebody else's code: its type and the first line of what it says."""
    said = str(error).strip()
    first = said.splitlines()[0] if said else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
