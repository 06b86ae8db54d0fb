"""The numbers that a network computes with: its parameters' own type, or bfloat16 for the factors of its products.

    y = x W,    ∂W = xᵀ ∂y

With bfloat16 the factors are rounded to 8 bits of mantissa; their products are added up in float32, and ∂W is never
rounded. Otherwise everything is in the parameters' type.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedtempo.errors import InputError

COMPUTE = ("float32", "bfloat16")


def check_compute(compute: str) -> None:
    """Refuses a type that is not known."""
    if compute not in COMPUTE:
        raise InputError(f"compute: {compute!r} is not known; use one of {', '.join(COMPUTE)}")


def compute_type(compute: str, own: Any) -> Any:
    """The type of activations, given the parameters' `own`."""
    return jnp.bfloat16 if compute == "bfloat16" else own


def dot(a: jax.Array, b: jax.Array, over: tuple[tuple[int, ...], tuple[int, ...]], out: Any) -> jax.Array:
    """Σ a b over those axes of a and of b, in the type `out`; products of bfloat16 add up in float32."""

    def native(a: jax.Array, b: jax.Array, kind: Any) -> jax.Array:
        found: jax.Array = jax.lax.dot_general(a, b, (over, ((), ())), preferred_element_type=kind).astype(out)
        return found

    def widened(a: jax.Array, b: jax.Array) -> jax.Array:
        return native(a.astype(jnp.float32), b.astype(jnp.float32), jnp.float32)

    if a.dtype != jnp.bfloat16:
        return native(a, b, out)
    narrow = partial(native, kind=out if out == jnp.bfloat16 else jnp.float32)
    # processors have not all of these products in bfloat16; the same numbers in float32 have the same ones
    found: jax.Array = jax.lax.platform_dependent(a, b, cpu=widened, default=narrow)
    return found


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: jax.Array, weights: jax.Array, axis: int = -1) -> jax.Array:
    """Of x [..., inputs] and weights [inputs, outputs], or with `axis` 0 of x [inputs, columns]; in x's type."""
    own = weights.astype(x.dtype)
    return dot(x, own, ((x.ndim - 1,), (0,)), x.dtype) if axis else dot(own, x, ((0,), (0,)), x.dtype)


def _forward(x: jax.Array, weights: jax.Array, axis: int) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return product(x, weights, axis), (x, weights)


def _backward(axis: int, saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights = saved
    own, rows = weights.astype(x.dtype), tuple(range(x.ndim - 1)) if axis else (1,)
    dx = dot(dy, own, ((x.ndim - 1,), (1,)), x.dtype) if axis else dot(own, dy, ((1,), (0,)), x.dtype)
    # ∂y first: of the two, XLA then turns over the smaller
    return dx, dot(dy, x, (rows, rows), weights.dtype).T


product.defvjp(_forward, _backward)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """In y's type; the sum and the bias's gradient, a sum over rows, in the bias's."""
    return (y.astype(bias.dtype) + bias).astype(y.dtype)
