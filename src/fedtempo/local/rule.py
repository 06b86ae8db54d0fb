"""Δ_i = θ_i^{K} − θ^{ρ_i(n)}: what a client sends back after K steps from the model it was sent (section 2.1).

    θ_i^{k+1} = θ_i^{k} + u(∇L_i(θ_i^{k}, ξ_k))          u a solver's update, −η_l · gradient for SGD

Δ_i is the `contribution`, K `local_steps`, ξ_k the k-th batch of the job, of B = `batch_size` rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from fedtempo.grid import Axis, Value
from fedtempo.local.batches import Draw

Params = Any
State = Any
Hyper = Mapping[str, jax.Array]
Gradient = Callable[[Params, Any], Params]
"""(θ, k) → ∇L_i(θ, ξ_k)."""
STEPS = "client_steps"
"""Under this name of `Hyper` a job finds its own number of steps, where clients differ in it."""


class Sent(NamedTuple):
    """What a client is sent."""

    model: Params
    """θ^{ρ_i(n)}."""
    letter: Any = ()
    """What a method tells clients beside the model, as SCAFFOLD's control variate."""


class Answer(NamedTuple):
    """What a client sends back."""

    change: Params
    """Δ_i."""
    report: Any = ()
    """What a method tells the server beside the contribution."""


@dataclass(frozen=True)
class Job:
    """One kind of local work, its shape settled. The engine asks `work` for every job."""

    steps: int
    batch_size: int | None
    """None: all rows of the client, in every step."""
    draw: Draw
    work: Callable[[Gradient, Params, State, Hyper], tuple[Params, State]]
    """(gradient, model sent, client's state, hyper-parameters) → contribution, client's state."""
    init: Callable[[Params], State] = lambda params: ()
    """What a client keeps from job to job: nothing, unless a method needs it."""


class LocalRule(ABC):
    """What a client does with a model; its hyper-parameters are axes of the study."""

    @property
    @abstractmethod
    def axes(self) -> tuple[Axis, ...]:
        """The hyper-parameters, with their values."""

    @property
    def plain(self) -> bool:
        """Whether it is SGD and nothing else: Δ_i = −η_l Σ gradients."""
        return False

    @abstractmethod
    def job(self, shape: Mapping[str, Value]) -> Job:
        """The work for one choice of the axes that are not traced."""

    @abstractmethod
    def spec(self) -> dict[str, object]:
        """The rule as a JSON object."""
