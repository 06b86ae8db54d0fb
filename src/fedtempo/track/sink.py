"""What all sinks share: `on_measure` as an object that writes beside the training, and ends with `close`.

    step     a point's number in its run, from 0: in a study the same virtual time in all runs, on Flower the round
    time     virtual seconds; on Flower those since training began

A call only takes the point down. What has come together is written two seconds later, on a thread of its own, and more
rarely where writing is slow: at most a tenth of the time is spent on it. A study tells all points of a run from the
first on, also those of an earlier call, so that a run which is told anew replaces what was there of it.
"""

from __future__ import annotations

import sys
import threading
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from fedtempo.errors import InputError
from fedtempo.simulation.run_info import RunInfo

SECONDS = 2.0
"""From a point to its writing."""
_SHARE = 10.0
"""Seconds between two writings for each second that one takes."""


@dataclass
class Point:
    """What a run has measured at one time."""

    step: int
    time: float
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class Told:
    """New points of a run, in their order."""

    run: RunInfo
    points: dict[int, Point] = field(default_factory=dict)
    """By step."""


class Sink:
    """Takes points of runs and writes them somewhere; a context manager that closes itself.

    A class of one's own has `_write`, and `_end` if there is something to be done at the end.
    """

    def __init__(self) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._pending: dict[str, Told] = {}
        self._steps: dict[str, dict[float, int]] = {}
        """By the name of a run: the numbers of its points, by their times."""
        self._timer: threading.Timer | None = None
        self._every = SECONDS
        self._error: BaseException | None = None

    def __call__(self, run: RunInfo, time: float, values: Mapping[str, float]) -> None:
        """A run has measured these values at this time; more values of the same time are added to them."""
        name = run.name
        with self._lock:
            self._raise()
            numbers = self._steps.setdefault(name, {})
            step = numbers.setdefault(float(time), len(numbers))
            told = self._pending.setdefault(name, Told(run))
            told.points.setdefault(step, Point(step, float(time))).values.update(values)
            self._set_timer()

    def flush(self) -> None:
        """Write what has been told so far."""
        with self._writing:
            with self._lock:
                told, self._pending = self._pending, {}
            begin = clock.perf_counter()
            if told:
                self._write(list(told.values()))
            self._every = max(SECONDS, _SHARE * (clock.perf_counter() - begin))

    def close(self) -> None:
        """Write the rest, and let go of files and runs; what is told afterwards begins anew."""
        stopped = sys.exc_info()[0] is not None
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        try:
            self.flush()
        finally:
            with self._writing, self._lock:
                self._steps.clear()
                self._end(stopped)
        with self._lock:
            self._raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._every, self._on_timer)
            self._timer.daemon = True
            self._timer.start()

    def _on_timer(self) -> None:
        try:
            self.flush()
        except BaseException as error:  # raised where the next point is told
            self._error = error
        with self._lock:
            if self._timer is threading.current_thread():
                self._timer = None
                if self._pending and self._error is None:
                    self._set_timer()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    # -- for the kinds of sinks

    def _write(self, told: Sequence[Told]) -> None:
        """Write new points, run by run; one writing at a time."""
        raise NotImplementedError

    def _end(self, stopped: bool) -> None:
        """Nothing more comes of these runs; `stopped`: an exception has ended them."""


def not_installed(what: str, extra: str) -> InputError:
    """A package that is not there."""
    return InputError(f"track: {what} is not installed; install it: pip install 'fedtempo[{extra}]'")
