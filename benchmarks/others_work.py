"""The work of others.py: the same clients, times, rows, networks and server for every contestant, in plain PyTorch.

    θ ← (1 − α) θ + α θ_i        at each update: FedAsync (Xie, Koyejo, Gupta, 2019), which all of them have

θ_i is client i's model after K steps of B rows from the θ that it was sent. `loop` is that as one writes it.
This file imports neither JAX nor the others' packages, so that a contestant's process holds its own libraries alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import engine
import fedtempo as ft

BATCH, MIXING = 64, 0.6
TICK = 45
"""Every client's time is a whole number of ticks, which are 1/45: FLGo's clock has whole numbers only."""


def logistic() -> nn.Module:
    """784 → 10, from zeros."""
    model = nn.Linear(784, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def cnn() -> nn.Module:
    """Two 3×3 layers with pooling on 28×28: 9 098 parameters."""
    first = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(784, 10))


class Work(NamedTuple):
    """One of the two problems."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    every: int
    """Every how many of F80's ten clients there is one."""
    rows: int
    steps: int
    lr: float

    def ticks(self) -> list[int]:
        """Ticks that a job takes, by client."""
        return [int(TICK * mean) for mean in engine.times().exact_mean_time][:: self.every]

    def times(self) -> ft.FixedTimes:
        return ft.FixedTimes([f"{ticks}/{TICK}" for ticks in self.ticks()])

    def line(self, updates: int) -> ft.Timeline:
        return ft.timeline(ft.AsyncFedAvg(), self.times(), rounds=updates)


WORKS = {
    "logistic regression": Work(logistic, (784,), every=1, rows=6000, steps=1, lr=0.1),
    "small CNN": Work(cnn, (1, 28, 28), every=2, rows=1000, steps=5, lr=0.1),
}


class Lap(NamedTuple):
    """One call of one contestant."""

    updates: int
    """Client updates, all runs together."""
    seconds: float
    """Training alone, but for fedtempo's two measures."""
    cpu: float
    """CPU seconds of the process meanwhile; of fedtempo those of the whole call."""
    loss: float
    """Of the last model, over all rows of all clients; of several runs that at the same learning rate."""


class Clock:
    """Seconds and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._begin = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._begin[0], time.process_time() - self._begin[1]


@cache
def clients(name: str) -> list[tuple[Tensor, Tensor]]:
    """Rows and labels of each client."""
    work = WORKS[name]
    return [
        (torch.from_numpy(x[: work.rows]).reshape(-1, *work.shape), torch.from_numpy(y[: work.rows]))
        for x, y in engine.clients()[:: work.every]
    ]


@cache
def initial(name: str) -> nn.Module:
    """The model that all begin from; copy it."""
    torch.manual_seed(0)
    return WORKS[name].make()


def loss(model: nn.Module, name: str) -> float:
    """Mean over all rows of all clients."""
    with torch.no_grad():
        return float(np.mean([float(cross_entropy(model(x), y)) for x, y in clients(name)]))


def index(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches by a tensor of row numbers."""
    while True:
        chosen = torch.randint(len(y), (BATCH,))
        yield x[chosen], y[chosen]


def loader(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from PyTorch's DataLoader, whose iterator goes on from job to job."""
    batches = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)
    while True:
        yield from batches


def index_loop(name: str, updates: int) -> Lap:
    return loop(index, name, updates)


def loader_loop(name: str, updates: int) -> Lap:
    return loop(loader, name, updates)


def loop(batches: Callable[[Tensor, Tensor], Iterator[tuple[Tensor, Tensor]]], name: str, updates: int) -> Lap:
    """FedAsync in plain PyTorch: a copy of the model and a solver a job."""
    work = WORKS[name]
    model = copy.deepcopy(initial(name))
    sent = [copy.deepcopy(model) for _ in clients(name)]
    rows = [batches(x, y) for x, y in clients(name)]
    order = work.line(updates).client.tolist()
    clock = Clock()
    for client in order:
        local = sent[client]
        solver = torch.optim.SGD(local.parameters(), lr=work.lr)
        for _ in range(work.steps):
            x, y = next(rows[client])
            solver.zero_grad()
            cross_entropy(local(x), y).backward()
            solver.step()
        with torch.no_grad():
            for theta, end in zip(model.parameters(), local.parameters(), strict=True):
                theta.mul_(1 - MIXING).add_(end, alpha=MIXING)
        sent[client] = copy.deepcopy(model)
    return Lap(len(order), *clock.read(), loss(model, name))


def numpy_loop(name: str, updates: int) -> Lap:
    """FedAsync on logistic regression in NumPy, written plainly."""
    work = WORKS[name]
    rows = [(x.numpy(), y.numpy()) for x, y in clients(name)]
    weight, bias = np.zeros((784, 10), np.float32), np.zeros(10, np.float32)
    sent = [(weight, bias)] * len(rows)
    generator, place = np.random.default_rng(0), np.arange(BATCH)
    order = work.line(updates).client.tolist()
    clock = Clock()
    for i in order:
        batch = generator.integers(0, len(rows[i][1]), BATCH)
        x, y = rows[i][0][batch], rows[i][1][batch]
        z = x @ sent[i][0] + sent[i][1]
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        z[place, y] -= 1
        z *= np.float32(-work.lr / BATCH)
        local = sent[i][0] + x.T @ z, sent[i][1] + z.sum(axis=0)
        weight = (1 - MIXING) * weight + MIXING * local[0]
        bias = (1 - MIXING) * bias + MIXING * local[1]
        sent[i] = weight, bias
    taken = clock.read()
    model = copy.deepcopy(initial(name))
    model.load_state_dict({"weight": torch.from_numpy(weight.T.copy()), "bias": torch.from_numpy(bias)})
    return Lap(len(order), *taken, loss(model, name))
