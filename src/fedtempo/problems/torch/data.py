"""Clients' data as PyTorch users have it, as rows: arrays with one row for each example.

    (x, y)              tensors or arrays, or a dictionary of them
    TensorDataset       its tensors
    Subset              rows of what it is a part of, which is looked at once for all clients
    Hugging Face        a data set's columns, by name
    any Dataset         its items, stacked

What cannot be stacked, because shapes differ or items are random, stays where it is: a row is then the number of an
item, and a batch is collated from `dataset[i]` when a job needs it. Only the PyTorch engine can do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset, default_collate

from fedtempo.errors import InputError
from fedtempo.problems.rows import Tree

Collate = Callable[[list[Any]], Any]


class Rows(NamedTuple):
    """The rows of all clients and of the test, and how PyTorch is to see them."""

    clients: list[Tree]
    test: Tree | None
    kinds: dict[str, torch.dtype]
    """The types of the tensors by leaf, for whole numbers that rows keep in fewer bits."""
    items: Items | None
    """Where rows are numbers: what they are the numbers of."""


class Items:
    """Items of data sets, end to end, that are collated when they are needed."""

    def __init__(self, collate: Collate | None) -> None:
        self._sets: list[Any] = []
        self._starts = [0]
        self.collate = collate or default_collate

    def add(self, dataset: Any) -> NDArray[np.int32]:
        """The numbers of its items."""
        first = self._starts[-1]
        self._sets.append(dataset)
        self._starts.append(first + len(dataset))
        return np.arange(first, self._starts[-1], dtype=np.int32)

    def batch(self, numbers: Sequence[int] | NDArray[Any]) -> Any:
        """The items of these numbers, collated."""
        found = []
        for number in numbers:
            k = int(np.searchsorted(self._starts, number, side="right")) - 1
            found.append(self._sets[k][int(number) - self._starts[k]])
        try:
            return self.collate(found)
        except Exception as error:
            raise InputError(
                f"data: items {', '.join(map(str, list(numbers)[:3]))}, … cannot be collated ({first_line(error)}); "
                "give collate=, a function of a list of items that makes a batch of them"
            ) from error


def gathered(data: Any, parts: Sequence[Any] | None, test: Any, collate: Collate | None, stack: bool | None) -> Rows:
    """The rows of data sets; `stack` says whether items are stacked, None: where that can be done."""
    clients = _clients(data, parts)
    given = [*clients] if test is None else [*clients, test]
    stacks = _Stacks()
    if stack is not False and collate is None and (stack or all(_stackable(each) for each in given)):
        rows = [stacks.of(each, f"client {i}" if i < len(clients) else "test") for i, each in enumerate(given)]
        if None not in rows:
            trees = list(rows)
            kinds = _kinds(rows[0])
            return Rows(trees[: len(clients)], None if test is None else trees[-1], kinds, None)
        if stack:
            raise InputError(
                f"data: {stacks.reason}; leave out stack=True, and items are collated when they are needed"
            )
    items = Items(collate)
    numbers = [items.add(_indexable(each)) for each in given]
    return Rows(numbers[: len(clients)], None if test is None else numbers[-1], {}, items)


def _clients(data: Any, parts: Sequence[Any] | None) -> list[Any]:
    if parts is not None:
        return [Subset(_indexable(data), [int(i) for i in part]) for part in parts]
    if isinstance(data, (Mapping, Tensor, np.ndarray, str)) or not hasattr(data, "__iter__"):
        raise InputError(
            f"data: a {type(data).__name__} was given; give a list with one data set per client, or one data set and "
            "parts=, a list of row numbers per client"
        )
    found = list(data) if not hasattr(data, "__getitem__") or isinstance(data, (list, tuple)) else None
    if found is None:
        raise InputError(
            f"data: one {type(data).__name__} was given; give a list with one data set per client, or parts= with the "
            "row numbers of each"
        )
    if not found:
        raise InputError("no clients: data is empty; give a list with one data set per client")
    return found


def _indexable(dataset: Any) -> Any:
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InputError(
            f"data: {type(dataset).__name__} has no items by index, which drawing batches needs; make a list of its "
            "items, or a map-style Dataset"
        )
    if isinstance(dataset, tuple):
        return TensorDataset(*(torch.as_tensor(np.asarray(x)) for x in dataset))
    return dataset


def _columns(given: Any) -> Any:
    """Tensors or arrays, rows first, or None where it is a data set of items."""
    if isinstance(given, TensorDataset):
        return tuple(given.tensors)
    if isinstance(given, (Tensor, np.ndarray)):
        return (given,)
    if isinstance(given, tuple) and given and all(isinstance(x, (Tensor, np.ndarray)) for x in given):
        return given
    if isinstance(given, Mapping):
        return dict(given)
    if hasattr(given, "column_names") and hasattr(given, "with_format"):  # of Hugging Face
        return {name: given.with_format("numpy")[name] for name in given.column_names}
    return None


def _stackable(given: Any) -> bool:
    """Whether an item is the same when it is asked for again."""
    while isinstance(given, Subset):
        given = given.dataset
    if _columns(given) is not None or isinstance(given, ConcatDataset):
        return True
    dataset = _indexable(given)
    if not len(dataset):
        return True
    return all(map(_equal, _leaves(dataset[0]), _leaves(dataset[0])))


class _Stacks:
    """Data sets as columns of rows, each looked at once."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._held: list[Any] = []
        self.reason = ""

    def of(self, given: Any, what: str) -> Any:
        """A tuple or dictionary of arrays, rows first; None where it cannot be made."""
        if isinstance(given, Subset):
            rows = self.of(given.dataset, what)
            return None if rows is None else _map(rows, lambda x: x[np.asarray(given.indices, dtype=np.int64)])
        if (columns := _columns(given)) is not None:
            return _map(columns, _array)
        if id(given) not in self._seen:
            self._held.append(given)  # so that its id stays its own
            self._seen[id(given)] = self._stacked(_indexable(given), what)
        return self._seen[id(given)]

    def _stacked(self, dataset: Any, what: str) -> Any:
        items = [dataset[i] for i in range(len(dataset))]
        if not items:
            raise InputError(f"{what} has no rows; leave it out, or give it at least one")
        first = items[0]
        if not isinstance(first, (tuple, list, Mapping)):
            items = [(item,) for item in items]
            first = items[0]
        names = list(first) if isinstance(first, Mapping) else range(len(first))
        try:
            columns = {name: np.stack([_array(item[name]) for item in items]) for name in names}
        except Exception as error:
            self.reason = f"the items of {what} cannot be stacked ({first_line(error)})"
            return None
        return columns if isinstance(first, Mapping) else tuple(columns.values())


def _array(value: Any) -> NDArray[Any]:
    return value.detach().to("cpu").numpy() if isinstance(value, Tensor) else np.asarray(value)


def _map(columns: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(columns, Mapping):
        return {str(name): function(column) for name, column in columns.items()}
    return tuple(function(column) for column in columns)


def _kinds(columns: Any) -> dict[str, torch.dtype]:
    pairs = columns.items() if isinstance(columns, Mapping) else enumerate(columns)
    return {str(name): torch.from_numpy(np.zeros(0, dtype=column.dtype)).dtype for name, column in pairs}


def _leaves(item: Any) -> Iterator[Any]:
    if isinstance(item, Mapping):
        for value in item.values():
            yield from _leaves(value)
    elif isinstance(item, (tuple, list)):
        for value in item:
            yield from _leaves(value)
    else:
        yield item


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return bool(a == b)


def first_line(error: Exception) -> str:
    """What went wrong, without the rest."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
