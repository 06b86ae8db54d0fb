"""The functions of `convolution` for images [channels, height, width, rows].

Patches are then copies of consecutive numbers, and the long side of a product lies innermost: on an accelerator a step
of many models takes little more than half of the time. The gradient of pooling goes to the first of the largest places.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedtempo.problems.models.precision import product

Saved = tuple[jax.Array, jax.Array]


def arranged(images: jax.Array) -> jax.Array:
    """Images [rows, height, width, channels] in the order of this module."""
    return images.transpose(3, 1, 2, 0)


def per_channel(numbers: jax.Array) -> jax.Array:
    """One number a channel, to be used with images of this order."""
    return numbers[:, None, None, None]


def convolve(x: jax.Array, kernel: jax.Array, *, same: bool = False) -> jax.Array:
    """[out, height, width, rows] of images [in, height, width, rows] and a kernel [size, size, in, out]."""
    size, _, channels, out = kernel.shape
    if same:
        low, high = (size - 1) // 2, size // 2
        x = jnp.pad(x, ((0, 0), (low, high), (low, high), (0, 0)))
    seen = patches(x, size)
    y = product(seen.reshape(len(seen), -1), kernel.reshape(size * size * channels, out), 0)
    return y.reshape(out, *seen.shape[1:])


def patches(x: jax.Array, size: int) -> jax.Array:
    """[size · size · in, height, width, rows] what the kernel sees at each place where it fits."""
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=0)


@jax.custom_vjp
def max_pool(x: jax.Array) -> jax.Array:
    """The largest of each 2 × 2 places; a last row or column without a partner is left out."""
    return _forward(x)[0]


def _forward(x: jax.Array) -> tuple[jax.Array, Saved]:
    height, width = x.shape[1] // 2, x.shape[2] // 2
    four = x[:, : 2 * height, : 2 * width].reshape(len(x), height, 2, width, 2, -1)
    a, b, c, d = (four[:, :, i, :, j] for i in (0, 1) for j in (0, 1))
    largest = jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))
    place = jnp.where(a == largest, 0, jnp.where(b == largest, 1, jnp.where(c == largest, 2, 3))).astype(jnp.uint8)
    return largest, (place, jnp.zeros((x.shape[1] % 2, x.shape[2] % 2), jnp.uint8))


def _backward(saved: Saved, dy: jax.Array) -> tuple[jax.Array]:
    place, left_out = saved
    channels, height, width, rows = place.shape
    here = jnp.arange(4, dtype=jnp.uint8).reshape(2, 1, 2, 1)
    four = jnp.where(place[:, :, None, :, None] == here, dy[:, :, None, :, None], 0)
    dx = four.reshape(channels, 2 * height, 2 * width, rows)
    return (jnp.pad(dx, ((0, 0), (0, left_out.shape[0]), (0, left_out.shape[1]), (0, 0))),)


max_pool.defvjp(_forward, _backward)


def flat(x: jax.Array) -> jax.Array:
    """[channels · height · width, rows] the images as features."""
    return x.reshape(-1, x.shape[-1])
