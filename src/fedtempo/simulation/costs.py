"""What a study costs: the memory that it will take, worked out before it starts, and the bytes that clients exchange.

An update's bytes are what the client sends, and what it was sent to begin with. Numbers travel in 32 bits, as Flower
carries those of most models, whatever a simulation computes in; headers are not counted. A contribution that is
compressed counts as its compression packs it. Where clients are chosen by their losses, the model goes to all
candidates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.grid import Value
from fedtempo.problems.mapped import is_mapped
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.session import UnitSpec
from fedtempo.simulation.engine.task import Task, Version
from fedtempo.training.batches import compression_key
from fedtempo.training.solvers import STEPS, Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedtempo.problems.problem import Problem

_BASE = 400 * 2**20
"""Interpreter, libraries, compiled code."""


@dataclass(frozen=True)
class Memory:
    """Bytes, by what takes them."""

    data: int
    versions: int
    """Model versions that jobs in flight started from, for the runs that go at once."""
    batches: int
    """Rows of jobs, and what lies between the layers of models that are measured."""
    results: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return _BASE + self.data + self.versions + self.batches + self.results

    def __str__(self) -> str:
        parts = {"data": self.data, "model versions": self.versions, "batches": self.batches, "results": self.results}
        return (
            f"{size_words(self.total)} of memory ({', '.join(f'{name} {size_words(n)}' for name, n in parts.items())})"
        )


def estimate(specs: Sequence[UnitSpec], machines: Sequence[Machine], threads: int) -> Memory:
    """What `threads` units at a time will take, beside the data and the results."""
    problem = machines[0].problem
    held = [(deal.rows, deal.test) for deal in problem.deals]
    data = sum(np.asarray(x).nbytes for x in jax.tree.leaves(held) if not is_mapped(x))
    versions, batches, results = [], [], 0
    for spec in specs:
        unit = spec.unit
        machine, runs = machines[unit.machine], unit.num_runs
        versions.append((spec.num_slots * machine.version_bytes + machine.kept_bytes) * runs)
        job = machine.task.job
        rows = job.steps * (job.batch_size or 0)
        width = sum(int(np.prod(x.shape[1:])) * x.itemsize for x in jax.tree.leaves(problem.rows))
        drawn = spec.capacity * len(unit.seeds) * rows * 12 + (job.batch_size or 256) * len(unit.seeds) * width
        batches.append(drawn + machine.measure_bytes(runs) + machine.rows_bytes(spec.capacity, len(unit.seeds)))
        clients = problem.num_clients if spec.per_client else 0
        measures = 4 + len(problem.metrics) + (problem.test is not None) + clients
        results += runs * (8 * spec.points * measures + machine.model_bytes) + 16 * spec.points
    at_once = sorted((v + b for v, b in zip(versions, batches, strict=True)), reverse=True)[:threads]
    share = sum(sorted(versions, reverse=True)[:threads])
    return Memory(2 * data, share, sum(at_once) - share, results)


FILLED = 0.8
"""How much of a memory that is too small is filled."""


def memory_here() -> int | None:
    """Bytes of this machine's memory, where models are held in it and that can be told."""
    if jax.default_backend() != "cpu" or not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def room_for_versions(
    needed: Memory, specs: Sequence[UnitSpec], machines: Sequence[Machine], threads: int
) -> float | None:
    """Bytes that versions may take where all of them do not fit; None where they do."""
    have = memory_here()
    if have is None or needed.total <= have:
        return None
    held = [spec.num_slots * machines[spec.unit.machine].version_bytes * spec.unit.num_runs for spec in specs]
    return max(1.0, FILLED * have - needed.total + sum(sorted(held, reverse=True)[:threads]))


def check_memory(needed: Memory) -> None:
    """Refuse what cannot fit into this machine."""
    have = memory_here()
    if have is not None and needed.total > have:
        raise InputError(
            f"the study needs about {needed}, and this machine has {size_words(have)}; "
            "give fewer values in lists, fewer seeds, or a smaller model"
        )


def size_words(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


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
    """What an update costs; `asked` clients a round are asked for their loss and not chosen."""
    shapes = problem.parameter_shapes
    numbers = {name: jnp.float32(value) for name, value in hyper.items() if value is not None}
    steps = {STEPS: jnp.int32(1)}

    def exchanged(model: Any, state: Any) -> tuple[Version, Answer]:
        version = task.version(model, task.start(model, state))
        key = compression_key(0)
        work = task.work
        kept = work.start(model)
        answer, *_ = work(lambda here, k, s: (here, s), lambda here: here, version.sent, kept, numbers | steps, key)
        return version, answer

    version, answer = jax.eval_shape(exchanged, shapes, problem.state_shapes)
    compression = task.work.compression
    change = _bytes(answer.change) if compression is None else compression.num_bytes(shapes)
    state = _bytes(version.state)
    return Traffic(change + _bytes(answer.report) + state, _bytes(version), _bytes(version.sent.model) + state, asked)


def model_bytes(problem: Problem) -> int:
    """Bytes of a model, with its state."""
    return _bytes((problem.parameter_shapes, problem.state_shapes))


def _bytes(tree: Any) -> int:
    return sum(NUMBER_BYTES * prod(leaf.shape) for leaf in jax.tree.leaves(tree))
