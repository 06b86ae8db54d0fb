"""Problems by name, as study files have them: {"name": "digits", "clients": 20, "partition": "dirichlet:0.1"}.

A name "package.module:function" is a function of one's own that returns a Problem, found in the current directory or
among installed packages, and is called with the other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtempo.problems.classification import digits
from fedtempo.problems.images import cifar10, mnist
from fedtempo.problems.problem import Problem
from fedtempo.problems.quadratic import quadratics
from fedtempo.problems.roles import shakespeare
from fedtempo.registry import Registry

PROBLEMS: Registry[Problem] = Registry(
    "problem",
    {"digits": digits, "mnist": mnist, "cifar10": cifar10, "shakespeare": shakespeare, "quadratics": quadratics},
    makes=(Problem,),
)
"""Problems by name."""


def named(spec: Mapping[str, Any]) -> Problem:
    """The problem that a study file describes."""
    return PROBLEMS.from_spec(spec)
