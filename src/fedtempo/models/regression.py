"""Multinomial logistic regression.

    ℓ(θ; x, y) = log Σ_c exp(z_c) − z_y + λ/2 (‖W‖² + ‖b‖²),    z = Wx + b

W is `weights`, b is `bias`, λ is `l2`: the loss is λ-strongly convex. Rows of bytes are taken as numbers from 0 to 1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedtempo.clock.ticks import exact
from fedtempo.errors import InputError
from fedtempo.models.classifier import Classifier, Tree, classifier
from fedtempo.schemes import whole


def logistic(features: int, classes: int, *, l2: float = 0.0, features_first: bool = False) -> Classifier:
    """Logistic regression from `features` numbers to `classes` labels; parameters start at zero.

    `weights` are [classes, features]; the other way round with `features_first`, as accelerators like it.
    """
    features, classes = whole(features, "features"), whole(classes, "classes")
    penalty = float(exact(l2, "l2"))
    if penalty < 0:
        raise InputError(f"l2: {l2} is below zero; give zero or a positive number")

    def init(key: jax.Array) -> Tree:
        return {
            "weights": jnp.zeros((features, classes) if features_first else (classes, features)),
            "bias": jnp.zeros(classes),
        }

    def logits(params: Tree, x: jax.Array) -> jax.Array:
        weights = params["weights"]
        if x.dtype == jnp.uint8:
            x = x.astype(weights.dtype) / 255
        z: jax.Array = (weights.T if features_first else weights) @ x.T + params["bias"][:, None]
        return z

    plain = classifier(init, logits)

    def penalised(params: Tree, batch: Tree) -> jax.Array:
        size: jax.Array = jnp.sum(params["weights"] ** 2) + jnp.sum(params["bias"] ** 2)
        return plain.loss(params, batch) + penalty / 2 * size  # type: ignore[no-any-return]

    return plain._replace(loss=penalised) if penalty else plain
