"""A federated problem made of a PyTorch module, a loss and data sets, all as they are.

    problem = ft.torch.problem(model=Net(), loss=F.cross_entropy, data=[client_0, client_1], test=test_set,
                               metrics={"accuracy": accuracy})

A batch (x, y) goes through the module as loss(model(x), y), with any number of inputs before the target; a dictionary
as loss(model(**inputs), target), where `target` names the target. `forward(model, batch)` replaces the module's call.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtempo.errors import InputError
from fedtempo.problems.batch_mean import ROWS, check_repeated
from fedtempo.problems.forms import LossForm
from fedtempo.problems.problem import Problem, Weighting, _bounds
from fedtempo.problems.rows import Tree, check_finite, gather, like
from fedtempo.problems.torch.data import Collate, Items, first_line, gathered
from fedtempo.problems.torch.module import FlatModule, as_array, check_kept_in_python, python_state, seeded
from fedtempo.training.batches import init_key

Buffers = Literal["average", "client", "frozen"]
BUFFERS: tuple[Buffers, ...] = ("average", "client", "frozen")
Of = Callable[[Any, Any], Any]
"""(output, target) → a scalar, the mean over the batch."""

_TARGETS = ("labels", "label", "target", "targets", "y")


class TorchProblem(Problem):
    """A problem whose loss is a PyTorch module's.

    It is a `Problem` in all that the clock, the weights and the histories ask for. Its model is run by PyTorch
    (``engine="torch"``), or by the compiled engines where it can be made a JAX function.

    `model` is a module, or a function that makes one: then each seed of a study starts from another. `loss` and
    `metrics` take (output, target) and return the mean over the batch. `data` is one data set per client, or one data
    set with the row numbers of each client in `parts`; `test` is one more. `forward(model, batch)` replaces the
    module's call, `target` names the target in batches that are dictionaries. `buffers` says what becomes of running
    statistics: "average", "client" or "frozen". `collate` and ``stack=False`` are for items that cannot be stacked.
    `importance` is "uniform", "rows" or one value per client, `device` the CUDA device if there is one, else the
    processor. docs/pytorch.md is the guide.

    Example:
        >>> import torch
        >>> data = [(torch.full((8, 3), float(i)), torch.arange(8) % 2) for i in range(3)]
        >>> problem = ft.torch.problem(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, data)
        >>> isinstance(problem, ft.torch.TorchProblem), problem.num_clients, problem.num_parameters
        (True, 3, 8)
        >>> print(*ft.weights(ft.FedFix(1), ft.FixedTimes([3, 2, 1])))  # clocks and weights need no module
        1 2/3 1/3
    """

    framework = "torch"
    _NOT_SENT = (*Problem._NOT_SENT, "state")

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Of,
        data: Any,
        *,
        test: Any = None,
        metrics: Mapping[str, Of] | None = None,
        parts: Sequence[Any] | None = None,
        importance: Weighting = "uniform",
        forward: Callable[[nn.Module, Any], Any] | None = None,
        target: str | None = None,
        buffers: Buffers = "average",
        collate: Collate | None = None,
        stack: bool | None = None,
        device: str | torch.device | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        if buffers not in BUFFERS:
            raise InputError(f"buffers: {buffers!r} is not known; use one of {', '.join(BUFFERS)}")
        self._given = model
        self.device = _device(device)
        self.buffers = buffers
        self._loss_of, self._metrics_of = loss, dict(metrics or {})
        self._forward, self._target = forward, target
        rows = gathered(data, parts, test, collate, stack)
        self.items: Items | None = rows.items
        self._kinds = rows.kinds
        self.metrics = dict(self._metrics_of)
        self.name, self.description = name or _name(self.template), description
        self._arguments, self._pooled = None, False
        self.rows, sizes = gather(rows.clients)
        self.offsets = _bounds(sizes)
        check_finite(self.rows, self.offsets)
        self.test = None if rows.test is None else like(rows.test, self.rows, "test")
        self.test_offsets = None
        if self.test is not None:
            check_finite(self.test, None)
        self._weigh(importance, sizes)
        self._complete()
        self._check()

    def _complete(self) -> None:
        averaged = self.buffers != "frozen" and any(True for _ in self.template.buffers())
        self.state = self._initial_buffers if averaged else None
        self.form = LossForm(self.loss, keyed=True, stateful=averaged)

    @cached_property
    def template(self) -> nn.Module:
        """The module that others are copies of, or the one that the function makes under the first key."""
        if isinstance(self._given, nn.Module):
            return self._given
        return self._made(0)

    def _made(self, number: int) -> nn.Module:
        """A fresh module of the user's function."""
        assert callable(self._given)
        with seeded(self.device):
            torch.manual_seed(number)
            made: object = self._given()
        if not isinstance(made, nn.Module):
            raise InputError(
                f"model: {self._given!r} makes a {type(made).__name__}; give a torch.nn.Module, or a function without "
                "arguments that makes one"
            )
        return made

    def module_of(self, key: jax.Array) -> nn.Module:
        """The initial module under a key: the given one, or one that the user's function makes."""
        if isinstance(self._given, nn.Module):
            return self._given
        words = [int(word) for word in np.asarray(jax.random.key_data(key))]
        return self._made((words[0] << 32 | words[1]) & (2**63 - 1))

    def init(self, key: jax.Array) -> dict[str, NDArray[Any]]:
        """The trained parameters under a key."""
        return {n: as_array(p) for n, p in self.module_of(key).named_parameters() if p.requires_grad}

    @cached_property
    def parameter_shapes(self) -> Tree:
        return _shapes({n: p for n, p in self.template.named_parameters() if p.requires_grad})

    def _initial_buffers(self, key: jax.Array) -> dict[str, NDArray[Any]]:
        return {name: as_array(b) for name, b in self.module_of(key).named_buffers()}

    @cached_property
    def state_shapes(self) -> Tree:
        if self.state is None:
            return ()
        return _shapes(dict(self.template.named_buffers()))

    @property
    def module_names(self) -> dict[str, str]:
        module = self.template
        first: dict[int, str] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            first.setdefault(id(tensor), name)
        tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(
            module.named_buffers(remove_duplicate=False)
        )
        return {name: first[id(tensors[name])] for name in module.state_dict() if name in tensors}

    def fixed_arrays(self, seeds: Sequence[int]) -> dict[str, tuple[bool, NDArray[Any]]]:
        kept = {*self.parameter_shapes, *self.state_shapes}
        names = [name for name in dict.fromkeys(self.module_names.values()) if name not in kept]
        if isinstance(self._given, nn.Module):
            held = self._given.state_dict()
            return {name: (False, as_array(held[name])) for name in names}
        made = [self.module_of(init_key(seed)).state_dict() for seed in seeds] if names else []
        return {name: (True, np.stack([as_array(held[name]) for held in made])) for name in names}

    # -- what PyTorch computes

    def batch_of(self, rows: Tree) -> Any:
        """Rows, tensors on the device already, as the module takes them; numbers of items as these items."""
        if self.items is None:
            return rows
        return _moved(self.items.batch(rows.tolist()), self.device)

    def tensors(self, rows: Tree, *, double: bool) -> Any:
        """Rows as tensors on the device, in the types that the user gave; real numbers as the module computes."""
        if self.items is not None:
            return torch.from_numpy(np.array(rows))
        real = torch.float64 if double else torch.float32

        def one(name: str, leaf: NDArray[Any]) -> Tensor:
            found = torch.from_numpy(np.array(leaf))
            kind = self._kinds.get(name, found.dtype)
            return found.to(device=self.device, dtype=real if found.is_floating_point() else kind)

        if isinstance(rows, Mapping):
            return {name: one(name, leaf) for name, leaf in rows.items()}
        return tuple(one(str(k), leaf) for k, leaf in enumerate(rows))

    def output(self, module: nn.Module, batch: Any) -> tuple[Any, Any]:
        """What the module makes of a batch, and the target."""
        if isinstance(batch, Mapping):
            target = self._target or next((name for name in _TARGETS if name in batch), None)
            if target is not None and target not in batch:
                raise InputError(f"target: batches have no {target!r}; they have {', '.join(map(str, batch))}")
            if self._forward is not None:
                return self._forward(module, batch), batch if target is None else batch[target]
            if target is None:
                raise InputError(f"target: name which of {', '.join(map(str, batch))} is the target")
            return module(**{name: value for name, value in batch.items() if name != target}), batch[target]
        if isinstance(batch, Tensor):
            batch = (batch,)
        target = batch[-1]
        if self._forward is not None:
            return self._forward(module, batch), target
        return module(*batch[: max(1, len(batch) - 1)]), target

    def loss_of(self, module: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch; what the module raises, in one line."""
        try:
            return self.bare_loss_of(module, batch)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the module fails on a batch of {_described(batch)}: {first_line(error)}") from error

    def bare_loss_of(self, module: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        found: Tensor = self._loss_of(*self.output(module, batch))
        return found

    def measures_of(self, module: nn.Module, batch: Any) -> dict[str, Any]:
        """The loss and every metric of a batch."""
        output, target = self.output(module, batch)
        metrics = {name: metric(output, target) for name, metric in self._metrics_of.items()}
        return {"loss": self._loss_of(output, target), **metrics}

    def loss(self, params: Any, batch: Any, key: Any, state: Any) -> Any:
        raise InputError(f"problem: {self.name} is run by PyTorch; use engine='torch' here")

    # -- what is refused

    def check_device(self) -> None:
        """Refuse PyTorch's CUDA where torchax has been imported: its backward passes fail from then on."""
        if self.device.type == "cuda" and "torchax" in sys.modules:
            raise InputError(
                "device: PyTorch cannot train on CUDA in a process in which torchax has been imported, as a compiled "
                "engine does; start another process for engine='torch', or give device='cpu'"
            )

    def _check(self) -> None:
        """Try the module on a few rows, as jobs will: one line says what does not do."""
        self.check_device()
        if not any(p.requires_grad for p in self.template.parameters()):
            raise InputError(f"model: {self.name} has no trainable parameters (requires_grad=True); unfreeze some")
        flat = FlatModule(self.template, self.device)
        rows = min(ROWS, int(self.sizes[0]))
        few = self.batch_of(_first(self.tensors(self.rows, double=False), rows))
        with seeded(self.device):
            torch.manual_seed(0)
            before = python_state(flat.module)
            flat.collect_gradients()
            found: Any = self.loss_of(flat.module, few)
            if not isinstance(found, Tensor) or found.dim() != 0:
                what = (
                    f"has shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"is a {type(found).__name__}"
                )
                raise InputError(f"loss: it {what}, not a scalar; return the mean over the batch, as .mean() does")
            if not found.requires_grad:
                raise InputError(
                    "loss: it has no gradient; compute it from the module's output with torch operations, without "
                    "no_grad, detach or item"
                )
            if not math.isfinite(found.item()):
                raise InputError(
                    f"loss: it is {found.item()} for the initial model on the first rows; check the data's scale, the "
                    "targets and the initial weights"
                )
            try:
                found.backward()
            except Exception as error:
                raise InputError(f"loss: its backward pass fails: {first_line(error)}") from error
            for name, gradient in flat.by_name(flat.gradient).items():
                if not bool(torch.isfinite(gradient).all()):
                    raise InputError(
                        f"loss: its gradient by {name} is not finite for the initial model on the first rows; look "
                        "for an operation without a gradient there, such as a square root at 0"
                    )
            check_kept_in_python(flat.module, before)
            flat.module.eval()
            with torch.no_grad():
                for name, value in self.measures_of(flat.module, few).items():
                    single = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, (int, float))
                    if not single:
                        raise InputError(f"metric {name!r}: it is not a single number; return the mean over the batch")
                check_repeated(
                    lambda times: float(self.bare_loss_of(flat.module, _repeated(few, times))), rows, "reduction='mean'"
                )


problem = TorchProblem
"""A federated problem of a PyTorch module: `TorchProblem`, under the name by which it is called.

Example:
    >>> import torch
    >>> data = [(torch.full((8, 3), float(i)), torch.arange(8) % 2) for i in range(3)]  # (x, y) of each client
    >>> problem = ft.torch.problem(
    ...     model=lambda: torch.nn.Linear(3, 2), loss=torch.nn.functional.cross_entropy, data=data
    ... )
    >>> problem
    TorchProblem(Linear: 3 clients, 24 rows, 8 parameters)
    >>> history = ft.simulate(problem, ft.FedFix(1), ft.FixedTimes([3, 2, 1]), until=6, points=2)
    >>> {name: tuple(tensor.shape) for name, tensor in history.model().state_dict().items()}
    {'weight': (2, 3), 'bias': (2,)}
"""


def _first(rows: Any, count: int) -> Any:
    if isinstance(rows, Mapping):
        return {name: value[:count] for name, value in rows.items()}
    return rows[:count] if isinstance(rows, Tensor) else tuple(value[:count] for value in rows)


def _repeated(batch: Any, times: int) -> Any:
    """A batch's rows one after the other, so many times."""
    return jax.tree.map(lambda x: torch.cat([x] * times) if isinstance(x, Tensor) else x, batch)


def _device(given: str | torch.device | None) -> torch.device:
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(given)
        torch.zeros(1, device=found)
    except Exception as error:
        raise InputError(
            f"device: {given!r} cannot be used ({first_line(error)}); give 'cpu', or leave it out"
        ) from error
    return found


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    return type(batch)(_moved(value, device) for value in batch) if isinstance(batch, (tuple, list)) else batch


def _shapes(named: Mapping[str, Tensor]) -> dict[str, Any]:
    return {n: jax.ShapeDtypeStruct(tuple(x.shape), _kind(x)) for n, x in named.items()}  # type: ignore[no-untyped-call]


def _kind(p: Tensor) -> np.dtype[Any]:
    """Its type as JAX keeps it: whole numbers in 32 bits."""
    if p.dtype == torch.int64:
        return np.dtype(np.int32)
    return np.dtype(np.float32) if p.dtype == torch.bfloat16 else torch.zeros(0, dtype=p.dtype).numpy().dtype


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _described(batch: Any) -> str:
    leaves = jax.tree.leaves(batch)
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in leaves if isinstance(x, Tensor))
