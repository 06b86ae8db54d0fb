"""What can go wrong, as a small tree.

    FedtempoError
    ├── InputError          what was given cannot work            exit code 2   (also a ValueError)
    │   ├── ClockOverflow   exact time does not fit 64-bit ticks
    │   ├── UnlawfulRule    a waiting rule broke its contract
    │   └── StorageError    the disk refuses to be written
    ├── DataMissing         a file or data set is not there       exit code 3
    ├── ResultsConflict     results of something else are there   exit code 4
    └── Interrupted         stopped by the user, results kept     exit code 130

Every message says what was given, why it cannot work and what to change. An interrupted command exits with 130.
"""

from typing import ClassVar

INTERRUPTED = 130


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


class Interrupted(FedtempoError):
    """Stopped by the user; what was done so far is kept."""

    exit_code = INTERRUPTED
