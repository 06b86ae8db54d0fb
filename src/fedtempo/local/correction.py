"""Corrections of local work: a term in every step's gradient, and what client and server remember for it.

    θ ← θ + u(∇L_i(θ, ξ_k) + term(θ))         then the contribution, a report, and the client's memory

`change` is the contribution Δ_i as the server gets it, `share` is p_i. A correction's numbers are fixed: a study with
several of them has a scheme for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedtempo.errors import InputError
from fedtempo.local.rule import STEPS, Answer, Hyper, Job, LocalRule, Params, Sent, State

Memory = Any


class Begun(NamedTuple):
    """What a correction knows when a job begins."""

    sent: Sent
    state: State
    """What the client keeps for it."""
    found: Any
    """What it found out before the first step."""


class Correction(ABC):
    """A method's part in local work, and its bookkeeping on the server. Frozen; what it remembers lies in pytrees."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The correction in a few words."""

    @abstractmethod
    def spec(self) -> dict[str, object]:
        """The correction as a JSON object."""

    @property
    def remembers(self) -> bool:
        """Whether the server keeps something for it."""
        return False

    def check(self, local: LocalRule) -> None:
        """Refuse local work with which it makes no sense."""

    # -- on the client

    def client_start(self, model: Params) -> State:
        """What a client keeps from job to job, before its first one."""
        return ()

    def begin(self, sent: Sent, state: State, full_gradient: Callable[[Params], Params]) -> Begun:
        """Before the first step; `full_gradient` is that of all rows of the client."""
        return Begun(sent, state, ())

    @abstractmethod
    def corrected(self, gradient: Params, here: Params, begun: Begun) -> Params:
        """The gradient of a step taken at `here`, with the correction's term."""

    def finish(self, moved: Params, change: Params, begun: Begun, steps: Any, hyper: Hyper) -> tuple[Any, State]:
        """The report and the client's memory: it has `moved`, and the server will get `change`."""
        return (), begun.state

    # -- on the server

    def server_start(self, model: Params) -> Memory:
        """What the server remembers before the first round."""
        return ()

    def letter(self, memory: Memory) -> Any:
        """What clients are told with a model."""
        return ()

    def receive(self, memory: Memory, answer: Answer, share: jax.Array) -> Memory:
        """A client's answer enters the memory."""
        return memory

    def shifted(self, step: Params, memory: Memory, mass: jax.Array) -> Params:
        """The server's step, with what the memory adds to it; `mass` is Σ ω_i(n) of the round."""
        return step


def positive_number(what: str, value: object) -> float:
    """A finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise InputError(f"{what}: {value!r} does not do; give a number above 0")
    return float(value)


def plus(a: Params, b: Params, factor: Any = 1.0) -> Params:
    """A + factor · b, leaf by leaf, in the type of a."""
    return jax.tree.map(lambda x, y: x + (factor * y).astype(x.dtype), a, b)


def minus(a: Params, b: Params) -> Params:
    """A − b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def zeros(model: Params) -> Params:
    """A memory of the model's shape."""
    return jax.tree.map(jnp.zeros_like, model)


def steps_of(job: Job, hyper: Hyper) -> Any:
    """K, or K(i) where clients differ."""
    return hyper.get(STEPS, job.steps)
