"""The last k numbers, and the one in the middle of them: the upper one of two.

They are kept in order beside the order in which they came, so that a number more costs two searches and no sorting.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator


class Latest:
    """Numbers, of which the oldest make way."""

    def __init__(self, most: int, values: Iterable[float] = ()) -> None:
        self._most = most
        self._in_turn: deque[float] = deque()
        self._in_order: list[float] = []
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._in_turn)

    def __iter__(self) -> Iterator[float]:
        """As they came."""
        return iter(self._in_turn)

    @property
    def middle(self) -> float:
        """Of the numbers that there are."""
        return self._in_order[len(self._in_order) // 2]

    @property
    def largest(self) -> float:
        """Of the numbers that there are; 0 if there are none."""
        return self._in_order[-1] if self._in_order else 0.0

    def add(self, value: float) -> None:
        """One more."""
        if len(self._in_turn) == self._most:
            self._out_of_order(self._in_turn.popleft())
        self._in_turn.append(value)
        insort(self._in_order, _ordered(value))

    def take_back(self, value: float) -> None:
        """A number was none after all."""
        if value in self._in_turn:
            self._in_turn.remove(value)
            self._out_of_order(value)

    def clear(self) -> None:
        """None of them counts any more."""
        self._in_turn.clear()
        self._in_order.clear()

    def _out_of_order(self, value: float) -> None:
        del self._in_order[bisect_left(self._in_order, _ordered(value))]


def _ordered(value: float) -> float:
    """What is no number has no place in an order: it counts as the largest."""
    return math.inf if value != value else value
