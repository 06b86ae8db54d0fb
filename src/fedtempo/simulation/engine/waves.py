"""Training wave by wave, compiled: jobs that do not depend on each other as one batch. For accelerators.

Events whose base versions all exist when the wave begins are independent: between two completions of the same client
every job in flight is. Their contributions are computed at once, and the models of the rounds inside the wave are

    θ after event k  =  making + η_g Σ_{j ≤ k} ω_j Δ_j               a prefix sum, exact up to rounding

A server that does more than add up, or averages a problem's state, takes the answers of a wave one after the other.
Waves are padded to one width, and several waves are one call. Only rounds that close write their slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.simulation.engine.program import MAKING, NOBODYS, Piece
from fedtempo.simulation.engine.task import (
    SHARE,
    Data,
    JobKeys,
    Runs,
    State,
    Task,
    Tree,
    Version,
    Weighed,
    at,
    put,
)
from fedtempo.training.server_rules import Arrival, LinearRule
from fedtempo.training.solvers import Answer

WAVES_PER_CALL = (1, 2, 4, 8, 16, 32, 64, 128)
"""How many, as the work of a wave allows: the last call of a piece is filled up with empty ones."""
UNROLLED = 16
"""Up to this width prefix sums are written out; beyond, they are a product with a triangular matrix."""


class Waves(NamedTuple):
    """The waves of a piece, call by call: [calls, waves, width, …] each, few arrays since each costs a transfer."""

    events: jax.Array
    """[…, 5] client, job, slot to read, slot to write (nobody's if no round closes), 1 where there is an event."""
    weight: jax.Array
    """[…, weight rules]; with a state, each rule's at the stable step follow."""


class Loaded(NamedTuple):
    """A piece on the device, and how many of its calls hold waves."""

    waves: Waves
    calls: int


def wave_starts(piece: Piece, width: int) -> NDArray[np.int64]:
    """Where waves begin, and the end: an event that needs a slot which its wave has written begins the next one."""
    starts = [0]
    written: set[int] = set()
    for k, (read, write, closes) in enumerate(
        zip(piece.read.tolist(), piece.write.tolist(), piece.closes.tolist(), strict=True)
    ):
        again = closes and write in written  # a version that nobody reads: of two writes at once either could win
        if read in written or again or k - starts[-1] == width:
            starts.append(k)
            written.clear()
        if closes:
            written.add(write)
    if piece.num_events > 0:
        starts.append(piece.num_events)
    return np.array(starts, dtype=np.int64)


def load_waves(piece: Piece, width: int, per_call: int, capacity: int, dtype: Any) -> Loaded:
    """The waves of a piece on the device, padded to the number of waves that `capacity` events could make."""
    starts = wave_starts(piece, width)
    waves = len(starts) - 1
    place = starts[:-1, None] + np.arange(width)
    active = place < starts[1:, None]
    place = np.where(active, place, 0)
    events = np.zeros((-(-capacity // per_call) * per_call, width, 5), dtype=np.int32)
    weight = np.zeros((*events.shape[:2], len(piece.weight)), dtype=dtype)
    if waves:
        closes = active & piece.closes[place]
        columns = (
            piece.client[place],
            piece.job[place],
            piece.read[place],
            np.where(closes, piece.write[place], NOBODYS),
        )
        events[:waves] = np.stack([*columns, active], axis=-1)
        weight[:waves] = np.moveaxis(piece.weight[:, place] * active, 0, -1)
    by_call = (x.reshape(-1, per_call, *x.shape[1:]) for x in (events, weight))
    return Loaded(Waves(*jax.device_put(tuple(by_call))), -(-waves // per_call))


def wave_loop(
    task: Task, dealt: Callable[[Any], Any] = lambda lanes: lanes
) -> Callable[[State, Data, Runs, Waves, jax.Array], State]:
    """The function that runs the waves of one call; `dealt` says on which devices [waves, width, …] arrays lie."""

    def run(state: State, data: Data, runs: Runs, waves: Waves, call: jax.Array) -> State:
        mine = at(waves, call)
        client, job, read, write, active = (mine.events[..., k] for k in range(5))
        drawn = task.draw(data, runs.keys, runs.deal, client.reshape(-1), job.reshape(-1))
        rows = drawn.reshape(*client.shape, *drawn.shape[1:])
        lanes = dealt(_Lanes(client, job, read, write, active > 0, task.weighed(mine.weight, runs), rows))
        one = _wave if task.adds_up else _wave_in_order

        def step(now: State, wave: _Lanes) -> tuple[State, None]:
            return one(task, now, data, runs, wave), None

        end: State = jax.lax.scan(step, state, lanes)[0]
        return end

    return run


class _Lanes(NamedTuple):
    """The events of one wave, or of several: [(waves,) width] each."""

    client: jax.Array
    job: jax.Array
    read: jax.Array
    write: jax.Array
    active: jax.Array
    weight: Weighed
    rows: jax.Array


def _answers(
    task: Task, base: Version, state: State, data: Data, runs: Runs, wave: _Lanes
) -> tuple[Answer, Tree, Tree]:
    """[width, seeds, …, runs] what the clients of a wave send back, what they keep, and the problem's state."""
    axis = task.runs_axis

    def of_lane(base: Version, kept: Tree, lane: _Lanes) -> tuple[Answer, Tree, Tree]:
        own = runs.of_client(lane.client)

        def of_seed(
            base: Version, kept: Tree, rows: jax.Array, keys: JobKeys, deal: jax.Array | None
        ) -> tuple[Answer, Tree, Tree]:
            owned = data.owned(lane.client, deal)
            stepper = task.stepper(data, owned, rows, keys)

            def of_run(base: Version, kept: Tree, hyper: dict[str, jax.Array]) -> tuple[Answer, Tree, Tree]:
                return task.answer(data, owned, stepper, base, kept, hyper, own, keys.compression)

            return jax.vmap(of_run, in_axes=(axis, axis, 0), out_axes=axis)(base, kept, runs.hyper)

        return jax.vmap(of_seed)(base, kept, lane.rows, task.keys(runs, lane.client, lane.job), runs.deal)

    kept = jax.tree.map(lambda x: x[wave.client], state.clients)
    found: tuple[Answer, Tree, Tree] = jax.vmap(of_lane)(base, kept, wave)
    return found


def _kept(state: State, data: Data, wave: _Lanes, kept: Tree) -> Tree:
    """What all clients keep after a wave."""
    owner = jnp.where(wave.active, wave.client, jnp.int32(data.size.shape[0]))
    return jax.tree.map(lambda x, v: x.at[owner].set(v, mode="drop"), state.clients, kept)


def _wave(task: Task, state: State, data: Data, runs: Runs, wave: _Lanes) -> State:
    rule, axis = cast(LinearRule, task.server), task.runs_axis

    def step(answer: Answer, weight: jax.Array) -> Tree:
        over_runs = jax.vmap(rule.step, in_axes=(axis, 0, 0), out_axes=axis)
        return jax.vmap(over_runs, in_axes=(0, None, None))(answer.change, weight, runs.hyper)

    # The model in the making is read and written with the others: as a value of its own it would cost two more kernels.
    making = jnp.full(1, MAKING, dtype=wave.read.dtype)
    read, write = jnp.concatenate([wave.read, making]), jnp.concatenate([wave.write, making])
    versions = jax.tree.map(lambda x: x.at[read].get(mode="promise_in_bounds"), state.slots)
    answers, kept, _ = _answers(task, jax.tree.map(lambda x: x[:-1], versions), state, data, runs, wave)
    steps = jax.vmap(step)(answers, wave.weight.update)
    steps = jax.tree.map(lambda x: jnp.where(_as(wave.active, x), x, 0), steps)
    after = jax.tree.map(lambda x, v: prefix_sums(x[-1], v), versions.sent.model, steps)
    values = jax.tree.map(lambda v: jnp.concatenate([v, v[-1:]]), after)
    sent = state.slots.sent
    model = jax.tree.map(lambda x, v: x.at[write].set(v, mode="promise_in_bounds"), sent.model, values)
    return State(Version(sent._replace(model=model)), state.acc, _kept(state, data, wave, kept))


def _wave_in_order(task: Task, state: State, data: Data, runs: Runs, wave: _Lanes) -> State:
    """The clients' work at once, the server's one after the other."""
    axis = task.runs_axis
    base: Version = jax.tree.map(lambda x: x.at[wave.read].get(mode="promise_in_bounds"), state.slots)
    answers, kept, states = _answers(task, base, state, data, runs, wave)

    def enter(now: tuple[Tree, Tree], lane: tuple[_Lanes, Answer, Tree, Version]) -> tuple[tuple[Tree, Tree], None]:
        (slots, acc), (event, answer, own, base) = now, lane
        share = runs.of_client(event.client)[SHARE]

        def of_run(
            acc: Tree, answer: Answer, own: Tree, base: Version, weight: Weighed, hyper: Any
        ) -> tuple[Tree, Tree, Version]:
            arrival = Arrival(answer, weight.update, share, base.sent, event.client)
            added = task.add(acc, arrival, own, weight.state, hyper)
            version, closed = task.close(added, hyper)
            return added, closed, version

        over_runs = jax.vmap(of_run, in_axes=(axis, axis, axis, axis, 0, 0), out_axes=axis)
        over_seeds = jax.vmap(over_runs, in_axes=(0, 0, 0, 0, None, None))
        added, closed, version = over_seeds(acc, answer, own, base, event.weight, runs.hyper)
        closes = event.active & (event.write != NOBODYS)

        def following(before: jax.Array, with_it: jax.Array, anew: jax.Array) -> jax.Array:
            return jnp.where(closes, anew, jnp.where(event.active, with_it, before))

        return (put(slots, event.write, version), jax.tree.map(following, acc, added, closed)), None

    (slots, acc), _ = jax.lax.scan(enter, (state.slots, state.acc), (wave, answers, states, base))
    return State(slots, acc, _kept(state, data, wave, kept))


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
