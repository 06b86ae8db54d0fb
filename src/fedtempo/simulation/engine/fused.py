"""Asynchronous training of linear classifiers on an accelerator: one kernel for all events of a piece.

    z = W x + b,   p = softmax(z),   g = (p − onehot(y)) xᵀ / B;       making ← making − η_g ω η_l g

With one step a job there is little to compute between two events, and a wave (waves.py) moves every model through the
device's memory several times. Here a block of threads belongs to a run: it goes through the events in their order,
reads the model from which a job starts, and writes the model of the round, some features at a time. Nothing else leaves
the multiprocessor. The plain form is the waves'; numbers agree with it up to rounding.

In the kernel a model's weights are [classes, features], so that a class's weights are read in one go.
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
CHUNK = 32
"""Words of features that are taken together."""
BYTES = 4
"""Of a word, each a feature."""
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
        study.dtype != "float64"
        and isinstance(linear, LinearLoss)
        and linear.classes <= CLASSES
        and x.ndim == 2
        and (x.dtype == np.uint8 or x.dtype == np.float32)
        and isinstance(task.server, WeightedSum)
        and task.average is None
        and task.work.correction is None
        and task.work.compression is None
        and study.local.plain
        and job.steps == 1
        and job.batch_size in (16, 32, 64, 128)
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
        function = piece_loop(self.task, self._linear, tf32=self.dtype == "tensorfloat32")
        args = (state, self.on_device.data, runs, loaded, np.int32(last - first))
        done: State = self._compile("advance", function, *args, donate=(0,))(*args)
        return done


def piece_loop(
    task: Task, linear: LinearLoss, *, tf32: bool, interpret: bool = False
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
        kernel = partial(_kernel, linear=linear, width=width, tf32=tf32, barrier=not interpret)
        whole = pl.BlockSpec(memory_space=pl.ANY) if interpret else pl.no_block_spec
        x, pack = _packed(x)
        weights, bias = _for_kernel(model, linear, pack)
        weights, bias = pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (weights, bias)],  # type: ignore[no-untyped-call]
            grid=(seeds * width,),
            in_specs=[whole] * 9,
            out_specs=[whole] * 2,
            input_output_aliases={7: 0, 8: 1},
            interpret=interpret,
            compiler_params=None if interpret else plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
        )(count[None], events.read, events.write, step, drawn, x, y.astype(jnp.int32), weights, bias)
        model = _from_kernel(weights, bias, linear, seeds)
        return State(Version(state.slots.sent._replace(model=model)), state.acc, state.clients)

    return run


def _for_kernel(model: Any, linear: LinearLoss, pack: int) -> tuple[jax.Array, jax.Array]:
    """[slots, lanes, classes, pack, words] and [slots, lanes, classes]: a model of a run is contiguous."""
    weights, bias = model["weights"], model["bias"]  # [slots, seeds, …, runs]
    order = (0, 1, 4, 3, 2) if linear.features_first else (0, 1, 4, 2, 3)
    weights = weights.transpose(order)
    slots, seeds, runs, classes, features = weights.shape
    weights = weights.reshape(slots, seeds * runs, classes, features // pack, pack)
    return jnp.moveaxis(weights, -1, -2), jnp.moveaxis(bias, -1, 2).reshape(slots, seeds * runs, classes)


def _from_kernel(weights: jax.Array, bias: jax.Array, linear: LinearLoss, seeds: int) -> Any:
    slots, lanes, classes, pack, words = weights.shape
    weights = jnp.moveaxis(weights, -2, -1).reshape(slots, seeds, lanes // seeds, classes, pack * words)
    order = (0, 1, 4, 3, 2) if linear.features_first else (0, 1, 3, 4, 2)
    bias = bias.reshape(slots, seeds, lanes // seeds, classes)
    return {"weights": weights.transpose(order), "bias": jnp.moveaxis(bias, 2, -1)}


def _packed(x: jax.Array) -> tuple[jax.Array, int]:
    """Rows as words: four bytes in each, where features are bytes and can be divided so; and how many are in one."""
    if x.dtype != jnp.uint8:
        return x, 1
    if x.shape[1] % BYTES:
        return x.astype(jnp.uint32), 1
    return jax.lax.bitcast_convert_type(x.reshape(len(x), -1, BYTES), jnp.uint32), BYTES


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
    tf32: bool,
    barrier: bool,
) -> None:
    """The events of one run; `weights` and `bias` hold all versions, and are changed where they are.

    All that an event reads is asked for before anything is computed, since it comes from afar.
    """
    lane = pl.program_id(0)
    seed = lane // width
    batch, words, pack = drawn.shape[-1], x.shape[-1], weights.shape[-2]
    kind = jnp.arange(CLASSES)
    there = kind < linear.classes
    places = [k * CHUNK + jnp.arange(CHUNK) for k in range(-(-words // CHUNK))]
    parts = [(place, j) for place in places for j in range(pack)]

    def dot(a: jax.Array, b: jax.Array, *, transposed: bool = False) -> jax.Array:
        precision = None if tf32 else jax.lax.Precision.HIGHEST
        product: jax.Array = plgpu.dot(a, b, trans_b=transposed, allow_tf32=tf32 or None, precision=precision)
        return product

    def at(slot: Any, place: jax.Array, j: int) -> tuple[Any, jax.Array]:
        """Where some weights of a version are, and which of them are there."""
        inside = there[:, None] & (place < words)[None, :]
        return weights.at[slot, lane, kind[:, None], j, place[None, :]], inside

    def loaded(slot: Any, place: jax.Array, j: int) -> jax.Array:
        where, inside = at(slot, place, j)
        found: jax.Array = plgpu.load(where, mask=inside, other=0.0)
        return found

    def features(word: jax.Array, j: int) -> jax.Array:
        """[batch, CHUNK] the j-th of each word, as numbers."""
        if word.dtype != jnp.uint32:
            return word
        byte = (word >> (8 * j)) & 255 if pack > 1 else word
        return linear.scaled(byte.astype(jnp.int32).astype(jnp.float32))

    def event(e: jax.Array, carry: jax.Array) -> jax.Array:
        source, target = read[e], write[e]
        rows = drawn[e, seed, :]
        row = [
            plgpu.load(x.at[rows[:, None], place[None, :]], mask=(place < words)[None, :], other=0) for place in places
        ]
        base = [loaded(source, place, j) for place, j in parts]
        making = [loaded(MAKING, place, j) for place, j in parts]
        labels = plgpu.load(y.at[rows])
        z = jnp.zeros((CLASSES, batch), jnp.float32)
        z += plgpu.load(bias.at[source, lane, kind], mask=there, other=0.0)[:, None]
        for k, (_, j) in enumerate(parts):
            z += dot(base[k], features(row[k // pack], j), transposed=True)
        z = jnp.where(there[:, None], z, -jnp.inf)
        p = jnp.exp(z - jnp.max(z, axis=0)[None, :])
        p = p / jnp.sum(p, axis=0)[None, :]
        error = (p - (kind[:, None] == labels[None, :]).astype(jnp.float32)) * (step[e, lane] / batch)
        for k, (place, j) in enumerate(parts):
            value = making[k] - dot(error, features(row[k // pack], j))
            for slot in (MAKING, target):
                where, inside = at(slot, place, j)
                plgpu.store(where, value, mask=inside)
        value = plgpu.load(bias.at[MAKING, lane, kind], mask=there, other=0.0) - jnp.sum(error, axis=1)
        plgpu.store(bias.at[MAKING, lane, kind], value, mask=there)
        plgpu.store(bias.at[target, lane, kind], value, mask=there)
        if barrier:  # what this event has written is read by others
            plgpu.debug_barrier()
        return carry

    jax.lax.fori_loop(0, count[0], event, jnp.int32(0))
