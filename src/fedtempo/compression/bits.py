"""Small whole numbers, side by side in as few bits as they need; each array of them begins with a new byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
