"""Training event by event, compiled: one job after the other, the runs of a grid together. For processors.

    Δ ← work(slots[read], batch);   acc ← acc + η_g ω Δ;   slots[write] ← the model that acc stands for

A round that is not closed writes a model in the making, which its next event overwrites.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedtempo.engine.task import RUNS, Data, State, Task, Tree


class Events(NamedTuple):
    """Events on the device, padded to the capacity of a piece."""

    client: jax.Array
    read: jax.Array
    write: jax.Array
    closes: jax.Array
    weight: jax.Array
    """[events, runs]"""
    rows: jax.Array
    """[events, seeds, steps, batch]"""


def unrolled(task: Task) -> int:
    """Events in one turn of the loop: several where a job is small beside the loop itself."""
    return 4 if task.job.steps == 1 and task.job.batch_size is not None else 1


def event_loop(task: Task) -> Callable[[State, Data, dict[str, jax.Array], Events, Any, Any], State]:
    """The function that runs events `first` to `last` of a piece; `first` is a multiple of `unrolled`."""
    turn = unrolled(task)

    def run(
        state: State, data: Data, hyper: dict[str, jax.Array], events: Events, first: jax.Array, last: jax.Array
    ) -> State:
        def one(place: Any, now: State) -> State:
            event = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, place, 0, keepdims=False), events)
            return _event(task, now, data, hyper, event)

        def several(k: Any, now: State) -> State:
            for step in range(turn):
                now = one(first + k * turn + step, now)
            return now

        turns = (last - first) // turn
        state = jax.lax.fori_loop(0, turns, several, state)
        return jax.lax.fori_loop(first + turns * turn, last, one, state) if turn > 1 else state

    return run


def _event(task: Task, state: State, data: Data, hyper: dict[str, jax.Array], event: Events) -> State:
    def of_run(
        base: Tree, acc: Tree, kept: Tree, hyper: dict[str, jax.Array], weight: jax.Array, gradient: Any
    ) -> tuple[Tree, Tree, Tree]:
        contribution, kept = task.job.work(gradient, base, kept, hyper)
        acc = task.server.add(acc, contribution, weight, base, hyper)
        model, closed = task.server.close(acc, hyper)
        acc = jax.tree.map(
            lambda done, open_: done if done is open_ else jnp.where(event.closes, done, open_), closed, acc
        )
        return acc, model, kept

    def of_seed(base: Tree, acc: Tree, kept: Tree, rows: jax.Array) -> tuple[Tree, Tree, Tree]:
        gradient = task.gradient(data, event.client, rows)
        over_runs = jax.vmap(
            lambda b, a, c, h, w: of_run(b, a, c, h, w, gradient), in_axes=(RUNS, RUNS, RUNS, 0, 0), out_axes=RUNS
        )
        return over_runs(base, acc, kept, hyper, event.weight)

    base = at(state.slots, event.read)
    acc, model, kept = jax.vmap(of_seed)(base, state.acc, at(state.clients, event.client), event.rows)
    return State(put(state.slots, event.write, model), acc, put(state.clients, event.client, kept))


def at(tree: Tree, place: jax.Array) -> Tree:
    """One entry of every leaf."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, place, 0, keepdims=False), tree)


def put(tree: Tree, place: jax.Array, value: Tree) -> Tree:
    """One entry of every leaf replaced."""
    return jax.tree.map(lambda x, v: jax.lax.dynamic_update_index_in_dim(x, v, place, 0), tree, value)
