"""The weights that cure a biased criterion over a window of W rounds (appendix C.3).

    the first W_c rounds     ω_i(n) = 1/m for each client that the criterion chooses (a draw), c_i in all
    the other W − W_c        ω_i(n) = d_i = (W p_i − c_i)/(W − W_c) for every client

so that Σ ω_i(n) over the window is W p_i, and Σ_i ω_i(n) = 1 in every round. No d_i may be below 0: c_i ≤ W p_i. Who is
chosen is known ahead of the fastest clients only; of others c_i is at most W_c/m, or W_c where a client can be all m
draws. W is `window`, W_c `biased`, m `size`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.importance import Importance
from fedtempo.clock.rules import CuredSample
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.weighting.long_run import LongRun, Participation
from fedtempo.weighting.weight_rules import TimeBased, Tracker, WeightRule


@dataclass(frozen=True)
class WindowCure(WeightRule):
    """Weights that give every client its importance over each window of `cured`, whatever its criterion chooses."""

    cured: CuredSample
    name = "window cure"

    def base(self, importance: Importance, participation: Participation) -> tuple[Floats, tuple[Fraction, ...] | None]:
        """What a contribution weighs on average, p_i / participation_i."""
        return TimeBased().base(importance, participation)

    @property
    def needs_shares(self) -> bool:
        return False

    def assured(self, importance: Importance) -> Floats:
        return importance.values

    def tracker(self, importance: Importance, num_clients: int) -> Tracker:
        return _Tracker(self.cured, importance).weights

    def check(self, run: LongRun) -> None:
        rule = self.cured
        if run.rule != rule:
            raise InputError(f"weights: the cure of {rule!r} does not fit {run.rule!r}; leave weights out")
        most = Fraction(1) if rule.counts_draws else Fraction(1, rule.size)
        client, least = _least(rule, run, rule.size)
        if rule.biased * most > rule.window * least:
            gets = "can get" if rule.criterion.certain_choice(run.times, rule.size) is None else "gets"
            raise InputError(
                f"{rule!r}: client {client} {gets} weight {float(rule.biased * most):.4g} in the biased rounds, more "
                f"than {float(rule.window * least):.4g}, its share of a whole window, and later rounds cannot correct "
                f"that; give {_instead(rule, run, least, most)}"
            )


def _least(rule: CuredSample, run: LongRun, size: int) -> tuple[int, Fraction]:
    """The client of lowest importance that a sample of `size` can have, and its importance."""
    among = rule.criterion.certain_choice(run.times, size)
    p = run.importance.exact
    client = min(range(len(p)) if among is None else among.tolist(), key=lambda i: (p[i], i))
    return client, p[client]


def _instead(rule: CuredSample, run: LongRun, least: Fraction, most: Fraction) -> str:
    """What would do: a longer window, fewer biased rounds or a larger sample."""
    found = [f"a window of at least {max(rule.biased + 1, math.ceil(rule.biased * most / least))} rounds"]
    if (fewer := math.floor(rule.window * least / most)) >= 1:
        found.append(f"at most {fewer} biased")
    largest = getattr(rule.criterion, "candidates", None) or run.times.num_clients
    drawn = rule.criterion.certain_choice(run.times, rule.size) is None
    begin = math.ceil(rule.biased / least / rule.window) if drawn else rule.size + 1
    for size in [] if rule.counts_draws else range(begin, largest + 1):
        if rule.biased <= rule.window * size * _least(rule, run, size)[1]:
            found.append(f"a sample of at least {size}")
            break
    return " or ".join(found)


class _Tracker:
    """Keeps c_i of the window that is not over yet."""

    def __init__(self, rule: CuredSample, importance: Importance) -> None:
        self._rule = rule
        self._share = rule.window * importance.values
        self._window = 0
        self._draws = np.zeros(len(self._share))

    def weights(self, line: Timeline) -> Floats:
        """The weight of every update, or of every draw of it."""
        rule, clients = self._rule, len(self._share)
        if not line.num_rounds:
            return np.zeros(0)
        self._check(line)
        number = line.round_of_update
        window = number // rule.window - line.first_round // rule.window
        last = (line.first_round + line.num_rounds - 1) // rule.window
        draws = np.zeros((last - line.first_round // rule.window + 1, clients))
        if line.first_round // rule.window == self._window:
            draws[0] = self._draws
        chosen = rule.by_criterion(number)
        times = np.ones(line.num_updates) if line.draws is None else line.draws
        np.add.at(draws, (window[chosen], line.client[chosen]), times[chosen])
        self._window, self._draws = last, draws[-1]
        left = self._share - draws / rule.size
        if (left < -1e-9 * self._share).any():
            raise InputError(
                f"{rule!r}: these rounds are not of this rule: a client was chosen more often than it can be"
            )
        after = np.maximum(left, 0.0) / (rule.window - rule.biased)
        return np.where(chosen, 1.0 / rule.size, after[window, line.client])

    def _check(self, line: Timeline) -> None:
        """Whether the rounds that make up for the others have every client."""
        numbers = np.arange(line.first_round, line.first_round + line.num_rounds)
        lacking = ~self._rule.by_criterion(numbers) & (np.diff(line.offsets) != len(self._share))
        if lacking.any():
            raise InputError(
                f"{self._rule!r}: round {int(numbers[lacking][0])} must have all {len(self._share)} clients to "
                "correct the biased rounds, but has not; give a timeline of the cured scheme, and clients that are "
                "always available"
            )
