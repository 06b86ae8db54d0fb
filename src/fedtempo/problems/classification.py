"""Multinomial logistic regression, and any classifier, on labelled rows that a partition deals to clients.

    ℓ(θ; x, y) = log Σ_c exp(z_c) − z_y + λ/2 (‖W‖² + ‖b‖²),    z = Wx + b

W is `weights`, b is `bias`, λ is `l2`: the loss is λ-strongly convex.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import Exact, exact
from fedtempo.errors import InputError
from fedtempo.problems.functions import Init, Loss
from fedtempo.problems.partitions import IID, Partition, parse_partition
from fedtempo.problems.problem import Problem, Weighting
from fedtempo.problems.rows import Ints, Tree
from fedtempo.schemes import whole


class Classifier(NamedTuple):
    """A model of (x, y) batches: y holds labels 0 to C − 1."""

    init: Init
    loss: Loss
    accuracy: Loss


def logistic(features: int, classes: int, *, l2: float = 0.0) -> Classifier:
    """Logistic regression from `features` numbers to `classes` labels; parameters start at zero."""
    features, classes = whole(features, "features"), whole(classes, "classes")
    penalty = float(exact(l2, "l2"))
    if penalty < 0:
        raise InputError(f"l2: {l2} is below zero; give zero or a positive number")

    def init(key: jax.Array) -> Tree:
        return {"weights": jnp.zeros((classes, features)), "bias": jnp.zeros(classes)}

    def logits(params: Tree, x: jax.Array) -> jax.Array:
        """[classes, rows]: with labels first, sums over labels are sums of whole vectors."""
        z: jax.Array = params["weights"] @ x.T + params["bias"][:, None]
        return z

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x, y = batch
        z = logits(params, x)
        z = z - jax.lax.stop_gradient(z.max(axis=0))
        own = jnp.where(y == jnp.arange(classes)[:, None], z, 0).sum(axis=0)  # a gather would scatter in its gradient
        fit = jnp.mean(jnp.log(jnp.exp(z).sum(axis=0)) - own)
        if not penalty:
            return fit
        return fit + penalty / 2 * (jnp.sum(params["weights"] ** 2) + jnp.sum(params["bias"] ** 2))

    def accuracy(params: Tree, batch: Tree) -> jax.Array:
        x, y = batch
        z = logits(params, x)
        return jnp.mean(jnp.argmax(z, axis=0) == y, dtype=z.dtype)

    return Classifier(init, loss, accuracy)


def classification_problem(
    x: ArrayLike,
    y: ArrayLike,
    *,
    clients: int | None,
    partition: Partition | str | Mapping[str, object] | None = None,
    classes: int | None = None,
    test: Exact | tuple[ArrayLike, ArrayLike] | list[ArrayLike] | None = None,
    seed: int = 0,
    importance: Weighting = "uniform",
    name: str = "classification",
    description: str | None = None,
    model: Sequence[Any] | None = None,
    arguments: Mapping[str, object] | None = None,
) -> Problem:
    """Rows x with labels y (whole numbers from 0), dealt to `clients` by `partition` (IID unless given).

    `test` is a pair (x, y), or the share of rows to hold out (0: none): which ones does not depend on `seed`, which is
    the partition's alone. `model` is (init, loss, accuracy) on batches (x, y); logistic regression unless given.
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
    number = int(labels.max()) + 1 if classes is None else whole(classes, "classes")
    for what, found in (("y", labels), ("test y", held[1] if held else labels[:0])):
        _check_range(found, number, what)
    if model is None:
        if rows.ndim != 2:
            raise InputError(
                f"x has shape {rows.shape}; logistic regression wants (rows, features): flatten it by "
                "x.reshape(len(x), -1), or pass a model"
            )
        model = logistic(rows.shape[1], number)
    if len(model) != 3:
        raise InputError(f"model: {len(model)} values; give (init, loss, accuracy)")
    init, loss, accuracy = model
    rule = parse_partition(partition) if partition is not None else IID()
    parts = [train[part] for part in rule.only(train).split(labels[train], clients, seed=seed)]
    return Problem.from_rows(
        init,
        loss,
        (rows, labels),
        parts,
        test=held,
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
        raise InputError(f"test: {share} of {rows} rows leaves no rows on one side; give a share such as 0.2, or None")
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
