"""What a run of the clock depends on, as a key: two configurations with the same key have the same rounds.

Of our own rules and client times, the key is a digest of their classes' names and of every number in them, so that it
means the same in another process. Of a rule of somebody else's, it also has what its code is made of, constants that it
reads from its module included, and it holds in this process alone. What cannot be known for certain has no key: an
object that can be changed, client times of one's own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fedtempo import __version__
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.times import ClientTimes

FORMAT = 1
"""Of results that are kept by these keys."""

_ROOT = Path(__file__).parents[1]
_WORKED_OUT = {"_clock_means"}
"""Attributes of client times that are filled in when they are asked for, and follow from the others."""
_LIBRARIES = {"fedtempo", "numpy", *sys.stdlib_module_names}
"""What comes from them is not changed while a program runs."""
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__dataclass_params__"}
_OF_CLASSES |= {"__dataclass_fields__", "__match_args__", "__abstractmethods__", "_abc_impl", "__parameters__"}
"""Attributes of a class that do not decide what it does."""
_OF_DATACLASSES = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}
"""What `dataclass` writes: it follows from the fields."""


class NotKnown(Exception):
    """Something of which nobody can tell whether it is the same another time."""


@dataclass(frozen=True)
class Key:
    """What a result is found by."""

    digest: str
    here: tuple[object, ...] = ()
    """Classes, functions and modules that are the same as long as this process runs; without any, the digest is enough,
    in any process."""


def key_of(config: ClockConfig, what: str, *more: object, importance: bool = True) -> Key | None:
    """The key of `what` is worked out from a run of the clock, and from `more`; None if that is not certain.

    `importance`: whether it counts even if the rule does not read it.
    """
    digest = _Digest()
    try:
        for part in (FORMAT, __version__, _about_here(), what, config.rule, config.times, config.seed, *more):
            digest.add(part)
        if importance or digest.here or "importance" in config.rule.needs:
            digest.add(config.importance)
        if config.times.random:
            digest.add(_scipy())
    except (NotKnown, RecursionError):
        return None
    return Key(digest.hexdigest, tuple(digest.here))


@cache
def _about_here() -> str:
    """The source of all that a long run comes from, NumPy and the machine, whose last digits may differ."""
    found = hashlib.blake2b(digest_size=16)
    try:
        for package in ("clock", "weighting"):
            for path in sorted((_ROOT / package).rglob("*.py")):
                found.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    except OSError as error:
        raise NotKnown(str(error)) from None
    machine = (platform.machine(), platform.node(), platform.python_version(), np.__version__, os.name)
    return f"{found.hexdigest()} {machine}"


@cache
def _scipy() -> str:
    """The version of SciPy, whose quantiles random times are drawn by."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scipy")
    except PackageNotFoundError:
        raise NotKnown("SciPy") from None


class _Digest:
    """Of values, each with its type and length, so that no two lists of values read the same."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=20)
        self.here: list[object] = []
        self._seen: list[object] = []

    @property
    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """Whatever decides how a run goes; what is not certain is refused."""
        kind = type(value)
        if value is None or kind in (bool, int, str, Fraction):
            self._write(kind.__name__, str(value))
        elif kind in (float, complex):
            self._write(kind.__name__, value.hex() if kind is float else repr(value))
        elif kind is bytes:
            self._write("bytes", value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(np.asarray(value))
        elif kind in (tuple, list):
            self._all(kind.__name__, value)
        elif kind is dict:
            self._all("dict", [part for item in value.items() for part in item])
        elif kind in (set, frozenset):
            self._all(kind.__name__, sorted(value, key=repr))
        else:
            self._object(value)

    def _write(self, kind: str, content: str | bytes) -> None:
        octets = content.encode() if isinstance(content, str) else content
        self._hash.update(f"{kind} {len(octets)}:".encode() + octets)

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        if value.dtype.hasobject:
            raise NotKnown(repr(value.dtype))
        self._write("array", f"{value.dtype.str} {value.shape}")
        self._write("bytes", np.ascontiguousarray(value).tobytes())

    def _all(self, kind: str, parts: Iterable[object]) -> None:
        listed = list(parts)
        self._write(kind, str(len(listed)))
        for part in listed:
            self.add(part)

    def _object(self, value: object) -> None:
        """An instance: its class, and what it is made of."""
        kind = type(value)
        if isinstance(value, (type, FunctionType, BuiltinFunctionType, ModuleType)):
            self._code(value)
            return
        if isinstance(value, ClientTimes):
            if not _ours(kind):
                raise NotKnown(f"client times of one's own: {kind.__qualname__}")
            self._write("times", f"{kind.__module__}.{kind.__qualname__}")
            known = {name: part for name, part in vars(value).items() if name not in _WORKED_OUT}
            self.add(dict(sorted(known.items())))
            return
        if not (is_dataclass(value) and kind.__dataclass_params__.frozen):  # type: ignore[attr-defined]
            raise NotKnown(f"an object that can be changed: {kind.__qualname__}")
        if not _ours(kind):
            self._code(kind)
        self._write("object", f"{kind.__module__}.{kind.__qualname__}")
        named = [field.name for field in fields(value)]
        worked_out = {name for base in kind.__mro__ for name, made in vars(base).items() if _cached(made)}
        if not set(getattr(value, "__dict__", {})) <= {*named, *worked_out}:
            raise NotKnown(f"an object with more than its fields: {kind.__qualname__}")
        self.add({name: getattr(value, name) for name in named})

    # -- code of others, which is the same in this process alone

    def _code(self, value: object) -> None:
        """A class, function or module."""
        if any(value is seen for seen in self._seen):
            self._write("seen", "")
            return
        self._seen.append(value)
        self.here.append(value)
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
        if module.split(".")[0] in _LIBRARIES:
            return
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        else:
            raise NotKnown(f"{value!r}, which may change")

    def _class(self, kind: type) -> None:
        for base in kind.__bases__:
            self._code(base)
        left_out = _OF_CLASSES | (_OF_DATACLASSES if "__dataclass_fields__" in vars(kind) else set())
        for name, made in sorted(vars(kind).items()):
            if name in left_out:
                continue
            self._write("attribute", name)
            for part in _functions(made):
                self.add(part)

    def _function(self, function: FunctionType) -> None:
        self._instructions(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        for part in (function.__defaults__, function.__kwdefaults__, cells):
            self.add(part)
        for name in sorted(set(_names(function.__code__)) & function.__globals__.keys()):
            self._write("global", name)
            self.add(function.__globals__[name])

    def _instructions(self, code: CodeType) -> None:
        self._write("code", code.co_code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._instructions(constant)
            elif constant is not Ellipsis:
                self.add(constant)
        self.add(list(code.co_names))


def _ours(kind: type) -> bool:
    """Whether a class is fedtempo's, under the name that it says."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return kind.__module__.startswith(("fedtempo.clock.", "fedtempo.weighting.")) and found is kind


def _cached(made: object) -> bool:
    return isinstance(made, cached_property)


def _functions(made: object) -> Iterator[object]:
    """What an attribute of a class is made of."""
    if isinstance(made, property):
        yield from (function for function in (made.fget, made.fset, made.fdel) if function is not None)
    elif isinstance(made, (classmethod, staticmethod)):
        yield made.__func__
    elif isinstance(made, cached_property):
        yield made.func
    else:
        yield made


def _names(code: CodeType) -> Iterator[str]:
    """Names that code reads, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
