"""What happens on a server's clock, and what a waiting rule may know and answer.

A job is one client's K local steps from one model version; a round ends with θ^{n+1} (Algorithm 1). ρ_i(n) is `base`,
S_n the clients of `Round.jobs`, and `Job.draws` how often multinomial sampling drew the client for this job.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from fractions import Fraction
from typing import NamedTuple

Tick = int
"""A whole number of units: virtual time in ticks of a common unit, or nanoseconds of a server's monotonic clock.

Example:
    >>> line = ft.timeline(ft.FedFix("1/2"), ft.FixedTimes(["3/4", "1/2"]), until=1)
    >>> print(line.ends, "ticks of", line.unit)  # the rounds end at 1/2 and 1
    [2 4] ticks of 1/4
"""


class Job(NamedTuple):
    """One client's work on one model version.

    Example:
        >>> from fedtempo.rules import Arrived, Job
        >>> event = Arrived(Job(client=2, number=5, base=7, sent=120))  # its sixth job, from model version 7
        >>> event.job.client, event.job.base
        (2, 7)
    """

    client: int
    number: int
    base: int
    sent: Tick
    draws: int = 1


class Round(NamedTuple):
    """A closed round: its number n, its end, the jobs that it took (by client), and who gets the new model."""

    number: int
    end: Tick
    jobs: tuple[Job, ...]
    sent_to: tuple[int, ...]


class Arrived(NamedTuple):
    """A job's update has come in.

    Example:
        >>> from fedtempo.rules import Arrived, Job
        >>> event = Arrived(Job(client=2, number=5, base=7, sent=120))
        >>> isinstance(event, Arrived), event.job.client
        (True, 2)
    """

    job: Job


class Failed(NamedTuple):
    """A job will never come in; the client is still there.

    Example:
        >>> from fedtempo.rules import Failed, Job, resend
        >>> event = Failed(Job(client=2, number=5, base=7, sent=120), reason="out of memory")
        >>> resend(event)  # what most rules do about it
        Send(clients=(2,))
    """

    job: Job
    reason: str = ""


class Joined(NamedTuple):
    """A client is there from now on.

    Example:
        >>> from fedtempo.rules import Joined, resend
        >>> resend(Joined(4))  # what most rules do about it
        Send(clients=(4,))
    """

    client: int


class Left(NamedTuple):
    """A client is gone; its running job is lost, an update that has arrived still counts.

    Example:
        >>> from fedtempo.rules import Left, resend
        >>> print(resend(Left(4)))  # nothing to send; a rule that counts clients may close the round
        None
    """

    client: int


class Deadline(NamedTuple):
    """The moment that the rule asked for has come.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedtempo.rules import Close, Deadline, WaitingRule, resend
        >>> @dataclass(frozen=True)
        ... class Every(WaitingRule):  # a round every `ticks`
        ...     ticks: int
        ...     def deadline(self, state, view):
        ...         return (view.version + 1) * self.ticks
        ...     def decide(self, state, event, view):
        ...         if isinstance(event, Deadline):
        ...             return state, Close(tuple(view.arrived.values()))
        ...         return state, resend(event)
        >>> line = ft.timeline(ft.Scheme(Every(2), name="every-2"), ft.FixedTimes([1, 3]), until=6)
        >>> [round.participants for round in line.rounds]
        [(0,), (0, 1), (0,)]
    """


Event = Arrived | Failed | Joined | Left | Deadline
"""What a rule is told of: `Arrived`, `Failed`, `Joined`, `Left` or `Deadline`.

Within one tick: arrivals by client, one at a time; then failures, leavings and joinings; the deadline last.

Example:
    >>> from fedtempo.rules import Deadline, Event, Joined
    >>> event: Event = Joined(client=3)
    >>> match event:
    ...     case Joined(client):
    ...         print("client", client, "is there")
    ...     case Deadline():
    ...         print("the time has come")
    client 3 is there
"""


class View(NamedTuple):
    """All that a rule may know, after the event it is told of has been booked.

    Example:
        >>> from fractions import Fraction
        >>> from fedtempo.rules import Job, View
        >>> job = Job(client=1, number=0, base=0, sent=0)
        >>> view = View(12, Fraction(1, 4), 0, {0, 1}, {}, {1: job}, {"mean_time": {0: 5.0, 1: 3.0}}, seed=0)
        >>> float(view.now * view.unit)  # the time
        3.0
        >>> list(view.arrived), view.clients - set(view.arrived)  # who has answered, and who has not
        ([1], {0})
    """

    now: Tick
    unit: Fraction
    version: int
    """Number of the current round and of the current model: n and θ^n."""
    clients: Set[int]
    in_flight: Mapping[int, Job]
    arrived: Mapping[int, Job]
    """Updates that no round has taken yet, in order of arrival."""
    measures: Mapping[str, Mapping[int, object]]
    """Last known numbers of clients by name: "mean_time", "importance", and what later measurements add."""
    seed: int


class Close(NamedTuple):
    """End the round: take these updates, and send the new model to `send` (None: back to the contributors).

    A client named k times in `send` is sent one job that counts k draws.

    Example:
        >>> from fedtempo.rules import Close, Job
        >>> job = Job(client=2, number=0, base=0, sent=0)
        >>> Close(take=(job,)).send is None  # the new model goes back to client 2
        True
        >>> Close(take=(job,), send=(0, 1)).send
        (0, 1)
    """

    take: tuple[Job, ...]
    send: tuple[int, ...] | None = None


class Send(NamedTuple):
    """Send the current model to these clients; the round goes on.

    Example:
        >>> from fedtempo.rules import Send
        >>> Send(clients=(0, 3))  # these two get the current model; nobody else hears of it
        Send(clients=(0, 3))
    """

    clients: tuple[int, ...]


Action = Close | Send | None
"""What a rule answers: end the round, send the current model to somebody, or nothing.

Example:
    >>> from fedtempo.rules import Action, Close, Job
    >>> job = Job(client=2, number=0, base=0, sent=0)
    >>> def when_two(arrived: list[Job]) -> Action:
    ...     return Close(tuple(arrived)) if len(arrived) >= 2 else None
    >>> print(when_two([job]))
    None
"""
