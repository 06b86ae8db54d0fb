"""Classifiers: a loss and an accuracy made of logits, and multinomial logistic regression.

    ℓ(θ; x, y) = log Σ_c exp(z_c) − z_y,    z = logits(θ, x)
    logistic:    ℓ + λ/2 (‖W‖² + ‖b‖²),     z = Wx + b

W is `weights`, b is `bias`, λ is `l2`: the loss is λ-strongly convex. Rows of bytes are taken as numbers from 0 to 1,
less `mean`, over `deviation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np

from fedtempo.clock.ticks import exact, positive_int
from fedtempo.errors import InputError

Tree = Any
Init = Callable[[jax.Array], Tree]
Loss = Callable[[Tree, Tree], Any]
Logits = Callable[[Tree, jax.Array], jax.Array]
"""(params, x) → [classes, rows]: with labels first, sums over labels are sums of whole vectors."""


class Classifier(NamedTuple):
    """A model of (x, y) batches: y holds labels 0 to C − 1.

    `init(key)`, `loss(params, batch)` and `accuracy(params, batch)`; `classification_problem` takes one as `model`.

    Example:
        >>> model = ft.problems.logistic(features=2, classes=3)
        >>> init, loss, accuracy = model
        >>> batch = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 2])
        >>> round(float(loss(init(None), batch)), 3)  # log 3: it knows nothing yet
        1.099
    """

    init: Init
    loss: Loss
    accuracy: Loss


class LinearLoss(NamedTuple):
    """What says of a loss that it is that of logistic regression without a penalty: how its logits are computed."""

    classes: int
    features_first: bool
    mean: float
    deviation: float

    @property
    def scale(self) -> tuple[float, float]:
        """(s, m): bytes x stand for s x − m."""
        return 1 / (255 * self.deviation), self.mean / self.deviation


def classifier(init: Init, logits: Logits) -> Classifier:
    """The classifier that these logits make."""

    def loss(params: Tree, batch: Tree) -> jax.Array:
        x, y = batch
        return cross_entropy(logits(params, x), y)

    def accuracy(params: Tree, batch: Tree) -> jax.Array:
        x, y = batch
        z = logits(params, x)
        return jnp.mean(jnp.argmax(z, axis=0) == y, dtype=z.dtype)

    return Classifier(init, loss, accuracy)


def cross_entropy(z: jax.Array, y: jax.Array) -> jax.Array:
    """The mean over rows of log Σ_c exp(z_c) − z_y, of z [classes, rows]."""
    z = z - jax.lax.stop_gradient(z.max(axis=0))
    own = jnp.where(y == jnp.arange(len(z))[:, None], z, 0).sum(axis=0)  # a gather would scatter in its gradient
    return jnp.mean(jnp.log(jnp.exp(z).sum(axis=0)) - own)


def uniform_init(key: jax.Array, name: str, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    """U(−1/√fan_in, 1/√fan_in), PyTorch's default for a layer's weights and bias; drawn from the stream `name`."""
    own = named_key(key, name)
    bound = fan_in**-0.5
    return jax.random.uniform(own, shape, jnp.float32, -bound, bound)


def named_key(key: jax.Array, name: str) -> jax.Array:
    """A key for one array of a model: adding an array changes no other."""
    return jax.random.fold_in(key, np.uint32(crc32(name.encode())))


def logistic(
    features: int,
    classes: int,
    *,
    l2: float = 0.0,
    features_first: bool = False,
    mean: float = 0.0,
    deviation: float = 1.0,
) -> Classifier:
    """Logistic regression from `features` numbers to `classes` labels; parameters start at zero.

    `weights` are [classes, features]; the other way round with `features_first`, as accelerators like it. Rows of bytes
    become numbers from 0 to 1, less `mean`, over `deviation`.

    Example:
        >>> model = ft.problems.logistic(features=64, classes=10, l2=0.01)
        >>> {name: array.shape for name, array in model.init(None).items()}
        {'weights': (10, 64), 'bias': (10,)}
    """
    features, classes = positive_int(features, "features"), positive_int(classes, "classes")
    plain_bytes = (mean, deviation) == (0.0, 1.0)
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
            if not plain_bytes:
                x = (x - mean) / deviation
        z: jax.Array = (weights.T if features_first else weights) @ x.T + params["bias"][:, None]
        return z

    plain = classifier(init, logits)
    plain.loss.linear = LinearLoss(classes, features_first, mean, deviation)  # type: ignore[attr-defined]

    def penalised(params: Tree, batch: Tree) -> jax.Array:
        size: jax.Array = jnp.sum(params["weights"] ** 2) + jnp.sum(params["bias"] ** 2)
        return plain.loss(params, batch) + penalty / 2 * size  # type: ignore[no-any-return]

    return plain._replace(loss=penalised) if penalty else plain
