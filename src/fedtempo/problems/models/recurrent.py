"""The recurrent network of FedProx for the next character: an embedding, two LSTM layers, a linear layer.

    z_t = W_xᵀ x_t + W_hᵀ h_{t−1} + b;    i, f, g, o = σ(z_i), σ(z_f), tanh(z_g), σ(z_o)
    c_t = f c_{t−1} + i g;    h_t = o tanh(c_t)

The logits are made of the last h of the second layer. One bias a layer, where PyTorch has two that always add up.
A layer's walk through time has a gradient of its own:

    ∂c_t = ∂c_{t+1} f_{t+1} + ∂h_t o (1 − tanh² c_t);    ∂h_{t−1} = W_h ∂z_t + what comes from above
    ∂z = (∂c g i(1 − i),  ∂c c_{t−1} f(1 − f),  ∂c i(1 − g²),  ∂h tanh(c_t) o(1 − o))

A step is one product and a few operations on whole vectors of rows, since features come first and rows last. Gates
overwrite the inputs that they are made of, and ∂z the factors of ∂c and ∂h, which are computed for all times at once:
nothing of that size is copied. The gradients of W_h and b are one product after the walk.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedtempo.clock.ticks import positive_int
from fedtempo.problems.models.classifiers import Classifier, Tree, classifier, named_key, uniform_init
from fedtempo.problems.models.precision import check_compute, compute_type, dot, product


@jax.custom_vjp
def recurrence(x: jax.Array, weights: jax.Array, bias: jax.Array) -> jax.Array:
    """[hidden, length, rows] h, of inputs [4 hidden, length, rows], W_h [hidden, 4 hidden] and b [4 hidden].

    h and the gates are in the type of x, c in that of W_h.
    """
    return _forward(x, weights, bias)[0]


def _forward(x: jax.Array, weights: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
    own, kind, hidden = weights.dtype, x.dtype, len(weights)
    # σ(z) = (1 + tanh(z/2)) / 2: one function for all gates, half its argument folded into the weights
    half = jnp.repeat(jnp.array([0.5, 0.5, 1, 0.5], own), hidden)[:, None]
    shift = jnp.repeat(jnp.array([0.5, 0.5, 0, 0.5], own), hidden)[:, None]
    halved, start = (weights.T * half).astype(kind), bias[:, None] * half

    def step(t: jax.Array, carry: Any) -> Any:
        x, hs, cs, h, c = carry
        z = _at(x, t).astype(own) * half + start + dot(halved, h, ((1,), (0,)), own)
        gates = jnp.tanh(z) * half + shift
        i, f, g, o = jnp.split(gates, 4)
        c = f * c + i * g
        h = (o * jnp.tanh(c)).astype(kind)
        return _put(x, gates, t), _put(hs, h, t), _put(cs, c, t), h, c

    hs, cs = jnp.zeros((hidden, *x.shape[1:]), kind), jnp.zeros((hidden, *x.shape[1:]), own)
    gates, hs, cs, _, _ = lax.fori_loop(0, x.shape[1], step, (x, hs, cs, hs[:, 0], cs[:, 0]))
    return hs, (hs, gates, cs, weights)


def _backward(saved: Any, dh_above: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    hs, gates, cs, weights = saved
    own, kind, (hidden, length, rows) = weights.dtype, hs.dtype, hs.shape
    i, f, g, o = jnp.split(gates.astype(own), 4)
    bent = jnp.tanh(cs)
    to_cell = o * (1 - bent * bent)
    factor = jnp.concatenate([g * i * (1 - i), _before(cs) * f * (1 - f), i * (1 - g * g), bent * o * (1 - o)])
    of_cell = jnp.arange(4)[:, None, None] < 3
    rounded = weights.astype(kind)

    def step(k: jax.Array, carry: Any) -> Any:
        dz, dh, dc = carry
        t = length - 1 - k
        dh = dh + _at(dh_above, t).astype(own)
        dc = dc + dh * _at(to_cell, t)
        now = jnp.where(of_cell, dc, dh) * _at(dz, t).reshape(4, hidden, rows)
        dz = _put(dz, now.reshape(4 * hidden, rows), t)
        # read back: were `now` used here, XLA would read the old dz after the new one is written, and so copy all of it
        now = _at(dz, t)
        return dz, dot(rounded, now, ((1,), (0,)), own), dc * _at(f, t)

    still = jnp.zeros((hidden, rows), own)
    dz, _, _ = lax.fori_loop(0, length, step, (factor.astype(kind), still, still))
    seen = jnp.concatenate([_before(hs), jnp.ones_like(hs[:1])]).reshape(hidden + 1, -1)
    dw = dot(seen, dz.reshape(4 * hidden, -1), ((1,), (1,)), own)
    return dz, dw[:-1], dw[-1]


recurrence.defvjp(_forward, _backward)


def plain_recurrence(x: jax.Array, weights: jax.Array, bias: jax.Array) -> jax.Array:
    """The equations as they stand, for the tests."""

    def step(carry: Any, x_t: jax.Array) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x_t + weights.T @ h + bias[:, None], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    still = jnp.zeros((len(weights), x.shape[2]), x.dtype)
    return jnp.moveaxis(lax.scan(step, (still, still), jnp.moveaxis(x, 1, 0))[1], 0, 1)


def _at(a: jax.Array, t: jax.Array) -> jax.Array:
    value: jax.Array = lax.dynamic_index_in_dim(a, t, 1, keepdims=False)
    return value


def _put(a: jax.Array, value: jax.Array, t: jax.Array) -> jax.Array:
    whole: jax.Array = lax.dynamic_update_index_in_dim(a, value.astype(a.dtype), t, 1)
    return whole


def _before(a: jax.Array) -> jax.Array:
    """a_{t−1} at time t; zero at the start."""
    return jnp.pad(a, ((0, 0), (1, 0), (0, 0)))[:, :-1]


def lstm(
    characters: int, *, embedding: int = 8, hidden: int = 100, layers: int = 2, compute: str = "float32"
) -> Classifier:
    """From texts of whole numbers below `characters`, [rows, length], to the character that comes next."""
    characters, embedding = positive_int(characters, "characters"), positive_int(embedding, "embedding")
    hidden, layers = positive_int(hidden, "hidden"), positive_int(layers, "layers")
    check_compute(compute)
    widths = [embedding] + [hidden] * (layers - 1)

    def init(key: jax.Array) -> Tree:
        params: dict[str, Any] = {
            "embedding": jax.random.normal(named_key(key, "embedding"), (characters, embedding), jnp.float32)
        }
        for k, width in enumerate(widths):
            params[f"lstm{k}"] = {
                "input": uniform_init(key, f"lstm{k}.input", (width, 4 * hidden), hidden),
                "hidden": uniform_init(key, f"lstm{k}.hidden", (hidden, 4 * hidden), hidden),
                "bias": uniform_init(key, f"lstm{k}.bias", (4 * hidden,), hidden),
            }
        params["output"] = {
            "weights": uniform_init(key, "output.weights", (hidden, characters), hidden),
            "bias": uniform_init(key, "output.bias", (characters,), hidden),
        }
        return params

    def logits(params: Tree, x: jax.Array) -> jax.Array:
        own = params["embedding"].dtype
        rows, length = x.shape
        which = x.T.reshape(-1) == jnp.arange(characters, dtype=x.dtype)[:, None]
        # [embedding, length · rows]: a product, since a gather would scatter in its gradient
        h = product(which.astype(compute_type(compute, own)), params["embedding"], 0)
        for k in range(layers):
            layer = params[f"lstm{k}"]
            z = product(h, layer["input"], 0).reshape(-1, length, rows)
            h = recurrence(z, layer["hidden"], layer["bias"]).reshape(-1, length * rows)
        last = h[:, -rows:].astype(own)
        found: jax.Array = params["output"]["weights"].T @ last + params["output"]["bias"][:, None]
        return found

    return classifier(init, logits)
