"""A gradient step of a convolutional network in several forms beside PyTorch, on this machine's processor.

    torch            PyTorch, as one writes it
    compiled         the same module by fedtempo.problems.torch.compiled
    torchax          the same by torchax alone
    fedtempo         the network in fedtempo's own layers

Each form takes `--steps` steps of SGD on a batch in one call, as the engine does; forms take turns, and the ratios are
of their fastest calls. Run it with torchax installed: PYTHONPATH=src python benchmarks/convolution.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import nn
from torch.nn import functional

from fedtempo.problems.models import convolution as own
from fedtempo.problems.models.precision import product
from fedtempo.problems.torch import operators
from fedtempo.problems.torch.compiled import compiled

RATE = 0.01
Form = Callable[[], float]


def network(channels: int, kernel: int) -> nn.Module:
    """Two convolutions that keep the size, each followed by pooling, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, channels, kernel, padding=kernel // 2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, padding=kernel // 2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * channels, 10),
    )  # fmt: skip


def loss_of(module: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module(batch[0]), batch[1])


def looped(loss: Callable[[Any, Any], jax.Array], params: Any, batch: Any, steps: int) -> Form:
    """Steps of SGD in one program of JAX."""

    @jax.jit
    def run(params: Any, batch: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(carry, batch)
            return jax.tree.map(lambda p, g: p - RATE * g, carry, gradient), value

        return lax.scan(step, params, None, length=steps)  # with the parameters: else the last gradient is left out

    return lambda: float(jax.block_until_ready(run(params, batch))[1][-1])


def by_torch(module: nn.Module, batch: Any, steps: int) -> Form:
    tensors = torch.tensor(batch[0]), torch.tensor(batch[1], dtype=torch.int64)
    start = {name: each.clone() for name, each in module.state_dict().items()}

    def run() -> float:
        module.load_state_dict(start)
        optimiser = torch.optim.SGD(module.parameters(), RATE)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = loss_of(module, tensors)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return float(loss.detach())

    return run


def by_fedtempo(module: nn.Module, batch: Any, steps: int) -> Form:
    arrays = [jnp.asarray(each.detach().numpy()) for each in module.parameters()]
    params = [arrays[0].transpose(2, 3, 1, 0), arrays[1], arrays[2].transpose(2, 3, 1, 0), arrays[3], *arrays[4:]]

    def loss(params: Any, batch: Any) -> jax.Array:
        x = batch[0]
        for k in (0, 2):
            x = jax.nn.relu(own.max_pool(own.convolve(x, params[k], same=True) + params[k + 1]))
        z = product(own.flat(x), params[4].T, 0) + params[5][:, None]
        return jax.nn.logsumexp(z, axis=0).mean() - jnp.take_along_axis(z, batch[1][None], 0).mean()

    return looped(loss, params, (jnp.asarray(batch[0].transpose(0, 2, 3, 1)), jnp.asarray(batch[1])), steps)


def by_compiled(module: nn.Module, batch: Any, steps: int, plain: bool = False) -> Form:
    """With our operators, or `plain` with torchax's convolution and pooling."""
    env = operators.environment()
    if plain:
        registry = import_module("torchax.ops.ops_registry")
        theirs = registry.all_aten_ops | registry.all_torch_functions
        ours = {each: env._ops[each] for each in (torch.ops.aten.convolution, functional.max_pool2d)}
        env._ops.update({each: theirs[each] for each in ours})
    try:
        function = compiled(module, loss_of, {}, (batch[0][:2], batch[1][:2]))
        params = {name: jnp.asarray(each.detach().numpy()) for name, each in module.named_parameters()}
        form = looped(lambda params, batch: function.loss(params, batch, None, {})[0], params, batch, steps)
        form()
    finally:
        if plain:
            env._ops.update(ours)
    return form


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--kernel", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--skip", nargs="*", default=[])
    given = parser.parse_args()
    generator = np.random.default_rng(0)
    torch.manual_seed(0)
    module = network(given.channels, given.kernel)
    batch = (
        generator.normal(size=(given.rows, 3, 32, 32)).astype(np.float32),
        generator.integers(0, 10, given.rows).astype(np.int32),
    )
    makers: dict[str, Callable[[], Form]] = {
        "torch": lambda: by_torch(module, batch, given.steps),
        "compiled": lambda: by_compiled(module, batch, given.steps),
        "fedtempo": lambda: by_fedtempo(module, batch, given.steps),
        "torchax": lambda: by_compiled(module, batch, given.steps, plain=True),
    }
    forms = {name: make() for name, make in makers.items() if name not in given.skip}
    answers = {name: form() for name, form in forms.items()}
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(given.repeats):
        for name, form in forms.items():
            start = time.perf_counter()
            form()
            times[name].append((time.perf_counter() - start) / given.steps * 1e3)
    print(f"{given.rows} images of 32 × 32 × 3, {given.kernel} × {given.kernel}, {given.channels} channels")
    print(f"{'form':12} {'ms a step':>10} {'median':>10} {'of torch':>10} {'loss after':>12}")
    for name, found in times.items():
        ratio = min(times["torch"]) / min(found)
        print(f"{name:12} {min(found):10.1f} {np.median(found):10.1f} {ratio:10.2f} {answers[name]:12.6f}")


if __name__ == "__main__":
    main()
