"""Convolutions and pooling of PyTorch on processors: patches of a few images at a time, times the kernel.

    y[r, c] = Σ_{i, j} x[s r + d i, s c + d j] · w[i, j]        stride s, dilation d, x with its padding
    ∂w[i, j] = Σ_{r, c} x[s r + d i, s c + d j] · ∂y[r, c]
    ∂x = the same sum over ∂y, with w turned around and its channels exchanged (s = 1)

Patches of all images would be written to memory and read again, k · k times as large as the images. Here a loop makes
those of a few images, which stay in the processor's cache, and multiplies them at once; models that are batched take
turns. PyTorch's own convolution is faster still, and compiled modules call it by `foreign` where they can. On graphics
processors convolutions are those of `accelerated`.

Arrays are in PyTorch's order: images [rows, channels, places], kernels [out, channels / groups, places], where places
are one axis or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import ceil, inf, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from fedtempo.problems.torch import accelerated, foreign
from fedtempo.problems.torch.window import Window, each_axis

CACHED = 4 << 20
"""So many bytes of patches are made at a time."""


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> jax.Array:
    """[rows, out, places] of images [rows, in, places] and a kernel [out, in / groups, places]."""
    axes = x.ndim - 2
    window = Window(kernel.shape[2:], each_axis(stride, axes), each_axis(dilation, axes))
    x = jnp.pad(_last(x), ((0, 0), *((p, p) for p in each_axis(padding, axes)), (0, 0)))
    matrices = kernel.reshape(groups, -1, *kernel.shape[1:])
    matrices = jnp.moveaxis(matrices, (1, 2), (-1, -2))  # [groups, *size, in / groups, out / groups]
    parts = [_convolve(window, part, w) for part, w in zip(jnp.split(x, groups, axis=-1), matrices, strict=True)]
    return _first(jnp.concatenate(parts, axis=-1) if groups > 1 else parts[0])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(window: Window, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """[rows, places, out] of padded images [rows, *, in] and a kernel [*size, in, out]."""
    return _alone(partial(_forward, window))(x, kernel)


def _saved(window: Window, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(window, x, kernel), (x, kernel)


def _backward(window: Window, saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return _alone(partial(_images, window, x.shape[1:-1]))(dy, kernel), _alone(partial(_kernel, window))(x, dy)


_convolve.defvjp(_saved, _backward)


def _forward(window: Window, x: jax.Array, kernel: jax.Array) -> jax.Array:
    matrix = kernel.reshape(-1, kernel.shape[-1])
    each = prod(window.places(x.shape[1:-1])) * len(matrix)

    def some(x: jax.Array) -> jax.Array:
        return (window.patches(x) @ matrix).reshape(len(x), *window.places(x.shape[1:-1]), -1)

    (blocks,) = _blocks(each, x)
    return some(x) if blocks is None else lax.map(some, blocks).reshape(-1, *_row_shape(some, x))[: len(x)]


def _row_shape(some: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[int, ...]:
    """The shape of one row of what a function makes of rows."""
    found: tuple[int, ...] = jax.eval_shape(some, x[:1]).shape
    return found[1:]


def _kernel(window: Window, x: jax.Array, dy: jax.Array) -> jax.Array:
    """∂w."""
    out = dy.shape[-1]
    shape = (*window.size, x.shape[-1], out)
    each = prod(window.places(x.shape[1:-1])) * prod(shape[:-1])

    def some(x: jax.Array, dy: jax.Array) -> jax.Array:
        return dy.reshape(-1, out).T @ window.patches(x)  # of the two, XLA then turns over the smaller

    blocks: Any = _blocks(each, x, dy)
    if blocks[0] is None:
        total = some(x, dy)
    else:
        start = jnp.zeros((out, prod(shape[:-1])), dy.dtype)
        total, _ = lax.scan(lambda total, block: (total + some(*block), None), start, blocks)
    return total.T.reshape(shape)


def _images(window: Window, shape: tuple[int, ...], dy: jax.Array, kernel: jax.Array) -> jax.Array:
    """∂x, of padded images of that shape."""
    axes = range(len(shape))
    if prod(window.stride) == 1:
        turned = jnp.flip(kernel, tuple(axes)).swapaxes(-1, -2)
        around = [(d * (k - 1),) * 2 for d, k in zip(window.dilation, window.size, strict=True)]
        return _forward(window, jnp.pad(dy, ((0, 0), *around, (0, 0))), turned)
    like = jax.ShapeDtypeStruct((1, *shape, kernel.shape[-2]), dy.dtype)  # type: ignore[no-untyped-call]
    matrix = kernel.reshape(-1, kernel.shape[-1])

    def some(dy: jax.Array) -> jax.Array:
        patches = (dy.reshape(-1, matrix.shape[1]) @ matrix.T).reshape(*dy.shape[:-1], -1)
        rows = jax.ShapeDtypeStruct((len(dy), *like.shape[1:]), dy.dtype)  # type: ignore[no-untyped-call]
        back: jax.Array
        (back,) = jax.linear_transpose(window.shifted, rows)(jnp.split(patches, prod(window.size), axis=-1))
        return back

    (blocks,) = _blocks(prod(dy.shape[1:-1]) * len(matrix), dy)
    return some(dy) if blocks is None else lax.map(some, blocks).reshape(-1, *like.shape[1:])[: len(dy)]


def _blocks(each: int, *arrays: jax.Array) -> tuple[jax.Array | None, ...]:
    """Arrays as [blocks, rows, ...] with zeros at the end, if patches of `each` numbers a row do not fit the cache."""
    rows = len(arrays[0])
    count = ceil(rows / max(1, CACHED // (each * arrays[0].dtype.itemsize)))
    if count <= 1:
        return (None,) * len(arrays)
    size = ceil(rows / count)

    def cut(array: jax.Array) -> jax.Array:
        more = size * ceil(rows / size) - rows
        padded = jnp.pad(array, ((0, more), *((0, 0) for _ in array.shape[1:]))) if more else array
        return padded.reshape(-1, size, *array.shape[1:])

    return tuple(map(cut, arrays))


def _alone(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The function, whose batches are worked off one after the other."""
    found: Callable[..., jax.Array] = jax.custom_batching.sequential_vmap(function)  # type: ignore[no-untyped-call]
    return found


def max_pool(
    x: jax.Array, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> jax.Array:
    """The largest of each window; its gradient goes to the first of the largest, as PyTorch's does."""
    axes = x.ndim - 2
    window = Window(each_axis(size, axes), each_axis(stride or size, axes), each_axis(dilation, axes))
    around = ((0, 0), *((p, p) for p in each_axis(padding, axes)), (0, 0))
    lowest = -inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min
    channels = 1 if _processor() else 0  # on an accelerator it is rows that lie last
    shifted = window.shifted(jnp.pad(jnp.moveaxis(x, channels, -1), around, constant_values=lowest))
    found = reduce(lambda a, b: jnp.where((b > a) | (b != b), b, a), shifted)
    return jnp.moveaxis(found, -1, channels)


def average_pool(x: jax.Array, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> jax.Array:
    """The mean of each window, zeros of the padding included."""
    axes = x.ndim - 2
    window = Window(each_axis(size, axes), each_axis(stride or size, axes), (1,) * axes)
    padded = jnp.pad(_last(x), ((0, 0), *((p, p) for p in each_axis(padding, axes)), (0, 0)))
    return _first(reduce(jnp.add, window.shifted(padded)) / prod(window.size))


def _last(x: jax.Array) -> jax.Array:
    """Images with their channels last."""
    return jnp.moveaxis(x, 1, -1)


def _first(x: jax.Array) -> jax.Array:
    """Images with their channels first."""
    return jnp.moveaxis(x, -1, 1)


def replacements(torchax: Callable[[Any], Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By operator of aten: functions of arrays; `torchax(operator)` is torchax's, for other cases."""
    aten: Any = torch.ops.aten
    theirs = {each: torchax(each) for each in (aten.convolution, aten.max_pool2d_with_indices, aten.avg_pool2d)}

    def convolution(
        x: jax.Array, weight: jax.Array, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
        output_padding: Any, groups: int,
    ) -> jax.Array:  # fmt: skip
        shift = None if bias is None else bias.reshape(1, -1, *(1 for _ in x.shape[2:]))
        simple = not transposed and x.ndim in (3, 4) and x.ndim == weight.ndim
        if simple and groups == 1 and jax.default_backend() == "gpu" and jnp.issubdtype(x.dtype, jnp.floating):
            y = accelerated.convolve(x, weight, stride, padding, dilation)
            return y if shift is None else y + shift
        if not simple or not _processor():
            found: jax.Array = theirs[aten.convolution](
                x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )
            return found
        if foreign.suits(x, weight):
            axes = x.ndim - 2
            walk = [each_axis(numbers, axes) for numbers in (stride, padding, dilation)]
            window = Window(weight.shape[2:], walk[0], walk[2])
            places = window.places([n + 2 * p for n, p in zip(x.shape[2:], walk[1], strict=True)])
            own = jnp.zeros(len(weight), x.dtype) if bias is None else bias.astype(x.dtype)
            return foreign.convolve((*walk[0], *walk[1], *walk[2], groups), places, x, weight, own)
        y = convolve(x, weight, stride, padding, dilation, groups)
        return y if shift is None else y + shift

    def max_pool2d(
        x: jax.Array, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        walk = [each_axis(numbers, 2) for numbers in (kernel_size, stride or kernel_size, padding, dilation)]
        largest, indices = theirs[aten.max_pool2d_with_indices](x, *walk, ceil_mode)
        if x.ndim == 4 and not ceil_mode and jax.default_backend() in ("cpu", "gpu"):
            largest = max_pool(x, *walk)
        return largest, indices

    def functional_max_pool2d(*given: Any, return_indices: bool = False, **more: Any) -> Any:
        found = max_pool2d(*given[:6], **more)
        return found if return_indices or given[6:] == (True,) else found[0]

    def avg_pool2d(
        x: jax.Array, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> jax.Array:  # fmt: skip
        plain = count_include_pad or not any(each_axis(padding, 2))
        if x.ndim == 4 and not ceil_mode and plain and divisor_override is None and _processor():
            return average_pool(x, size, stride, padding)
        found: jax.Array = theirs[aten.avg_pool2d](
            x, size, stride, padding, ceil_mode, count_include_pad, divisor_override
        )
        return found

    return {
        aten.convolution: convolution,
        aten.max_pool2d_with_indices: max_pool2d,
        torch.nn.functional.max_pool2d: functional_max_pool2d,
        aten.avg_pool2d: avg_pool2d,
    }


def _processor() -> bool:
    return jax.default_backend() == "cpu"
