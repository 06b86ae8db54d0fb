"""Contributions as bytes: what a client packs, and what the server makes of it. NumPy alone, so that any client can.

    payload, state = encode(ft.TopK(0.01), change, state, key=job_key(seed, client, job))
    decode(payload)        what the server gets for `change`

A payload has up to three parts, whatever the number of arrays: all floats, all codes or places, and all arrays that
pass as they are, each end to end in the order of the arrays' names (as JAX has them), or of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import Key
from fedtempo.errors import InputError
from fedtempo.training.compression.method import ERROR, FLOATS, Compression, Parts, Shape, working
from fedtempo.training.compression.numbers import fold, job_key

__all__ = ["Payload", "Slot", "WireState", "decode", "encode", "first_state", "job_key", "slots_of"]

Arrays = Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]
WireState = dict[str, Parts]
"""What a client keeps, by array; of arrays of which nothing is kept, nothing."""
_REST = "rest"


class Slot(NamedTuple):
    """An array's place in a payload."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Payload:
    """What travels, and what must be known to read it."""

    method: Compression
    slots: tuple[Slot, ...]
    listed: bool
    """Whether the arrays are a list; else they have names."""
    parts: Parts
    """Vectors of float32 or bytes."""

    @property
    def num_bytes(self) -> int:
        """Bytes that travel, without the transport's headers."""
        return sum(part.nbytes for part in self.parts.values())


def slots_of(arrays: Arrays) -> tuple[Slot, ...]:
    """The arrays in the order in which they are packed."""
    if isinstance(arrays, Mapping):
        named = sorted(arrays.items())
    else:
        named = [(str(place), array) for place, array in enumerate(arrays)]
    return tuple(Slot(name, array.shape, array.dtype) for name, array in named)


def first_state(method: Compression, arrays: Arrays) -> WireState:
    """What a client keeps before its first job."""
    slots = slots_of(arrays)
    kept = {slot.name: method.first(slot.shape, slot.dtype, place) for place, slot in enumerate(slots)}
    return {name: parts for name, parts in kept.items() if parts}


def encode(
    method: Compression, arrays: Arrays, state: WireState | None = None, *, key: Key
) -> tuple[Payload, WireState]:
    """What a client sends for a change, and what it keeps then; None is the state before the first job."""
    slots = slots_of(arrays)
    by_name = arrays if isinstance(arrays, Mapping) else {str(place): array for place, array in enumerate(arrays)}
    before = first_state(method, arrays) if state is None else state
    pieces: dict[str, list[NDArray[Any]]] = {}
    after: WireState = {}
    with np.errstate(all="ignore"):
        for place, slot in enumerate(slots):
            parts, kept = _encoded(method, slot, by_name[slot.name], before.get(slot.name, {}), fold(key, place))
            for name, piece in parts.items():
                pieces.setdefault(name, []).append(piece)
            if kept:
                after[slot.name] = kept
    joined = {name: np.concatenate(some) for name, some in pieces.items()}
    return Payload(method, slots, not isinstance(arrays, Mapping), joined), after


def _encoded(method: Compression, slot: Slot, change: NDArray[Any], kept: Parts, key: Key) -> tuple[Parts, Parts]:
    if not method.takes(slot.shape, slot.dtype):
        little = change.astype(slot.dtype.newbyteorder("<"))
        return {_REST: np.frombuffer(little.tobytes(), np.uint8)}, kept
    x = change.astype(working(slot.dtype))
    if ERROR in kept:
        x = x + kept[ERROR]
    parts, own = method.pack(x, kept, key)
    if ERROR in kept:
        own = {**own, ERROR: x - _unpacked(method, parts, slot)}
    return parts, own


def decode(payload: Payload) -> Any:
    """What the server gets: arrays of the shapes and types that went in, by name or as a list.

    An InputError if the parts are not those of any change.
    """
    method, slots = payload.method, payload.slots
    layouts = [_layout(method, slot) for slot in slots]
    _check(layouts, payload.parts)
    at = dict.fromkeys(payload.parts, 0)
    out: dict[str, NDArray[Any]] = {}
    for slot, layout in zip(slots, layouts, strict=True):
        own = {}
        for name, count in layout.items():
            own[name] = payload.parts[name][at[name] : at[name] + count]
            at[name] += count
        if _REST in layout:
            little = np.frombuffer(own[_REST].tobytes(), slot.dtype.newbyteorder("<"))
            out[slot.name] = little.astype(slot.dtype).reshape(slot.shape)
        else:
            out[slot.name] = _unpacked(method, own, slot)
    return list(out.values()) if payload.listed else out


def _unpacked(method: Compression, parts: Parts, slot: Slot) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return np.asarray(method.unpack(parts, slot.shape, slot.dtype)).astype(slot.dtype)


def _layout(method: Compression, slot: Slot) -> dict[str, int]:
    if method.takes(slot.shape, slot.dtype):
        return method.layout(slot.shape, slot.dtype)
    return {_REST: method.array_bytes(slot.shape, slot.dtype)}


def _check(layouts: Sequence[Mapping[str, int]], parts: Parts) -> None:
    wanted: dict[str, int] = {}
    for layout in layouts:
        for name, count in layout.items():
            wanted[name] = wanted.get(name, 0) + count
    if parts.keys() != wanted.keys():
        raise InputError(f"it has {_listed(parts)} where {_listed(wanted)} are expected")
    for name, part in parts.items():
        kind = np.dtype(np.float32 if name in FLOATS else np.uint8)
        if part.dtype != kind or part.shape != (wanted[name],):
            raise InputError(
                f"{name} is {part.dtype} of shape {part.shape} where {kind} of shape {(wanted[name],)} is expected"
            )


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)) or "nothing"
