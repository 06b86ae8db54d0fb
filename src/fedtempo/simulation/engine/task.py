"""What all compiled engines share: the state that they carry, a job's gradients, the layout of runs.

A leaf of the model of shape (…) is held as [slots, seeds, …, runs]: runs that share a batch lie innermost, so that the
products of one batch with many models become one product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedtempo.grid import RATE
from fedtempo.simulation.engine.program import FIRST, MAKING
from fedtempo.training.batches import job_key, job_rows
from fedtempo.training.client import ClientWork, Kept
from fedtempo.training.server_rules import ServerRule
from fedtempo.training.solvers import STEPS, Answer, Gradient, Hyper, Job, Params, Sent

RUNS = -1
SHARE = "importance"
FULL_ROWS = 256
"""Rows that a full gradient takes at once."""

Tree = Any
T = TypeVar("T")


class State(NamedTuple):
    """Everything that a run carries from event to event."""

    slots: Sent
    """[slots, seeds, …, runs] model versions, and what goes to clients with them."""
    acc: Tree
    """[seeds, …, runs] what the server holds of the round in the making."""
    clients: Tree
    """[clients, seeds, …, runs] what clients keep from job to job."""


class Runs(NamedTuple):
    """What tells runs that go together apart."""

    keys: jax.Array
    """[seeds] of the batches."""
    noise: jax.Array
    """[seeds] of the compression."""
    hyper: dict[str, jax.Array]
    """[runs] of each hyper-parameter."""
    rule: jax.Array
    """[runs] which of the weight rules."""
    clients: dict[str, jax.Array]
    """[clients] numbers of each client: `SHARE`, and where clients differ in them `RATE` (a factor) and `STEPS`."""

    def of_client(self, client: jax.Array) -> dict[str, jax.Array]:
        """The numbers of one client."""
        return {name: values[client] for name, values in self.clients.items()}


class Data(NamedTuple):
    """The clients' rows on the device, and where each client's begin."""

    rows: Tree
    offset: jax.Array
    size: jax.Array


@dataclass(frozen=True, eq=False)
class Task:
    """What is compiled: pure functions of fixed shape."""

    loss: Callable[[Params, Any], jax.Array]
    work: ClientWork
    server: ServerRule

    @property
    def job(self) -> Job:
        """The solver's part of the work."""
        return self.work.job

    def draw(self, data: Data, keys: jax.Array, client: jax.Array, job: jax.Array) -> jax.Array:
        """[events, seeds, steps, batch] the rows of each event; empty where a job takes all rows of its client."""
        if self.job.batch_size is None:
            return jnp.zeros((*client.shape, len(keys), 0, 0), dtype=jnp.int32)
        rows = partial(job_rows, steps=self.job.steps, batch_size=self.job.batch_size, draw=self.job.draw)

        def event(i: jax.Array, j: jax.Array) -> jax.Array:
            return data.offset[i] + jax.vmap(rows, (0, None, None, None))(keys, i, j, data.size[i])

        return jax.vmap(event)(client, job)

    def gradient(self, data: Data, client: jax.Array, rows: jax.Array, batch: Tree = None) -> Gradient:
        """(θ, k) → gradient of the k-th step of a job whose rows, or whose only batch, are known."""
        if self.job.batch_size is None:
            return lambda params, k: full_gradient(self.loss, data, client, params)
        if batch is not None:
            return lambda params, k: jax.grad(self.loss)(params, batch)
        return lambda params, k: jax.grad(self.loss)(params, take(data.rows, rows[k]))

    def answer(
        self,
        data: Data,
        client: jax.Array,
        gradient: Gradient,
        sent: Sent,
        kept: Kept,
        hyper: Hyper,
        own: dict[str, jax.Array],
        key: jax.Array | None,
    ) -> tuple[Answer, Kept]:
        """What a client sends back after a job; `own` are its numbers, `key` its compression's."""
        if RATE in own:
            hyper = {**hyper, RATE: hyper[RATE] * own[RATE].astype(hyper[RATE].dtype)}
        if STEPS in own:
            hyper = {**hyper, STEPS: own[STEPS]}

        def full(here: Params) -> Params:
            return full_gradient(self.loss, data, client, here)

        return self.work(gradient, full, sent, kept, hyper, key)

    def noise(self, keys: jax.Array, client: jax.Array, job: jax.Array) -> jax.Array | None:
        """[seeds] the keys of a job's compression; None where there is none."""
        if self.work.compression is None:
            return None
        fold = jax.vmap(job_key, (0, None, None))
        keyed: jax.Array = fold(keys, client, job)
        return keyed

    def initial(self, params: Tree, num_slots: int, num_clients: int) -> State:
        """Every client holds version 0, `params` [seeds, …, runs], and so does the model in the making."""
        places = jnp.array([MAKING, FIRST])
        over = partial(_over_seeds_and_runs, params)
        acc = over(self.server.start)
        first = Sent(params, over(lambda model: self.server.broadcast(self.server.start(model))))
        slots = jax.tree.map(lambda x: jnp.zeros((num_slots, *x.shape), x.dtype).at[places].set(x), first)
        clients = jax.tree.map(lambda x: jnp.repeat(x[None], num_clients, axis=0), over(self.work.start))
        return State(slots, acc, clients)


def _over_seeds_and_runs(params: Tree, function: Callable[[Params], Tree]) -> Tree:
    return jax.vmap(jax.vmap(function, in_axes=RUNS, out_axes=RUNS))(params)


def loop(first: Any, last: Any, body: Callable[[Any, T], T], start: T) -> T:
    """A compiled loop over whole numbers."""
    end: T = jax.lax.fori_loop(first, last, body, start)
    return end


def at(tree: Tree, place: jax.Array) -> Tree:
    """One entry of every leaf."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, place, 0, keepdims=False), tree)


def put(tree: Tree, place: jax.Array, value: Tree) -> Tree:
    """One entry of every leaf replaced."""
    return jax.tree.map(lambda x, v: jax.lax.dynamic_update_index_in_dim(x, v, place, 0), tree, value)


def take(rows: Tree, which: jax.Array) -> Tree:
    """Rows by number, known to exist."""
    return jax.tree.map(lambda x: x.at[which].get(mode="promise_in_bounds"), rows)


def row_losses(loss: Callable[[Params, Any], jax.Array], params: Params, batch: Tree) -> jax.Array:
    """[rows] the loss of each row of a batch."""
    return jax.vmap(lambda row: loss(params, jax.tree.map(lambda x: x[None], row)))(batch)


def full_gradient(loss: Callable[[Params, Any], jax.Array], data: Data, client: jax.Array, params: Params) -> Params:
    """∇L_i over all rows of a client, some at a time: a small client costs little beside a large one."""
    size, offset = data.size[client], data.offset[client]

    def some_loss(here: Params, start: jax.Array) -> jax.Array:
        place = start + jnp.arange(FULL_ROWS, dtype=jnp.int32)
        batch = take(data.rows, offset + jnp.minimum(place, size - 1))
        losses = row_losses(loss, here, batch)
        return jnp.sum(jnp.where(place < size, losses, 0)) / size.astype(losses.dtype)

    def add(k: jax.Array, total: Params) -> Params:
        return jax.tree.map(jnp.add, total, jax.grad(some_loss)(params, k * FULL_ROWS))

    return loop(0, (size + FULL_ROWS - 1) // FULL_ROWS, add, jax.tree.map(jnp.zeros_like, params))
