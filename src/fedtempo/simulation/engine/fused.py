"""Linear classifiers of images in bytes, on an NVIDIA device: one kernel for all events of a piece.

    z = W x + b,   p = softmax(z),   g = (p − onehot(y)) xᵀ / B;       making ← making − η_g ω η_l g

With one step a job there is little to compute between two events, and a wave (waves.py) moves every model through the
device's memory several times. Here a block of threads belongs to a run: it goes through the events in their order,
reads the model from which a job starts, and writes the model of the round. Nothing else leaves the multiprocessor. The
plain form is the waves'; numbers agree with it up to rounding.

Matrix units multiply numbers of eleven bits: bytes are such numbers, scaled after the product, and a weight in float32
is the sum of three (`TERMS`). In the kernel a model's weights are [classes, 4, words], in the order in which a word's
bytes are taken out of it. Used where FEDTEMPO_KERNELS=1 is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from fedtempo.grid import RATE
from fedtempo.problems.models.classifiers import LinearLoss
from fedtempo.simulation.engine.machine import WaveMachine
from fedtempo.simulation.engine.numerics import Precision, kept_as
from fedtempo.simulation.engine.program import MAKING, NOBODYS, Piece
from fedtempo.simulation.engine.task import Data, Runs, State, Task, Version
from fedtempo.training.server_rules import WeightedSum

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem
    from fedtempo.simulation.study import Study

CLASSES = 16
"""Room for classes: what a matrix unit takes at the least."""
FEATURES = 1024
"""At most: a model has to fit into the registers of a block."""
TERMS = {"tensorfloat32": 1, "float32": 3}
"""Numbers of eleven bits whose sum is a weight, by the precision of a study."""
HIGH_BITS = np.uint32(0xFFFFE000)
"""Of a float32: those of a number of eleven bits."""
BYTES = 4
"""Of a word, each a feature."""
SPAN = 128
"""Words that are taken together."""
LEAST_SPAN = 32
WARPS = 8


class Sequence(NamedTuple):
    """The events of a piece on the device, padded to its capacity."""

    client: jax.Array
    job: jax.Array
    read: jax.Array
    write: jax.Array
    """The slot to write; nobody's if no round closes."""
    weight: jax.Array
    """[events, weight rules]"""


def is_fused(study: Study, task: Task) -> bool:
    """Whether the kernel can train so."""
    problem, job = study.problem, task.job
    linear = getattr(problem.loss, "linear", None)
    x = jax.tree.leaves(problem.rows)[0]
    return (
        study.dtype in TERMS
        and isinstance(linear, LinearLoss)
        and linear.classes <= CLASSES
        and (x.ndim, x.dtype) == (2, np.uint8)
        and x.shape[1] % BYTES == 0
        and x.shape[1] <= FEATURES
        and isinstance(task.server, WeightedSum)
        and task.average is None
        and task.work.correction is None
        and task.work.compression is None
        and study.local.plain
        and job.steps == 1
        and job.batch_size in (32, 64, 128)
    )


class FusedMachine(WaveMachine):
    """Event after event inside one kernel."""

    def __init__(self, problem: Problem, task: Task, dtype: Precision, *args: Any) -> None:
        super().__init__(problem, task, dtype, *args)
        self._linear: LinearLoss = problem.loss.linear  # type: ignore[attr-defined]

    def tune(self, firsts: Iterable[Piece], runs: int) -> None:
        """Nothing depends on the programs here."""

    def gains_from(self, devices: int) -> bool:
        """A run stays on one device."""
        return False

    def load(self, piece: Piece, capacity: int, runs: Runs) -> Sequence:  # type: ignore[override]
        room = capacity - piece.num_events

        def padded(column: Any) -> Any:
            return np.concatenate([column, np.zeros((room, *column.shape[1:]), column.dtype)])

        write = np.where(piece.closes, piece.write, NOBODYS).astype(np.int32)
        weight = piece.weight.T.astype(kept_as(self.dtype))
        return Sequence(*jax.device_put(tuple(map(padded, (piece.client, piece.job, piece.read, write, weight)))))

    def advance(self, state: State, runs: Runs, loaded: Sequence, first: int, last: int) -> State:  # type: ignore[override]
        function = piece_loop(self.task, self._linear, terms=TERMS[self.dtype])
        args = (state, self.on_device.data, runs, loaded, np.int32(last - first))
        done: State = self._compile("advance", function, *args, donate=(0,))(*args)
        return done


def piece_loop(
    task: Task, linear: LinearLoss, *, terms: int, interpret: bool = False
) -> Callable[[State, Data, Runs, Sequence, jax.Array], State]:
    """The function that runs the first events of a piece."""

    def run(state: State, data: Data, runs: Runs, events: Sequence, count: jax.Array) -> State:
        model = state.slots.sent.model
        seeds, width = (model["bias"].shape[k] for k in (1, -1))
        drawn = task.draw(data, runs.keys, runs.deal, events.client, events.job)[:, :, 0]
        step = task.weighed(events.weight, runs).update * runs.hyper["server_lr"] * runs.hyper[RATE]
        if RATE in runs.clients:
            step = step * runs.clients[RATE][events.client][:, None]
        step = jnp.tile(step.astype(model["bias"].dtype), seeds)  # [events, lanes]
        x, y = data.rows
        kernel = partial(_kernel, linear=linear, width=width, terms=terms, barrier=not interpret)
        whole = pl.BlockSpec(memory_space=pl.ANY) if interpret else pl.no_block_spec
        words = jax.lax.bitcast_convert_type(x.reshape(len(x), -1, BYTES), jnp.uint32)
        weights, bias = _for_kernel(model, linear)
        weights, bias = pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (weights, bias)],  # type: ignore[no-untyped-call]
            grid=(seeds * width,),
            in_specs=[whole] * 9,
            out_specs=[whole] * 2,
            input_output_aliases={7: 0, 8: 1},
            interpret=interpret,
            compiler_params=None if interpret else plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
        )(count[None], events.read, events.write, step, drawn, words, y.astype(jnp.int32), weights, bias)
        model = _from_kernel(weights, bias, linear, seeds)
        return State(Version(state.slots.sent._replace(model=model)), state.acc, state.clients)

    return run


def _for_kernel(model: Any, linear: LinearLoss) -> tuple[jax.Array, jax.Array]:
    """[slots, lanes, classes, 4, words] and [slots, lanes, classes]: a model of a run is contiguous."""
    weights, bias = model["weights"], model["bias"]  # [slots, seeds, …, runs]
    weights = weights.transpose((0, 1, 4, 3, 2) if linear.features_first else (0, 1, 4, 2, 3))
    slots, seeds, runs, classes, features = weights.shape
    weights = weights.reshape(slots, seeds * runs, classes, features // BYTES, BYTES)
    return jnp.moveaxis(weights, -1, -2), jnp.moveaxis(bias, -1, 2).reshape(slots, seeds * runs, classes)


def _from_kernel(weights: jax.Array, bias: jax.Array, linear: LinearLoss, seeds: int) -> Any:
    slots, lanes, classes, _, words = weights.shape
    weights = jnp.moveaxis(weights, -2, -1).reshape(slots, seeds, lanes // seeds, classes, BYTES * words)
    bias = bias.reshape(slots, seeds, lanes // seeds, classes)
    order = (0, 1, 4, 3, 2) if linear.features_first else (0, 1, 3, 4, 2)
    return {"weights": weights.transpose(order), "bias": jnp.moveaxis(bias, 2, -1)}


def _spans(words: int) -> list[tuple[int, int]]:
    """Where the words begin that are taken together, and how many: powers of two, the last one filled up."""
    spans, first = [], 0
    while first < words:
        left = words - first
        size = min(SPAN, max(LEAST_SPAN, 1 << (left.bit_length() - 1)))
        spans.append((first, size))
        first += size
    return spans


def _kernel(
    count: Any,
    read: Any,
    write: Any,
    step: Any,
    drawn: Any,
    x: Any,
    y: Any,
    _weights: Any,
    _bias: Any,
    weights: Any,
    bias: Any,
    *,
    linear: LinearLoss,
    width: int,
    terms: int,
    barrier: bool,
) -> None:
    """The events of one run; `weights` and `bias` hold all versions, and are changed where they are."""
    lane = pl.program_id(0)
    seed = lane // width
    batch, words = drawn.shape[-1], x.shape[-1]
    kind = jnp.arange(CLASSES)
    there = kind < linear.classes
    places = [first + jnp.arange(size) for first, size in _spans(words)]
    parts = [(k, j) for k in range(len(places)) for j in range(BYTES)]
    scale, shift = linear.scale

    def dot(a: jax.Array, b: jax.Array, *, transposed: bool = False) -> jax.Array:
        """The product with numbers of eleven bits."""
        total: Any = 0.0
        for left in reversed(range(terms)):
            term = _high(a) if left else a
            total += plgpu.dot(term, b, trans_b=transposed, allow_tf32=True)
            a = a - term
        return total  # type: ignore[no-any-return]

    def at(slot: Any, k: int, j: int) -> tuple[Any, jax.Array]:
        """Where some weights of a version are, and which of them are there."""
        inside = there[:, None] & (places[k] < words)[None, :]
        return weights.at[slot, lane, kind[:, None], j, places[k][None, :]], inside

    def loaded(slot: Any) -> list[jax.Array]:
        """[classes, span] each: the weights of a version, part by part."""
        found = (at(slot, k, j) for k, j in parts)
        return [plgpu.load(where, mask=inside, other=0.0) for where, inside in found]

    def features(word: jax.Array, j: int) -> jax.Array:
        """[batch, span] the j-th byte of each word, as numbers."""
        return ((word >> (8 * j)) & 255).astype(jnp.int32).astype(jnp.float32)

    def event(e: jax.Array, carry: jax.Array) -> jax.Array:
        source, target = read[e], write[e]
        rows = drawn[e, seed, :]
        row = [plgpu.load(x.at[rows[:, None], p[None, :]], mask=(p < words)[None, :], other=0) for p in places]
        base = loaded(source)
        labels = plgpu.load(y.at[rows])
        constant = plgpu.load(bias.at[source, lane, kind], mask=there, other=0.0)
        z = jnp.zeros((CLASSES, batch), jnp.float32)
        for part, (k, j) in zip(base, parts, strict=True):
            z += dot(part, features(row[k], j), transposed=True)
            if shift:
                constant -= shift * jnp.sum(part, axis=1)
        z = jnp.where(there[:, None], scale * z + constant[:, None], -jnp.inf)
        making = loaded(MAKING)
        p = jnp.exp(z - jnp.max(z, axis=0)[None, :])
        p = p / jnp.sum(p, axis=0)[None, :]
        error = (p - (kind[:, None] == labels[None, :]).astype(jnp.float32)) * (step[e, lane] / batch)
        moved = jnp.sum(error, axis=1)
        for part, (k, j) in zip(making, parts, strict=True):
            value = part - dot(scale * error, features(row[k], j))
            if shift:
                value += shift * moved[:, None]
            for slot in (MAKING, target):
                where, inside = at(slot, k, j)
                plgpu.store(where, value, mask=inside)
        value = plgpu.load(bias.at[MAKING, lane, kind], mask=there, other=0.0) - moved
        plgpu.store(bias.at[MAKING, lane, kind], value, mask=there)
        plgpu.store(bias.at[target, lane, kind], value, mask=there)
        if barrier:  # what this event has written is read by others
            plgpu.debug_barrier()
        return carry

    jax.lax.fori_loop(0, count[0], event, jnp.int32(0))


def _high(a: jax.Array) -> jax.Array:
    """The first eleven bits of numbers: the rest is a number again."""
    bits = jax.lax.bitcast_convert_type(a, jnp.uint32) & HIGH_BITS
    found: jax.Array = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return found
