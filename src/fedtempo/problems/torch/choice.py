"""Which engine runs a PyTorch module: a compiled one, by torchax, or PyTorch itself.

    events, waves, oracle   the module as functions of JAX, or the reason why it cannot be
    torch                   PyTorch
    auto                    compiled where that can be done and is faster: known of layers that are products of
                            matrices, found by a short trial of others. On CUDA it is PyTorch: once torchax has been
                            imported, PyTorch's own backward passes fail there

The short trial takes a few steps of SGD on a batch with each; what compiling takes is not counted, and is said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedtempo.errors import InputError
from fedtempo.problems.problem import Problem
from fedtempo.problems.rows import Tree
from fedtempo.problems.torch.module import FlatModule, Values, seeded
from fedtempo.problems.torch.problem import TorchProblem

if TYPE_CHECKING:
    from fedtempo.problems.torch.compiled import Compiled

log = logging.getLogger(__name__)

EXAMPLE_ROWS = 8
TRIAL_STEPS = 4
_PRODUCTS = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.Flatten,
    nn.Identity,
    nn.LayerNorm,
    nn.BatchNorm1d,
    nn.Dropout,
)


class CompiledProblem(Problem):
    """A PyTorch module's problem as functions of JAX."""

    def __init__(self, source: TorchProblem, compiled: Compiled, dtype: str) -> None:
        self.source, self.compiled, self.dtype = source, compiled, dtype
        test = source.test
        functions = _functions(compiled, stateful=source.state is not None)
        metrics = functions.pop("metrics")
        self._set(
            source.init,
            functions["loss"],
            source.rows,
            source.sizes,
            test,
            None,
            source.importance,
            metrics,
            source.state,
            source.name,
            source.description,
            None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which compile it again."""
        return as_jax, (self.source, self.dtype)

    @property
    def parameter_shapes(self) -> Tree:
        return self.source.parameter_shapes

    @property
    def state_shapes(self) -> Tree:
        return self.source.state_shapes

    @property
    def module_names(self) -> dict[str, str]:
        return self.source.module_names

    def fixed_arrays(self, seeds: Sequence[int]) -> dict[str, tuple[bool, NDArray[Any]]]:
        return self.source.fixed_arrays(seeds)


def _functions(compiled: Compiled, *, stateful: bool) -> dict[str, Any]:
    """The loss and the metrics in the least form that does."""
    whole, metrics = compiled.loss, compiled.metrics
    if stateful:
        return {"loss": whole, "metrics": dict(metrics)}

    def plain(function: Any) -> Any:
        return lambda params, batch: function(params, batch, {})

    own = {name: plain(function) for name, function in metrics.items()}
    if compiled.random:
        return {"loss": lambda params, batch, key: whole(params, batch, key, {})[0], "metrics": own}
    return {"loss": lambda params, batch: whole(params, batch, _SOME_KEY, {})[0], "metrics": own}


_SOME_KEY = jax.random.key(0)
"""Training mode, where nothing is drawn."""


@lru_cache(maxsize=16)
def as_jax(problem: TorchProblem, dtype: str) -> CompiledProblem | str:
    """The problem as functions of JAX, or why it cannot be made one."""
    if problem.items is not None:
        return "its data cannot be stacked, and is collated by PyTorch"
    if problem.state is not None and problem.buffers != "average":
        return f"buffers={problem.buffers!r} needs the PyTorch engine"
    if problem.buffers == "frozen" and next(problem.template.buffers(), None) is not None:
        return "buffers='frozen' needs the PyTorch engine"
    try:
        from fedtempo.problems.torch.compiled import NotCompilable, compiled
    except ImportError as error:
        return f"torchax is not installed ({error})"
    example = jax.tree.map(lambda leaf: leaf[: min(EXAMPLE_ROWS, int(problem.sizes[0]))], problem.rows)
    measures = {name: _measure(problem, name) for name in problem.metrics}
    try:
        found = compiled(problem.template, problem.bare_loss_of, measures, example, dtype)
    except NotCompilable as error:
        return str(error)
    return CompiledProblem(problem, found, dtype)


def _measure(problem: TorchProblem, name: str) -> Any:
    return lambda module, batch: torch.as_tensor(problem.measures_of(module, batch)[name])


def chosen(problem: TorchProblem, engine: str, *, torch_work: bool, dtype: str, batch_size: int) -> Problem:
    """The problem for an engine: itself for PyTorch's, as functions of JAX for the others.

    `torch_work`: the clients' work is PyTorch's own; `batch_size`: of the short trial.
    """
    if engine == "torch":
        return problem
    precision = "float64" if dtype == "float64" else "float32"
    if engine != "auto":
        found = as_jax(problem, precision)
        if isinstance(found, str):
            raise InputError(f"engine: {engine!r} cannot compile {problem.name}: {found}; use 'torch'")
        return found
    if torch_work or problem.device.type == "cuda":  # to import torchax would keep PyTorch from CUDA
        return problem
    found = as_jax(problem, precision)
    if isinstance(found, str):
        log.warning("%s is run by PyTorch: %s", problem.name, found)
        return problem
    if _known_faster(problem.template):
        return found
    ours, theirs = _trial(found, problem, precision, batch_size)
    log.info("%s: a step of %d rows takes %.3g ms compiled, %.3g by PyTorch", problem.name, batch_size, ours, theirs)
    return found if ours <= theirs else problem


def _known_faster(module: nn.Module) -> bool:
    parts = [part for part in module.modules() if not list(part.children())]
    return all(isinstance(part, _PRODUCTS) or type(part).__module__ == "torch.nn.modules.activation" for part in parts)


def _trial(found: CompiledProblem, problem: TorchProblem, dtype: str, batch_size: int) -> tuple[float, float]:
    """Milliseconds of a step of SGD, compiled and by PyTorch."""
    which = np.arange(batch_size) % problem.num_rows
    rows = jax.tree.map(lambda leaf: leaf[which], problem.rows)
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):

        def typed(leaf: Any) -> jax.Array:
            return jnp.asarray(leaf, dtype=dtype if np.issubdtype(leaf.dtype, np.floating) else None)

        key = jax.random.key(0)
        params, batch = jax.tree.map(typed, (problem.init(key), rows))
        state = found.initial_state(key)

        @jax.jit
        def step(params: Any) -> Any:
            gradient = jax.grad(lambda p: found.form.training(p, batch, key, state)[0])(params)
            return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradient)

        ours = _timed(lambda: jax.block_until_ready(step(params)))  # type: ignore[no-untyped-call]
    flat = FlatModule(problem.template, problem.device, double=dtype == "float64")
    start: Values = flat.values()
    tensors = problem.tensors(rows, double=dtype == "float64")

    def torch_step() -> None:
        flat.put(start)
        flat.collect_gradients()
        problem.loss_of(flat.module, tensors).backward()
        for x, g in zip(flat.trained, flat.gradient, strict=True):
            x.sub_(g, alpha=0.001)

    with seeded(problem.device):
        theirs = _timed(torch_step)
    return ours, theirs


def _timed(step: Any) -> float:
    """The least of a few times, in milliseconds, after a first one that is not counted."""
    step()
    found = []
    for _ in range(TRIAL_STEPS):
        begin = time.perf_counter()
        step()
        found.append(time.perf_counter() - begin)
    return 1e3 * min(found)
