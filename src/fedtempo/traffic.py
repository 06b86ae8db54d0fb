"""Bytes that a client update costs: what the client sends, and what it was sent to begin with.

Numbers travel in 32 bits, as Flower carries those of most models, whatever a simulation computes in; headers are not
counted. A contribution that is compressed counts as its codec packs it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedtempo.engine.task import Task
from fedtempo.grid import Value
from fedtempo.local.batches import compression_key
from fedtempo.local.rule import STEPS, Answer, Sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedtempo.problems.problem import Problem

NUMBER_BYTES = 4


class Traffic(NamedTuple):
    """Bytes of one client update."""

    bytes_up: int
    bytes_down: int


def traffic_of(problem: Problem, task: Task, hyper: Mapping[str, Value]) -> Traffic:
    """What an update of this kind costs."""
    shapes = problem.parameter_shapes
    numbers = {name: jnp.float32(value) for name, value in hyper.items() if value is not None}
    steps = {STEPS: jnp.int32(1)}

    def exchanged(model: Any) -> tuple[Sent, Answer]:
        sent = Sent(model, task.server.letter(task.server.start(model)))
        key = compression_key(0)
        work = task.work
        answer, _ = work(lambda here, k: here, lambda here: here, sent, work.start(model), numbers | steps, key)
        return sent, answer

    sent, answer = jax.eval_shape(exchanged, shapes)
    compression = task.work.compression
    change = _bytes(answer.change) if compression is None else compression.num_bytes(shapes)
    return Traffic(change + _bytes(answer.report), _bytes(sent))


def _bytes(tree: Any) -> int:
    return sum(NUMBER_BYTES * prod(leaf.shape) for leaf in jax.tree.leaves(tree))
