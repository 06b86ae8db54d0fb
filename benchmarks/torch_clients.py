"""PyTorch clients of an ordinary Flower project as nodes of the fake Grid: state dict in, SGD, state dict out.

The training loop is that of `flwr new`'s PyTorch app. The images are scikit-learn's digits, a quarter of them held out;
rows are dealt by fedtempo's partitions. Which rows a batch takes follows from (seed, client, job) alone, so that runs
of two schemes differ in the scheme and in nothing else.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedtempo as ft
from fedtempo.clock.transport import Durations
from fedtempo.problems.classification import held_out
from fedtempo.problems.partitions import parse_partition

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.flower_fake import SECOND, FakeGrid, answer, arrays_of

TEST = 0.25
"""Share of the images that is held out."""
Rows = tuple[Tensor, Tensor]


def mlp() -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    """Two convolutions, each with pooling."""
    first = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10))


def batch_norm_mlp() -> nn.Module:
    """Two hidden layers, each with batch normalisation."""
    first = (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
    second = (nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(32, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN": cnn, "BatchNorm MLP": batch_norm_mlp}


@cache
def images() -> tuple[Rows, Rows]:
    """Rows to train on, and rows to test on."""
    x, y = load_digits(return_X_y=True)
    pictures = torch.from_numpy((x / 16).astype(np.float32).reshape(-1, 1, 8, 8))
    labels = torch.from_numpy(y.astype(np.int64))
    train, test = held_out(len(y), TEST)
    return (pictures[train], labels[train]), (pictures[test], labels[test])


@cache
def dealt(clients: int, partition: str, seed: int) -> list[Rows]:
    """The rows of each client."""
    (x, y), _ = images()
    parts = parse_partition(partition).split(y.numpy(), clients, seed=seed, classes=10)
    return [(x[part], y[part]) for part in parts]


class Training(NamedTuple):
    """What a client does with a model that it is sent."""

    epochs: int
    batch_size: int
    lr: float

    def __call__(self, model: nn.Module, rows: Rows, generator: torch.Generator) -> None:
        """Train the model on the rows."""
        x, y = rows
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(y), generator=generator).split(self.batch_size):
                optimizer.zero_grad()
                cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()


def record_of(model: nn.Module) -> ArrayRecord:
    """A model's state dict as Flower carries it."""
    return ArrayRecord({name: Array(value.numpy()) for name, value in model.state_dict().items()})


def load(model: nn.Module, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Put arrays that Flower carried into a model."""
    model.load_state_dict(OrderedDict((name, torch.from_numpy(np.array(value))) for name, value in arrays.items()))


def accuracy(model: nn.Module, arrays: dict[str, np.ndarray[Any, Any]]) -> float:
    """The share of test images that the model names; images for which it gives no numbers count as wrong."""
    _, (x, y) = images()
    load(model, arrays)
    model.eval()
    with torch.no_grad():
        scores = model(x)
    right = (scores.argmax(1) == y) & scores.isfinite().all(1)
    return float(right.float().mean())


class TorchClients:
    """Clients that train one model, each on its own rows and at its own pace."""

    def __init__(
        self, make: Callable[[], nn.Module], training: Training, times: ft.ClientTimes, partition: str, *, seed: int
    ) -> None:
        """`times` are in seconds."""
        torch.manual_seed(seed)
        self.model = make()
        self.first = record_of(self.model)
        self.training, self.seed = training, seed
        self.rows = dealt(times.num_clients, partition, seed)
        self._nanoseconds = float(times.unit * SECOND)
        self._ticks = Durations(times, scale=1, seed=seed)

    def grid(self) -> FakeGrid:
        """The clients as nodes."""
        grid = FakeGrid()
        for client in range(len(self.rows)):
            grid.connect(100 + client, self._node(client))
        return grid

    def _node(self, client: int) -> Callable[[Message], list[tuple[int, Message]]]:
        def behave(message: Message) -> list[tuple[int, Message]]:
            job = int(message.content["config"]["job"])
            generator = torch.Generator().manual_seed((self.seed * 1000 + client) * 100_000 + job)
            load(self.model, arrays_of(message))
            self.training(self.model, self.rows[client], generator)
            state = {name: value.numpy().copy() for name, value in self.model.state_dict().items()}
            reply = answer(message, state, {"num-examples": len(self.rows[client][1])})
            return [(round(self._ticks(client, job) * self._nanoseconds), reply)]

        return behave
