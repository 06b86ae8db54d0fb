"""Slots of the PyTorch engine of which some wait in a file: those that are read last (spilling.py)."""

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
from fedtempo.simulation.engine.spilling import SLOT, Later, Uses, by_number, read_last, spill_file, taken_apart
from fedtempo.simulation.model_file import Place

LEAST = 2
"""In memory, at the least: what is read, and what is written."""


class SpillingSlots(MutableMapping[int, Any]):
    """By slot what lies there, a tree of tensors and arrays. `most` are in memory."""

    def __init__(self, most: int, first: Mapping[int, Any]) -> None:
        self._most = max(most, LEAST)
        self._here: dict[int, Any] = dict(first)
        self._away: dict[int, Place] = {}
        self._file = spill_file()
        self._like, self._structure = jax.tree.flatten(first[FIRST])
        self._piece: Piece | None = None
        self._uses, self._event = Uses(), 0

    def come_to(self, piece: Piece, event: int) -> None:
        """What is needed next, from an event of a piece on."""
        if piece is not self._piece:
            self._piece, self._uses = piece, Uses(piece)
        self._event = event

    def __getitem__(self, slot: int) -> Any:
        if slot not in self._here:
            found = self._tree(list(self._away[slot].read().values()))
            self._make_room()
            self._here[slot] = found
        return self._here[slot]

    def __setitem__(self, slot: int, versions: Any) -> None:
        self._away.pop(slot, None)
        self._here.pop(slot, None)
        self._make_room()
        self._here[slot] = versions

    def __delitem__(self, slot: int) -> None:
        self._away.pop(slot, None)
        self._here.pop(slot, None)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._here, *self._away}))

    def __len__(self) -> int:
        return len({*self._here, *self._away})

    def _make_room(self) -> None:
        """For one more."""
        while len(self._here) >= self._most:
            slot, is_read = read_last(reversed(self._here), self._uses, self._event)
            if is_read and slot not in self._away:
                self._away[slot] = self._file.put(by_number(self.leaves(slot)))
            del self._here[slot]

    def _tree(self, arrays: list[NDArray[Any]]) -> Any:
        leaves = [restored(array, like) for array, like in zip(arrays, self._like, strict=True)]
        return jax.tree.unflatten(self._structure, leaves)

    def leaves(self, slot: int) -> list[NDArray[Any]]:
        """The arrays of a slot, wherever it is."""
        if slot not in self._here:
            return list(self._away[slot].read().values())
        return [stored(leaf) for leaf in jax.tree.leaves(self._here[slot])]

    def saved(self) -> dict[str, Any]:
        """Each slot by itself, read when it is written."""
        return {f"{SLOT}{slot}": Later(partial(self.leaves, slot)) for slot in self}


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
