"""Arrays that are not trained: BatchNorm's statistics, counters, whole numbers. They are averaged as values.

    s ← (1 − A) s + A Σ_i ω_i v_i / Σ_i ω_i,    A = min(1, Σ_i ω_i)        v_i: what client i has sent
    variances    by second moments: m₂ = var + mean² is averaged so, and var = m₂ − mean²
    counters     the largest

A mean of values lies between them, whatever the weights and however old an update is: a variance is never below zero.
Where weights are a share a of each value, m₂ − mean² = Σ a (var + (value's mean − new mean)²), which is how it is
computed: nothing cancels. Server rules do not see these arrays, and they are no part of a norm.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.flower.arrays import Arrays, finite, whole

log = logging.getLogger("flwr")

AUTO = "auto"
_MEANS = {"running_var": "running_mean", "moving_variance": "moving_mean", "moving_var": "moving_mean"}
"""Names of variances in PyTorch and Keras, and the mean that each belongs to."""
_COUNTERS = ("num_batches_tracked",)
_STATISTICS = (*_MEANS, *_MEANS.values(), *_COUNTERS)


class Buffers:
    """Which arrays of a model are not trained, and what becomes of them."""

    def __init__(self, model: Arrays, named: str | Sequence[str] = AUTO) -> None:
        """`named`: "auto" finds them by their names; else names or patterns. Whole numbers and booleans always are."""
        if named != AUTO:
            _check(named, model)
        self.names = tuple(
            name
            for name, array in model.items()
            if array.dtype.kind not in "fc" or (_statistic(name) if named == AUTO else _fits(name, named))
        )
        self._set = frozenset(self.names)
        self.floating = tuple(name for name in self.names if model[name].dtype.kind == "f")
        self.counters = tuple(name for name in self.names if _ends(name, _COUNTERS) and model[name].dtype.kind in "iu")
        self._mean_of = {
            name: mean if (mean := _mean_of(name)) in self._set and model[mean].shape == model[name].shape else None
            for name in self.floating
            if _ends(name, tuple(_MEANS))
        }
        """The mean of each variance, None if it has none."""

    @classmethod
    def of(cls, model: Arrays, named: str | Sequence[str]) -> Buffers:
        """Those of a model that is to be trained."""
        found = cls(model, named)
        if named == AUTO:
            if len(found.names) == len(model):
                raise InputError(
                    f"initial_arrays: it has no trainable arrays: {', '.join(found.names[:3])} are whole numbers or "
                    "statistics, which are averaged as values; give the model's parameters, or name all arrays in "
                    "buffers= if that is what you want"
                )
            _warn_of_numbers(model)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._set

    def trained(self, arrays: Arrays) -> Arrays:
        """The others."""
        return {name: array for name, array in arrays.items() if name not in self._set} if self._set else arrays

    def wrong(self, values: Arrays) -> str | None:
        """Why these values of a client cannot be averaged."""
        for name, value in values.items():
            if not finite(value):
                what = "NaN" if np.isnan(value).any() else "Inf"
                return f"{name!r} contains {what} in {int((~np.isfinite(value)).sum())} of {value.size} entries"
            if name in self._mean_of and (low := value.min(initial=0)) < 0:
                return f"{name!r} is a variance and contains {low:.3g}; it must not be below zero"
        return None

    def growth(self, values: Arrays, base: Arrays) -> float:
        """By how much a counter has grown at most."""
        if not self.counters:
            return 0.0
        grown = (np.subtract(values[name], base[name], dtype=np.float64) for name in self.counters)
        return max((float(each.max(initial=0)) for each in grown), default=0.0)

    def mended(self, arrays: Arrays) -> Arrays:
        """The model without variances below zero, which older versions could make."""
        return {n: np.asarray(np.maximum(a, 0)) if n in self._mean_of else a for n, a in arrays.items()}

    def averaged(self, arrays: Arrays, given: Sequence[tuple[float, Arrays]]) -> Arrays:
        """The buffers after a round; `given` has a weight and a client's values each."""
        given = [(weight, values) for weight, values in given if weight > 0]
        if not given or not self.names:
            return {name: arrays[name] for name in self.names}
        most = max(weight for weight, _ in given)
        weights = np.array([weight / most for weight, _ in given])  # their sum is finite
        share = min(1.0, most * float(weights.sum()))
        shares = [1.0 - share, *(share * weights / weights.sum()).tolist()]
        averaged: Arrays = {}
        with np.errstate(all="ignore"):
            for name in self.names:
                values = [arrays[name], *(values[name] for _, values in given)]
                if name in self.counters:
                    averaged[name] = np.asarray(np.maximum.reduce(values))
                elif name in self._mean_of:
                    continue
                else:
                    averaged[name] = _mean(values, shares)
            for name, mean in self._mean_of.items():
                values = [np.maximum(each[name], 0) for each in (arrays, *(values for _, values in given))]
                if mean is not None:
                    means = [each[mean] for each in (arrays, *(values for _, values in given))]
                    values = _about(values, means, _mean(means, shares, np.dtype(np.float64)))
                averaged[name] = _held(_mean(values, shares, np.dtype(np.float64)), arrays[name])
        return averaged


def _mean(values: Sequence[NDArray[Any]], shares: Sequence[float], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Σ a v, in the first value's type unless another is asked for."""
    kind = values[0].dtype if dtype is None else dtype
    counted = [(value, share) for value, share in zip(values, shares, strict=True) if share]
    first = counted[0][0]
    if kind.kind in "iu" and all(np.array_equal(first, value) for value, _ in counted):
        return first.astype(kind)  # as it is, also where a float cannot hold it
    total: NDArray[Any] = np.zeros(values[0].shape, dtype=np.complex128 if kind.kind == "c" else np.float64)
    for value, share in counted:
        total += value.astype(total.dtype) * share
    return np.asarray(total.astype(kind)) if kind.kind in "fc" else whole(total, kind)


def _about(variances: list[NDArray[Any]], means: list[NDArray[Any]], mean: NDArray[Any]) -> list[NDArray[Any]]:
    """Var + (its mean − the new mean)²."""
    return [v.astype(np.float64) + (m.astype(np.float64) - mean) ** 2 for v, m in zip(variances, means, strict=True)]


def _held(value: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    """A variance in its own type, at that type's end where it is beyond."""
    return np.asarray(np.minimum(value, np.finfo(like.dtype).max).astype(like.dtype))


def _plain(name: str) -> str:
    return name.removesuffix(":0")  # of Keras


def _ends(name: str, with_one_of: tuple[str, ...]) -> bool:
    return _plain(name).endswith(with_one_of)


def _statistic(name: str) -> bool:
    return _ends(name, _STATISTICS)


def _mean_of(name: str) -> str:
    plain = _plain(name)
    ending = next(each for each in _MEANS if plain.endswith(each))
    return plain.removesuffix(ending) + _MEANS[ending] + name[len(plain) :]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _check(patterns: Sequence[str], model: Arrays) -> None:
    for pattern in patterns:
        if not any(_fits(name, [pattern]) for name in model):
            raise InputError(
                f"buffers: no array of the model is called {pattern!r}; there are {', '.join(list(model)[:5])}"
                f"{', …' if len(model) > 5 else ''}"
            )


def _warn_of_numbers(model: Arrays) -> None:
    """A model without names whose arrays look like BatchNorm's: two alike, and a counter behind them."""
    names = list(model)
    if not all(name.isdecimal() for name in names):
        return
    for mean, variance, counter in zip(names, names[1:], names[2:], strict=False):
        kinds = "".join(model[name].dtype.kind for name in (mean, variance, counter))
        if kinds == "ffi" and model[counter].shape == () and model[mean].shape == model[variance].shape != ():
            log.warning(
                "initial_arrays: %s and %s look like the mean and the variance of a BatchNorm, but their names are "
                "numbers, so they count as trained. Give ArrayRecord(model.state_dict()), or name such arrays, as "
                "buffers=[%r, %r, …]",
                mean,
                variance,
                mean,
                variance,
            )
            return
