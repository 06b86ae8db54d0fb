"""A small transformer of one's own with AdamW on its clients: the rows of a digit are its words.

Needs PyTorch: pip install 'fedtempo[torch]'.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import fedtempo as ft


class Rows(nn.Module):
    """Eight rows of eight pixels, one encoder layer."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(8, 16)
        self.place = nn.Parameter(torch.zeros(8, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, x):
        return self.out(self.layer(self.inside(x) + self.place).mean(1))


images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 8, 8), torch.tensor(labels)
data = [(x[k:1500:5], y[k:1500:5]) for k in range(5)]

problem = ft.torch.problem(  # a function makes another initial model for each seed
    model=Rows,
    loss=F.cross_entropy,
    data=data,
    test=(x[1500:], y[1500:]),
    metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float().mean()},
)
history = ft.simulate(
    problem,
    [ft.FedAvg(), ft.AsyncFedAvg()],
    ft.FixedTimes.spread(clients=5, slowdown=80),
    until=6,
    local=ft.torch.LocalTorch(torch.optim.AdamW, lr=0.01, steps=10, batch_size=32, options={"weight_decay": 0.01}),
    points=4,
)
for scheme in ("FedAvg", "AsyncFedAvg"):
    right = history.dataset.test_accuracy.sel(scheme=scheme).isel(time=-1).mean().item()
    print(f"{scheme:12} test accuracy {right:.2f}, run by {history.attrs['engine']}")
