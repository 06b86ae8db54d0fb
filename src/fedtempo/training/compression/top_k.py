"""TopK: the k entries of an array that are largest by magnitude; what is left out is remembered.

    C(x) = x on the k largest |x_j| (of equal ones the first), 0 elsewhere,      k = max(1, ⌈share · d⌉)
    ‖C(x) − x‖² ≤ (1 − k/d) ‖x‖²

Stich, Cordonnier, Jaggi, "Sparsified SGD with memory" (2018); with local steps: Basu, Data, Karakus, Diggavi,
"Qsparse-local-SGD" (2019). On the wire: the values in float32, in the order of their places, and the places in the
fewest bits that hold d − 1, or as one bit an entry where that is less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import Key
from fedtempo.clock.ticks import Exact, exact, text
from fedtempo.errors import InputError
from fedtempo.training.compression import numbers as bits
from fedtempo.training.compression.method import ERROR, Compression, Parts, Shape, rounded, true_or_false, working

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, repr=False)
class TopK(Compression):
    """The largest entries of each array: ``TopK(0.01)``, with a memory of the others unless that is switched off.

    `share` is the share of the entries that is sent, above 0 and at most 1; `error_feedback` says whether the others
    are remembered.

    Example:
        >>> import jax
        >>> top = ft.TopK(0.25)
        >>> change = np.array([4.0, -0.5, 1.0, -2.0], np.float32)
        >>> sent, kept = top.compress(change, top.start(change), jax.random.key(0))
        >>> print(sent, kept)  # what is not sent is remembered, and added to the next contribution
        [4. 0. 0. 0.] ({'error': Array([ 0. , -0.5,  1. , -2. ], dtype=float32)},)
        >>> print(top.label, top.num_bytes(np.zeros(1000, np.float32)), "of 4000 bytes")
        TopK(25 %) 1125 of 4000 bytes
    """

    share: Exact
    """The share of an array's entries that is sent; a float means its decimal."""
    error_feedback: bool = True

    name: ClassVar[str] = "topk"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        share = exact(self.share, "share")
        if not 0 < share <= 1:
            raise InputError(f"share: {self.share} is not allowed; give a share above 0 and up to 1, as 0.01")
        object.__setattr__(self, "share", share)
        true_or_false("error_feedback", self.error_feedback)

    def __repr__(self) -> str:
        return f"TopK('{self.share}'{'' if self.error_feedback else ', error_feedback=False'})"

    @property
    def label(self) -> str:
        return f"TopK({float(100 * exact(self.share)):.4g} %{'' if self.error_feedback else ', no memory'})"

    def spec(self) -> dict[str, object]:
        return {"name": self.name, "share": text(exact(self.share)), "error_feedback": self.error_feedback}

    def count(self, size: int) -> int:
        """The entries that are sent of `size`."""
        return max(1, math.ceil(exact(self.share) * size))

    def _width(self, size: int) -> int | None:
        """Bits of a place; None: one bit an entry says which are sent."""
        width = (size - 1).bit_length()
        return None if self.count(size) * width > size else width

    def layout(self, shape: Shape, dtype: np.dtype[Any]) -> dict[str, int]:
        size = int(np.prod(shape, dtype=np.int64))
        count, width = self.count(size), self._width(size)
        places = bits.packed_size(size, 1) if width is None else bits.packed_size(count, width)
        return {"values": count, "places": places}

    def keep(self, shape: Shape, dtype: np.dtype[Any], place: int) -> Parts:
        return {ERROR: np.zeros(shape, working(dtype))} if self.error_feedback else {}

    def send(self, x: Any, kept: Any, key: jax.Array) -> tuple[Any, dict[str, Any]]:
        import jax.numpy as jnp

        taken = rounded(x, jnp.float32)
        largest = _largest(taken.astype(jnp.float32).reshape(-1), self.count(x.size))
        return jnp.where(largest.reshape(x.shape), taken, 0), {}

    def pack(self, x: NDArray[Any], kept: Parts, key: Key) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        flat = x.astype(np.float32).reshape(-1)
        order = np.where(np.isnan(flat), np.inf, np.abs(flat))
        count, width = self.count(flat.size), self._width(flat.size)
        least = np.partition(order, flat.size - count)[flat.size - count]
        largest = order > least
        equal = np.flatnonzero(order == least)
        largest[equal[: count - int(largest.sum())]] = True
        places = np.flatnonzero(largest)
        where = bits.pack(largest, 1) if width is None else bits.pack(places, width)
        return {"values": flat[places], "places": where}, {}

    def unpack(self, parts: Parts, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        size = int(np.prod(shape, dtype=np.int64))
        count, width = self.count(size), self._width(size)
        if width is None:
            places = np.flatnonzero(bits.unpack(parts["places"], size, 1))
        else:
            places = bits.unpack(parts["places"], count, width).astype(np.int64)
        if len(places) != count or (count > 1 and int(np.diff(places).min()) < 1) or int(places[-1]) >= size:
            raise InputError(f"its places are not {count} different ones of {size}, in their order")
        out = np.zeros(size, np.float32)
        out[places] = parts["values"]
        return out.reshape(shape)


def _largest(x: jax.Array, count: int) -> jax.Array:
    """Which entries of a vector are the `count` largest by magnitude, NaN among them, of equal ones the first."""
    import jax
    import jax.numpy as jnp

    size = jnp.where(jnp.isnan(x), jnp.inf, jnp.abs(x))
    [found], [places] = jax.lax.top_k(size[None], count)  # of a matrix: on a CPU, vectors are sorted whole
    least = found[-1]
    last = jnp.max(jnp.where(found == least, places, -1))
    taken: jax.Array = (size > least) | ((size == least) & (jnp.arange(x.size) <= last))
    return taken
