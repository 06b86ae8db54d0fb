"""K steps of any of PyTorch's optimizers as a client's work, for the PyTorch engine.

    ft.torch.LocalTorch(torch.optim.AdamW, lr=1e-3, steps=5, batch_size=64, options={"weight_decay": [0, 0.01]})

The optimizer is made anew for each job: nothing carries over, as with `LocalOptax`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedtempo.errors import InputError
from fedtempo.grid import RATE, Axis, Value, counts, is_auto, numbers
from fedtempo.training.batches import DRAWS, Draw
from fedtempo.training.solvers import (
    _TAKEN,
    Count,
    Gradient,
    Hyper,
    Job,
    LocalRule,
    Number,
    Params,
    Rate,
    State,
    solver_name,
)


@dataclass(frozen=True)
class LocalTorch(LocalRule):
    """K steps of an optimizer of PyTorch's: `optimizer(parameters, lr=…, **options)` makes it anew for each job.

    Any number may be a list, and is then a dimension of the study. `batch_size` None: all rows of the client.

    Example:
        >>> import torch
        >>> local = ft.torch.LocalTorch(torch.optim.Adam, lr=[0.01, 0.1], steps=2, options={"weight_decay": 0.01})
        >>> data = [(torch.full((8, 3), float(i)), torch.arange(8) % 2) for i in range(3)]
        >>> problem = ft.torch.problem(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, data)
        >>> history = ft.simulate(problem, ft.FedFix(1), ft.FixedTimes([3, 2, 1]), until=6, points=2, local=local)
        >>> dict(history.dataset.loss.sizes)
        {'scheme': 1, 'weights': 1, 'local_lr': 2, 'seed': 1, 'time': 2}
    """

    framework = "torch"
    optimizer: Callable[..., Any]
    steps: int | tuple[int, ...] = field(default=1, kw_only=True)
    lr: Rate = field(default=0.1, kw_only=True)
    batch_size: Count = field(default=32, kw_only=True)
    """None: all rows of the client in every step."""
    clip: Number | None = field(default=None, kw_only=True)
    """Gradients longer than this are shortened to it."""
    draw: Draw = field(default="uniform", kw_only=True)
    options: Mapping[str, Number] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if is_auto(self.lr):
            replace(self, lr=0.1)  # checks the rest
            return
        if not callable(self.optimizer):
            raise InputError(f"optimizer: {self.optimizer!r} cannot be called; give one such as torch.optim.AdamW")
        if self.draw not in DRAWS:
            raise InputError(f"draw: {self.draw!r} is not known; use one of {', '.join(DRAWS)}")
        names = [axis.name for axis in self.axes]
        for name in self.options:
            if name in _TAKEN or names.count(name) > 1:
                raise InputError(f"options: {name!r} is an argument of its own; give it outside options")
        try:
            import torch

            self.made([torch.zeros(1, requires_grad=True)], {axis.name: axis.values[0] for axis in self.axes})
        except (TypeError, ValueError) as error:
            raise InputError(f"optimizer: {self.label} cannot be made ({error}); check lr and options") from None

    @property
    def label(self) -> str:
        """The optimizer as it is written."""
        return solver_name(self.optimizer)

    @property
    def axes(self) -> tuple[Axis, ...]:
        clip = () if self.clip is None else (numbers("clip", self.clip),)
        others = tuple(numbers(name, value, reaches=True) for name, value in self.options.items())
        shape = (counts("local_steps", self.steps), counts("batch_size", self.batch_size, none="all rows"))
        return (*shape, numbers(RATE, self.lr), *clip, *others)

    def made(self, parameters: Any, hyper: Mapping[str, Any]) -> Any:
        """The optimizer with these numbers."""
        return self.optimizer(parameters, lr=hyper[RATE], **{name: hyper[name] for name in self.options})

    def job(self, shape: Mapping[str, Value]) -> Job:
        steps, batch_size = shape["local_steps"], shape["batch_size"]
        assert isinstance(steps, int)
        assert batch_size is None or isinstance(batch_size, int)
        return Job(steps, batch_size, self.draw, _shape_of)

    def spec(self) -> dict[str, object]:
        return {
            "solver": self.label,
            "draw": self.draw,
            **{axis.name: list(axis.values) if axis.listed else axis.values[0] for axis in self.axes},
        }


def _shape_of(gradient: Gradient, sent: Params, state: State, hyper: Hyper) -> tuple[Params, State]:
    """Something of a contribution's shape: bytes are counted by it. The work itself is the PyTorch engine's."""
    return sent, state
