"""The convolutional networks of the paper's experiments, by name.

    authors        3 × 3 convolutions of 32, 64 and 64 channels where they fit, the first two followed by 2 × 2 pooling,
                   then 64 hidden units: the layers of the authors' scripts
    scripts        the same without max(0, ·) after the third convolution, as the scripts have it
    fedavg-cifar   5 × 5 convolutions of 64 and 64 channels, each followed by 2 × 2 pooling, on the central 24 × 24
                   pixels, then 384 and 192 hidden units: about 10⁶ parameters, as McMahan et al. (2017) describe
    fedavg-mnist   5 × 5 convolutions of 32 and 64 channels, each followed by 2 × 2 pooling, then 512 hidden units:
                   1 663 370 parameters on MNIST, as there

Every other layer but the last ends in max(0, ·). Bytes are taken as numbers from 0 to 1, less `mean`, over `deviation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from fedtempo.errors import InputError
from fedtempo.problems.models import channels_first, convolution
from fedtempo.problems.models.classifiers import Classifier, Tree, classifier, uniform_init
from fedtempo.problems.models.precision import add_bias, check_compute, compute_type, product


@dataclass(frozen=True)
class Layout:
    """The layers of a network."""

    kernel: int
    same: bool
    """Whether images are padded to keep their size."""
    channels: tuple[int, ...]
    pooled: tuple[bool, ...]
    hidden: tuple[int, ...]
    crop: int | None = None
    """The central part that is looked at."""
    linear: tuple[int, ...] = ()
    """Convolutions without max(0, ·)."""


CNNS = {
    "authors": Layout(3, False, (32, 64, 64), (True, True, False), (64,)),
    "fedavg-cifar": Layout(5, True, (64, 64), (True, True), (384, 192), crop=24),
    "fedavg-mnist": Layout(5, True, (32, 64), (True, True), (512,)),
    "scripts": Layout(3, False, (32, 64, 64), (True, True, False), (64,), linear=(2,)),
}


def cnn(
    name: str,
    shape: tuple[int, int, int],
    classes: int = 10,
    *,
    mean: Sequence[float] = (0.0,),
    deviation: Sequence[float] = (1.0,),
    compute: str = "float32",
) -> Classifier:
    """The network of that name for images [height, width, channels] of bytes."""
    if name not in CNNS:
        raise InputError(f"model: {name!r} is not known; use one of {', '.join(CNNS)}")
    check_compute(compute)
    layout = CNNS[name]
    height, width, channels = shape
    for what, numbers in (("mean", mean), ("deviation", deviation)):
        if len(numbers) not in (1, channels):
            raise InputError(f"{what}: {len(numbers)} numbers for {channels} channels; give one, or one for each")
    sides = [layout.crop or height, layout.crop or width]
    sizes: list[tuple[int, int]] = []
    for out, pooled in zip(layout.channels, layout.pooled, strict=True):
        sizes.append((channels, out))
        sides = sides if layout.same else [side - layout.kernel + 1 for side in sides]
        sides, channels = [side // 2 for side in sides] if pooled else sides, out
    if min(sides) < 1 or min(height, width) < (layout.crop or 0):
        raise InputError(f"model: images of {height} × {width} are too small for {name}; give larger ones")
    dense = [prod(sides) * channels, *layout.hidden, classes]

    def init(key: jax.Array) -> Tree:
        params: dict[str, Any] = {}
        for k, (before, out) in enumerate(sizes):
            kernel = (layout.kernel, layout.kernel, before, out)
            params[f"conv{k}"] = _layer(key, f"conv{k}", kernel)
        for k in range(len(dense) - 1):
            params[f"dense{k}"] = _layer(key, f"dense{k}", (dense[k], dense[k + 1]))
        return params

    def logits(params: Tree, x: jax.Array) -> jax.Array:
        own = params["dense0"]["weights"].dtype
        kind = compute_type(compute, own)
        if layout.crop is not None:
            top, left = (x.shape[1] - layout.crop) // 2, (x.shape[2] - layout.crop) // 2
            x = x[:, top : top + layout.crop, left : left + layout.crop]
        order = channels_first if jax.default_backend() != "cpu" else convolution
        spread = [order.per_channel(jnp.asarray(numbers, own)) for numbers in (mean, deviation)]
        x = ((order.arranged(x).astype(own) / 255 - spread[0]) / spread[1]).astype(kind)
        for k, pooled in enumerate(layout.pooled):
            layer = params[f"conv{k}"]
            x = add_bias(order.convolve(x, layer["weights"], same=layout.same), order.per_channel(layer["bias"]))
            x = order.max_pool(x) if pooled else x
            x = x if k in layout.linear else jax.nn.relu(x)
        x = order.flat(x)
        for k in range(len(dense) - 2):
            layer = params[f"dense{k}"]
            x = jax.nn.relu(add_bias(product(x, layer["weights"], 0), layer["bias"][:, None]))
        layer = params[f"dense{len(dense) - 2}"]
        z: jax.Array = layer["weights"].T @ x.astype(own) + layer["bias"][:, None]
        return z

    return classifier(init, logits)


def _layer(key: jax.Array, name: str, shape: tuple[int, ...]) -> dict[str, jax.Array]:
    fan_in = prod(shape[:-1])
    return {
        "weights": uniform_init(key, f"{name}.weights", shape, fan_in),
        "bias": uniform_init(key, f"{name}.bias", shape[-1:], fan_in),
    }
