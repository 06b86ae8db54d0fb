"""PyTorch's own convolutions inside programs of JAX, on processors: called through XLA's foreign functions.

XLA calls a function of C with the addresses of its arrays; here that function is Python's, by ctypes, which looks at
the same memory as tensors and writes PyTorch's answer into XLA's. Nothing is copied but the answer, threads do not wait
for one another, and the program can be batched, looped and differentiated: a convolution's gradients are two further
calls, the one for the images left out where nobody asks for it. Batched models take turns.

The structures are those of XLA's C interface, version 0 (xla/ffi/api/c_api.h), which is kept stable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache, partial
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


class _Buffer(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", c_void_p), ("kind", c_int), ("data", c_void_p), ("rank", c_int64),
        ("shape", POINTER(c_int64)),
    )  # fmt: skip


class _Buffers(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", c_void_p), ("size", c_int64), ("types", c_void_p),
        ("each", POINTER(POINTER(_Buffer))),
    )  # fmt: skip


class _Error(Structure):
    _fields_ = (("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int))


class _Interface(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("error", ctypes.CFUNCTYPE(c_void_p, POINTER(_Error))),
    )  # fmt: skip


class _Call(Structure):
    _fields_ = (
        ("struct_size", c_size_t), ("extension", POINTER(_Extension)), ("interface", POINTER(_Interface)),
        ("context", c_void_p), ("stage", c_int), ("given", _Buffers), ("results", _Buffers),
    )  # fmt: skip


def _arrays(buffers: _Buffers) -> list[Any]:
    """XLA's memory, as NumPy sees it."""
    found = []
    for k in range(buffers.size):
        buffer = buffers.each[k].contents
        shape, kind = tuple(buffer.shape[: buffer.rank]), np.dtype(KINDS[buffer.kind])
        memory: Any = (ctypes.c_char * (int(np.prod(shape)) * kind.itemsize)).from_address(buffer.data)
        found.append(np.ndarray(shape, kind, memory))
    return found


def _handle(frame: Any) -> int | None:
    """What XLA calls: once to ask for the version, then with arrays [numbers, ...]."""
    call = frame.contents
    try:
        if call.extension and call.extension.contents.type == 1:
            extension = ctypes.cast(call.extension, POINTER(_MetadataExtension)).contents
            version = extension.metadata.contents.version
            version.major, version.minor = 0, 1
            return None
        numbers, *given = _arrays(call.given)
        with torch.no_grad():
            results = list(map(torch.from_numpy, _arrays(call.results)))
            FUNCTIONS[int(numbers[0])](results, numbers[1:].tolist(), *map(torch.from_numpy, given))
    except BaseException as error:
        message = f"{type(error).__name__}: {error}".encode()
        told = _Error(ctypes.sizeof(_Error), None, message, 13)
        found: int | None = call.interface.contents.error(ctypes.byref(told))
        return found
    return None


_HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_Call))(_handle)


def _forward(results: list[Any], numbers: list[int], x: Any, kernel: Any, bias: Any) -> None:
    stride, padding, dilation, groups = _settings(numbers, x.ndim - 2)
    zeros = [0] * len(stride)
    results[0].copy_(torch.ops.aten.convolution(x, kernel, bias, stride, padding, dilation, False, zeros, groups))


def _backward(images: bool, results: list[Any], numbers: list[int], x: Any, kernel: Any, dy: Any) -> None:
    """The gradient of the images, or those of the kernel and the bias."""
    stride, padding, dilation, groups = _settings(numbers, x.ndim - 2)
    wanted, zeros = [images, not images, not images], [0] * len(stride)
    found = torch.ops.aten.convolution_backward(
        dy, x, kernel, [len(kernel)], stride, padding, dilation, False, zeros, groups, wanted
    )
    for result, each in zip(results, [each for each in found if each is not None], strict=True):
        result.copy_(each)


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
