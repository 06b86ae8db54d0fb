"""Training event by event with more model versions than there is room for: some wait in a file (waiting.py).

    an event      reads slot s: if that waits, it is brought into the place of the version that is read last; then its
                  own version is written to a place in the same way

Between two moves events are trained by the compiled loop of versions in memory (event_loop.py), by places in memory
instead of slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from fedtempo.simulation.engine.waiting import (
    SLOT,
    Later,
    Uses,
    Waiting,
    put_together,
    reads,
    taken_apart,
    version_file,
)

LEAST = FIRST + 1
"""Places of versions in memory, at the least."""


class LoadedPiece(NamedTuple):
    """A piece, made ready, and when it needs which slots."""

    events: Any
    piece: Piece
    uses: Uses


@dataclass
class Spilled:
    """The state of runs; changed in place."""

    state: State
    """Its slots are the places of the versions that are in memory."""
    places: dict[int, int]
    """By slot: where its version lies in memory. The order is that in which they came."""
    free: list[int]
    """Places without a version."""
    waiting: Waiting = field(default_factory=Waiting)


class SpillingMachine(EventMachine):
    """Event by event, with versions in a file."""

    def initial(self, seeds: tuple[int, ...], runs: int, num_slots: int) -> Spilled:  # type: ignore[override]
        """`num_slots`: versions that there is room for."""
        state = super().initial(seeds, runs, max(LEAST, num_slots))
        return Spilled(state, {FIRST: FIRST}, [place for place in range(super().room(state)) if place != FIRST])

    def load(self, piece: Piece, capacity: int, runs: Runs) -> LoadedPiece:  # type: ignore[override]
        return LoadedPiece(super().load(piece, capacity, runs), piece, Uses(piece))

    def advance(self, state: Spilled, runs: Runs, loaded: LoadedPiece, first: int, last: int) -> Spilled:  # type: ignore[override]
        piece, waiting, begin = loaded.piece, state.waiting, first
        read, write = piece.read.copy(), piece.write.copy()
        waiting.uses = loaded.uses

        def train(begin: int, end: int) -> int:
            """Events whose versions have their places; the first that is left."""
            if begin < end:
                events = self.at_places(loaded.events, read, write)
                state.state = super(SpillingMachine, self).advance(state.state, runs, events, begin, end)
            return end

        for event in range(first, last):
            source, target = int(piece.read[event]), int(piece.write[event])
            waiting.now = reads(event) - 1
            if source not in state.places:
                begin = train(begin, event)
                self._bring(state, source)
            read[event] = state.places[source]
            waiting.now = reads(event)  # what an event reads it may overwrite
            if target not in state.places and not state.free:
                slot, to_file = self._leaving(state)
                if to_file:
                    begin = train(begin, event)
                self._leave(state, slot, to_file)
            write[event] = self._place(state, target)
            waiting.forget(target)
        waiting.now = reads(last) - 1
        train(begin, last)
        return state

    # -- moving versions

    def _place(self, state: Spilled, slot: int) -> int:
        """The place of a slot, as the one that came last; a free one if it has none."""
        place = state.places.pop(slot, None)
        state.places[slot] = place = state.free.pop() if place is None else place
        return place

    def _leaving(self, state: Spilled) -> tuple[int, bool]:
        """The slot whose version leaves the memory, and whether that is to be written to the file."""
        slot, is_kept = state.waiting.uses.last(reversed(state.places), state.waiting.now)
        return slot, is_kept and slot not in state.waiting

    def _leave(self, state: Spilled, slot: int, to_file: bool) -> None:
        """Free the place of a version."""
        if to_file:
            state.waiting.put(slot, self.leaves(state, slot))
        state.free.append(state.places.pop(slot))

    def _bring(self, state: Spilled, slot: int) -> int:
        """The place of a version, which is brought back from the file if it waits there."""
        if slot not in state.places:
            arrays = state.waiting.read(slot)
            if not state.free:
                self._leave(state, *self._leaving(state))
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
            return state.waiting.read(slot)
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
        waiting = replace(state.waiting, file=version_file(), places={})
        for slot in state.waiting.places:
            if slot not in state.places:
                waiting.put(slot, [np.take(x, some, axis) for x in state.waiting.read(slot)])
        return replace(state, state=super().narrowed(state.state, kept), waiting=waiting)

    def saved(self, state: Spilled) -> dict[str, NDArray[Any]]:  # type: ignore[override]
        """The versions one by one, each read when it is written, and the rest as ever."""
        found: dict[str, Any] = super().saved(state.state._replace(slots=()))  # type: ignore[arg-type]
        slots = sorted({*state.places, *state.waiting.places})
        return found | {f"{SLOT}{slot}": Later(partial(self._together, state, slot)) for slot in slots}

    def _together(self, state: Spilled, slot: int) -> NDArray[np.uint8]:
        return put_together(self.leaves(state, slot))

    def restored(self, state: Spilled, saved: Mapping[str, NDArray[Any]]) -> Spilled:  # type: ignore[override]
        slots = state.state.slots
        like = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in jax.tree.leaves(slots)]  # type: ignore[no-untyped-call]
        versions = {name: saved[name] for name in saved if name.startswith(SLOT)}
        if versions:
            each = ((int(name.removeprefix(SLOT)), taken_apart(np.asarray(v), like)) for name, v in versions.items())
            rest = {name: array for name, array in saved.items() if name not in versions}
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
                found.waiting.put(slot, arrays)
        return found


class SpillingStreamedMachine(SpillingMachine, StreamedMachine):  # type: ignore[misc]
    """The same with rows from disk."""
