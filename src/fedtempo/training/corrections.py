"""Corrections of local work, a term in every step's gradient: FedProx, FedDANE, FedDyn and SCAFFOLD.

    θ ← θ + u(∇L_i(θ, ξ_k) + term(θ))         then the contribution, a report, and the client's memory

    FedProx    g + μ(θ − θ^ρ)                      Li et al., "Federated optimization in heterogeneous networks", 2020
    FedDANE    g + ḡ^ρ − ∇L_i(θ^ρ) + μ(θ − θ^ρ)    Li et al., "FedDANE", 2019, with the gradients of earlier jobs
    FedDyn     g − h_i + α(θ − θ^ρ)              Acar et al., "Federated learning based on dynamic regularization", 2021
    SCAFFOLD   g − c_i + c^ρ                       Karimireddy et al., "SCAFFOLD", 2020, its option II

θ^ρ is the model that the job started from, `change` the contribution Δ_i as the server gets it, `share` is p_i. What
carries over from job to job is exact under staleness: the server's ḡ, h and c are Σ_j p_j of what client j last held,
whoever took part and whenever. A correction's numbers are fixed: a study with several of them has a scheme for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedtempo import compat
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.registry import Registry, own_label, own_spec
from fedtempo.training.solvers import STEPS, Answer, Hyper, Job, LocalRule, Params, Sent, State

Memory = Any


class Begun(NamedTuple):
    """What a correction knows when a job begins."""

    sent: Sent
    state: State
    """What the client keeps for it."""
    found: Any
    """What it found out before the first step."""


class Correction(ABC):
    """A correction of client drift: a term in local steps, and its state on the server. Frozen; states are pytrees.

    One's own writes `corrected`; what it must remember goes through `client_start`, `begin` and `finish` on the client,
    `server_start`, `broadcast` and `receive` on the server.

    Example:
        >>> from dataclasses import dataclass
        >>> import jax
        >>> @dataclass(frozen=True)
        ... class Decay(ft.Correction):  # a pull to zero in every local step
        ...     strength: float
        ...     def corrected(self, gradient, here, begun):
        ...         return jax.tree.map(lambda g, x: g + self.strength * x, gradient, here)
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg(), ft.FedAvg().using(correction=Decay(0.5), label="decayed")]
        >>> ft.simulate(problem, schemes, times, until=40).table()[["scheme", "loss"]].round(3)
            scheme   loss
        0   FedAvg  0.373
        1  decayed  0.400
    """

    def __init_subclass__(cls) -> None:
        compat.renamed(cls, letter="broadcast")

    @property
    def label(self) -> str:
        """The correction in a few words."""
        return own_label(self)

    def spec(self) -> dict[str, object]:
        """The correction as a JSON object, of which `CORRECTIONS` makes it again."""
        return own_spec(self)

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

    def broadcast(self, memory: Memory) -> Any:
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
        raise InputError(f"{what}: {value!r} is not allowed; give a number above 0")
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


@dataclass(frozen=True)
class FedProx(Correction):
    """A pull of strength `mu` (μ) back to the model that was sent: g + μ(θ − θ^ρ) in every local step.

    Example:
        >>> problem, times = ft.problems.quadratics(4, heterogeneity=2), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg().using(correction=c) for c in (None, ft.FedProx(1))]
        >>> local = ft.LocalSGD(steps=10, lr=0.3, batch_size=None)
        >>> history = ft.simulate(problem, schemes, times, until=100, local=local)
        >>> (history.table().set_index("scheme").loss - problem.optimal_loss).abs().round(4)  # 0 is the best there is
        scheme
        FedAvg                 0.0204
        FedAvg + FedProx(1)    0.0067
        Name: loss, dtype: float64
    """

    mu: float

    def __post_init__(self) -> None:
        positive_number("FedProx", self.mu)

    @property
    def label(self) -> str:
        return f"FedProx({self.mu:g})"

    def spec(self) -> dict[str, object]:
        return {"name": "fedprox", "mu": self.mu}

    def corrected(self, gradient: Params, here: Params, begun: Begun) -> Params:
        return plus(gradient, minus(here, begun.sent.model), self.mu)


@dataclass(frozen=True)
class FedDANE(Correction):
    """Local steps along the federated gradient, as far as the server knows it: ḡ = Σ p_j ∇L_j of each one's last job.

    A job reports by how much ∇L_i has changed since the client's last one. Until every client has reported once, ḡ is
    not known and the steps are FedProx's. Each job takes one more gradient, of all its rows.

    `mu` (above 0) is the strength of the pull back to the model that was sent.

    Example:
        >>> problem, times = ft.problems.quadratics(4, heterogeneity=2), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg().using(correction=c) for c in (None, ft.FedDANE(0.1))]
        >>> local = ft.LocalSGD(steps=10, lr=0.3, batch_size=None)
        >>> history = ft.simulate(problem, schemes, times, until=100, local=local)
        >>> (history.table().set_index("scheme").loss - problem.optimal_loss).abs().round(4)  # 0 is the best there is
        scheme
        FedAvg                   0.0204
        FedAvg + FedDANE(0.1)    0.0028
        Name: loss, dtype: float64
    """

    mu: float

    def __post_init__(self) -> None:
        positive_number("FedDANE", self.mu)

    @property
    def label(self) -> str:
        return f"FedDANE({self.mu:g})"

    def spec(self) -> dict[str, object]:
        return {"name": "feddane", "mu": self.mu}

    @property
    def remembers(self) -> bool:
        return True

    def client_start(self, model: Params) -> State:
        return zeros(model), jnp.zeros((), jax.tree.leaves(model)[0].dtype)

    def begin(self, sent: Sent, state: State, full_gradient: Callable[[Params], Params]) -> Begun:
        return Begun(sent, state, full_gradient(sent.model))

    def corrected(self, gradient: Params, here: Params, begun: Begun) -> Params:
        mean, covered = begun.sent.broadcast
        known = (covered > 1 - 1e-4).astype(covered.dtype)
        gradient = plus(gradient, minus(mean, begun.found), known)
        return plus(gradient, minus(here, begun.sent.model), self.mu)

    def finish(self, moved: Params, change: Params, begun: Begun, steps: Any, hyper: Hyper) -> tuple[Any, State]:
        before, known = begun.state
        return (minus(begun.found, before), 1 - known), (begun.found, jnp.ones_like(known))

    def server_start(self, model: Params) -> Memory:
        return zeros(model), jnp.zeros((), jax.tree.leaves(model)[0].dtype)

    def broadcast(self, memory: Memory) -> Any:
        return memory

    def receive(self, memory: Memory, answer: Answer, share: jax.Array) -> Memory:
        mean, covered = memory
        difference, first = answer.report
        return plus(mean, difference, share), covered + share * first


@dataclass(frozen=True)
class FedDyn(Correction):
    """Each client's loss is tilted by h_i and held by α, so that all local optima become the federated one.

    h_i ← h_i − αΔ_i on the client;  h = Σ p_j h_j on the server, and θ^{n+1} = θ^n + η_g(Σ ω_i Δ_i − (Σ ω_i) h/α)

    `alpha` is α, above 0.

    Example:
        >>> problem, times = ft.problems.quadratics(4, heterogeneity=2), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg().using(correction=c) for c in (None, ft.FedDyn(1))]
        >>> local = ft.LocalSGD(steps=10, lr=0.3, batch_size=None)
        >>> history = ft.simulate(problem, schemes, times, until=100, local=local)
        >>> (history.table().set_index("scheme").loss - problem.optimal_loss).abs().round(4)  # 0 is the best there is
        scheme
        FedAvg                0.0204
        FedAvg + FedDyn(1)    0.0000
        Name: loss, dtype: float64
    """

    alpha: float

    def __post_init__(self) -> None:
        positive_number("FedDyn", self.alpha)

    @property
    def label(self) -> str:
        return f"FedDyn({self.alpha:g})"

    def spec(self) -> dict[str, object]:
        return {"name": "feddyn", "alpha": self.alpha}

    @property
    def remembers(self) -> bool:
        return True

    def client_start(self, model: Params) -> State:
        return zeros(model)

    def corrected(self, gradient: Params, here: Params, begun: Begun) -> Params:
        return plus(minus(gradient, begun.state), minus(here, begun.sent.model), self.alpha)

    def finish(self, moved: Params, change: Params, begun: Begun, steps: Any, hyper: Hyper) -> tuple[Any, State]:
        return (), plus(begun.state, change, -self.alpha)

    def server_start(self, model: Params) -> Memory:
        return zeros(model)

    def receive(self, memory: Memory, answer: Answer, share: jax.Array) -> Memory:
        return plus(memory, answer.change, -self.alpha * share)

    def shifted(self, step: Params, memory: Memory, mass: jax.Array) -> Params:
        return plus(step, memory, -mass / self.alpha)


@dataclass(frozen=True)
class Scaffold(Correction):
    """Control variates: c_i is the mean gradient of the client's last job, c = Σ p_j c_j the mean over clients.

    c_i⁺ = c_i − c^ρ − Δ_i/(K η_l), which is the mean of the job's own gradients whatever c^ρ was: a stale job tells
    the truth.

    Example:
        >>> problem, times = ft.problems.quadratics(4, heterogeneity=2), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg().using(correction=c) for c in (None, ft.Scaffold())]
        >>> local = ft.LocalSGD(steps=10, lr=0.3, batch_size=None)
        >>> history = ft.simulate(problem, schemes, times, until=100, local=local)
        >>> (history.table().set_index("scheme").loss - problem.optimal_loss).abs().round(4)  # 0 is the best there is
        scheme
        FedAvg               0.0204
        FedAvg + SCAFFOLD    0.0000
        Name: loss, dtype: float64
    """

    @property
    def label(self) -> str:
        return "SCAFFOLD"

    def spec(self) -> dict[str, object]:
        return {"name": "scaffold"}

    @property
    def remembers(self) -> bool:
        return True

    def check(self, local: LocalRule) -> None:
        if not local.plain:
            raise InputError(
                "SCAFFOLD: the control variate needs plain SGD steps, Δ_i = −η_l Σ gradients; use "
                "LocalSGD without momentum, clip and options"
            )

    def client_start(self, model: Params) -> State:
        return zeros(model)

    def corrected(self, gradient: Params, here: Params, begun: Begun) -> Params:
        return plus(minus(gradient, begun.state), begun.sent.broadcast)

    def finish(self, moved: Params, change: Params, begun: Begun, steps: Any, hyper: Hyper) -> tuple[Any, State]:
        scale = 1.0 / (steps * hyper[RATE])
        difference = jax.tree.map(lambda c, m: -c - (scale * m).astype(c.dtype), begun.sent.broadcast, moved)
        return difference, plus(begun.state, difference)

    def server_start(self, model: Params) -> Memory:
        return zeros(model)

    def broadcast(self, memory: Memory) -> Any:
        return memory

    def receive(self, memory: Memory, answer: Answer, share: jax.Array) -> Memory:
        return plus(memory, answer.report, share)


CORRECTIONS: Registry[Correction] = Registry(
    "correction",
    {"fedprox": FedProx, "feddane": FedDANE, "feddyn": FedDyn, "scaffold": Scaffold},
    makes=(Correction,),
)
"""Corrections by name."""
