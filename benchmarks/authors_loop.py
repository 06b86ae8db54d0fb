"""The authors' setting in plain NumPy, beside `ft.simulate`: python benchmarks/authors_loop.py --data-dir DIR

    x ← (pixels/255 − 0.1307)/0.3081                     standardised
    π_i ~ Dirichlet(α, …, α), rows of each label drawn with replacement, by NumPy's RandomState under the seed
    v ← 0.9 v + ∇ℓ(θ_i),  θ_i ← θ_i − η_l v,  K times    v is zero when a job begins
    θ ← θ + d_i (θ_i − θ^{ρ_i(n)}),  d_i = (Σ_j 1/τ_j) τ_i p_i

Clock, weights, partition, pixels, gradients and momentum are written here once more and share no code with the package.
Only the numbers of the rows in a batch come from there: (seed, client, job) names them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = Callable[[int, int, int], Ints]
"""(client, job, rows of the client) → [K, B] which of its rows."""

MOMENTUM = 0.9


def times(clients: int, slower: int = 80) -> list[Fraction]:
    """F80: from 1 for the first client to 1/5 for the last."""
    return [1 - Fraction(slower, 100) * Fraction(i, clients - 1) for i in range(clients)]


def standardised(pixels: NDArray[np.uint8]) -> Floats:
    return (pixels.reshape(len(pixels), -1) / 255.0 - 0.1307) / 0.3081


def with_replacement(labels: Ints, clients: int, alpha: float, seed: int) -> list[Ints]:
    """Row numbers of each client, ascending."""
    draws = np.random.RandomState(seed)
    pools = [np.nonzero(labels == label)[0] for label in range(10)]
    each = len(labels) // clients
    parts = []
    for proportions in draws.dirichlet([alpha] * 10, size=clients):
        counts = [int(share * each) for share in proportions[:9]]
        counts.append(each - sum(counts))
        taken = [draws.choice(pool, size=count, replace=True) for pool, count in zip(pools, counts, strict=True)]
        parts.append(np.sort(np.concatenate(taken)))
    return parts


def arrivals(taus: Sequence[Fraction]) -> Iterator[tuple[int, int]]:
    """(client, job) in the order of their arrival; the first client where several come at once."""
    back, done = list(taus), [0] * len(taus)
    while True:
        client = min(range(len(taus)), key=lambda i: (back[i], i))
        yield client, done[client]
        done[client] += 1
        back[client] += taus[client]


def ending(taus: Sequence[Fraction], updates: int) -> tuple[int, Fraction]:
    """At least so many updates, so that no further one arrives with the last, and when that is."""
    before = Fraction(0)
    for count, (client, job) in enumerate(arrivals(taus)):
        now = (job + 1) * taus[client]
        if count >= updates and now > before:
            return count, before
        before = now
    raise AssertionError("arrivals do not end")


def train(
    data: Sequence[tuple[Floats, Ints]],
    taus: Sequence[Fraction],
    rows: Rows,
    *,
    updates: int,
    lr: float,
    time_based: bool = True,
) -> tuple[Floats, Floats]:
    """The model, [784, 10] and [10], after so many updates of asynchronous FedAvg."""
    features, clients = data[0][0].shape[1], len(data)
    weight, bias = np.zeros((features, 10)), np.zeros(10)
    sent = [(weight.copy(), bias.copy()) for _ in range(clients)]
    pace = sum(1 / tau for tau in taus)
    weights = [float(pace * tau / clients) if time_based else 1.0 for tau in taus]
    for _, (client, job) in zip(range(updates), arrivals(taus), strict=False):
        start_w, start_b = sent[client]
        w, b = start_w.copy(), start_b.copy()
        speed_w, speed_b = np.zeros_like(w), np.zeros_like(b)
        x, y = data[client]
        for batch in rows(client, job, len(y)):
            grad_w, grad_b = gradient(w, b, x[batch], y[batch])
            speed_w, speed_b = MOMENTUM * speed_w + grad_w, MOMENTUM * speed_b + grad_b
            w, b = w - lr * speed_w, b - lr * speed_b
        weight = weight + weights[client] * (w - start_w)
        bias = bias + weights[client] * (b - start_b)
        sent[client] = (weight.copy(), bias.copy())
    return weight, bias


def gradient(w: Floats, b: Floats, x: Floats, y: Ints) -> tuple[Floats, Floats]:
    """Of the mean cross-entropy over the rows."""
    z = x @ w + b
    share = np.exp(z - z.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(len(y)), y] -= 1.0
    return x.T @ share / len(y), share.mean(axis=0)


def loss(w: Floats, b: Floats, data: Sequence[tuple[Floats, Ints]]) -> float:
    """The federated loss, p_i = 1/M."""
    each = []
    for x, y in data:
        z = x @ w + b
        top = z.max(axis=1)
        each.append(np.mean(top + np.log(np.exp(z - top[:, None]).sum(axis=1)) - z[np.arange(len(y)), y]))
    return float(np.mean(each))


def compared(
    data_dir: Path,
    *,
    updates: int = 1000,
    steps: int = 10,
    lr: float = 0.001,
    batch_size: int = 64,
    dtype: str = "float64",
) -> tuple[float, float, float]:
    """The largest difference of a parameter, in the scale of the largest one, and both losses."""
    import jax

    import fedtempo as ft
    from fedtempo.problems.data import load_mnist
    from fedtempo.training.batches import batch_key, job_rows

    images = load_mnist(data_dir)
    clients = 10
    x, y = standardised(images.train_x), images.train_y.astype(np.int64)
    data = [(x[part], y[part]) for part in with_replacement(y, clients, 0.1, 42)]
    taus = times(clients)
    updates, until = ending(taus, updates)
    key = batch_key(0)
    drawn = jax.jit(lambda i, j, n: job_rows(key, i, j, n, steps=steps, batch_size=batch_size, draw="uniform"))
    weight, bias = train(data, taus, lambda i, j, n: np.asarray(drawn(i, j, np.int32(n))), updates=updates, lr=lr)
    problem = ft.problems.mnist(
        clients, "dirichlet:0.1:authors", seed=42, pixels="standardised", data_dir=str(data_dir)
    )
    local = ft.LocalSGD(steps=steps, lr=lr, batch_size=batch_size, momentum=MOMENTUM, clip=1e4)
    history = ft.simulate(
        problem,
        ft.AsyncFedAvg(),
        ft.FixedTimes(taus),
        until=until,
        local=local,
        seeds=[0],
        points=2,
        step="paper",
        dtype=dtype,
    )
    model = history.model(scheme="AsyncFedAvg", seed=0).params
    scale = float(np.abs(weight).max())
    apart = max(float(np.abs(model["weights"] - weight).max()), float(np.abs(model["bias"] - bias).max())) / scale
    return apart, loss(weight, bias, data), float(history.dataset["loss"].values.ravel()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="where mnist/ is")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--dtype", default="float64", help="of ft.simulate: float64 or float32; NumPy has float64")
    given = parser.parse_args()
    for steps in given.steps:
        apart, theirs, ours = compared(
            given.data_dir, updates=given.updates, steps=steps, lr=given.lr, dtype=given.dtype
        )
        print(
            f"MNIST-shard, K = {steps}, {given.updates} updates, {given.dtype}: parameters differ by {apart:.1e} of "
            f"the largest, losses are {theirs:.10f} (NumPy) and {ours:.10f} (ft.simulate)"
        )


if __name__ == "__main__":
    main()
