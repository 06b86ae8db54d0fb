"""Other authors' methods as schemes of a study: ``[ft.FedFix("1/2"), ft.published.FedAsync()]`` compares them.

    FedAsync     θ ← (1 − α s(x)) θ + α s(x) θ_i at each update          (Xie, Koyejo, Gupta, 2019)
    FedBuff      θ ← θ + η_g/m · Σ s(x_i) Δ_i, m updates a buffer         (Nguyen et al., 2022), s(x) = (1 + x)^−1/2
    CutOff       any scheme that drops updates staler than a limit
    FedNova      synchronous, contributions counted by the step           (Wang et al., 2020)
    FedAU        any scheme, weights from the intervals between participations (Wang and Ji, 2024)

x is the delay n − ρ_i(n) of an update. Each has its own weights, whatever weight rules a study compares; FedAsync and
FedBuff have the step that was published, too, whatever the study's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from fedtempo.clock.importance import Importance
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.schemes import named as schemes
from fedtempo.schemes.named import Scheme
from fedtempo.schemes.options import SchemeOptions
from fedtempo.weighting.other_rules import Normalised, ParticipationHistory
from fedtempo.weighting.weight_rules import CutOff as DelayLimit
from fedtempo.weighting.weight_rules import (
    Discount,
    Discounted,
    Identical,
    PolynomialDiscount,
    TimeBased,
    WeightRule,
    parse_discount,
)

if TYPE_CHECKING:
    from fedtempo.weighting.long_run import Participation

__all__ = ["CutOff", "FedAU", "FedAsync", "FedBuff", "FedNova", "Mixing"]


@dataclass(frozen=True)
class Mixing(WeightRule):
    """One weight α for every update, however often a client comes: FedAsync's mixing parameter.

    Example:
        >>> rule = ft.published.Mixing(0.6)
        >>> ft.weights(ft.AsyncFedAvg(), ft.FixedTimes([4, 1]), rule=rule).values[0]
        array([0.6, 0.6])
    """

    alpha: float = 0.6
    name = "mixing"

    def __post_init__(self) -> None:
        given: object = self.alpha
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= 1:
            raise InputError(f"mixing: {self.alpha!r} is not allowed; give a number above 0 and at most 1")

    @property
    def label(self) -> str:
        return f"mixing {self.alpha:g}"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        return np.full(len(importance.values), float(self.alpha)), None

    def stepping(self, step: str) -> WeightRule:
        return self  # α is the step


def FedAsync(mixing: float = 0.6, staleness: str | Discount = "polynomial:0.5", mu: float | None = None) -> Scheme:
    """The model moves towards each client's model as it comes; `mu` is the strength of the proximal term, if any.

    `staleness` is ``polynomial:a``, ``hinge:a:b`` or ``constant:1``.

    Example:
        >>> scheme = ft.published.FedAsync(mixing=0.6, staleness="polynomial:0.5")
        >>> line = ft.timeline(scheme, ft.FixedTimes([4, 1]), until=5)
        >>> line.staleness
        array([0, 0, 0, 3, 1, 0])
        >>> ft.weights(scheme, ft.FixedTimes([4, 1])).applied(line).round(3)
        array([0.6  , 0.6  , 0.6  , 0.3  , 0.424, 0.6  ])
    """
    from fedtempo.training.corrections import FedProx
    from fedtempo.training.server_rules import MixModels

    return schemes.AsyncFedAvg().using(
        weights=Discounted(Mixing(mixing), _discount(staleness)),
        server=MixModels(),
        correction=None if mu is None else FedProx(mu),
        step="paper",
        label=f"FedAsync({mixing:g}, {_words(staleness)}{'' if mu is None else f', mu={mu:g}'})",
    )


def FedBuff(size: int, staleness: str | Discount = "polynomial:0.5") -> Scheme:
    """The mean of a buffer, each update discounted by its delay: one weight for all clients.

    Example:
        >>> scheme = ft.published.FedBuff(size=2)
        >>> line = ft.timeline(scheme, ft.FixedTimes([4, 2, 1]), until=4)
        >>> line.staleness
        array([0, 0, 1, 0])
        >>> ft.weights(scheme, ft.FixedTimes([4, 2, 1])).applied(line).round(3)
        array([0.5  , 0.5  , 0.354, 0.5  ])
    """
    weights = Discounted(Identical(), _discount(staleness))
    label = f"FedBuff({size}) as published"
    if staleness != "polynomial:0.5":
        label += f", {_words(staleness)}"
    return schemes.FedBuff(size).using(weights=weights, step="paper", label=label)


def CutOff(scheme: Scheme, limit: int) -> Scheme:
    """A scheme that drops updates with a delay beyond `limit`.

    Example:
        >>> times = ft.FixedTimes([4, 1])
        >>> scheme = ft.published.CutOff(ft.AsyncFedAvg(), limit=2)
        >>> ft.expected_weights(scheme, times)  # client 0 is always staler than 2: it never counts
        array([0. , 0.5])
    """
    return a_scheme(scheme).using(
        weights=Discounted(TimeBased(), DelayLimit(limit)), label=f"{scheme.label}, cut-off {limit}"
    )


def FedNova(steps: Sequence[int]) -> Scheme:
    """FedAvg whose clients take `steps` local steps each, and count as if all had taken the same.

    Example:
        >>> scheme = ft.published.FedNova(steps=[1, 2, 5])
        >>> np.asarray(ft.weights(scheme, ft.FixedTimes([4, 2, 1]))).round(3)
        array([0.889, 0.444, 0.178])
    """
    taken = SchemeOptions(client_steps=steps).client_steps  # type: ignore[arg-type]
    assert taken is not None
    return schemes.FedAvg().using(client_steps=taken, weights=Normalised(TimeBased(), taken), label="FedNova")


def FedAU(scheme: Scheme, cutoff: int = 50) -> Scheme:
    """A scheme whose weights come from the rounds between a client's participations, as they are seen.

    Example:
        >>> scheme = ft.published.FedAU(ft.FedFix(1), cutoff=50)
        >>> times = ft.FixedTimes([3, 1])
        >>> line = ft.timeline(scheme, times, until=12)
        >>> ft.weights(scheme, times).applied(line)[line.client == 0]
        array([0.5, 1.5, 1.5, 1.5])
    """
    return a_scheme(scheme).using(weights=ParticipationHistory(cutoff), label=f"{scheme.label}, FedAU({cutoff})")


def a_scheme(given: object) -> Scheme:
    """A scheme."""
    if not isinstance(given, Scheme):
        raise InputError(f"scheme: {given!r} is not a scheme; give ft.AsyncFedAvg(), ft.FedFix('1/2'), …")
    return given


def _discount(given: object) -> Discount:
    if isinstance(given, str):
        return parse_discount(given)
    if not callable(given):
        raise InputError(
            f"staleness: {given!r} is not a discount; give polynomial:0.5, hinge:10:4, constant:1, or a discount"
        )
    return cast("Discount", given)


def _words(given: str | Discount) -> str:
    if given == PolynomialDiscount():
        return "polynomial:0.5"
    return given if isinstance(given, str) else str(given)
