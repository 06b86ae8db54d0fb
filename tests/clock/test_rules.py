"""Every waiting rule passes one protocol, and every broken law is noticed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction

import pytest

from fedtempo.clock.events import Arrived, Close, Deadline, Send
from fedtempo.clock.rules import (
    FastestClients,
    FixedInterval,
    IntervalStages,
    MultinomialSample,
    UniformSample,
    WaitForAll,
    WaitForNext,
    WaitForSome,
)
from fedtempo.clock.waiting import WaitingRule, resend
from fedtempo.errors import UnlawfulRule
from fedtempo.testing import check_rule

LAWFUL = [
    WaitForAll(),
    WaitForNext(),
    FixedInterval(Fraction(1, 2)),
    FixedInterval(Fraction(7, 3)),
    FixedInterval(Fraction(1, 100)),
    IntervalStages(((Fraction(1, 2), 7), (Fraction(3, 2), None))),
    WaitForSome(1),
    WaitForSome(2),
    WaitForSome(4),
    WaitForSome(10),
    UniformSample(2),
    MultinomialSample(3),
    FastestClients(2),
    WaitForAll(alone=True),
]


@pytest.mark.parametrize("rule", LAWFUL, ids=repr)
def test_every_rule_is_lawful(rule: WaitingRule) -> None:
    assert check_rule(rule, settings=8).rounds > 0


class Like(WaitingRule):
    """Does what `inner` does: the base of rules that differ from it in one place."""

    inner: WaitingRule

    @property
    def waits(self):
        return self.inner.waits

    def start(self, view):
        return self.inner.start(view)

    def deadline(self, state, view):
        return self.inner.deadline(state, view)

    @abstractmethod
    def decide(self, state, event, view):
        return self.inner.decide(state, event, view)


@dataclass(frozen=True)
class Alternating(WaitingRule):
    """Rounds of one and of two updates in turn: a rule with a state and a phase, as a user would write it."""

    def start(self, view):
        return 1, tuple(sorted(view.clients))

    def decide(self, state, event, view):
        out = len(view.arrived) + len(view.in_flight)
        if (again := resend(event)) is not None:
            return state, again
        if view.arrived and len(view.arrived) >= min(state, out):
            return 3 - state, Close(tuple(view.arrived.values()))
        return state, None

    def phase(self, state):
        return state


def test_a_users_rule_with_a_state_works_everywhere() -> None:
    import fedtempo as ft

    assert check_rule(Alternating()).settings > 30
    scheme = ft.Scheme(Alternating(), name="alternating")
    times = ft.FixedTimes([3, 2, 1])
    cycle = ft.limit_cycle(scheme, times)
    assert cycle is not None
    counts = ft.timeline(scheme, times, rounds=cycle.start + 5 * cycle.length)[cycle.start :].participation_counts
    assert counts.tolist() == (5 * cycle.counts).tolist()
    plan = ft.compare(times, [scheme]).schemes[0]
    assert plan.run.participation.source == "cycle"
    assert plan.expected_weights == pytest.approx([1 / 3] * 3)


class Breaks:
    """One rule per law, each broken in one place."""

    @dataclass(eq=True, unsafe_hash=True)
    class NotFrozen(WaitingRule):
        size: int = 1

        def decide(self, state, event, view):
            return WaitForNext().decide(state, event, view)

    @dataclass(frozen=True, eq=False)
    class NotEqual(Like):
        inner = WaitForNext()
        size: int = 1

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class Unhashable(Like):
        inner = WaitForNext()
        sizes: list = field(default_factory=list)

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class Remembers(Like):
        inner = WaitForNext()
        seen: tuple = ()

        def decide(self, state, event, view):
            object.__setattr__(self, "seen", (*self.seen, 1))
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class ChangesState(Like):
        inner = WaitForNext()

        def start(self, view):
            return {"n": 0}, tuple(sorted(view.clients))

        def decide(self, state, event, view):
            answer = super().decide(state, event, view)[1]
            state["n"] += 1
            return state, answer

    @dataclass(frozen=True)
    class OddState(Like):
        inner = WaitForNext()

        def start(self, view):
            return frozenset([1]), tuple(sorted(view.clients))

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class TakesWhatIsNotThere(Like):
        inner = WaitForNext()

        def decide(self, state, event, view):
            return state, Close(tuple(view.in_flight.values()))

    @dataclass(frozen=True)
    class SendsToBusy(Like):
        inner = WaitForNext()

        def decide(self, state, event, view):
            return state, Send(tuple(view.in_flight)) if view.in_flight else Close(tuple(view.arrived.values()))

    @dataclass(frozen=True)
    class SendsElsewhere(Like):
        inner = WaitForAll()

        def decide(self, state, event, view):
            state, action = super().decide(state, event, view)
            if isinstance(action, Close):
                action = Close(action.take, (0,))
            return state, action

    @dataclass(frozen=True)
    class NeverCloses(Like):
        inner = WaitForAll()

        def decide(self, state, event, view):
            return state, None

    @dataclass(frozen=True)
    class DeadlineStays(Like):
        inner = FixedInterval(Fraction(1, 2))

        def decide(self, state, event, view):
            following, action = super().decide(state, event, view)
            return (state if isinstance(event, Deadline) else following), action

    @dataclass(frozen=True)
    class DeadlineIsAFloat(Like):
        inner = FixedInterval(Fraction(1, 2))

        def deadline(self, state, view):
            return float(super().deadline(state, view))

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class IgnoresFaults(Like):
        inner = WaitForAll()

        def decide(self, state, event, view):
            if not isinstance(event, Arrived):
                return state, None
            if len(view.arrived) == len(view.clients):
                return state, Close(tuple(view.arrived.values()))
            return state, None

    @dataclass(frozen=True)
    class ForgetsTheFailed(Like):
        inner = WaitForAll()

        def decide(self, state, event, view):
            if not view.in_flight and view.arrived:
                return state, Close(tuple(view.arrived.values()))
            return state, resend(event)

    @dataclass(frozen=True)
    class NoBarrier(Like):
        inner = WaitForNext()
        synchronous = True

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class PhaseThatChanges(Like):
        inner = Alternating()
        constant_phase = True

        def decide(self, state, event, view):
            return super().decide(state, event, view)

        def phase(self, state):
            return self.inner.phase(state)

    @dataclass(frozen=True)
    class OtherChunks(Like):
        inner = WaitForNext()

        def chunks(self, config):
            return WaitForAll().chunks(config)

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class WrongPhase(WaitingRule):
        """Rounds of one update, from the tenth on of two: the number of rounds matters, and phase() does not say so."""

        def start(self, view):
            return 0, tuple(sorted(view.clients))

        def decide(self, state, event, view):
            out = len(view.arrived) + len(view.in_flight)
            if (again := resend(event)) is not None:
                return state, again
            if view.arrived and len(view.arrived) >= min(1 if state < 10 else 2, out):
                return state + 1, Close(tuple(view.arrived.values()))
            return state, None

        def phase(self, state):
            return 0

    @dataclass(frozen=True)
    class Choosy(Like):
        inner = WaitForAll()

        def check(self, num_clients):
            WaitForAll(alone=True).check(num_clients - 1000)

        def decide(self, state, event, view):
            return super().decide(state, event, view)

    @dataclass(frozen=True)
    class WrongAnswer(Like):
        inner = WaitForNext()

        def decide(self, state, event, view):
            return state, "close"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Breaks.NotFrozen(), "can be changed"),
        (Breaks.NotEqual(), "does not equal its copy"),
        (Breaks.Unhashable(), "cannot be hashed"),
        (Breaks.Remembers(), "keep what the rule remembers in the state"),
        (Breaks.ChangesState(), "changed the state"),
        (Breaks.OddState(), "a checkpoint cannot keep"),
        (Breaks.TakesWhatIsNotThere(), "has not arrived"),
        (Breaks.SendsToBusy(), "still has a running job"),
        (Breaks.SendsElsewhere(), "returns_to_contributors"),
        (Breaks.NeverCloses(), "stops after 0 rounds"),
        (Breaks.DeadlineStays(), "move it on"),
        (Breaks.DeadlineIsAFloat(), "whole number of ticks"),
        (Breaks.IgnoresFaults(), "fail, leave and join"),
        (Breaks.ForgetsTheFailed(), "without a job for good"),
        (Breaks.NoBarrier(), "set synchronous = False"),
        (Breaks.PhaseThatChanges(), "set constant_phase = False"),
        (Breaks.OtherChunks(), "different rounds"),
        (Breaks.WrongPhase(), "phase"),
        (Breaks.Choosy(), "refuses every number"),
        (Breaks.WrongAnswer(), "Close, Send or None"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, WaitingRule) else "",
)
def test_a_broken_law_is_named(rule: WaitingRule, words: str) -> None:
    with pytest.raises(UnlawfulRule, match=words):
        check_rule(rule)


def test_rules_are_final() -> None:
    with pytest.raises(TypeError, match="derive from WaitingRule"):
        type("Mine", (FixedInterval,), {})
