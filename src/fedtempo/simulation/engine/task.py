"""What all compiled engines share: the state that they carry, a job's gradients, the layout of runs.

The products of one batch with the models of many runs are one product. So that no model has to be transposed for it, a
leaf of shape (…) is held as [slots, seeds, runs, …] on processors and as [slots, seeds, …, runs] on accelerators: runs
lie `OUTERMOST` or `INNERMOST`. Shapes that say [seeds, …, runs] mean either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedtempo.grid import RATE
from fedtempo.problems.forms import LossForm
from fedtempo.simulation.engine.program import FIRST, MAKING
from fedtempo.training.batches import job_key, job_rows, step_key
from fedtempo.training.client import ClientWork, Kept
from fedtempo.training.server_rules import Arrival, LinearRule, ServerRule
from fedtempo.training.solvers import STEPS, Answer, Hyper, Job, Params, Sent, Stepper
from fedtempo.training.state_average import StateAverage, Values

OUTERMOST, INNERMOST = 0, -1
"""Axes of runs, among the axes of a model."""
SHARE = "importance"
LARGE = 1 << 28
"""Bytes of versions that are not to be held twice."""
FULL_ROWS = 256
"""Rows that a full gradient takes at once."""

Tree = Any
T = TypeVar("T")


class Version(NamedTuple):
    """A version of the model, as clients start from it."""

    sent: Sent
    state: Tree = ()
    """The problem's, which goes with it; () if it has none."""


class State(NamedTuple):
    """Everything that a run carries from event to event."""

    slots: Version
    """[slots, seeds, …, runs] model versions, and what goes to clients with them."""
    acc: Tree
    """[seeds, …, runs] what the server holds of the round in the making."""
    clients: Tree
    """[clients, seeds, …, runs] what clients keep from job to job."""


class Runs(NamedTuple):
    """What tells runs that go together apart."""

    keys: jax.Array
    """[seeds] of the batches."""
    deal: jax.Array | None
    """[seeds] which of the problem's deals; None where there is one."""
    noise: jax.Array
    """[seeds] of the compression."""
    drawn: jax.Array | None
    """[seeds] of what the loss draws in training; None where it draws nothing."""
    hyper: dict[str, jax.Array]
    """[runs] of each hyper-parameter."""
    rule: jax.Array
    """[runs] which of the weight rules."""
    clients: dict[str, jax.Array]
    """[clients] numbers of each client: `SHARE`, and where clients differ in them `RATE` (a factor) and `STEPS`."""

    def of_client(self, client: jax.Array) -> dict[str, jax.Array]:
        """The numbers of one client."""
        return {name: values[client] for name, values in self.clients.items()}


class JobKeys(NamedTuple):
    """The keys of one job; None where nothing is drawn."""

    compression: jax.Array | None
    loss: jax.Array | None


class Weighed(NamedTuple):
    """What an update weighs."""

    update: jax.Array
    """ω_i(n) of its contribution."""
    state: jax.Array | None
    """Of the problem's state: ω_i(n) at the stable step; None where there is no state."""


class Held(NamedTuple):
    """What the server holds of the round in the making, where the problem has a state."""

    rule: Tree
    """What its rule holds."""
    values: Values


class Data(NamedTuple):
    """The clients' rows on the device, those of all deals end to end, and where each client's begin."""

    rows: Tree
    offset: jax.Array
    """[deals, clients]"""
    size: jax.Array
    """[clients]"""

    def owned(self, client: jax.Array, deal: jax.Array | None) -> Owned:
        """The place of a client's rows in a deal; None: the only one."""
        return Owned(self.offset[0 if deal is None else deal, client], self.size[client])


class Owned(NamedTuple):
    """Where a client's rows begin, and how many they are."""

    offset: jax.Array
    size: jax.Array


@dataclass(frozen=True, eq=False)
class Task:
    """What is compiled: pure functions of fixed shape."""

    loss: LossForm
    work: ClientWork
    server: ServerRule
    average: StateAverage | None = None
    """What the server does with the problem's state; None if it has none."""
    runs_axis: int = INNERMOST
    """Where runs lie in a leaf of the model."""

    @property
    def job(self) -> Job:
        """The solver's part of the work."""
        return self.work.job

    def draw(self, data: Data, keys: jax.Array, deal: jax.Array | None, client: jax.Array, job: jax.Array) -> jax.Array:
        """[events, seeds, steps, batch] the rows of each event; empty where a job takes all rows of its client."""
        if self.job.batch_size is None:
            return jnp.zeros((*client.shape, len(keys), 0, 0), dtype=jnp.int32)
        rows = partial(job_rows, steps=self.job.steps, batch_size=self.job.batch_size, draw=self.job.draw)

        def event(i: jax.Array, j: jax.Array) -> jax.Array:
            def of_seed(key: jax.Array, deal: jax.Array | None) -> jax.Array:
                own = data.owned(i, deal)
                return own.offset + rows(key, i, j, own.size)

            return jax.vmap(of_seed)(keys, deal)

        return jax.vmap(event)(client, job)

    def stepper(self, data: Data, own: Owned, rows: jax.Array, keys: JobKeys) -> Stepper:
        """(θ, k, s) → gradient of the k-th step of a job whose rows are known; and the next s."""
        if self.job.batch_size is None:
            return lambda params, k, state: (full_gradient(self.loss.function, data, own, params), state)

        def step(params: Params, k: Any, state: Tree) -> tuple[Params, Tree]:
            here = take(data.rows, rows[k])
            key = None if keys.loss is None else step_key(keys.loss, k)
            found: tuple[Params, Tree] = jax.grad(self.loss.training, has_aux=True)(params, here, key, state)
            return found

        return step

    def answer(
        self,
        data: Data,
        rows: Owned,
        stepper: Stepper,
        base: Version,
        kept: Kept,
        hyper: Hyper,
        own: dict[str, jax.Array],
        key: jax.Array | None,
    ) -> tuple[Answer, Kept, Tree]:
        """What a client sends back after a job, what it keeps, and the problem's state after it.

        `rows` are the client's, `own` its numbers, `key` its compression's. The gradient of all its rows, where a
        correction asks for it, is that of the loss as it is measured.
        """
        if RATE in own:
            hyper = {**hyper, RATE: hyper[RATE] * own[RATE].astype(hyper[RATE].dtype)}
        if STEPS in own:
            hyper = {**hyper, STEPS: own[STEPS]}

        def full(here: Params) -> Params:
            return full_gradient(lambda p, batch: self.loss.evaluation(p, batch, base.state), data, rows, here)

        return self.work(stepper, full, base.sent, kept, hyper, key, base.state)

    def keys(self, runs: Runs, client: jax.Array, job: jax.Array) -> JobKeys:
        """[seeds] the keys of a job."""
        fold = jax.vmap(job_key, (0, None, None))
        compression = None if self.work.compression is None else fold(runs.noise, client, job)
        return JobKeys(compression, None if runs.drawn is None else fold(runs.drawn, client, job))

    def weighed(self, weight: jax.Array, runs: Runs) -> Weighed:
        """[…, runs] what updates weigh, of [..., weight rules]: with a state, each rule's at the stable step follow."""
        if self.average is None:
            return Weighed(weight[..., runs.rule], None)
        return Weighed(weight[..., runs.rule], weight[..., runs.rule + weight.shape[-1] // 2])

    # -- the server, and the problem's state beside its rule

    @property
    def adds_up(self) -> bool:
        """Whether the server only adds: then many updates can be taken at once."""
        return isinstance(self.server, LinearRule) and self.average is None

    def start(self, model: Params, state: Tree) -> Tree:
        """What the server holds before the first round."""
        acc = self.server.start(model)
        if self.average is None:
            return acc
        return Held(acc, self.average.start(state, jnp.zeros((), jax.tree.leaves(model)[0].dtype)))

    def add(self, acc: Tree, arrival: Arrival, state: Tree, weight: jax.Array | None, hyper: Hyper) -> Tree:
        """An answer enters the round, and the problem's state that came with it; `weight` is that of the state."""
        if self.average is None:
            return self.server.add(acc, arrival, hyper)
        assert weight is not None
        return Held(self.server.add(acc.rule, arrival, hyper), self.average.add(acc.values, state, weight))

    def close(self, acc: Tree, hyper: Hyper) -> tuple[Version, Tree]:
        """The new version, and what the server holds when the next round begins."""
        if self.average is None:
            model, closed = self.server.close(acc, hyper)
            return self.version(model, closed), closed
        model, rule = self.server.close(acc.rule, hyper)
        closed = Held(rule, self.average.close(acc.values))
        return self.version(model, closed), closed

    def version(self, model: Params, acc: Tree) -> Version:
        """A version, made of what the server holds between two rounds."""
        if self.average is None:
            return Version(Sent(model, self.server.broadcast(acc)))
        return Version(Sent(model, self.server.broadcast(acc.rule)), acc.values.state)

    def initial(self, params: Tree, state: Tree, num_slots: int, num_clients: int) -> State:
        """Every client holds version 0, `params` and the problem's `state` [seeds, …, runs]; so does the round in the
        making.
        """
        places = jnp.array([MAKING, FIRST])
        acc = self._over_seeds_and_runs(self.start, params, state)
        first = self._over_seeds_and_runs(self.version, params, acc)

        def held(x: jax.Array) -> jax.Array:
            return jnp.zeros((num_slots, *x.shape), x.dtype).at[places].set(x)

        # one operation after the other, they would be held twice; compiling takes longer than that does for small ones
        slots = jax.tree.map(lambda x: (jax.jit(held) if num_slots * x.nbytes > LARGE else held)(x), first)
        clients = jax.tree.map(
            lambda x: jnp.repeat(x[None], num_clients, axis=0), self._over_seeds_and_runs(self.work.start, params)
        )
        return State(slots, jax.tree.map(jnp.copy, acc), clients)  # a compiled call may be given no buffer twice

    def _over_seeds_and_runs(self, function: Callable[..., Tree], *given: Tree) -> Tree:
        return jax.vmap(jax.vmap(function, in_axes=self.runs_axis, out_axes=self.runs_axis))(*given)


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


def row_losses(loss: Callable[[Params, Any], Any], params: Params, batch: Tree) -> jax.Array:
    """[rows] the loss of each row of a batch."""
    losses: jax.Array = jax.vmap(lambda row: loss(params, jax.tree.map(lambda x: x[None], row)))(batch)
    return losses


def full_gradient(loss: Callable[[Params, Any], Any], data: Data, own: Owned, params: Params) -> Params:
    """∇L_i over all rows of a client, some at a time: a small client costs little beside a large one."""
    offset, size = own

    def some_loss(here: Params, start: jax.Array) -> jax.Array:
        place = start + jnp.arange(FULL_ROWS, dtype=jnp.int32)
        batch = take(data.rows, offset + jnp.minimum(place, size - 1))
        losses = row_losses(loss, here, batch)
        return jnp.sum(jnp.where(place < size, losses, 0)) / size.astype(losses.dtype)

    def add(k: jax.Array, total: Params) -> Params:
        return jax.tree.map(jnp.add, total, jax.grad(some_loss)(params, k * FULL_ROWS))

    return loop(0, (size + FULL_ROWS - 1) // FULL_ROWS, add, jax.tree.map(jnp.zeros_like, params))
