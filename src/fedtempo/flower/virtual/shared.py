"""Large messages between processes through shared memory, which a pipe takes longer for.

Who reads it removes it. What nobody has read is removed by whoever finds that out, or by Python's own resource tracker
when the processes have ended, also if they were killed.
"""

from __future__ import annotations

from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import NamedTuple, cast

LARGE = 1 << 16
"""Bytes from which on memory is shared."""


class Shared(NamedTuple):
    """Where bytes are."""

    name: str
    size: int


def put(data: bytes) -> bytes | Shared:
    """The bytes themselves if they are few, else where they are."""
    if len(data) < LARGE:
        return data
    try:
        block = SharedMemory(create=True, size=len(data))
    except OSError:  # no room, or no such thing on this system: by the pipe, then
        return data
    cast(memoryview, block.buf)[: len(data)] = data
    block.close()
    return Shared(block.name, len(data))


def take(given: bytes | Shared) -> bytes:
    """What was put there, once."""
    if not isinstance(given, Shared):
        return given
    block = SharedMemory(given.name)
    data = bytes(cast(memoryview, block.buf)[: given.size])
    block.close()
    block.unlink()
    return data


def drop(given: bytes | Shared) -> None:
    """Nobody reads it any more."""
    if isinstance(given, Shared):
        with suppress(OSError):
            block = SharedMemory(given.name)
            block.close()
            block.unlink()
