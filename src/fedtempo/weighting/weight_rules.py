"""How d_i, the weight of a client's contribution, follows from importance and participation (section 2.3).

    time-based       d_i = p_i / participation_i                so that q_i = p_i
    identical        d_i = c                                    c such that Σ q_i = 1
    importance       d_i = c·p_i                                c such that Σ q_i = 1
    measured         p_i / participation_i as it is seen        measured.py, and own-time there
    with a discount  ω_i(n) = d_i · s(n − ρ_i(n))               what a stale update is worth in other systems; biased

A rule whose weights change with what has happened gives a tracker, which is shown the rounds one part after another.
Discounts s(x) are polynomial (1 + x)^−a, hinge (1 up to b, then 1/(a(x − b) + 1)), constant c, and cut-off (1 up to b,
then 0). The first three are those of FedAsync (Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019);
FedBuff uses the first, with a = 1/2. The last drops updates that are too stale, as many servers do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import exact
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.registry import Given, Registry

if TYPE_CHECKING:
    from fedtempo.weighting.long_run import LongRun, Participation


class Discount(Protocol):
    """s(delay): what a stale update is worth."""

    def __call__(self, staleness: I64) -> Floats:
        """A factor for each delay n − ρ_i(n)."""


@dataclass(frozen=True)
class PolynomialDiscount:
    """s(x) = (1 + x)^−a, a = `exponent`; a = 1/2 is FedBuff's.

    Example:
        >>> s = ft.PolynomialDiscount(exponent=0.5)
        >>> s(np.array([0, 3, 8]))
        array([1.        , 0.5       , 0.33333333])
    """

    exponent: float = 0.5

    def __post_init__(self) -> None:
        _require(self.exponent > 0, "polynomial discount", self.exponent, "the exponent must be above 0")

    def __call__(self, staleness: I64) -> Floats:
        return np.asarray((1.0 + staleness) ** -float(self.exponent))


@dataclass(frozen=True)
class HingeDiscount:
    """s(x) = 1 up to x = b, then 1/(a(x − b) + 1); a is `slope`, b is `grace`.

    Example:
        >>> s = ft.HingeDiscount(slope=0.5, grace=4)
        >>> s(np.array([0, 4, 6, 10]))
        array([1.  , 1.  , 0.5 , 0.25])
    """

    slope: float = 10.0
    grace: float = 4.0

    def __post_init__(self) -> None:
        _require(self.slope > 0 and self.grace >= 0, "hinge discount", (self.slope, self.grace), "a > 0 and b ≥ 0")

    def __call__(self, staleness: I64) -> Floats:
        return np.asarray(1.0 / (self.slope * np.maximum(0.0, staleness - self.grace) + 1.0))


@dataclass(frozen=True)
class ConstantDiscount:
    """s(x) = c whatever the delay, c = `factor` in (0, 1]: FedAsync's constant mixing.

    Example:
        >>> s = ft.ConstantDiscount(0.5)
        >>> s(np.array([0, 3, 8]))
        array([0.5, 0.5, 0.5])
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _require(0 < self.factor <= 1, "constant discount", self.factor, "the factor must lie in (0, 1]")

    def __call__(self, staleness: I64) -> Floats:
        return np.full(np.shape(staleness), float(self.factor))


@dataclass(frozen=True)
class CutOff:
    """s(x) = 1 up to x = `limit`, then 0: updates that are staler are dropped.

    Example:
        >>> s = ft.CutOff(limit=4)
        >>> s(np.array([0, 4, 5]))
        array([1., 1., 0.])
        >>> print(ft.published.CutOff(ft.AsyncFedAvg(), 4))  # a scheme with it
        AsyncFedAvg, cut-off 4
    """

    limit: float

    def __post_init__(self) -> None:
        _require(self.limit >= 0, "cut-off", self.limit, "the largest delay that counts must be at least 0")

    def __call__(self, staleness: I64) -> Floats:
        return np.asarray(staleness <= self.limit, dtype=np.float64)


def _require(good: bool, what: str, given: object, rule: str) -> None:
    if not good:
        raise InputError(f"{what}: {given} is not allowed; {rule}")


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


Tracker = Callable[[Timeline], Floats]
"""Is shown a run part by part, from round 0 on, and gives the weight of every update in it."""


class WeightRule(ABC):
    """How d_i follows from importance and participation.

    One's own has a `name` and gives in `base` d_i as floats, and as Fractions where it can; see `discount` and
    `tracker` for weights that follow from delays or from the rounds so far.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class SquareRoot(ft.WeightRule):
        ...     name = "square-root"
        ...     def base(self, importance, participation):
        ...         return np.sqrt(importance.values / participation.share), None
        >>> np.asarray(ft.weights(ft.AsyncFedAvg(), ft.FixedTimes([4, 1]), rule=SquareRoot())).round(3)
        array([1.581, 0.791])
    """

    name: ClassVar[str]

    @property
    def label(self) -> str:
        """The rule in a few words."""
        return self.name

    by_client: ClassVar[bool] = False
    """Whether it was made with a number for every client."""

    @property
    def identity(self) -> str:
        """What tells the rule from every other in a study's folder: its name, and all its numbers if it has any."""
        written = repr(self) if getattr(type(self), "__dataclass_fields__", None) else self.label
        return self.label if " at 0x" in written else written

    @abstractmethod
    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        """d_i, and as rationals where participation is known exactly."""

    def discount(self, staleness: I64) -> Floats:
        """s(n − ρ_i(n)): 1 unless a baseline asks for less."""
        return np.ones(np.shape(staleness))

    def tracker(self, importance: Importance, num_clients: int) -> Tracker | None:
        """What stands in d_i's place, update by update, for consecutive parts of a run from round 0 on.

        Draws and discount come on top. None: d_i does not change.
        """
        return None

    def stepping(self, step: str) -> WeightRule | None:
        """The rule with weights that have the server's step in them; None: the step follows from the long run."""
        return None

    def check(self, run: LongRun) -> None:
        """Refuse clients, or a scheme, with which the rule cannot work."""

    def fitted(self, own: WeightRule) -> WeightRule:
        """The rule for a scheme that brings weights of its own: these in place of time-based ones."""
        return self

    def assured(self, importance: Importance) -> Floats | None:
        """q_i, where the rule sees to it whatever the rounds are; None: it follows from them."""
        return None

    @property
    def needs_shares(self) -> bool:
        """Whether d_i follow from each client's share of rounds, and not at most from the sum of all."""
        return True


@dataclass(frozen=True)
class TimeBased(WeightRule):
    """d_i = p_i / participation_i: over many rounds every client counts by its importance (equations 13 and 17).

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> print(*ft.weights(ft.AsyncFedAvg(), times, rule=ft.TimeBased()))
        7/3 7/6 7/12
        >>> ft.expected_weights(ft.AsyncFedAvg(), times, rule=ft.TimeBased()).round(3)
        array([0.333, 0.333, 0.333])
    """

    name = "time-based"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        if len(participation.share) and np.minimum.reduce(participation.share) <= 0:
            never = np.flatnonzero(participation.share <= 0)
            some = ", ".join(map(str, never[:5].tolist())) + (", …" if len(never) > 5 else "")
            raise InputError(
                f"client {some} never takes part, so no weight can make it count: this choice of clients is biased; "
                "sample uniformly, or give weights='identical' to see the bias"
            )
        rational = participation.exact
        precise = None if rational is None else tuple(p / s for p, s in zip(importance.exact, rational, strict=True))
        return importance.values / participation.share, precise

    def fitted(self, own: WeightRule) -> WeightRule:
        return own


@dataclass(frozen=True)
class Identical(WeightRule):
    """One weight for all, with Σ q_i = 1: fast clients count for more.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> print(*ft.weights(ft.AsyncFedAvg(), times, rule=ft.Identical()))
        1 1 1
        >>> ft.expected_weights(ft.AsyncFedAvg(), times, rule=ft.Identical()).round(3)
        array([0.143, 0.286, 0.571])
    """

    name = "identical"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        share = participation.share
        rational = participation.exact
        precise = None if rational is None else (1 / sum(rational, Fraction(0)),) * len(share)
        return np.full(len(share), 1.0 / share.sum()), precise

    @property
    def needs_shares(self) -> bool:
        return False


@dataclass(frozen=True)
class ImportanceOnly(WeightRule):
    """d_i proportional to p_i, with Σ q_i = 1: it ignores how often a client takes part.

    Example:
        >>> times, p = ft.FixedTimes([4, 2, 1]), ["1/2", "1/4", "1/4"]
        >>> print(*ft.weights(ft.AsyncFedAvg(), times, importance=p, rule=ft.ImportanceOnly()))
        7/4 7/8 7/8
        >>> ft.expected_weights(ft.AsyncFedAvg(), times, importance=p, rule=ft.ImportanceOnly()).round(3)
        array([0.25, 0.25, 0.5 ])
    """

    name = "importance"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        total = float(importance.values @ participation.share)
        precise = None
        if participation.exact is not None:
            whole = sum((p * s for p, s in zip(importance.exact, participation.exact, strict=True)), Fraction(0))
            precise = tuple(p / whole for p in importance.exact)
        return importance.values / total, precise


@dataclass(frozen=True)
class Discounted(WeightRule):
    """Another rule's weights, discounted by staleness: a baseline, biased unless all delays are equal.

    `rule` is a weight rule, `factor` a discount as ft.PolynomialDiscount(0.5), or any function of an array of delays.

    Example:
        >>> times = ft.FixedTimes([4, 2, 1])
        >>> rule = ft.Discounted(ft.TimeBased(), ft.PolynomialDiscount(0.5))
        >>> rule.label
        'time-based × PolynomialDiscount(exponent=0.5)'
        >>> ft.expected_weights(ft.AsyncFedAvg(), times, rule=rule).round(3)  # 1/3 each without
        array([0.126, 0.18 , 0.274])
    """

    rule: WeightRule
    factor: Discount
    name = "discounted"

    @property
    def label(self) -> str:
        return f"{self.rule.label} × {self.factor}"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        return self.rule.base(importance, participation)

    def discount(self, staleness: I64) -> Floats:
        return self.rule.discount(staleness) * self.factor(staleness)

    def tracker(self, importance: Importance, num_clients: int) -> Tracker | None:
        return self.rule.tracker(importance, num_clients)

    def stepping(self, step: str) -> WeightRule | None:
        made = self.rule.stepping(step)
        return None if made is None else replace(self, rule=made)

    def check(self, run: LongRun) -> None:
        self.rule.check(run)

    def fitted(self, own: WeightRule) -> WeightRule:
        return replace(self, rule=self.rule.fitted(own))

    @property
    def needs_shares(self) -> bool:
        return self.rule.needs_shares


def _measured(max_weight: float = 2.0) -> WeightRule:
    from fedtempo.weighting.measured import Measured

    return Measured(max_weight)


def _own_time(max_weight: float = 2.0) -> WeightRule:
    from fedtempo.weighting.measured import OwnTime

    return OwnTime(max_weight)


WEIGHT_RULES: Registry[WeightRule] = Registry(
    "weights",
    {rule.name: rule for rule in (TimeBased, Identical, ImportanceOnly)}
    | {"measured": _measured, "own-time": _own_time},
    makes=(WeightRule,),
)
"""Weight rules by name."""


def weight_rule(given: Given | WeightRule) -> WeightRule:
    """The rule, or the one of that name, as "identical" or "my_module:MyRule"."""
    return given if isinstance(given, WeightRule) else WEIGHT_RULES.from_spec(given)
