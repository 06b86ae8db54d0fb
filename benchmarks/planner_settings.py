"""Settings on which the planner is judged, and others on which it is calibrated: each drawn by a seed.

    penalty       logistic problems with a penalty; fixed, exponential and recorded times in turn
    open          no penalty, networks, momentum: losses that go on falling, or are not convex
    unsteady      recorded times, and clients that fail or come and go
    calibration   another generator: other data, laws of times and local work; never used to judge

`setting(group, k)` is the k-th of a group. In each: M in 5 … 50, a partition from iid to one label a client, K, B, T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

import fedtempo as ft
from fedtempo.problems.classification import classification_problem
from fedtempo.problems.models.classifiers import Classifier, classifier, logistic, uniform_init

SEED = 20261115
COUNT = 20
GROUPS = ("penalty", "open", "unsteady")
CALIBRATION = "calibration"
PARTITIONS = ("iid", "dirichlet:1", "dirichlet:0.1", "shards:2", "one-label")
RATES = tuple(float(f"{d}e{e}") for e in (-4, -3, -2, -1, 0, 1) for d in (1, 2, 5))


@dataclass(frozen=True)
class Setting:
    """One federation, its problem and the time it has."""

    name: str
    problem: ft.Problem
    times: ft.ClientTimes
    until: Fraction
    local_steps: int
    batch_size: int
    said: dict[str, object]
    momentum: float | None = None

    def local(self, lr: float | Sequence[float]) -> ft.LocalSGD:
        """The clients' work at these rates."""
        return ft.LocalSGD(steps=self.local_steps, lr=lr, batch_size=self.batch_size, momentum=self.momentum)

    @property
    def schemes(self) -> list[ft.Scheme]:
        """The schemes of the grid."""
        slowest = Fraction(round(100 * float(self.times.mean_time.max())), 100)
        return candidates(self.problem.num_clients, slowest)


def setting(group: str, k: int) -> Setting:
    """The k-th setting of a group."""
    make = {"penalty": _penalty, "open": _open, "unsteady": _unsteady, CALIBRATION: _calibration}[group]
    return make(k)


def _penalty(k: int) -> Setting:
    draw = np.random.default_rng([SEED, k])
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
    return Setting(f"penalty-{k}", problem, times, until, steps, batch, said)


def _open(k: int) -> Setting:
    """Digits without a penalty, synthetic rows without one, a network, and momentum, in turn."""
    draw = np.random.default_rng([SEED, 1, k])
    clients = int(draw.integers(5, 31))
    times_kind = ("fixed", "exponential", "trace")[int(draw.integers(3))]
    times = _times(times_kind, clients, draw)
    partition = PARTITIONS[int(draw.integers(len(PARTITIONS)))]
    kind = ("digits", "synthetic", "network", "momentum")[k % 4]
    momentum = 0.9 if kind == "momentum" else None
    l2 = float(draw.choice([0.0, 1e-3])) if kind == "momentum" else 0.0
    about: dict[str, object] = {}
    if kind == "synthetic":
        problem, about = _synthetic(clients, partition, l2, k, draw)
    elif kind == "network":
        hidden = int(draw.choice([16, 32]))
        problem, about = _digits(clients, partition, k, network((64, hidden, 10))), {"hidden": hidden}
    else:
        problem = ft.problems.digits(clients, partition, seed=k, l2=l2, test=None)
    steps, batch = int(draw.choice([1, 4, 10])), int(draw.choice([8, 32]))
    until = Fraction(int(draw.choice([40, 100])))
    said = {"clients": clients, "times": times_kind, "problem": kind, **about, "partition": partition, "l2": l2}
    said |= {"local_steps": steps, "batch_size": batch, "until": int(until)}
    return Setting(f"open-{k}", problem, times, until, steps, batch, said, momentum)


def _unsteady(k: int) -> Setting:
    """Recorded times; in turn jobs that fail, clients that come and go, both, and neither."""
    draw = np.random.default_rng([SEED, 2, k])
    clients = int(draw.integers(5, 41))
    steady = _times("trace", clients, draw)
    kind = ("fails", "comes and goes", "both", "trace")[k % 4]
    given: dict[str, object] = {}
    if kind in ("fails", "both"):
        given["failure"] = float(draw.choice([0.05, 0.2]))
    if kind in ("comes and goes", "both"):
        given |= {"on": int(draw.choice([5, 20])), "off": int(draw.choice([2, 10]))}
    times = steady.available(**given) if given else steady
    partition = PARTITIONS[int(draw.integers(len(PARTITIONS)))]
    l2 = float(draw.choice([0.0, 1e-3, 1e-2]))
    which = str(draw.choice(["digits", "synthetic"]))
    if which == "digits":
        problem = ft.problems.digits(clients, partition, seed=k, l2=l2, test=None)
        about: dict[str, object] = {}
    else:
        problem, about = _synthetic(clients, partition, l2, k, draw)
    steps, batch = int(draw.choice([1, 4])), int(draw.choice([8, 32]))
    until = Fraction(int(draw.choice([40, 100])))
    said = {"clients": clients, "times": kind, "problem": which, **about, "partition": partition, "l2": l2}
    said |= {"local_steps": steps, "batch_size": batch, "until": int(until)}
    return Setting(f"unsteady-{k}", problem, times, until, steps, batch, said)


def _calibration(k: int) -> Setting:
    """Regression, two-class and many-class problems on rows of their own kind, log-normal, uniform and Pareto times."""
    draw = np.random.default_rng([20261118, k])
    clients = int(draw.integers(4, 41))
    means = [Fraction(max(1, round(100 * t)), 100) for t in np.sort(draw.beta(1, 1.5, clients))[::-1] * 0.95 + 0.05]
    law = ("lognormal", "uniform", "pareto", "fixed")[k % 4]
    times: ft.ClientTimes = {
        "lognormal": lambda: ft.LogNormalTimes(means, sigma=0.6),
        "uniform": lambda: ft.UniformTimes([m / 2 for m in means], [3 * m / 2 for m in means]),
        "pareto": lambda: ft.ParetoTimes(means, shape=2.5),
        "fixed": lambda: ft.FixedTimes(means),
    }[law]()
    kind = ("regression", "moons", "blobs", "tanh")[(k // 4) % 4]
    rows = int(draw.integers(15, 60))
    problem = _drawn_problem(kind, clients, rows, draw)
    steps, batch = int(draw.choice([1, 2, 5, 8])), int(draw.choice([4, 16, 64]))
    momentum = float(draw.choice([0.5, 0.9])) if draw.random() < 0.2 else None
    until = Fraction(int(draw.choice([30, 60, 120])))
    said: dict[str, object] = {"clients": clients, "times": law, "problem": kind, "rows": rows * clients}
    said |= {"local_steps": steps, "batch_size": batch, "until": int(until), "momentum": momentum}
    return Setting(f"calibration-{k}", problem, times, until, steps, batch, said, momentum)


def _drawn_problem(kind: str, clients: int, rows: int, draw: np.random.Generator) -> ft.Problem:
    """Rows of each client about a centre of its own."""
    features = int(draw.integers(3, 20))
    apart = float(draw.choice([0.0, 0.5, 2.0]))
    centres = apart * draw.standard_normal((clients, features))
    xs = [c + draw.standard_normal((rows, features)) * draw.uniform(0.3, 1.5, features) for c in centres]
    l2 = float(draw.choice([0.0, 1e-3, 3e-2]))
    if kind == "regression":
        truth = draw.standard_normal((clients, features)) * 0.3 * apart + draw.standard_normal(features)
        data = [(x, x @ w + 0.3 * draw.standard_normal(rows)) for x, w in zip(xs, truth, strict=True)]

        def squares(params: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, y = batch
            return 0.5 * jnp.mean((x @ params - y) ** 2) + 0.5 * l2 * jnp.sum(params**2)

        return ft.Problem(lambda key: jnp.zeros(features), squares, _floats(data))
    classes = 2 if kind == "moons" else int(draw.integers(3, 9))
    hidden = int(draw.integers(6, 25))
    maps = draw.standard_normal((features, 6)), draw.standard_normal((6, classes))
    data = []
    for x in xs:
        z = np.sin(x @ maps[0]) @ maps[1] if kind != "blobs" else (x @ maps[0]) @ maps[1]
        data.append((x, (z + draw.gumbel(size=z.shape) * 0.5).argmax(1)))
    model = network((features, hidden, classes), l2=l2) if kind == "tanh" else logistic(features, classes, l2=l2)
    return ft.Problem(model.init, model.loss, _floats(data))


def _floats(data: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.astype(np.float32), y.astype(np.float32) if y.dtype.kind == "f" else y) for x, y in data]


def network(sizes: tuple[int, int, int], l2: float = 0.0) -> Classifier:
    """One hidden layer of tanh."""

    def init(key: jax.Array) -> dict[str, jax.Array]:
        first, second = (sizes[0], sizes[1]), (sizes[1], sizes[2])
        return {
            "hidden": uniform_init(key, "hidden", first, sizes[0]),
            "bias": uniform_init(key, "bias", (sizes[1],), sizes[0]),
            "out": uniform_init(key, "out", second, sizes[1]),
        }

    plain = classifier(init, lambda p, x: (jnp.tanh(x @ p["hidden"] + p["bias"]) @ p["out"]).T)
    if not l2:
        return plain

    def loss(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return plain.loss(params, batch) + 0.5 * l2 * sum(jnp.sum(leaf**2) for leaf in params.values())

    return Classifier(init, loss, plain.accuracy)


def _digits(clients: int, partition: str, seed: int, model: Classifier) -> ft.Problem:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return classification_problem(
        (x / 16).astype(np.float32),
        y,
        clients=clients,
        partition=partition,
        classes=10,
        seed=seed,
        name="digits",
        model=model,
    )


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
