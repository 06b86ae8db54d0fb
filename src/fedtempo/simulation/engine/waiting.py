"""Versions that wait in a file until they are read, and which ones those are.

Which slots a piece reads and writes is known before it is trained. Of the versions in memory the one that is read last
goes to the file; one that is overwritten before it is read goes nowhere, and one that was not changed since it came
from the file is not written again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.simulation.engine.program import Piece
from fedtempo.simulation.model_file import ModelFile, Place

NEVER, OVERWRITTEN = math.inf, -1
SLOT = "slot."
"""How a version is called that is saved by itself."""


def reads(event: int) -> int:
    """The moment at which an event reads its slot; points after the event before it are measured a moment earlier."""
    return 3 * event


def writes(event: int) -> int:
    """The moment at which it writes its slot."""
    return 3 * event + 1


class Uses:
    """When the slots of a piece are read and written."""

    def __init__(self, piece: Piece | None = None) -> None:
        self._of: dict[int, list[tuple[int, bool]]] = {}
        """By slot: moments, and whether it is written then."""
        if piece is None:
            return
        found = [(reads(e), False, slot) for e, slot in enumerate(piece.read.tolist())]
        found += [(writes(e), True, slot) for e, slot in enumerate(piece.write.tolist())]
        found += [(reads(point.event) - 1, False, point.slot) for point in piece.points]
        for moment, is_written, slot in sorted(found):
            self._of.setdefault(slot, []).append((moment, is_written))

    def next(self, slot: int, moment: int) -> float:
        """When it is read next, after a moment; `OVERWRITTEN` if it is written before, `NEVER` if not in this piece."""
        known = self._of.get(slot, [])
        k = bisect_right(known, (moment, False))
        if k == len(known):
            return NEVER
        when, is_written = known[k]
        return OVERWRITTEN if is_written else when

    def last(self, slots: Iterable[int], moment: int) -> tuple[int, bool]:
        """Of some slots the one that is read last, and whether it is to be kept; of several the first."""
        when = {slot: self.next(slot, moment) for slot in slots}
        slot = min(when, key=lambda slot: (when[slot] != OVERWRITTEN, -when[slot]))
        return slot, when[slot] != OVERWRITTEN


def version_file() -> ModelFile:
    """A file for versions, which is gone when the process ends."""
    return ModelFile(otherwise="and there is no room for them in memory")


@dataclass
class Waiting:
    """The versions in the file, also those of which there is a copy in memory."""

    file: ModelFile = field(default_factory=version_file)
    places: dict[int, Place] = field(default_factory=dict)
    """By slot."""
    uses: Uses = field(default_factory=Uses)
    """Those of the piece that is trained."""
    now: int = 0
    """How far that is, as a moment."""

    def __contains__(self, slot: int) -> bool:
        return slot in self.places

    def put(self, slot: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Write a version."""
        self.places[slot] = self.file.put({str(k): array for k, array in enumerate(arrays)})

    def read(self, slot: int) -> list[NDArray[Any]]:
        """The arrays of a version."""
        return list(self.places[slot].read().values())

    def forget(self, slot: int) -> None:
        """There is another version in the slot."""
        self.places.pop(slot, None)


# -- versions that are saved one by one


class Later:
    """An array that is made when it is asked for: of many large ones no more than one is in memory."""

    def __init__(self, made: Callable[[], NDArray[Any]]) -> None:
        self._made = made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._made()

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (self._made(),)


def put_together(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """The bytes of arrays, one after the other."""
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])


def taken_apart(memory: NDArray[Any], like: Sequence[Any]) -> list[NDArray[Any]]:
    """What was put together, in the shapes and types of `like`."""
    sizes = [math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in like]
    parts = np.split(memory, np.cumsum(sizes)[:-1])
    return [part.view(one.dtype).reshape(one.shape) for part, one in zip(parts, like, strict=True)]
