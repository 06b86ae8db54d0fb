"""Bytes that a client update costs: what the client sends, and what it was sent to begin with.

Numbers travel in 32 bits, as Flower carries those of most models, whatever a simulation computes in; headers are not
counted. A contribution that is compressed counts as its codec packs it. Where clients are chosen by their losses, the
model goes to all candidates.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.engine.task import Task
from fedtempo.grid import Value
from fedtempo.local.batches import compression_key
from fedtempo.local.rule import STEPS, Answer, Sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedtempo.problems.problem import Problem

NUMBER_BYTES = 4


class Traffic(NamedTuple):
    """Bytes of one client update, and clients that are asked for their loss in a round without being chosen."""

    up: int
    down: int
    model: int
    asked: float

    def totals(self, updates: NDArray[Any], rounds: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Bytes after so many updates and rounds."""
        asked = self.asked * rounds
        return {
            "bytes_up": self.up * updates + NUMBER_BYTES * asked,
            "bytes_down": self.down * updates + self.model * asked,
        }


def traffic_of(problem: Problem, task: Task, hyper: Mapping[str, Value], asked: float) -> Traffic:
    """What an update of this kind costs; `asked` clients a round are asked for their loss and not chosen."""
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
    return Traffic(change + _bytes(answer.report), _bytes(sent), _bytes(sent.model), asked)


def _bytes(tree: Any) -> int:
    return sum(NUMBER_BYTES * prod(leaf.shape) for leaf in jax.tree.leaves(tree))
