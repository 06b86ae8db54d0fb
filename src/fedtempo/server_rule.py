"""θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i: what the server does with contributions (section 2.2, equation 4).

η_g is `server_lr`, ω_i(n) the `weight` of a contribution Δ_i. A rule holds what it needs in `acc`, a pytree. An empty
round makes no new model: no rule moves it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedtempo.local.rule import Answer, Hyper, Params, Sent

Acc = Any


class Arrival(NamedTuple):
    """An answer that enters a round."""

    answer: Answer
    weight: jax.Array
    """ω_i(n)."""
    share: jax.Array
    """p_i."""
    base: Sent
    """What the client had been sent."""


class ServerRule(ABC):
    """The server's step, contribution by contribution. Frozen; whatever it remembers is in `acc`."""

    @abstractmethod
    def start(self, params: Params) -> Acc:
        """Before the first round."""

    @abstractmethod
    def add(self, acc: Acc, arrival: Arrival, hyper: Hyper) -> Acc:
        """A contribution enters the round."""

    @abstractmethod
    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        """The new model, and what the next round starts with."""

    def letter(self, acc: Acc) -> Any:
        """What goes to clients with the model."""
        return ()


class LinearRule(ServerRule):
    """`acc` is the model as it grows, and each contribution moves it by a step: many can be added at once."""

    @abstractmethod
    def step(self, contribution: Params, weight: jax.Array, hyper: Hyper) -> Params:
        """By how much a contribution moves the model."""

    def start(self, params: Params) -> Acc:
        return params

    def add(self, acc: Acc, arrival: Arrival, hyper: Hyper) -> Acc:
        return jax.tree.map(jnp.add, acc, self.step(arrival.answer.change, arrival.weight, hyper))

    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        return acc, acc


class WeightedSum(LinearRule):
    """The paper's aggregation."""

    def step(self, contribution: Params, weight: jax.Array, hyper: Hyper) -> Params:
        factor = hyper["server_lr"] * weight
        return jax.tree.map(lambda c: factor.astype(c.dtype) * c, contribution)
