"""Whether a loss is the mean over the batch's rows, seen by giving it the same rows twice:

mean over rows       L(b, b) = L(b)                          also with a regulariser, the same for both
sum over rows        L(b, b, b) − L(b, b) = L(b, b) − L(b)   refused
rows that interact   anything else                           said, and left to the user
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakSet

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.problems.rows import Tree

ROWS = 4
_TOLERANCE = 0.002  # of the loss: what rounding may do, in 16 bits too

_ALIKE = 0.02  # of what repeated rows add

_checked: WeakSet[Problem] = WeakSet()


def check_batch_mean(problem: Problem) -> None:
    """Refuse a loss that is a sum over the batch, and warn of one that is no mean; once for a problem.

    Our own losses are known to be means, and a PyTorch problem has been checked when it was made.
    """
    ours = str(getattr(problem.loss, "__module__", "")).startswith("fedtempo.")
    if ours or problem.framework != "jax" or problem in _checked:
        return
    rows = jax.tree.map(lambda leaf: leaf[:ROWS], problem.client_data(0))

    @cache
    def start() -> tuple[Tree, Tree]:
        key = jax.random.key(0)
        return problem.init(key), problem.initial_state(key)

    def loss(times: int) -> float:
        batch = jax.tree.map(lambda leaf: _repeated(leaf, times), rows)
        params, state = start()
        return float(jax.jit(problem.form.evaluation)(params, batch, state))

    check_repeated(loss, min(ROWS, int(problem.sizes[0])), "jnp.mean")
    _checked.add(problem)


def check_repeated(loss: Callable[[int], float], rows: int, cure: str) -> None:
    """The same for any loss of `rows` rows given so many times; `cure` names a function that takes the mean."""
    try:
        once, twice, thrice = (loss(times) for times in (1, 2, 3))
    except Exception:  # what is wrong with it is said, with all that belongs to it, where it is trained or measured
        return
    if not math.isfinite(once):
        raise InputError(
            f"loss: it is {once} for the initial model on the first {rows} rows of client 0; look for divisions by "
            "zero, logarithms and missing values in the data"
        )
    if not math.isfinite(twice + thrice) or abs(twice - once) <= _TOLERANCE * abs(once):
        return
    more = thrice - twice
    seen = f"{rows} rows give {once:.4g}, and the same rows twice {twice:.4g}"
    if abs(more - (twice - once)) <= _ALIKE * abs(more):
        raise InputError(
            f"loss: it is a sum over the batch: {seen}; return the mean over the batch's rows, as {cure} does"
        )
    warnings.warn(
        f"loss: it is not the mean over the batch's rows: {seen}. If rows of a batch are meant to depend on each "
        "other, go on; the loss of a client is then measured as a mean over parts of its rows",
        UserWarning,
        stacklevel=4,
    )


def _repeated(leaf: NDArray[Any], times: int) -> jax.Array:
    """Rows one after the other, so many times, of the type in which losses are given them."""
    kind = jnp.result_type(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
    return jnp.asarray(np.concatenate([leaf] * times), dtype=kind)
