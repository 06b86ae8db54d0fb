"""How numbers are computed, by a local context and never by the process's global switch.

float32          full precision in products of matrices too
float64          64 bits
tensorfloat32    float32, and products of matrices on an accelerator's matrix units with 10 bits of mantissa; a
                 processor has none and computes in float32
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Precision = Literal["float32", "float64", "tensorfloat32"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float64", "tensorfloat32")


@contextmanager
def numerics(dtype: Precision) -> Iterator[None]:
    """The precision that is asked for; for the calling thread alone."""
    with (
        jax.enable_x64(dtype == "float64"),
        jax.default_matmul_precision("tensorfloat32" if dtype == "tensorfloat32" else "highest"),
        jax.threefry_partitionable(True),
    ):
        yield


def kept_as(dtype: Precision) -> np.dtype[Any]:
    """The type in which numbers are kept."""
    return np.dtype(np.float64 if dtype == "float64" else np.float32)


def cast(tree: Any, dtype: Precision) -> Any:
    """Floating leaves in the type of `dtype`, the others as they are."""

    def leaf(x: Any) -> jax.Array:
        return (
            jnp.asarray(x, dtype=kept_as(dtype)) if np.issubdtype(np.asarray(x).dtype, np.floating) else jnp.asarray(x)
        )

    return jax.tree.map(leaf, tree)
