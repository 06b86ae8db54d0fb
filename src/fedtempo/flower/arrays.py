"""Models as Flower carries them: NumPy's own file format, one array each, read without a copy.

Flower's `Array.numpy()` does the same and parses each header anew, which for small models costs more than the rest.
Here a header is made once for each type and shape, and what begins with it is known.
"""

from __future__ import annotations

import cmath
import io
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedtempo.errors import InputError

Arrays = dict[str, NDArray[Any]]
"""A model: arrays by name."""

_STYPE = "numpy.ndarray"
_COMPLEX = "FDG"
"""Characters of NumPy's types."""
_PREFIX = 10  # magic, version and the header's length, in format 1.0


def model_of(record: ArrayRecord) -> Arrays:
    """The arrays of a model that can be averaged, each with memory of its own."""
    if not isinstance(record, ArrayRecord):
        raise InputError(
            f"initial_arrays: a {type(record).__name__} is not an ArrayRecord; give ArrayRecord(model.state_dict()), "
            "or "
            "ArrayRecord({name: Array(array), …})"
        )
    if not record:
        raise InputError("initial_arrays: there are no arrays; give the model's parameters")
    arrays = {}
    for name, value in record.items():
        array = value.numpy()
        if array.dtype.kind not in "fiubc":
            raise InputError(f"initial_arrays: {name!r} has dtype {array.dtype}, which cannot be averaged; convert it")
        arrays[name] = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        if not finite(arrays[name]):
            raise InputError(f"initial_arrays: {name!r} contains NaN or Inf; start from finite numbers")
    return arrays


def finite(*arrays: NDArray[Any]) -> bool:
    """Whether every number is; sums, which are looked at first, seldom leave a doubt."""
    with np.errstate(all="ignore"):
        return all(map(is_finite, arrays))


def is_finite(array: NDArray[Any]) -> bool:
    """The same of one array, where NumPy's warnings are off."""
    if array.dtype.kind not in "fc":
        return True
    if array.dtype == np.float16:  # whose sums are slow and soon too large; all bits of the exponent: not finite
        return bool((array.view(np.uint16) & 0x7FFF).max(initial=0) < 0x7C00)
    if array.ndim == 1 and cmath.isfinite(array.dot(array)):  # the quickest sum that a number which is not must spoil
        return True
    return cmath.isfinite(np.add.reduce(array, axis=None)) or bool(np.isfinite(array).all())


def room_for(arrays: Arrays) -> tuple[Arrays, list[NDArray[Any]]]:
    """Arrays of the same shapes and types whose numbers are to be filled in, and the memories in which they lie.

    Those of one type share a memory, so that what is done to each number alike is done to all at once: with the many
    small arrays of a model the calls cost more than the work. Complex ones have their own, since the last bit of their
    products may depend on where in a memory they lie.
    """
    sizes: dict[str, int] = {}
    for array in arrays.values():
        kind = array.dtype.char
        sizes[kind] = sizes.get(kind, 0) + array.size
    memories = {kind: np.empty(size, kind) for kind, size in sizes.items() if kind not in _COMPLEX}
    ends = dict.fromkeys(sizes, 0)
    room: Arrays = {}
    own: list[NDArray[Any]] = []
    for name, array in arrays.items():
        kind = array.dtype.char
        if kind in _COMPLEX:
            room[name] = np.empty(array.shape, kind)
            own.append(room[name])
            continue
        begin = ends[kind]
        ends[kind] = end = begin + array.size
        part = memories[kind][begin:end]
        room[name] = part if array.ndim == 1 else part.reshape(array.shape)
    return room, [*memories.values(), *own]


def record_of(arrays: Arrays) -> ArrayRecord:
    """A model as Flower sends it."""
    record = ArrayRecord()
    for name, array in arrays.items():
        empty, head = _head(array.dtype, array.shape)
        record[name] = _with_data(empty, b"".join((head, np.ascontiguousarray(array).data)))
    return record


def _with_data(empty: Array, data: bytes) -> Array:
    """A copy with these numbers: what `copy.copy` does, at a quarter of an array that Flower makes of its parts."""
    array = Array.__new__(Array)
    vars(array).update(vars(empty), data=data)
    return array


def read(array: Array, like: NDArray[Any] | None = None) -> NDArray[Any]:
    """The array, perhaps on the message's own memory, which must not be written to; quickly if it is as `like` is."""
    data = array.data
    if array.stype != _STYPE:
        return array.numpy()
    if like is not None and data.startswith(head := _head(like.dtype, like.shape)[1]):
        flat = np.frombuffer(data, like.dtype, -1, len(head))
        return flat if flat.shape == like.shape else flat.reshape(like.shape)
    if data[:8] != b"\x93NUMPY\x01\x00":
        return array.numpy()
    begin = _PREFIX + int.from_bytes(data[8:_PREFIX], "little")
    shape, fortran, dtype = _parsed(bytes(data[:begin]))
    if dtype.hasobject:
        return array.numpy()  # which refuses it
    flat = np.frombuffer(data, dtype=dtype, offset=begin)
    return flat.reshape(shape, order="F" if fortran else "C")


def size(record: ArrayRecord) -> int:
    """Bytes of a record's arrays as Flower carries them."""
    return sum(len(array.data) for array in record.values())


@lru_cache(maxsize=4096)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[Array, bytes]:
    """An array of Flower's without its numbers, and the header before these."""
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return Array(dtype=str(dtype), shape=shape, stype=_STYPE, data=b""), buffer.getvalue()


@lru_cache(maxsize=4096)
def _parsed(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    buffer = io.BytesIO(head)
    npy.read_magic(buffer)
    shape, fortran, dtype = npy.read_array_header_1_0(buffer)
    return shape, fortran, dtype


def whole(total: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Numbers as whole ones or booleans, at the end of their type where they are beyond."""
    total = np.rint(total)
    if kind.kind == "b":
        return np.asarray(total > 0)
    room = np.iinfo(kind)
    return np.asarray(np.clip(total, float(room.min), _top(room.max)).astype(kind))


def _top(most: int) -> float:
    """The largest float that a whole number up to `most` can hold: 2⁶³ − 1 as a float is 2⁶³, which flips over."""
    top = float(most)
    return float(np.nextafter(top, 0.0)) if top > most else top
