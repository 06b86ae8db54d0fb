"""How kernels and pools walk over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as cases

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Window:
    """How a kernel walks over an image, along each axis of places."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def places(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many places it has in an image of that shape, padding included."""
        steps = zip(shape, self.size, self.stride, self.dilation, strict=True)
        return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in steps)

    def shifted(self, x: jax.Array) -> list[jax.Array]:
        """What each of its points sees, of images [*, *places, *]: as many arrays as it has points."""
        found = []
        ends = [s * (n - 1) + 1 for n, s in zip(self.places(x.shape[1:-1]), self.stride, strict=True)]
        for point in cases(*map(range, self.size)):
            starts = [d * i for i, d in zip(point, self.dilation, strict=True)]
            limits = [start + end for start, end in zip(starts, ends, strict=True)]
            found.append(lax.slice(x, (0, *starts, 0), (len(x), *limits, x.shape[-1]), (1, *self.stride, 1)))
        return found

    def patches(self, x: jax.Array) -> jax.Array:
        """[rows · places, points · channels] of images [rows, *places, channels]."""
        found = jnp.concatenate(self.shifted(x), axis=-1)
        return found.reshape(-1, found.shape[-1])


def each_axis(numbers: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """One number for every axis."""
    found = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return found * axes if len(found) == 1 else found
