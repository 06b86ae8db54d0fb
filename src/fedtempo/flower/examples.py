"""How many examples a client counts with: what it says, up to a multiple of what the others say.

    v_i = min(n_i, f · median of n_j, j ≠ i)        n: reported numbers of examples, f: `max_examples`

Nobody can check the number, and importance is made of it: a client that says 1e30 would be the whole model. The median
is that of the clients that are there and have answered; of an even number the upper one of the two in the middle, so
that no minority moves it. With f = 10, the default, one of M clients has at most 10/(M + 9) of the importance, whatever
it says, where the others are alike; in federations of honest clients few have more than ten times the median, and the
log names them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.times import Floats

MAX_EXAMPLES = 10.0
"""f, where nothing else is said."""


def capped(values: Floats, factor: float | None) -> Floats:
    """v_i of clients that report these numbers."""
    count = len(values)
    if factor is None or count < 2:
        return values
    order = np.argsort(values, kind="stable")
    rank: NDArray[np.int64] = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
    ordered, middle = values[order], (count - 1) // 2
    others = ordered[np.where(rank <= middle, middle + 1, middle)]
    with np.errstate(over="ignore"):  # a limit beyond all numbers is none
        return np.minimum(values, factor * others)


_FEW = 20


class Judged:
    """When everybody's number is to be looked at again: not at each answer of many clients."""

    def __init__(self) -> None:
        self._changes, self._known, self._middle = 0, 0, 0.0

    def due(self, changes: int, latest: float, factor: float) -> bool:
        """Whether, after so many changes of all numbers and with this one as the latest."""
        new = changes - self._changes
        return new > 0 and (self._known < _FEW or new > self._known // 10 or latest > factor * self._middle)

    def done(self, changes: int, known: int, middle: float) -> None:
        """All were looked at: so many are known, and this is the one in the middle."""
        self._changes, self._known, self._middle = changes, known, middle
