"""Training event by event, compiled: one job after the other, the runs of a grid together. For processors.

    Δ ← work(slots[read], batch);   acc ← acc + η_g ω Δ;   slots[write] ← the model that acc stands for

A round that is not closed writes a model in the making, which its next event overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedtempo.simulation.engine.task import (
    RUNS,
    SHARE,
    Data,
    JobKeys,
    Owned,
    Runs,
    State,
    Task,
    Tree,
    Version,
    Weighed,
    at,
    loop,
    put,
    take,
)
from fedtempo.training.server_rules import Arrival

UNROLLED = 4
GATHERED_BYTES = 1 << 22
"""Rows that are gathered together, at most: what a processor's caches hold."""


class Events(NamedTuple):
    """Events on the device, padded to the capacity of a piece."""

    client: jax.Array
    job: jax.Array
    read: jax.Array
    write: jax.Array
    closes: jax.Array
    weight: jax.Array
    """[events, weight rules]; with a state, each rule's at the stable step follow."""
    rows: jax.Array
    """[events, seeds, steps, batch]"""


def events_per_step(task: Task, row_bytes: int) -> int:
    """Events in one step of the loop: several, with their batches gathered at once, where a job is one small step."""
    if task.job.steps > 1 or task.job.batch_size is None:
        return 1
    fit = GATHERED_BYTES // (task.job.batch_size * row_bytes)
    return max((per_step for per_step in (1, 4, 8, 16) if per_step <= fit), default=1)


def event_loop(task: Task, per_step: int) -> Callable[[State, Data, Runs, Events, Any, Any], State]:
    """The function that runs events `first` to `last` of a piece; `first` is a multiple of `per_step`."""

    def run(state: State, data: Data, runs: Runs, events: Events, first: jax.Array, last: jax.Array) -> State:
        def one(place: Any, now: State) -> State:
            return _event(task, now, data, runs, at(events, place))

        def several(number: Any, now: State) -> State:
            begin = first + number * per_step
            together = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, per_step), events)
            batches = take(data.rows, together.rows[:, :, 0])

            def some(k: Any, now: State) -> State:
                for step in range(UNROLLED):
                    place = k * UNROLLED + step
                    now = _event(task, now, data, runs, at(together, place), at(batches, place))
                return now

            return loop(0, per_step // UNROLLED, some, now)

        if per_step == 1:
            return loop(first, last, one, state)
        steps = (last - first) // per_step
        state = loop(0, steps, several, state)
        return loop(first + steps * per_step, last, one, state)

    return run


def _event(task: Task, state: State, data: Data, runs: Runs, event: Events, batches: Tree = None) -> State:
    own = runs.of_client(event.client)

    def of_run(
        base: Version,
        acc: Tree,
        kept: Tree,
        hyper: dict[str, jax.Array],
        weight: Weighed,
        owned: Owned,
        stepper: Any,
        key: Any,
    ) -> tuple[Tree, Version, Tree]:
        answer, kept, state = task.answer(data, owned, stepper, base, kept, hyper, own, key)
        arrival = Arrival(answer, weight.update, own[SHARE], base.sent, event.client)
        acc = task.add(acc, arrival, state, weight.state, hyper)
        version, closed = task.close(acc, hyper)
        return jax.tree.map(partial(_either, event.closes), closed, acc), version, kept

    def of_seed(
        base: Version, acc: Tree, kept: Tree, rows: jax.Array, batch: Tree, keys: JobKeys, deal: jax.Array | None
    ) -> tuple[Tree, Version, Tree]:
        owned = data.owned(event.client, deal)
        stepper = task.stepper(data, owned, rows, keys, batch)
        work = partial(of_run, owned=owned, stepper=stepper, key=keys.compression)
        over_runs = jax.vmap(work, in_axes=(RUNS, RUNS, RUNS, 0, 0), out_axes=RUNS)
        found: tuple[Tree, Version, Tree] = over_runs(base, acc, kept, runs.hyper, task.weighed(event.weight, runs))
        return found

    base, kept = at(state.slots, event.read), at(state.clients, event.client)
    keys = task.keys(runs, event.client, event.job)
    acc, version, kept = jax.vmap(of_seed)(base, state.acc, kept, event.rows, batches, keys, runs.deal)
    return State(put(state.slots, event.write, version), acc, put(state.clients, event.client, kept))


def _either(first: jax.Array, one: jax.Array, other: jax.Array) -> jax.Array:
    return one if one is other else jnp.where(first, one, other)
