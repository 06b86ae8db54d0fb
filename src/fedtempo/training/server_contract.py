"""What a server rule is: contributions come one by one, a round is closed, a new model is there.

    add(acc, arrival)       a contribution enters the round
    close(acc)              the new model, and what the next round starts with

What a rule holds, in the making of a round and from round to round, is `acc`, a pytree. server_rules.py has the sum and
the optimizers, robust_rules.py those that bear hostile clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax

from fedtempo.training.solvers import Answer, Hyper, Params, Sent

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
    client: Any
    """Its number i."""


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

    def broadcast(self, acc: Acc) -> Any:
        """What goes to clients with the model."""
        return ()

    def remembered(self, acc: Acc) -> Any:
        """What `acc` has, between two rounds, beside the model."""
        return ()

    def recalled(self, acc: Acc, memory: Any) -> Acc:
        """`acc` with what was remembered."""
        return acc
