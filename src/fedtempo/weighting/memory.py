"""Long runs of the clock are made once: what was worked out of one is remembered, in this process and on disk.

A result is kept by all that it depends on (clock/identity.py), as numbers that are read back to the bit. On disk there
is only what took a while, of fedtempo's own rules (cache.py).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtempo.cache import read_result, write_result
from fedtempo.clock import cycle
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import Cycle, Observation
from fedtempo.clock.identity import Key, key_of, source_is_the_same

log = logging.getLogger(__name__)

T = TypeVar("T")

WORTH_SECONDS = 0.01
"""What took less is not written to disk; little, since a window of rounds at hand is quick, and slow without them."""
MAX_RESULTS = 256
MAX_BYTES = 1 << 26
"""Of all results in memory."""
LARGEST = 1 << 24
"""Bytes of a result that is kept, at most."""

_CLASSES = {kind.__name__: kind for kind in (Cycle, Observation)}
_LIMITS = ("MAX_ROUNDS", "MAX_UPDATES", "MAX_RANDOM_UPDATES", "MAX_ASKED_UPDATES", "MAX_AVAILABLE_UPDATES")


class Packed(NamedTuple):
    """A result as arrays, and a text that says where each belongs."""

    text: str
    arrays: tuple[NDArray[Any], ...]

    @property
    def size(self) -> int:
        return len(self.text) + sum(array.nbytes for array in self.arrays)


class _Results:
    """Results in memory; those that were not asked for longest go."""

    def __init__(self) -> None:
        self._held: OrderedDict[Key, Packed] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Packed | None:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def put(self, key: Key, packed: Packed) -> None:
        with self._lock:
            before = self._held.pop(key, None)
            self._held[key] = packed
            self._bytes += packed.size - (0 if before is None else before.size)
            while len(self._held) > MAX_RESULTS or self._bytes > MAX_BYTES:
                _, gone = self._held.popitem(last=False)
                self._bytes -= gone.size

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._bytes = 0


_results = _Results()


def forget_all() -> None:
    """Forget what this process remembers; what is on disk stays."""
    _results.clear()


def remembered(config: ClockConfig, what: str, compute: Callable[[], T], *more: object, importance: bool = True) -> T:
    """What `compute` gives, or gave when it was asked the same before.

    `what` names it, `more` is all that it depends on beside the clock and its limits; `importance`: whether that counts
    even if the rule does not read it.
    """
    limits = [getattr(cycle, name) for name in _LIMITS]
    key = key_of(config, what, limits, *more, importance=importance)
    if key is None:
        return compute()
    kept = _results.get(key)
    others = kept is None and not key.here and source_is_the_same()  # whether others may read it, and we theirs
    if others:
        kept = _read(key)
    if kept is not None:
        found: T = unpacked(kept)
        _results.put(key, kept)
        return found
    begin = time.perf_counter()
    found = compute()
    packed = pack(found)
    if packed is not None and packed.size <= LARGEST:
        _results.put(key, packed)
        if others and time.perf_counter() - begin > WORTH_SECONDS:
            write_result(key.digest, _arrays(key, packed))
    return found


def _arrays(key: Key, packed: Packed) -> dict[str, NDArray[Any]]:
    head = json.dumps({"key": key.digest, "value": packed.text}).encode()
    return {"head": np.frombuffer(head, dtype=np.uint8), **{str(k): array for k, array in enumerate(packed.arrays)}}


def _read(key: Key) -> Packed | None:
    """What is on disk, if it is what was written there."""
    found = read_result(key.digest)
    if found is None:
        return None
    try:
        head = json.loads(found["head"].tobytes())
        if head["key"] != key.digest:
            return None
        packed = Packed(str(head["value"]), tuple(found[str(k)] for k in range(len(found) - 1)))
        unpacked(packed)
    except Exception:  # whatever a damaged file leads to
        log.info("a result that was kept cannot be read; it is worked out again")
        return None
    return packed


class _NoWay(Exception):
    """A value that cannot be written down."""


def pack(value: object) -> Packed | None:
    """A value as arrays and JSON; None of what is more than numbers, text, rationals, arrays, tuples and a long run."""
    arrays: list[NDArray[Any]] = []
    try:
        return Packed(json.dumps(_plain(value, arrays)), tuple(arrays))
    except _NoWay:
        return None


def unpacked(packed: Packed) -> Any:
    """The value, with arrays of its own."""
    return _value(json.loads(packed.text), packed.arrays)


def _plain(value: Any, arrays: list[NDArray[Any]]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int or kind is Fraction:
        return {kind.__name__: str(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is tuple:
        return {"tuple": [_plain(part, arrays) for part in value]}
    if kind is np.ndarray and not value.dtype.hasobject:
        arrays.append(value.copy())
        return {"array": len(arrays) - 1}
    if kind in _CLASSES.values():
        return {kind.__name__: {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}}
    raise _NoWay


def _value(plain: Any, arrays: tuple[NDArray[Any], ...]) -> Any:
    if not isinstance(plain, dict):
        return plain
    [(kind, content)] = plain.items()
    match kind:
        case "int":
            return int(content)
        case "Fraction":
            return Fraction(content)
        case "float":
            return float.fromhex(content)
        case "tuple":
            return tuple(_value(part, arrays) for part in content)
        case "array":
            return arrays[content].copy()
    return _CLASSES[kind](**{name: _value(part, arrays) for name, part in content.items()})
