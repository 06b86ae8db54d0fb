"""Δ_i = θ_i^{K} − θ^{ρ_i(n)}: what a client sends back after K steps from the model it was sent (section 2.1).

    θ_i^{k+1} = θ_i^{k} + u(∇L_i(θ_i^{k}, ξ_k))          u a solver's update, with a fresh state for each job
    g ← ∇L_i(θ, ξ_k);   g ← g · min(1, clip/‖g‖);        SGD: θ ← θ − η_l·g, or any Optax solver

Δ_i is the `contribution`, η_l `local_lr`, K `local_steps`, ξ_k the k-th batch of the job, of B = `batch_size` rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedtempo import compat
from fedtempo.errors import InputError
from fedtempo.grid import RATE, Axis, Value, counts, is_auto, numbers
from fedtempo.registry import named_function
from fedtempo.training.batches import DRAWS, Draw

Params = Any
State = Any
Hyper = Mapping[str, jax.Array]
Gradient = Callable[[Params, Any], Params]
"""(θ, k) → ∇L_i(θ, ξ_k)."""
Stepper = Callable[[Params, Any, Any], tuple[Params, Any]]
"""(θ, k, s) → ∇L_i(θ, ξ_k), and the problem's state after that step; of a problem without state s is ()."""
STEPS = "client_steps"
"""Under this name of `Hyper` a job finds its own number of steps, where clients differ in it."""


class Sent(NamedTuple):
    """What a client is sent."""

    model: Params
    """θ^{ρ_i(n)}."""
    broadcast: Any = ()
    """What a method tells clients beside the model, as SCAFFOLD's control variate."""

    @property
    def letter(self) -> Any:
        """The old name of `broadcast`."""
        compat.warn("Sent.letter", "Sent.broadcast")
        return self.broadcast


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
    carrying: Callable[[Stepper, Params, State, Hyper, Any], tuple[Params, State, Any]] | None = None
    """As `work`, with the problem's state from step to step: given last, and returned last."""

    def run(self, stepper: Stepper, sent: Params, kept: State, hyper: Hyper, state: Any) -> tuple[Params, State, Any]:
        """Contribution, what the client keeps, and the problem's state after the last step."""
        if self.carrying is not None:
            return self.carrying(stepper, sent, kept, hyper, state)
        moved, kept = self.work(lambda here, k: stepper(here, k, state)[0], sent, kept, hyper)
        return moved, kept, state


class LocalRule(ABC):
    """A local solver: how a client trains a model. Its hyper-parameters are axes of the study.

    Example:
        >>> local = ft.LocalSGD(steps=5, lr=[0.1, 0.3], batch_size=16)  # one of the subclasses
        >>> [(axis.name, axis.values) for axis in local.axes]
        [('local_steps', (5,)), ('batch_size', (16,)), ('local_lr', (0.1, 0.3))]
        >>> local.plain, ft.LocalSGD(momentum=0.9).plain
        (True, False)
    """

    framework: ClassVar[str | None] = None
    """What problems must be written in for it; None: any that the engine knows."""

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


Number = float | Sequence[float]
Rate = float | Sequence[float] | Literal["auto"]
"""A learning rate, several, or "auto": `ft.simulate` widens them until the best of every scheme is inside."""
Count = int | None | Sequence[int | None]

Schedule = Literal["constant", "horizon"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "horizon")

_TAKEN = (STEPS, "learning_rate", "server_lr", "scheme", "weights", "seed", "time", "client", "times", "problem")
"""Names that a solver's option cannot have: they mean other things in a study."""


@dataclass(frozen=True, kw_only=True)
class LocalOptax(LocalRule):
    """K steps of an Optax solver: ``LocalOptax(solver=optax.adam, lr=1e-3, options={"b1": 0.9}, …)``.

    `solver` is called with `learning_rate` and the `options`; each option may be a number or a list of numbers.

    `steps` is K, `lr` the local learning rate or "auto" (it is searched), `batch_size` rows a step (None: all), `clip`
    the largest norm of a gradient. `draw` is "uniform" or "epochs" (each row once an epoch), `schedule` "constant" or
    "horizon" (η_l = lr/√(KN)). Any number may be a list: it is then a dimension of the study.

    Example:
        >>> import optax
        >>> local = ft.LocalOptax(solver=optax.adam, steps=5, lr=0.03, options={"b1": 0.8})
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> history = ft.simulate(problem, ft.FedFix(1), times, until=40, local=local)
        >>> round(history.final().item(), 3), round(problem.optimal_loss, 3)
        (0.288, 0.262)
    """

    solver: Callable[..., optax.GradientTransformation]
    steps: int | Sequence[int] = 1
    lr: Rate = 0.1
    batch_size: Count = 32
    """None: all rows of the client in every step."""
    clip: Number | None = None
    """Gradients longer than this are shortened to it."""
    draw: Draw = "uniform"
    """`uniform`: rows with replacement; `epochs`: each row once an epoch."""
    schedule: Schedule = "constant"
    """`horizon`: η_l = lr/√(KN), N the rounds of the run (section 4.1); `constant`: η_l = lr."""
    options: Mapping[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if is_auto(self.lr):
            replace(self, lr=0.1)  # checks the rest
            return
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule: {self.schedule!r} is not known; use one of {', '.join(SCHEDULES)}")
        if self.draw not in DRAWS:
            raise InputError(f"draw: {self.draw!r} is not known; use one of {', '.join(DRAWS)}")
        names = [axis.name for axis in self.axes]
        for name in self.options:
            if name in _TAKEN or names.count(name) > 1:
                raise InputError(f"options: {name!r} is an argument of its own; give it outside options")
        if not callable(self.solver):
            raise InputError(f"solver: {self.solver!r} cannot be called; give an Optax solver such as optax.adam")
        try:
            made = self.transformation({axis.name: axis.values[0] for axis in self.axes})
        except TypeError as error:
            raise InputError(f"solver: {self._name} cannot be made ({error}); check its options") from None
        if not (hasattr(made, "init") and hasattr(made, "update")):
            raise InputError(f"solver: {self._name} does not make an Optax transformation; give one such as optax.adam")

    @property
    def axes(self) -> tuple[Axis, ...]:
        rate = numbers(RATE, self.lr)
        clip = () if self.clip is None else (numbers("clip", self.clip),)
        others = tuple(numbers(name, value, reaches=True) for name, value in self.options.items())
        shape = (counts("local_steps", self.steps), counts("batch_size", self.batch_size, none="all rows"))
        return (*shape, rate, *clip, *others)

    def job(self, shape: Mapping[str, Value]) -> Job:
        steps, batch_size = shape["local_steps"], shape["batch_size"]
        assert isinstance(steps, int)
        assert batch_size is None or isinstance(batch_size, int)
        carrying = _work(self.transformation, steps)

        def work(gradient: Gradient, sent: Params, kept: State, hyper: Hyper) -> tuple[Params, State]:
            return carrying(lambda here, k, state: (gradient(here, k), state), sent, kept, hyper, ())[:2]

        return Job(steps, batch_size, self.draw, work, carrying=carrying)

    def rate(self, lr: float, steps: int, rounds: int) -> float:
        """η_l of a run of `rounds` rounds."""
        return lr if self.schedule == "constant" else lr / sqrt(steps * max(1, rounds))

    def transformation(self, hyper: Mapping[str, Any]) -> optax.GradientTransformation:
        """The solver with these hyper-parameters."""
        solver = self.solver(learning_rate=hyper[RATE], **{name: hyper[name] for name in self.options})
        return solver if self.clip is None else optax.chain(optax.clip_by_global_norm(hyper["clip"]), solver)

    @property
    def _name(self) -> str:
        return solver_name(self.solver)

    def spec(self) -> dict[str, object]:
        return {
            "solver": self._name,
            "draw": self.draw,
            **({"schedule": self.schedule} if self.schedule != "constant" else {}),
            **{axis.name: list(axis.values) if axis.listed else axis.values[0] for axis in self.axes},
        }


@dataclass(frozen=True, kw_only=True)
class LocalSGD(LocalOptax):
    """K steps of stochastic gradient descent; `momentum` starts from zero in each job.

    `steps`, `lr`, `batch_size`, `clip`, `draw` and `schedule` are those of `LocalOptax`; any number may be a list.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> local = ft.LocalSGD(steps=5, lr=[0.03, 0.3], batch_size=None)  # full gradients, two learning rates
        >>> history = ft.simulate(problem, ft.FedFix(1), times, until=20, local=local)
        >>> history.final().squeeze().to_series()
        local_lr
        0.03    0.331961
        0.30    0.264765
        Name: loss, dtype: float64
    """

    solver: Callable[..., optax.GradientTransformation] = optax.sgd
    momentum: Number | None = None

    def __post_init__(self) -> None:
        if self.momentum is not None:
            if max(numbers("momentum", self.momentum, reaches=True).values, default=0) >= 1:  # type: ignore[operator, type-var]
                raise InputError(
                    f"momentum: {self.momentum} is not below 1, so steps would grow; give a number such as 0.9"
                )
            object.__setattr__(self, "options", {**self.options, "momentum": self.momentum})
        super().__post_init__()

    @property
    def plain(self) -> bool:
        return self.solver is optax.sgd and self.clip is None and not self.options


def solver_name(solver: Callable[..., Any]) -> str:
    """A solver as it is written, as optax.adam."""
    function = solver.func if isinstance(solver, partial) else solver
    name = getattr(function, "__name__", type(function).__name__)
    module = getattr(function, "__module__", "")
    if isinstance(solver, partial):
        bound = [*map(repr, solver.args), *(f"{k}={v!r}" for k, v in solver.keywords.items())]
        name += f"({', '.join(bound)})"
    return f"{module.split('.')[0]}.{name}" if module else name


def solver_of(name: str, where: str = "solver") -> Callable[..., optax.GradientTransformation]:
    """The Optax solver of that name, or one's own at ``package.module:attribute``."""
    solver = named_function(name, where) if ":" in name else getattr(optax, name, None)
    if not callable(solver):
        raise InputError(f"{where} {name!r} is not one of Optax's; use sgd, adam, adamw, …, or package.module:solver")
    found: Callable[..., optax.GradientTransformation] = solver
    return found


def _work(
    transformation: Callable[[Hyper], optax.GradientTransformation], steps: int
) -> Callable[[Stepper, Params, State, Hyper, Any], tuple[Params, State, Any]]:
    """The contribution is summed up by itself: the difference of two nearly equal models would lose digits."""

    def work(stepper: Stepper, sent: Params, kept: State, hyper: Hyper, state: Any) -> tuple[Params, State, Any]:
        solver = transformation(hyper)

        def step(k: Any, carry: tuple[Params, Any, Any]) -> tuple[Params, Any, Any]:
            moved, memory, state = carry
            here = jax.tree.map(jnp.add, sent, moved)
            gradient, state = stepper(here, k, state)
            update, memory = solver.update(gradient, memory, here)
            return jax.tree.map(lambda m, u: m + u.astype(m.dtype), moved, update), memory, state

        memory = solver.init(sent)
        if steps == 1 and STEPS not in hyper:
            gradient, state = stepper(sent, 0, state)
            update, _ = solver.update(gradient, memory, sent)
            return jax.tree.map(lambda s, u: u.astype(s.dtype), sent, update), kept, state
        still = jax.tree.map(jnp.zeros_like, sent)
        moved, _, state = jax.lax.fori_loop(0, hyper.get(STEPS, steps), step, (still, memory, state))
        return moved, kept, state

    return work
