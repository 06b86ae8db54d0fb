"""Making the next items while the last one is in use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

DEPTH = 2


def ahead(source: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, made up to DEPTH ahead by a thread of its own; its errors come out here."""
    line: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(DEPTH)
    stop = threading.Event()

    def put(item: tuple[bool, T | BaseException | None]) -> None:
        while not stop.is_set():
            try:
                line.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in source:
                put((True, item))
                if stop.is_set():
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    maker = threading.Thread(target=make, name="fedtempo-ahead", daemon=True)
    maker.start()
    try:
        while True:
            more, item = line.get()
            if isinstance(item, BaseException):
                raise item
            if not more:
                return
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        maker.join()
