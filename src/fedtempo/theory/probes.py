"""How curved a loss of unknown form is, as far as a few points and a few rows can tell.

Largest and smallest curvatures by power iteration on Hessian-vector products, at the start and at points around it:
estimates, since the loss can be more curved elsewhere. Two things are certain where they are found: a direction of
negative curvature (not convex), and a gradient that jumps (not smooth). The latter by halving again and again the
interval of a line in which the gradient changes most: its slope settles where the gradient is continuous, and doubles
each time where it jumps.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedtempo.clock.times import Floats, Ints
from fedtempo.theory.losses import Curvature
from fedtempo.theory.losses_generic import GenericLosses

_POINTS = 3
_ROWS = 64
"""Of each client, at most this many rows are tried together, and a quarter of them one by one."""
_POWER_STEPS = 60
_PLACES = 33
"""Gradients along a line, before the halvings."""
_HALVINGS = 25
_JUMP = 1e4
"""A slope that grows by this much over the halvings, of the 3·10⁷ that a jump makes, belongs to a jump."""


def probed(losses: GenericLosses) -> Curvature:
    """The curvatures met; looking ends at the first direction of negative curvature."""
    rng = np.random.default_rng(0)
    start, offsets = losses.start(), losses.problem.offsets
    points = [start]
    points += [start + rng.standard_normal(losses.dimension) / losses.dimension**0.5 for _ in range(_POINTS - 1)]
    spread = np.unique(np.linspace(0, losses.problem.num_rows - 1, _ROWS).astype(np.int64))
    read = _POINTS * (_PLACES + _HALVINGS) * len(spread)
    smooth = all(_continuous(losses, spread, point, rng) for point in points)
    clients = losses.num_clients
    full, single, low = np.zeros(clients), np.zeros(clients), np.full(clients, np.inf)
    for i in range(clients):
        own = np.arange(int(offsets[i]), int(offsets[i + 1]))
        some = np.sort(rng.permutation(own)[:_ROWS])
        for point in points:
            size = abs(_extreme(losses, some, point, 0.0, rng))
            # The eigenvalue farthest from `size`, once everything is shifted by it, is the smallest one.
            full[i] = max(full[i], size)
            low[i] = min(low[i], _extreme(losses, some, point, size, rng) + size)
            read += 2 * _POWER_STEPS * len(some)
        if low[i] < -1e-6 * full[i] or not smooth:
            break
        for row in some[: _ROWS // 4]:
            single[i] = max(single[i], abs(_extreme(losses, np.array([row]), start, 0.0, rng)))
            read += _POWER_STEPS
    return Curvature(np.maximum(single, full), full, low, "estimate", smooth, read)


def _extreme(losses: GenericLosses, rows: Ints, point: Floats, shift: float, rng: np.random.Generator) -> float:
    """The eigenvalue of largest size of H − shift, by power iteration: a Rayleigh quotient, so never beyond it."""
    vector, value = rng.standard_normal(losses.dimension), 0.0
    for _ in range(_POWER_STEPS):
        vector = vector / np.linalg.norm(vector)
        image = losses.product_of(rows, point, vector) - shift * vector
        value = float(vector @ image)
        if not np.any(image):
            return 0.0
        vector = image
    return value


def _continuous(losses: GenericLosses, rows: Ints, point: Floats, rng: np.random.Generator) -> bool:
    """Whether the gradient is continuous along a line through `point`."""
    direction = rng.standard_normal(losses.dimension)
    direction /= np.linalg.norm(direction)

    def gradient(t: float) -> Floats:
        return losses.gradient_of(rows, point + t * direction)

    places = np.linspace(-2.0, 2.0, _PLACES)
    found = [gradient(float(t)) for t in places]
    changes = [float(np.linalg.norm(b - a)) for a, b in pairwise(found)]
    k = int(np.argmax(changes))
    left, right, low, high = float(places[k]), float(places[k + 1]), found[k], found[k + 1]
    first = changes[k] / (right - left)
    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        between = gradient(middle)
        if np.linalg.norm(between - low) > np.linalg.norm(high - between):
            right, high = middle, between
        else:
            left, low = middle, between
    return float(np.linalg.norm(high - low)) / (right - left) <= _JUMP * max(first, 1e-12)
