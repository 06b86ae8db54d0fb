"""Dirichlet partitions: clients' label proportions are drawn, the smaller α the fewer labels a client sees.

    equal        π_i ~ Dirichlet(α, …, α) over labels for each client i; clients take a row each in turn: its label is
                 drawn from π_i renormalised over the labels that still have rows, and it is one of those rows, any
                 (after Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution", 2019)
    unequal      π_c ~ Dirichlet(α, …, α) over clients for each label c, whose rows are divided in these proportions
                 (after Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", 2019)
    replacement  as equal, but every row is drawn from all rows of its label, so that clients share some and others are
                 nobody's (the draw of the paper's authors)

A Dirichlet vector is G/ΣG with G ~ Gamma(α), here drawn in logarithms as log G' + log(U)/α, G' ~ Gamma(α + 1), so that
small α does not underflow. Since clients take turns, no client is left with what the others did not want.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.errors import InputError
from fedtempo.problems.partition import Floats, Ints, Partition, by_label

_BLOCK = 1 << 18  # numbers compared at once: rows whose labels are drawn together, times labels
_SMALLEST, _LARGEST = 1e-6, 1e6


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Label proportions by Dirichlet(`alpha`).

    `sizes="equal"`: clients have equally many rows, up to one. `sizes="unequal"`: sizes vary as proportions do; a
    client that would be left without rows takes one from the largest. All rows are used. `sizes="replacement"`: equally
    many rows, drawn with replacement.
    """

    alpha: float
    sizes: str = "equal"

    def __post_init__(self) -> None:
        given = self.alpha
        if not isinstance(given, Real) or isinstance(given, bool) or not _SMALLEST <= given <= _LARGEST:
            raise InputError(
                f"alpha: {given!r} is not a number between {_SMALLEST:g} and {_LARGEST:g}; "
                "try 0.1 (few labels a client) or 100 (nearly iid)"
            )
        object.__setattr__(self, "alpha", float(given))
        if self.sizes not in ("equal", "unequal", "replacement"):
            raise InputError(f'sizes: {self.sizes!r} is not known; give "equal", "unequal" or "replacement"')

    def spec(self) -> dict[str, object]:
        return {"name": "dirichlet", "alpha": self.alpha, "sizes": self.sizes}

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha:g}" + ("" if self.sizes == "equal" else f":{self.sizes}")

    def _parts(self, labels: NDArray[Any], clients: int, seed: int, classes: int | None) -> list[Ints]:
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
