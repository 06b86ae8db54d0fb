"""Asynchronous FedAvg on logistic regression in PyTorch, as one writes it: a module, autograd, an optimiser a job.

    fresh    a DataLoader a client, a new iterator for every job: its shuffle starts again
    kept     a DataLoader a client, whose iterator goes on from job to job and restarts after an epoch
    index    no loader: a tensor of row numbers a batch

The model that client i works on, θ^{ρ_i(n)}, is `sent[i]`, copied when it is sent; Δ_i is the difference that training
makes to it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedtempo import Timeline
from numpy_loop import Data, Rows, Trained

Clients = Sequence[tuple[Tensor, Tensor]]
Batches = Callable[[int, int], Sequence[Tensor]]
"""(client, job) → inputs and labels."""


def fresh(clients: Clients, batch_size: int) -> Batches:
    """A new iterator for every job."""
    loaders = [DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True) for x, y in clients]

    def batch(client: int, job: int) -> Sequence[Tensor]:
        return next(iter(loaders[client]))

    return batch


def kept(clients: Clients, batch_size: int) -> Batches:
    """One iterator a client, restarted when its epoch ends."""

    def endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[Sequence[Tensor]]:
        while True:
            yield from loader

    loaders = [DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True, drop_last=True) for x, y in clients]
    iterators = [endless(loader) for loader in loaders]

    def batch(client: int, job: int) -> Sequence[Tensor]:
        return next(iterators[client])

    return batch


def index(clients: Clients, batch_size: int, rows: Callable[[int, int], Rows] | None = None) -> Batches:
    """Rows by number, drawn uniformly or given by `rows(client, job)`."""

    def batch(client: int, job: int) -> Sequence[Tensor]:
        x, y = clients[client]
        if rows is None:
            chosen = torch.randint(len(y), (batch_size,))
        else:
            chosen = torch.from_numpy(rows(client, job))
        return x[chosen], y[chosen]

    return batch


LOOPS: dict[str, Callable[[Clients, int], Batches]] = {"fresh": fresh, "kept": kept, "index": index}


def torch_loop(
    batches: Batches,
    line: Timeline,
    weights: NDArray[np.float64],
    *,
    features: int,
    lr: float,
    classes: int = 10,
    local_steps: int = 1,
    server_lr: float = 1.0,
) -> Trained:
    """Train from zeros along a timeline with one update a round."""
    if line.num_updates != line.num_rounds:
        raise ValueError("this loop is for asynchronous FedAvg: one update a round")
    model = nn.Linear(features, classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    sent = [copy.deepcopy(model) for _ in range(line.num_clients)]
    scale = [server_lr * float(d) for d in weights]
    updates = list(zip(line.client.tolist(), line.job.tolist(), strict=True))
    begin = time.perf_counter()
    for client, job in updates:
        local = copy.deepcopy(sent[client])
        solver = torch.optim.SGD(local.parameters(), lr=lr)
        for _ in range(local_steps):
            x, y = batches(client, job)
            solver.zero_grad()
            cross_entropy(local(x), y).backward()
            solver.step()
        with torch.no_grad():
            for theta, end, base in zip(model.parameters(), local.parameters(), sent[client].parameters(), strict=True):
                theta.add_(end - base, alpha=scale[client])
        sent[client].load_state_dict(model.state_dict())
    seconds = time.perf_counter() - begin
    return Trained(model.weight.detach().numpy(), model.bias.detach().numpy(), len(updates), seconds)


def tensors(data: Data) -> Clients:
    """The clients' arrays as tensors, not copied."""
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]
