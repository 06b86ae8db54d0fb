"""The recurrent network of FedProx for the next character: an embedding, two LSTM layers, a linear layer.

    z_t = W_xᵀ x_t + W_hᵀ h_{t−1} + b;    i, f, g, o = σ(z_i), σ(z_f), tanh(z_g), σ(z_o)
    c_t = f c_{t−1} + i g;    h_t = o tanh(c_t)

The logits are made of the last h of the second layer. One bias a layer, where PyTorch has two that always add up.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedtempo.models.classifier import Classifier, Tree, classifier, named_key, uniform_init
from fedtempo.models.precision import check_compute, compute_type, product
from fedtempo.models.recurrence import recurrence
from fedtempo.schemes import whole


def lstm(
    characters: int, *, embedding: int = 8, hidden: int = 100, layers: int = 2, compute: str = "float32"
) -> Classifier:
    """From texts of whole numbers below `characters`, [rows, length], to the character that comes next."""
    characters, embedding = whole(characters, "characters"), whole(embedding, "embedding")
    hidden, layers = whole(hidden, "hidden"), whole(layers, "layers")
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
