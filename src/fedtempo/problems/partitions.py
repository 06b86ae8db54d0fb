"""A partition deals the rows of one data set to M clients: every row to at most one client, every client at least one.

By name: iid, Dirichlet, label shards, one label a client, a natural key. What is drawn depends on the seed, by the
streams "partition/…" of named randomness, and on nothing else. Dirichlet partitions draw clients' label proportions,
the smaller α the fewer labels a client sees:

    equal        π_i ~ Dirichlet(α, …, α) over labels for each client i; clients take a row each in turn: its label is
                 drawn from π_i renormalised over the labels that still have rows, and it is one of those rows, any
                 (after Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution", 2019)
    unequal      π_c ~ Dirichlet(α, …, α) over clients for each label c, whose rows are divided in these proportions
                 (after Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", 2019)
    replacement  as equal, but every row is drawn from all rows of its label, so that clients share some and others are
                 nobody's
    authors      π_i as equal, from NumPy's older generator under the seed; client i has ⌊π_ic n⌋ rows of each label c
                 but the last, which has the rest of n, each drawn from all rows of its label: the draw of the scripts
                 of the paper's authors, row by row (theirs is seed 42)

A Dirichlet vector is G/ΣG with G ~ Gamma(α), here drawn in logarithms as log G' + log(U)/α, G' ~ Gamma(α + 1), so that
small α does not underflow. Since clients take turns, no client is left with what the others did not want.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import positive_int
from fedtempo.errors import InputError

__all__ = ["IID", "Dirichlet", "LabelShards", "NaturalKey", "OneLabel", "Partition", "parse_partition"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Partition(ABC):
    """How rows are dealt to clients.

    Made as `IID`, `Dirichlet`, `LabelShards`, `OneLabel` or `NaturalKey`; the last deals rows in any way of your own.

    Example:
        >>> labels = np.repeat([0, 1], 4)
        >>> partitions = [ft.IID(), ft.LabelShards(2), ft.OneLabel(), ft.NaturalKey(["a", "b", "b", "b"] * 2)]
        >>> for partition in partitions:
        ...     print(partition.spec()["name"], [rows.tolist() for rows in partition.split(labels, clients=2)])
        iid [[0, 3, 4, 7], [1, 2, 5, 6]]
        shards [[0, 1, 4, 7], [2, 3, 5, 6]]
        one-label [[0, 1, 2, 3], [4, 5, 6, 7]]
        natural-key [[0, 4], [1, 2, 3, 5, 6, 7]]
    """

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
        return positive_int(clients, "clients")

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


_BLOCK = 1 << 18  # numbers compared at once: rows whose labels are drawn together, times labels
_SMALLEST, _LARGEST = 1e-6, 1e6
_SIZES = ("equal", "unequal", "replacement", "authors")


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label proportions by Dirichlet(`alpha`).

    `sizes="equal"`: clients have equally many rows, up to one. `sizes="unequal"`: sizes vary as proportions do; a
    client that would be left without rows takes one from the largest. All rows are used. `sizes="replacement"`: equally
    many rows, drawn with replacement. `sizes="authors"`: the same, drawn as the scripts of the paper's authors do.

    Example:
        >>> labels = np.repeat([0, 1, 2], 40)
        >>> for alpha in (0.1, 100):
        ...     parts = ft.Dirichlet(alpha).split(labels, clients=3, seed=0)
        ...     print([np.bincount(labels[rows], minlength=3).tolist() for rows in parts])
        [[0, 25, 15], [0, 15, 25], [40, 0, 0]]
        [[12, 12, 16], [13, 11, 16], [15, 17, 8]]
    """

    alpha: float
    sizes: str = "equal"

    def __post_init__(self) -> None:
        given = self.alpha
        if not isinstance(given, Real) or isinstance(given, bool) or not _SMALLEST <= given <= _LARGEST:
            raise InputError(
                f"alpha: {given!r} is not a number between {_SMALLEST:g} and {_LARGEST:g}; "
                "try 0.1 (few labels per client) or 100 (nearly iid)"
            )
        object.__setattr__(self, "alpha", float(given))
        if self.sizes not in _SIZES:
            raise InputError(f"sizes: {self.sizes!r} is not known; use one of {', '.join(_SIZES)}")

    def spec(self) -> dict[str, object]:
        return {"name": "dirichlet", "alpha": self.alpha, "sizes": self.sizes}

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}" + ("" if self.sizes == "equal" else f":{self.sizes}")

    def _parts(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> list[Ints]:
        if self.sizes == "authors":
            return self._as_the_authors(labels, clients, seed, classes)
        if self.sizes != "replacement":
            return super()._parts(labels, clients, seed, classes)
        order, bounds = by_label(labels, seed, classes)
        logits = self._logits(clients, len(bounds) - 1, seed)
        logits[:, np.diff(bounds) == 0] = -np.inf
        cumulated = _shares(logits)
        draw, row = stream_key("partition/labels", seed), stream_key("partition/replaced", seed)
        parts = []
        for client in range(clients):
            places = np.arange(len(labels) * client // clients, len(labels) * (client + 1) // clients)
            drawn = uniforms(draw, client, places) * cumulated[client, -1]
            label = np.minimum(np.searchsorted(cumulated[client], drawn, side="right"), len(bounds) - 2)
            within = (uniforms(row, client, places) * (bounds[label + 1] - bounds[label])).astype(np.int64)
            parts.append(np.sort(order[bounds[label] + within]))
        return parts

    def _as_the_authors(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> list[Ints]:
        if not 0 <= seed < 2**32:
            raise InputError(f"seed: {seed} is not one of NumPy's older generator; give a number from 0 to 2³² − 1")
        generator = np.random.RandomState(seed)
        names = np.arange(classes) if classes is not None else np.unique(labels)
        rows = [np.flatnonzero(labels == name) for name in names]
        shares = generator.dirichlet([self.alpha] * len(names), size=clients)
        each = len(labels) // clients
        parts = []
        for share in shares:
            counts = (share * each).astype(np.int64)
            counts[-1] = each - counts[:-1].sum()
            lost = [str(names[k]) for k in np.flatnonzero(counts) if not len(rows[k])]
            if lost:
                raise InputError(
                    f"partition: {self} draws rows of label {lost[0]}, which has none; use dirichlet:{self.alpha:g}"
                )
            drawn = [generator.choice(own, count) for own, count in zip(rows, counts, strict=True) if len(own)]
            parts.append(np.sort(np.concatenate(drawn)).astype(np.int64))
        return parts

    def _owners(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> Ints:
        order, bounds = by_label(labels, seed, classes)
        if self.sizes == "equal":
            return _in_turn(self._logits(clients, len(bounds) - 1, seed), order, bounds, seed)
        return _divided(self._logits(len(bounds) - 1, clients, seed), order, bounds)

    def _logits(self, vectors: int, length: int, seed: int) -> Floats:
        """The logarithms of G, one row for each Dirichlet vector."""
        from scipy.special import gammaincinv

        which, place = np.arange(vectors)[:, None], np.arange(length)
        first = uniforms(stream_key("partition/gamma", seed), which, place)
        second = uniforms(stream_key("partition/boost", seed), which, place)
        return np.asarray(np.log(gammaincinv(self.alpha + 1.0, first)) + np.log(second) / self.alpha)


def _shares(logits: Floats) -> Floats:
    """Cumulated weights of each row's vector; the largest weight is 1, so that one always remains."""
    return np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)


def _in_turn(logits: Floats, order: Ints, bounds: Ints, seed: int) -> Ints:
    """Row by row, client after client; a block at a time, up to the row that is the last of its label."""
    clients, labels = logits.shape
    total = len(order)
    logits = logits.copy()
    left = np.diff(bounds)
    logits[:, left == 0] = -np.inf
    owners = np.empty(total, dtype=np.int64)
    cumulated = _shares(logits)
    key = stream_key("partition/labels", seed)
    done = 0
    while done < total:
        turns = np.arange(done, min(done + max(_BLOCK // labels, 64), total))
        client = turns % clients
        edges = cumulated[client]
        drawn = uniforms(key, client, turns // clients) * edges[:, -1]
        label = np.minimum((drawn[:, None] >= edges).sum(axis=1), np.flatnonzero(left)[-1])
        rank = _ranks(label)
        last = rank == left[label] - 1
        stop = int(np.argmax(last)) + 1 if last.any() else len(turns)
        label, rank = label[:stop], rank[:stop]
        owners[order[bounds[label + 1] - left[label] + rank]] = client[:stop]
        left = left - np.bincount(label, minlength=labels)
        done += stop
        if last.any() and done < total:
            logits[:, left == 0] = -np.inf
            cumulated = _shares(logits)
    return owners


def _ranks(values: Ints) -> Ints:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - starts
    return ranks


def _divided(logits: Floats, order: Ints, bounds: Ints) -> Ints:
    """Each label's rows cut in the proportions of its vector."""
    labels, clients = logits.shape
    cumulated = _shares(logits)
    owners = np.empty(len(order), dtype=np.int64)
    for label in range(labels):
        own = order[bounds[label] : bounds[label + 1]]
        middles = (np.arange(len(own)) + 0.5) / len(own) * cumulated[label, -1]
        owners[own] = np.minimum(np.searchsorted(cumulated[label], middles, side="right"), clients - 1)
    counts = np.bincount(owners, minlength=clients)
    for empty in np.flatnonzero(counts == 0):
        giver = int(np.argmax(counts))
        owners[order[np.argmax(owners[order] == giver)]] = empty
        counts[giver] -= 1
        counts[empty] = 1
    return owners


@dataclass(frozen=True)
class IID(Partition):
    """Rows dealt at random; sizes are equal up to one row.

    Example:
        >>> labels = np.repeat([0, 1, 2], 4)
        >>> [labels[rows].tolist() for rows in ft.IID().split(labels, clients=3, seed=0)]
        [[0, 0, 1, 1], [1, 2, 2, 2], [0, 0, 1, 2]]
    """

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

    Example:
        >>> labels = np.repeat([0, 1, 2], 40)
        >>> parts = ft.LabelShards(per_client=2).split(labels, clients=3, seed=0)
        >>> [np.bincount(labels[rows], minlength=3).tolist() for rows in parts]
        [[20, 20, 0], [0, 20, 20], [20, 0, 20]]
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_client", positive_int(self.per_client, "shards per client"))

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

    Example:
        >>> labels = np.repeat([0, 1, 2], 4)
        >>> [labels[rows].tolist() for rows in ft.OneLabel().split(labels, clients=3)]
        [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]]
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

    Example:
        >>> site = np.array(["rome", "oslo", "rome", "lima"])
        >>> parts = ft.NaturalKey(site).split(labels=np.zeros(4, int), clients=None)
        >>> [rows.tolist() for rows in parts]  # lima, oslo, rome
        [[3], [1], [0, 2]]
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
        number = len(self.names) if clients is None else positive_int(clients, "clients")
        if number > len(self.names):
            raise InputError(f"{number} clients, but only {len(self.names)} keys; ask for at most that many, or None")
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
_WRITTEN = (
    "iid, dirichlet:ALPHA, dirichlet:ALPHA:unequal, dirichlet:ALPHA:replacement, dirichlet:ALPHA:authors, "
    "shards:PER_CLIENT, one-label"
)


def parse_partition(given: Partition | str | Mapping[str, object]) -> Partition:
    """A partition from its text ("dirichlet:0.1") or its spec ({"name": "dirichlet", "alpha": 0.1}).

    Example:
        >>> ft.problems.parse_partition("dirichlet:0.1")
        Dirichlet(alpha=0.1, sizes='equal')
        >>> ft.problems.parse_partition({"name": "dirichlet", "alpha": 0.1, "sizes": "unequal"})
        Dirichlet(alpha=0.1, sizes='unequal')
    """
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
        raise InputError(f"partition: {given!r} has too many parts; known are {_WRITTEN}")
    return {key: _number(value) for key, value in zip(keys, written, strict=False)}


def _number(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
