"""A small network with dropout, or with dropout and a BatchNorm, on three clients whose rows differ."""

import jax
import jax.numpy as jnp
import numpy as np

import fedtempo as ft

TIMES = ft.FixedTimes(["1", "2/3", "1/2"])
_GENERATOR = np.random.Generator(np.random.Philox(5))
DATA = [
    (_GENERATOR.normal(size=(rows, 3)) * (1 + i) + 2 * i, _GENERATOR.normal(size=rows))
    for i, rows in enumerate((7, 11, 16))
]
START = {"bn": {"mean": np.zeros(3), "var": np.ones(3)}, "count": np.int32(3)}


def init(key):
    return {"a": jax.random.normal(key, (3, 4)), "b": jnp.full(4, 0.1)}


def _error(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)


def dropped(x, key):
    return x if key is None else jnp.where(jax.random.bernoulli(key, 0.75, x.shape), x / 0.75, 0)


def dropout_loss(params, batch, key):
    x, y = batch
    return _error(params, dropped(x, key), y)


def normed_loss(params, batch, key, state):
    x, y = batch
    known = state["bn"]
    mean, var = (known["mean"], known["var"]) if key is None else (x.mean(axis=0), x.var(axis=0))
    value = _error(params, dropped((x - mean) / jnp.sqrt(var + 1e-2), key), y)
    if key is None:
        return value
    moved = {name: 0.7 * known[name] + 0.3 * new for name, new in (("mean", mean), ("var", var))}
    return value, {"bn": moved, "count": state["count"] + 1}


def spread(params, batch, state):
    return jnp.mean((batch[0] - state["bn"]["mean"]) ** 2 / state["bn"]["var"])


def dropout_problem():
    return ft.Problem(init, dropout_loss, DATA, importance="rows")


def normed_problem(state=START):
    return ft.Problem(init, normed_loss, DATA, state=state, metrics={"spread": spread}, importance="rows")
