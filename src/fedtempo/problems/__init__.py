"""Federated problems: clients' rows, loss and importance; partitions; the problems that come with fedtempo.

Every public name is listed here and imported when it is first used: reading data sets loads no JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_HOME = {
    "IID": "partitions",
    "Classifier": "models",
    "Dirichlet": "partitions",
    "LabelShards": "partitions",
    "NaturalKey": "partitions",
    "OneLabel": "partitions",
    "Partition": "partitions",
    "Problem": "problem",
    "Quadratics": "quadratic",
    "cifar10": "images",
    "classification_problem": "classification",
    "digits": "classification",
    "from_parquet": "parquet_rows",
    "logistic": "models",
    "mnist": "images",
    "named": "naming",
    "parse_partition": "partitions",
    "quadratics": "quadratic",
    "shakespeare": "roles",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from fedtempo.problems.classification import classification_problem as classification_problem
    from fedtempo.problems.classification import digits as digits
    from fedtempo.problems.images import cifar10 as cifar10
    from fedtempo.problems.images import mnist as mnist
    from fedtempo.problems.models import Classifier as Classifier
    from fedtempo.problems.models import logistic as logistic
    from fedtempo.problems.naming import named as named
    from fedtempo.problems.parquet_rows import from_parquet as from_parquet
    from fedtempo.problems.partitions import IID as IID
    from fedtempo.problems.partitions import Dirichlet as Dirichlet
    from fedtempo.problems.partitions import LabelShards as LabelShards
    from fedtempo.problems.partitions import NaturalKey as NaturalKey
    from fedtempo.problems.partitions import OneLabel as OneLabel
    from fedtempo.problems.partitions import Partition as Partition
    from fedtempo.problems.partitions import parse_partition as parse_partition
    from fedtempo.problems.problem import Problem as Problem
    from fedtempo.problems.quadratic import Quadratics as Quadratics
    from fedtempo.problems.quadratic import quadratics as quadratics
    from fedtempo.problems.roles import shakespeare as shakespeare


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"fedtempo.problems.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fedtempo.problems' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
