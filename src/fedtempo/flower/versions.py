"""The models in use: the current one, and those from which jobs that are out started. Nothing else is kept.

θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i    in the arrays' own type; whole numbers are rounded.

A round without updates gives θ^n another number.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord

from fedtempo.flower.arrays import Arrays, record_of


class _Model:
    """A model under one or more version numbers, and its serialised form once it has been asked for."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.record: ArrayRecord | None = None


class Versions:
    """Models by version number."""

    def __init__(self, arrays: Arrays, number: int = 0) -> None:
        self.number = number
        self._models = {number: _Model(arrays)}
        self._holds: dict[int, int] = {}

    @property
    def arrays(self) -> Arrays:
        """The current model; it may be changed in place by the next round."""
        return self._models[self.number].arrays

    def base(self, number: int) -> Arrays:
        """The model from which a job started."""
        return self._models[number].arrays

    def record(self) -> ArrayRecord:
        """The current model as Flower sends it, serialised once."""
        model = self._models[self.number]
        if model.record is None:
            model.record = record_of(model.arrays)
        return model.record

    @property
    def live(self) -> int:
        """How many models are kept."""
        return len({id(model) for model in self._models.values()})

    def hold(self) -> None:
        """A job starts from the current version."""
        self._holds[self.number] = self._holds.get(self.number, 0) + 1

    def release(self, number: int) -> None:
        """A job that started from this version is over."""
        self._holds[number] -= 1
        if not self._holds[number]:
            del self._holds[number]
            if number != self.number:
                del self._models[number]

    def advance(self, weighted: Iterable[tuple[float, Arrays]]) -> None:
        """Make the next version of the contributions, each with its factor η_g ω_i; their arrays are used up."""
        weighted = list(weighted)
        model = self._models[self.number]
        if weighted:
            shared = self._holds.get(self.number, 0) or any(
                other is model for number, other in self._models.items() if number != self.number
            )
            model = _Model({name: array.copy() for name, array in model.arrays.items()} if shared else model.arrays)
            for name in model.arrays:
                _move(model.arrays, name, [(factor, delta[name]) for factor, delta in weighted])
        if self.number not in self._holds:
            del self._models[self.number]
        self.number += 1
        self._models[self.number] = model


def _move(arrays: Arrays, name: str, steps: list[tuple[float, np.ndarray]]) -> None:
    """Add the steps to one array, in order."""
    theta = arrays[name]
    if theta.dtype.kind in "fc":
        for factor, delta in steps:
            np.multiply(delta, factor, out=delta)
            np.add(theta, delta, out=theta)
        return
    total = theta.astype(np.float64)
    for factor, delta in steps:
        total += factor * delta
    total = np.rint(total)
    if theta.dtype.kind == "b":
        arrays[name] = total > 0
    else:
        room = np.iinfo(theta.dtype)
        arrays[name] = np.clip(total, float(room.min), float(room.max)).astype(theta.dtype)
