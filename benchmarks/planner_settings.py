"""Settings for judging the planner: clients, times, partitions and problems, drawn by one seed.

setting(k, seed) is the k-th of the settings of a seed: M in 5 … 50; fixed, exponential and trace times in turn; a
partition from iid to one label a client; digits or a synthetic logistic problem; K, B and the horizon.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

import fedtempo as ft
from fedtempo.problems.classification import classification_problem
from fedtempo.problems.models.classifiers import logistic

SEED = 20261115
COUNT = 20
PARTITIONS = ("iid", "dirichlet:1", "dirichlet:0.1", "shards:2", "one-label")
RATES = tuple(float(f"{d}e{e}") for e in (-4, -3, -2, -1, 0, 1) for d in (1, 2, 5))


@dataclass(frozen=True)
class ClockConfig:
    """One federation, its problem and the time it has."""

    name: str
    problem: ft.Problem
    times: ft.ClientTimes
    until: Fraction
    local_steps: int
    batch_size: int
    said: dict[str, object]


def config(k: int, seed: int = SEED) -> ClockConfig:
    """The k-th setting of a seed."""
    draw = np.random.default_rng([seed, k])
    clients = int(draw.integers(5, 51))
    kind = ("fixed", "exponential", "trace")[k % 3]
    times = _times(kind, clients, draw)
    partition = PARTITIONS[int(draw.integers(len(PARTITIONS)))]
    l2 = float(draw.choice([1e-3, 1e-2]))
    which = str(draw.choice(["digits", "synthetic"]))
    if which == "digits":
        problem = ft.problems.digits(clients, partition, seed=k, l2=l2, test=None)
        about: dict[str, object] = {}
    else:
        problem, about = _synthetic(clients, partition, l2, k, draw)
    steps, batch = int(draw.choice([1, 4, 10])), int(draw.choice([8, 32]))
    until = Fraction(int(draw.choice([40, 100, 200])))
    said = {"clients": clients, "times": kind, "problem": which, **about, "partition": partition, "l2": l2}
    said |= {"local_steps": steps, "batch_size": batch, "until": int(until)}
    return ClockConfig(f"{seed}-{k}", problem, times, until, steps, batch, said)


def _times(kind: str, clients: int, draw: np.random.Generator) -> ft.ClientTimes:
    """Mean times between 1/100 and 1, the slowest 1: evenly spread, or a few slow ones."""
    spread = int(draw.choice([0, 50, 80, 95]))
    means = [Fraction(100 * (clients - 1) - spread * i, 100 * (clients - 1)) for i in range(clients)]
    if draw.random() < 0.5:
        slow = max(1, clients // 5)
        means = [Fraction(1)] * slow + [Fraction(100 - spread, 100)] * (clients - slow)
    means = [Fraction(max(1, round(100 * m)), 100) for m in means]
    if kind == "fixed":
        return ft.FixedTimes(means)
    if kind == "exponential":
        return ft.ExponentialTimes(means)
    width = float(draw.choice([0.2, 0.6]))
    noise = np.exp(width * draw.standard_normal((clients, 25)) - width**2 / 2)
    rows = [
        [Fraction(max(1, round(1000 * float(m) * x)), 1000) for x in row] for m, row in zip(means, noise, strict=True)
    ]
    return ft.TraceTimes(rows, mode="bootstrap")


def _synthetic(
    clients: int, partition: str, l2: float, seed: int, draw: np.random.Generator
) -> tuple[ft.Problem, dict[str, object]]:
    """Gaussian features with a spectrum that falls as a power, labels by a softmax of a linear teacher."""
    features, classes = int(draw.integers(5, 41)), int(draw.integers(2, 11))
    power, size = float(draw.uniform(0, 1.5)), float(draw.uniform(0.5, 2.0))
    rows = clients * int(draw.integers(20, 81))
    scale = np.arange(1, features + 1) ** (-power / 2)
    x = size * draw.standard_normal((rows, features)) * scale
    z = x @ draw.standard_normal((features, classes)) * float(draw.uniform(0.5, 3.0))
    y = (z + draw.gumbel(size=z.shape)).argmax(1)
    y[:classes] = np.arange(classes)
    problem = classification_problem(
        x.astype(np.float32),
        y,
        clients=clients,
        partition=partition,
        classes=classes,
        seed=seed,
        name="synthetic",
        model=logistic(features, classes, l2=l2),
    )
    return problem, {"features": features, "classes": classes, "rows": rows}


def candidates(clients: int, slowest: Fraction) -> list[ft.Scheme]:
    """The schemes of the grid: FedAvg, asynchronous, FedFix over waits, FedBuff over sizes."""
    waits = [slowest * Fraction(n, 8) for n in (1, 2, 4, 6)]
    sizes = sorted({round(clients * share) for share in (0.1, 0.25, 0.5, 0.75)} - {0, 1, clients})
    return [ft.FedAvg(), ft.AsyncFedAvg(), *(ft.FedFix(w) for w in waits), *(ft.FedBuff(m) for m in sizes)]
