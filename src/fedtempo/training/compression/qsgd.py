"""QSGD: every entry as a sign and one of s levels, drawn so that it is right on average.

    C(x)_j = (N/s) · sign(x_j) · (⌊r_j⌋ + [u_j < r_j − ⌊r_j⌋]),     r_j = s |x_j| / N,    u_j uniform
    E[C(x)] = x,     E‖C(x) − x‖² ≤ min(d/s², √d/s) ‖x‖²

Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization" (2017); in
federated learning: Reisizadeh et al., "FedPAQ" (2020). s is `levels`, d the entries of an array, or of a `bucket` of it
that has a norm N of its own. N is max_j |x_j|, as in the experiments of the first paper; ``norm="euclidean"`` makes it
‖x‖, as in the definition. Both are within the bound, and ‖x‖ makes most levels 0, which pays where zeros are sent for
less. Here every level takes ⌈log₂(2s + 1)⌉ bits, beside N/s in float32 a bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import Key
from fedtempo.errors import InputError
from fedtempo.training.compression import numbers as bits
from fedtempo.training.compression.method import Compression, Parts, Shape, rounded, whole_number
from fedtempo.training.compression.numbers import jax_uniforms, uniforms

if TYPE_CHECKING:
    import jax

Norm = Literal["max", "euclidean"]
_MOST_LEVELS = 2**15 - 1
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class QSGD(Compression):
    """Unbiased stochastic quantisation to `levels` levels: ``QSGD(4)``, ``QSGD(7, bucket=512)``.

    Entries of a `bucket` (None: an array) share a norm, "max" or "euclidean". Nothing is remembered, since it is right
    on average.

    Example:
        >>> import jax
        >>> qsgd = ft.QSGD(levels=4)
        >>> change = np.array([4.0, -0.5, 1.0, -2.0], np.float32)
        >>> for seed in range(3):
        ...     print(qsgd.compress(change, (), jax.random.key(seed))[0])
        [ 4. -1.  1. -2.]
        [ 4. -1.  1. -2.]
        [ 4. -0.  1. -2.]
        >>> qsgd.num_bytes(np.zeros(1000, np.float32))  # of 4000
        504
    """

    levels: int = 4
    bucket: int | None = None
    """Entries that share a norm; None: all of an array."""
    norm: Norm = "max"

    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", whole_number("levels", self.levels, _MOST_LEVELS))
        if self.bucket is not None:
            object.__setattr__(self, "bucket", whole_number("bucket", self.bucket, 2**31))
        if self.norm not in ("max", "euclidean"):
            raise InputError(f"norm: {self.norm!r} is not known; use max or euclidean")

    @property
    def label(self) -> str:
        by = "" if self.bucket is None else f", by {self.bucket}"
        return f"QSGD({self.levels}{by}{'' if self._max else ', euclidean'})"

    @property
    def _max(self) -> bool:
        return self.norm == "max"

    def spec(self) -> dict[str, object]:
        by = {} if self.bucket is None else {"bucket": int(self.bucket)}
        return {"name": self.name, "levels": int(self.levels), **by, "norm": self.norm}

    @property
    def _width(self) -> int:
        return (2 * self.levels).bit_length()

    def _buckets(self, size: int) -> tuple[int, int]:
        """How many buckets, and how many entries in each."""
        length = min(size, self.bucket or size)
        return -(-size // length), length

    def layout(self, shape: Shape, dtype: np.dtype[Any]) -> dict[str, int]:
        size = int(np.prod(shape, dtype=np.int64))
        return {"scales": self._buckets(size)[0], "codes": bits.packed_size(size, self._width)}

    def send(self, x: Any, kept: Any, key: jax.Array) -> tuple[Any, dict[str, Any]]:
        import jax.numpy as jnp

        flat = rounded(x, jnp.float32).astype(jnp.float32).reshape(-1)
        scales, levels = self._quantised(jnp, flat, jax_uniforms(key, flat.size))
        got = (levels * scales[:, None]).reshape(-1)[: flat.size]
        return got.reshape(x.shape).astype(x.dtype), {}

    def pack(self, x: NDArray[Any], kept: Parts, key: Key) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        flat = x.astype(np.float32).reshape(-1)
        scales, levels = self._quantised(np, flat, uniforms(key, flat.size))
        levels = np.where(np.isfinite(scales)[:, None], levels, 0).reshape(-1)[: flat.size]
        codes = bits.pack(levels.astype(np.int32) + self.levels, self._width)
        return {"scales": scales, "codes": codes}, {}

    def unpack(self, parts: Parts, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        size = int(np.prod(shape, dtype=np.int64))
        codes = bits.unpack(parts["codes"], size, self._width)
        if codes.max() > 2 * self.levels:
            raise InputError(f"a code is {codes.max()}, and {self.levels} levels have codes up to {2 * self.levels}")
        levels = codes.astype(np.int32) - self.levels
        scales = np.repeat(parts["scales"], self._buckets(size)[1])[:size]
        return np.asarray(levels.astype(np.float32) * scales).reshape(shape)

    def _quantised(self, xp: Any, flat: Any, u: Any) -> tuple[Any, Any]:
        """[buckets] N/s, and [buckets, entries] signed levels, in NumPy or JAX, of float32 numbers."""
        count, length = self._buckets(flat.size)
        x, u = (xp.pad(v, (0, count * length - flat.size)).reshape(count, length) for v in (flat, u))
        size = xp.abs(x)
        largest = xp.max(size, axis=1)
        norms = largest if self._max else largest * _relative_norm(xp, size, largest)
        scales = norms * np.float32(1 / self.levels)
        scales = xp.where(scales < _TINY, np.float32(0), scales)
        place = size * _inverse(xp, scales)[:, None]
        below = xp.floor(place)
        # ⌊r⌋ + u < r, and not u < r − ⌊r⌋: fused with the product before it, that would be another number
        level = xp.minimum(below + (below + u < place), np.float32(self.levels))
        return scales, xp.where(x < 0, -level, level)


def _relative_norm(xp: Any, size: Any, largest: Any) -> Any:
    """[buckets] ‖x‖/max|x_j|, at most 0.05 % more, and to the bit the same wherever it is computed.

    Of each |x_j|/max twelve digits are taken, upwards, whose squares float32 holds exactly: fused or not, sums of them
    are the same. They are added up pairwise, in a fixed order.
    """
    share = size * _inverse(xp, largest)[:, None]
    short = ((share.view(xp.uint32) + np.uint32(0xFFF)) & np.uint32(0xFFFFF000)).view(xp.float32)
    squares = short * short
    length = squares.shape[1]
    squares = xp.pad(squares, ((0, 0), (0, (1 << (length - 1).bit_length()) - length)))
    while (half := squares.shape[1] // 2) >= 1:
        squares = squares[:, :half] + squares[:, half:]
    return xp.sqrt(squares[:, 0])


def _inverse(xp: Any, x: Any) -> Any:
    """1/x, or 1 for what is next to nothing: a compiler makes of x/y with one y for many x a product with 1/y."""
    return np.float32(1) / xp.where(x < _TINY, np.float32(1), x)
