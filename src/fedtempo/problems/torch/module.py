"""A copy of a PyTorch module whose trained numbers lie in one flat vector for each type: a model is then a vector.

    θ           the parameters with requires_grad, tied ones once, by the names of `named_parameters()`
    buffers     BatchNorm's statistics and the like: part of a model, not trained
    the rest    frozen parameters: they stay as they are

To read a model in is one copy, a step of SGD one addition, however many layers there are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtempo.errors import InputError

Arrays = dict[str, NDArray[Any]]


class Values(NamedTuple):
    """A model: what is trained, flat, one vector a type, and the buffers."""

    trained: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]

    def clone(self) -> Values:
        """A copy that nobody else writes to."""
        return Values(tuple(x.clone() for x in self.trained), tuple(x.clone() for x in self.buffers))


class FlatModule:
    """A module of one's own, to run models in. Not to be shared by threads."""

    def __init__(self, module: nn.Module, device: torch.device, *, double: bool = False) -> None:
        self.module = copy.deepcopy(module).to(device)
        if double:
            self.module = self.module.double()
        self.device = device
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.names = tuple(named)
        self.parameters = tuple(named.values())
        self.buffer_names = tuple(name for name, _ in self.module.named_buffers())
        self.buffers: tuple[Tensor, ...] = tuple(b for _, b in self.module.named_buffers())
        self._place: dict[str, tuple[int, int, int]] = {}
        self.trained = self._flattened()
        self.gradient = tuple(torch.zeros_like(flat) for flat in self.trained)
        self._own = self._views(self.gradient)

    def _flattened(self) -> tuple[Tensor, ...]:
        """The parameters moved into flat vectors, of which they are views from now on."""
        kinds = list(dict.fromkeys(p.dtype for p in self.parameters))
        sizes = [0] * len(kinds)
        for name, p in zip(self.names, self.parameters, strict=True):
            k = kinds.index(p.dtype)
            self._place[name] = (k, sizes[k], sizes[k] + p.numel())
            sizes[k] += p.numel()
        flats = tuple(torch.empty(n, dtype=kind, device=self.device) for n, kind in zip(sizes, kinds, strict=True))
        for p, view in zip(self.parameters, self._views(flats), strict=True):
            view.copy_(p.detach())
            p.data = view
        return flats

    def _views(self, flats: tuple[Tensor, ...]) -> list[Tensor]:
        found = []
        for name, p in zip(self.names, self.parameters, strict=True):
            k, begin, end = self._place[name]
            found.append(flats[k][begin:end].view(p.shape))
        return found

    def by_name(self, flats: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Views of flat vectors, by parameter."""
        return dict(zip(self.names, self._views(flats), strict=True))

    def flat(self, arrays: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Flat vectors of arrays by parameter."""
        flats = tuple(torch.empty_like(own) for own in self.trained)
        for name, view in self.by_name(flats).items():
            view.copy_(as_tensor(arrays[name]))
        return flats

    def collect_gradients(self) -> None:
        """Let the next backward pass write into `gradient`, from zero."""
        for flat in self.gradient:
            flat.zero_()
        for p, view in zip(self.parameters, self._own, strict=True):
            p.grad = view

    def put(self, values: Values) -> None:
        """Make the module this model."""
        with torch.no_grad():
            for own, given in zip(self.trained, values.trained, strict=True):
                own.copy_(given)
            self.put_buffers(values.buffers)

    def put_buffers(self, buffers: tuple[Tensor, ...]) -> None:
        """Its buffers alone."""
        with torch.no_grad():
            for own, given in zip(self.buffers, buffers, strict=True):
                own.copy_(given)

    def values(self) -> Values:
        """The model that the module is."""
        return Values(self.trained, self.buffers).clone()


def as_tensor(array: Any) -> Tensor:
    """An array as a tensor of its own memory."""
    return torch.from_numpy(np.array(array))


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as an array of its own memory; bfloat16, which NumPy does not have, as float32."""
    found = tensor.detach().to("cpu")
    if found.dtype == torch.bfloat16:
        found = found.float()
    return np.array(found.numpy())


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Inside, PyTorch's generators may be seeded; the user's numbers go on as if nothing had been drawn."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def seed_generator(number: int, device: torch.device) -> None:
    """Seed the generator that modules draw from; `torch.manual_seed` does the same for all devices, and slowly."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def check_kept_in_python(module: nn.Module, before: Mapping[str, dict[str, Any]]) -> None:
    """Refuse a module that has changed its Python attributes since `python_state` was taken."""
    for name, now in python_state(module).items():
        for key, value in now.items():
            was = before.get(name, {}).get(key, _NOTHING)
            if not _same(was, value):
                where = f"{name}.{key}" if name else key
                raise InputError(
                    f"model: {type(module).__name__} keeps {where!r} in a Python attribute, which changes as it runs "
                    f"({_short(was)} → {_short(value)}): jobs would share it. Make it a buffer, by "
                    f"self.register_buffer({key!r}, torch.tensor(…))"
                )


_NOTHING = object()
_OWN = frozenset(vars(nn.Module()))


def python_state(module: nn.Module) -> dict[str, dict[str, Any]]:
    """The plain attributes of a module and its parts, copied."""
    found: dict[str, dict[str, Any]] = {}
    for name, part in module.named_modules():
        kept = {key: value for key, value in vars(part).items() if key not in _OWN and not key.startswith("_flat")}
        found[name] = {key: _copied(value) for key, value in kept.items()}
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (int, float, str, bool, bytes, type(None), complex)):
        return value
    if isinstance(value, (list, tuple, set, dict)):
        try:
            return copy.deepcopy(value)
        except Exception:  # whatever it holds: it is not looked into
            return _NOTHING
    return _NOTHING


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    try:
        return bool(a == b)
    except Exception:  # a comparison that has no answer, as of arrays in a list
        return True


def _short(value: Any) -> str:
    text = "nothing" if value is _NOTHING else " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "…"
