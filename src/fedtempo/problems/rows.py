"""D_i, the rows of client i (section 2.1), end to end: client i owns rows `offsets[i]` up to `offsets[i + 1]`.

A tree of arrays has one row per example along the first axis of every leaf. Rows are kept once, without padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import InputError
from fedtempo.problems.mapped import blocks, check_file, is_mapped, joined

Tree = Any
Array = NDArray[Any]
Ints = NDArray[np.int64]

_INT32 = np.iinfo(np.int32)


def gather(data: Iterable[Tree], *, mapped: bool = False) -> tuple[Tree, Ints]:
    """The rows of one tree per client end to end, and how many each client has.

    With `mapped`, rows of a memory-mapped array that lie there end to end stay where they are.
    """
    if isinstance(data, (Mapping, str, bytes)):
        raise InputError(
            f"data: a {type(data).__name__} was given; give a list with one array, or one pytree of arrays, per client"
        )
    try:
        clients = list(data)
    except TypeError as error:
        raise InputError(
            f"data: {type(data).__name__} is not a list; give one array, or one pytree of arrays, per client"
        ) from error
    if not clients:
        raise InputError("no clients: data is empty; give a list with one array, or one pytree of arrays, per client")
    shape = _structure(clients[0])
    names = leaf_names(clients[0])
    columns: list[list[Array]] = [[] for _ in names]
    sizes = np.empty(len(clients), dtype=np.int64)
    for i, client in enumerate(clients):
        if _structure(client) != shape:
            raise InputError(
                f"client {i} holds {_outline(client)}, client 0 holds {_outline(clients[0])}; "
                "give every client a tree of the same arrays"
            )
        leaves = [_array(leaf, f"client {i}", name) for leaf, name in zip(jax.tree.leaves(client), names, strict=True)]
        sizes[i] = _num_rows(leaves, names, f"client {i}")
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    together = []
    for name, column in zip(names, columns, strict=True):
        kept = _kept(column[0], f"client 0: {name}")
        for i, leaf in enumerate(column):
            _same_kind(leaf, column[0], f"client {i}: {name}", "client 0")
        whole = joined(column) if mapped and kept == column[0].dtype else None
        if whole is not None:
            check_file(whole, f"data: {name}")  # type: ignore[arg-type]
        together.append(np.concatenate(column, dtype=kept, casting="unsafe") if whole is None else whole)
    return _sealed(shape, together), sizes


def deal(rows: Tree, parts: Sequence[Any]) -> tuple[Tree, Ints]:
    """Rows of one tree, dealt to clients by their indices: those of client 0 first, and how many each client has.

    Memory-mapped rows that lie client after client already stay where they are.
    """
    if not len(parts):
        raise InputError("no clients: parts is empty; give a list with one array of row indices per client")
    names = leaf_names(rows)
    leaves = [_array(leaf, "rows", name) for leaf, name in zip(jax.tree.leaves(rows), names, strict=True)]
    total = _num_rows(leaves, names, "rows")
    indices = [_indices(part, i, total) for i, part in enumerate(parts)]
    order = np.concatenate(indices)
    in_order = bool((np.diff(order) == 1).all())
    dealt: list[Array] = []
    for leaf, name in zip(leaves, names, strict=True):
        kept = _kept(leaf, f"rows: {name}")
        if is_mapped(leaf) and in_order and kept == leaf.dtype:
            check_file(leaf, f"rows: {name}")
            dealt.append(leaf[order[0] : order[-1] + 1])
            continue
        _check_range(leaf, kept, f"rows: {name}")
        dealt.append(np.take(np.asarray(leaf), order, axis=0).astype(kept, copy=False))
    return _sealed(jax.tree.structure(rows), dealt), np.array([len(part) for part in indices], dtype=np.int64)


def like(other: Tree, rows: Tree, what: str) -> Tree:
    """A further tree of rows, checked to be of the kind of `rows`."""
    shape = _structure(rows)
    if _structure(other) != shape:
        raise InputError(
            f"{what} holds {_outline(other)}, the clients hold {_outline(rows)}; give a tree of the same arrays"
        )
    names = leaf_names(rows)
    leaves = [_array(leaf, what, name) for leaf, name in zip(jax.tree.leaves(other), names, strict=True)]
    _num_rows(leaves, names, what)
    kept = []
    for name, leaf, first in zip(names, leaves, jax.tree.leaves(rows), strict=True):
        _same_kind(leaf, first, f"{what}: {name}", "the clients")
        kept.append(np.array(leaf, dtype=first.dtype))
    return _sealed(shape, kept)


def check_finite(rows: Tree, offsets: Ints | None, what: str = "test") -> None:
    """Refuses NaN and infinite numbers; with `offsets` the client and its row are named."""
    for name, leaf in zip(leaf_names(rows), jax.tree.leaves(rows), strict=True):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        row = _first_not_finite(leaf)
        if row is None:
            continue
        values = leaf[row].ravel()
        value = float(values[~np.isfinite(values)][0])
        if offsets is not None:
            client = int(np.searchsorted(offsets, row, side="right")) - 1
            what, row = f"client {client}", row - int(offsets[client])
        raise InputError(f"{what}: {name} holds {value} in row {row}; repair such rows or leave them out")


def _first_not_finite(leaf: Array) -> int | None:
    """The first row with a number that is not finite."""
    begin = 0
    for block in blocks(leaf):
        with np.errstate(all="ignore"):
            fine = np.isfinite(block.sum())  # one pass without a temporary; only a sum that is not is looked into
        if not fine:
            bad = ~np.isfinite(block.reshape(len(block), -1)).all(axis=1)
            if bad.any():
                return begin + int(np.argmax(bad))
        begin += len(block)
    return None


def leaf_names(tree: Tree) -> list[str]:
    """What each leaf is called in messages: "leaf x", or "its array" where there is only one."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [f"leaf {jax.tree_util.keystr(p, simple=True, separator='.')}" if p else "its array" for p in paths]


def described(tree: Tree) -> str:
    """The arrays of a tree in a few words: "(weights: float32[64, 10], bias: float32[10])"."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        kind = f"{np.dtype(leaf.dtype).name}[{', '.join(map(str, leaf.shape))}]"
        found.append(f"{name}: {kind}" if name else kind)
    more = ", …" if len(found) > 8 else ""
    return f"({', '.join(found[:8])}{more})"


def _structure(tree: Tree) -> Any:
    return jax.tree.structure(tree)


def _outline(tree: Tree) -> str:
    """What kind of tree it is, shortened."""
    text = str(jax.tree.structure(tree)).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) <= 120 else f"{text[:100]}…"


def _array(leaf: object, where: str, name: str) -> Array:
    if is_mapped(leaf):
        return leaf
    try:
        return np.asarray(leaf)
    except Exception as error:
        raise InputError(f"{where}: {name} is a {type(leaf).__name__}, not an array; convert it to NumPy") from error


def _num_rows(leaves: Sequence[Array], names: Sequence[str], where: str) -> int:
    if not leaves:
        raise InputError(f"{where} holds no arrays; give at least one array, rows first")
    for leaf, name in zip(leaves, names, strict=True):
        if leaf.ndim == 0:
            raise InputError(
                f"{where}: {name} is a single value ({leaf.dtype}), not an array of rows; "
                "give arrays, rows first (a nested list becomes one by np.array)"
            )
        if len(leaf) != len(leaves[0]):
            raise InputError(
                f"{where}: {name} has {len(leaf)} rows, {names[0]} has {len(leaves[0])}; "
                "every array needs one row per example"
            )
    if len(leaves[0]) == 0:
        raise InputError(f"{where} has no rows; leave it out, or give it at least one")
    return len(leaves[0])


def _kept(leaf: Array, where: str) -> np.dtype[Any]:
    """The type in which rows are kept: native, and whole numbers in at most 32 bits."""
    kind = leaf.dtype.newbyteorder("=")
    if kind == np.bool_ or (jnp.issubdtype(kind, jnp.floating) and kind.itemsize <= 8):
        return kind
    if jnp.issubdtype(kind, jnp.integer):
        return np.dtype(np.int32) if kind.itemsize == 8 else kind
    raise InputError(f"{where} holds {leaf.dtype}; rows must be real numbers, whole numbers or booleans: encode them")


def _same_kind(leaf: Array, first: Array, what: str, whose: str) -> None:
    if leaf.shape[1:] != first.shape[1:]:
        raise InputError(
            f"{what} has shape {leaf.shape}, that of {whose} has shape {first.shape}; all but the first must agree"
        )
    kept = _kept(leaf, what)
    if kept != _kept(first, what):
        raise InputError(f"{what} holds {leaf.dtype}, that of {whose} holds {first.dtype}; convert one of them")
    _check_range(leaf, kept, what)


def _check_range(leaf: Array, kept: np.dtype[Any], what: str) -> None:
    if leaf.dtype.itemsize == 8 and kept == np.int32 and leaf.size:
        low, high = int(leaf.min()), int(leaf.max())
        if low < _INT32.min or high > _INT32.max:
            far = low if low < _INT32.min else high
            raise InputError(f"{what} holds {far}, beyond 32 bits, in which whole numbers are kept; use smaller ones")


def _indices(part: object, client: int, total: int) -> Ints:
    found = np.asarray(part)
    if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or found.size == 0):
        raise InputError(
            f"parts of client {client}: an array {found.dtype}[{', '.join(map(str, found.shape))}] was given; "
            "give a list of whole row indices"
        )
    if found.size == 0:
        raise InputError(f"client {client} has no rows; leave it out, or give it at least one")
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= total:
        raise InputError(
            f"parts of client {client}: there is no row {low if low < 0 else high}; rows are 0 to {total - 1}"
        )
    return found.astype(np.int64)


def _sealed(shape: Any, leaves: list[Array]) -> Tree:
    """The tree, read-only: a digest taken once must stay true."""
    for leaf in leaves:
        leaf.setflags(write=False)
    return jax.tree.unflatten(shape, leaves)
