"""Other forms of a convolution than patches times the kernel, on a processor, in the FedAvg paper's networks.

    patches     as fedtempo has it: what the kernel sees at each place laid side by side, then one product
    one axis    patches along one axis, then a product for each row of the kernel
    sums        patches along one axis, one product with all rows of the kernel, then shifted sums
    few rows    patches of eight rows of the batch at a time, forwards and backwards, so that they stay in the caches
    XLA's       `jax.lax.conv_general_dilated`: inside a compiled loop about fifty times slower; asked for by name

First comes how fast the product of patches and a kernel is alone, for the second layer of fedavg-cifar.
A form takes steps of SGD inside one compiled loop (benchmarks/models.py), PyTorch as one writes it; all take turns.
Run it with PyTorch installed: PYTHONPATH=src python benchmarks/convolution_forms.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

import models
from fedtempo.problems.models import convolution
from fedtempo.problems.models.precision import product

FEW = 8
Form = Callable[[jax.Array, jax.Array], jax.Array]
"""Of padded images and a kernel."""


PATCHES = convolution.convolve


def along_one_axis(x: jax.Array, size: int) -> jax.Array:
    width = x.shape[2] - size + 1
    return jnp.concatenate([x[:, :, j : j + width] for j in range(size)], axis=-1)


def one_axis(x: jax.Array, kernel: jax.Array) -> jax.Array:
    size, _, channels, out = kernel.shape
    wide, height = along_one_axis(x, size), x.shape[1] - size + 1
    rows = (product(wide[:, i : i + height], kernel[i].reshape(size * channels, out)) for i in range(size))
    return sum(rows, start=jnp.zeros((), x.dtype))


def sums(x: jax.Array, kernel: jax.Array) -> jax.Array:
    size, _, channels, out = kernel.shape
    height = x.shape[1] - size + 1
    every = product(along_one_axis(x, size), kernel.transpose(1, 2, 0, 3).reshape(size * channels, size * out))
    shifted = (every[:, i : i + height, :, i * out : (i + 1) * out] for i in range(size))
    return sum(shifted, start=jnp.zeros((), x.dtype))


@jax.custom_vjp
def few_rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
    found = lax.map(lambda part: PATCHES(part, kernel), by_rows(x))
    return found.reshape(len(x), *found.shape[2:])


def by_rows(x: jax.Array) -> jax.Array:
    return x.reshape(len(x) // FEW, FEW, *x.shape[1:])


def forwards(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return few_rows(x, kernel), (x, kernel)


def backwards(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved

    def part(total: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        dx, own = jax.vjp(PATCHES, given[0], kernel)[1](given[1])
        return total + own, dx

    total, dx = lax.scan(part, jnp.zeros_like(kernel), (by_rows(x), by_rows(dy)))
    return dx.reshape(x.shape), total


few_rows.defvjp(forwards, backwards)


def of_xla(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


FORMS: dict[str, Form] = {
    "patches": PATCHES, "one axis": one_axis, "sums": sums, "few rows": few_rows, "XLA's": of_xla,
}  # fmt: skip


def of_form(form: Form) -> Callable[..., jax.Array]:
    """In the place of `convolution.convolve`."""

    def convolve(x: jax.Array, kernel: jax.Array, *, same: bool = False) -> jax.Array:
        size = len(kernel)
        low, high = ((size - 1) // 2, size // 2) if same else (0, 0)
        return form(jnp.pad(x, ((0, 0), (low, high), (low, high), (0, 0))), kernel)

    return convolve


def products() -> float:
    """GFLOP/s of the product forwards of 64 · 12 · 12 patches with a kernel of 5 × 5 × 64 → 64."""
    seen, inputs, out = 64 * 12 * 12, 5 * 5 * 64, 64
    x, weights = jnp.ones((seen, inputs)), jnp.ones((inputs, out))
    times = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        jax.block_until_ready(times(x, weights))
        seconds.append(time.perf_counter() - begin)
    return 2e-9 * seen * inputs * out / statistics.median(seconds)


def check() -> None:
    """All forms and their gradients are those of patches, but for rounding."""
    x = jax.random.normal(jax.random.key(0), (2 * FEW, 10, 10, 8))
    kernel = jax.random.normal(jax.random.key(1), (5, 5, 8, 16))

    def found(form: Form) -> list[jax.Array]:
        y, back = jax.vjp(of_form(form), x, kernel)
        return [y, *back(jnp.sin(y))]

    for label, form in FORMS.items():
        for one, other in zip(found(form), found(PATCHES), strict=True):
            if not jnp.abs(one - other).max() < 1e-4 * jnp.abs(other).max():
                raise SystemExit(f"{label} computes something else")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=("fedavg-cifar", "fedavg-mnist"), action="append")
    parser.add_argument("--form", choices=list(FORMS), action="append", help="these alone; all but XLA's unless said")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, models.RUNS], help="models side by side")
    parser.add_argument("--steps", type=int, default=12, help="of one lap")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    check()
    print(f"{products():.0f} GFLOP/s\n")
    print(
        "| network | form | runs | ms a run and step, median (min to max) | × PyTorch's speed |\n|---|---|---|---|---|"
    )
    for name in options.network or ["fedavg-cifar", "fedavg-mnist"]:
        laps = {("PyTorch", 1): (models.theirs(name, options.steps), options.steps)}
        for label in options.form or [label for label in FORMS if label != "XLA's"]:
            convolution.convolve = of_form(FORMS[label])  # type: ignore[assignment]
            for runs in options.runs:
                steps = max(1, options.steps // runs)
                lap = models.ours(name, steps, runs, "float32")
                lap()  # compiles
                laps[label, runs] = (lap, steps * runs)
            convolution.convolve = PATCHES
        found: dict[tuple[str, int], list[float]] = {key: [] for key in laps}
        for repeat in range(options.repeats + 1):
            for key, (lap, work) in laps.items():
                time.sleep(models.REST_SECONDS)
                begin = time.perf_counter()
                lap()
                found[key] += [1e3 * (time.perf_counter() - begin) / work] if repeat else []
        theirs = statistics.median(found["PyTorch", 1])
        for (label, runs), each in found.items():
            middle = statistics.median(each)
            spread = f"{middle:.1f} ({min(each):.1f} to {max(each):.1f})"
            print(f"| {name} | {label} | {runs} | {spread} | {theirs / middle:.2f} |", flush=True)


if __name__ == "__main__":
    main()
