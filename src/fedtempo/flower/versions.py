"""The models in use: the current one, and those from which jobs that are out started. Nothing else is kept.

θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i    in the arrays' own type; whole numbers are rounded.

A round without updates gives θ^n another number. θ^{n+1} is finite: steps that would make it otherwise are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedtempo.flower.arrays import Arrays, finite, record_of


class Step(NamedTuple):
    """A contribution to a round."""

    factor: float
    """η_g ω_i."""
    delta: Arrays
    norm: float
    """‖Δ_i‖."""

    @property
    def length(self) -> float:
        """How far it moves the model."""
        return abs(self.factor) * self.norm if self.factor else 0.0


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
        """The current model."""
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

    def advance(self, steps: Sequence[Step]) -> list[int]:
        """Make the next version; the steps' arrays are used up. Says which steps are left out, the last first.

        Where the new model would not be finite, the longest steps are left out until it is.
        """
        model, left_out = self._models[self.number], []
        with np.errstate(all="ignore"):
            for step in steps:
                for delta in step.delta.values():
                    np.multiply(delta, step.factor, out=delta)
            taken = list(range(len(steps)))
            while taken:
                moved = _moved(model.arrays, [steps[place].delta for place in taken])
                if moved is not None:
                    model = _Model(moved)
                    break
                longest = max(taken, key=lambda place: steps[place].length)
                taken.remove(longest)
                left_out.append(longest)
        if self.number not in self._holds:
            del self._models[self.number]
        self.number += 1
        self._models[self.number] = model
        return sorted(left_out, reverse=True)


def _moved(arrays: Arrays, steps: list[Arrays]) -> Arrays | None:
    """The arrays after these steps, or None if they are not finite; a step that is alone gives its memory."""
    moved = {}
    for name, theta in arrays.items():
        moved[name] = _sum(theta, [step[name] for step in steps])
        if not finite(moved[name]):
            return None
    return moved


def _sum(theta: NDArray[Any], steps: list[NDArray[Any]]) -> NDArray[Any]:
    """One array after its steps, in order."""
    if theta.dtype.kind in "fc":
        first, *others = steps
        moved: NDArray[Any] = np.empty_like(theta) if others else first
        np.add(theta, first, out=moved)
        for step in others:
            np.add(moved, step, out=moved)
        return moved
    total = theta.astype(np.float64)
    for step in steps:
        total += step
    total = np.rint(total)
    if theta.dtype.kind == "b":
        return np.asarray(total > 0)
    room = np.iinfo(theta.dtype)
    return np.asarray(np.clip(total, float(room.min), _top(room.max)).astype(theta.dtype))


def _top(most: int) -> float:
    """The largest float that a whole number up to `most` can hold: 2⁶³ − 1 as a float is 2⁶³, which flips over."""
    top = float(most)
    return float(np.nextafter(top, 0.0)) if top > most else top
