"""Model, data, training and test, as in the PyTorch app of `flwr new`."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedtempo.problems.classification import held_out
from fedtempo.problems.partitions import parse_partition

torch.set_num_threads(1)


class Net(nn.Module):
    """Two hidden layers, each with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(64, 64), nn.BatchNorm1d(64)
        self.fc2, self.bn2 = nn.Linear(64, 32), nn.BatchNorm1d(32)
        self.fc3 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits."""
        x = torch.relu(self.bn1(self.fc1(x)))
        x = torch.relu(self.bn2(self.fc2(x)))
        return self.fc3(x)


def images() -> tuple[TensorDataset, TensorDataset]:
    """Rows to train on, and a quarter of all to test on."""
    x, y = load_digits(return_X_y=True)
    rows, labels = torch.from_numpy((x / 16).astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    train, test = held_out(len(y), 0.25)
    return TensorDataset(rows[train], labels[train]), TensorDataset(rows[test], labels[test])


def load_data(partition_id: int, num_partitions: int, partition: str, batch_size: int) -> DataLoader:
    """A client's own rows."""
    x, y = images()[0].tensors
    mine = parse_partition(partition).split(y.numpy(), num_partitions, seed=0, classes=10)[partition_id]
    return DataLoader(TensorDataset(x[mine], y[mine]), batch_size=batch_size, shuffle=True)


def train(net: Net, loader: DataLoader, epochs: int, lr: float) -> float:
    """Epochs of SGD; the mean loss of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net: Net) -> tuple[float, float]:
    """Loss and accuracy on the test rows."""
    x, y = images()[1].tensors
    net.eval()
    with torch.no_grad():
        scores = net(x)
    return cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()
