"""Training wave by wave, compiled: jobs that do not depend on each other as one batch. For accelerators.

Events whose base versions all exist when the wave begins are independent: between two completions of the same client
every job in flight is. Their contributions are computed at once, and the models of the rounds inside the wave are

    θ after event k  =  acc + η_g Σ_{j ≤ k} ω_j Δ_j                a prefix sum, exact up to rounding

Waves are padded to one width; a group of waves is one call. Only rounds that close write their slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.engine.program import Piece
from fedtempo.engine.slots import NOBODYS
from fedtempo.engine.task import RUNS, Data, State, Task, Tree

GROUP = 64
"""Waves in one call."""
UNROLLED = 16
"""Up to this width prefix sums are written out; beyond, they are a product with a triangular matrix."""


class Waves(NamedTuple):
    """Waves on the device: [waves, width] each, `active` where there is an event."""

    client: jax.Array
    job: jax.Array
    read: jax.Array
    write: jax.Array
    """Where a model goes; nobody's slot for events that close no round."""
    active: jax.Array
    weight: jax.Array
    """[waves, width, runs]"""


def wave_starts(piece: Piece, width: int) -> NDArray[np.int64]:
    """Where waves begin, and the end: an event that reads what its wave has written begins the next one."""
    starts = [0]
    written: set[int] = set()
    for k, (read, write, closes) in enumerate(
        zip(piece.read.tolist(), piece.write.tolist(), piece.closes.tolist(), strict=True)
    ):
        if read in written or k - starts[-1] == width:
            starts.append(k)
            written.clear()
        if closes:
            written.add(write)
    if piece.num_events > 0:
        starts.append(piece.num_events)
    return np.array(starts, dtype=np.int64)


def grouped(piece: Piece, width: int, rules: list[int], dtype: Any) -> list[Waves]:
    """The piece as groups of waves."""
    starts = wave_starts(piece, width)
    waves = len(starts) - 1
    rows = -(-waves // GROUP) * GROUP
    place = np.zeros((rows, width), dtype=np.int64)
    active = np.zeros((rows, width), dtype=np.bool_)
    place[:waves] = starts[:-1, None] + np.arange(width)
    active[:waves] = place[:waves] < starts[1:, None]
    place[~active] = 0
    if not waves:
        return []
    write = np.where(active & piece.closes[place], piece.write[place], NOBODYS).astype(np.int32)
    weight = (piece.weight[rules][:, place] * active).transpose(1, 2, 0).astype(dtype)
    columns = (piece.client[place], piece.job[place], piece.read[place], write, active, weight)
    return [Waves(*(jnp.asarray(column[k : k + GROUP]) for column in columns)) for k in range(0, rows, GROUP)]


def wave_loop(task: Task) -> Callable[[State, Data, dict[str, jax.Array], jax.Array, Waves], State]:
    """The function that runs a group of waves."""

    def run(state: State, data: Data, hyper: dict[str, jax.Array], keys: jax.Array, waves: Waves) -> State:
        flat = task.draw(data, keys, waves.client.reshape(-1), waves.job.reshape(-1))
        rows = flat.reshape(*waves.client.shape, *flat.shape[1:])

        def turn(now: State, wave: tuple[Waves, jax.Array]) -> tuple[State, None]:
            return _wave(task, now, data, hyper, *wave), None

        return jax.lax.scan(turn, state, (waves, rows))[0]

    return run


def _wave(task: Task, state: State, data: Data, hyper: dict[str, jax.Array], wave: Waves, rows: jax.Array) -> State:
    def of_lane(base: Tree, kept: Tree, client: jax.Array, weight: jax.Array, rows: jax.Array) -> tuple[Tree, Tree]:
        def of_seed(base: Tree, kept: Tree, rows: jax.Array) -> tuple[Tree, Tree]:
            gradient = task.gradient(data, client, rows)

            def of_run(base: Tree, kept: Tree, hyper: dict[str, jax.Array], weight: jax.Array) -> tuple[Tree, Tree]:
                contribution, kept = task.job.work(gradient, base, kept, hyper)
                step = hyper["server_lr"] * weight
                return jax.tree.map(lambda c: step.astype(c.dtype) * c, contribution), kept

            return jax.vmap(of_run, in_axes=(RUNS, RUNS, 0, 0), out_axes=RUNS)(base, kept, hyper, weight)

        return jax.vmap(of_seed)(base, kept, rows)

    base = jax.tree.map(lambda x: x.at[wave.read].get(mode="promise_in_bounds"), state.slots)
    kept = jax.tree.map(lambda x: x[wave.client], state.clients)
    steps, kept = jax.vmap(of_lane)(base, kept, wave.client, wave.weight, rows)
    steps = jax.tree.map(lambda x: jnp.where(_as(wave.active, x), x, 0), steps)
    after = jax.tree.map(prefix_sums, state.acc, steps)
    slots = jax.tree.map(lambda x, v: x.at[wave.write].set(v, mode="promise_in_bounds"), state.slots, after)
    nobody = jnp.int32(data.size.shape[0])
    owner = jnp.where(wave.active, wave.client, nobody)
    clients = jax.tree.map(lambda x, v: x.at[owner].set(v, mode="drop"), state.clients, kept)
    return State(slots, jax.tree.map(lambda x: x[-1], after), clients)


def prefix_sums(start: jax.Array, steps: jax.Array) -> jax.Array:
    """[width, …] start + steps[0] + … + steps[k]."""
    width = steps.shape[0]
    if width <= UNROLLED:
        sums = [start + steps[0]]
        for k in range(1, width):
            sums.append(sums[-1] + steps[k])
        return jnp.stack(sums)
    lower = jnp.tril(jnp.ones((width, width), steps.dtype))
    return start + jnp.tensordot(lower, steps, axes=1, precision=jax.lax.Precision.HIGHEST)


def _as(mask: jax.Array, like: jax.Array) -> jax.Array:
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))
