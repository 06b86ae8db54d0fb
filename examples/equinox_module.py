"""An Equinox module with dropout and BatchNorm, trained under two schemes; needs `pip install equinox`."""

import equinox as eqx
import jax
import numpy as np
import optax

import fedtempo as ft


class Net(eqx.Module):
    """Two layers: of one point to the scores of two classes."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        one, other = jax.random.split(key)
        self.first, self.last = eqx.nn.Linear(2, 16, key=one), eqx.nn.Linear(16, 2, key=other)
        self.norm, self.dropout = eqx.nn.BatchNorm(16, "batch", mode="batch"), eqx.nn.Dropout(0.1)

    def __call__(self, x, key, state):
        x, state = self.norm(self.first(x), state)
        return self.last(self.dropout(jax.nn.relu(x), key=key)), state


# Parameters by a key, the rest of the module, and a loss that puts them together.
make = eqx.nn.make_with_state(Net)
net, state = make(jax.random.key(0))
rest = eqx.filter(net, eqx.is_inexact_array, inverse=True)


def init(key):
    return eqx.filter(make(key)[0], eqx.is_inexact_array)


def loss(params, batch, key, state):
    x, y = batch
    net = eqx.nn.inference_mode(eqx.combine(params, rest), value=key is None)
    keys = None if key is None else jax.random.split(key, len(y))
    scores, state = jax.vmap(net, (0, 0, None), (0, None), axis_name="batch")(x, keys, state)
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), state


def rows(generator, count, angle):
    """Points labelled by the side of a line on which they lie; each client sees a part of the plane."""
    x = generator.normal(size=(count, 2)) + np.array([np.cos(angle), np.sin(angle)])
    return x, (x[:, 0] > x[:, 1]).astype(np.int32)


generator = np.random.Generator(np.random.Philox(0))
clients = [rows(generator, count, angle) for count, angle in [(50, 0.0), (80, 1.5), (200, 3.0), (30, 4.5)]]
problem = ft.Problem(init, loss, clients, state=state, importance="rows")
print(problem)

local = ft.LocalSGD(steps=5, lr=0.1, batch_size=16)
history = ft.simulate(
    problem, [ft.FedAvg(), ft.FedFix(wait=1)], ft.FixedTimes([1, 2, "5/2", 7]), until=70, local=local, points=6
)
for scheme in history.dataset.scheme.values:
    model = history.model(scheme=scheme)
    value, _ = loss(model.params, rows(generator, 500, 2.0), None, model.state)
    print(f"{scheme:9}  test loss {float(value):.2f}")
