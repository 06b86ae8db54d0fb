"""The networks in PyTorch, from the same parameters: what they answer, kept for the tests in tests/models_by_torch.npz.

    logits, loss     of a few rows, in float64
    gradient         of the loss, by leaf: its norm, its products with fixed vectors; whole where the leaf is small

Run it after a change of the networks or of how they start: PYTHONPATH=src python benchmarks/models_by_torch.py
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedtempo.problems.models import CNNS, Classifier, cnn, lstm

MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
SHAPES = {"authors": (32, 32, 3), "fedavg-cifar": (32, 32, 3), "fedavg-mnist": (28, 28, 1)}
NAMES = (*SHAPES, "lstm")
CHARACTERS, LENGTH = 80, 80
WHOLE = 700
"""Leaves of at most that many numbers are kept whole."""
Tree = Any


def model(name: str, compute: str = "float32") -> Classifier:
    """Ours."""
    if name == "lstm":
        return lstm(CHARACTERS, compute=compute)
    channels = SHAPES[name][2]
    return cnn(name, SHAPES[name], mean=MEAN[:channels], deviation=DEVIATION[:channels], compute=compute)


def batch(name: str, rows: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Random images or texts, and labels."""
    generator = np.random.default_rng(seed)
    if name == "lstm":
        x = generator.integers(0, CHARACTERS, (rows, LENGTH), dtype=np.uint8)
        return x, generator.integers(0, CHARACTERS, rows, dtype=np.int32)
    x = generator.integers(0, 256, (rows, *SHAPES[name]), dtype=np.uint8)
    return x, generator.integers(0, 10, rows, dtype=np.int32)


class Recurrent(nn.Module):
    """The LSTM as one writes it in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 8)
        self.lstm = nn.LSTM(8, 100, 2, batch_first=True)
        self.output = nn.Linear(100, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.output(self.lstm(self.embedding(x))[0][:, -1])
        return found


def network(name: str) -> nn.Module:
    """Theirs."""
    if name == "lstm":
        return Recurrent()
    layout, (side, _, channels) = CNNS[name], SHAPES[name]
    side = layout.crop or side
    layers: list[tuple[str, nn.Module]] = []
    for k, (out, pooled) in enumerate(zip(layout.channels, layout.pooled, strict=True)):
        layers.append((f"conv{k}", nn.Conv2d(channels, out, layout.kernel, padding="same" if layout.same else 0)))
        side, channels = side if layout.same else side - layout.kernel + 1, out
        if pooled:
            layers.append((f"pool{k}", nn.MaxPool2d(2)))
            side //= 2
        layers.append((f"bend{k}", nn.ReLU()))
    layers.append(("flat", nn.Flatten()))
    sizes = [side * side * channels, *layout.hidden, 10]
    for k, (before, after) in enumerate(pairwise(sizes)):
        layers += [(f"less{k}", nn.ReLU())] if k else []
        layers.append((f"dense{k}", nn.Linear(before, after)))
    found = nn.Sequential()
    for label, layer in layers:
        found.add_module(label, layer)
    return found


def inputs(name: str, x: NDArray[np.uint8], kind: torch.dtype) -> Tensor:
    """Bytes as PyTorch's network takes them."""
    if name == "lstm":
        return torch.tensor(x, dtype=torch.int64)
    crop, channels = CNNS[name].crop, SHAPES[name][2]
    if crop:
        top, left = (x.shape[1] - crop) // 2, (x.shape[2] - crop) // 2
        x = x[:, top : top + crop, left : left + crop]
    scaled = torch.tensor(x, dtype=kind) / 255 - torch.tensor(MEAN[:channels], dtype=kind)
    return (scaled / torch.tensor(DEVIATION[:channels], dtype=kind)).permute(0, 3, 1, 2).contiguous()


def state(name: str, params: Tree) -> dict[str, Tensor]:
    """The network's tensors made of those of fedtempo's parameters."""
    if name == "lstm":
        found = {"embedding.weight": params["embedding"]}
        for k in (0, 1):
            layer = params[f"lstm{k}"]
            found |= {f"lstm.weight_ih_l{k}": layer["input"].T, f"lstm.weight_hh_l{k}": layer["hidden"].T}
            found |= {f"lstm.bias_ih_l{k}": layer["bias"], f"lstm.bias_hh_l{k}": torch.zeros_like(layer["bias"])}
        return found | {"output.weight": params["output"]["weights"].T, "output.bias": params["output"]["bias"]}
    found = {}
    for label, layer in params.items():
        weights = layer["weights"]
        if label.startswith("conv"):
            weights = weights.permute(3, 2, 0, 1)
        else:
            weights = weights.T
        found |= {f"{label}.weight": weights, f"{label}.bias": layer["bias"]}
    return found


def answers(name: str, params: Tree, x: NDArray[np.uint8], y: NDArray[np.int32]) -> tuple[Any, float, Tree]:
    """Logits [rows, classes], loss and gradient by PyTorch in float64."""
    leaves = jax.tree.map(lambda leaf: torch.tensor(np.asarray(leaf), dtype=torch.float64, requires_grad=True), params)
    logits = functional_call(network(name).double(), state(name, leaves), (inputs(name, x, torch.float64),))
    loss = cross_entropy(logits, torch.tensor(y, dtype=torch.int64))
    loss.backward()  # type: ignore[no-untyped-call]
    return logits.detach().numpy(), loss.item(), jax.tree.map(lambda leaf: leaf.grad.numpy(), leaves)


def digest(leaf: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Its norm and its products with sin(k), sin(2k), sin(3k), k = 1, 2, ..."""
    flat = np.asarray(leaf, np.float64).ravel()
    places = np.arange(1, len(flat) + 1)
    return np.array([np.linalg.norm(flat), *(flat @ np.sin(j * places) for j in (1, 2, 3))])


def main() -> None:
    found: dict[str, Any] = {}
    for name in NAMES:
        x, y = batch(name, 4)
        logits, loss, gradient = answers(name, model(name).init(jax.random.key(0)), x, y)
        found |= {f"{name}/x": x, f"{name}/y": y, f"{name}/logits": logits, f"{name}/loss": loss}
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            place = f"{name}/gradient/{jax.tree_util.keystr(path, simple=True, separator='.')}"
            found[f"{place}/digest"] = digest(leaf)
            if leaf.size <= WHOLE:
                found[f"{place}/whole"] = leaf
    path = Path(__file__).parent.parent / "tests" / "models_by_torch.npz"
    np.savez_compressed(path, **found)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
