"""A rival clock for clients that come and go: the semantics to the letter, as naively as can be.

Nothing is taken from fedtempo. Times are Fractions. At each moment, in this order and by client: updates come in, jobs
fail, clients leave, clients join; then a round that lasts a given time ends.

    A client that leaves loses its job; an update of it that is there already still counts.
    A client that fails or joins is sent the current version at once, unless an update of it waits for its round; under
    the sampling rules it is sent nothing, and a round all of whose clients are gone is drawn again.
    Job numbers are never used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from support.rival import Round, Stages, end_in_stages

Choose = Callable[[int, int, Sequence[int]], Sequence[int]]


class Work(NamedTuple):
    """A job that is out, or an update that waits for its round."""

    client: int
    arrival: Fraction
    base: int
    job: int
    draws: int


class Clock:
    """The clients, the jobs that are out, and the updates that no round has taken."""

    def __init__(
        self,
        rule: str,
        presence: Sequence[Sequence[Fraction]],
        first: Sequence[int],
        duration: Callable[[int, int], Fraction],
        fails: Callable[[int, int], bool],
        *,
        size: int = 0,
        wait: Fraction = Fraction(0),
        stages: Stages = (),
        choose: Choose | None = None,
    ) -> None:
        """`presence[i]` are the moments at which client i leaves or joins, in turn; `first` are there at 0."""
        self.rule, self.size, self.wait, self.stages, self.choose = rule, size, wait, stages, choose
        self.presence, self.duration, self.fails = presence, duration, fails
        self.here = set(first)
        self.numbers = [0] * len(presence)
        self.out: dict[int, Work] = {}
        self.waiting: list[Work] = []
        self.done: list[Round] = []
        self.attempt = 0
        self.started = False

    @property
    def sampling(self) -> bool:
        return self.choose is not None

    def run(self, until: Fraction) -> list[Round]:
        now = Fraction(0)
        self.begin(now)
        while (now := self.next_moment(now, until)) <= until:
            self.happen(now)
        return self.done

    def next_moment(self, now: Fraction, until: Fraction) -> Fraction:
        """The first moment after `now` at which anything happens."""
        moments = [work.arrival for work in self.out.values()]
        moments += [moment for row in self.presence for moment in row if moment > now]
        if (end := self.end_of_round()) is not None:
            moments.append(end)
        return min(moments, default=until + 1)

    def end_of_round(self) -> Fraction | None:
        n = len(self.done)
        if self.rule == "fedfix":
            return (n + 1) * self.wait
        return end_in_stages(self.stages, n) if self.rule == "fedfix-stages" else None

    def begin(self, now: Fraction) -> None:
        """Version 0 goes to those who are there; without anybody, when the first joins."""
        if not self.here:
            return
        self.started = True
        if self.choose is not None:
            self.send(self.choose(0, 0, sorted(self.here)), now)
        else:
            self.send(sorted(self.here), now)

    def send(self, clients: Sequence[int], now: Fraction) -> None:
        for client in sorted(set(clients)):
            job = self.numbers[client]
            self.numbers[client] += 1
            arrival = now + self.duration(client, job)
            self.out[client] = Work(client, arrival, len(self.done), job, list(clients).count(client))

    def happen(self, now: Fraction) -> None:
        for work in sorted(work for work in self.out.values() if work.arrival == now):
            if not self.fails(work.client, work.job):
                self.waiting.append(self.out.pop(work.client))
                self.look(now)
        for work in sorted(work for work in self.out.values() if work.arrival == now):
            del self.out[work.client]
            if not self.sampling:
                self.send([work.client], now)
            self.look(now)
        changing = [client for client, row in enumerate(self.presence) if row.count(now) % 2]
        for client in [c for c in changing if c in self.here]:
            self.here.remove(client)
            self.out.pop(client, None)
            self.look(now)
            changing.remove(client)
        for client in changing:
            self.here.add(client)
            if not self.started and self.end_of_round() is None:
                self.begin(now)
            elif not any(work.client == client for work in self.waiting):
                self.started = True
                if not self.sampling:
                    self.send([client], now)
                self.look(now)
        if self.end_of_round() == now:
            self.close(self.waiting, now)

    def look(self, now: Fraction) -> None:
        """Whether the round ends by itself, and what then."""
        if self.rule == "async" and self.waiting:
            self.close(self.waiting, now)
        elif self.rule == "fedbuff" and len(self.waiting) >= self.size:
            self.close(self.waiting[: self.size], now)
        elif self.rule in ("fedavg", "fedbuff") and self.waiting and not self.out:
            self.close(self.waiting, now)
        elif self.choose is not None and not self.out and (self.waiting or self.here):
            self.attempt = 0 if self.waiting else self.attempt + 1
            if self.waiting:
                self.close(self.waiting, now)
            if self.here:
                self.send(self.choose(len(self.done), self.attempt, sorted(self.here)), now)

    def close(self, taken: Sequence[Work], now: Fraction) -> None:
        taken = sorted(taken)
        self.waiting = [work for work in self.waiting if work not in taken]
        self.done.append(
            Round(
                end=now,
                participants=tuple(work.client for work in taken),
                base_versions=tuple(work.base for work in taken),
                draws=tuple(work.draws for work in taken),
                jobs=tuple(work.job for work in taken),
            )
        )
        if not self.sampling:
            self.send([work.client for work in taken if work.client in self.here], now)


def toggles(absences: Mapping[int, Sequence[tuple]], clients: int, until: Fraction, period: Fraction | None = None):
    """Of given absences: who is there at 0, and the moments at which each client leaves or joins."""

    def away(client: int, moment: Fraction) -> bool:
        folded = moment if period is None else moment % period
        rows = absences.get(client, ())
        return any(begin <= folded and (end is None or folded < end) for begin, end in rows)

    turns = 1 if period is None else int(until // period) + 2
    presence = []
    for client in range(clients):
        edges = {edge for row in absences.get(client, ()) for edge in row if edge is not None}
        moments = sorted({Fraction(edge) + turn * (period or 0) for edge in edges for turn in range(turns)})
        small = Fraction(1, 10**9)
        presence.append([m for m in moments if m > 0 and away(client, m) != away(client, m - small)])
    return presence, [client for client in range(clients) if not away(client, Fraction(0))]
