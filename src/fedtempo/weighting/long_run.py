"""What a rule does with given clients in the long run: shares of rounds, pace, delays (section 4, appendix C).

    share_i      the share of rounds in which client i takes part; FedAvg 1, asynchronous (1/τ_i)/Σ_j(1/τ_j),
                 FedFix 1/E⌈T_i/Δt⌉, FedBuff from its limit cycle: clock/rules/ has each rule's own closed form
    mean delay   M/(updates a round) − 1 where clients are never idle (Little's law)

What a rule's closed form leaves out comes from the exact limit cycle, else from a long run with its standard error.
Where clients come or go for good, what lasts: the last stretch of time in which the same clients are there; of those
that are not, nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from fedtempo.clock.closed_form import EXACT_CLIENTS, ClosedForm
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import Observation, observe
from fedtempo.clock.generate import Recording
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import text
from fedtempo.clock.times import MANY_CLIENTS, ClientTimes, Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.display import Brief, Shown, frame_of
from fedtempo.errors import InputError
from fedtempo.weighting.estimates import estimated_pace, estimated_share
from fedtempo.weighting.memory import remembered

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

T = TypeVar("T")
Source = Literal["closed form", "cycle", "estimate"]


@dataclass(frozen=True, repr=False)
class Participation(Shown, Brief):
    """Share of rounds of each client, and how it is known.

    Example:
        >>> found = ft.participation_of(ft.FedBuff(2), ft.ExponentialTimes([4, 2, 1]))
        >>> found.share.round(3), found.source
        (array([0.39 , 0.714, 0.895]), 'closed form')
        >>> float(found.updates_per_round)
        2.0
    """

    share: Floats
    """[clients] expected draws a round: the share of rounds, unless a client can be drawn more than once."""
    exact: tuple[Fraction, ...] | None
    source: Source
    error: Floats | None = None
    """[clients] standard error of an estimated share."""
    taking_part: Floats | None = None
    """[clients] share of rounds, where draws count more than once."""

    @property
    def updates_per_round(self) -> float:
        """Clients that contribute to a round, on average."""
        return float((self.share if self.taking_part is None else self.taking_part).sum())

    def table(self) -> pd.DataFrame:
        """A row a client: its `share` of rounds, with `taking_part` and the standard `error` where there are any."""
        return frame_of(self)


def estimated(seen: Observation, *, several: bool = False) -> Participation:
    """From a long run; `several`: clients may be drawn more than once a round."""
    share, error = estimated_share(seen)
    return Participation(share, None, "estimate", error, estimated_share(seen, draws=False)[0] if several else None)


class LongRun:
    """What a rule does with given clients in the long run; worked out when asked for, once."""

    def __init__(self, rule: WaitingRule, times: ClientTimes, importance: Importance, seed: int = 0) -> None:
        rule.check(times.num_clients)
        rule = rule.simplified(times.num_clients)
        self.rule, self.times, self.importance, self.seed = rule, times, importance, seed
        self.record = Recording(ClockConfig.of(rule, times, importance.values, seed))

    @cached_property
    def after_last_change(self) -> LongRun:
        """Itself; where clients come or go for good, the long run of those who stay, numbered anew."""
        availability = self.times.availability
        if availability is None or not availability.changes:
            return self
        return during(self, len(availability.stretches) - 1)

    @cached_property
    def closed(self) -> ClosedForm:
        """What the rule itself knows of its long run."""
        if self.after_last_change is not self:
            return self.after_last_change.closed
        return self.rule.closed_form(self.times, self.importance) or ClosedForm()

    @cached_property
    def observation(self) -> Observation:
        """A run of up to a million rounds: to the end of its limit cycle, where one is found."""
        if self.after_last_change is not self:
            return self.after_last_change.observation
        if self.times.num_clients > MANY_CLIENTS:  # too long to be kept
            return self._observed()
        return remembered(self.record.config, "observation", self._observed, importance=False)

    def _observed(self) -> Observation:
        log.info("running the clock of %r to find its limit cycle, or to estimate", self.rule)
        known = self.closed.share is not None and self.closed.rounds_per_time is not None
        if known and self.times.num_clients > MANY_CLIENTS:  # only how stale updates are is asked for
            return observe(self.record, by_client=False)
        return observe(self.record)

    def remembered(self, what: str, compute: Callable[[], T], *more: object) -> T:
        """What is worked out from this long run and from `more`, once: see memory.py."""
        exact = self.importance.exact if self.times.num_clients <= EXACT_CLIENTS else None
        return remembered(self.record.config, what, compute, exact, *more)

    @cached_property
    def participation(self) -> Participation:
        """Share of rounds of each client."""
        if self.after_last_change is not self:
            return participation_of_all(self, self.after_last_change.participation)
        closed = self.closed
        if closed.share is not None:
            return Participation(closed.share, closed.exact, "closed form", taking_part=closed.taking_part)
        cycle = self.observation.cycle
        if cycle is not None:
            exact = cycle.participation if len(cycle.counts) <= EXACT_CLIENTS else None
            return Participation(cycle.counts / cycle.length, exact, "cycle")
        return estimated(self.observation, several=self.rule.counts_draws)

    @property
    def rounds_per_time(self) -> float:
        """Rounds in a unit of time."""
        return self._pace[0]

    @property
    def rounds_per_time_source(self) -> Source:
        """How `rounds_per_time` is known."""
        return self._pace[1]

    @cached_property
    def _pace(self) -> tuple[float, Source]:
        if self.closed.rounds_per_time is not None:
            return float(self.closed.rounds_per_time), "closed form"
        seen = self.observation
        if seen.cycle is not None:
            return float(seen.cycle.rounds_per_time), "cycle"
        return estimated_pace(seen) / float(seen.unit), "estimate"

    @cached_property
    def mean_delay(self) -> float:
        """Mean of n − ρ_i(n) over updates."""
        if self.rule.synchronous:
            return 0.0
        if self.after_last_change is not self:
            return self.after_last_change.mean_delay
        if self.closed.mean_delay is not None:
            return self.closed.mean_delay
        if self._never_idle:
            return max(0.0, self.times.num_clients / self.participation.updates_per_round - 1.0)
        seen = self.observation
        return seen.mean_delay if seen.cycle is None else float(seen.cycle.mean_delay)

    @cached_property
    def mean_delay_by_weight(self) -> float | None:
        """Mean of n − ρ_i(n) over updates counted by their unbiased weights, Σ p_i/share_i − 1; None if not known."""
        if self.rule.synchronous:
            return 0.0
        if self.after_last_change is not self:
            return self.after_last_change.mean_delay_by_weight
        if self.closed.mean_delay_by_weight is not None:
            return self.closed.mean_delay_by_weight
        share = self.participation.share
        if not self._never_idle or not share.all():
            return None
        return max(0.0, float((self.importance.values / share).sum()) - 1.0)

    @property
    def _never_idle(self) -> bool:
        """Whether every client has a job out, or an update that waits, at all times; who fails or joins has a gap."""
        return self.rule.keeps_clients_busy and self.times.availability is None

    @cached_property
    def max_delay(self) -> tuple[int, bool, int | None]:
        """The largest delay that is known, whether it is the largest there is, and a bound on that."""
        if self.rule.synchronous:
            return 0, True, 0
        closed = self.closed
        if closed.max_delay is not None and closed.max_delay < float("inf"):
            return int(closed.max_delay), True, int(closed.max_delay)
        seen, bound = self.observation, closed.max_delay_bound
        least = math.ceil(self.mean_delay) if self.times.num_clients > MANY_CLIENTS else 0
        if seen.max_delay < least and seen.cycle is None:  # a run that is too short to show even the mean
            return least, False, bound
        return seen.max_delay, seen.cycle is not None or seen.max_delay == bound, bound


def during(run: LongRun, number: int) -> LongRun:
    """The long run of those who are there in one of the stretches, numbered anew, as if it never ended."""
    availability = run.times.availability
    assert availability is not None
    begin, clients = availability.stretches[number]
    if not clients:
        raise InputError(
            f"absences: nobody is there from {text(begin)} on, so that there is no long run; "
            "let somebody stay, or give a period"
        )
    total = sum((run.importance.exact[i] for i in clients), Fraction(0))
    importance = Importance([run.importance.exact[i] / total for i in clients], len(clients))
    return LongRun(run.rule.simplified(len(clients)), run.times.only(clients), importance, run.seed)


def of_all(run: LongRun, values: Floats) -> Floats:
    """[clients] what is known of those who stay; 0 for the others."""
    availability = run.times.availability
    if availability is None or not availability.changes:
        return values
    out = np.zeros(run.times.num_clients)
    out[list(availability.stretches[-1].clients)] = values
    return out


def participation_of_all(run: LongRun, found: Participation) -> Participation:
    """The participation of those who stay, with nothing for the others."""
    assert run.times.availability is not None
    exact = None
    if found.exact is not None:
        known = dict(zip(run.times.availability.stretches[-1].clients, found.exact, strict=True))
        exact = tuple(known.get(i, Fraction(0)) for i in range(run.times.num_clients))
    error, taking = (None if v is None else of_all(run, v) for v in (found.error, found.taking_part))
    return replace(found, share=of_all(run, found.share), exact=exact, error=error, taking_part=taking)
