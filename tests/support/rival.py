"""A rival clock: the semantics to the letter and as naively as can be, to compare fedtempo's clock with.

Nothing is taken from fedtempo. Times are Fractions, and at each step all clients are looked at for the next answer.

M clients, numbered from 0, are sent version 0 at time 0. Client i's j-th job takes ``duration(i, j)``. Round n starts
with version n and makes version n + 1. Its contributors start their next jobs from version n + 1 at the moment when
that is made, which is the round's end; nobody else gets it. Only the sampling rules differ: the clients chosen for
round n are the ones that are sent version n, at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

Duration = Callable[[int, int], Fraction]
Stages = Sequence[tuple[Fraction, int | None]]


class Round(NamedTuple):
    """One round: who took part, by client index, from which version, with which job, and drawn how often."""

    end: Fraction
    participants: tuple[int, ...]
    base_versions: tuple[int, ...]
    draws: tuple[int, ...]
    jobs: tuple[int, ...]


class Update(NamedTuple):
    """What a client works on, or has sent in."""

    arrival: Fraction
    client: int
    base: int
    job: int


class World:
    """The clients at work, and the updates that are there but that no round has taken yet."""

    def __init__(self, clients: int, duration: Duration) -> None:
        self.clients = clients
        self.duration = duration
        self.jobs = [0] * clients
        self.working: list[Update] = []
        self.buffer: list[Update] = []

    def send(self, client: int, version: int, now: Fraction) -> None:
        """The client starts its next job, from this version."""
        job = self.jobs[client]
        self.jobs[client] += 1
        self.working.append(Update(now + self.duration(client, job), client, version, job))

    def next_arrival(self) -> Fraction:
        return min(update.arrival for update in self.working)

    def receive(self, now: Fraction) -> None:
        """Whatever has arrived at or before `now` is there."""
        self.buffer += [update for update in self.working if update.arrival <= now]
        self.working = [update for update in self.working if update.arrival > now]

    def first(self, count: int) -> list[Update]:
        """The first updates that are there, in order of arrival, then by client index."""
        return sorted(self.buffer, key=lambda update: (update.arrival, update.client))[:count]


def wait_for_everyone(world: World, now: Fraction) -> tuple[Fraction, list[Update]]:
    """fedavg and sampling: the round ends when everyone who was sent the model has answered."""
    while world.working:
        now = world.next_arrival()
        world.receive(now)
    return now, list(world.buffer)


def wait_for_some(world: World, now: Fraction, size: int) -> tuple[Fraction, list[Update]]:
    """fedbuff: the round ends as soon as `size` updates are there, and takes exactly those; others stay."""
    while len(world.buffer) < size:
        now = world.next_arrival()
        world.receive(now)
    return now, world.first(size)


def wait_for_next(world: World, now: Fraction) -> tuple[Fraction, list[Update]]:
    """async: each update is a round of its own."""
    if not world.buffer:
        now = world.next_arrival()
        world.receive(now)
    return now, world.first(1)


def wait_until(world: World, end: Fraction) -> tuple[Fraction, list[Update]]:
    """fedfix: the round takes all that has arrived at or before its end, if anything."""
    world.receive(end)
    return end, list(world.buffer)


def end_in_stages(stages: Stages, n: int) -> Fraction:
    """When round n ends: each stage counts its intervals from the end of the stage before."""
    begin, before = Fraction(0), 0
    for wait, rounds in stages:
        if rounds is None or n < before + rounds:
            return begin + (n - before + 1) * wait
        begin, before = begin + rounds * wait, before + rounds
    raise ValueError("the last stage must go on for ever")


def run(
    rule: str,
    clients: int,
    duration: Duration,
    *,
    until: Fraction | None = None,
    rounds: int | None = None,
    size: int = 0,
    wait: Fraction = Fraction(0),
    stages: Stages = (),
    chosen: Sequence[Sequence[int]] = (),
) -> list[Round]:
    """The rounds that end at or before `until`, and no more than `rounds`.

    `size` is for fedbuff, `wait` for fedfix, `stages` for fedfix-stages. For uniform, multinomial and fastest,
    `chosen` names the clients of each round, once for each time that they were drawn; the run ends with the list.
    """
    sampling = rule in ("uniform", "multinomial", "fastest")
    world, now, done = World(clients, duration), Fraction(0), list[Round]()
    receivers = list(range(clients))
    while rounds is None or len(done) < rounds:
        n = len(done)
        if sampling:
            if n == len(chosen):
                break
            receivers = sorted(set(chosen[n]))
        for client in receivers:
            world.send(client, n, now)

        if rule == "fedavg" or sampling:
            end, taken = wait_for_everyone(world, now)
        elif rule == "async":
            end, taken = wait_for_next(world, now)
        elif rule == "fedbuff":
            end, taken = wait_for_some(world, now, size)
        elif rule == "fedfix":
            end, taken = wait_until(world, (n + 1) * wait)
        elif rule == "fedfix-stages":
            end, taken = wait_until(world, end_in_stages(stages, n))
        else:
            raise ValueError(f"no such rule: {rule}")

        if until is not None and end > until:
            break
        taken.sort(key=lambda update: update.client)
        world.buffer = [update for update in world.buffer if update not in taken]
        receivers = [update.client for update in taken]
        done.append(
            Round(
                end=end,
                participants=tuple(receivers),
                base_versions=tuple(update.base for update in taken),
                draws=tuple(chosen[n].count(client) if sampling else 1 for client in receivers),
                jobs=tuple(update.job for update in taken),
            )
        )
        now = end
    return done
