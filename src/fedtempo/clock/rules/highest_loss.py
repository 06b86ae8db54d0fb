"""Sampling by a criterion of trained models (appendix C.3): the clients with the highest losses.

    candidates:  d of M clients without replacement, one after the other, each with probability proportional to p_i
    S_n:         the m candidates with the highest last known loss

It is Power-of-Choice (Cho, Wang, Joshi, "Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies", 2020); d is `candidates`, m `size`. Candidates are those with the d smallest
E_i/p_i, E_i exponential, which is the same law (Efraimidis, Spirakis, "Weighted random sampling with a reservoir",
2006); E_i of round n under seed s depends on (s, n, i) alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.clock.events import View
from fedtempo.clock.rules.sampled import SampledClients
from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.waiting import State
from fedtempo.errors import InputError


@dataclass(frozen=True)
class HighestLoss(SampledClients):
    """The `size` candidates with the highest last known loss; ties by index, unknown losses before all.

    `candidates` clients are drawn by importance; None: every client is one.
    """

    needs = ("loss", "importance")

    candidates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates is not None and self.candidates < self.size:
            raise InputError(
                f"candidates: {self.candidates} are fewer than the {self.size} clients to choose from them; "
                f"give at least {self.size}"
            )

    def check(self, num_clients: int) -> None:
        if max(self.size, self.candidates or 0) > num_clients:
            what = "candidates" if self.candidates is not None else "sample"
            given = self.candidates or self.size
            raise InputError(f"{what}: {given} clients cannot be drawn from {num_clients}; make it smaller")

    def asked_a_round(self, num_clients: int) -> Fraction:
        return Fraction((self.candidates or num_clients) - self.size)

    def phase(self, state: State) -> None:
        return None  # what is next depends on losses, which no state holds

    def choose(self, number: int, attempt: int, view: View) -> tuple[int, ...]:
        losses = view.measures.get("loss", {})
        ranked = sorted(self._candidates(number, attempt, view), key=lambda c: (-_known(losses, c), c))
        return tuple(sorted(ranked[: self.size]))

    def _candidates(self, number: int, attempt: int, view: View) -> list[int]:
        present = sorted(view.clients)
        if self.candidates is None or self.candidates >= len(present):
            return present
        importance: Mapping[int, Any] = view.measures.get("importance", {})
        shares = np.array([float(importance.get(c, 1.0)) for c in present])
        name = "candidates" if attempt == 0 else f"candidates again {attempt}"
        waits = -np.log(uniforms(stream_key(name, view.seed), number, np.array(present))) / shares
        first = np.argsort(waits, kind="stable")[: self.candidates]
        return [present[place] for place in first.tolist()]


def _known(losses: Mapping[int, Any], client: int) -> float:
    """The client's loss; infinity where it is not known, or not a number."""
    loss = float(losses.get(client, math.inf))
    return math.inf if math.isnan(loss) else loss
