"""Named randomness: a number depends on (stream, seed, a, b) alone, never on what was drawn before.

    bits(name, seed; a, b) = Threefry-2x32-20(key(name, seed), counter (a, b))

The generator is the counter-based Threefry of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (2011), the one that JAX uses; here in NumPy, so that planning does not load JAX.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtempo.errors import ClockOverflow

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_BLOCK = 1 << 14  # counters handled at once: small enough for the processor's cache

Key = tuple[np.uint32, np.uint32]


def stream_key(name: str, seed: int) -> Key:
    """The 64-bit key of the stream `name` under `seed`; any whole number is a seed."""
    digest = hashlib.blake2b(f"fedtempo/{name}/{int(seed)}".encode(), digest_size=8).digest()
    return np.uint32(int.from_bytes(digest[:4], "little")), np.uint32(int.from_bytes(digest[4:], "little"))


def threefry(key: Key, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Threefry-2x32 with 20 rounds; `a` and `b` are the counter's two words and are left as they were."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):
        x, y = a + schedule[0], b + schedule[1]
        left, right = np.empty_like(y), np.empty_like(y)
        for group in range(5):
            for turn in _ROTATIONS[group % 2]:
                np.add(x, y, out=x)
                np.left_shift(y, np.uint32(turn), out=left)
                np.right_shift(y, np.uint32(32 - turn), out=right)
                np.bitwise_or(left, right, out=y)
                np.bitwise_xor(y, x, out=y)
            x += schedule[(group + 1) % 3]
            y += schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _word(counter: ArrayLike) -> NDArray[np.uint32]:
    numbers = np.asarray(counter)
    if numbers.size and (int(numbers.max()) >= 2**32 or int(numbers.min()) < 0):
        raise ClockOverflow("more than 2^32 jobs of one client, or rounds of one run; simulate less time")
    return numbers.astype(np.uint32)


def uniforms(key: Key, a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers strictly between 0 and 1 (52 bits), one for each pair of counters (broadcast)."""
    first, second = np.broadcast_arrays(_word(a), _word(b))
    flat_a, flat_b = np.atleast_1d(first).ravel(), np.atleast_1d(second).ravel()
    out = np.empty(flat_a.size, dtype=np.float64)
    for start in range(0, flat_a.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        high, low = threefry(key, flat_a[part], flat_b[part])
        whole = (high.astype(np.uint64) << np.uint64(20)) | (low.astype(np.uint64) >> np.uint64(12))
        out[part] = (whole.astype(np.float64) + 0.5) * 2.0**-52
    return out.reshape(first.shape)
