"""PyTorch's own convolutions inside programs of JAX, on processors: called through XLA's foreign functions.

XLA calls a function of C with the addresses of its arrays; here that function is Python's, by ctypes, which looks at
the same memory as tensors and writes PyTorch's answer into XLA's. Nothing is copied but the answer, threads share the
images, and the program can be batched, looped and differentiated: a convolution's gradients are two further
calls, the one for the images left out where nobody asks for it. Batched models take turns.

The structures are those of XLA's C interface, version 0 (xla/ffi/api/c_api.h), which is kept stable.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache, partial, reduce
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

TARGET = "fedtempo_torch"
KINDS = {4: np.int32, 11: np.float32, 12: np.float64}
"""XLA's numbers of the types that are used."""
Numbers = tuple[int, ...]


class _Extension(Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class _Version(Structure):
    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int))


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _Version))


class _MetadataExtension(Structure):
    _fields_ = (("base", _Extension), ("metadata", POINTER(_Metadata)))


class _Error(Structure):
    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int))


class _Interface(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("error", ctypes.CFUNCTYPE(c_void_p, POINTER(_Error))),
    )  # fmt: skip


_SHARES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Threads that share the images of a convolution."""
SHARED = 1 << 22
"""Multiplications that are worth another thread."""
_HELPERS = ThreadPoolExecutor(max(1, _SHARES - 1), "fedtempo-convolution")


@cache
def _set_threads() -> Callable[[int], Any]:
    """Sets how many threads PyTorch uses when this thread calls it; `torch.set_num_threads` sets it for others too."""
    for path in sorted(Path(torch.__file__).parent.glob("lib/lib*omp*")):
        with suppress(OSError, AttributeError):
            found: Callable[[int], Any] = ctypes.CDLL(str(path)).omp_set_num_threads
            return found
    return lambda count: None


def _shared_out(some: Callable[[slice], Any], rows: int, work: int) -> list[Any]:
    """What a function makes of each share of the rows, by several threads at once.

    PyTorch's own threads would do it too. But each thread of XLA's would have some of its own, more than there are
    processors, and PyTorch is slow in every other thread from then on.
    """
    count = min(rows, _SHARES, 1 + work // SHARED)
    shares = [slice(*each) for each in pairwise(rows * k // count for k in range(count + 1))]

    def one(share: slice) -> Any:
        before = torch.get_num_threads()
        _set_threads()(1)
        try:
            with torch.no_grad():
                return some(share)
        finally:
            _set_threads()(before)

    others = [_HELPERS.submit(one, share) for share in shares[1:]]
    return [one(shares[0]), *(each.result() for each in others)]


_CALL = c_int64 * 15
"""size, extension, interface, context, stage; then twice, of what is given and of results: size, extension, count,
types, addresses of buffers."""
_BUFFER = c_int64 * 6
"""size, extension, type, data, rank, shape."""
_SEEN: dict[tuple[int, ...], Any] = {}
"""Tensors by type, place and shape: a loop's calls look at the same memory again and again."""
MOST_SEEN = 1 << 10


def _tensors(count: int, addresses: int) -> list[Any]:
    """XLA's memory, as PyTorch sees it."""
    found = []
    for address in (c_int64 * count).from_address(addresses):
        _, _, kind, data, rank, shape = _BUFFER.from_address(address)
        key = (kind & 0xFFFFFFFF, data, *(c_int64 * rank).from_address(shape))
        tensor = _SEEN.get(key)
        if tensor is None:
            dtype = np.dtype(KINDS[key[0]])
            memory: Any = (ctypes.c_char * (prod(key[2:]) * dtype.itemsize)).from_address(data)
            if len(_SEEN) >= MOST_SEEN:
                _SEEN.clear()
            tensor = _SEEN[key] = torch.from_numpy(np.ndarray(key[2:], dtype, memory))
        found.append(tensor)
    return found


def _handle(frame: int) -> int | None:
    """What XLA calls: once to ask for the version, then with arrays [numbers, ...]."""
    _, extension, interface, _, _, _, _, given, _, inputs, _, _, made, _, outputs = _CALL.from_address(frame)
    try:
        if extension and _Extension.from_address(extension).type == 1:
            version = _MetadataExtension.from_address(extension).metadata.contents.version
            version.major, version.minor = 0, 1
            return None
        numbers, *arrays = _tensors(given, inputs)
        which, *numbers = numbers.tolist()
        FUNCTIONS[which](_tensors(made, outputs), numbers, *arrays)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}".encode()
        told = _Error(ctypes.sizeof(_Error), None, message, 13)
        found: int | None = _Interface.from_address(interface).error(ctypes.byref(told))
        return found
    return None


_HANDLER = ctypes.CFUNCTYPE(c_void_p, c_void_p)(_handle)


def _forward(results: list[Any], numbers: list[int], x: Any, kernel: Any, bias: Any) -> None:
    stride, padding, dilation, groups = _settings(numbers, x.ndim - 2)
    zeros = [0] * len(stride)

    def some(images: slice) -> None:
        made = torch.ops.aten.convolution(x[images], kernel, bias, stride, padding, dilation, False, zeros, groups)
        results[0][images].copy_(made)

    _shared_out(some, len(x), results[0].numel() * kernel[0].numel())


def _backward(images: bool, results: list[Any], numbers: list[int], x: Any, kernel: Any, dy: Any) -> None:
    """The gradient of the images, or those of the kernel and the bias."""
    stride, padding, dilation, groups = _settings(numbers, x.ndim - 2)
    wanted, zeros = [images, not images, not images], [0] * len(stride)

    def some(part: slice) -> tuple[Any, ...]:
        found: tuple[Any, ...] = torch.ops.aten.convolution_backward(
            dy[part], x[part], kernel, [len(kernel)], stride, padding, dilation, False, zeros, groups, wanted
        )
        if images:
            results[0][part].copy_(found[0])
        return found

    parts = _shared_out(some, len(x), dy.numel() * kernel[0].numel())
    if not images:
        for result, *each in zip(results, *(found[1:] for found in parts), strict=True):
            result.copy_(reduce(torch.add, each))


def _settings(numbers: list[int], axes: int) -> tuple[list[int], list[int], list[int], int]:
    return numbers[:axes], numbers[axes : 2 * axes], numbers[2 * axes : 3 * axes], numbers[-1]


FUNCTIONS: tuple[Callable[..., None], ...] = (_forward, partial(_backward, True), partial(_backward, False))
FORWARD, TO_IMAGES, TO_KERNEL = range(3)


@cache
def available() -> bool:
    """Whether this machine's XLA takes such functions."""
    try:
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_HANDLER), platform="cpu")  # type: ignore[no-untyped-call]
        with jax.ensure_compile_time_eval():
            x, kernel = jnp.ones((1, 1, 3), jnp.float32), jnp.ones((1, 1, 2), jnp.float32)
            return bool(_call(FORWARD, (1, 0, 1, 1), [x[:, :, 1:]], x, kernel, x[0, 0, :1])[0].sum() == 6)
    except Exception:
        return False


def suits(*arrays: jax.Array) -> bool:
    """Whether arrays can be handed over: floating ones that are not empty, on a processor."""
    plain = all(each.dtype in (jnp.float32, jnp.float64) and each.size for each in arrays)
    return jax.default_backend() == "cpu" and plain and len({each.dtype for each in arrays}) == 1 and available()


def _call(which: int, numbers: Sequence[int], like: Sequence[Any], *given: jax.Array) -> Sequence[jax.Array]:
    """The results, of those shapes and types."""
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in like]  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(TARGET, shapes, vmap_method="sequential")
    return call(jnp.array((which, *numbers), jnp.int32), *given)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def convolve(numbers: Numbers, places: Numbers, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Of images and a kernel in PyTorch's order; numbers are strides, paddings, dilations and groups."""
    like = jax.ShapeDtypeStruct((len(x), len(kernel), *places), x.dtype)  # type: ignore[no-untyped-call]
    return _call(FORWARD, numbers, [like], x, kernel, bias)[0]


def _saved(numbers: Numbers, places: Numbers, *given: jax.Array) -> tuple[jax.Array, Any]:
    return convolve(numbers, places, *given), given


def _gradients(numbers: Numbers, places: Numbers, saved: Any, dy: jax.Array) -> tuple[jax.Array, ...]:
    x, kernel, bias = saved
    (images,) = _call(TO_IMAGES, numbers, [x], x, kernel, dy)
    return images, *_call(TO_KERNEL, numbers, [kernel, bias], x, kernel, dy)


convolve.defvjp(_saved, _gradients)
