"""What is measured on a grid of virtual time (section 5).

    federated loss   L = Σ p_i L_i             deviation over clients   (Σ p_i (L_i − L)²)^{1/2}
    surrogate loss   L̄ = Σ q_i L_i             deviation over clients   (Σ q_i (L_i − L̄)²)^{1/2}
    test loss and the user's metrics           means over the test rows

L_i is the mean loss over all rows of client i, p_i its importance, q_i its share of rounds in a reference scheme under
identical weights (asynchronous FedAvg unless another is named): one surrogate for all curves of a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.times import Floats
from fedtempo.engine.task import RUNS, Tree, at, take

Function = Callable[[Any, Any], Any]

EVALUATED_AT_ONCE = 1 << 22
"""About how many numbers of rows × runs × features are looked at together."""


class Rows(NamedTuple):
    """Rows to measure on: to which group each belongs, and how many groups hold how many."""

    rows: Tree
    group: jax.Array
    size: jax.Array


def rows_of(data: Tree, sizes: Sequence[int] | NDArray[np.int64]) -> Rows:
    """Rows that lie group after group."""
    group = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Rows(data, jnp.asarray(group), jnp.asarray(np.asarray(sizes), dtype=jnp.int32))


def group_means(functions: Sequence[Function], params: Tree, rows: Rows, block: int) -> jax.Array:
    """[functions, groups, runs] the mean over each group's rows, of models [seedless …, runs]."""
    total = rows.group.shape[0]
    groups = rows.size.shape[0]

    def of_run(model: Tree, batch: Tree) -> jax.Array:
        def of_row(row: Tree) -> jax.Array:
            alone = jax.tree.map(lambda x: x[None], row)
            return jnp.stack([jnp.asarray(f(model, alone), dtype=jnp.result_type(float)) for f in functions])

        return jax.vmap(of_row)(batch)

    def add(number: Any, sums: jax.Array) -> jax.Array:
        place = number * block + jnp.arange(block, dtype=jnp.int32)
        inside = place < total
        place = jnp.minimum(place, total - 1)
        values = jax.vmap(of_run, in_axes=(RUNS, None), out_axes=-1)(params, take(rows.rows, place))
        values = jnp.where(inside[:, None, None], values, 0)
        return sums + jax.ops.segment_sum(values, rows.group[place], num_segments=groups, indices_are_sorted=True)

    runs = jax.tree.leaves(params)[0].shape[RUNS]
    start = jnp.zeros((groups, len(functions), runs), dtype=jnp.result_type(float))
    sums = jax.lax.fori_loop(0, -(-total // block), add, start)
    return jnp.moveaxis(sums / rows.size[:, None, None].astype(sums.dtype), 0, 1)


@dataclass(frozen=True, eq=False)
class Meter:
    """Measures the model in a slot: `[seeds, groups or none, runs]` of everything."""

    loss: Function
    metrics: Mapping[str, Function]
    tested: bool
    """Whether there are test rows; if not, metrics are measured on the clients' rows."""

    def __call__(self, slots: Tree, slot: jax.Array, train: Rows, test: Rows | None) -> dict[str, jax.Array]:
        """Per-client losses, and what is measured once for all."""
        model = at(slots, slot)
        on_train = [self.loss] if self.tested else [self.loss, *self.metrics.values()]
        clients = jax.vmap(lambda m: group_means(on_train, m, train, _block(train, m)))(model)
        out = {"client_loss": clients[:, 0]}
        if not self.tested:
            return out | {f"client_{name}": clients[:, 1 + k] for k, name in enumerate(self.metrics)}
        assert test is not None
        on_test = [self.loss, *self.metrics.values()]
        means = jax.vmap(lambda m: group_means(on_test, m, test, _block(test, m)))(model)[:, :, 0]
        return out | {f"test_{name}": means[:, k] for k, name in enumerate(["loss", *self.metrics])}

    def names(self) -> list[str]:
        """The measures beside the losses of clients."""
        return [f"test_{n}" for n in ("loss", *self.metrics)] if self.tested else list(self.metrics)


def _block(rows: Rows, model: Tree) -> int:
    """Rows at once: many, but not so many that what lies between two layers fills the memory."""
    runs = jax.tree.leaves(model)[0].shape[RUNS]
    width = max(1, max((int(np.prod(x.shape[1:])) for x in jax.tree.leaves(rows.rows)), default=1))
    fit = max(16, EVALUATED_AT_ONCE // (int(runs) * width))
    return min(1 << (fit.bit_length() - 1), 1 << max(4, (rows.group.shape[0] - 1).bit_length()))


@dataclass(frozen=True)
class Shares:
    """By whom the losses of clients are weighted: p_i, and q_i of the surrogate."""

    importance: Floats
    surrogate: Floats

    def summary(self, measured: Mapping[str, NDArray[Any]], *, per_client: bool) -> dict[str, Floats]:
        """Measures [seeds, runs] of one point, from what the engine measured."""
        out: dict[str, Floats] = {}
        losses = np.asarray(measured["client_loss"], dtype=np.float64)  # [seeds, clients, runs]
        for name, deviation, share in (
            ("loss", "loss_deviation", self.importance),
            ("surrogate_loss", "surrogate_deviation", self.surrogate),
        ):
            with np.errstate(over="ignore", invalid="ignore"):  # runs that diverge
                mean = np.einsum("i,sir->sr", share, losses)
                spread = np.einsum("i,sir->sr", share, (losses - mean[:, None]) ** 2)
            out[name] = mean
            out[deviation] = np.sqrt(spread)
        for name, values in measured.items():
            if name.startswith("client_"):
                if name != "client_loss":
                    out[name.removeprefix("client_")] = np.einsum("i,sir->sr", self.importance, np.asarray(values))
            else:
                out[name] = np.asarray(values, dtype=np.float64)
        if per_client:
            out["client_loss"] = np.moveaxis(losses, 1, 2)
        return out
