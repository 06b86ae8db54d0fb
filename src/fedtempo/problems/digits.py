"""Logistic regression on scikit-learn's handwritten digits: 1 797 images of 8 × 8 pixels, embedded, 10 labels.

Pixels lie between 0 and 1. Which images are held out as test rows depends on `test` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.ticks import Exact
from fedtempo.models.regression import logistic
from fedtempo.problems.classification import classification_problem
from fedtempo.problems.partitions import Dirichlet, Partition, parse_partition
from fedtempo.problems.problem import Problem, Weighting

_FEW_LABELS = Dirichlet(0.1)


def digits(
    clients: int = 20,
    partition: Partition | str | Mapping[str, object] = _FEW_LABELS,
    *,
    seed: int = 0,
    test: Exact | None = 0.2,
    l2: float = 0.0,
    importance: Weighting = "uniform",
) -> Problem:
    """The digits dealt to `clients` by `partition`, drawn under `seed`; `test` is the share to hold out, or None."""
    rule = parse_partition(partition)
    x, y = _images()
    return classification_problem(
        x,
        y,
        clients=clients,
        partition=rule,
        classes=10,
        test=test,
        seed=seed,
        importance=importance,
        name="digits",
        model=logistic(x.shape[1], 10, l2=l2),
        arguments={
            "clients": clients,
            "partition": rule.spec(),
            "seed": seed,
            "test": test,
            "l2": l2,
        },
    )


@cache
def _images() -> tuple[NDArray[np.float32], NDArray[Any]]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int32)
