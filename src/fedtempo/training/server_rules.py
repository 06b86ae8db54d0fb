"""What the server does with contributions: it folds those of a round into the next model (section 2.2, equation 4).

    weighted sum   θ ← θ + η_g Σ ω_i Δ_i                    the paper's
    SlowMo         u ← βu + Σ ω_i Δ_i;  θ ← θ + η_g u       (Wang et al., "SlowMo", 2020)
    adaptive       θ ← θ + η_g · step(Σ ω_i Δ_i)            (Reddi et al., "Adaptive federated optimization", 2021)
    any of Optax   θ ← θ + step(Σ ω_i Δ_i)                  η_g is the solver's learning rate
    mixing         θ ← (1 − η_g ω_i) θ + η_g ω_i θ_i        (Xie et al., "Asynchronous federated optimization", 2019)

`SERVERS` has the others by name, `server_rule` makes one for a scheme. η_g is `server_lr`, ω_i(n) the `weight` of a
contribution Δ_i. A rule holds what it needs in `acc`, a pytree. For an optimizer the sum Σ ω_i Δ_i takes the place of a
negative gradient. An empty round, or one of dropped updates alone, is no step: nothing decays and nothing moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedtempo.errors import InputError
from fedtempo.registry import NotImported, Registry, own_label, own_spec, place_of, plain
from fedtempo.training.corrections import Correction, Memory, plus, positive_number, zeros
from fedtempo.training.robust_rules import CoordinateMedian, Krum, NormClipping, RobustRule, TrimmedMean
from fedtempo.training.server_contract import Acc
from fedtempo.training.server_contract import Arrival as Arrival
from fedtempo.training.server_contract import ServerRule as ServerRule
from fedtempo.training.solvers import Hyper, Params, solver_name


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


class ServerOptimizer(ABC):
    """How the server moves along a round's contribution.

    One's own makes an Optax transformation for a server learning rate; it is given −Σ ω_i Δ_i for a gradient.

    Example:
        >>> from dataclasses import dataclass
        >>> import optax
        >>> @dataclass(frozen=True)
        ... class Bounded(ft.ServerOptimizer):  # a step that is never longer than `limit`
        ...     limit: float
        ...     def transformation(self, server_lr):
        ...         return optax.chain(optax.clip_by_global_norm(self.limit), optax.sgd(server_lr))
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg().using(server=Bounded(limit)) for limit in (0.01, 0.1)]
        >>> ft.simulate(problem, schemes, times, until=40).table()[["scheme", "loss"]].round(3)
                           scheme   loss
        0  FedAvg + Bounded(0.01)  0.527
        1   FedAvg + Bounded(0.1)  0.373
    """

    @abstractmethod
    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        """The Optax solver at a server learning rate."""

    @property
    def label(self) -> str:
        """The optimizer in a few words."""
        return own_label(self)

    def spec(self) -> dict[str, object]:
        """The optimizer as a JSON object, of which `SERVERS` makes it again."""
        return own_spec(self)


@dataclass(frozen=True)
class ServerOptax(ServerOptimizer):
    """Any Optax solver on the round's contribution: ``ServerOptax(optax.adam, options={"b1": 0.9})``.

    `solver` is called with `learning_rate`, which is the server's, and the `options`.

    Example:
        >>> import optax
        >>> adam = ft.ServerOptax(optax.adam, options={"b1": 0.5})
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> scheme = ft.FedFix(1).using(server=adam)
        >>> history = ft.simulate(problem, scheme, times, until=40, server_lr=0.03)
        >>> round(history.final().item(), 3), round(problem.optimal_loss, 3)
        (0.262, 0.262)
    """

    solver: Callable[..., optax.GradientTransformation]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.solver):
            raise InputError(f"solver: {self.solver!r} cannot be called; give an Optax solver such as optax.adam")
        if "learning_rate" in self.options:
            raise InputError("options: the server's learning_rate is set by server_lr; give it there")
        name = solver_name(self.solver)
        try:
            made: Any = self.transformation(1.0)
        except TypeError as error:
            raise InputError(f"solver: {name} cannot be made ({error}); check its options") from None
        if not (hasattr(made, "init") and hasattr(made, "update")):
            raise InputError(f"solver: {name} does not make an Optax transformation; give one such as optax.adam")

    def __hash__(self) -> int:
        return hash((self.solver, tuple(sorted(self.options))))

    @property
    def label(self) -> str:
        name = solver_name(self.solver)
        given = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{name}({given})" if given else name

    def spec(self) -> dict[str, object]:
        place = place_of(self.solver)
        try:
            options = {key: plain(value) for key, value in self.options.items()}
        except ValueError:
            place = None
        return {"name": self.label, "repr": self.label} if place is None else {"name": place, **options}

    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        return self.solver(learning_rate=server_lr, **self.options)


@dataclass(frozen=True)
class SlowMo(ServerOptimizer):
    """Server momentum: u ← βu + Σ ω_i Δ_i, θ ← θ + η_g u, β = `momentum` from 0 to below 1.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg().using(server=server) for server in (None, ft.SlowMo(0.5))]
        >>> history = ft.simulate(problem, schemes, times, until=40, local=ft.LocalSGD(lr=0.1))
        >>> history.table()[["scheme", "loss"]].round(3)
                         scheme   loss
        0                FedAvg  0.373
        1  FedAvg + SlowMo(0.5)  0.303
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        _share("SlowMo", "momentum", self.momentum)

    @property
    def label(self) -> str:
        return f"SlowMo({self.momentum:g})"

    def spec(self) -> dict[str, object]:
        return {"name": "slowmo", "momentum": self.momentum}

    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        return optax.sgd(server_lr, momentum=self.momentum)


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """Adam on the round's contribution; `eps` is τ, large where contributions are small.

    `b1` and `b2` are the rates at which the two means forget. The server learning rate is to be small, as 0.01:
    ``ft.simulate(…, server_lr=0.01)``.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> scheme = ft.FedFix(1).using(server=ft.FedAdam(b1=0.5))
        >>> history = ft.simulate(problem, scheme, times, until=40, server_lr=0.03)
        >>> round(history.final().item(), 3), round(problem.optimal_loss, 3)
        (0.262, 0.262)
    """

    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self) -> None:
        _share(type(self).__name__, "b1", self.b1)
        _share(type(self).__name__, "b2", self.b2)
        positive_number(f"{type(self).__name__}: eps", self.eps)

    @property
    def label(self) -> str:
        name = type(self).__name__
        return name if self == type(self)() else f"{name}({self.b1:g}, {self.b2:g}, {self.eps:g})"

    def spec(self) -> dict[str, object]:
        return {"name": type(self).__name__.lower(), "b1": self.b1, "b2": self.b2, "eps": self.eps}

    def second(self, v: Any, g: Any) -> Any:
        """The second mean."""
        return self.b2 * v + (1 - self.b2) * g**2

    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        return _adaptive(server_lr, self.b1, self.eps, self.second)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Yogi on the round's contribution: its second mean grows in steps that do not depend on its size.

    Its arguments are those of `FedAdam`.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> scheme = ft.FedFix(1).using(server=ft.FedYogi(b1=0.5))
        >>> history = ft.simulate(problem, scheme, times, until=40, server_lr=0.03)
        >>> round(history.final().item(), 3), round(problem.optimal_loss, 3)
        (0.262, 0.262)
    """

    def second(self, v: Any, g: Any) -> Any:
        return v - (1 - self.b2) * g**2 * jnp.sign(v - g**2)


@dataclass(frozen=True)
class FedAdaGrad(ServerOptimizer):
    """AdaGrad on the round's contribution: steps shrink where past contributions were large; `eps` is τ.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> scheme = ft.FedFix(1).using(server=ft.FedAdaGrad())
        >>> history = ft.simulate(problem, scheme, times, until=40, server_lr=0.1)
        >>> round(history.final().item(), 3), round(problem.optimal_loss, 3)
        (0.262, 0.262)
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        positive_number("FedAdaGrad: eps", self.eps)

    @property
    def label(self) -> str:
        return "FedAdaGrad" if self == FedAdaGrad() else f"FedAdaGrad({self.eps:g})"

    def spec(self) -> dict[str, object]:
        return {"name": "fedadagrad", "eps": self.eps}

    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        return _adaptive(server_lr, 0.0, self.eps, lambda v, g: v + g**2)


def _adaptive(server_lr: Any, b1: float, eps: float, second: Callable[[Any, Any], Any]) -> optax.GradientTransformation:
    """Algorithm 2 of Reddi et al.: m ← b1 m + (1 − b1) g, v by `second`, step −η_g m/(√v + τ); m = 0, v = τ² at first.

    Optax's own correct the means for their start, or put τ under the root.
    """

    def init(params: Params) -> tuple[Params, Params]:
        return zeros(params), jax.tree.map(lambda x: jnp.full_like(x, eps**2), params)

    def update(gradient: Params, state: tuple[Params, Params], params: Params = None) -> Any:
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state[0], gradient)
        v = jax.tree.map(second, state[1], gradient)
        step = jax.tree.map(lambda m, x: (-server_lr * m / (jnp.sqrt(x) + eps)).astype(m.dtype), first, v)
        return step, (first, v)

    return optax.GradientTransformation(init, update)


def _share(who: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InputError(f"{who}: {name}={value!r} is not allowed; give a number from 0 to below 1")


WEIGHTED_SUM = WeightedSum()


class Held(NamedTuple):
    """What the server holds of the round in the making, and from round to round."""

    model: Params
    step: Params
    """Σ ω_i Δ_i so far."""
    mass: jax.Array
    """Σ ω_i so far."""
    memory: Memory
    """The correction's."""
    solver: Any
    """The optimiser's."""


@dataclass(frozen=True)
class SteppingServer(ServerRule):
    """One step a round, along the sum of its contributions, with an optimiser and what a correction remembers."""

    correction: Correction | None = None
    optimizer: ServerOptimizer | None = None

    def start(self, params: Params) -> Acc:
        return Held(
            params,
            zeros(params),
            jnp.zeros((), jax.tree.leaves(params)[0].dtype),
            () if self.correction is None else self.correction.server_start(params),
            () if self.optimizer is None else self.optimizer.transformation(1.0).init(params),
        )

    def add(self, acc: Acc, arrival: Arrival, hyper: Hyper) -> Acc:
        weight = arrival.weight.astype(acc.mass.dtype)
        memory = acc.memory
        if self.correction is not None:
            memory = self.correction.receive(memory, arrival.answer, arrival.share)
        step = plus(acc.step, arrival.answer.change, weight)
        return acc._replace(step=step, mass=acc.mass + weight, memory=memory)

    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        step, solver = acc.step, acc.solver
        if self.correction is not None:
            step = self.correction.shifted(step, acc.memory, acc.mass)
        if self.optimizer is None:
            model = plus(acc.model, step, hyper["server_lr"])
        else:
            downhill = jax.tree.map(jnp.negative, step)
            update, solver = self.optimizer.transformation(hyper["server_lr"]).update(downhill, solver, acc.model)
            model = plus(acc.model, update)
        came = acc.mass != 0  # a round of dropped updates alone is no step
        model, solver = jax.tree.map(partial(jnp.where, came), (model, solver), (acc.model, acc.solver))
        return model, Held(model, zeros(model), jnp.zeros_like(acc.mass), acc.memory, solver)

    def broadcast(self, acc: Acc) -> Any:
        return () if self.correction is None else self.correction.broadcast(acc.memory)

    def remembered(self, acc: Acc) -> Any:
        return acc.solver

    def recalled(self, acc: Acc, memory: Any) -> Acc:
        return acc._replace(solver=memory)


@dataclass(frozen=True)
class MixModels(ServerRule):
    """FedAsync's server: the model moves towards the client's model, not by the client's contribution.

    θ_i = θ^ρ + Δ_i, so that θ + ω(θ_i − θ) also undoes, by ω, what others have done since θ^ρ.

    Example:
        >>> scheme = ft.AsyncFedAvg().using(server=ft.MixModels(), weights=ft.published.Mixing(0.3), step="paper")
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> history = ft.simulate(problem, scheme, times, until=40)
        >>> round(history.final().item(), 3), round(problem.optimal_loss, 3)
        (0.314, 0.262)
    """

    label: ClassVar[str] = "mixing"

    def spec(self) -> dict[str, object]:
        """The rule as a JSON object."""
        return {"name": "mixing"}

    def start(self, params: Params) -> Acc:
        return params

    def add(self, acc: Acc, arrival: Arrival, hyper: Hyper) -> Acc:
        theirs = jax.tree.map(jnp.add, arrival.base.model, arrival.answer.change)
        away = jax.tree.map(jnp.subtract, theirs, acc)
        return plus(acc, away, hyper["server_lr"] * arrival.weight)

    def close(self, acc: Acc, hyper: Hyper) -> tuple[Params, Acc]:
        return acc, acc


Server = ServerOptimizer | MixModels | RobustRule
"""What users choose of."""


def server_rule(
    correction: Correction | None = None, server: Server | None = None, clients: int | None = None
) -> ServerRule:
    """The server of a scheme with these options: the plain sum wherever that is all there is.

    `clients`: how many there are, where that is known.
    """
    remembering = correction if correction is not None and correction.remembers else None
    if isinstance(server, MixModels):
        if remembering is not None:
            raise InputError(
                f"{remembering.label}: its server adds contributions, but FedAsync's mixes models; use one of them"
            )
        return server
    if isinstance(server, RobustRule):
        if remembering is not None:
            raise InputError(
                f"{remembering.label}: its server trusts what every client reports, but {server.label} trusts none; "
                "use one of them"
            )
        return server if clients is None else server.among(clients)
    if server is None and remembering is None:
        return WEIGHTED_SUM
    return SteppingServer(remembering, server)


class NamedServer(ServerOptimizer):
    """A server optimizer of which no more is known than what was written down: it is printed, and cannot run."""

    def __init__(self, spec: Mapping[str, object]) -> None:
        self._spec = dict(spec)

    @property
    def label(self) -> str:
        return str(self._spec.get("name"))

    def spec(self) -> dict[str, object]:
        return dict(self._spec)

    def transformation(self, server_lr: Any) -> optax.GradientTransformation:
        raise NotImported(
            f"server: {self.label} is named there but was not imported; give the scheme with its server, as "
            "recorded(folder, scheme=…), or trust=True if you trust the folder"
        )


def _solver(found: object) -> object:
    """An Optax solver stands for itself at the server."""
    if isinstance(found, type) or not callable(found):
        return found
    try:
        takes = signature(found)
    except (TypeError, ValueError):
        return found
    if "learning_rate" not in takes.parameters:
        return found

    def make(**options: Any) -> ServerOptax:
        return ServerOptax(found, options)

    open_ended = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    others = [
        p.replace(kind=p.KEYWORD_ONLY)
        for name, p in takes.parameters.items()
        if name != "learning_rate" and p.kind not in open_ended
    ]
    make.__signature__ = takes.replace(parameters=others, return_annotation=ServerOptax)  # type: ignore[attr-defined]
    make.__annotations__ = dict(getattr(found, "__annotations__", {}))
    return make


SERVERS: Registry[Server] = Registry(
    "server",
    {
        "slowmo": SlowMo,
        "fedadam": FedAdam,
        "fedyogi": FedYogi,
        "fedadagrad": FedAdaGrad,
        "mixing": MixModels,
        "median": CoordinateMedian,
        "trimmed-mean": TrimmedMean,
        "krum": Krum,
        "norm-clipping": NormClipping,
    },
    makes=(ServerOptimizer, MixModels, RobustRule),
    adapt=_solver,
    harmless=("optax",),
)
"""What the server does with contributions, by name; ``optax:adam`` is any solver of Optax."""
