"""Federated problems: clients' rows, loss and importance; partitions; the problems that come with fedtempo."""

from fedtempo.problems.classification import classification_problem, digits
from fedtempo.problems.images import cifar10, mnist
from fedtempo.problems.models import Classifier, logistic
from fedtempo.problems.naming import named
from fedtempo.problems.partitions import (
    IID,
    Dirichlet,
    LabelShards,
    NaturalKey,
    OneLabel,
    Partition,
    parse_partition,
)
from fedtempo.problems.problem import Problem
from fedtempo.problems.quadratics import Quadratics, quadratics
from fedtempo.problems.roles import shakespeare

__all__ = [
    "IID",
    "Classifier",
    "Dirichlet",
    "LabelShards",
    "NaturalKey",
    "OneLabel",
    "Partition",
    "Problem",
    "Quadratics",
    "cifar10",
    "classification_problem",
    "digits",
    "logistic",
    "mnist",
    "named",
    "parse_partition",
    "quadratics",
    "shakespeare",
]
