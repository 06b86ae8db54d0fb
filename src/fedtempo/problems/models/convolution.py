"""Convolution as a product of matrices: patches of the image times the kernel.

    y[r, c] = Σ_{i, j} x[r + i, c + j] · w[i, j]

Under batching over clients, each with a kernel of its own, this is one product a client: much faster than grouped
convolutions, on processors and on accelerators. Images are [rows, height, width, channels] here, which is fastest on
processors; `channels_first` has the same functions in the order that accelerators like.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedtempo.problems.models.precision import product


def arranged(images: jax.Array) -> jax.Array:
    """Images [rows, height, width, channels] in the order of this module: as they are."""
    return images


def per_channel(numbers: jax.Array) -> jax.Array:
    """One number a channel, to be used with images of this order."""
    return numbers


def convolve(x: jax.Array, kernel: jax.Array, *, same: bool = False) -> jax.Array:
    """[rows, height, width, out] of images [rows, height, width, in] and a kernel [size, size, in, out].

    Without `same` only where the kernel fits; with it the image is padded by zeros to keep its size.
    """
    size, _, channels, out = kernel.shape
    if same:
        low, high = (size - 1) // 2, size // 2
        x = jnp.pad(x, ((0, 0), (low, high), (low, high), (0, 0)))
    return product(patches(x, size), kernel.reshape(size * size * channels, out))


def patches(x: jax.Array, size: int) -> jax.Array:
    """[rows, height, width, size · size · in] what the kernel sees at each place where it fits."""
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    shifted = [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1)


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of each 2 × 2 places; a last row or column without a partner is left out."""
    height, width = x.shape[1] // 2, x.shape[2] // 2
    x = x[:, : 2 * height, : 2 * width]
    return x.reshape(x.shape[0], height, 2, width, 2, x.shape[3]).max(axis=(2, 4))


def flat(x: jax.Array) -> jax.Array:
    """[channels · height · width, rows] the images as features."""
    return x.transpose(3, 1, 2, 0).reshape(-1, len(x))
