"""A waiting rule of one's own: every update counts at once, but a model is made at most every `pause`.

In the folder of this file: ``fedtempo plan --clients 5 --times F80 --scheme own_rule:Paced:1/2``, and so in every
command and study file.
"""

from dataclasses import dataclass
from fractions import Fraction

import fedtempo as ft
from fedtempo.rules import Action, Close, Event, State, View, WaitingRule, resend
from fedtempo.testing import check_rule


@dataclass(frozen=True)
class Paced(WaitingRule):
    """A round ends when an update is there and the last round ended at least `pause` ago.

    The state is the tick at which the pause ends.
    """

    pause: Fraction

    @property
    def waits(self) -> tuple[Fraction, ...]:
        """So that the clock's tick divides the pause."""
        return (self.pause,)

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        """Everybody gets version 0; the first update may close a round at once."""
        return view.now, tuple(sorted(view.clients))

    def deadline(self, state: State, view: View) -> int | None:
        """Ask to be woken at the end of the pause, if updates wait for it."""
        return state if view.arrived and state >= view.now else None

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        """Close as soon as both conditions hold."""
        if (again := resend(event)) is not None:  # a client has joined, or its job was lost
            return state, again
        if view.arrived and view.now >= state:
            return view.now + int(self.pause / view.unit), Close(tuple(view.arrived.values()))
        return state, None


if __name__ == "__main__":
    rule = Paced(pause=Fraction(1, 2))
    print(check_rule(rule))
    line = ft.timeline(ft.Scheme(rule, name="paced"), ft.FixedTimes.spread(clients=5, slowdown=80), until=3)
    for closed in line.rounds:
        print(closed.number, closed.end, closed.participants, closed.base_versions)
