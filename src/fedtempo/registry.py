"""Named things: one table of names for each kind, and ``package.module:attribute`` for what users write themselves.

    SERVERS = Registry("server", {"slowmo": SlowMo, …}, makes=(ServerOptimizer,))
    SERVERS.from_spec("slowmo:0.9")                            text: arguments in their order, or as key=value
    SERVERS.from_spec({"name": "slowmo", "momentum": 0.9})     a table: arguments by name
    SERVERS.from_spec("my_module:Signs")                       a class, an object, or a function that returns one
    own_spec(Signs())                                          {"name": "my_module:Signs"}

What is written down in a folder, or comes from a client, is somebody else's word: inside ``with only_named():`` nothing
is imported and no function is called, unless the user has named it in this process. Classes that are loaded already are
taken if they are of the kind that is looked for.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from fractions import Fraction
from importlib import import_module
from inspect import Parameter, Signature, signature
from types import ModuleType, NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from fedtempo.errors import FedtempoError, InputError, in_one_line, user_line

T = TypeVar("T")

Spec = dict[str, object]
"""A named thing as a JSON object: its name and its arguments."""
Given = str | Mapping[str, Any]
"""A named thing as users write it."""

_NAMED: set[tuple[str, str]] = set()
"""The places that the user has named in this process, each with the kind that it was named as."""
_only_named: ContextVar[bool] = ContextVar("only_named", default=False)
MADE = "_fedtempo_spec"
"""Under this name a thing that a function has made keeps how it was made."""
_NUMBER = re.compile(r"[-+]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})([eE][-+]?\d{1,3})?(/\d{1,300})?")


class NotImported(InputError):
    """What a name stands for cannot be had: it is not known, has no place, or somebody else alone has named it."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


@contextmanager
def only_named(active: bool = True) -> Iterator[None]:
    """Inside, only what the user has named in this process is imported or called."""
    before = _only_named.set(active)
    try:
        yield
    finally:
        _only_named.reset(before)


def nearest(name: str, known: Sequence[str]) -> str:
    """What to use instead of a name that is not known."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}? Known: {', '.join(known)}" if near else f"; use one of {', '.join(known)}"


class Registry(Generic[T]):
    """The names of one kind of things."""

    def __init__(
        self,
        kind: str,
        known: Mapping[str, Callable[..., T]],
        *,
        makes: tuple[type, ...],
        aliases: Mapping[str, str] | None = None,
        adapt: Callable[[object], object] = lambda found: found,
        finish: Callable[[Any], object] = lambda made: made,
        harmless: tuple[str, ...] = (),
    ) -> None:
        """`known`: by name, what makes a thing; its signature says which arguments it has.

        `makes`: of which classes things are. `adapt`: what stands for an imported attribute; `finish`: what stands for
        what that has made. `harmless`: modules whose functions may be named by anybody.
        """
        self.kind, self.known, self.makes = kind, dict(known), makes
        self._aliases, self._adapt, self._finish, self._harmless = dict(aliases or {}), adapt, finish, harmless

    @property
    def names(self) -> tuple[str, ...]:
        """What is known without a module."""
        return tuple(self.known)

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self._aliases

    def from_spec(self, given: object, where: str | None = None) -> T:
        """The thing that a text or a table names; `where` is said in front of what is wrong with it."""
        where = where or self.kind
        name, texts, table = self._read(given, where)
        if name in self:
            make = self.known[self._aliases.get(name, name)]
            made: object = self._called(make, name, texts, table)
        else:
            made = self._own(name, texts, table, where)
        made = self._finish(made)
        if not isinstance(made, self.makes):
            what = "None" if made is None else f"a {type(made).__name__}"
            raise InputError(f"{where}: {name} returned {what}; it must return {self._wanted}")
        return made  # type: ignore[return-value]

    def name_of(self, given: object, where: str | None = None) -> str:
        """The name in a text or table, known or ``package.module:attribute``; nothing is imported."""
        return self._read(given, where or self.kind)[0]

    def load(self, given: object, where: str | None = None) -> str:
        """Import what a text or table names, if it is one's own, without making it; the name."""
        name = self.name_of(given, where)
        if name not in self:
            self._found(name, where or self.kind)
        return name

    def takes(self, given: object, key: str, where: str | None = None) -> bool:
        """Whether what a text or table names can be given an argument of this name; one's own is imported."""
        takes = self._parameters(given, where)
        return key in takes or any(p.kind is Parameter.VAR_KEYWORD for p in takes.values())

    def default(self, given: object, key: str, where: str | None = None) -> object:
        """What an argument is unless given; None if there is no such argument, or nothing is said."""
        found = self._parameters(given, where).get(key)
        return None if found is None or found.default is Parameter.empty else found.default

    def _parameters(self, given: object, where: str | None) -> Mapping[str, Parameter]:
        """What can be given by name."""
        name = self.name_of(given, where)
        if name in self:
            return _signature(self.known[self._aliases.get(name, name)])
        found = self._found(name, where or self.kind)
        if isinstance(found, self.makes) or not callable(found):
            return {}
        make: Any = self._adapt(found)
        by_place = (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
        return {key: p for key, p in _signature(make).items() if p.kind not in by_place}

    @property
    def _wanted(self) -> str:
        return " or ".join(f"a fedtempo.{kind.__name__}" for kind in self.makes)

    # -- reading

    def _read(self, given: object, where: str) -> tuple[str, list[str], dict[str, Any]]:
        """The name, arguments by place, arguments by name."""
        table: dict[str, Any] = {}
        name = given
        if isinstance(given, Mapping):
            table = {str(key): value for key, value in given.items()}
            if "name" not in table:
                raise InputError(f"{where}: {dict(given)} has no name; give name = one of {self._choices}")
            name = table.pop("name")
            if "repr" in table:
                raise NotImported(
                    f"{where}: {name} was saved as {table['repr']}, because it cannot be imported (a class or "
                    "function inside another, a lambda, a script's own); give the object itself, or put it "
                    "into a module"
                )
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{where}: {name!r} is not known; use one of {self._choices}")
        first, *rest = name.split(":")
        if first in self:
            return first, rest, table
        if not rest or not (rest[0].isidentifier() or "." in first):
            raise NotImported(f"{where}: {first!r} is not known{nearest(first, self.names)}{_HOW}")
        return f"{first}:{rest[0]}", rest[1:], table

    @property
    def _choices(self) -> str:
        return f"{', '.join(self.names)}{_HOW}"

    def _own(self, place: str, texts: list[str], table: dict[str, Any], where: str) -> object:
        """What a user's module has at a place, made."""
        found = self._found(place, where)
        if isinstance(found, self.makes):
            if texts or table:
                raise InputError(f"{where}: {place} is already an object; leave {[*texts, *table]} out")
            return found
        if not callable(found):
            raise InputError(f"{where}: {place} is a {type(found).__name__}; it must be {self._wanted}, or make one")
        make: Any = self._adapt(found)
        with nullcontext() if _only_named.get() else _current_directory():
            made: object = self._called(make, place, texts, table)
        if not isinstance(found, type) and make is found:
            arguments = self._arguments(make, place, texts, table)
            with suppress(AttributeError, TypeError, ValueError):  # then it is known by what it is
                object.__setattr__(made, MADE, {"name": place, **{k: plain(v) for k, v in arguments.items()}})
        return made

    def _found(self, place: str, where: str) -> object:
        if _may_import(self.kind, place):
            return _named(self.kind, place, where, self.makes)
        home, _, attribute = place.partition(":")
        module = sys.modules.get(home)
        found = None if module is None else vars(module).get(attribute)
        if home in self._harmless and callable(found):
            return found
        if isinstance(found, type) and issubclass(found, self.makes):
            return found
        raise _not_imported(place, where)

    # -- calling

    def _called(self, make: Callable[..., object], name: str, texts: list[str], table: dict[str, Any]) -> object:
        arguments = self._arguments(make, name, texts, table)
        try:
            return make(**arguments)
        except FedtempoError as error:
            where = None if name in self or type(error) is not InputError else user_line(error)
            if where is None:
                raise
            raise InputError(f"{self.kind} {name}: {error} ({where})") from error
        except Exception as error:
            given = f" with {', '.join(f'{key}={value!r}' for key, value in arguments.items())}" if arguments else ""
            where = None if name in self else user_line(error)
            cure = "; check what it is given" if where is None else f" ({where})"
            raise InputError(f"{self.kind} {name}: it fails{given}: {in_one_line(error)}{cure}") from error

    def _arguments(
        self, make: Callable[..., object], name: str, texts: list[str], table: dict[str, Any]
    ) -> dict[str, Any]:
        """What to call it with, by name, as its types want it."""
        takes, hints = _signature(make), _hints(make)
        keys = [k for k, p in takes.items() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
        who = f"{self.kind} {name}"
        found: dict[str, Any] = {}
        free = iter(keys)
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals:
                key, value = next(free, ""), text
            if not key:
                raise InputError(f"{self.kind}: {name}:{':'.join(texts)} has {len(texts)} numbers; {_takes(keys)}")
            found[key] = _from_text(who, value, hints.get(key, Any))
        found |= {key: _from_plain(who, value, hints.get(key, Any)) for key, value in table.items()}
        if not any(p.kind is Parameter.VAR_KEYWORD for p in takes.values()):
            for key in found:
                if key not in keys:
                    instead = nearest(key, keys) if keys else "; it takes no arguments"
                    raise InputError(f"{who}: the key {key!r} does not exist{instead}")
        for key in keys:
            if takes[key].default is Parameter.empty and key not in found:
                raise InputError(
                    f"{who}: it needs {key}; write {name}:{key}=…, or {key} = … in its table; {_takes(keys)}"
                )
        return found


_HOW = ', or "package.module:attribute" for one of your own'


def _takes(keys: Sequence[str]) -> str:
    return f"it takes {', '.join(keys)}" if keys else "it takes none"


def _signature(make: Callable[..., object]) -> Mapping[str, Parameter]:
    try:
        return signature(make).parameters
    except (TypeError, ValueError):
        return Signature([Parameter("options", Parameter.VAR_KEYWORD)]).parameters


def _hints(make: Any) -> dict[str, Any]:
    """The types of its arguments; none where they cannot be told."""
    try:
        plain_class = isinstance(make, type) and not is_dataclass(make)
        return get_type_hints(make.__init__ if plain_class else make)
    except Exception:  # a name that is there for type checkers alone
        return {}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for one in get_args(hint) for kind in _kinds(one))
    return (hint,)


def _from_text(who: str, text: str, hint: Any) -> Any:
    """An argument in a text, as 0.1, 1/2, true or a word, as its type wants it."""
    kinds = _kinds(hint)
    if text in ("true", "false") and (bool in kinds or Any in kinds):
        return text == "true"
    numbers = {int, float, Fraction} & set(kinds)
    if _NUMBER.fullmatch(text) and (numbers or Any in kinds):
        try:
            value = Fraction(text)
        except ZeroDivisionError:
            raise InputError(f"{who}: {text!r} is not a number; check it") from None
        if value.denominator == 1 and text.lstrip("+-").isdecimal():
            return Fraction(text) if numbers == {Fraction} else int(value)
        return value if Fraction in numbers else float(value)
    if numbers and str not in kinds and not any(get_origin(kind) is not None for kind in kinds):
        raise InputError(f"{who}: {text!r} is not a number; write it as 3, 0.25 or 1/3")
    return text


def _from_plain(who: str, value: Any, hint: Any) -> Any:
    """An argument in a table: rationals are text there, and tuples are lists."""
    kinds = _kinds(hint)
    if Fraction in kinds and not {str, float} & set(kinds) and not isinstance(value, bool):
        if isinstance(value, (int, float)):
            return Fraction(str(value))
        return _from_text(who, value, Fraction) if isinstance(value, str) else value
    if isinstance(value, list):
        for kind in kinds:
            if get_origin(kind) is tuple:
                inner = get_args(kind)
                each = [inner[0]] * len(value) if inner[-1:] == (Ellipsis,) else [*inner, *([Any] * len(value))]
                return tuple(_from_plain(who, one, of) for one, of in zip(value, each, strict=False))
            if kind is tuple:
                return tuple(value)
    return value


# -- importing


def named_function(place: str, where: str) -> object:
    """What is at a place that the user names: anything."""
    if not _may_import("function", place):
        raise _not_imported(place, where)
    return _named("function", place, where)


def _may_import(kind: str, place: str) -> bool:
    return (kind, place) in _NAMED or not _only_named.get()


def _named(kind: str, place: str, where: str, makes: tuple[type, ...] = ()) -> object:
    found = imported(place, where, makes)
    _NAMED.add((kind, place))
    return found


def _not_imported(place: str, where: str) -> NotImported:
    return NotImported(
        f"{where}: {place} is named there, but nothing is imported only because a folder or a message names it; if "
        "you trust it, name it yourself",
        place,
    )


def imported(place: str, where: str, makes: tuple[type, ...] = ()) -> object:
    """The attribute at ``package.module:attribute``, from the current directory or among installed packages."""
    home, _, attribute = place.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in home.split(".")):
        raise InputError(f'{where}: {place!r} is not an import path; write it as "package.module:attribute"')
    with nullcontext() if home.split(".")[0] == "fedtempo" else _current_directory():
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            if error.name is not None and (home == error.name or home.startswith(f"{error.name}.")):
                raise InputError(
                    f"{where}: there is no module {error.name!r}, in {os.getcwd()} or installed; "
                    "run from the folder that holds it, or install it"
                ) from error
            raise InputError(f"{where}: importing {home} fails: {error}{_at(error)}; install it") from error
        except Exception as error:
            said = in_one_line(error)
            raise InputError(f"{where}: importing {home} fails: {said}{_at(error)}") from error
        if not hasattr(module, attribute):
            there = _public(module, makes)
            others = [name for name, value in vars(module).items() if name[0] != "_" and callable(value)]
            near = difflib.get_close_matches(attribute, there or others, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                f"{where}: {place} is not in it; {hint}{home} has {', '.join(there[:20]) or 'other things'}"
            )
        return getattr(module, attribute)


def _at(error: Exception) -> str:
    where = user_line(error)
    return "" if where is None or f"({where[where.index('of ') + 3 :]}, " in str(error) else f" ({where})"


def _public(module: ModuleType, makes: tuple[type, ...]) -> list[str]:
    """What of a module could be meant: its own functions and classes, and objects of the kind."""
    there = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [
        name
        for name, value in there.items()
        if isinstance(value, makes) or (callable(value) and getattr(value, "__module__", None) == module.__name__)
    ]


@contextmanager
def _current_directory() -> Iterator[None]:
    """The current directory first on the path, as under ``python -m``."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


# -- writing


def own_spec(thing: object, *, reserved: Sequence[str] = ()) -> Spec:
    """A user's thing as JSON: its place and its arguments, of which `from_spec` makes it again.

    What has no place, or arguments that are not plain or are called as something in `reserved`, is written by its repr.
    """
    made: Spec | None = getattr(thing, MADE, None)
    if made is not None:
        return dict(made)
    place = place_of(type(thing))
    try:
        arguments = {key: plain(value) for key, value in arguments_of(thing).items()}
    except (AttributeError, ValueError):
        place = None
    if place is None or {"name", "repr", *reserved} & arguments.keys():
        shown = repr(thing)
        kind = type(thing)
        return {"name": kind.__name__, "repr": kind.__qualname__ if " at 0x" in shown else shown}
    return {"name": place, **arguments}


def was_made(thing: object) -> bool:
    """Whether a function that the user named has made it."""
    return hasattr(thing, MADE)


def own_label(thing: object) -> str:
    """A user's thing in a few words: its class, and its arguments that are not the usual ones."""
    name = type(thing).__name__
    try:
        arguments = arguments_of(thing)
    except AttributeError:
        return name
    takes = _signature(type(thing))
    shown, skipped = [], False
    for key, value in arguments.items():
        if key in takes and _same(takes[key].default, value):
            skipped = True
            continue
        text = f"{value:g}" if isinstance(value, float) else str(value)
        shown.append(f"{key}={text}" if skipped else text)
    return f"{name}({', '.join(shown)})" if shown else name


def _same(one: object, other: object) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except (TypeError, ValueError):  # arrays
        return False


def place_of(thing: Any) -> str | None:
    """``package.module:attribute`` of a class or function; None if it cannot be imported from anywhere."""
    name, home = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", None) or ""
    parts = home.split(".")
    for count in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:count]))
        hidden = any(part.startswith("_") for part in parts[:count]) and home != "__main__"
        if module is not None and not hidden and vars(module).get(name) is thing:
            return f"{'.'.join(parts[:count])}:{name}"
    return None


def arguments_of(thing: object) -> dict[str, Any]:
    """What a thing was made with: the fields of a dataclass, else attributes called as its arguments."""
    if is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    own = type(thing).__init__
    if own is object.__init__:
        return {}
    takes = [(k, p) for k, p in _signature(own).items() if k != "self"]
    if any(p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for _, p in takes):
        raise AttributeError(f"{type(thing).__name__} takes any arguments")
    return {key: getattr(thing, key) for key, _ in takes}


def plain(value: Any) -> Any:
    """The value as JSON has it; a ValueError if it has none."""
    if value is None or isinstance(value, (bool, int, float, str, NoneType)):
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(one) for key, one in value.items()}
    item = getattr(value, "item", None)  # NumPy's numbers
    if callable(item) and getattr(value, "shape", None) == ():
        return plain(item())
    raise ValueError(f"{value!r} is not plain")
