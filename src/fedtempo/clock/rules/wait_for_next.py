"""Asynchronous FedAvg (section 4.3): Δt^n = min_i T_i^n. Each update is a round; ties are rounds of their own.

    share_i = r_i/Σ_j r_j,   rounds in a unit of time Σ_i r_i,   with r_i contributions of client i in a unit of time:
      always there        1/E[T_i]
      failures alone      (1 − f_i)/E[T_i]
      on and off          (1 − f_i)/((a_i + b_i)(e^{τ_i/a_i} − 1));   exponential times (1 − f_i) a_i/((a_i + b_i)τ_i)
      with a period P     (1 − f_i) Σ_s ⌊s/τ_i⌋/P over its stays s;   exponential times (1 − f_i) Σ_s s/(P τ_i)
    d_i = (Σ_j 1/τ_j) τ_i p_i,   mean delay M − 1,   largest ≤ max_i Σ_{j≠i} ⌈τ_i/τ_j⌉,   W = Σ ν/τ_i with ν = lcm(τ_i)

f_i is `failure`, a_i `on`, b_i `off`. Jobs are independent; a stay cuts off the job that runs when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.availability import Absence
from fedtempo.clock.closed_form import (
    ClosedForm,
    OneAtATime,
    fine_ticks,
    forgets,
    least_common_multiple,
    rationals,
    succeeds,
)
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Action, Arrived, Close, Event, View
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules.free_running import free_running
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats
from fedtempo.clock.waiting import State, WaitingRule, resend


@dataclass(frozen=True)
class WaitForNext(WaitingRule):
    """A round ends with each update."""

    one_update_a_round = True
    constant_phase = True
    keeps_clients_busy = True

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if isinstance(event, Arrived):
            return state, Close((event.job,))
        return state, resend(event)

    def chunks(self, config: ClockConfig) -> Iterator[Timeline]:
        return free_running(config, wait=None)

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        rates = contribution_rates(times)
        if rates is None:
            return ClosedForm(no_window=True)
        floats, exact = rates
        share = floats / floats.sum()
        if not rationals(times.num_clients):
            exact = None
        if exact is not None:
            total = sum(exact, Fraction(0))
            exact = tuple(rate / total for rate in exact)
        fixed = times if isinstance(times, FixedTimes) else None
        plain = times.always
        fresh = forgets(plain) and (times.availability is None or not times.availability.away)
        unbounded = times.random and times.longest() is None
        return ClosedForm(
            share,
            exact,
            rounds_per_time=float(floats.sum()),
            window=1 if fresh else _window(fixed),  # drawn anew, q_i(n) is the same from the first round on
            no_window=True,
            spacing=None if fixed is None else fixed.ticks,
            # by time t client i has come ⌊t/τ_i⌋ times or, inside a tie, once less: c_i(n) − s_i n is in [−1, s_i M]
            count_error=None if fixed is None else max(1.0 / float(share.min()), float(len(share))),
            max_delay=math.inf if unbounded and times.availability is None else None,
            # of the slowest client: every other one comes ⌈τ_M/τ_j⌉ times; its own term is 1
            max_delay_bound=None if fixed is None else int((-(-int(fixed.ticks.max()) // fixed.ticks)).sum()) - 1,
            round_law=OneAtATime(share, fresh and times.availability is None),
        )

    def rounds_by(self, times: ClientTimes, until: Fraction) -> int | None:
        if not isinstance(times, FixedTimes):
            return None
        ticks, clients = np.unique(times.ticks, return_counts=True)
        jobs = [int(until // (tick * times.unit)) for tick in ticks.tolist()]
        return int(clients @ np.array(jobs, dtype=np.int64))


def _window(fixed: FixedTimes | None) -> int | None:
    repeats = None if fixed is None else least_common_multiple(fixed.ticks)
    return None if repeats is None or fixed is None else sum(repeats // int(t) for t in fixed.ticks)


def contribution_rates(times: ClientTimes) -> tuple[Floats, tuple[Fraction, ...] | None] | None:
    """r_i, contributions in a unit of time of a client that is sent the new model after each; None if not known."""
    plain, availability = times.always, times.availability
    if availability is None and not rationals(times.num_clients):
        return 1.0 / plain.clock_mean_time, None
    exactly = plain.exact_mean_time
    if availability is None:
        return 1.0 / plain.clock_mean_time, None if exactly is None else tuple(1 / t for t in exactly)
    fixed = isinstance(plain, FixedTimes)
    known = fixed or (plain.memoryless and fine_ticks(plain))
    success, mean = succeeds(availability), plain.mean_time
    if not availability.away:
        exact = (
            None if exactly is None else tuple((1 - f) / t for f, t in zip(availability.failure, exactly, strict=True))
        )
        return success / plain.clock_mean_time, exact
    if not known or (availability.on is not None and any(availability.absences)):
        return None
    if availability.on is not None and availability.off is not None:
        on, off = (np.array([float(m) for m in means]) for means in (availability.on, availability.off))
        with np.errstate(over="ignore"):
            finished = 1.0 / np.expm1(mean / on) if fixed else on / mean  # jobs done in one stay
        return success * finished / (on + off), None
    if not isinstance(plain, FixedTimes):
        return success * availability.present_share() / mean, None
    exact = tuple(
        (1 - f) * _jobs_in_period(rows, availability.period, t)
        for f, rows, t in zip(availability.failure, availability.absences, plain.exact_mean_time, strict=True)
    )
    return np.array([float(r) for r in exact]), exact


def _jobs_in_period(rows: Sequence[Absence], period: Fraction | None, time: Fraction) -> Fraction:
    """Jobs done in a unit of time by a client that starts one whenever it returns."""
    if not rows or period is None:
        return 1 / time
    begins, ends = [begin for begin, _ in rows], [end for _, end in rows if end is not None]
    stays = [begin - end for begin, end in zip([*begins[1:], begins[0] + period], ends, strict=True)]
    return Fraction(sum(int(stay // time) for stay in stays)) / period
