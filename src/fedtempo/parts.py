"""The parts of a scheme beside its waiting rule: how clients work, what they send, and what the server does with it.

    ft.FedFix("1/2").using(correction=ft.FedProx(0.1), server=ft.FedAdam(), compression=ft.TopK(0.01))

Each composes with every scheme; combinations that make no sense are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedtempo.errors import InputError

if TYPE_CHECKING:
    from fedtempo.compression import Compression
    from fedtempo.local.correction import Correction
    from fedtempo.server_steps import MixModels, ServerOptimizer
    from fedtempo.weighting import WeightRule

Compensation = Literal["weights", "rate", "work"]


@dataclass(frozen=True)
class Parts:
    """What a scheme is used with; None: as in FedAvg."""

    weights: WeightRule | None = None
    """Its own weights, whatever rules a study compares."""
    correction: Correction | None = None
    server: ServerOptimizer | MixModels | None = None
    compression: Compression | None = None
    compensate: Compensation | None = None
    """By what clients that come rarely count as they should: weights (None), local learning rates, or local steps."""
    client_steps: tuple[int, ...] | None = None
    """K(i), where clients differ in it."""
    client_rates: tuple[float, ...] | None = None
    """Factors of η_l, one a client."""

    def __post_init__(self) -> None:
        if self.compensate not in (None, *get_args(Compensation)):
            raise InputError(f"compensate: {self.compensate!r} is not known; use weights, rate or work")
        if self.compensate in ("rate", "work") and (self.weights or self.client_steps or self.client_rates):
            raise InputError(
                f"compensate: {self.compensate} sets the weights, rates and steps of clients by itself; leave weights, "
                "client_steps and client_rates out"
            )
        if isinstance(self.weights, str):
            from fedtempo.weight_rules import weight_rule

            object.__setattr__(self, "weights", weight_rule(self.weights))
        self._take("client_steps", Integral, "whole numbers of at least 1, one a client")
        self._take("client_rates", Real, "numbers above 0, one a client")

    def _take(self, name: str, kind: Any, what: str) -> None:
        given = getattr(self, name)
        if given is None:
            return
        listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [None]
        if not listed or not all(isinstance(v, kind) and not isinstance(v, bool) and v > 0 for v in listed):
            raise InputError(f"{name}: {given!r} does not do; give {what}")
        object.__setattr__(self, name, tuple(listed))

    @property
    def own_weights(self) -> WeightRule | None:
        """The weights that the parts bring: time-based ones where rate or work stands for them."""
        if self.compensate in ("rate", "work"):
            from fedtempo.weight_rules import TimeBased

            return TimeBased()
        return self.weights

    @property
    def plain(self) -> bool:
        """Whether there are none."""
        return self == Parts()

    @property
    def words(self) -> list[str]:
        """The parts that are there, in a few words each."""
        named = [part.label for part in (self.weights, self.correction, self.server, self.compression) if part]
        if self.compensate in ("rate", "work"):
            named.append(f"by {self.compensate}")
        named += [
            f"{name.removeprefix('client_')} by client"
            for name in ("client_steps", "client_rates")
            if getattr(self, name)
        ]
        return named

    def spec(self) -> dict[str, object]:
        """The parts that are there as JSON."""
        found: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.name == "weights":
                value = value.label
            elif hasattr(value, "spec"):
                value = value.spec()
            found[field.name] = list(value) if isinstance(value, tuple) else value
        return found
