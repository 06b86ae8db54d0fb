"""What server and clients have in common: the problem, the model as Flower's arrays, and a client's K steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord

import fedtempo as ft
from fedtempo.training.batches import batch_key, init_key, job_rows

Params = dict[str, Any]


def problem_of(settings: Mapping[str, Any], clients: int) -> ft.Problem:
    """Handwritten digits, dealt to the clients; each counts by its number of images, as in FedAvg."""
    return ft.problems.digits(clients, str(settings["partition"]), seed=int(settings["seed"]), importance="rows")


def first_model(settings: Mapping[str, Any], problem: ft.Problem) -> Params:
    """Where training starts."""
    return dict(problem.init(init_key(int(settings["seed"]))))


def to_record(params: Params) -> ArrayRecord:
    """A model as Flower carries it."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in params.items()})


def from_record(record: ArrayRecord) -> Params:
    """The model that Flower carried."""
    return {name: array.numpy() for name, array in record.items()}


def train(
    settings: Mapping[str, Any], problem: ft.Problem, params: Params, client: int, job: int
) -> tuple[Params, float]:
    """K steps of SGD from `params` on the client's own rows, and the mean loss of the batches.

    Which rows a step takes depends on (seed, client, job) alone.
    """
    rate, steps = np.float32(settings["local-lr"]), int(settings["local-steps"])
    size = int(settings["batch-size"])
    data = problem.client_data(client)
    draw = jax.jit(partial(job_rows, steps=steps, batch_size=max(size, 1), draw="uniform"))
    rows = np.asarray(draw(batch_key(int(settings["seed"])), *np.int32([client, job, problem.sizes[client]])))
    gradient = jax.jit(jax.value_and_grad(problem.loss))
    losses = []
    for k in range(steps):
        batch = jax.tree.map(lambda x, which=rows[k]: x[which], data) if size else data
        loss, slope = gradient(params, batch)
        params = {name: value - rate * np.asarray(slope[name]) for name, value in params.items()}
        losses.append(float(loss))
    return params, float(np.mean(losses))
