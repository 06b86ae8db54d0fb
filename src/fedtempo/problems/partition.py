"""A partition deals the rows of one data set to M clients: every row to at most one client, every client at least one.

What is drawn depends on the seed, by the streams "partition/…" of named randomness, and on nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.errors import InputError
from fedtempo.schemes import whole

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Partition(ABC):
    """How rows are dealt to clients."""

    def split(self, labels: ArrayLike, clients: int | None, *, seed: int = 0, classes: int | None = None) -> list[Ints]:
        """The row indices of each client, in ascending order; `labels` has one whole number per row.

        With `classes` labels are 0 to classes − 1, whether these rows have all of them or not: rows of the same kind
        are then dealt by the same draw. Without, only those that are there count.
        """
        given = np.asarray(labels)
        if given.ndim != 1 or not len(given) or not (given.dtype == np.bool_ or np.issubdtype(given.dtype, np.integer)):
            raise InputError(
                f"labels: an array {given.dtype}{list(given.shape)} was given; give one whole number per row"
            )
        check_seed(seed)
        number = self._clients(clients)
        if number > len(given):
            raise InputError(f"{number} clients cannot share {len(given)} rows: some would be empty; ask for fewer")
        if classes is not None and (int(given.min()) < 0 or int(given.max()) >= classes):
            raise InputError(f"labels: from {given.min()} to {given.max()}, but there are {classes} classes")
        return self._parts(given, number, int(seed), classes)

    def only(self, rows: Ints) -> Partition:
        """The partition for a data set of these rows alone."""
        return self

    @abstractmethod
    def spec(self) -> dict[str, object]:
        """The partition as a JSON object."""

    def _clients(self, clients: int | None) -> int:
        return whole(clients, "clients")

    def _parts(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> list[Ints]:
        """The rows of each client, by their owners."""
        owners = self._owners(labels, clients, seed, classes)
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(clients + 1))
        return [order[low:high].astype(np.int64) for low, high in pairwise(bounds)]

    @abstractmethod
    def _owners(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> Ints:
        """The client that each row goes to, −1 for none."""


def check_seed(seed: object) -> None:
    """Refuses what is not a whole number."""
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise InputError(f"seed: {seed!r} is not a whole number")


def shuffled(count: int, name: str, seed: int) -> Ints:
    """A uniformly drawn order of `count` things."""
    return np.argsort(uniforms(stream_key(f"partition/{name}", seed), np.arange(count), 0), kind="stable")


def by_label(labels: NDArray[Any], seed: int, classes: int | None = None) -> tuple[Ints, Ints]:
    """Rows sorted by label, in a drawn order within each, and the bounds of the labels in that order.

    With `classes` labels without rows have bounds too.
    """
    order = shuffled(len(labels), "rows", seed)
    order = order[np.argsort(labels[order], kind="stable")]
    counts = np.unique(labels, return_counts=True)[1] if classes is None else np.bincount(labels, minlength=classes)
    return order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
