"""A model of one's own: a small network on ragged clients, trained under three schemes."""

import jax
import jax.numpy as jnp
import numpy as np

import fedtempo as ft


def init(key):
    first, second = jax.random.split(key)
    return {"hidden": jax.random.normal(first, (2, 16)), "out": jax.random.normal(second, (16,)) / 4}


def score(params, x):
    return jnp.tanh(x @ params["hidden"]) @ params["out"]


def loss(params, batch):
    x, y = batch
    return jnp.mean(jnp.logaddexp(0, -y * score(params, x)))


def accuracy(params, batch):
    x, y = batch
    return jnp.mean(jnp.sign(score(params, x)) == y)


def rows(generator, count, angle):
    """Points labelled by the side of a line on which they lie; each client sees a part of the plane."""
    x = generator.normal(size=(count, 2)) + np.array([np.cos(angle), np.sin(angle)])
    return x, np.where(x[:, 0] > x[:, 1], 1.0, -1.0)


generator = np.random.Generator(np.random.Philox(0))
clients = [rows(generator, count, angle) for count, angle in [(50, 0.0), (80, 1.5), (200, 3.0), (30, 4.5)]]
problem = ft.Problem(
    init, loss, clients, test=rows(generator, 500, 2.0), metrics={"accuracy": accuracy}, importance="rows"
)
print(problem)

history = ft.simulate(
    problem,
    [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(wait=1)],
    ft.FixedTimes([1, 2, "5/2", 7]),
    until=140,
    local=ft.LocalSGD(steps=2, lr=[0.05, 0.2], batch_size=16),
    dtype="float64",
    points=21,
)
best = history.best("loss")
for scheme in best.dataset.scheme.values:
    end = best.dataset.sel(scheme=scheme).isel(time=-1, seed=0, weights=0)
    print(
        f"{scheme:12} loss {float(end.loss):.3f}, accuracy {float(end.test_accuracy):.2f}, "
        f"{int(end.updates)} updates, η_l = {float(end.local_lr)}"
    )
