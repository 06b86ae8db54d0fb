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

from fedtempo.problems.problem import Problem
from fedtempo.simulation.engine.cost_model import gradient_work
from fedtempo.simulation.engine.task import (
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
)
from fedtempo.training.server_rules import Arrival

TOGETHER = 4
"""Events in one step of the loop, where they are short."""
SHORT = 4e6
"""Operations of the gradients of a short event, at most."""


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


def events_per_step(problem: Problem, task: Task, runs: int) -> int:
    """Events in one step of the loop: several where they are short, so that their batches are gathered side by side.

    Not with several runs: between the events of a step, all versions of their models would be copied.
    """
    job = task.job
    if runs > 1 or job.steps > 1 or job.batch_size is None:
        return 1
    return TOGETHER if gradient_work(problem, job.batch_size).operations <= SHORT else 1


def event_loop(task: Task, per_step: int) -> Callable[[State, Data, Runs, Events, Any, Any], State]:
    """The function that runs events `first` to `last` of a piece, so many in a step of the loop."""

    def run(state: State, data: Data, runs: Runs, events: Events, first: jax.Array, last: jax.Array) -> State:
        def one(place: Any, now: State) -> State:
            return _event(task, now, data, runs, at(events, place))

        def some(number: Any, now: State) -> State:
            for k in range(per_step):
                now = one(first + number * per_step + k, now)
            return now

        if per_step == 1:
            return loop(first, last, one, state)
        steps = (last - first) // per_step
        return loop(first + steps * per_step, last, one, loop(0, steps, some, state))

    return run


def _event(task: Task, state: State, data: Data, runs: Runs, event: Events) -> State:
    own, axis = runs.of_client(event.client), task.runs_axis

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
        base: Version, acc: Tree, kept: Tree, rows: jax.Array, keys: JobKeys, deal: jax.Array | None
    ) -> tuple[Tree, Version, Tree]:
        owned = data.owned(event.client, deal)
        stepper = task.stepper(data, owned, rows, keys)
        work = partial(of_run, owned=owned, stepper=stepper, key=keys.compression)
        over_runs = jax.vmap(work, in_axes=(axis, axis, axis, 0, 0), out_axes=axis)
        found: tuple[Tree, Version, Tree] = over_runs(base, acc, kept, runs.hyper, task.weighed(event.weight, runs))
        return found

    base, kept = at(state.slots, event.read), at(state.clients, event.client)
    keys = task.keys(runs, event.client, event.job)
    acc, version, kept = jax.vmap(of_seed)(base, state.acc, kept, event.rows, keys, runs.deal)
    return State(put(state.slots, event.write, version), acc, put(state.clients, event.client, kept))


def _either(first: jax.Array, one: jax.Array, other: jax.Array) -> jax.Array:
    return one if one is other else jnp.where(first, one, other)
