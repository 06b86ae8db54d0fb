"""FedFix (section 4.4): Δt^n = Δt. A round takes what has arrived when its interval ends, also if that is nothing.

t^n = n·Δt,    and with stages (section 4.4, last paragraph)    t^n = t^{first of the stage} + k·Δt_stage
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Action, Close, Deadline, Event, Tick, View
from fedtempo.clock.rules.free_running import free_running
from fedtempo.clock.ticks import positive
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.waiting import State, WaitingRule, resend
from fedtempo.errors import InputError


def _moment(origin: Tick, count: int, wait: Fraction, unit: Fraction) -> Tick:
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
        return _moment(origin, count, self.wait, view.unit)

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


@dataclass(frozen=True)
class IntervalStages(WaitingRule):
    """Rounds of one length for a number of rounds, then of another; the last length stays.

    The state is (the stage's origin, the stage, the number of the next interval's end in it, rounds done in it).
    """

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

    def first_rounds(self) -> tuple[int, ...]:
        """The number of the first round of each stage."""
        starts = [0]
        for _, rounds in self.stages[:-1]:
            starts.append(starts[-1] + (rounds or 0))
        return tuple(starts)

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return (view.now, 0, 1, 0), tuple(sorted(view.clients))

    def deadline(self, state: State, view: View) -> Tick:
        origin, stage, count, _ = state
        return _moment(origin, count, self.stages[stage][0], view.unit)

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if not isinstance(event, Deadline):
            return state, resend(event)
        origin, stage, count, done = state
        wait, rounds = self.stages[stage]
        reached = max(count, int((view.now - origin) * view.unit // wait))  # more than `count` if the server was late
        if rounds is not None and done + 1 >= rounds:
            following: State = (_moment(origin, reached, wait, view.unit), stage + 1, 1, 0)
        else:
            following = (origin, stage, reached + 1, done + 1)
        return following, Close(tuple(view.arrived.values()))

    def phase(self, state: State) -> int | None:
        return 0 if state[1] == len(self.stages) - 1 else None
