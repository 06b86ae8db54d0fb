"""MNIST and CIFAR-10 dealt to clients, with the models of the paper's section 5.

Images stay bytes, in memory and on the device, and become numbers where a batch is used. `pixels` says which:

    unit            from 0 to 1
    standardised    these less the mean of the training pixels, of each colour for itself, over their deviation
    authors         as the scripts of the paper's authors: MNIST's standardised; CIFAR-10's over smaller deviations

MNIST is taken as `unit`, CIFAR-10 as `standardised`, unless said. Clients' test images are dealt as their training
images are, by the same draw of labels. Files are found as `fedtempo.problems.data` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtempo.clock.ticks import positive_int
from fedtempo.errors import InputError
from fedtempo.problems.classification import classification_problem
from fedtempo.problems.data import Images, load_cifar10, load_mnist
from fedtempo.problems.models import CNNS, Classifier, cnn, logistic
from fedtempo.problems.models.precision import check_compute
from fedtempo.problems.partitions import IID, Dirichlet, Ints, Partition, parse_partition, shuffled
from fedtempo.problems.problem import Problem, Weighting

COLOUR_MEAN = (0.4914, 0.4822, 0.4465)
COLOUR_DEVIATION = (0.2470, 0.2435, 0.2616)
"""Of CIFAR-10's training images."""
Spread = tuple[tuple[float, ...], tuple[float, ...]]
_UNIT: Spread = ((0.0,), (1.0,))
_MNIST: dict[str, Spread] = {
    "unit": _UNIT,
    "standardised": ((0.1307,), (0.3081,)),
    "authors": ((0.1307,), (0.3081,)),
}
_CIFAR10: dict[str, Spread] = {
    "standardised": (COLOUR_MEAN, COLOUR_DEVIATION),
    "unit": _UNIT,
    "authors": (COLOUR_MEAN, (0.2023, 0.1994, 0.2010)),
}
"""Means and deviations by the names of `pixels`, the usual one first."""

_EVEN = IID()
_FEW_LABELS = Dirichlet(0.1)


def mnist(
    clients: int = 10,
    partition: Partition | str | Mapping[str, object] = _EVEN,
    *,
    model: str = "logistic",
    pixels: str = "unit",
    seed: int = 0,
    rows: int | None = None,
    compute: str = "float32",
    importance: Weighting = "uniform",
    data_dir: str | Path | None = None,
) -> Problem:
    """MNIST's 60 000 images; `model` is "logistic" or the name of a network, as "fedavg-mnist".

    `pixels` is "unit" (from 0 to 1), "standardised" or "authors" (both: less 0.1307, over 0.3081).

    `rows` takes that many training images alone, drawn evenly, and a sixth as many test images. MNIST-shard is
    ``partition=Dirichlet(0.1)``. `data_dir` is where the files are, unless they are in the cache.

    Where the files are not there, a DataMissing says which command downloads them.

    Example:
        >>> problem = ft.problems.mnist(clients=10, partition=ft.Dirichlet(0.1), data_dir="data")  # where data/mnist is
        >>> problem.num_clients, problem.num_parameters
        (10, 7850)
        >>> ft.problems.mnist(clients=10, model="fedavg-mnist", data_dir="data").num_parameters
        1663370
    """
    check_compute(compute)
    if model not in ("logistic", *CNNS):
        raise InputError(f"model: {model!r} is not known; use one of logistic, {', '.join(CNNS)}")
    if model == "logistic" and compute != "float32":
        raise InputError(f"compute: {compute!r} is for networks; logistic regression is computed in the study's dtype")
    mean, deviation = _spread(pixels, _MNIST)
    more = {} if pixels == next(iter(_MNIST)) else {"pixels": pixels}
    images = load_mnist(data_dir)
    if model == "logistic":
        side = images.train_x.shape[1] * images.train_x.shape[2]
        flat = Images(images.train_x.reshape(-1, side), images.train_y, images.test_x.reshape(-1, side), images.test_y)
        made = logistic(side, 10, features_first=True, mean=mean[0], deviation=deviation[0])
        return _dealt("mnist", flat, made, clients, partition, model, more, seed, rows, compute, importance)
    deep = images._replace(train_x=images.train_x[..., None], test_x=images.test_x[..., None])
    network = cnn(model, deep.train_x.shape[1:], 10, mean=mean, deviation=deviation, compute=compute)
    return _dealt("mnist", deep, network, clients, partition, model, more, seed, rows, compute, importance)


def cifar10(
    clients: int = 10,
    partition: Partition | str | Mapping[str, object] = _FEW_LABELS,
    *,
    model: str = "authors",
    pixels: str = "standardised",
    seed: int = 0,
    rows: int | None = None,
    compute: str = "float32",
    importance: Weighting = "uniform",
    data_dir: str | Path | None = None,
) -> Problem:
    """CIFAR-10's 50 000 images; `model` is a network's name: "authors", "scripts", "fedavg-cifar", "fedavg-mnist".

    `pixels` is "standardised" (each colour), "unit" (from 0 to 1) or "authors" (over 0.2023, 0.1994, 0.2010).

    `rows` takes that many training images alone, drawn evenly, and a fifth as many test images. `compute="bfloat16"`
    computes the network in shorter numbers: faster on an accelerator. `data_dir` is where the files are, unless they
    are in the cache.

    Where the files are not there, a DataMissing says which command downloads them.

    Example:
        >>> problem = ft.problems.cifar10(clients=10, partition="shards:2", data_dir="data")  # where data/cifar10 is
        >>> problem.num_clients, problem.num_parameters
        (10, 122570)
    """
    mean, deviation = _spread(pixels, _CIFAR10)
    more = {} if pixels == next(iter(_CIFAR10)) else {"pixels": pixels}
    images = load_cifar10(data_dir)
    shape = images.train_x.shape[1:]
    made = cnn(model, shape, 10, mean=mean, deviation=deviation, compute=compute)
    return _dealt("cifar10", images, made, clients, partition, model, more, seed, rows, compute, importance)


def _spread(pixels: str, known: Mapping[str, Spread]) -> Spread:
    """The mean and deviation of that name."""
    if pixels not in known:
        raise InputError(f"pixels: {pixels!r} is not known; use one of {', '.join(known)}")
    return known[pixels]


def _dealt(
    name: str,
    images: Images,
    classifier: Classifier,
    clients: int,
    partition: Partition | str | Mapping[str, object],
    model: str,
    more: Mapping[str, str],
    seed: int,
    rows: int | None,
    compute: str,
    importance: Weighting,
) -> Problem:
    rule = parse_partition(partition)
    if rows is not None:
        train, test = _some(rows, len(images.train_y), len(images.test_y))
        images = Images(images.train_x[train], images.train_y[train], images.test_x[test], images.test_y[test])
    arguments: dict[str, Any] = {"clients": clients, "partition": rule.spec(), "model": model, "seed": seed, **more}
    arguments |= {} if rows is None else {"rows": rows}
    arguments |= {} if compute == "float32" else {"compute": compute}
    return classification_problem(
        images.train_x,
        images.train_y,
        clients=clients,
        partition=rule,
        classes=10,
        test=(images.test_x, images.test_y),
        split_test=True,
        seed=seed,
        importance=importance,
        name=name,
        model=classifier,
        arguments=arguments,
    )


def _some(rows: int, train: int, test: int) -> tuple[Ints, Ints]:
    """Which images are taken: the same ones for every seed."""
    if positive_int(rows, "rows") > train:
        raise InputError(f"rows: {rows} of {train} images; give a number from 1 to {train}, or leave it out")
    held = max(1, test * rows // train)
    return np.sort(shuffled(train, "some", 0)[:rows]), np.sort(shuffled(test, "some", 1)[:held])
