"""Algorithm 1, plainly: one run, one round after the other, one job after the other. The reference for every engine.

    θ_i ← θ^{ρ_i(n)};  K times: θ_i ← θ_i + u(∇L_i(θ_i, ξ));  Δ_i ← θ_i − θ^{ρ_i(n)}
    θ^{n+1} ← θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i
    virtual models (section 2.4):  θ^{n,k} = θ^n + η_g Σ_{i∈S_n} ω_i(n) (θ_i^{k} − θ^{ρ_i(n)})

u is a solver's update (−η_l · gradient for SGD), η_g `server_lr`, ω_i(n) the applied weight, ξ a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from fedtempo.clock.timeline import Timeline
from fedtempo.engine.numerics import Precision, cast, kept_as, numerics
from fedtempo.grid import Value
from fedtempo.local.batches import Draw, batch_key, init_key, job_rows
from fedtempo.local.solvers import LocalOptax
from fedtempo.problems.problem import Problem
from fedtempo.weighting import Weights

Params = Any


class OracleRound(NamedTuple):
    """A round as the oracle ran it."""

    number: int
    model: Params
    """θ^{n+1}."""
    virtual: tuple[Params, ...]
    """θ^{n,0} … θ^{n,K}, where they were asked for."""


def oracle(
    problem: Problem,
    line: Timeline,
    weights: Weights,
    local: LocalOptax,
    hyper: Mapping[str, Value],
    *,
    seed: int = 0,
    dtype: Precision = "float64",
    virtual: bool = False,
) -> Iterator[OracleRound]:
    """The rounds of `line`, trained one by one; `hyper` has local_lr, local_steps, batch_size, server_lr, …"""
    client = _Client(problem, local, hyper, seed, dtype)
    server_lr, steps = float(hyper["server_lr"] or 0), client.steps
    applied = weights.applied(line)
    last_use = dict(zip(line.base.tolist(), line.round_of_update.tolist(), strict=True))
    with numerics(dtype):
        models = {0: cast(problem.init(init_key(seed)), dtype)}
    update = 0
    for closed in line.rounds:
        n = closed.number
        with numerics(dtype):
            weighted: list[tuple[float, list[Params]]] = []
            for i, base in zip(closed.participants, closed.base_versions, strict=True):
                path = client.train(models[base], i, int(line.job[update]))
                weighted.append((server_lr * float(applied[update]), [_minus(theta, models[base]) for theta in path]))
                update += 1
            moved = range(steps + 1) if virtual else [steps]
            between = [_sum(models[n], [(omega, path[k]) for omega, path in weighted]) for k in moved]
        models[n + 1] = between[-1]
        models = {v: theta for v, theta in models.items() if v == n + 1 or last_use.get(v, -1) > n}
        yield OracleRound(n, models[n + 1], tuple(between) if virtual else ())


class _Client:
    """What a client does with a model."""

    def __init__(
        self, problem: Problem, local: LocalOptax, hyper: Mapping[str, Value], seed: int, dtype: Precision
    ) -> None:
        self.steps = int(hyper["local_steps"] or 1)
        self._problem, self._dtype = problem, dtype
        self._solver = local.transformation({k: kept_as(dtype).type(v) for k, v in hyper.items() if v is not None})
        self._gradient = _gradient(problem.loss)
        self._batch_size = hyper["batch_size"]
        self._key = batch_key(seed)
        self._rows = _rows(self.steps, int(self._batch_size or 1), local.draw)

    def train(self, theta: Params, client: int, job: int) -> list[Params]:
        """θ_i^0 … θ_i^K."""
        data = self._problem.client_data(client)
        size = np.int32(self._problem.sizes[client])
        rows = np.asarray(self._rows(self._key, np.int32(client), np.int32(job), size))
        memory = self._solver.init(theta)
        path = [theta]
        for k in range(self.steps):
            batch = data if self._batch_size is None else jax.tree.map(lambda x, which=rows[k]: x[which], data)
            update, memory = self._solver.update(self._gradient(theta, cast(batch, self._dtype)), memory, theta)
            theta = optax.apply_updates(theta, update)
            path.append(theta)
        return path


@lru_cache(maxsize=8)
def _gradient(loss: Callable[[Params, Any], Any]) -> Callable[[Params, Any], Params]:
    return jax.jit(jax.grad(loss))


@lru_cache(maxsize=8)
def _rows(steps: int, batch_size: int, draw: Draw) -> Callable[..., jax.Array]:
    return jax.jit(partial(job_rows, steps=steps, batch_size=batch_size, draw=draw))


def _minus(a: Params, b: Params) -> Params:
    return jax.tree.map(lambda x, y: x - y, a, b)


def _sum(start: Params, weighted: list[tuple[float, Params]]) -> Params:
    """Start + Σ ω Δ."""
    for omega, delta in weighted:
        start = jax.tree.map(lambda x, d, omega=omega: x + omega * d, start, delta)
    return start
