"""One step of training of each network, next to PyTorch: the same answers, and how long it takes.

    same       loss and gradient in float64, of the same parameters and rows: the largest difference, by leaf
    speed      forwards, backwards, and the update by SGD, for a batch of 64: this library's inside one compiled loop of
               steps, as the engines run it, for one run and for six side by side; PyTorch's as one writes it

Every repeat runs every contestant once, in turn, after a round that does not count; the median counts. PyTorch's time
depends on how memory comes: glibc hands large blocks back after every step and faults them in again, unless told
otherwise by MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RUNS, ROWS, LR = 6, 64, 0.1
Lap = Callable[[], None]


def apart(one: Any, other: Any) -> float:
    """The largest difference of two trees, leaf by leaf of the leaf's largest entry."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - b).max() / np.abs(b).max()) for a, b in pairs)


def same(name: str) -> None:
    from models_by_torch import answers, batch, model

    ours, (x, y) = model(name), batch(name, 4, seed=1)
    params = ours.init(jax.random.key(1))
    _, loss, gradient = answers(name, params, x, y)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        found = jax.jit(jax.value_and_grad(ours.loss))(wide, (jnp.asarray(x), jnp.asarray(y)))
    far = apart(found, (np.asarray(loss), gradient))
    print(f"{name}: loss and gradient apart from PyTorch's by {far:.1e}", flush=True)
    if far > 1e-10:
        raise SystemExit("the two do not compute the same thing")


def ours(name: str, steps: int, runs: int, compute: str) -> Lap:
    """Steps inside one compiled loop; runs along the parameters' last axis."""
    from models_by_torch import batch, model

    found = model(name, compute)
    x, y = map(jnp.asarray, batch(name, ROWS))
    gradient = jax.vmap(jax.grad(found.loss), (-1, None), -1)

    def step(_: Any, params: Any) -> Any:
        return jax.tree.map(lambda p, d: p - LR * d, params, gradient(params, (x, y)))

    loop = jax.jit(lambda params: jax.lax.fori_loop(0, steps, step, params))
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * runs, axis=-1), found.init(jax.random.key(0)))
    return lambda: jax.block_until_ready(loop(start))  # type: ignore[no-any-return]


def theirs(name: str, steps: int) -> Lap:
    import torch
    from torch.nn.functional import cross_entropy

    from models_by_torch import batch, inputs, network

    device = "cuda" if torch.cuda.is_available() and jax.default_backend() == "gpu" else "cpu"
    x, y = batch(name, ROWS)
    module, given = network(name).to(device), inputs(name, x, torch.float32).to(device)
    labels = torch.tensor(y, dtype=torch.int64, device=device)
    solver = torch.optim.SGD(module.parameters(), lr=LR)

    def lap() -> None:
        for _ in range(steps):
            solver.zero_grad()
            cross_entropy(module(given), labels).backward()
            solver.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return lap


REST_SECONDS = 0.3
"""Between laps: threads of one library that wait in a loop would slow the other down."""


def speed(name: str, repeats: int, steps: int) -> None:
    contestants = {"PyTorch": (theirs(name, steps), steps), "fedtempo": (ours(name, steps, 1, "float32"), steps)}
    contestants[f"fedtempo, {RUNS} runs"] = (ours(name, max(1, steps // RUNS), RUNS, "float32"), max(RUNS, steps))
    if jax.default_backend() != "cpu":
        contestants[f"fedtempo, {RUNS} runs, bfloat16"] = (
            ours(name, max(1, steps // RUNS), RUNS, "bfloat16"),
            max(RUNS, steps),
        )
    laps: dict[str, list[float]] = {label: [] for label in contestants}
    for repeat in range(repeats + 1):
        for label, (lap, work) in contestants.items():
            time.sleep(REST_SECONDS)
            begin = time.perf_counter()
            lap()
            took = 1e3 * (time.perf_counter() - begin) / work
            print(f"{repeat}/{repeats} {name}, {label}: {took:.2f} ms", file=sys.stderr, flush=True)
            laps[label] += [took] if repeat else []
    for label, those in laps.items():
        middle = statistics.median(those)
        cells = [name, label, f"{middle:.2f} ({min(those):.2f} to {max(those):.2f})"]
        cells += [f"{statistics.median(laps['PyTorch']) / middle:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=18, help="of one lap")
    parser.add_argument("--only", action="append", help="a network alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="two repeats: to see that it runs")
    options = parser.parse_args()
    if find_spec("torch") is None:
        raise SystemExit("torch cannot be imported: nothing to compare with (pip install -r requirements/torch.txt)")
    import torch

    from models_by_torch import NAMES

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    names = options.only or NAMES
    print(f"jax {jax.__version__} on {jax.devices()}; torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    for name in names:
        same(name)
    print("\n| network | contestant | ms a run and step, median (min to max) | × PyTorch's speed |\n|---|---|---|---|")
    for name in names:
        speed(name, 2 if options.quick else options.repeats, options.steps)


if __name__ == "__main__":
    main()
