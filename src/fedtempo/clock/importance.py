"""p_i, the importance of clients in the federated loss L = Σ p_i L_i (section 2.1)."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from fedtempo.clock.ticks import Exact, exact
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError

_SLACK = Fraction(1, 10**6)


class Importance:
    """p_i: positive, sums to 1. Uniform unless given."""

    _floats = False

    def __init__(self, values: Iterable[Exact] | None, num_clients: int) -> None:
        self._given: tuple[Fraction, ...] | None = None
        self._clients = num_clients
        if values is None:
            self.values: Floats = np.full(num_clients, 1.0 / num_clients)
            return
        given = [exact(v, f"importance of client {i}") for i, v in enumerate(values)]
        if len(given) != num_clients:
            raise InputError(f"importance: {len(given)} values for {num_clients} clients; give one per client")
        for i, p in enumerate(given):
            if p <= 0:
                raise InputError(f"importance of client {i}: {p} is not above zero; leave such a client out")
        total = sum(given, Fraction(0))
        if abs(total - 1) > _SLACK:
            raise InputError(f"importance sums to {float(total):g}, not to 1; divide each value by {float(total):g}")
        self._given = tuple(p / total for p in given)
        self.values = np.array([float(p) for p in self._given])

    @classmethod
    def of(cls, values: Floats) -> Importance:
        """p_i ∝ positive floats, also where their sum is not finite; rationals only where they are asked for."""
        made = cls(None, 1)
        scaled = values / values.max()
        made.values, made._clients, made._floats = scaled / scaled.sum(), len(values), True
        return made

    def __repr__(self) -> str:
        return f"Importance({self.values.tolist() if self._given is not None else f'1/{self._clients} each'})"

    @property
    def exact(self) -> tuple[Fraction, ...]:
        """p_i as rationals."""
        if self._floats:
            given = [Fraction(p) for p in self.values.tolist()]
            return tuple(p / sum(given) for p in given)
        return self._given if self._given is not None else (Fraction(1, self._clients),) * self._clients
