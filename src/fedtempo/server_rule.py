"""θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i: what the server does with contributions (section 2.2, equation 4).

η_g is `server_lr`, ω_i(n) the `weight` of a contribution Δ_i. A rule holds what it needs in `acc`, a pytree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax

from fedtempo.local.rule import Hyper, Params

Acc = Any


class ServerRule(ABC):
    """The server's step, contribution by contribution. Frozen; whatever it remembers is in `acc`."""

    linear: ClassVar[bool] = False
    """Whether the new model is `acc` plus η_g times the weighted sum, so that many can be added at once."""

    @abstractmethod
    def start(self, params: Params) -> Acc:
        """Before the first round."""

    @abstractmethod
    def add(self, acc: Acc, contribution: Params, weight: jax.Array, base: Params, hyper: Hyper) -> Acc:
        """A contribution enters the round; `base` is the model that it started from."""

    @abstractmethod
    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        """The new model, and what the next round starts with."""


class WeightedSum(ServerRule):
    """The paper's aggregation: `acc` is the model as it grows."""

    linear = True

    def start(self, params: Params) -> Acc:
        return params

    def add(self, acc: Acc, contribution: Params, weight: jax.Array, base: Params, hyper: Hyper) -> Acc:
        step = hyper["server_lr"] * weight
        return jax.tree.map(lambda a, c: a + step.astype(a.dtype) * c, acc, contribution)

    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        return acc, acc
