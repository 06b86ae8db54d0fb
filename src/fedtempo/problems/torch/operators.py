"""Torchax's operators as `compiled` uses them, with those replaced that are wrong or slow.

    BatchNorm            updates its running mean and variance
    abs, clamp, leaky    have PyTorch's derivatives where they bend: |x|' is 0 at 0
    LSTM, GRU, RNN       are loops over time
    convolution, pooling are those of `convolution`, or of `accelerated` on graphics processors
    torch.no_grad()      stops gradients
    other tensors        such as the class weights of a loss, are constants

They are in an environment of torchax that only this package uses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as torch_tree

from fedtempo.problems.torch import convolution, recurrent

TELEMETRY = "ENABLE_RUNTIME_UPTIME_TELEMETRY"


@cache
def environment() -> Any:
    """Torchax's operators and ours."""
    found = _torchax_tensor().Environment()
    _with_constants(found)
    _with_stopped_gradients(found)
    aten: Any = torch.ops.aten
    bent: dict[Any, Callable[..., Any]] = {
        aten.abs: absolute,
        aten.clamp: clamp,
        aten.clamp_min: clamp,
        aten.clamp_max: lambda x, high: clamp(x, None, high),
        aten.hardtanh: hardtanh,
        aten.relu6: lambda x: hardtanh(x, 0, 6),
        aten.leaky_relu: leaky_relu,
    }
    for operator, function in bent.items():
        _replace(found, operator, _of_tensors(found, function))
    for operator in (aten.native_batch_norm, aten._native_batch_norm_legit.default):
        found.override_op_definition(operator, batch_norm)
    registered = import_module("torchax.ops.ops_registry").all_aten_ops
    for operator, function in convolution.replacements(lambda each: registered[each].func).items():
        found.override_op_definition(operator, _of_tensors(found, function))
    cells: dict[Any, recurrent.Cell] = {
        torch.lstm: recurrent.lstm_cell,
        torch.gru: recurrent.gru_cell,
        torch.rnn_tanh: recurrent.tanh_cell,
        torch.rnn_relu: recurrent.relu_cell,
    }
    for operator, cell in cells.items():
        found.override_op_definition(operator, recurrent.layers(cell))
    return found


def _replace(env: Any, operator: Any, function: Callable[..., Any]) -> None:
    """In all forms of the operator that give a new tensor."""
    for form in operator.overloads():
        if "out" not in form:
            env.override_op_definition(getattr(operator, form), function)
    env.override_op_definition(operator, function)


_IMPORTING = threading.Lock()


def _torchax_tensor() -> Any:
    """The module torchax.tensor; what importing torchax changes for everybody is changed back."""
    with _IMPORTING:  # another thread would take what it finds meanwhile for how it was
        fast, telemetry = torch.backends.mha.get_fastpath_enabled(), os.environ.get(TELEMETRY)
        try:
            return import_module("torchax.tensor")
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            if telemetry is None:
                os.environ.pop(TELEMETRY, None)


def _of_tensors(env: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX's arrays as one of torchax's tensors."""

    def converted(*args: Any, **more: Any) -> Any:
        args, more = env.t2j_iso((args, more))
        return env.j2t_iso(function(*args, **more))

    return converted


def _with_constants(env: Any) -> None:
    """Lets tensors that are not of torchax be constants, where torchax refuses to mix them with its own."""
    tensor, unwrap = _torchax_tensor(), env.t2j_iso

    def constant(each: torch.Tensor) -> Any:
        own = isinstance(each, (tensor.Tensor, tensor.View))
        return each if own else env.j2t_iso(jnp.asarray(array(each)))

    env.t2j_iso = lambda values: unwrap(torch_tree.tree_map_only(torch.Tensor, constant, values))


def _with_stopped_gradients(env: Any) -> None:
    """Lets nothing that is computed under torch.no_grad() have a gradient, but for what is changed in place."""
    tensor, dispatch, inside = _torchax_tensor(), env.dispatch, threading.local()

    def stopped(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if torch.is_grad_enabled() or getattr(inside, "another", False):
            return dispatch(func, types, args, kwargs)
        inside.another = True
        try:
            found = dispatch(func, types, args, kwargs)
        finally:
            inside.another = False
        given = {id(each) for each in torch_tree.tree_leaves(args)}
        for each in torch_tree.tree_leaves(found):
            if isinstance(each, tensor.Tensor) and id(each) not in given:
                each.apply_jax_(jax.lax.stop_gradient)
        return found

    env.dispatch = stopped


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy of a tensor of PyTorch, in its type."""
    own = tensor.detach().cpu()
    if own.dtype == torch.bfloat16:
        return np.asarray(own.float().numpy(), jnp.bfloat16)
    return np.array(own.numpy())


def absolute(x: jax.Array) -> jax.Array:
    """|x|, whose derivative at 0 is 0."""
    if jnp.iscomplexobj(x) or not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.abs(x)
    return x * jax.lax.stop_gradient(jnp.sign(x))


def clamp(x: jax.Array, min: Any = None, max: Any = None) -> jax.Array:
    """Between the bounds, whose derivative on a bound is 1."""
    kind = jnp.result_type(x, *(bound for bound in (min, max) if bound is not None))
    x = x.astype(kind)
    x = x if min is None else jnp.where(x < min, min, x).astype(kind)
    return x if max is None else jnp.where(x > max, max, x).astype(kind)


def hardtanh(x: jax.Array, low: float = -1, high: float = 1) -> jax.Array:
    """Between the bounds, whose derivative on a bound is 0."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x)).astype(x.dtype)


def leaky_relu(x: jax.Array, slope: float = 0.01) -> jax.Array:
    """x, or slope · x where x ≤ 0."""
    return jnp.where(x > 0, x, slope * x)


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalised with the batch's mean and variance, which the running ones then follow, or with the running ones."""
    env = x._env
    y, scale, shift = env.t2j_iso((x, weight, bias))
    others, shape = (0, *range(2, y.ndim)), (1, -1, *(1 for _ in y.shape[2:]))
    wide = jnp.promote_types(y.dtype, jnp.float32)
    if training:
        size = y.size // y.shape[1]
        if size < 2:
            raise ValueError(f"BatchNorm in training needs more than one value per channel, but has shape {y.shape}")
        m, v = jnp.mean(y, others, wide), jnp.var(y, others, wide)
        for running, now in ((mean, m), (variance, v * (size / (size - 1)))):
            if running is not None:
                now = jax.lax.stop_gradient(now)
                running.apply_jax_(lambda old, now=now: ((1 - momentum) * old + momentum * now).astype(old.dtype))
    else:
        m, v = env.t2j_iso((mean, variance))
    rate = jax.lax.rsqrt(v + eps)
    out = (y - m.reshape(shape)) * (rate if scale is None else rate * scale).reshape(shape)
    out = out if shift is None else out + shift.reshape(shape)
    return env.j2t_iso((out.astype(y.dtype), m, rate))
