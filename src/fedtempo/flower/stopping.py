"""Ctrl-C and SIGTERM end a training at a moment at which it can be saved.

A signal that comes while a round is made waits until it is made; one that comes while the server sleeps ends the sleep.
The second one ends everything at once. Handlers are put in place of Python's own only, in the main thread only, and are
taken away again: where Flower has handlers of its own, what these raise ends the training.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Stop:
    """Whether the training has been asked to stop; inside `with`, signals ask it."""

    def __init__(self) -> None:
        self.idle = False
        """Whether nothing is half done, so that an exception may come."""
        self.asked: BaseException | None = None
        """What is to be raised when the training has been saved."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) is usual or signal.getsignal(number) == usual:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._ask:
                signal.signal(number, before)
        self._before.clear()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked is not None, _raised(number)
        if self.idle or again:
            raise self.asked

    def words(self) -> str:
        """What has stopped the training."""
        if isinstance(self.asked, KeyboardInterrupt):
            return "Ctrl-C"
        code = self.asked.code if isinstance(self.asked, SystemExit) else None
        return "SIGTERM" if code == 128 + signal.SIGTERM else type(self.asked).__name__


def _raised(number: int) -> BaseException:
    """What Python raises, or what a shell sees of a process that the signal has ended."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
