"""About how much work a gradient or a loss is: counted on the program that JAX makes of it, without running it.

A product of matrices or a convolution is two operations for each of its multiplications. Every primitive counts as a
kernel, although compilers join some: for the choices that are made by it, only the order of magnitude matters.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax

from fedtempo.problems.problem import Problem
from fedtempo.training.batches import noise_key


class Work(NamedTuple):
    """What one call takes."""

    operations: float
    """Floating-point operations in products."""
    kernels: float
    """Primitives, one after the other."""
    held: float
    """Bytes of all values that it makes."""


def gradient_work(problem: Problem, batch_size: int) -> Work:
    """The gradient of the loss of one model on a batch."""

    def gradient(params: Any, batch: Any, state: Any) -> Any:
        key = noise_key(0) if problem.form.keyed else None
        return jax.grad(problem.form.training, has_aux=True)(params, batch, key, state)

    return _of_function(gradient, problem, batch_size)


def loss_work(problem: Problem, batch_size: int) -> Work:
    """The loss itself."""
    return _of_function(problem.form.evaluation, problem, batch_size)


def _of_function(function: Callable[..., Any], problem: Problem, batch_size: int) -> Work:
    def rows(leaf: Any) -> Any:
        kind = jax.numpy.result_type(float) if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating) else leaf.dtype
        return jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), kind)  # type: ignore[no-untyped-call]

    batch = jax.tree.map(rows, problem.rows)
    return _of(jax.make_jaxpr(function)(problem.parameter_shapes, batch, problem.state_shapes).jaxpr)


def _of(program: Any) -> Work:
    operations = kernels = held = 0.0
    for step in program.eqns:
        inner = [_of(getattr(p, "jaxpr", p)) for p in _programs(step.params.values())]
        times = float(step.params.get("length", 1)) if step.primitive.name == "scan" else 1.0
        operations += times * sum(work.operations for work in inner)
        kernels += times * sum(work.kernels for work in inner) + (not inner)
        held += sum(work.held for work in inner)  # a loop's steps use the same room, but for what they leave
        if not inner or step.primitive.name == "scan":
            held += sum(_bytes(out.aval) for out in step.outvars)
        if step.primitive.name == "dot_general":
            (contracted, _), _ = step.params["dimension_numbers"]
            shape = step.invars[0].aval.shape
            operations += 2.0 * prod(step.outvars[0].aval.shape) * prod(shape[d] for d in contracted)
        if step.primitive.name == "conv_general_dilated":
            kernel, out = step.invars[1].aval.shape, step.params["dimension_numbers"].rhs_spec[0]
            operations += 2.0 * prod(step.outvars[0].aval.shape) * prod(kernel) / max(1, kernel[out])
    return Work(operations, kernels, held)


def _programs(parameters: Any) -> list[Any]:
    """Programs among a primitive's parameters, or in a tuple of them (the branches of a condition)."""
    found = [p for given in parameters for p in (given if isinstance(given, tuple) else (given,))]
    return [p for p in found if hasattr(getattr(p, "jaxpr", p), "eqns")]


def _bytes(value: Any) -> float:
    return float(prod(getattr(value, "shape", ()))) * getattr(getattr(value, "dtype", None), "itemsize", 0)
