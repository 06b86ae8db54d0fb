"""Problems by name, as study files have them: {"name": "digits", "clients": 20, "partition": "dirichlet:0.1"}.

A name "package.module:function" is a function of one's own that returns a Problem, found in the current directory or
among installed packages, and is called with the other keys.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from fedtempo.errors import InputError
from fedtempo.problems.classification import digits
from fedtempo.problems.images import cifar10, mnist
from fedtempo.problems.problem import Problem
from fedtempo.problems.quadratic import quadratics
from fedtempo.problems.roles import shakespeare

_KNOWN: dict[str, Callable[..., Problem]] = {
    "digits": digits,
    "mnist": mnist,
    "cifar10": cifar10,
    "shakespeare": shakespeare,
    "quadratics": quadratics,
}


def named(spec: Mapping[str, Any]) -> Problem:
    """The problem that a study file describes."""
    arguments = {str(key): value for key, value in spec.items()}
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise InputError(f"problem: {dict(spec)} has no name; give name = one of {_choices()}")
    if ":" in name:
        with _current_directory():
            made = _called(_imported(name), name, arguments)
        if not isinstance(made, Problem):
            raise InputError(f"problem: {name} returned a {type(made).__name__}; it must return a fedtempo.Problem")
        return made
    if name not in _KNOWN:
        raise InputError(f"problem: {name!r} is not known; known are {_choices()}")
    made = _called(_KNOWN[name], name, arguments)
    assert isinstance(made, Problem)
    return made


def _choices() -> str:
    return f'{", ".join(_KNOWN)}, or "package.module:function" for one of your own'


def _called(make: Callable[..., object], name: str, arguments: Mapping[str, Any]) -> object:
    try:
        takes = signature(make).parameters
    except (TypeError, ValueError):
        return make(**arguments)
    keys = [key for key, p in takes.items() if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    said = f"it takes {', '.join(keys)}" if keys else "it takes none"
    if not any(p.kind is Parameter.VAR_KEYWORD for p in takes.values()):
        unknown = sorted(set(arguments) - set(keys))
        if unknown:
            raise InputError(f"problem: {name} has no key {', '.join(unknown)}; {said}")
    missing = [key for key in keys if takes[key].default is Parameter.empty and key not in arguments]
    if missing:
        raise InputError(f"problem: {name} needs {', '.join(missing)}; {said}")
    return make(**arguments)


def _imported(name: str) -> Callable[..., object]:
    home, _, function = name.partition(":")
    if not home or not function.isidentifier() or not all(part.isidentifier() for part in home.split(".")):
        raise InputError(f'problem: {name!r} is no place of a function; write it as "package.module:function"')
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name is not None and (home == error.name or home.startswith(f"{error.name}.")):
            raise InputError(
                f"problem: there is no module {error.name!r}, in {os.getcwd()} or installed; "
                "run from the folder that holds it, or install it"
            ) from error
        raise InputError(f"problem: importing {home} fails: {error}") from error
    except Exception as error:
        raise InputError(f"problem: importing {home} fails: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        what = "is not a function" if hasattr(module, function) else "is not in it"
        raise InputError(f"problem: {home}:{function} {what}; {home} has {', '.join(public) or 'no functions'}")
    made: Callable[..., object] = found
    return made


@contextmanager
def _current_directory() -> Iterator[None]:
    """The current directory first on the path, as under ``python -m``."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
