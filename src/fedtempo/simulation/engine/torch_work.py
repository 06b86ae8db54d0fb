"""A client's steps by PyTorch, and the parts that are JAX's: corrections, compression, server rules, Optax.

    g ← ∇L_i(θ, ξ_k) by autograd;   g ← corrected(g);   θ ← θ + u(g)

SGD and PyTorch's own optimizers work on the module itself. What is a pure function of pytrees is called with the
module's parameters by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import optax
import torch
from torch import Tensor

from fedtempo.grid import RATE
from fedtempo.problems.torch.module import FlatModule
from fedtempo.simulation.engine.task import Task
from fedtempo.training.client import Kept
from fedtempo.training.corrections import Begun
from fedtempo.training.solvers import Answer, LocalOptax, LocalRule, LocalSGD, Sent
from fedtempo.training.torch_solvers import LocalTorch

Flats = tuple[Tensor, ...]
Tree = dict[str, jax.Array]


def solver_of(
    local: LocalOptax | LocalTorch,
    tree: Callable[[Flats], Tree],
    numbers: Callable[[Mapping[str, float]], dict[str, Any]],
) -> Callable[..., Flats]:
    """How a job's steps are taken: (module, loss, batches, start, numbers, correction) → Δ."""
    if isinstance(local, LocalTorch):
        return partial(_by_torch, local)
    if is_sgd(local):
        return _by_sgd
    return _ByOptax(local, tree, numbers)


def is_sgd(local: LocalRule) -> bool:
    """Whether it is SGD, with momentum and clipping at most."""
    return isinstance(local, LocalSGD) and local.solver is optax.sgd and set(local.options) <= {"momentum"}


def _by_sgd(
    flat: FlatModule,
    loss: Callable[[Any, Any], Tensor],
    batches: Sequence[Any],
    start: Flats,
    hyper: Mapping[str, float],
    corrected: Callable[[], Flats] | None,
) -> Flats:
    """Plain SGD, with momentum and clipping where they are asked for."""
    rate, momentum, clip = hyper[RATE], hyper.get("momentum"), hyper.get("clip")
    if corrected is None and momentum is None and clip is None and len(batches) > 1:
        return _by_plain_sgd(flat, loss, batches, start, rate)
    memory: Flats | None = None
    for batch in batches:
        flat.collect_gradients()
        loss(flat.module, batch).backward()
        gradient = flat.gradient if corrected is None else corrected()
        if clip is not None:
            _clipped(gradient, clip)
        if momentum is not None:
            if memory is None:
                memory = tuple(g.clone() for g in gradient)
            else:
                for m, g in zip(memory, gradient, strict=True):
                    m.mul_(momentum).add_(g)
            gradient = memory
        if len(batches) == 1:
            return tuple(g * -rate for g in gradient)
        for x, g in zip(flat.trained, gradient, strict=True):
            x.sub_(g, alpha=rate)
    return tuple(x - s for x, s in zip(flat.trained, start, strict=True))


def _by_plain_sgd(
    flat: FlatModule, loss: Callable[[Any, Any], Tensor], batches: Sequence[Any], start: Flats, rate: float
) -> Flats:
    """The same steps, with gradients where PyTorch puts them: to collect them takes two more passes over memory."""
    for batch in batches:
        for p in flat.parameters:
            p.grad = None
        loss(flat.module, batch).backward()
        with torch.no_grad():
            for p in flat.parameters:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=rate)
    return tuple(x - s for x, s in zip(flat.trained, start, strict=True))


class SGDGraph:
    """A job's steps of SGD as one CUDA graph: one launch instead of some dozens a step.

    The rows of a batch are gathered inside it, by numbers that are copied in before; so are the rate and the like.
    """

    def __init__(
        self, flat: FlatModule, loss: Callable[[Any, Any], Tensor], rows: Any, which: Tensor, hyper: Mapping[str, float]
    ) -> None:
        """Recorded for `which` [steps, batch] rows; it must be recorded again for another shape of that."""
        self._flat, self._which = flat, which.clone()
        self._numbers = {
            name: torch.zeros((), dtype=torch.float64, device=flat.device)
            for name in (RATE, "momentum", "clip")
            if name in hyper
        }
        self._memory = tuple(torch.zeros_like(x) for x in flat.trained) if "momentum" in hyper else None

        def steps() -> None:
            for m in self._memory or ():
                m.zero_()
            for k in range(len(self._which)):
                flat.collect_gradients()
                loss(flat.module, taken(rows, self._which[k])).backward()
                gradient = flat.gradient
                if "clip" in hyper:
                    _clipped(gradient, self._numbers["clip"])
                if self._memory is not None:
                    for m, g in zip(self._memory, gradient, strict=True):
                        m.mul_(self._numbers["momentum"]).add_(g)
                    gradient = self._memory
                for x, g in zip(flat.trained, gradient, strict=True):
                    x.sub_(g * self._numbers[RATE])

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # PyTorch asks for a few runs before it records
            for _ in range(3):
                steps()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            steps()
        self._filled: dict[str, float] = {}

    def __call__(self, which: Tensor, start: Flats, hyper: Mapping[str, float]) -> Flats:
        """Δ of a job on these rows; the module is at `start` already."""
        self._which.copy_(which)
        for name, number in self._numbers.items():
            if self._filled.get(name) != hyper[name]:
                number.fill_(hyper[name])
                self._filled[name] = hyper[name]
        self._graph.replay()
        return tuple(x - s for x, s in zip(self._flat.trained, start, strict=True))


def taken(rows: Any, which: Any) -> Any:
    """Some rows of each tensor of a tuple, a dictionary, or of the one that there is."""
    if isinstance(rows, Mapping):
        return {name: _rows_of(value, which) for name, value in rows.items()}
    return _rows_of(rows, which) if isinstance(rows, Tensor) else tuple(_rows_of(value, which) for value in rows)


def _rows_of(tensor: Tensor, which: Any) -> Tensor:
    return tensor.index_select(0, which) if isinstance(which, Tensor) else tensor[which]


def _clipped(gradient: Flats, most: float | Tensor) -> None:
    """Shorten a gradient that is longer than `most`."""
    norm = torch.stack([torch.linalg.vector_norm(g) for g in gradient]).norm()
    factor = torch.clamp(most / norm, max=1.0)
    for g in gradient:
        g.mul_(factor)


def _by_torch(
    local: LocalTorch,
    flat: FlatModule,
    loss: Callable[[Any, Any], Tensor],
    batches: Sequence[Any],
    start: Flats,
    hyper: Mapping[str, float],
    corrected: Callable[[], Flats] | None,
) -> Flats:
    """Any of PyTorch's optimizers."""
    optimizer = local.made(flat.parameters, hyper)
    for batch in batches:

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad(set_to_none=corrected is None and "clip" not in hyper)
            if corrected is not None or "clip" in hyper:
                flat.collect_gradients()
            found = loss(flat.module, batch)
            found.backward()
            if corrected is not None:
                for own, g in zip(flat.gradient, corrected(), strict=True):
                    own.copy_(g)
            if "clip" in hyper:
                _clipped(flat.gradient, hyper["clip"])
            return found

        optimizer.step(closure)
    return tuple(x - s for x, s in zip(flat.trained, start, strict=True))


class _ByOptax:
    """Any of Optax's solvers: a gradient from PyTorch, an update from JAX."""

    def __init__(
        self,
        local: LocalOptax,
        tree: Callable[[Flats], dict[str, jax.Array]],
        numbers: Callable[[Mapping[str, float]], dict[str, Any]],
    ) -> None:
        self._tree, self._numbers = tree, numbers
        self._init = jax.jit(lambda sent, hyper: local.transformation(hyper).init(sent))
        self._update = jax.jit(lambda g, memory, here, hyper: local.transformation(hyper).update(g, memory, here))

    def __call__(
        self,
        flat: FlatModule,
        loss: Callable[[Any, Any], Tensor],
        batches: Sequence[Any],
        start: Flats,
        hyper: Mapping[str, float],
        corrected: Callable[[], Flats] | None,
    ) -> Flats:
        numbers, memory = self._numbers(hyper), None
        for batch in batches:
            flat.collect_gradients()
            loss(flat.module, batch).backward()
            here = self._tree(flat.trained)
            if memory is None:
                memory = self._init(here, numbers)
            gradient = self._tree(flat.gradient if corrected is None else corrected())
            update, memory = self._update(gradient, memory, here, numbers)
            for x, u in zip(flat.trained, flat.flat(update), strict=True):
                x.add_(u)
        return tuple(x - s for x, s in zip(flat.trained, start, strict=True))


class Bridge:
    """Corrections, compression and server rules, compiled once each."""

    def __init__(self, task: Task) -> None:
        self._correction, self._compression = task.work.correction, task.work.compression
        self.needed = self._correction is not None or self._compression is not None
        if self._correction is not None:
            self.corrected = jax.jit(self._correction.corrected)
            self._finish = jax.jit(self._correction.finish)
        if self._compression is not None:
            self._compress = jax.jit(self._compression.compress)
        self.add, self.close = jax.jit(task.server.add), jax.jit(task.server.close)

    def begin(self, sent: Sent, kept: Kept, full: Callable[[Any], Any]) -> Begun | None:
        """What the correction knows when the job begins."""
        return None if self._correction is None else self._correction.begin(sent, kept.correction, full)

    def finish(
        self, moved: Any, kept: Kept, begun: Begun | None, steps: int, hyper: Mapping[str, Any], key: jax.Array | None
    ) -> tuple[Answer, Kept]:
        """What the server gets of a contribution, and what the client keeps."""
        change, memory = moved, kept.compression
        if self._compression is not None:
            change, memory = self._compress(moved, memory, key)
        report, own = (), kept.correction
        if begun is not None:
            report, own = self._finish(moved, change, begun, steps, hyper)
        return Answer(change, report), Kept(kept.solver, own, memory)
