"""The waiting rule: what ends a round (the policy Δt^n of Algorithm 1). The contract that every rule keeps.

A rule is a frozen object that is told what happened and when; it never reads a clock and keeps nothing in itself. What
it must remember is a separate value made of numbers, text, None, tuples and dicts of these, so that it can be written
to a checkpoint. The same object runs in a simulation and on a real server.

To write one's own: subclass `WaitingRule`, make it a frozen dataclass, write `decide`, and run
`fedtempo.testing.check_rule` on it. With a `closed_form` it has exact weights, windows and delays at once; without one
they are found by running it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fedtempo import compat
from fedtempo.clock.events import Action, Event, Failed, Joined, Send, Tick, View
from fedtempo.errors import InputError

if TYPE_CHECKING:
    from fedtempo.clock.closed_form import ClosedForm
    from fedtempo.clock.config import ClockConfig
    from fedtempo.clock.importance import Importance
    from fedtempo.clock.timeline import Timeline
    from fedtempo.clock.times import ClientTimes

State = Any
"""A rule's memory: None, numbers, text, and tuples or dicts of them. It comes back after a checkpoint as it was.

Example:
    >>> from dataclasses import dataclass
    >>> from fedtempo.rules import Close, State, WaitingRule, resend
    >>> @dataclass(frozen=True)
    ... class Growing(WaitingRule):  # rounds of 1, 2, 3, … updates, as many as there are clients at most
    ...     def start(self, view) -> tuple[State, tuple[int, ...]]:
    ...         return 1, tuple(sorted(view.clients))
    ...     def decide(self, state: State, event, view):
    ...         if len(view.arrived) >= min(state, len(view.clients)) and view.arrived:
    ...             return state + 1, Close(tuple(view.arrived.values()))
    ...         return state, resend(event)
    >>> line = ft.timeline(ft.Scheme(Growing(), name="growing"), ft.FixedTimes([4, 2, 1]), rounds=4)
    >>> [len(round.participants) for round in line.rounds]
    [1, 2, 3, 3]
"""

MEASURES: Mapping[str, str] = {
    "importance": "p_i, each client's importance",
    "mean_time": "the mean time that each client's jobs take",
    "loss": "the loss of a trained model on each client's data, measured when it was last sent one",
}
"""What a rule may need of clients; whoever hosts it supplies them in `View.measures`, or refuses the rule."""

_KNOWN_AHEAD = ("importance", "mean_time")
_SEVERAL = {"loss": "losses"}


class WaitingRule(ABC):
    """What ends a round, and who gets the new model. Subclass this class itself: the rules made from it are final.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedtempo.rules import Close, WaitingRule, resend
        >>> from fedtempo.testing import check_rule
        >>> @dataclass(frozen=True)
        ... class Share(WaitingRule):  # a round ends when updates of a share of the clients are there
        ...     share: float
        ...     def decide(self, state, event, view):
        ...         if (again := resend(event)) is not None:  # a client has joined, or its job was lost
        ...             return state, again
        ...         enough = view.arrived and len(view.arrived) >= self.share * len(view.clients)
        ...         return state, Close(tuple(view.arrived.values())) if enough else None
        >>> print(check_rule(Share(0.5)))
        Share(share=0.5) keeps the contract: 2400 rounds in 40 settings
        >>> print(*ft.weights(ft.Scheme(Share(0.5), name="half"), ft.FixedTimes([4, 2, 1])))
        1 1/2 1/3
    """

    def __init_subclass__(cls) -> None:
        compat.renamed(cls, asks_for="needs", barrier="synchronous")
        for base in cls.__bases__:
            if issubclass(base, WaitingRule) and base is not WaitingRule and not inspect.isabstract(base):
                raise TypeError(
                    f"{cls.__name__} derives from {base.__name__}, which is final: its closed forms and fast generator "
                    "would no longer fit; derive from WaitingRule and call the other rule's methods"
                )

    needs: tuple[str, ...] = ()
    """What the rule reads from `View.measures`: names of MEASURES."""

    random: bool = False
    """Whether the rule draws from `View.seed`; if so it has no limit cycle."""

    counts_draws: bool = False
    """Whether a client may be sent one job that counts several draws."""

    synchronous: bool = False
    """Whether a round ends only when every job that is out has come in, and takes them all: then no update is stale."""

    one_update_a_round: bool = False
    """Whether every round takes one update, and its client starts anew at once: shares are then the clients' paces."""

    same_clients: bool = False
    """Whether every round has the same clients, however long their jobs take."""

    keeps_clients_busy: bool = False
    """Whether each client is sent version 0, and each new model that it contributed to at once: it is never idle."""

    constant_phase: bool = False
    """Whether `phase` is always 0: the future depends on the ages of jobs alone."""

    returns_to_contributors: bool = True
    """Whether each contributor, and nobody else, gets the new model as soon as it is made."""

    one_set_of_clients: bool = False
    """Whether its weights hold for one set of clients only, which must always be there."""

    @property
    def by_training(self) -> bool:
        """Whether it decides by measures of trained models, so that no clock can run it ahead."""
        return any(name in MEASURES and name not in _KNOWN_AHEAD for name in self.needs)

    @property
    def waits(self) -> tuple[Fraction, ...]:
        """The durations that the rule itself measures out, so that the clock's tick divides them."""
        return ()

    @property
    def min_clients(self) -> int:
        """How many clients must be there for a round as the rule means it."""
        return 1

    def check(self, num_clients: int) -> None:
        """Refuse a number of clients with which the rule cannot work."""

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        """The first state, and who gets version 0: everybody, unless said otherwise."""
        return None, tuple(sorted(view.clients))

    def deadline(self, state: State, view: View) -> Tick | None:
        """The time at which the rule wants to hear `Deadline`; computed from the state, never accumulated."""
        return None

    @abstractmethod
    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        """The next state, and what to do about `event`."""

    def phase(self, state: State) -> int | None:
        """What the future depends on beside the ages of jobs, as a number; None if unknown: then no cycle is sought."""
        return 0 if state is None else None

    def chunks(self, config: ClockConfig) -> Iterator[Timeline] | None:
        """The rounds from the start on, generated faster than by asking `decide`; None if there is no such way."""
        if self.by_training:
            measures = " and ".join(_SEVERAL.get(name, name) for name in self.needs if name not in _KNOWN_AHEAD)
            raise InputError(
                f"{self!r} chooses clients by the {measures} of trained models, so its rounds are not known before "
                "training; use ft.simulate"
            )
        return None

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        """What is known of the long run with these clients, `times.availability` included; None: nothing."""
        return None

    def simplified(self, num_clients: int) -> WaitingRule:
        """The simplest rule with the same rounds in the long run, when so many clients are there."""
        return self

    def in_stages(self) -> tuple[tuple[int, WaitingRule], ...]:
        """The rules that follow one another, each with the number of its first round; the last one stays."""
        return ((0, self),)

    def rounds_by(self, times: ClientTimes, until: Fraction) -> int | None:
        """How many rounds end by `until`; None where counting them takes a run of the clock."""
        return None

    def draws_a_round(self, num_clients: int) -> Fraction | None:
        """How many draws a round has on average, where that is known whoever is drawn."""
        return None

    def asked_a_round(self, num_clients: int) -> Fraction:
        """Clients that are asked for a measure of the newest model, in a round on average, beyond those chosen."""
        return Fraction(0)

    def remarks(self, times: ClientTimes) -> tuple[str, ...]:
        """What deserves a word in a plan with these clients."""
        return ()


def check_needs(rule: WaitingRule, supplied: Iterable[str], host: str, cure: str) -> None:
    """Refuse a rule that reads a measure which `host` does not supply; `cure` says what to do instead."""
    unmet = [name for name in rule.needs if name not in set(supplied)]
    if unmet:
        named = ", ".join(f"{name!r} ({MEASURES[name]})" if name in MEASURES else repr(name) for name in unmet)
        raise InputError(f"{rule!r} needs {named}, which {host} does not supply; {cure}")


def resend(event: Event) -> Action:
    """What most rules do about a client that joins or fails: send it the current model, before anything else.

    A rule that closes a round instead leaves that client without a job for good.

    Example:
        >>> from fedtempo.rules import Arrived, Failed, Job, Joined, resend
        >>> resend(Joined(3))
        Send(clients=(3,))
        >>> resend(Failed(Job(client=2, number=0, base=0, sent=0), reason="no answer"))
        Send(clients=(2,))
        >>> print(resend(Arrived(Job(client=2, number=0, base=0, sent=0))))
        None
    """
    if isinstance(event, Joined):
        return Send((event.client,))
    if isinstance(event, Failed):
        return Send((event.job.client,))
    return None
