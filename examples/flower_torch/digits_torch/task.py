"""The model, the data and the training."""

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional network for images of 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Scores of the ten digits."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


@cache
def images():
    """All images, from -1 to 1, and labels, in an order that is the same everywhere."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return torch.tensor(x[order] / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y[order])


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """A client's own images, mostly of a few digits: one batch loader to train on, one to test on."""
    x, y = images()
    x, y = x[360:], y[360:]  # the first 360 are the server's
    shares = np.random.default_rng(1).dirichlet([1.0] * num_partitions, size=10)
    mine = []
    for digit in range(10):
        rows = np.flatnonzero(y.numpy() == digit)
        ends = (shares[digit].cumsum() * len(rows)).round().astype(int)
        mine += rows[(0 if partition_id == 0 else ends[partition_id - 1]) : ends[partition_id]].tolist()
    mine = np.random.default_rng(2).permutation(mine or [partition_id]).astype(int)
    held = max(1, len(mine) // 5)
    train, test = mine[held:] if len(mine) > 1 else mine, mine[:held]
    return (
        DataLoader(TensorDataset(x[train], y[train]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(x[test], y[test]), batch_size=256),
    )


def load_test_data():
    """The server's images."""
    x, y = images()
    return DataLoader(TensorDataset(x[:360], y[:360]), batch_size=360)


def train(net, loader, epochs: int, lr: float) -> float:
    """Epochs of SGD; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net, loader) -> tuple[float, float]:
    """Mean loss and accuracy."""
    net.eval()
    loss, right, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            scores = net(x)
            loss += F.cross_entropy(scores, y, reduction="sum").item()
            right += (scores.argmax(1) == y).sum().item()
            count += len(y)
    return loss / count, right / count
