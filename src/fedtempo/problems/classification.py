"""A classifier on labelled rows that a partition deals to clients: logistic regression unless another is given.

`digits` is that on scikit-learn's handwritten digits: 1 797 images of 8 × 8 pixels between 0 and 1, embedded,
10 labels. Which images are held out as test rows depends on `test` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import Exact, exact, positive_int
from fedtempo.errors import InputError
from fedtempo.problems.models.classifiers import logistic
from fedtempo.problems.partitions import IID, Dirichlet, Partition, parse_partition
from fedtempo.problems.problem import Problem, Weighting
from fedtempo.problems.rows import Ints


def classification_problem(
    x: ArrayLike,
    y: ArrayLike,
    *,
    clients: int | None,
    partition: Partition | str | Mapping[str, object] | None = None,
    classes: int | None = None,
    test: Exact | tuple[ArrayLike, ArrayLike] | list[ArrayLike] | None = None,
    split_test: bool = False,
    seed: int = 0,
    importance: Weighting = "uniform",
    name: str = "classification",
    description: str | None = None,
    model: Sequence[Any] | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Problem:
    """Rows x with labels y (whole numbers from 0), dealt to `clients` by `partition` (IID unless given).

    `test` is a pair (x, y), or the share of rows to hold out (0: none): which ones does not depend on `seed`, which is
    the partition's alone. With `split_test` the test rows are dealt by the same partition, in the same proportions, and
    each client is tested on its own. `model` is (init, loss, accuracy) on batches (x, y); logistic regression unless
    given.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 2))
        >>> y = (x[:, 0] > x[:, 1]).astype(int)
        >>> problem = ft.problems.classification_problem(x, y, clients=5, partition=ft.Dirichlet(0.5), test=0.2)
        >>> print(problem)
        Problem(classification: 5 clients, 240 rows, 6 parameters)
    """
    rows, labels = np.asarray(x), _labels(y, "y")
    if rows.ndim == 0 or len(rows) != len(labels):
        raise InputError(f"x has shape {rows.shape}, y has {len(labels)} labels; give one row of x per label")
    held: tuple[Any, Any] | None = None
    train = np.arange(len(labels))
    if isinstance(test, (tuple, list)):
        if len(test) != 2:
            raise InputError(f"test: {len(test)} values; give a pair (x, y), or the share of rows to hold out, as 0.2")
        held = (np.asarray(test[0]), _labels(test[1], "test y"))
    elif test is not None and exact(test, "test") != 0:
        train, out = held_out(len(labels), test)
        held = (rows[out], labels[out])
    number = int(labels.max()) + 1 if classes is None else positive_int(classes, "classes")
    for what, found in (("y", labels), ("test y", held[1] if held else labels[:0])):
        _check_range(found, number, what)
    if model is None:
        if rows.ndim != 2:
            raise InputError(
                f"x has shape {rows.shape}; logistic regression needs (rows, features): flatten it with "
                "x.reshape(len(x), -1), or pass a model"
            )
        model = logistic(rows.shape[1], number)
    if len(model) != 3:
        raise InputError(f"model: {len(model)} values; give (init, loss, accuracy)")
    init, loss, accuracy = model
    rule = parse_partition(partition) if partition is not None else IID()
    parts = [train[part] for part in rule.only(train).split(labels[train], clients, seed=seed, classes=number)]
    test_parts = None
    if split_test:
        if held is None:
            raise InputError("split_test: there are no test rows to split; give test")
        try:
            test_parts = rule.split(held[1], clients, seed=seed, classes=number)
        except InputError as error:
            raise InputError(f"test rows: {error}") from None
    return Problem.from_rows(
        init,
        loss,
        (rows, labels),
        parts,
        test=held,
        test_parts=test_parts,
        importance=importance,
        metrics={"accuracy": accuracy},
        name=name,
        description=description,
        arguments=arguments,
    )


def held_out(rows: int, share: Exact) -> tuple[Ints, Ints]:
    """The rows to train on and those held out, ⌈share · rows⌉ of them: the same ones for every seed."""
    part = exact(share, "test")
    out = math.ceil(part * rows)
    if not 0 < part < 1 or out >= rows:
        raise InputError(
            f"test: {share} of {rows} rows leaves no rows for training or for the test; give a share "
            "such as 0.2, or None"
        )
    order = np.argsort(uniforms(stream_key("test split", 0), np.arange(rows), 0), kind="stable")
    return np.sort(order[out:]), np.sort(order[:out])


def _labels(y: ArrayLike, what: str) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"{what}: an array {labels.dtype}{list(labels.shape)} was given; labels are whole numbers, one per row"
        )
    return labels


def _check_range(labels: NDArray[Any], classes: int, what: str) -> None:
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{what}: labels out of range: row {row} has label {labels[row]}, but {classes} classes are labelled "
            f"0 to {classes - 1}; renumber the labels, or give classes="
        )


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
    """The digits dealt to `clients` by `partition`, drawn under `seed`; `test` is the share to hold out, or None.

    They are scikit-learn's 1797 images of 8 × 8; the model is logistic regression with an L2 penalty of `l2`.

    Example:
        >>> problem = ft.problems.digits(clients=20, partition=ft.Dirichlet(0.1))
        >>> problem.num_clients, problem.num_rows, problem.num_parameters
        (20, 1437, 650)
        >>> x, y = problem.client_data(0)
        >>> x.shape, np.unique(y)
        ((72, 64), array([3, 4, 9], dtype=int32))
    """
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
