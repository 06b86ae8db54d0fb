"""Compiled functions and device data for runs that share a task; compiled once, for every scheme and seed.

The problem's rows are put on the device once, for all machines of a study.
"""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from fedtempo.problems.problem import Problem
from fedtempo.simulation.compilation import PROGRAMS
from fedtempo.simulation.engine.cost_model import gradient_work, loss_work
from fedtempo.simulation.engine.event_loop import Events, event_loop, events_per_step
from fedtempo.simulation.engine.measures import TILE, Meter, Rows, rows_of
from fedtempo.simulation.engine.numerics import Precision, cast, kept_as, numerics
from fedtempo.simulation.engine.program import Piece
from fedtempo.simulation.engine.task import FULL_ROWS, Data, Runs, State, Task, Tree, Version, at
from fedtempo.simulation.engine.waiting import SLOT, taken_apart
from fedtempo.simulation.engine.waves import WAVES_PER_CALL, Loaded, load_waves, wave_loop, wave_starts
from fedtempo.training.batches import batch_key, compression_key, init_key, noise_key

LANES = "clients"
"""The axis of a mesh over which the clients of a wave are dealt."""


def over(mesh: Mesh, *axes: str | None) -> NamedSharding:
    """Arrays whose axes are dealt over the devices of a mesh; without any, all of them on each."""
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]


def _end_to_end(trees: Sequence[Tree]) -> Tree:
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)


class OnDevice:
    """The rows to train and to measure on. To be used inside `numerics(dtype)`."""

    def __init__(self, problem: Problem, dtype: Precision, mesh: Mesh | None = None) -> None:
        """`mesh`: of devices that hold them all."""
        self._problem, self._dtype, self.mesh = problem, dtype, mesh

    def everywhere(self, tree: Any) -> Any:
        """Arrays on all devices of the mesh, or where they are, if there is none."""
        return tree if self.mesh is None else jax.device_put(tree, over(self.mesh))

    @cached_property
    def data(self) -> Data:
        """The clients' rows, and where each client's begin."""
        problem = self._problem
        first = np.arange(len(problem.deals))[:, None] * problem.num_rows
        offset = jnp.asarray(first + problem.offsets[:-1], dtype=jnp.int32)
        rows = cast(_end_to_end([deal.rows for deal in problem.deals]), self._dtype)
        sizes = jnp.asarray(problem.sizes, dtype=jnp.int32)
        found: Data = self.everywhere(Data(rows, offset, sizes))
        return found

    @cached_property
    def train(self) -> Rows:
        """The same rows, to measure on."""
        return rows_of(self.data.rows, self._problem.sizes)

    @cached_property
    def test(self) -> Rows | None:
        """The test rows, as one group, or by client where they have their own."""
        if self._problem.test is None:
            return None
        rows = len(jax.tree.leaves(self._problem.test)[0])
        test = self.everywhere(cast(_end_to_end([deal.test for deal in self._problem.deals]), self._dtype))
        offsets = self._problem.test_offsets
        return rows_of(test, [rows] if offsets is None else np.diff(offsets))


MOST_EVENTS = 1 << 13
MOST_DRAWN = 1 << 22
"""Row numbers that are drawn ahead, at most."""
MOST_POINTS = 32
POINT_BYTES = 1 << 26
"""Models that wait to be measured, at most."""
WAVE_BYTES = 1 << 36
"""What lies between the layers of all models of a wave, at most."""
CALL_SECONDS = 0.02
"""About how long the waves of one call may take."""
GATHER_SECONDS, GATHER_BYTES_A_SECOND = 5e-5, 1e11
"""What it takes to bring the contributions of a wave together on all devices, roughly: at least, and by their size."""
SHARE_WORTH = 0.7
"""Several devices share the clients of a wave where that takes at most so much of one device's time."""


class Machine(ABC):
    """Runs pieces of a program for runs that differ in numbers only. To be used inside `numerics(dtype)`."""

    def __init__(self, problem: Problem, task: Task, dtype: Precision) -> None:
        self.problem, self.task, self.dtype = problem, task, dtype
        self.compile_seconds = 0.0

    @abstractmethod
    def initial(self, seeds: tuple[int, ...], runs: int, num_slots: int) -> Any:
        """Before the first event: initial models, and the problem's states, one a seed and the same in all runs."""

    @abstractmethod
    def runs(
        self,
        seeds: tuple[int, ...],
        rules: list[int],
        hyper: Mapping[str, NDArray[np.float64]],
        clients: Mapping[str, NDArray[Any]],
    ) -> Any:
        """What tells the runs apart, and the clients."""

    def capacity(self, seeds: int, expected_events: float) -> int:
        """Events in a piece: as many as are drawn ahead without much memory."""
        drawn = max(1, seeds * self.task.job.steps * (self.task.job.batch_size or 1))
        most = min(MOST_EVENTS, max(16, MOST_DRAWN // drawn))
        return 1 << (int(min(most, max(16.0, expected_events * 1.1))).bit_length() - 1)

    def max_points(self, runs: int) -> int:
        """Measuring points in a piece: each keeps a model for every run."""
        return max(1, min(MOST_POINTS, POINT_BYTES // max(1, self.model_bytes * runs)))

    @cached_property
    def model_bytes(self) -> int:
        """Bytes of one model."""
        return self.problem.num_parameters * kept_as(self.dtype).itemsize

    @cached_property
    def version_bytes(self) -> int:
        """Bytes of one version: a model, the problem's state, and what goes to clients with it."""
        return self._bytes(lambda model, state: self.task.version(model, self.task.start(model, state)))

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes that the server and all clients keep of one run, beside versions; with room for work."""
        clients = self.problem.num_clients * self._bytes(lambda model, state: self.task.work.start(model))
        return clients + self._bytes(self.task.start) + 5 * self.model_bytes

    def _bytes(self, function: Callable[[Tree, Tree], Tree]) -> int:
        kept = kept_as(self.dtype)

        def typed(leaf: Any) -> Any:
            kind = kept if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
            return jax.ShapeDtypeStruct(leaf.shape, kind)  # type: ignore[no-untyped-call]

        with numerics(self.dtype):
            given = jax.tree.map(typed, (self.problem.parameter_shapes, self.problem.state_shapes))
            found = jax.eval_shape(function, *given)
        return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(found))

    @property
    @abstractmethod
    def events_per_step(self) -> int | None:
        """Events in one step of the loop: a piece can be cut at multiples of it; None: it is run in one go."""

    @abstractmethod
    def tune(self, firsts: Iterable[Piece], runs: int) -> None:
        """Choose what depends on the programs, from their first pieces, before anything is compiled."""

    @abstractmethod
    def load(self, piece: Piece, capacity: int, runs: Any) -> Any:
        """A piece made ready for `advance`."""

    @abstractmethod
    def advance(self, state: Any, runs: Any, loaded: Any, first: int, last: int) -> Any:
        """Run events `first` to `last` of a piece; `state` is used up."""

    @abstractmethod
    def measure(self, state: Any, runs: Any, slot: int) -> dict[str, np.ndarray[Any, Any]]:
        """Measures of the model in a slot: [seeds, clients or none, runs] each."""

    @abstractmethod
    def model(self, state: Any, slot: int) -> list[np.ndarray[Any, Any]]:
        """[seeds, …, runs] the leaves of the model in a slot, and then those of the problem's state."""

    def rows_bytes(self, capacity: int, seeds: int) -> int:
        """Bytes of rows that are brought from disk for pieces and measures; 0 where all rows are in memory."""
        return 0

    @abstractmethod
    def measure_bytes(self, runs: int) -> int:
        """About how many bytes a measure of so many models holds between their layers."""

    # -- the state, as sessions handle it

    @abstractmethod
    def room(self, state: Any) -> int:
        """How many versions there is room for."""

    @abstractmethod
    def grown(self, state: Any, num_slots: int) -> Any:
        """The same state with room for more versions."""

    @abstractmethod
    def narrowed(self, state: Any, kept: Sequence[int]) -> Any:
        """The same state of some of its runs alone."""

    @abstractmethod
    def wait(self, state: Any) -> None:
        """Until it has been computed."""

    @abstractmethod
    def saved(self, state: Any) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""

    @abstractmethod
    def restored(self, state: Any, saved: Mapping[str, NDArray[Any]]) -> Any:
        """What was `saved`, in the place of an initial state."""


class CompiledMachine(Machine):
    """By JAX: compiled functions, and the rows on the device."""

    def __init__(self, problem: Problem, task: Task, dtype: Precision, on_device: OnDevice | None = None) -> None:
        """`on_device`: the problem's rows, where other machines use them too."""
        super().__init__(problem, task, dtype)
        self.on_device = on_device if on_device is not None else OnDevice(problem, dtype)
        self._lock = threading.Lock()
        self._compiled: dict[Any, Any] = {}
        held = loss_work(problem, TILE).held / TILE
        loss = _of_version(problem.form.evaluation)
        metrics = {name: _of_version(metric) for name, metric in problem.metric_forms.items()}
        shared = problem.test_offsets is None
        self.meter = Meter(loss, metrics, problem.test is not None, held, shared, task.runs_axis)

    def initial(self, seeds: tuple[int, ...], runs: int, num_slots: int) -> State:
        def first(make: Callable[[jax.Array], Tree]) -> Tree:
            made = [cast(make(init_key(seed)), self.dtype) for seed in seeds]
            each = [jax.tree.map(lambda x: jnp.stack([x] * runs, axis=self.task.runs_axis), tree) for tree in made]
            return jax.tree.map(lambda *x: jnp.stack(x), *each)

        model, state = first(self.problem.init), first(self.problem.initial_state)
        return self.task.initial(model, state, num_slots, self.problem.num_clients)

    def runs(
        self,
        seeds: tuple[int, ...],
        rules: list[int],
        hyper: Mapping[str, NDArray[np.float64]],
        clients: Mapping[str, NDArray[Any]],
    ) -> Runs:
        """What tells the runs apart, and the clients, on the device."""
        deal = self.problem.deal_of(seeds)

        def placed(values: NDArray[Any]) -> jax.Array:
            return jnp.asarray(values, dtype=kept_as(self.dtype) if values.dtype.kind == "f" else jnp.int32)

        return Runs(
            keys=jnp.stack([batch_key(seed) for seed in seeds]),
            deal=None if deal is None else jnp.asarray(deal, dtype=jnp.int32),
            noise=jnp.stack([compression_key(seed) for seed in seeds]),
            drawn=jnp.stack([noise_key(seed) for seed in seeds]) if self.task.loss.keyed else None,
            hyper={name: placed(values) for name, values in hyper.items()},
            rule=jnp.asarray(rules, dtype=jnp.int32),
            clients={name: placed(values) for name, values in clients.items()},
        )

    def _compile(self, name: str, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> Any:
        leaves, structure = jax.tree.flatten(args)
        key = (name, structure, tuple((x.shape, str(x.dtype)) for x in leaves))
        with self._lock:
            if key not in self._compiled:
                begin = time.perf_counter()
                self._compiled[key] = PROGRAMS.compiled(function, *args, donate=donate)
                self.compile_seconds += time.perf_counter() - begin
            return self._compiled[key]

    def measure(self, state: State, runs: Runs, slot: int) -> dict[str, np.ndarray[Any, Any]]:
        """Measures of the model in a slot."""
        versions = (state.slots.sent.model, state.slots.state)
        args = (versions, np.int32(slot), self.on_device.train, self.on_device.test, runs.deal)
        out = self._compile("measure", self.meter, *args)(*args)
        return {name: np.asarray(value) for name, value in out.items()}

    def model(self, state: State, slot: int) -> list[np.ndarray[Any, Any]]:
        """[seeds, …, runs] the leaves of the model in a slot, and then those of the problem's state."""
        leaves = jax.tree.leaves((state.slots.sent.model, state.slots.state))
        return [np.moveaxis(np.asarray(leaf[slot]), self._runs_axis(1), -1) for leaf in leaves]

    def version(self, state: State, slot: int) -> Version:
        """[seeds, …, runs] what is in a slot."""
        args = (state.slots, np.int32(slot))
        found: Version = self._compile("version", at, *args)(*args)
        return found

    def grown(self, state: State, num_slots: int) -> State:
        """The same state with room for more versions."""

        def more(x: jax.Array) -> jax.Array:
            return jnp.concatenate([x, jnp.zeros((num_slots - x.shape[0], *x.shape[1:]), x.dtype)])

        return state._replace(slots=jax.tree.map(more, state.slots))

    def narrowed(self, state: State, kept: Sequence[int]) -> State:
        places = np.array(kept)
        return self._over_leaves(lambda leaf, axis: jnp.take(leaf, places, axis=axis), state)

    def measure_bytes(self, runs: int) -> int:
        return self.meter.at_once(runs)

    def room(self, state: State) -> int:
        return int(jax.tree.leaves(state.slots)[0].shape[0])

    def wait(self, state: State) -> None:
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]

    def saved(self, state: State) -> dict[str, NDArray[Any]]:
        """Runs are innermost in what is saved."""
        found = self._over_leaves(lambda leaf, axis: np.moveaxis(np.asarray(leaf), axis, -1), state)
        return {str(k): leaf for k, leaf in enumerate(jax.tree.leaves(found))}

    def restored(self, state: State, saved: Mapping[str, NDArray[Any]]) -> State:
        leaves, structure = jax.tree.flatten(state)
        if any(name.startswith(SLOT) for name in saved):
            saved = self._stacked(state, saved)
        found = State(*jax.tree.unflatten(structure, [saved[str(k)] for k in range(len(leaves))]))
        return self._over_leaves(lambda leaf, axis: jnp.asarray(np.moveaxis(leaf, -1, axis)), found)

    def _stacked(self, state: State, saved: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What was saved version by version (waiting.py), as if all had been in memory."""
        slots = jax.tree.leaves(state.slots)
        versions = {int(name.removeprefix(SLOT)): array for name, array in saved.items() if name.startswith(SLOT)}
        room = max(self.room(state), *(slot + 1 for slot in versions))
        whole = [np.zeros((room, *leaf.shape[1:]), leaf.dtype) for leaf in slots]
        for slot, array in versions.items():
            for leaf, part in zip(whole, taken_apart(np.asarray(array), [x[0] for x in whole]), strict=True):
                leaf[slot] = part
        axis, rest = self._runs_axis(2), {name: a for name, a in saved.items() if not name.startswith(SLOT)}
        found = {str(k): np.moveaxis(leaf, axis, -1) for k, leaf in enumerate(whole)}
        return found | {str(int(name) + len(whole)): array for name, array in rest.items()}

    def _runs_axis(self, before: int) -> int:
        """Of a leaf that has so many axes before the model's own."""
        axis = self.task.runs_axis
        return axis if axis < 0 else before + axis

    def _over_leaves(self, function: Callable[[Any, int], Any], state: State) -> State:
        """A function of the leaves and their axes of runs."""

        def over(part: Tree, before: int) -> Tree:
            axis = self._runs_axis(before)
            return jax.tree.map(lambda leaf: function(leaf, axis), part)

        return State(*map(over, state, (2, 1, 2)))


def _of_version(function: Callable[[Tree, Tree, Tree], Any]) -> Callable[[tuple[Tree, Tree], Tree], Any]:
    """A measure as a function of (params, state) and a batch."""
    return lambda version, batch: function(version[0], batch, version[1])


class EventMachine(CompiledMachine):
    """Event by event (event_loop.py)."""

    events_per_step = 1

    def tune(self, firsts: Iterable[Piece], runs: int) -> None:
        """How many events make a step depends on the number of runs."""
        self.events_per_step = events_per_step(self.problem, self.task, runs)

    def load(self, piece: Piece, capacity: int, runs: Runs) -> Events:
        room = capacity - piece.num_events

        def padded(column: Any) -> jax.Array:
            return jnp.asarray(np.concatenate([column, np.zeros((room, *column.shape[1:]), column.dtype)]))

        client, job = padded(piece.client), padded(piece.job)
        weight = padded(piece.weight.T.astype(kept_as(self.dtype)))
        args = (self.on_device.data, runs.keys, runs.deal, client, job)
        rows = self._compile("draw", self.task.draw, *args)(*args)
        return Events(client, job, padded(piece.read), padded(piece.write), padded(piece.closes), weight, rows)

    def advance(self, state: State, runs: Runs, loaded: Events, first: int, last: int) -> State:
        args = (state, self.on_device.data, runs, loaded, np.int32(first), np.int32(last))
        done: State = self._compile("advance", event_loop(self.task, self.events_per_step), *args, donate=(0,))(*args)
        return done

    def at_places(self, loaded: Events, read: NDArray[Any], write: NDArray[Any]) -> Events:
        """The same events with other slots to read and write."""
        room = loaded.read.shape[0] - len(read)
        return loaded._replace(read=jnp.asarray(np.pad(read, (0, room))), write=jnp.asarray(np.pad(write, (0, room))))


class WaveMachine(CompiledMachine):
    """Wave by wave (waves.py)."""

    def initial(self, seeds: tuple[int, ...], runs: int, num_slots: int) -> State:
        state = super().initial(seeds, runs, num_slots)
        if self.task.adds_up:  # the model in the making has a slot
            state = state._replace(acc=())
        placed: State = self.on_device.everywhere(state)
        return placed

    def on(self, on_device: OnDevice) -> WaveMachine:
        """The same machine on other devices."""
        made = copy.copy(self)
        made.on_device, made.compile_seconds = on_device, 0.0
        made._lock, made._compiled = threading.Lock(), {}
        if on_device.mesh is not None:
            made.width = -(-self.width // on_device.mesh.size) * on_device.mesh.size
        return made

    WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
    width = 1
    per_call = WAVES_PER_CALL[-1]
    _lanes_seconds, _gather_bytes = 0.0, 0

    @property
    def events_per_step(self) -> None:
        return None

    def tune(self, firsts: Iterable[Piece], runs: int) -> None:
        """The width at which the programs would take the least time, by a rough model of an accelerator.

        A wave's steps each start the kernels of a gradient, one after the other, and then compute for every lane.
        """
        pieces = list(firsts)
        job = self.task.job
        batch = job.batch_size or FULL_ROWS
        gradients = job.steps * -(-(job.batch_size or int(self.problem.sizes.max())) // batch)
        work = gradient_work(self.problem, batch)
        lane = runs * (6 * self.model_bytes / 3e12 + gradients * work.operations / 15e12)
        start = 1e-5 + gradients * work.kernels * 1e-6
        held = runs * max(self.model_bytes, work.held)
        fit = [w for w in self.WIDTHS if w * held <= WAVE_BYTES and w * runs * self.model_bytes <= 2**31] or [1]
        self.width = min(fit, key=lambda w: sum(len(wave_starts(p, w)) - 1 for p in pieces) * (start + w * lane))
        wave = start + self.width * lane
        self.per_call = max(n for n in WAVES_PER_CALL if n == 1 or n * wave <= CALL_SECONDS)
        self._lanes_seconds, self._gather_bytes = self.width * lane, self.width * runs * self.model_bytes

    def gains_from(self, devices: int) -> bool:
        """Whether a wave whose clients are dealt over so many devices is clearly faster, by the same rough model."""
        if self.width < devices:
            return False
        together = GATHER_SECONDS + self._gather_bytes / GATHER_BYTES_A_SECOND
        return self._lanes_seconds / devices + together < SHARE_WORTH * self._lanes_seconds

    def load(self, piece: Piece, capacity: int, runs: Runs) -> Loaded:
        loaded = load_waves(piece, self.width, self.per_call, capacity, kept_as(self.dtype))
        return loaded._replace(waves=self.on_device.everywhere(loaded.waves))

    def runs(
        self,
        seeds: tuple[int, ...],
        rules: list[int],
        hyper: Mapping[str, NDArray[np.float64]],
        clients: Mapping[str, NDArray[Any]],
    ) -> Runs:
        placed: Runs = self.on_device.everywhere(super().runs(seeds, rules, hyper, clients))
        return placed

    def advance(self, state: State, runs: Runs, loaded: Loaded, first: int, last: int) -> State:
        for call in range(loaded.calls):
            args = (state, self.on_device.data, runs, loaded.waves, np.int32(call))
            state = self._compile("advance", wave_loop(self.task, self._dealt), *args, donate=(0,))(*args)
        return state

    def _dealt(self, lanes: Any) -> Any:
        """[waves, width, …] arrays of lanes, dealt over the devices of the mesh, if there is one."""
        mesh = self.on_device.mesh
        if mesh is None:
            return lanes
        return jax.lax.with_sharding_constraint(lanes, over(mesh, None, LANES))  # type: ignore[no-untyped-call]
