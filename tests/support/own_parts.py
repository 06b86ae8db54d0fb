"""A waiting rule, a server optimizer, a compression and more as users write them: named from here, known to nobody."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedtempo as ft
from fedtempo.rules import Close, WaitingRule, resend

UPPER = np.uint32(0xFFFF0000)


@dataclass(frozen=True)
class EveryFew(WaitingRule):
    """A round ends when `size` updates wait, or everybody's; `pace` is there to be written down."""

    size: int = 2
    pace: Fraction = Fraction(1, 3)

    def decide(self, state, event, view):
        if (again := resend(event)) is not None:
            return state, again
        full = len(view.arrived) >= min(self.size, len(view.clients))
        return state, Close(tuple(view.arrived.values())) if full else None


class Pairs(ft.Scheme):
    """A scheme that is a class."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        super().__init__(EveryFew(size), name="pairs", label=f"Pairs({size})")


def few(size: int = 3) -> EveryFew:
    """A function that makes a rule."""
    return EveryFew(size)


THREE = EveryFew(3)


@dataclass(frozen=True)
class Halving(ft.ServerOptimizer):
    """Momentum that forgets half of itself, times `scale`."""

    scale: float = 1.0

    def transformation(self, server_lr):
        return optax.chain(optax.trace(0.5), optax.scale(self.scale), optax.scale(-server_lr))


@dataclass(frozen=True)
class UpperHalf(ft.Compression):
    """The upper 16 bits of each float32, the rest remembered or not."""

    error_feedback: bool = False

    def layout(self, shape, dtype):
        return {"halves": 2 * int(np.prod(shape))}

    def keep(self, shape, dtype, place):
        return {"error": np.zeros(shape, np.float32)} if self.error_feedback else {}

    def send(self, x, kept, key):
        bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
        return jax.lax.bitcast_convert_type(bits & UPPER, jnp.float32).astype(x.dtype), {}

    def pack(self, x, kept, key):
        upper = (x.astype("<f4").view("<u4") >> 16).astype("<u2")
        return {"halves": np.frombuffer(upper.tobytes(), np.uint8)}, {}

    def unpack(self, parts, shape, dtype):
        upper = np.frombuffer(parts["halves"].tobytes(), "<u2").astype(np.uint32)
        return (upper << 16).view(np.float32).reshape(shape)


@dataclass(frozen=True)
class Pull(ft.Correction):
    """FedProx under another name."""

    mu: float = 0.1

    def corrected(self, gradient, here, begun):
        return jax.tree.map(lambda g, h, s: g + self.mu * (h - s), gradient, here, begun.sent.model)


@dataclass(frozen=True)
class Evenly(ft.WeightRule):
    """One weight `value` for every update."""

    value: float = 0.2
    name = "evenly"

    def base(self, importance, participation):
        return np.full(len(importance.values), self.value), None


def solver(learning_rate, slowdown: float = 2.0):
    """A solver of one's own."""
    return optax.sgd(learning_rate / slowdown)


def points(clients: int = 3):
    """A problem of one's own."""
    return ft.problems.quadratics(clients, dimension=2, heterogeneity=1.0)
