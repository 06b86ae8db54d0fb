"""What a run of the clock depends on, as a key: two configurations with the same key have the same rounds.

Of our own rules and client times, the key is a digest of their classes' names and of every number in them, so that it
means the same in another process. Of a rule of somebody else's, it also has what its code is made of, constants that it
reads from its module included, and it holds in this process alone. What cannot be known for certain has no key: an
object that can be changed, client times of one's own, code that imports while it runs or reads anything from a module
that is not listed here, and a class of ours that somebody has patched.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import platform
import sys
from abc import ABCMeta
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cache, cached_property
from opcode import opmap
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fedtempo import __version__
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.times import ClientTimes, Multiples
from fedtempo.clock.waiting import WaitingRule

FORMAT = 1
"""Of results that are kept by these keys."""

_ROOT = Path(__file__).parents[1]
_WORKED_OUT = {"_clock_means"}
"""Attributes of client times that are filled in when they are asked for, and follow from the others."""
_PURE = {"abc", "bisect", "builtins", "cmath", "collections", "collections.abc", "dataclasses", "enum", "fractions"}
_PURE |= {"functools", "heapq", "itertools", "math", "numbers", "typing"}
_PURE |= {"fedtempo", "fedtempo.errors", "fedtempo.rules"}
_PURE_PACKAGES = ("fedtempo.clock", "fedtempo.weighting", "numpy")
_NOT_PURE = ("numpy.ctypeslib", "numpy.f2py", "numpy.lib", "numpy.random", "numpy.testing")
"""Modules whose functions give the same for the same arguments, whatever else happens in a program."""
_READS_MORE = {"empty", "empty_like", "from_csv", "fromfile", "genfromtxt", "load", "loadtxt", "memmap"}
"""What there is in those modules all the same that reads files, or memory as it is."""
_FUNCTIONS = {"abs", "all", "any", "ascii", "bin", "callable", "chr", "divmod", "format", "getattr", "hasattr", "hash"}
_FUNCTIONS |= {"hex", "isinstance", "issubclass", "iter", "len", "max", "min", "next", "oct", "ord", "pow", "print"}
_FUNCTIONS |= {"repr", "round", "sorted", "sum", "NotImplemented"}
_BUILTINS = {name: part for name, part in vars(builtins).items() if isinstance(part, type) or name in _FUNCTIONS}
"""Of Python's own names, those that read nothing but their arguments."""
_BY_NAME = {"getattr", "hasattr"}
"""Which of their arguments' attributes they read cannot be seen."""
_DUNDERS = {"__class__", "__init__", "__name__", "__post_init__", "__qualname__", "__setattr__"}
"""Names of Python's that code may read; others lead to where anything can be read."""
_NOT_SEEN = {"IMPORT_NAME", "IMPORT_FROM", "IMPORT_STAR", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_BUILD_CLASS"}
_NOT_SEEN_CODES = {opmap[name] for name in _NOT_SEEN if name in opmap}
"""Instructions that bring in what a function does not name, or change what it does."""
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__dataclass_params__"}
_OF_CLASSES |= {"__dataclass_fields__", "__match_args__", "__abstractmethods__", "_abc_impl", "__parameters__"}
_OF_CLASSES |= {"__annotate__", "__annotate_func__", "__annotations_cache__"}
_OF_CLASSES |= {"__firstlineno__", "__static_attributes__", "__slotnames__"}
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
        digest.add_modules()
    except Exception:  # whatever there is in objects of others: what has no key is worked out anew
        return None
    return Key(digest.hexdigest, tuple(digest.here))


@dataclass(frozen=True)
class _Source:
    """The files that all of a long run comes from."""

    digest: str
    files: tuple[tuple[str, int, int], ...]
    """Each file's path, time of change and size."""


def _source(root: Path) -> _Source | None:
    """As it is now; None if it is not all there, as in an archive or without source."""
    try:
        paths = _paths(root)
        about = _about_files(paths)
        found = hashlib.blake2b(digest_size=16)
        for path in paths:
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    except OSError:
        return None
    return _Source(found.hexdigest(), about) if paths else None


def _paths(root: Path) -> list[Path]:
    return sorted(path for package in ("clock", "weighting") for path in (root / package).rglob("*.py"))


def _about_files(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    found = [(str(path), path.stat()) for path in paths]
    return tuple((path, about.st_mtime_ns, about.st_size) for path, about in found)


_SOURCE = _source(_ROOT)
"""When this module is imported: what is edited later is not what this process runs."""


def source_is_the_same() -> bool:
    """Whether the files are still those that were there when this process imported them.

    If not, part of its code may be from before and part from after, and nothing of it is to be read by others.
    """
    try:
        return _SOURCE is not None and _about_files(_paths(_ROOT)) == _SOURCE.files
    except OSError:
        return False


def _about_here() -> str:
    """The source of all that a long run comes from, NumPy and the machine, whose last digits may differ."""
    if _SOURCE is None:
        raise NotKnown("no source")
    return f"{_SOURCE.digest} {_machine()}"


@cache
def _machine() -> tuple[str, ...]:
    return platform.machine(), platform.node(), platform.python_version(), np.__version__, os.name


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
        self._modules: list[ModuleType] = []
        self._names: set[str] = set()
        """That code of others reads, of whatever."""

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
        elif kind is np.ndarray or isinstance(value, np.generic):
            self._array(np.asarray(value))
        elif kind is Multiples:
            self._all("multiples", (value.ticks, value.unit))
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
        if value.dtype.hasobject or value.dtype.names:
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
        if _ours(kind):
            self._as_written(kind)
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

    def _as_written(self, kind: type) -> None:
        """A class of ours, if its code is what its files say; its constants count."""
        for base in kind.__mro__:
            if not base.__module__.startswith("fedtempo."):
                continue
            for name, part in _parts(base):
                if not isinstance(part, FunctionType):
                    self._write("constant", f"{base.__qualname__}.{name}")
                    self.add(part)
                elif not _written(part, base, name):
                    raise NotKnown(f"{base.__qualname__}.{name}, which was patched")

    # -- code of others, which is the same in this process alone

    def _code(self, value: object) -> None:
        """A class, function or module."""
        if any(value is seen for seen in self._seen):
            self._write("seen", "")
            return
        self._seen.append(value)
        self.here.append(value)
        if isinstance(value, ModuleType):
            if sys.modules.get(value.__name__) is not value or not _pure(value.__name__):
                raise NotKnown(f"{value!r}, which may change")
            self._modules.append(value)
        elif isinstance(value, FunctionType):
            if not _pure(_home(value)):
                self._function(value)
        elif isinstance(value, type):
            if _ours(value) and issubclass(value, (WaitingRule, ClientTimes)):
                self._as_written(value)
            elif not (_named(value) and _pure(value.__module__)):
                self._class(value)
        elif not _pure((getattr(value, "__module__", None) or "").removeprefix("_")):
            raise NotKnown(f"{value!r}, which may change")

    def add_modules(self) -> None:
        """What the code reads of modules: whatever it names, of any of them."""
        done: set[str] = set()
        while len(done) < len(found := self._in_modules()):
            for about, part in sorted(found.items(), key=lambda item: item[0]):
                if about in done:
                    continue
                done.add(about)
                self._write("of a module", about)
                if type(part).__module__ == "numpy" and callable(part):  # its functions have types of their own
                    self.here.append(part)
                else:
                    self.add(part)  # which may name more

    def _in_modules(self) -> dict[str, object]:
        if self._modules and (unseen := self._names & (_BY_NAME | _READS_MORE)):
            raise NotKnown(f"what is read of {self._modules[0].__name__} by {sorted(unseen)}")
        return {
            f"{module.__name__}.{name}": getattr(module, name)
            for module in self._modules
            for name in self._names.intersection(dir(module))
        }

    def _class(self, kind: type) -> None:
        if type(kind) not in (type, ABCMeta):
            raise NotKnown(f"a class of a kind of its own: {kind.__qualname__}")
        for base in kind.__bases__:
            self._code(base)
        if is_dataclass(kind):
            for field in fields(kind):
                if field.default_factory is not MISSING:
                    self.add(field.default_factory)
        for name, part in _parts(kind):
            self._write("attribute", name)
            self.add(part)

    def _function(self, function: FunctionType) -> None:
        self._instructions(function.__code__)
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        for part in (function.__defaults__, function.__kwdefaults__, cells):
            self.add(part)
        builtin: dict[str, Any] = getattr(function, "__builtins__")  # noqa: B009, not known to type checkers
        for name in sorted(set(_names(function.__code__))):
            self._names.add(name)
            if name.startswith("__") and name.endswith("__") and name not in _DUNDERS:
                raise NotKnown(name)
            if name in function.__globals__:
                self._write("global", name)
                self.add(function.__globals__[name])
            elif name in builtin and builtin[name] is not _BUILTINS.get(name):
                raise NotKnown(name)

    def _instructions(self, code: CodeType) -> None:
        if not _NOT_SEEN_CODES.isdisjoint(code.co_code[::2]):
            raise NotKnown(f"{code.co_qualname} imports, or changes its module")
        self._write("code", code.co_code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._instructions(constant)
            elif constant is not Ellipsis:
                self.add(constant)
        self.add(list(code.co_names))


def _pure(module: str) -> bool:
    """Whether a module of this name is known to hold nothing that changes."""
    return module in _PURE or (_within(module, _PURE_PACKAGES) and not _within(module, _NOT_PURE))


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _home(function: FunctionType) -> str:
    """The module that a function was written in, whatever it says itself (`functools.wraps`)."""
    name = function.__globals__.get("__name__", "")
    module = sys.modules.get(name)
    return name if module is not None and vars(module) is function.__globals__ else ""


def _named(kind: type) -> bool:
    """Whether a class is found where it says that it is."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _ours(kind: type) -> bool:
    """Whether a class is fedtempo's, under the name that it says."""
    return kind.__module__.startswith(("fedtempo.clock.", "fedtempo.weighting.")) and _named(kind)


def _written(function: FunctionType, kind: type, name: str) -> bool:
    """Whether a function is what the class's own file has under that name."""
    code = function.__code__
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    named = code.co_qualname == f"{kind.__qualname__}.{name}"
    return named and code.co_filename == file and _home(function) == kind.__module__


def _parts(kind: type) -> Iterator[tuple[str, object]]:
    """What a class is made of, by name, apart from what `dataclass` writes."""
    for name, made in sorted(vars(kind).items()):
        if name not in _OF_CLASSES:
            for part in _functions(made):
                if not (name in _OF_DATACLASSES and "__dataclass_fields__" in vars(kind) and _generated(part)):
                    yield name, part


def _generated(part: object) -> bool:
    """Whether `dataclass` made this, of text or of a function of its own."""
    inner = getattr(part, "__wrapped__", part)
    return isinstance(inner, FunctionType) and (
        inner.__code__.co_filename == "<string>" or inner.__globals__.get("__name__") == "dataclasses"
    )


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
