"""The waiting rule: what ends a round (the policy Δt^n of Algorithm 1).

A rule is a frozen object that is told what happened and when; it never reads a clock and keeps nothing in itself. What
it must remember is a separate value made of numbers, text, None, tuples and dicts of these, so that it can be written
to a checkpoint. The same object runs in a simulation and on a real server.

To write one's own: subclass `WaitingRule`, make it a frozen dataclass, write `decide`, and run
`fedtempo.testing.check_rule` on it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fedtempo.clock.events import Action, Event, Failed, Joined, Send, Tick, View
from fedtempo.errors import InputError

if TYPE_CHECKING:
    from fedtempo.clock.config import ClockConfig
    from fedtempo.clock.timeline import Timeline

State = Any
"""A rule's memory: None, numbers, text, and tuples or dicts of them."""

_SEVERAL = {"loss": "losses"}


class WaitingRule(ABC):
    """What ends a round, and who gets the new model. Subclass this class itself: the rules made from it are final."""

    def __init_subclass__(cls) -> None:
        for base in cls.__bases__:
            if issubclass(base, WaitingRule) and base is not WaitingRule and not inspect.isabstract(base):
                raise TypeError(
                    f"{cls.__name__} derives from {base.__name__}, which is final: its closed forms and fast generator "
                    "would no longer fit; derive from WaitingRule and call the other rule's methods"
                )

    random: bool = False
    """Whether the rule draws from `View.seed`; if so it has no limit cycle."""

    counts_draws: bool = False
    """Whether a client may be sent one job that counts several draws."""

    synchronous: bool = False
    """Whether a round ends only when every job that is out has come in, and takes them all: then no update is stale."""

    one_update_a_round: bool = False
    """Whether every round takes one update, and its client starts anew at once: shares are then the clients' paces."""

    constant_phase: bool = False
    """Whether `phase` is always 0: the future depends on the ages of jobs alone."""

    returns_to_contributors: bool = True
    """Whether each contributor, and nobody else, gets the new model as soon as it is made."""

    needs: tuple[str, ...] = ()
    """Measures of trained models in `View.measures` by which the rule decides, as "loss"; no clock can run it ahead."""

    @property
    def waits(self) -> tuple[Fraction, ...]:
        """The durations that the rule itself measures out, so that the clock's tick divides them."""
        return ()

    def check(self, num_clients: int) -> None:
        """Refuse a number of clients with which the rule cannot work."""

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        """The first state, and who gets version 0: everybody, unless said otherwise."""
        return None, tuple(sorted(view.clients))

    def deadline(self, state: State, view: View) -> Tick | None:
        """The moment at which the rule wants to hear `Deadline`; computed from the state, never accumulated."""
        return None

    @abstractmethod
    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        """The next state, and what to do about `event`."""

    def phase(self, state: State) -> int | None:
        """What the future depends on beside the ages of jobs, as a number; None if unknown: then no cycle is sought."""
        return 0 if state is None else None

    def chunks(self, config: ClockConfig) -> Iterator[Timeline] | None:
        """The rounds from the start on, generated faster than by asking `decide`; None if there is no such way."""
        if self.needs:
            measures = " and ".join(_SEVERAL.get(name, name) for name in self.needs)
            raise InputError(
                f"{self!r} chooses by the {measures} of trained models, so that nobody can tell its rounds ahead of "
                "training; use ft.simulate"
            )
        return None


def resend(event: Event) -> Action:
    """What most rules do about a client that joins or fails: send it the current model, before anything else.

    A rule that closes a round instead leaves that client without a job for good.
    """
    if isinstance(event, Joined):
        return Send((event.client,))
    if isinstance(event, Failed):
        return Send((event.job.client,))
    return None
