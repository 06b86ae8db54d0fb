"""One run of asynchronous FedAvg on logistic regression, as NumPy loops written for that and nothing else.

    Z = W Xᵀ + b,  P = softmax(Z),  ∇W = (P − Y) X / B,  θ^{n+1} = θ^n − η_g d_i η_l ∇L_i(θ^{ρ_i(n)})

With K = 1 a client's Δ_i is −η_l times one gradient, so no local copy is trained: `sent_weight[i]`, `sent_bias[i]` is
the model that client i works on, θ^{ρ_i(n)}, and the step goes straight into the global model. Classes come first,
[10, B] and [10, 784]: the softmax reduces over the outer axis, and both products read rows as they lie.

`plain_loop` is what one writes down; `numpy_loop` is the same, tuned: batches drawn 512 at a time, every array
reused, classes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo import Timeline

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Data = Sequence[tuple[Floats, Rows]]
"""A client: [rows, features] and [rows] labels."""

BLOCK = 512


class Trained(NamedTuple):
    """The global model at the end and what it took."""

    weight: Floats
    """[classes, features]"""
    bias: Floats
    updates: int
    seconds: float


def numpy_loop(
    data: Data,
    line: Timeline,
    weights: NDArray[np.float64],
    *,
    lr: float,
    classes: int = 10,
    batch_size: int = 64,
    server_lr: float = 1.0,
    seed: int = 0,
    rows: Callable[[int, int], Rows] | None = None,
) -> Trained:
    """Train from zeros, one update a round; batches are drawn from `seed`, or given by `rows(client, job)`."""
    if line.num_updates != line.num_rounds:
        raise ValueError("this loop is for asynchronous FedAvg: one update a round")
    features = data[0][0].shape[1]
    xs, ys = [x for x, _ in data], [y for _, y in data]
    sizes = np.array([len(y) for y in ys])
    step = (server_lr * lr / batch_size * np.asarray(weights)).astype(np.float32)
    weight, bias = np.zeros((classes, features), np.float32), np.zeros(classes, np.float32)
    sent_weight, sent_bias = [weight.copy() for _ in xs], [bias.copy() for _ in xs]
    x, gradient = np.empty((batch_size, features), np.float32), np.empty_like(weight)
    z, each, place = (
        np.empty((classes, batch_size), np.float32),
        np.empty(batch_size, np.float32),
        np.arange(batch_size),
    )
    generator = np.random.default_rng(seed)
    order, jobs = line.client.tolist(), line.job.tolist()
    begin = time.perf_counter()
    for first in range(0, len(order), BLOCK):
        clients = order[first : first + BLOCK]
        if rows is None:  # a block at a time: a call a batch costs more than the numbers
            batches = generator.integers(0, sizes[clients][:, None], (len(clients), batch_size))
        else:
            batches = np.array([rows(i, j) for i, j in zip(clients, jobs[first:], strict=False)])
        for i, batch in zip(clients, batches, strict=True):
            np.take(xs[i], batch, axis=0, out=x, mode="clip")  # "raise" would copy through a buffer
            np.matmul(sent_weight[i], x.T, out=z)
            z += sent_bias[i][:, None]
            z -= np.maximum.reduce(z, axis=0, out=each)
            np.exp(z, out=z)
            z /= np.add.reduce(z, axis=0, out=each)
            z[ys[i][batch], place] -= 1
            z *= step[i]
            weight -= np.matmul(z, x, out=gradient)
            bias -= np.add.reduce(z, axis=1)
            sent_weight[i][:] = weight
            sent_bias[i][:] = bias
    return Trained(weight, bias, len(order), time.perf_counter() - begin)


def plain_loop(
    data: Data, line: Timeline, weights: NDArray[np.float64], *, lr: float, classes: int = 10, batch_size: int = 64
) -> Trained:
    """The same training, written plainly: a draw, a gather and two products an update."""
    features = data[0][0].shape[1]
    weight, bias = np.zeros((features, classes), np.float32), np.zeros(classes, np.float32)
    sent = [(weight, bias)] * len(data)
    step = (lr / batch_size * np.asarray(weights)).astype(np.float32)
    generator, place = np.random.default_rng(0), np.arange(batch_size)
    begin = time.perf_counter()
    for i in line.client.tolist():
        batch = generator.integers(0, len(data[i][1]), batch_size)
        x, y = data[i][0][batch], data[i][1][batch]
        z = x @ sent[i][0] + sent[i][1]
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        z[place, y] -= 1
        z *= -step[i]
        weight, bias = weight + x.T @ z, bias + z.sum(axis=0)
        sent[i] = weight, bias
    return Trained(weight.T, bias, line.num_updates, time.perf_counter() - begin)
