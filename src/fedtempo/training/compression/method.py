"""What a client sends instead of its contribution, and what it keeps for the next one.

    x = Δ_i + e_i                       e_i is the error memory, 0 at first, and always 0 without error feedback
    the server gets C(x) for Δ_i        e_i ← x − C(x)

Error feedback: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory" (2018). A method says how one array is sent, once
in JAX (`send`) and once as numbers on the wire (`pack`, `unpack`), and both must give C(x) to the same bits. Arrays
that it does not take (whole numbers, empty ones) pass as they are. What is sent of the others is float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import Key
from fedtempo.errors import InputError
from fedtempo.registry import own_label, own_spec

if TYPE_CHECKING:
    import jax

Params = Any
State = Any
Shape = tuple[int, ...]
Parts = Mapping[str, NDArray[Any]]
"""Parts of what is sent, or kept, of one array, by name."""
ERROR = "error"
"""What a client keeps of an array under this name is e_i."""


class Compression(ABC):
    """How a client compresses its contribution. Frozen; what a client keeps is a state, a pytree.

    One's own says how many numbers an array takes (`layout`), what the server gets of it in JAX (`send`), and the same
    as bytes (`pack`, `unpack`); `keep` is for what a client remembers. It passes where ``using(compression=…)`` is.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Signs(ft.Compression):  # a byte an entry: its sign, times the mean of all sizes
        ...     def layout(self, shape, dtype):
        ...         return {"signs": int(np.prod(shape)), "scales": 1}
        ...     def send(self, x, kept, key):
        ...         return abs(x).mean() * (2.0 * (x >= 0) - 1.0), {}
        ...     def pack(self, x, kept, key):
        ...         return {"signs": (x >= 0).astype(np.uint8).ravel(), "scales": np.array([abs(x).mean()])}, {}
        ...     def unpack(self, parts, shape, dtype):
        ...         return (parts["scales"][0] * (2.0 * parts["signs"] - 1.0)).reshape(shape)
        >>> model = np.zeros(1000, np.float32)
        >>> Signs().num_bytes(model), model.nbytes
        (1004, 4000)
        >>> print(ft.FedAvg().using(compression=Signs()))
        FedAvg + Signs
    """

    name: ClassVar[str]
    unbiased: ClassVar[bool]
    """Whether E[C(x)] = x."""

    @property
    def label(self) -> str:
        """In a few words, as "TopK(1 %)"."""
        return own_label(self)

    def spec(self) -> dict[str, object]:
        """The method as a JSON object, of which `compression_of` makes it again."""
        return own_spec(self)

    # -- one array, for each method

    @abstractmethod
    def layout(self, shape: Shape, dtype: np.dtype[Any]) -> dict[str, int]:
        """How many numbers each part of a payload holds of an array; nothing if the array passes as it is.

        Parts named as in `FLOATS` hold float32, all others bytes.
        """

    def keep(self, shape: Shape, dtype: np.dtype[Any], place: int) -> Parts:
        """What a client keeps of the array at this place of the model, before its first job."""
        return {}

    @abstractmethod
    def send(self, x: Any, kept: Any, key: jax.Array) -> tuple[Any, dict[str, Any]]:
        """C(x) in JAX, and what is kept beside e_i."""

    @abstractmethod
    def pack(self, x: NDArray[Any], kept: Parts, key: Key) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """The parts of a payload, and what is kept beside e_i."""

    @abstractmethod
    def unpack(self, parts: Parts, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        """C(x), of which `pack` made the parts; an InputError if no x has such parts."""

    # -- models

    def start(self, model: Params) -> State:
        """What a client keeps before its first job: for each array of the model, or () if nothing of any."""
        import jax
        import jax.numpy as jnp

        leaves = jax.tree.leaves(model)
        kept = tuple(self.first(x.shape, x.dtype, place) for place, x in enumerate(leaves))
        return jax.tree.map(jnp.asarray, kept) if any(kept) else ()

    def first(self, shape: Shape, dtype: Any, place: int) -> Parts:
        """What a client keeps at first of an array, if it is sent by this method."""
        return self.keep(shape, np.dtype(dtype), place) if self.takes(shape, dtype) else {}

    def takes(self, shape: Shape, dtype: Any) -> bool:
        """Whether an array is sent by this method, and not as it is."""
        kind = np.dtype(dtype)
        return is_float(kind) and 0 not in shape and bool(self.layout(shape, kind))

    def compress(self, change: Params, state: State, key: jax.Array) -> tuple[Params, State]:
        """What the server gets for `change`, and what the client keeps then. Pure; `key` is for this job alone."""
        import jax

        leaves, structure = jax.tree.flatten(change)
        before: tuple[Any, ...] = state or ({},) * len(leaves)
        sent = [self._sent(x, kept, key, place) for place, (x, kept) in enumerate(zip(leaves, before, strict=True))]
        after = tuple(kept for _, kept in sent)
        return jax.tree.unflatten(structure, [got for got, _ in sent]), after if state else ()

    def _sent(self, change: Any, kept: Any, key: jax.Array, place: int) -> tuple[Any, Any]:
        if not self.takes(change.shape, change.dtype):
            return change, kept
        import jax

        x = change.astype(working(change.dtype))
        if ERROR in kept:
            x = x + kept[ERROR]
        got, own = self.send(x, kept, jax.random.fold_in(key, place))
        got = rounded(got, change.dtype)
        if ERROR in kept:
            own = {**own, ERROR: x - got}
        return got.astype(change.dtype), own

    def num_bytes(self, model_shapes: Params) -> int:
        """Bytes of one contribution on the wire, without the transport's headers; arrays, or their shapes and types."""
        import jax

        sizes: list[int] = [self.array_bytes(x.shape, x.dtype) for x in jax.tree.leaves(model_shapes)]
        return sum(sizes)

    def array_bytes(self, shape: Shape, dtype: Any) -> int:
        """Bytes of one array of a contribution on the wire."""
        kind = np.dtype(dtype)
        if not self.takes(shape, kind):
            return int(np.prod(shape, dtype=np.int64)) * int(kind.itemsize)
        return sum(count * (4 if part in FLOATS else 1) for part, count in self.layout(shape, kind).items())


FLOATS = frozenset({"scales", "values", "factors"})
"""The parts of payloads that are float32; all others are bytes."""


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type are real and have a point; bfloat16 is of no kind that NumPy knows."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def working(dtype: Any) -> type[np.float32] | type[np.float64]:
    """The type in which arrays of a type are compressed, and remembered."""
    return np.float64 if np.dtype(dtype).itemsize > 4 else np.float32


def rounded(x: Any, dtype: Any) -> Any:
    """In JAX: `x` with no more digits than `dtype` has; a compiler may leave out a conversion to and fro."""
    import jax
    import jax.numpy as jnp

    info, own = (jnp.finfo(kind) for kind in (dtype, x.dtype))  # type: ignore[no-untyped-call]
    if info.nmant >= own.nmant:
        return x
    return jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)


def whole_number(name: str, given: object, most: int) -> int:
    """A whole number from 1 to `most`, NumPy's too; anything else is refused."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 1 <= given <= most:
        raise InputError(f"{name}: {given!r} is not allowed; give a whole number from 1 to {most}")
    return int(given)


def true_or_false(name: str, given: object) -> None:
    """Refuse what is neither."""
    if not isinstance(given, bool):
        raise InputError(f"{name}: {given!r} is not allowed; give True or False")
