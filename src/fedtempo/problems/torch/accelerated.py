"""Convolutions of PyTorch on graphics processors: patches of all images by one gather, times the kernel.

    y = w · patches(x),    ∂w = ∂y · patches(x)ᵀ,    ∂x = the patches wᵀ · ∂y, each added to where it was seen

Many models are trained at once, each with its own kernel. cuDNN takes these as groups, and most of its kernels then run
model by model; a product of matrices takes them all. Without a gradient, as models are measured, it is cuDNN.

Images are [in, *places, rows] inside: rows lie innermost, so that patches are copies of consecutive numbers. XLA keeps
them so from layer to layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedtempo.problems.torch.window import Window, each_axis

SAVED = 1 << 26
"""Patches of a layer and batch up to so many bytes are kept for the backward pass; larger ones are made again."""

Saved = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class _Walk:
    """A window over images whose places have that shape, with zeros around them."""

    window: Window
    padding: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        return self.window.places([n + 2 * p for n, p in zip(self.shape, self.padding, strict=True)])

    def padded(self, x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), *((p, p) for p in self.padding), (0, 0)))

    def patches(self, x: jax.Array) -> jax.Array:
        """[in · points, places · rows]: one gather, which takes half of the time of putting slices together."""
        window, which, axes = self.window, [], len(self.shape)
        if prod(window.size) == 1:
            return window.shifted(self.padded(x))[0].reshape(len(x), -1)
        x = lax.optimization_barrier(self.padded(x))  # type: ignore[no-untyped-call]
        steps = zip(self.places, window.size, window.stride, window.dilation, strict=True)
        for axis, (n, k, s, d) in enumerate(steps):
            seen = d * np.arange(k)[:, None] + s * np.arange(n)
            shape = np.ones(2 * axes, dtype=int)
            shape[[axis, axes + axis]] = k, n
            which.append(seen.reshape(shape))
        found = x.at[(slice(None), *which)].get(mode="promise_in_bounds")
        return found.reshape(len(x) * prod(window.size), -1)

    def added(self, patches: jax.Array) -> jax.Array:
        """[in, *, rows] the transpose of `patches`."""
        points = patches.reshape(-1, prod(self.window.size), *self.places, patches.shape[1] // prod(self.places))
        like = jax.ShapeDtypeStruct((len(points), *self.shape, points.shape[-1]), points.dtype)  # type: ignore[no-untyped-call]
        (x,) = jax.linear_transpose(lambda x: self.window.shifted(self.padded(x)), like)(
            [points[:, k] for k in range(points.shape[1])]
        )
        found: jax.Array = x
        return found


def convolve(
    x: jax.Array, kernel: jax.Array, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> jax.Array:
    """[rows, out, places] of images [rows, in, places] and a kernel [out, in, places]."""
    axes = x.ndim - 2
    window = Window(kernel.shape[2:], each_axis(stride, axes), each_axis(dilation, axes))
    walk = _Walk(window, each_axis(padding, axes), x.shape[2:])
    return jnp.moveaxis(_convolve(walk, jnp.moveaxis(x, 0, -1), kernel), -1, 0)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(walk: _Walk, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[out, places, rows] of images [in, *, rows] and a kernel [out, in, *size]."""
    axes = range(1, x.ndim - 1)
    images, kernels = (x.ndim - 1, 0, *axes), (0, 1, *(axis + 1 for axis in axes))
    return lax.conv_general_dilated(
        x,
        kernel,
        walk.window.stride,
        [(p, p) for p in walk.padding],
        rhs_dilation=walk.window.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(images, kernels, images),
    )


def _forward(walk: _Walk, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Saved]:
    patches = walk.patches(x)
    y = (kernel.reshape(len(kernel), -1) @ patches).reshape(len(kernel), *walk.places, x.shape[-1])
    return y, (patches if patches.size * patches.dtype.itemsize <= SAVED else x, kernel)


def _backward(walk: _Walk, saved: Saved, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    seen, kernel = saved
    patches = seen if seen.ndim == 2 else walk.patches(seen)
    matrix, columns = kernel.reshape(len(kernel), -1), dy.reshape(len(dy), -1)
    return walk.added(matrix.T @ columns), (columns @ patches.T).reshape(kernel.shape)


_convolve.defvjp(_forward, _backward)
