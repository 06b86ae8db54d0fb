"""ω_i(n), the weights that a round uses: the simulator's weight rules, with what the server knows of its clients.

    ω_i(n) = step × d_i × draws × s(n − ρ_i(n))
    p_i    = v_i / Σ_j v_j        over the clients j that are there; v: what was given by identity, else examples

Step and d_i follow from p_i and participation: the simulator's with given times (closed form or limit cycle); the
rule's closed form where the durations of jobs do not matter to it (`synchronous`); else measured, by the same object
that the simulator's "measured" and "own-time" weights have (weighting/measured.py). A scheme that brings weights of its
own has these: its tracker is shown the rounds since clients came or went. In a round that they do not fit, since a
client is missing, d_i is used, and a fault says so. Runs that were begun by 0.6 go on with its estimates, at step 1.

Clients that are not among the given names count as the middle one of these; names that nobody has are said in the log,
once, when every client that is there has answered, for a client may be named by its answers alone. When the estimates
say that a wait makes no sense, the log says so in words, once, and what to change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.events import Job, Round
from fedtempo.clock.importance import Importance
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import FixedTimes, Floats
from fedtempo.errors import InputError
from fedtempo.flower.clock import NANOSECOND, seconds
from fedtempo.flower.estimates import Clients, Estimates
from fedtempo.flower.measures import shares
from fedtempo.flower.result import RoundRecord
from fedtempo.flower.settings import BEFORE_STEPS, Settings, of_names
from fedtempo.weighting.long_run import LongRun, Participation
from fedtempo.weighting.measured import Taken
from fedtempo.weighting.steps import step_of
from fedtempo.weighting.weight_rules import Tracker, WeightRule

log = logging.getLogger("flwr")

_SHOWN = 10


class Weighed(NamedTuple):
    """A round's weights."""

    weights: list[float]
    """ω_i(n)."""
    stable: list[float]
    """What they would be at the stable step."""
    step: float


class RoundWeights:
    """The weights of rounds, client by client."""

    def __init__(
        self,
        settings: Settings,
        estimates: Estimates,
        identity: Callable[[int], str],
        *,
        rounds: Callable[[], list[RoundRecord]],
        misfit: Callable[[Round, str], None],
    ) -> None:
        """`rounds`: those since somebody came or left; `misfit` is called with a round that a tracker refuses."""
        self._rule, self._waiting, self._step = settings.weights, settings.rule, settings.step_taken
        self.online = settings.online() if settings.measured else None
        """What is measured of the times between updates."""
        self._importance, self._times = settings.importance, settings.times
        self._estimates, self._identity, self._rounds, self._misfit = estimates, identity, rounds, misfit
        self._tracks = settings.tracked
        self._discounts = type(settings.weights).discount is not WeightRule.discount
        self._there: tuple[int, tuple[int, ...]] | None = None
        self._who: Clients = np.zeros(0, dtype=np.int64)
        self._place: dict[int, int] = {}
        self._shares: Importance | None = None
        self._examples_seen = -1
        self._track: Tracker | None = None
        self._known: list[tuple[int, LongRun]] = []
        """With given times: the first round of each stage, and its long run."""
        self._order: list[int] | None = None
        self._closed: Participation | None = None
        self._numbers = 0
        """How many clients have been seen."""
        self._names_checked = False

    def forget(self) -> None:
        """Somebody's identity has changed: look everything up again."""
        self._there = None

    def _look_up(self, there: Set[int]) -> None:
        self._who = np.array(sorted(there), dtype=np.int64)
        self._place = {client: place for place, client in enumerate(self._who.tolist())}
        self._numbers = max(self._numbers, int(self._who[-1]) + 1)
        self._shares, self._track, self._known, self._order = None, None, [], None

    def check(self, clients: Set[int]) -> None:
        """Refuse, before anything is sent, what cannot be weighed with these clients."""
        self._there = 0, ()
        self._look_up(clients)
        importance = self._importance_now()
        if self._tracks:
            self._rule.check(LongRun(self._waiting, self._durations(), importance))
        else:
            self._rule.base(importance, self._participation(None))

    def sent(self, jobs: Iterable[Job]) -> None:
        """Jobs go out."""
        if self.online is not None:
            for job in jobs:
                self.online.intervals.begin(job.client, seconds(job.sent))

    def left(self, client: int) -> float:
        """The client is gone: the seconds of its work that were still to be weighed, and are not."""
        return 0.0 if self.online is None else self.online.intervals.leave(client)

    def applied(self, closed: Round, clients: Set[int], changes: int) -> Weighed:
        """ω_i(n) of a round's jobs, when these clients are there; `changes` counts how often they have changed."""
        if not closed.jobs:
            if self.online is not None:
                self.online.pass_by(seconds(closed.end))
            return Weighed([], [], 1.0)
        contributors = [job.client for job in closed.jobs]
        gone = tuple(i for i in contributors if i not in clients)
        if (changes, gone) != self._there:
            self._there = changes, gone
            self._look_up({*clients, *gone})
        if not self._names_checked and self._estimates.have_answered(self._who):
            self._names_checked = True
            self._check_names()
        factor = self._factor(closed)
        importance = self._importance_now()
        if self.online is not None:
            end, begun = closed.end, self._estimates.begun
            taken = [Taken(job.client, seconds(max(end - begun(job), 1))) for job in closed.jobs]
            weights, stable = self.online.close(seconds(end), taken, self._who, importance.values)
            return Weighed((weights * factor).tolist(), (stable * factor).tolist(), self.online.step)
        own = self._tracked(closed) if self._tracks else None
        step = stable_step = 1.0
        if own is None:
            part = self._participation(closed)
            base, _ = self._rule.base(importance, part)
            own = base[[self._place[i] for i in contributors]]
            if not self._waiting.synchronous:
                stable_step = float((base * part.share).sum() / base.sum())
                step = self._step_of(closed.number, base, stable_step)
        return Weighed((step * own * factor).tolist(), (stable_step * own * factor).tolist(), step)

    def _factor(self, closed: Round) -> NDArray[Any]:
        """Draws × s(n − ρ_i(n)) of a round's jobs."""
        draws = np.array([job.draws for job in closed.jobs])
        if not self._discounts:
            return draws
        staleness: NDArray[Any] = np.array([closed.number - job.base for job in closed.jobs], dtype=np.int64)
        return np.asarray(self._rule.discount(staleness) * draws)

    def _step_of(self, number: int, base: Floats, stable: float) -> float:
        """The step that is asked for."""
        if self._step == "proven" and self._known:
            return step_of(self._step, self._stage(number), base)
        return 1.0 if self._step in ("paper", BEFORE_STEPS) else stable

    # -- participation

    def _participation(self, closed: Round | None) -> Participation:
        """Draws a round of those who are there, when this round takes its updates."""
        waiting, clients = self._waiting, len(self._who)
        if waiting.by_training:
            draws = waiting.draws_a_round(clients)
            if draws is not None and not self._rule.needs_shares:
                return Participation(np.full(clients, float(draws) / clients), None, "closed form")
        elif self._times is not None:
            with suppress(InputError):  # fewer clients than the rule can do with: some have left
                return self._with_given_times(0 if closed is None else closed.number)
        elif waiting.synchronous and (found := self._closed_form()) is not None:
            return found
        return self._estimates.participation(self._who, closed)

    def _with_given_times(self, number: int) -> Participation:
        """The simulator's, of the stage that round `number` is in."""
        if not self._known:
            times, importance = self._durations(), Importance(None, len(self._who))
            if "importance" in self._waiting.needs:
                importance = self._importance_now()
            self._known = [
                (first, LongRun(rule.simplified(times.num_clients), times, importance))
                for first, rule in self._waiting.in_stages()
            ]
        return self._stage(number).participation

    def _stage(self, number: int) -> LongRun:
        return next(found for first, found in reversed(self._known) if first <= number)

    def _closed_form(self) -> Participation | None:
        """What is known of a rule to which the order of its clients' times matters at most."""
        order = self._times_in_order() if "mean_time" in self._waiting.needs else [1] * len(self._who)
        if order != self._order:
            self._order = order
            rule = self._waiting.simplified(len(order))
            form = rule.closed_form(FixedTimes(order), self._importance_now())
            share = None if form is None else form.share
            self._closed = None if share is None else Participation(share, None, "closed form")
        return self._closed

    def _times_in_order(self) -> list[int]:
        """Places of the clients when they are ordered by time; those that have not answered are first."""
        times = [self._estimates.time(int(client)) or 0.0 for client in self._who]
        places = {time: place for place, time in enumerate(sorted(set(times)), 1)}
        return [places[time] for time in times]

    def _durations(self) -> FixedTimes:
        """The times that were given, or any where none were: then nothing but their order matters."""
        if self._times is None:
            return FixedTimes(self._times_in_order())
        return FixedTimes(of_names(self._times, [self._identity(int(client)) for client in self._who]))

    # -- weights that follow from the rounds

    def _tracked(self, closed: Round) -> Floats | None:
        """What stands in d_i's place; None in a round that it does not fit."""
        if self._track is None:
            self._track = self._rule.tracker(self._importance_now(), len(self._who))
            for earlier in self._rounds():
                with suppress(InputError):
                    self._show(earlier.number, ((update.client, update.draws) for update in earlier.updates))
        try:
            return self._show(closed.number, ((job.client, job.draws) for job in closed.jobs))
        except InputError as error:
            self._misfit(closed, str(error))
            return None

    def _show(self, number: int, taken: Iterable[tuple[int, int]]) -> Floats:
        rows = np.array([(self._place[client], draws) for client, draws in taken if client in self._place])
        client, draws = rows.reshape(-1, 2).T.astype(np.int32)
        line = Timeline(
            unit=NANOSECOND,
            num_clients=len(self._who),
            ends=np.array([number + 1], dtype=np.int64),
            offsets=np.array([0, len(client)], dtype=np.int64),
            client=client,
            base=np.full(len(client), number, dtype=np.int32),
            job=np.zeros(len(client), dtype=np.int32),
            draws=draws if self._waiting.counts_draws else None,
            first_round=number,
            start=number,
        )
        assert self._track is not None
        return self._track(line)

    # -- importance

    def _importance_now(self) -> Importance:
        """p_i of the clients that are there, made anew where they follow from examples and a number has changed."""
        changes = self._estimates.examples_changes if self._importance is None else 0
        if self._shares is None or self._examples_seen != changes:
            self._shares, self._examples_seen = Importance.of(self._values(self._who)), changes
            self._track = None
            if "importance" in self._waiting.needs:
                self._known, self._order = [], None
        return self._shares

    def value(self, client: int) -> float:
        """v_i."""
        return float(self._values(np.array([client]))[0])

    def _values(self, who: Clients) -> Floats:
        """v_i of these clients."""
        if self._importance is None:
            return self._estimates.examples(who)
        return np.array([float(p) for p in of_names(self._importance, [self._identity(int(i)) for i in who])])

    def _check_names(self) -> None:
        """Say which names nobody has."""
        seen = {self._identity(client) for client in range(self._numbers)}
        for what, given in (("importance", self._importance), ("times", self._times)):
            if given is not None and (unknown := [name for name in given if name not in seen]):
                log.warning(
                    "%s: no client is called %s; the clients are %s. Clients that are not named get the median of the "
                    "given values. Use the clients' own names",
                    what,
                    _listed(unknown),
                    _listed([self._identity(int(client)) for client in self._who]),
                )

    def importance(self, clients: int) -> Floats:
        """p_i of clients 0 … `clients` − 1, normalised; 0 of those that have not contributed, once any has."""
        who = np.arange(clients)
        values = self._values(who)
        contributed = self._estimates.contributed(who)
        return shares(np.where(contributed, values, 0.0) if contributed.any() else values)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")


# -- advice on the wait

FLOOR = 10.0
"""Seconds below which Flower's own round trip, 4 to 7 s of polling and starting a process, decides."""
ROUNDS_MISSED = 20
"""From how many rounds on a client's rare and heavy updates make the model jump."""


class Remark(NamedTuple):
    """What to say, and about what, so that it is said once."""

    about: str
    words: str


def remarks(
    wait: float,
    times: Mapping[int, float],
    intervals: Mapping[int, float],
    floor: float,
    identity: Callable[[int], str],
) -> list[Remark]:
    """What is to be said of a wait in seconds, with these client times and ⌈T_i/Δt⌉; the transport takes `floor`."""
    found = []
    if wait < floor:
        found.append(
            Remark(
                "floor",
                f"a wait of {wait:g} s is shorter than Flower's transport takes ({floor:.3g} s), so transport decides "
                f"who is in a round, not the clients' speed. Set wait to {floor:.0f} s or more",
            )
        )
    if times and wait < (least := min(times.values())):
        fastest = min(times, key=lambda client: times[client])
        found.append(
            Remark(
                "fastest",
                f"a wait of {wait:g} s is shorter than the fastest client's {least:.3g} s ({identity(fastest)}): "
                f"rounds pass without any update. Set wait to {least:.3g} s or more",
            )
        )
    found += [
        Remark(
            f"client {client}",
            f"client {client} ({identity(client)}) takes {times[client]:.3g} s and misses {needed - 1:.0f} rounds "
            f"between two updates, which then count {needed:.0f}-fold. Set wait to "
            f"{times[client] / ROUNDS_MISSED:.3g} s or more, or give it less work",
        )
        for client, needed in intervals.items()
        if needed > ROUNDS_MISSED
    ]
    return found


def absences(wait: float, missed: Mapping[int, int], identity: Callable[[int], str]) -> list[Remark]:
    """What is to be said of clients that have a job and have missed so many rounds since they got it."""
    return [
        Remark(
            f"client {client} missing",
            f"client {client} ({identity(client)}) has not answered for {rounds} rounds of {wait:g} s. If it is that "
            "slow, set a longer wait or give it less work; if it hangs, set a shorter timeout",
        )
        for client, rounds in missed.items()
        if rounds > ROUNDS_MISSED
    ]


class WaitAdvice:
    """Says each remark once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, found: list[Remark]) -> None:
        """Log what has not been said yet."""
        for about, words in found:
            if about not in self._said:
                self._said.add(about)
                log.warning("%s", words)
