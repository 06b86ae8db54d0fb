"""The partitions by their names: iid, Dirichlet, label shards, one label a client, a natural key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtempo.errors import InputError
from fedtempo.problems.dirichlet import Dirichlet
from fedtempo.problems.partition import Ints, Partition, by_label, shuffled
from fedtempo.schemes import whole

__all__ = ["IID", "Dirichlet", "LabelShards", "NaturalKey", "OneLabel", "Partition", "parse_partition"]


@dataclass(frozen=True)
class IID(Partition):
    """Rows dealt at random; sizes are equal up to one row."""

    def spec(self) -> dict[str, object]:
        return {"name": "iid"}

    def __str__(self) -> str:
        return "iid"

    def _owners(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> Ints:
        owners = np.empty(len(labels), dtype=np.int64)
        owners[shuffled(len(labels), "rows", seed)] = np.arange(len(labels)) % clients
        return owners


@dataclass(frozen=True)
class LabelShards(Partition):
    """Rows sorted by label and cut into equal shards, `per_client` of which each client is dealt at random.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (2017), section 3.
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_client", whole(self.per_client, "shards per client"))

    def spec(self) -> dict[str, object]:
        return {"name": "shards", "per_client": self.per_client}

    def __str__(self) -> str:
        return f"shards:{self.per_client}"

    def _owners(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> Ints:
        shards = clients * self.per_client
        if shards > len(labels):
            raise InputError(
                f"{clients} clients with {self.per_client} shards each need {shards} rows, there are {len(labels)}; "
                "ask for fewer clients or shards"
            )
        order, _ = by_label(labels, seed)
        holder = np.empty(shards, dtype=np.int64)
        holder[shuffled(shards, "shards", seed)] = np.arange(shards) % clients
        owners = np.empty(len(labels), dtype=np.int64)
        owners[order] = holder[np.arange(len(labels)) * shards // len(labels)]
        return owners


@dataclass(frozen=True)
class OneLabel(Partition):
    """Client i holds rows of one label only, the (i mod C)-th of C labels; a label's rows are shared out equally.

    With fewer clients than labels the rows of the last labels are not used.
    """

    def spec(self) -> dict[str, object]:
        return {"name": "one-label"}

    def __str__(self) -> str:
        return "one-label"

    def _owners(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> Ints:
        order, bounds = by_label(labels, seed, classes)
        number = len(bounds) - 1
        owners = np.full(len(labels), -1, dtype=np.int64)
        for label in range(min(number, clients)):
            own = order[bounds[label] : bounds[label + 1]]
            holders = np.arange(label, clients, number)
            if len(holders) > len(own):
                which = labels[own[0]] if len(own) else label
                raise InputError(
                    f"label {which} has {len(own)} rows for {len(holders)} clients of {clients}; "
                    f"ask for at most {self._most(bounds)} clients"
                )
            owners[own] = holders[np.arange(len(own)) % len(holders)]
        return owners

    def _most(self, bounds: Ints) -> int:
        counts = np.diff(bounds)
        return int((counts * len(counts) + np.arange(len(counts))).min())


@dataclass(frozen=True, eq=False)
class NaturalKey(Partition):
    """One client for each distinct key, as speaker or site: `keys` has one per row.

    Clients stand in the sorted order of their keys. Fewer `clients` than keys: the first ones in that order; None: all.
    """

    keys: ArrayLike

    def __post_init__(self) -> None:
        keys = np.asarray(self.keys)
        if keys.ndim != 1 or not len(keys) or keys.dtype.kind not in "biuSU":
            raise InputError(
                f"keys: an array {keys.dtype}{list(keys.shape)} was given; give one whole number or text per row"
            )
        object.__setattr__(self, "keys", keys)

    @cached_property
    def names(self) -> NDArray[Any]:
        """The distinct keys, one per client, in sorted order."""
        return np.unique(np.asarray(self.keys))

    def spec(self) -> dict[str, object]:
        return {"name": "natural-key", "keys": len(self.names)}

    def __str__(self) -> str:
        return "natural-key"

    def __repr__(self) -> str:
        return f"NaturalKey({len(self.names)} keys)"

    def only(self, rows: Ints) -> NaturalKey:
        return NaturalKey(np.asarray(self.keys)[rows])

    def _clients(self, clients: int | None) -> int:
        number = len(self.names) if clients is None else whole(clients, "clients")
        if number > len(self.names):
            raise InputError(f"{number} clients, but only {len(self.names)} keys; ask for at most as many, or None")
        return number

    def _owners(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> Ints:
        numbers = np.searchsorted(self.names, np.asarray(self.keys))
        if len(numbers) != len(labels):
            raise InputError(f"keys: {len(numbers)} for {len(labels)} rows; give one per row")
        return np.where(numbers < clients, numbers, -1).astype(np.int64)


_KNOWN: dict[str, Callable[..., Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "shards": LabelShards,
    "one-label": OneLabel,
}
_WRITTEN = "iid, dirichlet:ALPHA, dirichlet:ALPHA:unequal, dirichlet:ALPHA:replacement, shards:PER_CLIENT, one-label"


def parse_partition(given: Partition | str | Mapping[str, object]) -> Partition:
    """A partition from its text ("dirichlet:0.1") or its spec ({"name": "dirichlet", "alpha": 0.1})."""
    if isinstance(given, Partition):
        return given
    if isinstance(given, str):
        name, *written = given.strip().split(":")
        arguments = _of_text(name, written, given)
    elif isinstance(given, Mapping):
        arguments = {str(key): value for key, value in given.items()}
        if "name" not in arguments:
            raise InputError(f"partition: {dict(given)} has no name; give one of {', '.join(_KNOWN)}")
        name = str(arguments.pop("name"))
    else:
        raise InputError(f"partition: {given!r} is not known; known are {_WRITTEN}")
    if name == "natural-key":
        raise InputError("partition: a natural key needs one key per row; from Python, pass NaturalKey(keys)")
    if name not in _KNOWN:
        raise InputError(f"partition: {name!r} is not known; known are {_WRITTEN}")
    make = _KNOWN[name]
    parameters = signature(make).parameters
    unknown = sorted(set(arguments) - set(parameters))
    if unknown:
        takes = f"takes {', '.join(parameters)}" if parameters else "takes nothing else"
        raise InputError(f"partition: {name} has no {', '.join(unknown)}; it {takes}")
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in arguments]
    if missing:
        raise InputError(f"partition: {name} needs {', '.join(missing)}; write it as one of {_WRITTEN}")
    return make(**arguments)


def _of_text(name: str, written: list[str], given: str) -> dict[str, object]:
    """The values behind the colons by their names: numbers where they are, else text."""
    keys = list(signature(_KNOWN[name]).parameters) if name in _KNOWN else []
    if len(written) > len(keys) and name in _KNOWN:
        raise InputError(f"partition: {given!r} says too much; known are {_WRITTEN}")
    return {key: _number(value) for key, value in zip(keys, written, strict=False)}


def _number(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
