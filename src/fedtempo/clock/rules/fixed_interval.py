"""FedFix (section 4.4): Δt^n = Δt. A round takes what has arrived when its interval ends, also if that is nothing.

t^n = n·Δt,    and with stages (section 4.4, last paragraph)    t^n = t^{first of the stage} + k·Δt_stage
share_i = 1/E⌈T_i/Δt⌉,   d_i = p_i E⌈T_i/Δt⌉,   1/Δt rounds in a unit of time,   largest delay ⌈τ_M/Δt⌉ − 1,
W = lcm(⌈τ_i/Δt⌉)
jobs that fail: E⌈G τ_i/Δt⌉ with G jobs until one succeeds; for τ_i/Δt = a/b  Σ_{k<a} f_i^{⌊kb/a⌋}/(1 − f_i^b)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.closed_form import (
    ClosedForm,
    EachByItself,
    failing,
    forgets,
    least_common_multiple,
    rationals,
    slower,
)
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Action, Close, Deadline, Event, Tick, View
from fedtempo.clock.importance import Importance
from fedtempo.clock.rules.free_running import free_running
from fedtempo.clock.ticks import positive, text
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, FixedTimes, Floats, latest
from fedtempo.clock.waiting import State, WaitingRule, resend
from fedtempo.errors import InputError


def _end_of_interval(origin: Tick, count: int, wait: Fraction, unit: Fraction) -> Tick:
    """Origin + count·wait, in whole ticks (rounded up where the tick does not divide it)."""
    top, bottom = (
        wait.numerator * unit.denominator,
        wait.denominator * unit.numerator,
    )  # whole numbers: it is asked often
    return origin + -(-count * top // bottom)


@dataclass(frozen=True)
class FixedInterval(WaitingRule):
    """A round ends every `wait`. The state is (the clock's origin, the number of the next interval's end)."""

    constant_phase = True
    keeps_clients_busy = True

    wait: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "wait", positive(self.wait, "wait"))

    @property
    def waits(self) -> tuple[Fraction, ...]:
        return (self.wait,)

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return (view.now, 1), tuple(sorted(view.clients))

    def deadline(self, state: State, view: View) -> Tick:
        origin, count = state
        return _end_of_interval(origin, count, self.wait, view.unit)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if not isinstance(event, Deadline):
            return state, resend(event)
        origin, count = state
        passed = int((view.now - origin) * view.unit // self.wait)  # more than `count` if the server was late
        return (origin, max(count, passed) + 1), Close(tuple(view.arrived.values()))

    def phase(self, state: State) -> int:
        return 0  # at the end of a round the next deadline is always one interval away

    def chunks(self, config: ClockConfig) -> Iterator[Timeline]:
        return free_running(config, wait=config.ticks(self.wait))

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm:
        plain, availability = times.always, times.availability
        share, exact = self._shares(times)
        if not rationals(times.num_clients):
            exact = None
        fixed = times if isinstance(times, FixedTimes) else None
        needed = None if fixed is None else fixed.rounds_needed(self.wait)
        fresh = plain.memoryless and self.wait % plain.unit == 0 and (availability is None or not availability.away)
        longest = times.longest()
        most = None if longest is None else int(-(-latest(longest) // self.wait)) - 1
        return ClosedForm(
            share,
            exact,
            rounds_per_time=1 / self.wait,
            window=1 if fresh else None if needed is None else least_common_multiple(needed),
            no_window=True,
            repeats=fixed is not None,
            spacing=needed,
            practical_window=None if needed is None else max(_every(n) for n in np.unique(needed).tolist()),
            max_delay=None if availability is not None else math.inf if most is None and times.random else most,
            # a job may begin inside a round, when one fails or a client joins
            max_delay_bound=most if most is None or availability is None else most + 1,
            round_law=None if share is None or not times.random else EachByItself(share, self._forgets(times)),
        )

    def _forgets(self, times: ClientTimes) -> bool:
        return times.availability is None and forgets(times)

    def _shares(self, times: ClientTimes) -> tuple[Floats | None, tuple[Fraction, ...] | None]:
        if times.availability is None or (plain := slower(times)) is not None:
            there = times if times.availability is None else plain
            assert there is not None
            needed = there.exact_expected_rounds(self.wait) if rationals(times.num_clients) else None
            return 1.0 / there.expected_rounds(self.wait), None if needed is None else tuple(1 / n for n in needed)
        fails, fixed = failing(times), times.always
        if fails is None or not isinstance(fixed, FixedTimes):
            return None, None
        return _of_intervals([t / self.wait for t in fixed.exact_mean_time], fails.failure)

    def rounds_by(self, times: ClientTimes, until: Fraction) -> int:
        return int(until // self.wait)

    def remarks(self, times: ClientTimes) -> tuple[str, ...]:
        if not isinstance(times, FixedTimes):
            return ()
        needed = times.rounds_needed(self.wait)
        low, high = int(needed.min()), int(needed.max())
        if low == high and low > 1:
            return (
                f"every client contributes to the same one round in {low}, the others are empty: "
                f"at the paper's step it acts as FedAvg with server rate {low}",
            )
        if high == 1:
            slowest = int(times.ticks.max()) * times.unit
            idle = "" if self.wait == slowest else f", {text(self.wait - slowest)} longer than needed"
            return (f"every client is back in every round: the same rounds as FedAvg{idle}",)
        if low > 1:
            return ("the wait is shorter than the fastest client's time, so some rounds are empty",)
        return ()


@dataclass(frozen=True)
class IntervalStages(WaitingRule):
    """Rounds of one length for a number of rounds, then of another; the last length stays.

    The state is (the stage's origin, the stage, the number of the next interval's end in it, rounds done in it).
    """

    keeps_clients_busy = True

    stages: tuple[tuple[Fraction, int | None], ...]
    """(wait, rounds) of each stage; `rounds` of the last one is None."""

    def __post_init__(self) -> None:
        stages = tuple((positive(wait, "wait"), rounds) for wait, rounds in self.stages)
        if not stages or stages[-1][1] is not None:
            raise InputError("stages: the last stage goes on for ever, so its number of rounds must be None")
        for wait, rounds in stages[:-1]:
            if rounds is None or rounds < 1:
                raise InputError(f"stages: the stage with wait {wait} must say for how many rounds (at least 1)")
        object.__setattr__(self, "stages", stages)

    @property
    def waits(self) -> tuple[Fraction, ...]:
        return tuple(wait for wait, _ in self.stages)

    def in_stages(self) -> tuple[tuple[int, WaitingRule], ...]:
        first, found = 0, list[tuple[int, WaitingRule]]()
        for wait, rounds in self.stages:
            found.append((first, FixedInterval(wait)))
            first += rounds or 0
        return tuple(found)

    def simplified(self, num_clients: int) -> WaitingRule:
        return FixedInterval(self.stages[-1][0])  # what lasts

    def remarks(self, times: ClientTimes) -> tuple[str, ...]:
        stages = ", then ".join(f"{w} for {n} rounds" if n is not None else str(w) for w, n in self.stages)
        said = f"waits {stages}; the numbers are those of the last stage"
        return said, *self.simplified(times.num_clients).remarks(times)

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return (view.now, 0, 1, 0), tuple(sorted(view.clients))

    def deadline(self, state: State, view: View) -> Tick:
        origin, stage, count, _ = state
        return _end_of_interval(origin, count, self.stages[stage][0], view.unit)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if not isinstance(event, Deadline):
            return state, resend(event)
        origin, stage, count, done = state
        wait, rounds = self.stages[stage]
        reached = max(count, int((view.now - origin) * view.unit // wait))  # more than `count` if the server was late
        if rounds is not None and done + 1 >= rounds:
            following: State = (_end_of_interval(origin, reached, wait, view.unit), stage + 1, 1, 0)
        else:
            following = (origin, stage, reached + 1, done + 1)
        return following, Close(tuple(view.arrived.values()))

    def phase(self, state: State) -> int | None:
        return 0 if state[1] == len(self.stages) - 1 else None


def _every(period: int) -> int:
    """The practical window of a client that takes part in every `period`-th round.

    After n = k·period + r rounds it is behind by r/n; the last n with r/n above 1 % is the largest over r of
    r + k·period below 100·r.
    """
    if period >= 100:
        return 99 * period  # one short of the hundredth contribution's round, k = 98 and r = period − 1
    best = 0
    for behind in range(period - 1, 0, -1):
        if 100 * behind <= best:
            break
        best = max(best, behind + period * ((99 * behind - 1) // period))
    return best + 1


_MAX_BITS = 4000  # of a rational that is kept beside its float
_MAX_TERMS = 2000


def _of_intervals(
    ratios: Sequence[Fraction], failure: Sequence[Fraction]
) -> tuple[Floats, tuple[Fraction, ...] | None]:
    needed = {pair: intervals_until_success(*pair) for pair in set(zip(ratios, failure, strict=True))}
    found = [needed[pair] for pair in zip(ratios, failure, strict=True)]
    exact = tuple(1 / n for n in found if isinstance(n, Fraction))
    return np.array([1.0 / float(n) for n in found]), exact if len(exact) == len(found) else None


def intervals_until_success(ratio: Fraction, failure: Fraction) -> Fraction | float:
    """E⌈G·ratio⌉ = Σ_{k<a} f^{⌊kb/a⌋} / (1 − f^b) for ratio a/b, G geometric; a float where digits grow too many."""
    a, b = ratio.numerator, ratio.denominator
    if not failure:
        return Fraction(-(-a // b))
    if a <= _MAX_TERMS and b * failure.denominator.bit_length() <= _MAX_BITS:
        return sum((failure ** (k * b // a) for k in range(a)), Fraction(0)) / (1 - failure**b)
    f = float(failure)
    terms = min(a, math.ceil(float(ratio) * (1 + 40 / -math.log(f))))
    jobs = np.array([k * b // a for k in range(terms)], dtype=np.float64)
    return float((f**jobs).sum() / -math.expm1(b * math.log(f)))
