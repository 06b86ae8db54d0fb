"""What is measured on a grid of virtual time (section 5).

    federated loss   L = Σ p_i L_i             deviation over clients   (Σ p_i (L_i − L)²)^{1/2}
    surrogate loss   L̄ = Σ q_i L_i             deviation over clients   (Σ q_i (L_i − L̄)²)^{1/2}
    test loss and the user's metrics           means over the test rows, or Σ p_i of such means over each client's own

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
from fedtempo.simulation.engine.task import INNERMOST, Tree, at, loop, take

Function = Callable[[Any, Any], Any]

EVALUATED_AT_ONCE = 1 << 22
"""About how many numbers of rows × runs × features are looked at together."""
HELD_BYTES = {"cpu": 1 << 30, "gpu": 1 << 34}
"""By kind of device, about how many bytes lie between the layers of a model, over the rows and runs that are looked at
together."""
TILE = 512
"""Rows that the loss is given at once, at most."""


class Tiles(NamedTuple):
    """Consecutive rows, as many in every tile, all of one group."""

    start: jax.Array
    group: jax.Array
    span: jax.Array
    """0 … length − 1."""


class Rows(NamedTuple):
    """Rows to measure on, group after group: whole tiles of each group, and the few rows that are left, one by one."""

    rows: Tree
    size: jax.Array
    """[groups]"""
    tiles: tuple[Tiles, ...]

    def of_deal(self, deal: jax.Array | None) -> Rows:
        """The groups of a later deal, whose rows lie behind those of the ones before it; None: of the only one."""
        if deal is None:
            return self
        first = deal * jnp.sum(self.size)
        return self._replace(tiles=tuple(tiles._replace(start=first + tiles.start) for tiles in self.tiles))


def rows_of(data: Tree, sizes: Sequence[int] | NDArray[np.int64]) -> Rows:
    """Rows that lie group after group; a tile is a batch, which the loss takes faster than single rows."""
    counts = np.asarray(sizes, dtype=np.int64)
    length = _tile_length(counts)
    offsets = np.cumsum(counts) - counts
    whole = counts // length
    cut = [(offsets, whole, length), (offsets + whole * length, counts - whole * length, 1)]
    return Rows(data, jnp.asarray(counts, dtype=jnp.int32), tuple(_tiles(*each) for each in cut if each[1].any()))


def _tile_length(counts: NDArray[np.int64]) -> int:
    """The largest length up to TILE that leaves no row over, or a power of two that leaves few."""
    if (counts == counts[0]).all():
        exact = max(k for k in range(1, min(TILE, int(counts[0])) + 1) if counts[0] % k == 0)
        if exact >= min(TILE, int(counts[0])) // 8:
            return exact
    most = max(1, min(TILE, int(np.median(counts))))
    return 1 << (most.bit_length() - 1)


def _tiles(first: NDArray[np.int64], number: NDArray[np.int64], length: int) -> Tiles:
    """`number` tiles of each group, from row `first` of it on."""
    group = np.repeat(np.arange(len(number)), number)
    place = np.arange(len(group)) - np.repeat(np.cumsum(number) - number, number)
    start = first[group] + place * length
    return Tiles(*(jnp.asarray(x, dtype=jnp.int32) for x in (start, group, np.arange(length))))


def group_means(
    functions: Sequence[Function], params: Tree, rows: Rows, row_bytes: float = 0.0, axis: int = INNERMOST
) -> jax.Array:
    """[functions, groups, runs] the mean over each group's rows, of models whose runs lie on an axis.

    `row_bytes`: about what lies between the layers of a model for one row.
    """
    runs = jax.tree.leaves(params)[0].shape[axis]
    sums = jnp.zeros((rows.size.shape[0], len(functions), runs), dtype=jnp.result_type(float))
    for tiles in rows.tiles:
        sums = _added(functions, params, rows.rows, tiles, sums, row_bytes, axis)
    return jnp.moveaxis(sums / rows.size[:, None, None].astype(sums.dtype), 0, 1)


def _added(
    functions: Sequence[Function],
    params: Tree,
    rows: Tree,
    tiles: Tiles,
    sums: jax.Array,
    row_bytes: float,
    axis: int,
) -> jax.Array:
    """Sums over groups [groups, functions, runs], with those over the rows of `tiles` added."""
    together = tiles_at_once(rows, tiles, sums.shape[-1], row_bytes)
    return added(functions, params, rows, tiles, sums, row_bytes, together, tiles.start.shape[0], axis)


def added(
    functions: Sequence[Function],
    params: Tree,
    rows: Tree,
    tiles: Tiles,
    sums: jax.Array,
    row_bytes: float,
    together: int,
    total: Any,
    axis: int,
) -> jax.Array:
    """As `_added`, so many tiles together; the first `total` count."""

    def add(number: Any, now: jax.Array) -> jax.Array:
        place = number * together + jnp.arange(together, dtype=jnp.int32)
        inside = place < total
        place = jnp.minimum(place, total - 1)
        batches = take(rows, tiles.start[place][:, None] + tiles.span)
        return _with_tiles(functions, params, batches, tiles.group[place], inside, now, row_bytes, axis)

    return loop(0, -(-tiles.start.shape[0] // together), add, sums)


def _with_tiles(
    functions: Sequence[Function],
    params: Tree,
    batches: Tree,
    group: jax.Array,
    inside: jax.Array,
    sums: jax.Array,
    row_bytes: float,
    axis: int,
) -> jax.Array:
    """Sums over groups [groups, functions, runs], with those of some tiles added: [tiles, rows of each, …] a leaf."""
    together, length = jax.tree.leaves(batches)[0].shape[:2]
    runs = sums.shape[-1]
    at_once = max(1, int(_room() // max(1.0, row_bytes * together * length)))

    def of_run(model: Tree, batches: Tree) -> jax.Array:
        def of_tile(batch: Tree) -> jax.Array:
            return jnp.stack([jnp.asarray(f(model, batch), dtype=sums.dtype) for f in functions])

        return jax.vmap(of_tile)(batches)

    if at_once >= runs:
        means = jax.vmap(of_run, in_axes=(axis, None), out_axes=-1)(params, batches)
    else:
        first = jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), params)
        means = jnp.moveaxis(jax.lax.map(lambda model: of_run(model, batches), first, batch_size=at_once), 0, -1)
    values = jnp.where(inside[:, None, None], means * length, 0)
    return sums + jax.ops.segment_sum(values, group, num_segments=sums.shape[0], indices_are_sorted=True)


def _room() -> int:
    return HELD_BYTES.get(jax.default_backend(), HELD_BYTES["cpu"])


def tiles_at_once(rows: Tree, tiles: Tiles, runs: int, row_bytes: float) -> int:
    """Tiles at once: many, but not so many that what lies between two layers fills the memory."""
    length = tiles.span.shape[0]
    width = max((int(np.prod(x.shape[1:])) for x in jax.tree.leaves(rows)), default=1)
    fit = min(EVALUATED_AT_ONCE // (runs * max(1, width) * length), _room() // max(1, int(row_bytes * runs * length)))
    return max(1, min(tiles.start.shape[0], fit))


@dataclass(frozen=True, eq=False)
class Meter:
    """Measures the model in a slot: `[seeds, groups or none, runs]` of everything."""

    loss: Function
    metrics: Mapping[str, Function]
    tested: bool
    """Whether there are test rows; if not, metrics are measured on the clients' rows."""
    row_bytes: float = 0.0
    """About what lies between the layers of a model for one row."""
    shared_test: bool = True
    """Whether the test rows are everybody's; if not, clients have their own."""
    runs_axis: int = INNERMOST
    """Where runs lie in a leaf of the model."""

    def at_once(self, runs: int) -> int:
        """About how many bytes a measure of so many models holds between their layers."""
        return int(min(_room(), self.row_bytes * TILE * runs))

    def __call__(
        self, slots: Tree, slot: jax.Array, train: Rows, test: Rows | None, deal: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Per-client losses, and what is measured once for all; `deal` is which of the deals each seed has."""
        model = at(slots, slot)
        held = self.held(model)
        clients = self._means(self.on_train, model, train, deal, held)
        return self.named(clients, model, test, deal)

    def _means(
        self, functions: Sequence[Function], model: Tree, rows: Rows, deal: jax.Array | None, held: float
    ) -> jax.Array:
        def of_seed(model: Tree, deal: jax.Array | None) -> jax.Array:
            return group_means(functions, model, rows.of_deal(deal), held, self.runs_axis)

        return jax.vmap(of_seed)(model, deal)

    def held(self, model: Tree) -> float:
        """About what lies between the layers for one row, of models [seeds, …]: all seeds are looked at together."""
        return self.row_bytes * float(jax.tree.leaves(model)[0].shape[0])

    @property
    def on_train(self) -> list[Function]:
        """What is measured on the clients' rows."""
        return [self.loss] if self.tested else [self.loss, *self.metrics.values()]

    def named(
        self, clients: jax.Array, model: Tree, test: Rows | None, deal: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """All measures: means [seeds, functions, groups, runs] over the clients' rows, and those over the test rows."""
        out = {"client_loss": clients[:, 0]}
        if not self.tested:
            return out | {f"client_{name}": clients[:, 1 + k] for k, name in enumerate(self.metrics)}
        assert test is not None
        held, on_test = self.held(model), [self.loss, *self.metrics.values()]
        # [seeds, functions, groups, runs]
        means = self._means(on_test, model, test, deal, held)
        names = ["loss", *self.metrics]
        if self.shared_test:
            return out | {f"test_{name}": means[:, k, 0] for k, name in enumerate(names)}
        return out | {f"client_test_{name}": means[:, k] for k, name in enumerate(names)}


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
