"""Slots of the PyTorch engine of which some wait in a file (waiting.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtempo.problems.torch.module import as_array, as_tensor
from fedtempo.simulation.engine.program import FIRST, Piece
from fedtempo.simulation.engine.waiting import SLOT, Later, Uses, Waiting, put_together, reads, taken_apart

LEAST = 2
"""In memory, at the least: what is read, and what is written."""


class SpillingSlots(MutableMapping[int, Any]):
    """By slot what lies there, a tree of tensors and arrays. `most` are in memory."""

    def __init__(self, most: int, first: Mapping[int, Any]) -> None:
        self._most = max(most, LEAST)
        self._here: dict[int, Any] = dict(first)
        self._waiting = Waiting()
        self._like, self._structure = jax.tree.flatten(first[FIRST])
        self._piece: Piece | None = None

    def come_to(self, piece: Piece, event: int) -> None:
        """The next event of a piece."""
        if piece is not self._piece:
            self._piece, self._waiting.uses = piece, Uses(piece)
        self._waiting.now = reads(event) - 1

    def __getitem__(self, slot: int) -> Any:
        if slot not in self._here:
            found = self._tree(self._waiting.read(slot))
            self._make_room(self._waiting.now)
            self._here[slot] = found
        return self._here[slot]

    def __setitem__(self, slot: int, versions: Any) -> None:
        del self[slot]
        self._make_room(self._waiting.now + 1)  # what the event has read it may drop
        self._here[slot] = versions

    def __delitem__(self, slot: int) -> None:
        self._waiting.forget(slot)
        self._here.pop(slot, None)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._here, *self._waiting.places}))

    def __len__(self) -> int:
        return len({*self._here, *self._waiting.places})

    def _make_room(self, moment: int) -> None:
        """For one more."""
        while len(self._here) >= self._most:
            slot, is_kept = self._waiting.uses.last(reversed(self._here), moment)
            if is_kept and slot not in self._waiting:
                self._waiting.put(slot, self.leaves(slot))
            del self._here[slot]

    def _tree(self, arrays: list[NDArray[Any]]) -> Any:
        leaves = [restored(array, like) for array, like in zip(arrays, self._like, strict=True)]
        return jax.tree.unflatten(self._structure, leaves)

    def leaves(self, slot: int) -> list[NDArray[Any]]:
        """The arrays of a slot, wherever it is."""
        if slot not in self._here:
            return self._waiting.read(slot)
        return [stored(leaf) for leaf in jax.tree.leaves(self._here[slot])]

    def saved(self) -> dict[str, Any]:
        """Each slot by itself, read when it is written."""
        return {f"{SLOT}{slot}": Later(partial(self._together, slot)) for slot in self}

    def _together(self, slot: int) -> NDArray[np.uint8]:
        return put_together(self.leaves(slot))


def tree_of(memory: NDArray[Any], like: Any) -> Any:
    """What was saved by itself, as a tree like this one."""
    leaves, structure = jax.tree.flatten(like)
    arrays = taken_apart(memory, [stored(leaf) for leaf in leaves])
    return jax.tree.unflatten(structure, [restored(array, leaf) for array, leaf in zip(arrays, leaves, strict=True)])


def stored(leaf: Any) -> NDArray[Any]:
    """A leaf as an array; bfloat16 by its bits."""
    if isinstance(leaf, Tensor) and leaf.dtype == torch.bfloat16:
        leaf = leaf.view(torch.int16)
    return as_array(leaf) if isinstance(leaf, Tensor) else np.asarray(leaf)


def restored(array: NDArray[Any], like: Any) -> Any:
    """What was stored, as a leaf like this one is."""
    if not isinstance(like, Tensor):
        return jnp.asarray(array)
    found = as_tensor(array)
    return (found.view(torch.bfloat16) if like.dtype == torch.bfloat16 else found).to(like.device)
