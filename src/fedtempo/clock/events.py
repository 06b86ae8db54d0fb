"""What happens on a server's clock, and what a waiting rule may know and answer.

A job is one client's K local steps from one model version; a round ends with θ^{n+1} (Algorithm 1). ρ_i(n) is `base`,
S_n the clients of `Round.jobs`, and `Job.draws` how often multinomial sampling drew the client for this job.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from fractions import Fraction
from typing import NamedTuple

Tick = int
"""A whole number of units: virtual time in ticks of a common unit, or nanoseconds of a server's monotonic clock."""


class Job(NamedTuple):
    """One client's work on one model version."""

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
    """A job's update has come in."""

    job: Job


class Failed(NamedTuple):
    """A job will never come in; the client is still there."""

    job: Job
    reason: str = ""


class Joined(NamedTuple):
    """A client is there from now on."""

    client: int


class Left(NamedTuple):
    """A client is gone; its running job is lost, an update that has arrived still counts."""

    client: int


class Deadline(NamedTuple):
    """The moment that the rule asked for has come."""


Event = Arrived | Failed | Joined | Left | Deadline
"""Within one tick: arrivals by client, one at a time; then failures, leavings and joinings; the deadline last."""


class View(NamedTuple):
    """All that a rule may know, after the event it is told of has been booked."""

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
    """

    take: tuple[Job, ...]
    send: tuple[int, ...] | None = None


class Send(NamedTuple):
    """Send the current model to these clients; the round goes on."""

    clients: tuple[int, ...]


Action = Close | Send | None
