"""A torch.nn.Module, as it is, as pure functions of JAX: traced by torchax, then compared with PyTorch.

    loss(params, batch, key, state) -> (mean loss, new state)
    metric(params, batch, state) -> value

`params` are the module's trainable parameters by name, tied ones once; `state` its buffers by name, such as BatchNorm's
running means; frozen parameters are constants. With a `key` the module is in training mode and draws what it needs from
the key (dropout); with None it is in evaluation mode. The functions work under jit, vmap, grad and loops.

Whole numbers are what PyTorch expects: 32 bits of them where JAX has no 64, which torchax takes as indices and labels.
A module that cannot be traced, or whose answers differ from PyTorch's, is `NotCompilable`.
"""

from __future__ import annotations

import copy
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from fedtempo.problems.torch.operators import array, environment

Tree = Any
Arrays = dict[str, Any]
"""By name, of JAX or NumPy."""
Compute = Callable[[nn.Module, Any], torch.Tensor]
"""(module, batch of tensors) -> a scalar, in torch code: a forward pass and a loss, or a metric."""

TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
"""Relative to the largest number of the same kind: of the loss, of a buffer, of the whole gradient."""
ROUGH = 3e-2
"""The tolerance of modules that compute in 16 bits somewhere."""
QUICK = {"xla_backend_optimization_level": 0}
"""How the comparison is compiled; it runs once. Its exponentials have fewer digits."""

LIBRARIES = ("torch", "torchax", "jax", "opt_einsum", "numpy")
"""Lines of their code do not tell a user where to look."""

_TRACING = threading.RLock()
"""Held while a module has JAX's arrays in place of its own: one thread traces at a time."""


class NotCompilable(Exception):
    """Why a module cannot be a function of JAX, in one line."""


@dataclass(frozen=True)
class Compiled:
    """A module's loss and metrics as functions of JAX."""

    loss: Callable[[Arrays, Tree, jax.Array | None, Arrays], tuple[jax.Array, Arrays]]
    """(params, batch, key, state) -> (mean loss, new state); without a key in evaluation mode."""
    metrics: dict[str, Callable[[Arrays, Tree, Arrays], jax.Array]]
    """(params, batch, state) -> value, in evaluation mode."""
    random: bool = False
    """Whether it draws from the key in training."""


def compiled(
    module: nn.Module, compute: Compute, metrics: Mapping[str, Compute], example: Tree, dtype: str = "float32"
) -> Compiled:
    """The module with its loss `compute(module, batch)` and `metrics`, tried on the batch `example` of NumPy arrays.

    `dtype` is the type of its parameters and of floating rows; those of 16 bits stay as they are. The module itself is
    left alone: a copy is traced. Raises `NotCompilable` where that fails or gives other numbers than PyTorch.
    """
    traced = _Traced(module, dtype)

    def loss(params: Arrays, batch: Tree, key: jax.Array | None, state: Arrays) -> tuple[jax.Array, Arrays]:
        value, new = traced.run(compute, params, batch, key, state)
        if value.shape != ():
            raise NotCompilable(
                f"its loss has the shape {value.shape}; return a scalar, the mean over the batch's rows"
            )
        return value, new

    def metric(function: Compute) -> Callable[[Arrays, Tree, Arrays], jax.Array]:
        return lambda params, batch, state: traced.run(function, params, batch, None, state)[0]

    found = Compiled(loss, {name: metric(function) for name, function in metrics.items()})
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        random = _check(traced, found, compute, metrics, example)
    return replace(found, random=random)


class _Whole(nn.Module):
    """The module with the torch code around it, for `functional_call`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, compute: Compute, batch: Any) -> torch.Tensor:
        return compute(self.module, batch)


class _Traced:
    """A copy of a module that runs on JAX's arrays."""

    def __init__(self, module: nn.Module, dtype: str) -> None:
        lazy = [
            name for name, each in module.named_parameters() if isinstance(each, nn.parameter.UninitializedParameter)
        ]
        if lazy:
            raise NotCompilable(f"its parameter {lazy[0]} has no shape yet; first run it once on a batch")
        try:
            self.module = _converted(copy.deepcopy(module).cpu(), dtype)
        except Exception as error:
            raise NotCompilable(f"it cannot be copied: {_reason(error)}") from error
        self.dtype = dtype
        self.whole = _Whole(self.module)
        named = dict(self.module.named_parameters())
        self.params = {name: array(each) for name, each in named.items() if each.requires_grad}
        self.frozen = {name: array(each) for name, each in named.items() if not each.requires_grad}
        self.state = {name: array(each) for name, each in self.module.named_buffers()}
        try:
            self.env = environment()
        except Exception as error:
            raise NotCompilable(f"torchax cannot be imported ({_reason(error)}); pip install torchax") from error
        self.random = False
        """Whether the last trace drew random numbers."""

    def run(
        self, compute: Compute, params: Arrays, batch: Tree, key: jax.Array | None, state: Arrays
    ) -> tuple[jax.Array, Arrays]:
        """The function's value and the buffers that it leaves behind."""
        for what, given, own in (("params", params, self.params), ("state", state, self.state)):
            if given.keys() != own.keys():
                raise ValueError(f"{what}: give the arrays {', '.join(own) or 'of none'}, and no others")
        state = {name: jnp.asarray(each) for name, each in state.items()}
        arrays = {**self.frozen, **params, **state}
        with _tracing(self.env, key) as used:
            before = _settings(self.module)
            self.module.train(key is not None)
            tensors = {f"module.{name}": self.env.j2t_iso(jnp.asarray(each)) for name, each in arrays.items()}
            rows = jax.tree.map(lambda leaf: self.env.j2t_iso(self._row(leaf)), batch)
            value = self.env.t2j_iso(torch.func.functional_call(self.whole, tensors, (compute, rows)))
            left = {name: self.env.t2j_iso(tensors[f"module.{name}"]) for name in state}
            self.random = used()
            changed = _changed(before, _settings(self.module))
        if changed:
            raise NotCompilable(f"its attribute {changed} changes when it runs; register it as a buffer")
        if self.random and key is None:
            raise NotCompilable("it draws random numbers in evaluation mode")
        for name, each in left.items():
            if each.shape != state[name].shape:
                raise NotCompilable(f"its buffer {name} changes its shape to {each.shape} when it runs")
        return value, {name: each.astype(state[name].dtype) for name, each in left.items()}

    def _row(self, leaf: Any) -> jax.Array:
        """A leaf of a batch in the type that the module's tensors have."""
        array = jnp.asarray(leaf)
        if array.dtype in (jnp.float32, jnp.float64):
            return array.astype(self.dtype)
        if jnp.result_type(int) == jnp.int64 and jnp.issubdtype(array.dtype, jnp.signedinteger):
            return array.astype(jnp.int64)
        return array


@contextmanager
def _tracing(env: Any, key: jax.Array | None) -> Iterator[Callable[[], bool]]:
    """Torch code of this thread runs in JAX and draws from the key; gives a function that says whether it drew."""
    with jax.ensure_compile_time_eval():  # keys that shall not belong to this trace
        env.prng_key  # noqa: B018  # torchax makes one for every thread
        given = jax.random.key(0) if key is None else key
    with _TRACING, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype .*64 requested in", UserWarning)
        with env.override_property(prng=given), env, torch.device("jax"), torch.enable_grad():
            yield lambda: env.prng_key is not given


def _converted(module: nn.Module, dtype: str) -> nn.Module:
    """The module with its numbers of 32 and 64 bits in that type."""
    for each in (*module.parameters(), *module.buffers()):
        if each.dtype in (torch.float32, torch.float64):
            each.data = each.data.to(getattr(torch, dtype))
    return module


def _tensors(example: Tree, dtype: str) -> Tree:
    """The example as PyTorch takes it."""

    def tensor(leaf: Any) -> torch.Tensor:
        array = np.asarray(leaf)
        if array.dtype in (np.float32, np.float64):
            return torch.tensor(array.astype(dtype))
        return torch.tensor(array.astype(np.int64) if array.dtype.kind == "i" else array)

    return jax.tree.map(tensor, example)


def _settings(module: nn.Module) -> dict[str, Any]:
    """The plain values and tensors that the module keeps in attributes of its own."""
    own = set(vars(nn.Module()))
    found: dict[str, Any] = {}
    for prefix, each in module.named_modules():
        for name, value in () if type(each).__module__.startswith("torch.") else vars(each).items():
            if name not in own:
                found[f"{prefix}.{name}".lstrip(".")] = _frozen_in_time(value)
    return found


def _frozen_in_time(value: Any) -> Any:
    """What can be compared later: numbers and text as they are, containers part by part, others by which they are."""
    if isinstance(value, torch.Tensor):
        return (id(value), value._version if not hasattr(value, "jax") else None)
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict):
        return {key: _frozen_in_time(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_frozen_in_time(part) for part in value]
    return id(value)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for name in after:
        if name not in before or before[name] != after[name]:
            return name
    return None


def _check(traced: _Traced, found: Compiled, compute: Compute, metrics: Mapping[str, Compute], example: Tree) -> bool:
    """Refuses functions that cannot be traced, or that differ from PyTorch's; whether the loss draws in training."""
    drawn: dict[bool, bool] = {}
    programs: dict[bool, Any] = {}

    def program(training: bool) -> Callable[..., Any]:
        def whole(params: Arrays, key: jax.Array) -> Any:
            def loss(params: Arrays) -> tuple[jax.Array, Arrays]:
                return found.loss(params, example, key if training else None, traced.state)

            (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            drawn[training] = traced.random
            return value, state, gradient, {n: of(params, example, traced.state) for n, of in found.metrics.items()}

        return whole

    for training in (False, True):
        try:
            programs[training] = jax.jit(program(training)).trace(traced.params, jax.random.key(0))
        except NotCompilable:
            raise
        except Exception as error:
            _by_torch(traced, compute, metrics, example, training)  # if that fails too, for a reason that is clearer
            raise NotCompilable(_reason(error)) from error
    evaluated, trained = (re.sub("0x[0-9a-f]+", "", str(each.jaxpr)) for each in programs.values())
    for training in (False, True):
        if training and (drawn[True] or trained == evaluated):
            continue
        try:
            ours = programs[training].lower().compile(QUICK)(traced.params, jax.random.key(0))
        except Exception as error:
            raise NotCompilable(_reason(error)) from error
        _compare(ours, _by_torch(traced, compute, metrics, example, training), traced.module)
    return drawn[True]


def _by_torch(
    traced: _Traced, compute: Compute, metrics: Mapping[str, Compute], example: Tree, training: bool
) -> tuple[Any, ...]:
    """Loss, buffers afterwards, gradient and metrics by PyTorch itself."""
    module = copy.deepcopy(traced.module).train(training)
    batch = _tensors(example, traced.dtype)
    params = {name: each for name, each in module.named_parameters() if each.requires_grad}
    try:
        value = compute(module, batch)
        gradient: Any = torch.autograd.grad(value, list(params.values()), allow_unused=True) if params else ()
        state = {name: each.clone() for name, each in module.named_buffers()}
        module = copy.deepcopy(traced.module).eval()
        with torch.no_grad():
            answers = {name: function(module, batch) for name, function in metrics.items()}
    except Exception as error:
        raise NotCompilable(f"PyTorch itself fails on the example: {_reason(error)}") from error
    pairs = zip(params.items(), gradient, strict=True)
    by_name = {name: torch.zeros_like(own) if each is None else each for (name, own), each in pairs}
    return value, state, by_name, answers


def _compare(ours: tuple[Any, ...], theirs: tuple[Any, ...], module: nn.Module) -> None:
    """Refuses answers (loss, buffers, gradient, metrics) that are not PyTorch's."""
    kinds = {each.dtype for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()}
    kinds.add(theirs[0].dtype)
    exact = kinds <= {torch.float32, torch.float64}
    tolerance = TOLERANCE["float64" if kinds == {torch.float64} else "float32"] if exact else ROUGH
    (loss, state, gradient, answers), (loss_, state_, gradient_, answers_) = jax.device_get(ours), theirs
    largest = max((float(each.abs().max()) for each in gradient_.values() if each.numel()), default=0.0)
    pairs: list[tuple[str, Any, Any, float | None]] = [("loss", loss, loss_, None)]
    pairs += [(f"buffer {name}", state[name], state_[name], None) for name in state]
    pairs += [(f"gradient of {name}", gradient[name], gradient_[name], largest) for name in gradient]
    pairs += [(name, answers[name], answers_[name], None) for name in answers]
    for name, our, their, scale in pairs:
        one, other = np.asarray(our, np.float64), their.detach().double().numpy()
        if one.shape != other.shape:
            raise NotCompilable(f"its compiled {name} has the shape {one.shape} where PyTorch's has {other.shape}")
        if not one.size:
            continue
        allowed = tolerance * (np.nan_to_num(np.abs(other).max() if scale is None else scale) + 0.01)
        apart = np.where(one == other, 0.0, np.abs(one - other))
        apart = np.where(np.isnan(one) & np.isnan(other), 0.0, apart)
        place = np.unravel_index(np.argmax(np.nan_to_num(apart, nan=np.inf)), apart.shape)
        if not apart[place] <= allowed:
            raise NotCompilable(f"its compiled {name} is {one[place]:.9g} where PyTorch's is {other[place]:.9g}")


def _reason(error: BaseException) -> str:
    """An error in one line: what it is, and the line of the user's code that it comes from."""
    looks = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)
    if isinstance(error, (*looks, jax.errors.TracerIntegerConversionError, jax.errors.NonConcreteBooleanIndexError)):
        cause = "its code looks at the values of tensors (if, while, .item(), .numpy(), a mask as an index)"
    elif type(error).__name__ == "OperatorNotFound":
        cause = f"torchax does not have an operator that it uses: {_first_line(error)}"
    else:
        cause = _first_line(error)
    place = _place(error)
    return f"{cause}, at {place}" if place else cause


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _place(error: BaseException) -> str | None:
    """The last line of code that is neither a library's nor of this package."""
    folders = [Path(str(sys.modules[name].__file__)).parent for name in LIBRARIES if name in sys.modules]
    folders.append(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        library = any(path.is_relative_to(folder) for folder in folders) or "importlib" in frame.filename
        if not library and not frame.filename.startswith("<"):
            return f"{path.name}:{frame.lineno}"
    return None
