"""Rows that stay on disk: memory-mapped arrays, read a part at a time, so that data need not fit into memory.

A map that is read shows up as memory of the process until it is given back; `release` does that after every part. What
was read stays in the system's cache of files as long as there is room.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError

Tree = Any
Ints = NDArray[np.int64]

BLOCK_BYTES = 1 << 24
"""Of rows that are looked at together, about."""
_SCATTERED_ROWS = 1 << 10
"""Rows that are taken before memory is given back: each may bring a page, and its neighbours."""


def is_mapped(leaf: object) -> TypeGuard[np.memmap[Any, Any]]:
    """Whether an array is a file's, as ``mmap_mode="r"`` makes it; private copies ("c") are not."""
    return isinstance(leaf, np.memmap) and getattr(leaf, "_mmap", None) is not None and leaf.mode != "c"


def any_mapped(rows: Tree) -> bool:
    """Whether some of a tree's rows stay on disk."""
    return any(is_mapped(leaf) for leaf in jax.tree.leaves(rows))


def check_file(leaf: np.memmap[Any, Any], what: str) -> None:
    """Refuses a file that was cut off after it was mapped: reading beyond its end would end the process."""
    name: Any = leaf.filename
    if name is None or leaf.size == 0:
        return
    first = np.frombuffer(leaf._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
    in_file = leaf.offset - leaf.offset % mmap.ALLOCATIONGRANULARITY
    end = in_file + int(np.lib.array_utils.byte_bounds(leaf)[1]) - first.ctypes.data
    try:
        size = os.path.getsize(name)
    except OSError as error:
        raise InputError(f"{what}: its file {name} is gone ({error.strerror}); bring it back") from None
    if size < end:
        raise InputError(f"{what}: its file {name} has {size} bytes and needs {end}: it was cut off; write it again")


class Place(NamedTuple):
    """Where an array lies in a file: what another process that sees the file needs of it."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int


def by_place(rows: Tree) -> Tree:
    """The rows to send to another process: of maps, where they lie."""

    def placed(leaf: Any) -> Any:
        if not is_mapped(leaf) or leaf.filename is None or not leaf.flags.c_contiguous:
            return leaf
        first = np.frombuffer(leaf._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
        in_file = leaf.offset - leaf.offset % mmap.ALLOCATIONGRANULARITY
        start = in_file + leaf.ctypes.data - first.ctypes.data
        return Place(os.path.abspath(leaf.filename), leaf.dtype, leaf.shape, start)

    return jax.tree.map(placed, rows)


def mapped_again(rows: Tree) -> Tree:
    """What `by_place` made, as arrays."""

    def found(leaf: Any) -> Any:
        if not isinstance(leaf, Place):
            return leaf
        again = np.memmap(leaf.path, dtype=leaf.dtype, mode="r", offset=leaf.start, shape=leaf.shape)
        check_file(again, "rows")
        return again

    return jax.tree.map(found, rows, is_leaf=lambda leaf: isinstance(leaf, Place))


def joined(views: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Views of one map that lie end to end, as one view; None if they are not that."""
    first = views[0]
    if not is_mapped(first):
        return None
    at, step = first.ctypes.data, first.strides[0]
    for view in views:
        if not is_mapped(view) or view._mmap is not first._mmap or view.dtype != first.dtype:  # type: ignore[attr-defined]
            return None
        if view.shape[1:] != first.shape[1:] or view.strides != first.strides or view.ctypes.data != at:
            return None
        at += len(view) * step
    rows = sum(len(view) for view in views)
    whole = np.lib.stride_tricks.as_strided(first, (rows, *first.shape[1:]), first.strides, subok=True, writeable=False)
    return whole if is_mapped(whole) else None


def blocks(leaf: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Consecutive rows; of an array in memory all at once."""
    if not is_mapped(leaf):
        yield leaf
        return
    plain = np.asarray(leaf)
    rows = max(1, BLOCK_BYTES // max(1, leaf.itemsize * int(np.prod(leaf.shape[1:]))))
    for begin in range(0, len(leaf), rows):
        yield plain[begin : begin + rows]
        release(leaf)


def release(leaf: np.memmap[Any, Any]) -> None:
    """Give back the memory in which the map was read; what is written there is on the way to the disk all the same."""
    if hasattr(mmap, "MADV_DONTNEED"):
        leaf._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def take_rows(rows: Tree, numbers: Ints) -> Tree:
    """Rows by number, as arrays in memory; those of maps are read in the order in which they lie."""
    ascending = bool((numbers[1:] >= numbers[:-1]).all())
    order = None if ascending else np.argsort(numbers, kind="stable")
    sorted_numbers = numbers if order is None else numbers[order]

    def taken(leaf: NDArray[Any]) -> NDArray[Any]:
        if not is_mapped(leaf):
            return leaf[numbers]
        plain = np.asarray(leaf)
        out = np.empty((len(numbers), *leaf.shape[1:]), dtype=leaf.dtype)
        for begin in range(0, len(numbers), _SCATTERED_ROWS):
            some = slice(begin, begin + _SCATTERED_ROWS)
            out[some if order is None else order[some]] = plain[sorted_numbers[some]]
            release(leaf)
        return out

    return jax.tree.map(taken, rows)
