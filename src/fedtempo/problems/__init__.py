"""Federated problems: clients' rows, loss and importance; partitions; the problems that come with fedtempo."""

from fedtempo.problems.classification import Classifier, classification_problem, logistic
from fedtempo.problems.digits import digits
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
    "classification_problem",
    "digits",
    "logistic",
    "named",
    "parse_partition",
    "quadratics",
]
