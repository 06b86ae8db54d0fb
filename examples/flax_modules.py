"""The same network in Flax's two forms, nnx and linen, with dropout and BatchNorm; needs `pip install flax`."""

import jax
import numpy as np
import optax
from flax import linen, nnx

import fedtempo as ft


class Net(nnx.Module):
    """Two layers, by nnx."""

    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(2, 16, rngs=rngs), nnx.Linear(16, 2, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(16, momentum=0.9, rngs=rngs), nnx.Dropout(0.1)

    def __call__(self, x, rngs=None):
        return self.last(self.dropout(jax.nn.relu(self.norm(self.first(x))), rngs=rngs))


graph, _, state = nnx.split(Net(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)


def init(key):
    return nnx.state(Net(nnx.Rngs(key)), nnx.Param)


def loss(params, batch, key, state):
    net = nnx.merge(graph, params, state)
    net.eval() if key is None else net.train()
    scores = net(batch[0], rngs=None if key is None else nnx.Rngs(key))
    return cross_entropy(scores, batch[1]), nnx.state(net, nnx.BatchStat)


class LinenNet(linen.Module):
    """Two layers, by linen."""

    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(linen.Dense(16)(x))
        return linen.Dense(2)(linen.Dropout(0.1, deterministic=not train)(jax.nn.relu(x)))


linen_net, point = LinenNet(), np.zeros((1, 2), np.float32)


def linen_init(key):
    return linen_net.init(key, point, train=False)["params"]


def linen_state(key):
    return linen_net.init(key, point, train=False)["batch_stats"]


def linen_loss(params, batch, key, state):
    given = {"params": params, "batch_stats": state}
    if key is None:
        return cross_entropy(linen_net.apply(given, batch[0], train=False), batch[1]), state
    scores, new = linen_net.apply(given, batch[0], train=True, rngs={"dropout": key}, mutable=["batch_stats"])
    return cross_entropy(scores, batch[1]), new["batch_stats"]


def cross_entropy(scores, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def rows(generator, count, angle):
    """Points labelled by the side of a line on which they lie; each client sees a part of the plane."""
    x = generator.normal(size=(count, 2)) + np.array([np.cos(angle), np.sin(angle)])
    return x, (x[:, 0] > x[:, 1]).astype(np.int32)


generator = np.random.Generator(np.random.Philox(0))
clients = [rows(generator, count, angle) for count, angle in [(50, 0.0), (80, 1.5), (200, 3.0), (30, 4.5)]]
test = rows(generator, 500, 2.0)
problems = {
    "nnx": ft.Problem(init, loss, clients, state=state, test=test, importance="rows"),
    "linen": ft.Problem(linen_init, linen_loss, clients, state=linen_state, test=test, importance="rows"),
}
for name, problem in problems.items():
    print(name, problem)
    local = ft.LocalSGD(steps=5, lr=0.1, batch_size=16)
    times = ft.FixedTimes([1, 2, "5/2", 7])
    history = ft.simulate(problem, [ft.FedAvg(), ft.FedFix(wait=1)], times, until=70, local=local, points=6)
    for scheme in history.dataset.scheme.values:
        end = history.dataset["test_loss"].sel(scheme=scheme).isel(time=-1).item()
        print(f"{scheme:9}  test loss {end:.2f}")
