"""The models in use: the current one, and those from which jobs that are out started. Nothing else is kept.

θ^{n+1} = θ^n + η_g Σ_{i∈S_n} ω_i(n) Δ_i    in the arrays' own type, of those that are trained

Those that are not are averaged as values (buffers.py). A round without updates gives θ^n another number. θ^{n+1} is
finite: steps that would make it otherwise are left out. A server rule of the simulator may take the sum's place.

As many models are in memory as there is room for; the oldest wait in a file (simulation/model_file.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.flower.arrays import Arrays, finite, is_finite, read, record_of, room_for
from fedtempo.flower.buffers import Buffers
from fedtempo.simulation.model_file import ModelFile, Place

if TYPE_CHECKING:
    from fedtempo.training.server_rules import Server, ServerRule

log = logging.getLogger("flwr")

Memory = Sequence[NDArray[Any]]
"""What a server rule remembers from round to round."""


class Step(NamedTuple):
    """A contribution to a round."""

    factor: float
    """η_g ω_i."""
    delta: Arrays
    norm: float
    """‖Δ_i‖."""
    weight: float = 0.0
    """ω_i, for server rules."""
    base: Arrays | None = None
    """θ^{ρ_i(n)}, for the server rule that mixes models."""
    client: int = -1
    """i, for server rules that tell clients apart."""
    share: float = 0.0
    """What p_i is in proportion to, for them."""
    values: Arrays | None = None
    """v_i of the arrays that are not trained."""
    even: float = 0.0
    """The weight with which these are averaged: ω_i at the stable step."""
    memories: Sequence[NDArray[Any]] = ()
    """Those in which `delta` lies, where they are fewer than its arrays."""

    @property
    def parts(self) -> Sequence[NDArray[Any]]:
        """All numbers of `delta`."""
        return self.memories or tuple(self.delta.values())

    @property
    def length(self) -> float:
        """How far it moves the model."""
        return abs(self.factor) * self.norm if self.factor else 0.0


class Model:
    """A model under one or more version numbers, and its serialised form once it has been asked for."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays: Arrays | None = arrays
        self._place: Place | None = None
        self._record: ArrayRecord | None = None

    @property
    def arrays(self) -> Arrays:
        """Its arrays, not to be written to; a StorageError if they were put away and cannot be read."""
        if self._arrays is None:
            assert self._place is not None
            return self._place.read()
        return self._arrays

    @property
    def record(self) -> ArrayRecord:
        """As Flower sends it, serialised once."""
        if self._record is None:
            arrays = self.arrays
            self._record = record_of(arrays)
            self._arrays = {name: read(array, arrays[name]) for name, array in self._record.items()}  # memory of both
        return self._record

    def forget_record(self) -> None:
        """Nobody will ask for it: its arrays keep their memory, and Flower's objects around them go."""
        self._record = None

    def put_away(self, file: ModelFile) -> None:
        """Wait in a file."""
        self._place = file.put(self.arrays)
        self._arrays = self._record = None

    def bring_back(self) -> None:
        """Be in memory again."""
        self._arrays, self._place = self.arrays, None


class Versions:
    """Models by version number."""

    def __init__(
        self,
        arrays: Arrays,
        number: int = 0,
        rule: RuleOnArrays | None = None,
        buffers: Buffers | None = None,
        *,
        file: ModelFile | None = None,
        room: float | None = None,
    ) -> None:
        """Models beyond so many bytes of `room` wait in the `file`; but for the current one, the oldest first."""
        self.number, self._rule = number, rule
        self._buffers = Buffers(arrays) if buffers is None else buffers
        self._file = file
        size = max(sum(array.nbytes for array in arrays.values()), 1)
        self._most = None if file is None or room is None else max(int(room // size), 1)
        """How many models may be in memory."""
        self._models: dict[int, Model] = {}
        self._numbers: dict[Model, int] = {}
        """How many numbers each model has."""
        self._in_memory: dict[Model, None] = {}
        """In the order in which they came."""
        self._holds: dict[int, int] = {}
        self._enter(number, Model(arrays))

    @property
    def arrays(self) -> Arrays:
        """The current model."""
        return self._models[self.number].arrays

    def base(self, number: int) -> Arrays:
        """The model from which a job started; a StorageError if it was put away and cannot be read."""
        return self._models[number].arrays

    def record(self) -> ArrayRecord:
        """The current model as Flower sends it, serialised once."""
        return self._models[self.number].record

    @property
    def model(self) -> Model:
        """The current model, to go back to by `put_back`."""
        return self._models[self.number]

    def put_back(self, model: Model) -> None:
        """The current version is this model from now on, which an earlier one was."""
        model.bring_back()
        self._leave(self.number)
        self._enter(self.number, model)

    @property
    def live(self) -> int:
        """How many models are kept."""
        return len(self._numbers)

    @property
    def in_memory(self) -> int:
        """How many of them are in memory."""
        return len(self._in_memory)

    def hold(self) -> None:
        """A job starts from the current version."""
        self._holds[self.number] = self._holds.get(self.number, 0) + 1

    def release(self, number: int) -> None:
        """A job that started from this version is over."""
        self._holds[number] -= 1
        if not self._holds[number]:
            del self._holds[number]
            if number != self.number:
                self._leave(number)

    def advance(self, steps: Sequence[Step]) -> list[int]:
        """Make the next version; the steps' arrays are used up. Says which steps are left out, the last first.

        Where the new model would not be finite, the longest steps are left out until it is.
        """
        model, left_out = self._models[self.number], []
        before = model.arrays
        trained = self._buffers.trained(before)
        with np.errstate(all="ignore"):
            if self._rule is None:
                for step in steps:
                    for part in step.parts:
                        np.multiply(part, step.factor, out=part)
            taken = list(range(len(steps)))
            while taken:
                if self._rule is None:
                    moved = _moved(trained, [steps[place] for place in taken])
                else:
                    moved = self._rule.moved(trained, [steps[place] for place in taken])
                if moved is not None:
                    if self._buffers.names:
                        given = [(steps[place].even, steps[place].values or {}) for place in taken]
                        moved |= self._buffers.averaged(before, given)
                        moved = {name: moved[name] for name in before}
                    model = Model(moved)
                    break
                longest = max(taken, key=lambda place: steps[place].length)
                taken.remove(longest)
                left_out.append(longest)
        if model is not self.model:
            self.model.forget_record()
        self._enter(self.number + 1, model)
        if self.number not in self._holds:
            self._leave(self.number)
        self.number += 1
        return sorted(left_out, reverse=True)

    def make_room(self) -> None:
        """Put the oldest models away until no more are in memory than may be; a StorageError if the disk refuses."""
        while self._most is not None and self._file is not None and len(self._in_memory) > self._most:
            oldest = next(iter(self._in_memory))  # not the current one, which has come last
            oldest.put_away(self._file)
            del self._in_memory[oldest]

    def close(self) -> None:
        """No model is needed any more but the current one."""
        if self._file is not None:
            self._file.close()

    def _enter(self, number: int, model: Model) -> None:
        self._models[number] = model
        self._numbers[model] = self._numbers.get(model, 0) + 1
        self._in_memory.pop(model, None)
        self._in_memory[model] = None

    def _leave(self, number: int) -> None:
        model = self._models.pop(number)
        self._numbers[model] -= 1
        if not self._numbers[model]:
            del self._numbers[model]
            self._in_memory.pop(model, None)


class RuleOnArrays:
    """A server rule of the simulator at work on a model's floating arrays, and what it remembers.

    It sees numbers of 32 or 64 bits: halves as singles, complex ones as pairs.
    """

    def __init__(self, server: Server, server_lr: float, arrays: Arrays, memory: Memory | None = None) -> None:
        import jax  # by a server rule alone

        from fedtempo.simulation.engine.numerics import numerics
        from fedtempo.training.robust_rules import RobustRule
        from fedtempo.training.server_rules import MixModels, server_rule

        self._floating = [name for name, array in arrays.items() if array.dtype.kind in "fc"]
        if not self._floating:
            raise InputError(
                f"server: {server.label} updates floating-point arrays, but the model has none; leave server out"
            )
        self.mixes = isinstance(server, MixModels)
        """Whether it asks for the models from which jobs started."""
        self.tells_apart = isinstance(server, RobustRule)
        """Whether it asks whose contributions they are, and how much they count."""
        self._needed, self._label = server.needed if isinstance(server, RobustRule) else 0, server.label
        self._numerics, self._lr = numerics, {"server_lr": np.float64(server_lr)}
        self._rule = server_rule(server=server)
        self._add, self._close = _compiled(self._rule)
        with numerics("float64"):
            first = self._rule.remembered(self._rule.start(self._seen(arrays)))
        leaves, self._tree = jax.tree.flatten(first)
        self.memory: Memory = [np.asarray(leaf) for leaf in leaves]
        if memory is not None:
            if [part.shape for part in memory] != [part.shape for part in self.memory]:
                raise InputError(
                    f"checkpoint: the saved state of {server.label} has another form than here; it may come from "
                    "another version of Optax; install that version, or choose another folder"
                )
            self.memory = memory

    def look(self, clients: int) -> None:
        """Say so where the rule needs more clients than there are."""
        if clients < self._needed:
            log.warning(
                "%s needs updates of %d clients before its first step, but %d are connected: the model does not "
                "change until more connect. Connect more, give a smaller last, or leave the rule out",
                self._label,
                self._needed,
                clients,
            )

    def set_rate(self, server_lr: float) -> None:
        """Go on at this η_g."""
        self._lr = {"server_lr": np.float64(server_lr)}

    def moved(self, arrays: Arrays, steps: Sequence[Step]) -> Arrays | None:
        """The arrays after a round of these steps; None, and nothing remembered, if they are not finite."""
        import jax

        from fedtempo.training.server_rules import Arrival
        from fedtempo.training.solvers import Answer, Sent

        with self._numerics("float64"):
            acc = self._rule.start(self._seen(arrays))
            if not self.mixes:
                acc = self._rule.recalled(acc, jax.tree.unflatten(self._tree, self.memory))
                acc = acc._replace(mass=np.float64(0))
            for step in steps:
                base = Sent({} if step.base is None else self._seen(step.base))
                weight, share = np.array([step.weight, step.share])
                arrival = Arrival(Answer(self._seen(step.delta)), weight, share, base, np.int32(step.client))
                acc = self._add(acc, arrival, self._lr)
            found, acc = self._close(acc, self._lr)
            memory = [np.asarray(leaf) for leaf in jax.tree.leaves(self._rule.remembered(acc))]
        moved = {name: _kept(found[name], theta) for name, theta in arrays.items()}
        if not finite(*moved.values(), *memory):
            return None
        self.memory = memory
        return moved

    def _seen(self, arrays: Arrays) -> Arrays:
        """The floating arrays as the rule sees them."""
        return {name: _seen(arrays[name]) for name in self._floating}


@lru_cache(maxsize=8)
def _compiled(rule: ServerRule) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import jax

    return jax.jit(rule.add), jax.jit(rule.close)


def _seen(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "c":
        array = array.reshape(*array.shape, 1).view(array.real.dtype)
    return array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64, copy=False)


def _kept(found: Any, theta: NDArray[Any]) -> NDArray[Any]:
    """What `_seen` has shown, in theta's type and memory of its own."""
    array = np.asarray(found).astype(theta.real.dtype)
    return array.view(theta.dtype).reshape(theta.shape) if theta.dtype.kind == "c" else array


def _moved(arrays: Arrays, steps: list[Step]) -> Arrays | None:
    """The arrays after these steps, or None if they are not finite; a step that is alone gives its memory."""
    first, *others = steps
    moved, parts = room_for(arrays) if others else ({**first.delta}, first.parts)
    for name, theta in arrays.items():
        out = moved[name]
        np.add(theta, first.delta[name], out=out)
        for step in others:
            np.add(out, step.delta[name], out=out)
    return moved if all(map(is_finite, parts)) else None
