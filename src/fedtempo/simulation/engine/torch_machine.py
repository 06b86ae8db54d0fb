"""Training by PyTorch itself, event by event: the module runs as it is, on its processor or CUDA device.

    Δ ← K steps of the module from slots[read];   acc ← acc + η_g ω Δ;   at a round's end slots[write] ← acc

The program, the rows of each batch, the weights and the order of events are those of every other engine. Buffers are
averaged as values at a round's end (training/state_average.py). Corrections, compression, server rules and Optax's
solvers are JAX functions of pytrees; here they are called with the module's parameters by name.

A cell is one run of one seed. A slot holds a model for every cell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtempo.errors import InputError, StorageError
from fedtempo.grid import RATE
from fedtempo.problems.problem import Problem
from fedtempo.problems.torch.data import first_line
from fedtempo.problems.torch.module import FlatModule, Values, as_array, seed_generator, seeded
from fedtempo.problems.torch.problem import TorchProblem
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.numerics import Precision, kept_as
from fedtempo.simulation.engine.program import FIRST, Piece
from fedtempo.simulation.engine.task import SHARE, Data, Task
from fedtempo.simulation.engine.torch_slots import SpillingSlots, restored, stored, tree_of
from fedtempo.simulation.engine.torch_work import Bridge, SGDGraph, is_sgd, solver_of, taken
from fedtempo.simulation.engine.waiting import SLOT
from fedtempo.training.batches import batch_key, compression_key, init_key, job_key, noise_key
from fedtempo.training.client import Kept
from fedtempo.training.corrections import Begun
from fedtempo.training.server_contract import Arrival
from fedtempo.training.server_rules import WeightedSum
from fedtempo.training.solvers import STEPS, Answer, LocalOptax, LocalRule, Sent
from fedtempo.training.state_average import StateAverage
from fedtempo.training.torch_solvers import LocalTorch

log = logging.getLogger(__name__)

EVALUATED_AT_ONCE = 1024
"""Rows that the module is given at once when it is measured, at most."""

Flats = tuple[Tensor, ...]


class Version(NamedTuple):
    """A model of one cell, and what goes to clients with it."""

    values: Values
    broadcast: Any = ()


@dataclass
class TorchState:
    """Everything that runs carry from event to event; changed in place."""

    seeds: int
    slots: MutableMapping[int, list[Version]]
    """By slot: a model for every cell."""
    acc: list[Any]
    """By cell: the model as it grows, or what the server rule holds."""
    buffers: list[Flats]
    """By cell: those of the newest version."""
    mean: list[Flats]
    """By cell: the mean of those of the round in the making."""
    mass: list[float]
    """By cell: Σ ω_i of that round, at the stable step."""
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    """By client and cell: what a correction or a compression keeps."""
    own: dict[tuple[int, int], Flats] = field(default_factory=dict)
    """By client and cell: buffers, where clients keep theirs."""


class TorchRuns(NamedTuple):
    """What tells runs that go together apart."""

    seeds: tuple[int, ...]
    keys: jax.Array
    rule: list[int]
    hyper: dict[str, NDArray[np.float64]]
    clients: Mapping[str, NDArray[Any]]

    @property
    def cells(self) -> int:
        return len(self.seeds) * len(self.rule)


class LoadedPiece(NamedTuple):
    """A piece, and what is drawn for it."""

    piece: Piece
    rows: Tensor
    """[events, seeds, steps, batch]"""
    noise: NDArray[np.int64]
    """[events, seeds] seeds of PyTorch's generator."""


class TorchMachine(Machine):
    """By PyTorch. A module of its own for each session: use one machine in one thread at a time."""

    problem: TorchProblem

    def __init__(self, problem: Problem, task: Task, dtype: Precision, local: LocalRule) -> None:
        super().__init__(problem, task, dtype)
        self._spills = False
        assert isinstance(problem, TorchProblem)
        problem.check_device()
        if dtype == "tensorfloat32":
            raise InputError("dtype: the PyTorch engine computes in float32 or float64; choose one of them")
        if not isinstance(local, (LocalOptax, LocalTorch)):
            raise InputError(
                f"local: {local!r} is written for JAX; the PyTorch engine runs ft.LocalSGD, ft.LocalOptax and "
                "ft.torch.LocalTorch, or choose engine='events'"
            )
        self._local = local
        self._double = dtype == "float64"
        self._solver = solver_of(local, self._tree, self._numbers)
        self._plain = type(task.server) is WeightedSum
        self._bridge = Bridge(task)
        by_numbers = task.job.batch_size is not None and problem.items is None
        plain = is_sgd(local) and task.work.correction is None
        self._graphable = problem.device.type == "cuda" and by_numbers and plain
        self._graphs: dict[int, SGDGraph] = {}

    def spilling(self) -> TorchMachine:
        """The same machine with only as many versions in memory as there are slots; the others wait in a file."""
        made = TorchMachine(self.problem, self.task, self.dtype, self._local)
        made._spills = True
        return made

    @cached_property
    def flat(self) -> FlatModule:
        """The module that models are run in."""
        return FlatModule(self.problem.template, self.problem.device, double=self._double)

    @cached_property
    def _rows(self) -> Any:
        return self.problem.tensors(self.problem.rows, double=self._double)

    @cached_property
    def _test(self) -> Any:
        test = self.problem.test
        return None if test is None else self.problem.tensors(test, double=self._double)

    # -- before the first event

    def initial(self, seeds: tuple[int, ...], runs: int, num_slots: int) -> TorchState:
        cells: list[Values] = []
        for seed in seeds:
            module = FlatModule(self.problem.module_of(init_key(seed)), self.problem.device, double=self._double)
            cells += [module.values()] * runs
        started = [self._started(values) for values in cells]
        versions = [Version(values, broadcast) for values, (_, broadcast) in zip(cells, started, strict=True)]
        buffers = [values.buffers for values in cells]
        accs = [acc for acc, _ in started]
        slots: MutableMapping[int, list[Version]] = {FIRST: versions}
        if self._spills:
            slots = SpillingSlots(num_slots, slots)
        return TorchState(len(seeds), slots, accs, buffers, list(buffers), [0.0] * len(cells))

    def _started(self, values: Values) -> tuple[Any, Any]:
        if self._plain:
            return tuple(x.clone() for x in values.trained), ()
        acc = self.task.server.start(self._tree(values.trained))
        return acc, self.task.server.broadcast(acc)

    def runs(
        self,
        seeds: tuple[int, ...],
        rules: list[int],
        hyper: Mapping[str, NDArray[np.float64]],
        clients: Mapping[str, NDArray[Any]],
    ) -> TorchRuns:
        return TorchRuns(seeds, jnp.stack([batch_key(seed) for seed in seeds]), rules, dict(hyper), clients)

    def tune(self, firsts: Iterable[Piece], runs: int) -> None:
        """Nothing depends on the programs here."""

    @property
    def events_per_step(self) -> int:
        return 1

    def load(self, piece: Piece, capacity: int, runs: TorchRuns) -> LoadedPiece:
        client, job = (jnp.asarray(_padded(x, capacity)) for x in (piece.client, piece.job))
        rows = torch.from_numpy(np.asarray(self._draw(runs.keys, client, job)).astype(np.int64))
        if self.problem.items is None:
            rows = rows.to(self.problem.device)
        noise = jnp.stack([noise_key(seed) for seed in runs.seeds])
        return LoadedPiece(piece, rows, _numbers(_words(noise, client, job)))

    @cached_property
    def _draw(self) -> Callable[..., jax.Array]:
        offset = jnp.asarray(self.problem.offsets[None, :-1], dtype=jnp.int32)
        data = Data(None, offset, jnp.asarray(self.problem.sizes, dtype=jnp.int32))
        return jax.jit(lambda keys, client, job: self.task.draw(data, keys, None, client, job))

    # -- training

    def advance(self, state: TorchState, runs: TorchRuns, loaded: LoadedPiece, first: int, last: int) -> TorchState:
        piece = loaded.piece
        spilling = state.slots if isinstance(state.slots, SpillingSlots) else None
        with seeded(self.problem.device):
            for event in range(first, last):
                if spilling is not None:
                    spilling.come_to(piece, event)
                try:
                    self._event(state, runs, loaded, event)
                except StorageError:
                    raise
                except InputError as error:
                    raise InputError(f"client {piece.client[event]}, job {piece.job[event]}: {error}") from error
                if piece.closes[event]:
                    self._close(state, runs, int(piece.write[event]))
        if spilling is not None:
            spilling.come_to(piece, last)
        return state

    def _event(self, state: TorchState, runs: TorchRuns, loaded: LoadedPiece, event: int) -> None:
        piece, per_seed = loaded.piece, len(runs.rule)
        client, job = int(piece.client[event]), int(piece.job[event])
        versions = state.slots[int(piece.read[event])]
        rates, steps = runs.clients.get(RATE), runs.clients.get(STEPS)
        own_steps = self.task.job.steps if steps is None else int(steps[client])
        for s, seed in enumerate(runs.seeds):
            which = loaded.rows[event, s, :own_steps]
            graph = self._graph(which, runs)
            batches = self._batches(which, client, own_steps) if graph is None else ()
            for r, rule in enumerate(runs.rule):
                cell = s * per_seed + r
                hyper = {name: float(values[r]) for name, values in runs.hyper.items()}
                if rates is not None:
                    hyper[RATE] *= float(rates[client])
                seed_generator(int(loaded.noise[event, s]), self.problem.device)
                begun = state.own.get((client, cell))
                key = None
                if self.task.work.compression is not None:
                    key = job_key(compression_key(seed), client, job)
                kept = state.kept.get((client, cell))
                work = batches if graph is None else partial(graph, which)
                answer, buffers, kept = self._job(versions[cell], begun, work, client, hyper, kept, key)
                if kept is not None:
                    state.kept[client, cell] = kept
                weight = float(piece.weight[rule, event])
                self._add(state, cell, client, answer, weight, versions[cell], runs, hyper)
                if buffers:
                    even = float(piece.weight[rule + len(piece.weight) // 2, event])
                    self._add_buffers(state, cell, buffers, even)
                    if self.problem.buffers == "client":
                        state.own[client, cell] = buffers

    def _graph(self, which: Tensor, runs: TorchRuns) -> SGDGraph | None:
        """A job's steps recorded, on CUDA and where a module can be; else None."""
        if not self._graphable:
            return None
        if len(which) not in self._graphs:
            self._train_mode()
            hyper = {name: float(values[0]) for name, values in runs.hyper.items()}
            try:
                self._graphs[len(which)] = SGDGraph(self.flat, self.problem.loss_of, self._rows, which, hyper)
            except Exception as error:  # as of a module that looks at values: it runs step by step
                log.info("%s cannot be recorded as a CUDA graph: %s", self.problem.name, first_line(error))
                self._graphable = False
                self.__dict__.pop("flat", None)  # a fresh copy: the recording may have left it in between
                return None
        return self._graphs[len(which)]

    def _batches(self, which: Tensor, client: int, steps: int) -> Sequence[Any]:
        """The batch of each step."""
        if self.task.job.batch_size is None:
            begin, end = int(self.problem.offsets[client]), int(self.problem.offsets[client + 1])
            whole = self.problem.batch_of(taken(self._rows, slice(begin, end)))
            return [whole] * steps
        if self.problem.items is not None:
            return [self.problem.batch_of(self._rows[which[k]]) for k in range(steps)]
        return [taken(self._rows, which[k]) for k in range(steps)]

    def _job(
        self,
        version: Version,
        begun_buffers: Flats | None,
        batches: Sequence[Any] | Callable[[Flats, Mapping[str, float]], Flats],
        client: int,
        hyper: dict[str, float],
        kept: Kept | None,
        key: jax.Array | None,
    ) -> tuple[Any, Flats, Kept | None]:
        """What a client sends back: Δ as flat vectors or as an `Answer` of JAX arrays, its buffers, what it keeps.

        `batches` are those of its steps, or all steps recorded.
        """
        flat, values = self.flat, version.values
        flat.put(values)
        if begun_buffers is not None:
            flat.put_buffers(begun_buffers)
        self._train_mode()
        bridge = self._bridge if self._bridge.needed else None
        begun: Begun | None = None
        if bridge is not None:
            kept = kept if kept is not None else self.task.work.start(self._tree(values.trained))
            sent = Sent(self._tree(values.trained), version.broadcast)
            begun = bridge.begin(sent, kept, partial(self._full_gradient, client))
            flat.put(values)  # a full gradient may have moved it
            self._train_mode()
        corrected: Callable[[], Flats] | None = None
        if bridge is not None and begun is not None:

            def corrected() -> Flats:
                gradient = bridge.corrected(self._tree(flat.gradient), self._tree(flat.trained), begun)
                return self.flat.flat(gradient)

        if callable(batches):
            moved = batches(values.trained, hyper)
        else:
            moved = self._solver(flat, self.problem.loss_of, batches, values.trained, hyper, corrected)
        buffers = tuple(x.clone() for x in flat.buffers) if self.problem.form.stateful else ()
        if bridge is None:
            return moved, buffers, kept
        assert kept is not None
        steps = 0 if callable(batches) else len(batches)  # of which a correction alone asks
        answer, kept = bridge.finish(self._tree(moved), kept, begun, steps, self._numbers(hyper), key)
        return answer, buffers, kept

    def _train_mode(self) -> None:
        self.flat.module.train()
        if self.problem.buffers == "frozen":
            _frozen_statistics(self.flat.module)

    def _full_gradient(self, client: int, here: Any) -> Any:
        """∇L_i of all rows of a client, at a model by name."""
        flat = self.flat
        with torch.no_grad():
            for own, given in zip(flat.trained, flat.flat(here), strict=True):
                own.copy_(given)
        flat.collect_gradients()
        flat.module.eval()  # that of the loss as it is measured
        begin, end = int(self.problem.offsets[client]), int(self.problem.offsets[client + 1])
        for start in range(begin, end, EVALUATED_AT_ONCE):
            stop = min(start + EVALUATED_AT_ONCE, end)
            batch = self.problem.batch_of(taken(self._rows, slice(start, stop)))
            (self.problem.loss_of(flat.module, batch) * ((stop - start) / (end - begin))).backward()
        return self._tree(flat.gradient)

    def _add(
        self,
        state: TorchState,
        cell: int,
        client: int,
        answer: Any,
        weight: float,
        version: Version,
        runs: TorchRuns,
        hyper: dict[str, float],
    ) -> None:
        """A contribution enters the round."""
        if self._plain:
            change = self.flat.flat(answer.change) if isinstance(answer, Answer) else answer
            for own, part in zip(state.acc[cell], change, strict=True):
                own.add_(part, alpha=hyper["server_lr"] * weight)
            return
        if not isinstance(answer, Answer):
            answer = Answer(self._tree(answer))
        number = kept_as(self.dtype).type
        share = number(runs.clients[SHARE][client])
        sent = Sent(self._tree(version.values.trained), version.broadcast)
        arrival: Any = Arrival(answer, number(weight), share, sent, np.int32(client))
        state.acc[cell] = self._bridge.add(state.acc[cell], arrival, self._numbers(hyper))

    def _close(self, state: TorchState, runs: TorchRuns, slot: int) -> None:
        """The round's end: new versions in a slot."""
        made = []
        for cell in range(runs.cells):
            if state.mass[cell]:
                state.buffers[cell] = self._mixed(state.buffers[cell], state.mean[cell], min(1.0, state.mass[cell]))
                state.mass[cell] = 0.0
            broadcast: Any = ()
            if self._plain:
                trained = tuple(x.clone() for x in state.acc[cell])
            else:
                hyper = {name: float(values[cell % len(runs.rule)]) for name, values in runs.hyper.items()}
                model, state.acc[cell] = self._bridge.close(state.acc[cell], self._numbers(hyper))
                trained, broadcast = self.flat.flat(model), self.task.server.broadcast(state.acc[cell])
            made.append(Version(Values(trained, state.buffers[cell]), broadcast))
        state.slots[slot] = made

    def _add_buffers(self, state: TorchState, cell: int, buffers: Flats, weight: float) -> None:
        """A client's values enter the round's mean; of a weight of zero they do not."""
        if weight > 0:
            state.mass[cell] += weight
            share = weight / state.mass[cell]
            state.mean[cell] = self._mixed(state.mean[cell], buffers, share)

    def _mixed(self, one: Flats, other: Flats, share: float) -> Flats:
        """Two sets of buffers as one, as `StateAverage` has it."""
        mixed = []
        for a, b, mean in zip(one, other, self._mean_of, strict=True):
            if not a.is_floating_point():
                mixed.append(torch.maximum(a, b))
            elif mean is None:
                mixed.append((1 - share) * a + share * b)
            else:
                apart = other[mean] - one[mean]
                mixed.append((1 - share) * a.clamp(min=0) + share * b.clamp(min=0) + share * (1 - share) * apart**2)
        return tuple(mixed)

    @cached_property
    def _mean_of(self) -> tuple[int | None, ...]:
        """For each buffer the place of the mean that it is a variance about; None of the others."""
        by_name = sorted(self.flat.buffer_names)  # the order of a tree's leaves
        average = StateAverage.of(self.problem.state_shapes)
        means = {name: by_name[k] for name, k in zip(by_name, average.mean_of, strict=True) if k is not None}
        names = self.flat.buffer_names
        return tuple(names.index(means[name]) if name in means else None for name in names)

    # -- between PyTorch's vectors and JAX's trees

    def _tree(self, flats: Flats) -> dict[str, jax.Array]:
        return {name: jnp.asarray(as_array(view)) for name, view in self.flat.by_name(flats).items()}

    def _numbers(self, hyper: Mapping[str, float]) -> dict[str, Any]:
        return {name: kept_as(self.dtype).type(value) for name, value in hyper.items()}

    # -- measuring

    def measure(self, state: TorchState, runs: TorchRuns, slot: int) -> dict[str, np.ndarray[Any, Any]]:
        versions = state.slots[slot]
        per_seed = len(versions) // state.seeds
        cells = [self._measured(version.values) for version in versions]
        out: dict[str, np.ndarray[Any, Any]] = {}
        for name in cells[0]:
            values = np.array([cell[name] for cell in cells])  # [cells, (clients)]
            split = values.reshape(-1, per_seed, *values.shape[1:])
            out[name] = np.moveaxis(split, 1, -1)
        return out

    def _measured(self, values: Values) -> dict[str, NDArray[np.float64] | float]:
        flat, problem = self.flat, self.problem
        flat.put(values)
        flat.module.eval()
        with torch.no_grad():
            tested = self._test is not None
            on_clients = self._means(self._rows, problem.offsets, metrics=not tested)
            out: dict[str, Any] = {f"client_{name}": means for name, means in on_clients.items()}
            if tested:
                size = len(jax.tree.leaves(problem.test)[0])
                on_test = self._means(self._test, np.array([0, size]), metrics=True)
                out |= {f"test_{name}": float(means[0]) for name, means in on_test.items()}
        return out

    def _means(self, rows: Any, offsets: NDArray[Any], *, metrics: bool) -> dict[str, NDArray[np.float64]]:
        """[groups] of each measure, the mean over a group's rows."""
        sums: dict[str, list[Any]] = {}
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            total: dict[str, Any] = {}
            for start in range(begin, end, EVALUATED_AT_ONCE):
                stop = min(start + EVALUATED_AT_ONCE, end)
                batch = self.problem.batch_of(taken(rows, slice(start, stop)))
                if metrics:
                    found = self.problem.measures_of(self.flat.module, batch)
                else:
                    found = {"loss": self.problem.loss_of(self.flat.module, batch)}
                for name, value in found.items():
                    share = (stop - start) / (end - begin)
                    total[name] = total.get(name, 0.0) + torch.as_tensor(value, dtype=torch.float64) * share
            for name, value in total.items():
                sums.setdefault(name, []).append(value)
        return {name: torch.stack([x.cpu() for x in values]).numpy() for name, values in sums.items()}

    def model(self, state: TorchState, slot: int) -> list[np.ndarray[Any, Any]]:
        versions = state.slots[slot]
        leaves = [jax.tree.leaves(self._arrays(version.values)) for version in versions]
        found = []
        for k in range(len(leaves[0])):
            cells = np.stack([np.asarray(model[k]) for model in leaves])
            split = cells.reshape(state.seeds, -1, *cells.shape[1:])
            found.append(np.moveaxis(split, 1, -1))
        return found

    def _arrays(self, values: Values) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Parameters, and the buffers that are averaged, by name."""
        trained = {name: as_array(view) for name, view in self.flat.by_name(values.trained).items()}
        if not self.problem.form.stateful:
            return trained, {}
        return trained, dict(zip(self.flat.buffer_names, map(as_array, values.buffers), strict=True))

    def measure_bytes(self, runs: int) -> int:
        return 64 * EVALUATED_AT_ONCE * 1024

    # -- the state, as sessions handle it

    def room(self, state: TorchState) -> int:
        return 1 << 30  # a slot takes memory when it is written to

    def grown(self, state: TorchState, num_slots: int) -> TorchState:
        return state

    def narrowed(self, state: TorchState, kept: Sequence[int]) -> TorchState:
        per_seed = len(state.acc) // state.seeds
        cells = [seed * per_seed + run for seed in range(state.seeds) for run in kept]
        place = {cell: k for k, cell in enumerate(cells)}

        def some(values: Sequence[Any]) -> list[Any]:
            return [values[cell] for cell in cells]

        def placed(by_cell: Mapping[tuple[int, int], Any]) -> dict[tuple[int, int], Any]:
            return {(i, place[cell]): value for (i, cell), value in by_cell.items() if cell in place}

        return TorchState(
            state.seeds,
            {slot: some(versions) for slot, versions in state.slots.items()},
            some(state.acc),
            some(state.buffers),
            some(state.mean),
            some(state.mass),
            placed(state.kept),
            placed(state.own),
        )

    def wait(self, state: TorchState) -> None:
        if self.problem.device.type == "cuda":
            torch.cuda.synchronize(self.problem.device)

    def saved(self, state: TorchState) -> dict[str, NDArray[Any]]:
        out: dict[str, NDArray[Any]] = {"mass": np.array(state.mass)}

        def add(name: str, tree: Any) -> None:
            for k, leaf in enumerate(jax.tree.leaves(tree)):
                out[f"{name}.{k}"] = stored(leaf)

        if isinstance(state.slots, SpillingSlots):
            out |= state.slots.saved()
        else:
            for slot, versions in state.slots.items():
                for cell, version in enumerate(versions):
                    add(f"{SLOT}{slot}.{cell}", version)
        for cell, acc in enumerate(state.acc):
            add(f"acc.{cell}", acc)
            add(f"buffers.{cell}", state.buffers[cell])
            add(f"mean.{cell}", state.mean[cell])
        for (client, cell), kept in state.kept.items():
            add(f"kept.{client}.{cell}", kept)
        for (client, cell), buffers in state.own.items():
            add(f"own.{client}.{cell}", buffers)
        return out

    def restored(self, state: TorchState, saved: Mapping[str, NDArray[Any]]) -> TorchState:
        def back(name: str, like: Any) -> Any:
            leaves, structure = jax.tree.flatten(like)
            return jax.tree.unflatten(structure, [restored(saved[f"{name}.{k}"], x) for k, x in enumerate(leaves)])

        first = state.slots[FIRST]
        cells = range(len(state.acc))
        start = [self.task.work.start(self._tree(version.values.trained)) for version in first]
        slots = state.slots
        slots.clear()
        for slot in sorted({int(name.split(".")[1]) for name in saved if name.startswith(SLOT)}):
            whole = saved.get(f"{SLOT}{slot}")  # one by one, if some waited in a file
            each = [back(f"{SLOT}{slot}.{cell}", first[cell]) for cell in cells] if whole is None else None
            slots[slot] = tree_of(np.asarray(whole), first) if each is None else each
        return TorchState(
            state.seeds,
            slots,
            [back(f"acc.{cell}", state.acc[cell]) for cell in cells],
            [back(f"buffers.{cell}", state.buffers[cell]) for cell in cells],
            [back(f"mean.{cell}", state.buffers[cell]) for cell in cells],
            [float(mass) for mass in saved["mass"]],
            {(i, cell): back(f"kept.{i}.{cell}", start[cell]) for i, cell in _pairs(saved, "kept")},
            {(i, cell): back(f"own.{i}.{cell}", state.buffers[cell]) for i, cell in _pairs(saved, "own")},
        )


def _pairs(saved: Iterable[str], kind: str) -> list[tuple[int, int]]:
    """The clients and cells of which something of a kind is saved."""
    parts = [name.split(".") for name in saved if name.startswith(f"{kind}.")]
    return sorted({(int(client), int(cell)) for _, client, cell, *_ in parts})


def job_seed(seed: int, client: int, job: int) -> int:
    """What PyTorch's generator is seeded with before a job: dropout, and random items, follow from it."""
    return int(_numbers(_words(noise_key(seed)[None], jnp.int32(client)[None], jnp.int32(job)[None]))[0, 0])


@jax.jit
def _words(keys: jax.Array, client: jax.Array, job: jax.Array) -> jax.Array:
    """[events, seeds, 2] 32-bit words of each job of each seed."""

    def of_job(key: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        return jax.random.key_data(job_key(key, i, j))

    of_event = jax.vmap(of_job, (0, None, None))
    found: jax.Array = jax.vmap(of_event, (None, 0, 0))(keys, client, job)
    return found


def _numbers(words: jax.Array) -> NDArray[np.int64]:
    """Two words of 32 bits as one number of 63."""
    pair = np.asarray(words).astype(np.uint64)
    return ((pair[..., 0] << np.uint64(31)) ^ pair[..., 1]).astype(np.int64) & np.int64(2**63 - 1)


def _padded(column: NDArray[Any], capacity: int) -> NDArray[Any]:
    return np.concatenate([column, np.zeros(max(0, capacity - len(column)), column.dtype)])


def _frozen_statistics(module: nn.Module) -> None:
    """Parts that keep running statistics use these instead of a batch's, and leave them as they are."""
    for part in module.modules():
        if getattr(part, "track_running_stats", False):
            part.eval()
