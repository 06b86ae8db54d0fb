"""Ctrl-C and a polite kill: both stop a study in a way that keeps what it has."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fedtempo.errors import Interrupted


@contextmanager
def stoppable(message: str) -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does; `message` says what was kept and how to go on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message) from None
    finally:
        signal.signal(signal.SIGTERM, before)
