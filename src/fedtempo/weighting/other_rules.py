"""Weight rules of other methods: by local steps (FedNova), and by the participation seen so far (FedAU).

    Normalised              d_i · K̃/K_i,    K̃ = Σ_j p_j K_j
    ParticipationHistory    ω_i(n) = p_i · mean of S_i,1 … S_i,k

`Normalised` is for clients that take unequal numbers of local steps K_i (`steps`): each contribution counts by the
step. It is FedNova for plain SGD (Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", 2020). To first order a contribution is K_i gradient steps, so that training
minimises Σ q_i K_i L_i: with d_i alone clients count by their steps, here they do not.

`ParticipationHistory` needs no times: S_i are the rounds from one participation of client i to the next, before round
n; without any the weight is p_i. An interval that reaches the cut-off counts as one of that length, and another begins.
It is FedAU (Wang, Ji, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging",
2024). Where a client takes part in one round of T, T up to the cut-off, the weights tend to the time-based ones. After
a participation in round r and the c whole cut-offs since, the k intervals cover the first r + 1 + c·cutoff rounds; so
the mean needs k alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral

import numpy as np

from fedtempo.clock.importance import Importance
from fedtempo.clock.timeline import Timeline, by_client
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.weighting.long_run import LongRun, Participation
from fedtempo.weighting.weight_rules import Tracker, WeightRule


@dataclass(frozen=True)
class Normalised(WeightRule):
    """Another rule's weights, for clients with `steps` local steps each.

    Example:
        >>> rule = ft.Normalised(ft.TimeBased(), steps=[1, 2, 5])
        >>> np.asarray(ft.weights(ft.FedAvg(), ft.FixedTimes([4, 2, 1]), rule=rule)).round(3)
        array([0.889, 0.444, 0.178])
    """

    rule: WeightRule
    steps: Sequence[int]
    name = "normalised"
    by_client = True

    def __post_init__(self) -> None:
        given = tuple(self.steps)
        if not all(isinstance(k, Integral) and not isinstance(k, bool) and k >= 1 for k in given):
            raise InputError(f"steps: {list(given)} is not allowed; give a whole number of at least 1 for each client")
        object.__setattr__(self, "steps", tuple(int(k) for k in given))
        if type(self.rule).discount is not WeightRule.discount:
            raise InputError(f"{self.rule.label}: put the discount outside, Discounted(Normalised(rule, steps), …)")

    @property
    def label(self) -> str:
        return f"{self.rule.label} ÷ steps"

    def _factors(self, importance: Importance) -> Floats:
        """[clients] K̃/K_i."""
        if len(self.steps) != len(importance.values):
            raise InputError(
                f"steps: {len(self.steps)} numbers for {len(importance.values)} clients; give one for each client"
            )
        steps = np.array(self.steps, dtype=np.float64)
        return np.asarray(float(importance.values @ steps) / steps)

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        factors = self._factors(importance)
        values, rational = self.rule.base(importance, participation)
        if rational is None:
            return values * factors, None
        mean = sum((p * k for p, k in zip(importance.exact, self.steps, strict=True)), Fraction(0))
        return values * factors, tuple(d * mean / k for d, k in zip(rational, self.steps, strict=True))

    def tracker(self, importance: Importance, num_clients: int) -> Tracker | None:
        track = self.rule.tracker(importance, num_clients)
        if track is None:
            return None
        factors = self._factors(importance)

        def weights(line: Timeline) -> Floats:
            return track(line) * factors[line.client]

        return weights

    def stepping(self, step: str) -> WeightRule | None:
        made = self.rule.stepping(step)
        return None if made is None else replace(self, rule=made)

    def check(self, run: LongRun) -> None:
        self.rule.check(run)

    def fitted(self, own: WeightRule) -> WeightRule:
        return replace(self, rule=self.rule.fitted(own))

    def assured(self, importance: Importance) -> Floats | None:
        known = self.rule.assured(importance)
        return None if known is None else known * self._factors(importance)

    @property
    def needs_shares(self) -> bool:
        return self.rule.needs_shares


@dataclass(frozen=True)
class ParticipationHistory(WeightRule):
    """FedAU's weights: they need no client times, and are inaccurate until intervals have been measured.

    `cutoff` bounds what one long absence does; a client that is always away for longer counts too little.

    Example:
        >>> line = ft.timeline(ft.FedFix(1), ft.FixedTimes([3, 1]), until=12)
        >>> rule = ft.ParticipationHistory(cutoff=50)
        >>> d = ft.weights(ft.FedFix(1), ft.FixedTimes([3, 1]), rule=rule)
        >>> d.applied(line)[line.client == 0]  # one in three rounds: towards 3/2
        array([0.5, 1.5, 1.5, 1.5])
    """

    cutoff: int = 50
    name = "participation history"

    def __post_init__(self) -> None:
        given: object = self.cutoff
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InputError(f"cutoff: {given!r} rounds are too few; give a whole number of at least 1")

    @property
    def label(self) -> str:
        return f"{self.name}, cut-off {self.cutoff}"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        """What the weights tend to where no interval reaches the cut-off, p_i / participation_i."""
        often = participation.share if participation.taking_part is None else participation.taking_part
        return importance.values / np.where(often > 0, often, 1.0), None

    @property
    def needs_shares(self) -> bool:
        return False

    def tracker(self, importance: Importance, num_clients: int) -> Tracker:
        return _Tracker(self.cutoff, importance).weights


class _Tracker:
    """Keeps each client's last participation, and how many intervals had ended by then."""

    def __init__(self, cutoff: int, importance: Importance) -> None:
        self._cutoff, self._importance = cutoff, importance.values
        self._last = np.full(len(self._importance), -1, dtype=np.int64)
        self._ended = np.zeros(len(self._importance), dtype=np.int64)

    def weights(self, line: Timeline) -> Floats:
        """The weight of every update; of a draw where it counts several, since taking part counts once."""
        order, counts, place = by_client(line.client, len(self._importance))
        client, number = line.client[order], line.round_of_update[order]
        before = np.where(place == 0, self._last[client], np.roll(number, 1))
        whole = (number - before - 1) // self._cutoff
        through = np.cumsum(whole + 1)
        begin = np.repeat(np.cumsum(counts) - counts, counts)
        earlier = through - (whole + 1)
        ended = self._ended[client] + earlier - earlier[begin] + whole
        covered = before + 1 + whole * self._cutoff
        mean = np.where(ended > 0, covered / np.maximum(ended, 1), 1.0)
        np.maximum.at(self._last, client, number)
        np.add.at(self._ended, client, whole + 1)
        weight = np.empty(line.num_updates)
        weight[order] = self._importance[client] * mean
        return weight if line.draws is None else weight / line.draws
