"""Ctrl-C as a note: as an exception it is lost where Python ignores those, as inside the removal of an object."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupts:
    """Whether one has come."""

    came: bool = False


@contextmanager
def noted() -> Iterator[Interrupts]:
    """Notes the first signal that would raise KeyboardInterrupt, for the block to act on; a second one raises it.

    A block that ends without having acted on it ends in KeyboardInterrupt.
    """
    found = Interrupts()

    def note(number: int, frame: FrameType | None) -> None:
        if found.came:
            raise KeyboardInterrupt
        found.came = True

    here = threading.current_thread() is threading.main_thread()
    signals = [s for s in (signal.SIGINT, signal.SIGTERM) if here and signal.getsignal(s) is signal.default_int_handler]
    for number in signals:
        signal.signal(number, note)
    try:
        yield found
    finally:
        for number in signals:
            signal.signal(number, signal.default_int_handler)
    if found.came:
        raise KeyboardInterrupt
