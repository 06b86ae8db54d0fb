"""A convolutional network of one's own, with BatchNorm and dropout, on six unequal clients: nothing in it is changed.

Needs PyTorch: pip install 'fedtempo[torch]'.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Subset, TensorDataset

import fedtempo as ft


class Net(nn.Module):
    """Two convolutions."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.out(self.drop(x.flatten(1)))


def accuracy(output, target):
    """Of a batch."""
    return (output.argmax(1) == target).float().mean()


images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))
parts = ft.Dirichlet(0.5).split(labels[:1500], clients=6, seed=0)  # row numbers of each client

torch.manual_seed(0)
problem = ft.torch.problem(
    model=Net(),
    loss=F.cross_entropy,
    data=[Subset(digits, part) for part in parts],
    test=Subset(digits, range(1500, 1797)),
    metrics={"accuracy": accuracy},
)
history = ft.simulate(
    problem,
    [ft.FedAvg(), ft.FedFix("1/2")],
    ft.FixedTimes.spread(clients=6, slowdown=80),
    until=20,
    local=ft.LocalSGD(steps=5, lr=0.1, batch_size=32),
    points=5,
    engine="torch",
)
for scheme in ("FedAvg", "FedFix(1/2)"):
    net = Net()
    net.load_state_dict(history.model(scheme=scheme).state_dict())
    net.eval()
    with torch.no_grad():
        right = accuracy(net(digits.tensors[0][1500:]), digits.tensors[1][1500:])
    updates = int(history.dataset.updates.sel(scheme=scheme).isel(time=-1).item())
    print(f"{scheme:12} {updates:4d} updates, test accuracy {right:.2f}")
