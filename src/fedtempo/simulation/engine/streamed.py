"""Training event by event on rows that stay on disk: those of a piece are brought to the device with it.

    a piece      its row numbers are drawn as ever, and the rows that they name are gathered, in the order of events
    a measure    all rows of all clients, a few tiles at a time

The compiled functions are those of rows in memory, and see the same numbers: so are the bits of the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.problems.mapped import check_file, is_mapped, take_rows
from fedtempo.problems.problem import Problem
from fedtempo.problems.rows import leaf_names
from fedtempo.simulation.engine.event_loop import Events, event_loop
from fedtempo.simulation.engine.machine import EventMachine, OnDevice
from fedtempo.simulation.engine.measures import Rows, Tiles, added, rows_of, tiles_at_once
from fedtempo.simulation.engine.numerics import Precision, cast, kept_as
from fedtempo.simulation.engine.program import Piece
from fedtempo.simulation.engine.task import Data, Runs, State, Task, Tree, at

_MOST_ROWS = 2**31 - 1
PIECE_BYTES = 1 << 26
"""Of the rows of a piece, about; the next piece's are brought while it is trained."""


class OnDisk(OnDevice):
    """Where the rows begin, and how they are cut into tiles; the rows themselves stay where they are."""

    def __init__(self, problem: Problem, dtype: Precision) -> None:
        super().__init__(problem, dtype)
        if problem.num_rows > _MOST_ROWS:
            raise InputError(
                f"rows: {problem.num_rows} are more than the {_MOST_ROWS} that can be numbered; leave some clients out"
            )
        for name, leaf in zip(leaf_names(problem.rows), jax.tree.leaves(problem.rows), strict=True):
            if is_mapped(leaf):
                check_file(leaf, f"rows: {name}")

    @cached_property
    def data(self) -> Data:
        offset = jnp.asarray(self._problem.offsets[None, :-1], dtype=jnp.int32)
        return Data((), offset, jnp.asarray(self._problem.sizes, dtype=jnp.int32))

    @cached_property
    def train(self) -> Rows:
        return rows_of((), self._problem.sizes)

    @cached_property
    def row_bytes(self) -> int:
        kept = kept_as(self._dtype)
        leaves = jax.tree.leaves(self._problem.rows)
        sizes = [kept.itemsize if np.issubdtype(x.dtype, np.floating) else x.dtype.itemsize for x in leaves]
        return sum(int(np.prod(x.shape[1:])) * size for x, size in zip(leaves, sizes, strict=True))

    def taken(self, numbers: NDArray[Any]) -> Tree:
        """Rows by number, [numbers' shape, …] a leaf, on the device."""
        rows = take_rows(self._problem.rows, numbers.reshape(-1))
        return cast(jax.tree.map(lambda x: x.reshape(*numbers.shape, *x.shape[1:]), rows), self._dtype)


class LoadedRows(NamedTuple):
    """A piece on the device, with the rows that it needs."""

    events: Events
    """Their row numbers are places among these rows."""
    data: Data


class StreamedMachine(EventMachine):
    """Event by event, with rows from disk."""

    on_device: OnDisk

    def __init__(self, problem: Problem, task: Task, dtype: Precision, on_disk: OnDisk) -> None:
        super().__init__(problem, task, dtype, on_disk)
        self._whole = task.job.batch_size is None or _asks_for_all_rows(problem, task)

    def _rows_an_event(self, seeds: int) -> int:
        """Rows that are brought for one event, at most."""
        drawn = seeds * self.task.job.steps * (self.task.job.batch_size or 0)
        return drawn + (int(self.problem.sizes.max()) if self._whole else 0)

    def capacity(self, seeds: int, expected_events: float) -> int:
        fit = max(16, PIECE_BYTES // (self._rows_an_event(seeds) * self.on_device.row_bytes))
        return min(super().capacity(seeds, expected_events), 1 << (fit.bit_length() - 1))

    def rows_bytes(self, capacity: int, seeds: int) -> int:
        return 3 * capacity * self._rows_an_event(seeds) * self.on_device.row_bytes

    def load(self, piece: Piece, capacity: int, runs: Runs) -> LoadedRows:  # type: ignore[override]
        events = super().load(piece, capacity, runs)
        drawn = np.asarray(events.rows)
        numbers = drawn[: piece.num_events].reshape(-1)
        room, offset = drawn.size, np.asarray(self.on_device.data.offset)
        if self._whole:
            clients = np.unique(piece.client)
            sizes = self.problem.sizes[clients]
            first = np.cumsum(sizes) - sizes
            own = np.arange(int(sizes.sum())) - np.repeat(first - self.problem.offsets[clients], sizes)
            offset = np.zeros_like(offset)
            offset[0, clients] = room + first
            padded = np.zeros(room, dtype=np.int64)
            padded[: len(numbers)] = numbers
            numbers = np.concatenate([padded, own])
            room += min(capacity * int(self.problem.sizes.max()), self.problem.num_rows)
        rows = jax.tree.map(lambda x: _padded(x, room), self.on_device.taken(numbers))
        places = np.arange(drawn.size, dtype=np.int32).reshape(drawn.shape)
        return LoadedRows(
            events._replace(rows=jnp.asarray(places)),
            Data(rows, jnp.asarray(offset), self.on_device.data.size),
        )

    def advance(self, state: State, runs: Runs, loaded: LoadedRows, first: int, last: int) -> State:  # type: ignore[override]
        args = (state, loaded.data, runs, loaded.events, np.int32(first), np.int32(last))
        done: State = self._compile("advance", event_loop(self.task, self.events_per_step), *args, donate=(0,))(*args)
        return done

    def at_places(self, loaded: LoadedRows, read: NDArray[Any], write: NDArray[Any]) -> LoadedRows:  # type: ignore[override]
        return loaded._replace(events=super().at_places(loaded.events, read, write))

    def measure(self, state: State, runs: Runs, slot: int) -> dict[str, np.ndarray[Any, Any]]:
        versions = (state.slots.sent.model, state.slots.state)
        train, test = self.on_device.train, self.on_device.test
        seeds, num_runs = len(runs.keys), len(runs.rule)
        held = self.meter.row_bytes * seeds
        at_once = [tiles_at_once(self.problem.rows, tiles, num_runs, held) for tiles in train.tiles]
        if all(len(tiles.start) <= together for tiles, together in zip(train.tiles, at_once, strict=True)):
            rows = train._replace(rows=self.on_device.taken(np.arange(self.problem.num_rows)))
            whole = (versions, np.int32(slot), rows, test)
            out: Mapping[str, jax.Array] = self._compile("measure", self.meter, *whole)(*whole)
        else:
            picked = (versions, np.int32(slot))
            model = self._compile("version", at, *picked)(*picked)
            shape = (seeds, train.size.shape[0], len(self.meter.on_train), num_runs)
            sums = jnp.zeros(shape, dtype=jnp.result_type(float))
            for tiles, together in zip(train.tiles, at_once, strict=True):
                sums = self._with_all(tiles, together, model, sums)
            args = (sums, train.size, model, test)
            out = self._compile("measures", self._measures, *args)(*args)
        return {name: np.asarray(value) for name, value in out.items()}

    def _with_all(self, tiles: Tiles, together: int, model: Tree, sums: jax.Array) -> jax.Array:
        """The sums with those over all of some tiles, brought a part at a time while the device works on the last.

        A part is two steps of the loop that goes over rows in memory: a loop of one step would be compiled otherwise.
        """
        start, group, span = (np.asarray(part) for part in tiles)
        room = min(2, -(-len(start) // together)) * together
        places = jnp.arange(room, dtype=jnp.int32) * len(span)
        add = partial(self._added, together)
        for begin in range(0, len(start), room):
            some = start[begin : begin + room]
            rows = self.on_device.taken((some[:, None].astype(np.int64) + span).reshape(-1))
            rows = jax.tree.map(partial(_padded, room=room * len(span)), rows)
            own = np.full(room, group[-1])
            own[: len(some)] = group[begin : begin + room]
            jax.block_until_ready(sums)  # type: ignore[no-untyped-call]  # so that no more than two parts are held
            args = (model, rows, Tiles(places, jnp.asarray(own), tiles.span), jnp.int32(len(some)), sums)
            sums = self._compile(f"tiles {together}", add, *args)(*args)
        return sums

    def _added(
        self, together: int, model: Tree, rows: Tree, tiles: Tiles, total: jax.Array, sums: jax.Array
    ) -> jax.Array:
        functions, held = self.meter.on_train, self.meter.held(model)
        return jax.vmap(
            lambda m, now: added(functions, m, rows, tiles, now, held, together, total, self.task.runs_axis)
        )(model, sums)

    def _measures(self, sums: jax.Array, size: jax.Array, model: Tree, test: Rows | None) -> dict[str, jax.Array]:
        clients = jnp.moveaxis(sums / size[:, None, None].astype(sums.dtype), 1, 2)
        return self.meter.named(clients, model, test)


def _padded(rows: jax.Array, room: int) -> jax.Array:
    """As many rows in every piece, so that one program takes them all."""
    more = room - rows.shape[0]
    return rows if more <= 0 else jnp.concatenate([rows, jnp.zeros((more, *rows.shape[1:]), rows.dtype)])


def _asks_for_all_rows(problem: Problem, task: Task) -> bool:
    """Whether a job takes the gradient of all rows of its client, as some corrections do."""
    correction = task.work.correction
    asked = []

    def full(here: Tree) -> Tree:
        asked.append(True)
        return here

    def begin(model: Tree, state: Tree) -> Tree:
        version = task.version(model, task.start(model, state))
        assert correction is not None
        return correction.begin(version.sent, task.work.start(model).correction, full).state

    if correction is not None:
        jax.eval_shape(begin, problem.parameter_shapes, problem.state_shapes)
    return bool(asked)
