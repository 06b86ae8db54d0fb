"""The problem's state at the server: arrays that are not trained, such as BatchNorm's, are averaged as values.

    s ← (1 − A) s + A Σ_i ω_i v_i / Σ_i ω_i,    A = min(1, Σ_i ω_i)        v_i: the state that client i sends back
    variances        by second moments: m₂ = var + mean² is averaged so, and var = m₂ − mean²
    whole numbers    the largest

ω_i are the weights at the stable step, without `server_lr`. Two states with shares 1 − a and a make one, whose variance
is (1 − a) var + a var' + a(1 − a)(mean' − mean)²: nothing cancels. Made so, update by update, the mean of a round is
the same in any order; flower/buffers.py does it for a deployment. Server rules do not see states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any

_MEANS = {"variance": "mean", "var": "mean"}
"""How names of variances end (PyTorch's, Keras's, Flax's), and those of the means that they belong to."""


class Values(NamedTuple):
    """The state at the server, and the round in the making."""

    state: Tree
    """s of the newest version."""
    mean: Tree
    """Σ ω_i v_i / Σ ω_i so far."""
    mass: jax.Array
    """Σ ω_i so far."""


@dataclass(frozen=True)
class StateAverage:
    """Which leaves of a state are variances, and what becomes of all."""

    mean_of: tuple[int | None, ...]
    """For each leaf the place of the mean that it is a variance about; None of the others."""

    @classmethod
    def of(cls, shapes: Tree) -> StateAverage:
        """That of states of these shapes: means are found by name, beside their variances."""
        found = jax.tree_util.tree_flatten_with_path(shapes)[0]
        names = [tuple(_name(key) for key in path) for path, _ in found]
        place = {name: k for k, name in enumerate(names)}
        floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for _, leaf in found]

        def mean(k: int) -> int | None:
            other = place.get(_mean_name(names[k]) or names[k], k)
            fits = other != k and floating[k] and floating[other] and found[other][1].shape == found[k][1].shape
            return other if fits else None

        return cls(tuple(mean(k) for k in range(len(found))))

    def start(self, state: Tree, mass: jax.Array) -> Values:
        """Before the first update of a round; `mass` is a zero of the weights' type."""
        return Values(state, state, mass)

    def add(self, held: Values, values: Tree, weight: jax.Array) -> Values:
        """A client's values enter the round; of a weight of zero they do not."""
        weight = jnp.maximum(weight.astype(held.mass.dtype), 0)
        mass = held.mass + weight
        share = jnp.where(mass > 0, weight / jnp.where(mass > 0, mass, 1), 0)
        return Values(held.state, self._mixed(held.mean, values, share), mass)

    def close(self, held: Values) -> Values:
        """The state of the next version, and an empty round."""
        state = self._mixed(held.state, held.mean, jnp.minimum(held.mass, 1))
        return self.start(state, jnp.zeros_like(held.mass))

    def _mixed(self, one: Tree, other: Tree, share: jax.Array) -> Tree:
        """Two states as one, the second with a `share` from 0 to 1."""
        first, second = jax.tree.leaves(one), jax.tree.leaves(other)
        mixed = []
        for a, b, mean in zip(first, second, self.mean_of, strict=True):
            if not jnp.issubdtype(a.dtype, jnp.floating):
                mixed.append(jnp.where(share > 0, jnp.maximum(a, b), a))
                continue
            part = share.astype(a.dtype)
            if mean is None:
                value = (1 - part) * a + part * b
            else:
                apart = second[mean] - first[mean]
                value = (1 - part) * jnp.maximum(a, 0) + part * jnp.maximum(b, 0) + part * (1 - part) * apart**2
            mixed.append(jnp.where(share > 0, value, a))
        return jax.tree.unflatten(jax.tree.structure(one), mixed)


def _name(key: Any) -> str:
    """One step of a leaf's path, as "bn"."""
    return str(next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key))


def _mean_name(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path of the mean that would belong to a variance; None of what is none.

    The variance's name is the last step, or the one before a wrapper's, as Flax's ("bn", "var", "value").
    """
    for place in range(len(path) - 1, max(-1, len(path) - 3), -1):
        for ending, mean in _MEANS.items():
            if path[place].endswith(ending):
                return (*path[:place], path[place].removesuffix(ending) + mean, *path[place + 1 :])
    return None
