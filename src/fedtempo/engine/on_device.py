"""A problem's rows on the device: put there once, for all shapes of work."""

from __future__ import annotations

from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from fedtempo.engine.numerics import Precision, cast
from fedtempo.engine.task import Data
from fedtempo.measure import Rows, rows_of
from fedtempo.problems.problem import Problem


class OnDevice:
    """The rows to train and to measure on. To be used inside `numerics(dtype)`."""

    def __init__(self, problem: Problem, dtype: Precision) -> None:
        self._problem, self._dtype = problem, dtype

    @cached_property
    def data(self) -> Data:
        """The clients' rows, and where each client's begin."""
        offset = jnp.asarray(self._problem.offsets[:-1], dtype=jnp.int32)
        return Data(cast(self._problem.rows, self._dtype), offset, jnp.asarray(self._problem.sizes, dtype=jnp.int32))

    @cached_property
    def train(self) -> Rows:
        """The same rows, to measure on."""
        return rows_of(self.data.rows, self._problem.sizes)

    @cached_property
    def test(self) -> Rows | None:
        """The test rows, as one group, or by client where they have their own."""
        if self._problem.test is None:
            return None
        test = cast(self._problem.test, self._dtype)
        offsets = self._problem.test_offsets
        return rows_of(test, [len(jax.tree.leaves(test)[0])] if offsets is None else np.diff(offsets))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(int(np.prod(x.shape[1:])) * x.dtype.itemsize for x in jax.tree.leaves(self.data.rows))
