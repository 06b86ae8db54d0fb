"""How numbers are computed: 32 or 64 bits, by a local context and never by the process's global switch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Precision = Literal["float32", "float64"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float64")


@contextmanager
def numerics(dtype: Precision) -> Iterator[None]:
    """Full precision in matrix products (no TF32), 64 bits where asked for; for the calling thread alone."""
    with (
        jax.enable_x64(dtype == "float64"),
        jax.default_matmul_precision("highest"),
        jax.threefry_partitionable(True),
    ):
        yield


def cast(tree: Any, dtype: Precision) -> Any:
    """Floating leaves in `dtype`, the others as they are."""

    def leaf(x: Any) -> jax.Array:
        return jnp.asarray(x, dtype=dtype) if np.issubdtype(np.asarray(x).dtype, np.floating) else jnp.asarray(x)

    return jax.tree.map(leaf, tree)
