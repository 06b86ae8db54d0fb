"""PowerSGD: a matrix as a product of two thin ones, by one power iteration; what is left out is remembered.

    P = X Q,  orthonormalised;    Q' = Xᵀ P;    C(X) = P Q'ᵀ = P Pᵀ X;    the next job starts from Q'
    ‖C(X) − X‖ ≤ ‖X‖, and in the long run X's best approximation of that rank, if X stays

Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization" (2019).
Arrays of more than two axes are matrices with the first axis as rows. Vectors, scalars, and matrices whose factors
would not be smaller pass as they are. On the wire: P and Q' in float32. Each client has a Q of its own, which the
server need not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import Key, stream_key, uniforms
from fedtempo.training.compression.method import (
    ERROR,
    Compression,
    Parts,
    Shape,
    rounded,
    true_or_false,
    whole_number,
    working,
)

if TYPE_CHECKING:
    import jax

_START = "start"
"""What is kept of a matrix under this name is Q."""


@dataclass(frozen=True)
class LowRank(Compression):
    """Matrices as P Qᵀ with `rank` columns each: ``LowRank(2)``, with a memory unless that is switched off.

    Example:
        >>> import jax
        >>> low = ft.LowRank(rank=2)
        >>> low.num_bytes({"matrix": np.zeros((100, 50), np.float32), "vector": np.zeros(50, np.float32)})  # of 20200
        1400
        >>> change = np.outer([1, 2, 3, 4, 5], [1, 0, -1, 0, 2]).astype(np.float32)  # of rank 1: nothing is lost
        >>> sent, kept = low.compress(change, low.start(change), jax.random.key(0))
        >>> bool(abs(sent - change).max() < 1e-5)
        True
    """

    rank: int = 2
    error_feedback: bool = True

    name: ClassVar[str] = "lowrank"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", whole_number("rank", self.rank, 2**31))
        true_or_false("error_feedback", self.error_feedback)

    @property
    def label(self) -> str:
        return f"LowRank({self.rank}{'' if self.error_feedback else ', no memory'})"

    def spec(self) -> dict[str, object]:
        return {"name": self.name, "rank": int(self.rank), "error_feedback": self.error_feedback}

    def layout(self, shape: Shape, dtype: np.dtype[Any]) -> dict[str, int]:
        if len(shape) < 2:
            return {}
        rows, columns = _sides(shape)
        count = (rows + columns) * int(self.rank)
        return {"factors": count} if 4 * count < rows * columns * dtype.itemsize else {}

    def keep(self, shape: Shape, dtype: np.dtype[Any], place: int) -> Parts:
        error = {ERROR: np.zeros(shape, working(dtype))} if self.error_feedback else {}
        return {_START: self._first(shape, working(dtype), place), **error}

    def _first(self, shape: Shape, dtype: Any, place: int) -> NDArray[Any]:
        """Q at first: the same numbers in (−1, 1) for every client."""
        columns = _sides(shape)[1]
        numbers = uniforms(stream_key("low rank", 0), place, np.arange(columns * self.rank))
        return (2.0 * numbers - 1.0).astype(dtype).reshape(columns, self.rank)

    def send(self, x: Any, kept: Any, key: jax.Array) -> tuple[Any, dict[str, Any]]:
        import jax
        import jax.numpy as jnp

        with jax.default_matmul_precision("highest"):
            matrix = x.reshape(_sides(x.shape))
            left = rounded(_orthonormal(jnp, matrix @ kept[_START]), jnp.float32)
            right = rounded(matrix.T @ left, jnp.float32)
            return (left @ right.T).reshape(x.shape), {_START: _next(jnp, right, kept[_START])}

    def pack(self, x: NDArray[Any], kept: Parts, key: Key) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        matrix: Any = x.reshape(_sides(x.shape))
        left = _orthonormal(np, matrix @ kept[_START]).astype(np.float32)
        right = (matrix.T @ left.astype(x.dtype)).astype(np.float32)
        factors = np.concatenate([left.reshape(-1), right.reshape(-1)])
        return {"factors": factors}, {_START: _next(np, right.astype(x.dtype), kept[_START])}

    def unpack(self, parts: Parts, shape: Shape, dtype: np.dtype[Any]) -> NDArray[Any]:
        rows, columns = _sides(shape)
        factors = parts["factors"].astype(working(dtype))
        left: Any = factors[: rows * self.rank].reshape(rows, -1)
        right: Any = factors[rows * self.rank :].reshape(columns, -1)
        return np.asarray(left @ right.T).reshape(shape)


def _sides(shape: Shape) -> tuple[int, int]:
    return shape[0], int(np.prod(shape[1:], dtype=np.int64))


def _orthonormal(xp: Any, matrix: Any) -> Any:
    """Columns made orthonormal one after the other, each twice; 0 where one adds nothing to those before it."""
    least = np.sqrt(np.finfo(matrix.dtype).eps)
    columns: list[Any] = []
    for k in range(matrix.shape[1]):
        column = matrix[:, k]
        before = xp.sqrt((column * column).sum())
        for _ in range(2):
            for other in columns:
                column = column - other * (other * column).sum()
        after = xp.sqrt((column * column).sum())
        nothing = after <= least * before  # not true of NaN, which is to be seen
        columns.append(xp.where(nothing, 0, column / xp.where(nothing, 1, after)))
    return xp.stack(columns, axis=1)


def _next(xp: Any, right: Any, before: Any) -> Any:
    """Q for the next job: Q' with columns of length about 1, and where Q' has none the one that was there."""
    size = xp.max(xp.abs(right), axis=0)
    return xp.where(size == 0, before, right / xp.where(size == 0, 1, size))
