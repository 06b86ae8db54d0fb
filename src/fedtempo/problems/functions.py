"""The functions of a problem: init(key) gives θ; loss(params, batch) is the mean of ℓ(θ; row) over the batch's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedtempo.errors import InputError
from fedtempo.problems.rows import Tree, described, leaf_names

Init = Callable[[jax.Array], Tree]
"""init(key) -> params"""

Loss = Callable[[Tree, Tree], Any]
"""loss(params, batch) -> the mean over the batch's rows, a scalar; metrics are of the same kind."""


def shapes_of(init: Init) -> Tree:
    """The parameters' shapes, without making them."""
    try:
        shapes = jax.eval_shape(lambda: init(jax.random.key(0)))
    except Exception as error:
        raise InputError(
            f"init(key) fails ({_first_line(error)}); it takes a jax.random key and returns a pytree of floating arrays"
        ) from error
    leaves = jax.tree.leaves(shapes)
    if not leaves:
        raise InputError("init(key) returns no arrays; return the parameters, a pytree of floating arrays")
    for name, leaf in zip(leaf_names(shapes), leaves, strict=True):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(f"init(key): {name} holds {leaf.dtype}; parameters are trained, so make it floating")
    return shapes


def _two_rows(leaf: Any) -> jax.ShapeDtypeStruct:
    """Of the type in which the rows are handed to the functions: floating ones in JAX's own."""
    kind = jnp.result_type(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
    return jax.ShapeDtypeStruct((2, *leaf.shape[1:]), kind)  # type: ignore[no-untyped-call]


def check_mean(function: Loss, params: Tree, rows: Tree, what: str) -> None:
    """Refuses a function that is not a scalar of (params, a batch of such rows), without running it."""
    if not callable(function):
        raise InputError(f"{what}: {function!r} is not a function of (params, batch)")
    batch = jax.tree.map(_two_rows, rows)
    given = f"parameters {described(params)} and a batch {described(batch)}"
    try:
        found = jax.eval_shape(function, params, batch)
    except Exception as error:
        raise InputError(f"{what}(params, batch) fails on {given}: {_first_line(error)}") from error
    if not isinstance(found, jax.ShapeDtypeStruct):
        raise InputError(
            f"{what}(params, batch) returns {len(jax.tree.leaves(found))} values in a "
            f"{type(found).__name__}; return one scalar, the mean over the batch's rows"
        )
    if found.shape != ():
        raise InputError(
            f"{what}(params, batch) is not a scalar: its shape is {found.shape} on {given}; "
            "return the mean over the batch's rows"
        )
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise InputError(f"{what}(params, batch) is a {found.dtype}; return a floating scalar, the mean over the rows")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
