"""s(n − ρ_i(n)), what a stale update is worth in other systems: baselines, since they bias training.

    polynomial (1 + x)^−a;    hinge 1 up to b, then 1/(a(x − b) + 1);    constant c;    cut-off 1 up to b, then 0

The first three are those of FedAsync (Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019); FedBuff uses
the first, with a = 1/2. The last drops updates that are too stale, as many servers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedtempo.clock.ticks import exact
from fedtempo.clock.timeline import I64
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError


class Discount(Protocol):
    """s(delay): what a stale update is worth."""

    def __call__(self, staleness: I64) -> Floats:
        """A factor for each delay n − ρ_i(n)."""


@dataclass(frozen=True)
class PolynomialDiscount:
    """s(x) = (1 + x)^−a; a = 1/2 is FedBuff's."""

    exponent: float = 0.5

    def __post_init__(self) -> None:
        _require(self.exponent > 0, "polynomial discount", self.exponent, "the exponent must be above 0")

    def __call__(self, staleness: I64) -> Floats:
        return np.asarray((1.0 + staleness) ** -float(self.exponent))


@dataclass(frozen=True)
class HingeDiscount:
    """s(x) = 1 up to x = b, then 1/(a(x − b) + 1)."""

    slope: float = 10.0
    grace: float = 4.0

    def __post_init__(self) -> None:
        _require(self.slope > 0 and self.grace >= 0, "hinge discount", (self.slope, self.grace), "a > 0 and b ≥ 0")

    def __call__(self, staleness: I64) -> Floats:
        return np.asarray(1.0 / (self.slope * np.maximum(0.0, staleness - self.grace) + 1.0))


@dataclass(frozen=True)
class ConstantDiscount:
    """s(x) = c whatever the delay: FedAsync's constant mixing."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _require(0 < self.factor <= 1, "constant discount", self.factor, "the factor must lie in (0, 1]")

    def __call__(self, staleness: I64) -> Floats:
        return np.full(np.shape(staleness), float(self.factor))


@dataclass(frozen=True)
class CutOff:
    """s(x) = 1 up to x = b, then 0: what is staler is dropped."""

    limit: float

    def __post_init__(self) -> None:
        _require(self.limit >= 0, "cut-off", self.limit, "the largest delay that counts must be at least 0")

    def __call__(self, staleness: I64) -> Floats:
        return np.asarray(staleness <= self.limit, dtype=np.float64)


def _require(good: bool, what: str, given: object, rule: str) -> None:
    if not good:
        raise InputError(f"{what}: {given} does not do; {rule}")


def parse_discount(given: str) -> Discount:
    """``polynomial[:a]``, ``hinge[:a:b]``, ``constant[:c]`` or ``cutoff:b``."""
    kinds: dict[str, type[PolynomialDiscount] | type[HingeDiscount] | type[ConstantDiscount] | type[CutOff]] = {
        "polynomial": PolynomialDiscount,
        "hinge": HingeDiscount,
        "constant": ConstantDiscount,
        "cutoff": CutOff,
    }
    name, *numbers = given.split(":")
    if name not in kinds or len(numbers) > (2 if name == "hinge" else 1) or (name == "cutoff" and not numbers):
        raise InputError(f"discount: {given!r} is not known; use polynomial:0.5, hinge:10:4, constant:0.5 or cutoff:5")
    return kinds[name](*(float(exact(number, "discount")) for number in numbers))
