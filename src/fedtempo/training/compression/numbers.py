"""Numbers on the wire: small whole ones in as few bits as they need, and uniform ones, the same in NumPy as in JAX.

Whole numbers lie side by side; each array of them begins with a new byte. Uniform numbers of one array of one job:

    key = stream "compression" of the seed, with client, job and array folded in one after the other
    u = (2⌊bits / 2⁹⌋ + 1) / 2²⁴        in (0, 1), exact in float32

Folding in and bits are Threefry's as JAX has them: counter (0, number), and the two words of counter (0, i) xor-ed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.streams import Key, stream_key, threefry

if TYPE_CHECKING:
    import jax

_BLOCK = 1 << 15  # numbers at once, a multiple of 8: they end with a byte


def packed_size(count: int, width: int) -> int:
    """Bytes that `count` numbers of `width` bits take."""
    return -(-count * width // 8)


def pack(numbers: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Whole numbers from 0 to below 2^width, width ≤ 32, one after the other, the highest bit first."""
    if not width:
        return np.zeros(0, np.uint8)
    blocks = [_pack(numbers[start : start + _BLOCK], width) for start in range(0, len(numbers), _BLOCK)]
    return np.concatenate([np.zeros(0, np.uint8), *blocks])


def _pack(numbers: NDArray[Any], width: int) -> NDArray[np.uint8]:
    whole = np.unpackbits(numbers.astype(">u4").view(np.uint8)).reshape(-1, 32)
    return np.packbits(whole[:, 32 - width :])


def unpack(data: NDArray[np.uint8], count: int, width: int) -> NDArray[np.uint32]:
    """What was packed."""
    out = np.zeros(count, np.uint32)
    if not width:
        return out
    for start in range(0, count, _BLOCK):
        some = min(_BLOCK, count - start)
        begin = start * width // 8
        bits = np.unpackbits(data[begin : begin + packed_size(some, width)], count=some * width)
        whole = np.zeros((some, 32), np.uint8)
        whole[:, 32 - width :] = bits.reshape(some, width)
        out[start : start + some] = np.packbits(whole).view(">u4")
    return out


_DRAW_BLOCK = 1 << 16


def job_key(seed: int, client: int | str, job: int) -> Key:
    """The key of one job of one client: that of the simulator, where the client has the simulator's number."""
    number = client if isinstance(client, int) and client >= 0 else _number(str(client))
    key = stream_key("compression", seed)
    while number >= 2**32:
        key, number = fold(key, number % 2**32), number >> 32
    return fold(fold(key, number), job % 2**32)


def _number(name: str) -> int:
    """A whole number of 64 bits for a name, never one of the small ones that clients are numbered by."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") | 2**63


def fold(key: Key, number: int) -> Key:
    """Another key for each number below 2³², as ``jax.random.fold_in`` makes it."""
    first, second = threefry(key, np.zeros(1, np.uint32), np.array([number], np.uint32))
    return first[0], second[0]


def uniforms(key: Key, size: int) -> NDArray[np.float32]:
    """`size` numbers in (0, 1)."""
    out = np.empty(size, np.float32)
    for start in range(0, size, _DRAW_BLOCK):
        counter = np.arange(start, min(start + _DRAW_BLOCK, size), dtype=np.uint32)
        high, low = threefry(key, np.zeros_like(counter), counter)
        out[start : start + _DRAW_BLOCK] = _fractions(np, high ^ low)
    return out


def jax_uniforms(key: jax.Array, size: int) -> jax.Array:
    """The numbers of `uniforms`, in JAX."""
    import jax
    import jax.numpy as jnp

    with jax.threefry_partitionable(True):
        found: jax.Array = _fractions(jnp, jax.random.bits(key, (size,), jnp.uint32))
    return found


def _fractions(xp: Any, bits: Any) -> Any:
    odd = (bits >> 9) * 2 + 1
    return odd.astype(xp.float32) * np.float32(2.0**-24)
