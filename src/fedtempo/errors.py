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
    """Anything that fedtempo raises on purpose: what was given, why it cannot work, what to change.

    Example:
        >>> try:
        ...     ft.TraceTimes.read("no-such.csv")
        ... except ft.FedtempoError as error:
        ...     print(error, f"(exit code {error.exit_code})")
        no-such.csv: no such trace file; check the path (exit code 3)
    """

    exit_code: ClassVar[int] = 1


class InputError(FedtempoError, ValueError):
    """What was given cannot work. It is a ValueError, too.

    Example:
        >>> ft.FedFix(wait=0)
        Traceback (most recent call last):
            ...
        fedtempo.errors.InputError: wait: 0 is not above zero; give a positive number
    """

    exit_code = 2


class ClockOverflow(InputError):
    """Exact time does not fit 64-bit ticks: round times to a common precision, or give a coarser resolution.

    Example:
        >>> ft.FixedTimes([1, 1e25])
        Traceback (most recent call last):
            ...
        fedtempo.errors.ClockOverflow: time 1e+25 is more than a 64-bit clock can count in ticks of 1; ...
    """


class UnlawfulRule(InputError):
    """A waiting rule broke its contract: it takes what has not arrived, sends to who is busy, or never ends a round.

    Example:
        >>> from fedtempo.testing import check_rule
        >>> from fedtempo.rules import Close, WaitingRule, resend
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Twice(WaitingRule):
        ...     def decide(self, state, event, view):
        ...         return state, resend(event) or Close(tuple(view.arrived.values()) * 2)
        >>> check_rule(Twice())
        Traceback (most recent call last):
            ...
        fedtempo.errors.UnlawfulRule: Twice() takes Job(client=5, number=0, base=0, sent=0, draws=1), which has not
        arrived or is taken twice
    """


class StorageError(InputError):
    """The disk refuses to be written; what was there is still there."""


class DataMissing(FedtempoError):
    """A file or data set is not there, or PyTorch is not installed.

    Example:
        >>> ft.problems.mnist(data_dir="empty")
        Traceback (most recent call last):
            ...
        fedtempo.errors.DataMissing: mnist is not in empty...mnist; download it with `fedtempo data get mnist ...
    """

    exit_code = 3


class ResultsConflict(FedtempoError):
    """The folder for results contains something else: another study, or another run on Flower.

    Example:
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> _ = ft.simulate(problem, ft.FedAvg(), times, until=10, checkpoint="study")
        >>> _ = ft.simulate(problem, ft.FedAvg(), times, until=20, checkpoint="study")
        Traceback (most recent call last):
            ...
        fedtempo.errors.ResultsConflict: study holds the results of another study (its until is "10", ...
    """

    exit_code = 4


class WorkersLost(FedtempoError):
    """An executor is closed, or its workers are gone; what was saved is kept.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> executor = ThreadPoolExecutor(2)
        >>> executor.shutdown()
        >>> problem, times = ft.problems.quadratics(3), ft.FixedTimes([3, 2, 1])
        >>> ft.simulate(problem, ft.FedAvg(), times, until=10, executor=executor)
        Traceback (most recent call last):
            ...
        fedtempo.errors.WorkersLost: executor: it is closed; what was saved is kept, ...
    """

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
