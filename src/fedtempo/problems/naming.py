"""Problems by name, as flags and study files have them: {"name": "digits", "clients": 20, "partition": "iid"}.

A name "package.module:function" is a function of one's own that returns a Problem, or a Problem itself, found in the
current directory or among installed packages. What it is called with is the same wherever it is named:

    clients        where it takes that: as many as are asked for, or as there are client times
    other keys     as they are given; one that the function does not take is refused

The problem must have as many clients as there are client times. docs/problems.md is the guide.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from fedtempo.errors import InputError
from fedtempo.problems.classification import digits
from fedtempo.problems.images import cifar10, mnist
from fedtempo.problems.problem import Problem
from fedtempo.problems.quadratic import quadratics
from fedtempo.problems.roles import shakespeare
from fedtempo.registry import Registry, Spec, own_spec, was_made

PROBLEMS: Registry[Problem] = Registry(
    "problem",
    {"digits": digits, "mnist": mnist, "cifar10": cifar10, "shakespeare": shakespeare, "quadratics": quadratics},
    makes=(Problem,),
)
"""Problems by name."""

EACH = "each"
"""The seed of a problem in a study file that every seed of the study deals anew (redealt.py)."""


def named(spec: Mapping[str, Any], clients: int | None = None) -> Problem:
    """The problem that a table describes; `clients`: how many client times there are, if that is known.

    `spec` is as in a study file: a `name`, and the arguments of the function of that name.

    Example:
        >>> ft.problems.named({"name": "digits", "partition": "dirichlet:0.1", "l2": 0.01}, clients=20)
        Problem(digits: 20 clients, 1437 rows, 650 parameters)
    """
    given: object = spec
    if not isinstance(given, Mapping):
        raise InputError(
            f"problem: {spec!r} is not a table; give one with a name, as {{'name': 'digits', 'clients': 20}}"
        )
    table = dict(spec)
    if table.get("seed") == EACH:
        raise InputError(
            f'problem: seed = "{EACH}" is for studies (fedtempo run), each seed of which deals the data; give a whole '
            "number here"
        )
    asked = table.pop("clients", None)
    count = clients if asked is None else asked
    takes = count is not None and PROBLEMS.takes(spec, "clients")
    made = PROBLEMS.from_spec({**table, "clients": count} if takes else table)
    there, name = made.num_clients, PROBLEMS.name_of(spec)
    own = f"let {name} {'make as many clients as it is asked for' if takes else 'take clients as an argument'}"
    if isinstance(asked, int) and there != asked:
        raise InputError(
            f"problem {name} has {there} clients, but {asked} were asked for; leave the number out, or {own}"
        )
    if clients is not None and there != clients:
        cure = own if asked is None else f"ask for {clients} clients (clients = {clients} in a file, or --set)"
        raise InputError(
            f"problem {name} has {there} clients, but there are times of {clients}; give {there} times, or {cure}"
        )
    return made


def spec_again(problem: Problem) -> Spec | None:
    """The table that makes a problem again; None if there is none, as of one made of arrays."""
    if was_made(problem):
        return own_spec(problem)
    spec = problem.spec()
    if problem.name in PROBLEMS and "arguments" in spec:
        return {"name": problem.name, **dict(spec["arguments"])}  # type: ignore[call-overload]
    return None


def made_again(spec: Spec, pooled: bool, fingerprint: str) -> Problem:
    """The problem that another process has, by its table; it must have the same rows here."""
    made = PROBLEMS.from_spec(spec)
    made = made.pooled() if pooled else made
    if made.fingerprint() != fingerprint:
        raise InputError(
            f"problem {spec['name']} has other rows here, on {platform.node()}, than where the study was begun; use "
            "the same data and the same code, or make it of arrays, which are sent"
        )
    return made


def num_clients(spec: Mapping[str, Any]) -> int:
    """How many clients the problem of a table has, where the times do not say; one's own may have to be made."""
    asked = spec.get("clients")
    if asked is None:
        asked = PROBLEMS.default(spec, "clients")
    return asked if isinstance(asked, int) else named(spec).num_clients
