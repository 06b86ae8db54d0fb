"""Training event by event with more model versions than there is room for: those that are read last wait in a file.

    an event      reads slot s: if that waits in the file, it is brought back in the place of the version that is read
                  last; what is overwritten before it is read again is not kept

Which slots come next is known from the program. Between two moves events are trained by the compiled loop of versions
in memory (event_loop.py), to the same bits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.simulation.engine.machine import EventMachine
from fedtempo.simulation.engine.program import FIRST, Piece
from fedtempo.simulation.engine.streamed import StreamedMachine
from fedtempo.simulation.engine.task import Runs, State, put
from fedtempo.simulation.model_file import ModelFile, Place

LEAST = FIRST + 1
"""Places of versions in memory, at the least."""
NEVER, OVERWRITTEN = math.inf, -1
SLOT = "slot."
"""How a version is called among what is saved."""


class Uses:
    """When the slots of a piece are read and written. An event reads, then writes; points are measured in between."""

    def __init__(self, piece: Piece | None = None) -> None:
        self._when: dict[int, list[int]] = {}
        self._writes: set[tuple[int, int]] = set()
        if piece is None:
            return
        found = [(3 * e, slot, False) for e, slot in enumerate(piece.read.tolist())]
        found += [(3 * e + 1, slot, True) for e, slot in enumerate(piece.write.tolist())]
        found += [(3 * point.event - 1, point.slot, False) for point in piece.points]
        for when, slot, writes in sorted(found):
            self._when.setdefault(slot, []).append(when)
            if writes:
                self._writes.add((when, slot))

    def next(self, slot: int, event: int, *, has_read: bool = False) -> float:
        """When it is read next, from an event on (`has_read`: from its write on); `OVERWRITTEN` if written before."""
        when = self._when.get(slot, [])
        k = bisect_right(when, 3 * event if has_read else 3 * event - 1)
        if k == len(when):
            return NEVER
        return OVERWRITTEN if (when[k], slot) in self._writes else when[k]


def read_last(slots: Iterable[int], uses: Uses, event: int, *, has_read: bool = False) -> tuple[int, bool]:
    """The slot that is read last, as `Uses.next` has it, and whether it is read at all; of several the first."""
    when = {slot: uses.next(slot, event, has_read=has_read) for slot in slots}
    slot = min(when, key=lambda slot: (when[slot] != OVERWRITTEN, -when[slot]))
    return slot, when[slot] != OVERWRITTEN


class LoadedPiece(NamedTuple):
    """A piece, made ready, and when it needs which slots."""

    events: Any
    piece: Piece
    uses: Uses


def spill_file() -> ModelFile:
    """A file for versions, which is gone when the process ends."""
    return ModelFile(otherwise="and there is no room for them in memory")


@dataclass
class Spilled:
    """The state of runs; changed in place."""

    state: State
    """Its slots are the places of the versions that are in memory."""
    places: dict[int, int]
    """By slot: where its version lies in memory. The order is that in which they came."""
    free: list[int]
    """Places without a version."""
    away: dict[int, Place] = field(default_factory=dict)
    """By slot: where its version lies in the file, also while a copy is in memory."""
    file: ModelFile = field(default_factory=spill_file)
    uses: Uses = field(default_factory=Uses)
    """Those of the piece that is trained."""
    event: int = 0
    """How far that is."""


class Later:
    """The bytes of a version, read when they are asked for."""

    def __init__(self, leaves: Callable[[], list[NDArray[Any]]]) -> None:
        self._leaves = leaves

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        arrays = self._leaves()
        return np.concatenate([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in arrays])

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (np.asarray(self),)


class SpillingMachine(EventMachine):
    """Event by event, with versions in a file."""

    def tune(self, firsts: Iterable[Piece], runs: int) -> None:
        """One event after the other: between any two versions may have to move."""
        self.events_per_step = 1

    def initial(self, seeds: tuple[int, ...], runs: int, num_slots: int) -> Spilled:  # type: ignore[override]
        """`num_slots`: versions that there is room for."""
        state = super().initial(seeds, runs, max(LEAST, num_slots))
        places = super().room(state)
        return Spilled(state, {FIRST: FIRST}, [place for place in range(places) if place != FIRST])

    def load(self, piece: Piece, capacity: int, runs: Runs) -> LoadedPiece:  # type: ignore[override]
        return LoadedPiece(super().load(piece, capacity, runs), piece, Uses(piece))

    def advance(self, state: Spilled, runs: Runs, loaded: LoadedPiece, first: int, last: int) -> Spilled:  # type: ignore[override]
        piece, begin = loaded.piece, first
        read, write = piece.read.copy(), piece.write.copy()
        state.uses = loaded.uses

        def train() -> None:
            """The events that are ready."""
            nonlocal begin
            if begin < state.event:
                events = self.at_places(loaded.events, read, write)
                state.state = super(SpillingMachine, self).advance(state.state, runs, events, begin, state.event)
            begin = state.event

        for event in range(first, last):
            state.event = event
            source, target = int(piece.read[event]), int(piece.write[event])
            if source not in state.places:
                train()
                self._bring(state, source)
            read[event] = state.places[source]
            if target not in state.places and not state.free:
                self._make_room(state, has_read=True, before=train)  # what an event reads it may overwrite
            write[event] = self._place(state, target)
            state.away.pop(target, None)
        state.event = last
        train()
        return state

    # -- moving versions

    def _place(self, state: Spilled, slot: int) -> int:
        """The place of a slot, as the one that came last; a free one if it has none."""
        place = state.places.pop(slot, None)
        state.places[slot] = place = state.free.pop() if place is None else place
        return place

    def _make_room(self, state: Spilled, *, has_read: bool = False, before: Callable[[], None] = lambda: None) -> None:
        """Free the place of the version that is read last; called `before` it is written to the file."""
        slot, is_read = read_last(reversed(state.places), state.uses, state.event, has_read=has_read)
        if is_read and slot not in state.away:
            before()
            state.away[slot] = state.file.put(by_number(self.leaves(state, slot)))
        state.free.append(state.places.pop(slot))

    def _bring(self, state: Spilled, slot: int) -> int:
        """The place of a version, which is brought back from the file if it waits there."""
        if slot not in state.places:
            arrays = list(state.away[slot].read().values())
            if not state.free:
                self._make_room(state)
            self._enter(state, slot, arrays)
        return state.places[slot]

    def _enter(self, state: Spilled, slot: int, arrays: Sequence[NDArray[Any]]) -> None:
        """A version in a free place."""
        slots = state.state.slots
        version = jax.tree.unflatten(jax.tree.structure(slots), [jnp.asarray(x) for x in arrays])
        args = (slots, np.int32(self._place(state, slot)), version)
        state.state = state.state._replace(slots=self._compile("put", put, *args, donate=(0,))(*args))

    def leaves(self, state: Spilled, slot: int) -> list[NDArray[Any]]:
        """The arrays of a version, wherever it is."""
        if slot not in state.places:
            return list(state.away[slot].read().values())
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.version(state.state, state.places[slot]))]

    # -- the state, as sessions handle it

    def measure(self, state: Spilled, runs: Runs, slot: int) -> dict[str, np.ndarray[Any, Any]]:  # type: ignore[override]
        place = self._bring(state, slot)
        return super().measure(state.state, runs, place)

    def model(self, state: Spilled, slot: int) -> list[np.ndarray[Any, Any]]:  # type: ignore[override]
        place = self._bring(state, slot)
        return super().model(state.state, place)

    def room(self, state: Spilled) -> int:  # type: ignore[override]
        return 1 << 30  # what there is no room for waits in the file

    def grown(self, state: Spilled, num_slots: int) -> Spilled:  # type: ignore[override]
        return state

    def wait(self, state: Spilled) -> None:  # type: ignore[override]
        super().wait(state.state)

    def narrowed(self, state: Spilled, kept: Sequence[int]) -> Spilled:  # type: ignore[override]
        some, axis = np.array(kept), self._runs_axis(1)
        found = replace(state, state=super().narrowed(state.state, kept), away={}, file=spill_file())
        for slot, place in state.away.items():
            if slot not in state.places:
                found.away[slot] = found.file.put(by_number([np.take(x, some, axis) for x in place.read().values()]))
        return found

    def saved(self, state: Spilled) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """The versions one by one, each read when it is written, and the rest as ever."""
        found: dict[str, Any] = super().saved(state.state._replace(slots=()))  # type: ignore[arg-type]
        return found | {
            f"{SLOT}{slot}": Later(partial(self.leaves, state, slot)) for slot in sorted({*state.places, *state.away})
        }

    def restored(self, state: Spilled, saved: Mapping[str, NDArray[Any]]) -> Spilled:  # type: ignore[override]
        slots = state.state.slots
        like = [np.empty(x.shape[1:], x.dtype) for x in jax.tree.leaves(slots)]
        versions = {name: saved[name] for name in saved if name.startswith(SLOT)}
        if versions:
            each = ((int(name.removeprefix(SLOT)), taken_apart(np.asarray(v), like)) for name, v in versions.items())
            rest = saved
        else:  # all were in memory when they were saved
            axis, first = self._runs_axis(2), len(like)
            whole = [np.moveaxis(saved[str(k)], -1, axis) for k in range(first)]
            each = ((slot, [x[slot] for x in whole]) for slot in range(FIRST, len(whole[0])))
            rest = {str(int(name) - first): array for name, array in saved.items() if int(name) >= first}
        bare = super().restored(state.state._replace(slots=()), rest)  # type: ignore[arg-type]
        found = Spilled(bare._replace(slots=slots), {}, list(range(super().room(state.state))))
        for slot, arrays in each:
            if found.free:
                self._enter(found, slot, arrays)
            else:
                found.away[slot] = found.file.put(by_number(arrays))
        return found


class SpillingStreamedMachine(SpillingMachine, StreamedMachine):  # type: ignore[misc]
    """The same with rows from disk."""


def by_number(arrays: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """As files of models take them."""
    return {str(k): array for k, array in enumerate(arrays)}


def taken_apart(memory: NDArray[Any], like: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The arrays that lie in a memory one after the other, each as in `like`."""
    parts = np.split(memory, np.cumsum([leaf.nbytes for leaf in like])[:-1])
    return [part.view(leaf.dtype).reshape(leaf.shape) for part, leaf in zip(parts, like, strict=True)]
