"""For those who write a waiting rule of their own: `check_rule` says whether it is lawful.

The laws, in the order in which they are checked:

    frozen         the rule can be hashed, equals itself copied, and is not changed by being used
    pure           the same state, event and view give the same answer, twice
    plain state    the state survives a checkpoint (JSON), and training goes on from it as if nothing had happened
    bookkeeping    it takes only updates that have arrived, and sends only to clients that are free
    deadline       a deadline lies after the event that it was asked at, and asking twice gives the same one
    progress       training does not stop for good while clients are there
    faults         it lives with clients that fail, leave and join
    fast way       `chunks`, if there is one, gives the same rounds as the rule itself
    phase          if `phase` is not None, the cycle that follows from it really repeats
    declarations   `synchronous`, `constant_phase` and `returns_to_contributors` say what the rule does
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TypeVar

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.cycle import observe
from fedtempo.clock.events import Action, Arrived, Close, Deadline, Event, Failed, Joined, Left, Round, View
from fedtempo.clock.generate import Recording, full_timeline
from fedtempo.clock.random_times import ExponentialTimes
from fedtempo.clock.server import Server
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.transport import Durations, VirtualTransport, rounds, step
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError, UnlawfulRule

T = TypeVar("T")
_ROUNDS = 60
_MOST_CLIENTS = 300
_MOST_FAULTY_ROUNDS = 5000


@dataclass(frozen=True)
class RuleReport:
    """What was checked of a lawful rule: in how many settings, and how many rounds. `check_rule` returns it.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedtempo.rules import Close, WaitingRule, resend
        >>> from fedtempo.testing import check_rule
        >>> @dataclass(frozen=True)
        ... class TakeAll(WaitingRule):
        ...     def decide(self, state, event, view):
        ...         return state, resend(event) or (Close(tuple(view.arrived.values())) if view.arrived else None)
        >>> report = check_rule(TakeAll(), settings=10)
        >>> report.settings, report.rounds
        (10, 600)
    """

    rule: WaitingRule
    settings: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.rule!r} keeps the contract: {self.rounds} rounds in {self.settings} settings"


def check_rule(rule: WaitingRule, *, settings: int = 40, seed: int = 0) -> RuleReport:
    """Run `rule` through random settings; the first law that it breaks is an UnlawfulRule that says what to change.

    Example:
        >>> from dataclasses import dataclass
        >>> from fedtempo.rules import Close, WaitingRule, resend
        >>> from fedtempo.testing import check_rule
        >>> @dataclass(frozen=True)
        ... class TakeAll(WaitingRule):
        ...     def decide(self, state, event, view):
        ...         return state, resend(event) or (Close(tuple(view.arrived.values())) if view.arrived else None)
        >>> print(check_rule(TakeAll()))
        TakeAll() keeps the contract: 2400 rounds in 40 settings
    """
    _check_frozen(rule)
    draw = random.Random(seed)
    sizes = [clients for clients in range(1, _MOST_CLIENTS + 1) if _accepts(rule, clients)][:8]
    if not sizes:
        raise UnlawfulRule(
            f"{rule!r}: check() refuses every number of clients up to {_MOST_CLIENTS}; allow some of them"
        )
    total = 0
    for _ in range(settings):
        times = _random_times(draw, draw.choice(sizes))
        config = ClockConfig.of(rule, times, seed=draw.randrange(1000))
        closed = _check_run(config)
        _check_checkpoint(config, closed)
        _check_faults(config, draw)
        _check_fast_way(config)
        _check_phase(config)
        total += len(closed)
    return RuleReport(rule, settings, total)


def _accepts(rule: WaitingRule, clients: int) -> bool:
    try:
        rule.check(clients)
    except InputError:
        return False
    return True


def _random_times(draw: random.Random, clients: int) -> ClientTimes:
    """Mostly fixed times with many ties, now and then random ones."""
    means = [Fraction(draw.randint(1, 8), draw.randint(1, 3)) for _ in range(clients)]
    return ExponentialTimes(means, resolution="1/12") if draw.random() < 0.25 else FixedTimes(means)


def _check_frozen(rule: WaitingRule) -> None:
    try:
        hash(rule)
    except TypeError:
        raise UnlawfulRule(f"{rule!r} cannot be hashed; make it a frozen dataclass of hashable values") from None
    if copy.deepcopy(rule) != rule:
        raise UnlawfulRule(f"{rule!r} does not equal its copy; make it a frozen dataclass")
    if getattr(rule, "__dict__", None):
        name = next(iter(vars(rule)))
        try:
            setattr(rule, name, getattr(rule, name))
        except AttributeError:
            return
        raise UnlawfulRule(
            f"{rule!r} can be changed; make it a frozen dataclass and keep what it remembers in the state"
        )


class _Watched(WaitingRule):
    """A rule whose every answer is asked for twice and compared."""

    def __init__(self, rule: WaitingRule) -> None:
        self.rule = rule
        self.before = copy.deepcopy(rule)
        self.random, self.counts_draws = rule.random, rule.counts_draws
        self.returns_to_contributors = rule.returns_to_contributors
        self.synchronous, self.constant_phase = rule.synchronous, rule.constant_phase

    def __repr__(self) -> str:
        return repr(self.rule)  # messages name the user's rule

    @property
    def waits(self) -> tuple[Fraction, ...]:
        return self.rule.waits

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return self._same("start", self.rule.start(view), self.rule.start(view))

    def deadline(self, state: State, view: View) -> int | None:
        due: int | None = self._same("deadline", self.rule.deadline(state, view), self.rule.deadline(state, view))
        if due is not None and type(due) is not int:
            raise UnlawfulRule(
                f"{self.rule!r}: deadline() returned {due!r}; a deadline is a whole number of ticks or None"
            )
        return due

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        kept = copy.deepcopy(state)
        answer = self._same("decide", self.rule.decide(state, event, view), self.rule.decide(state, event, view))
        if state != kept:
            raise UnlawfulRule(f"{self.rule!r}: decide() changed the state that it was given; return a new one instead")
        following, action = answer
        if self.returns_to_contributors and isinstance(action, Close) and action.send is not None:
            contributors = sorted(job.client for job in action.take)
            if sorted(action.send) != contributors:
                raise UnlawfulRule(
                    f"{self.rule!r} sends the new model to {sorted(action.send)}, but {contributors} contributed; "
                    "return Close(take) alone, or set returns_to_contributors = False"
                )
        if self.synchronous and isinstance(action, Close) and (view.in_flight or len(action.take) < len(view.arrived)):
            raise UnlawfulRule(f"{self.rule!r} ends a round before all jobs are in and taken; set synchronous = False")
        if self.constant_phase and self.rule.phase(following) != 0:
            raise UnlawfulRule(f"{self.rule!r}: its phase is {self.rule.phase(following)}; set constant_phase = False")
        due = self.rule.deadline(following, view)
        if due is not None and (due < view.now or (due == view.now and isinstance(event, Deadline))):
            raise UnlawfulRule(
                f"{self.rule!r}: after {type(event).__name__} at {view.now} the next deadline is {due}, which is past; "
                "move it on when it has been reached"
            )
        return answer

    def phase(self, state: State) -> int | None:
        return self.rule.phase(state)

    def _same(self, what: str, first: T, second: T) -> T:
        if first != second or self.rule != self.before:
            raise UnlawfulRule(
                f"{self.rule!r}: {what}() returned {first!r} and then {second!r} for the same input; keep what the "
                "rule remembers in the state, and draw from view.seed and view.version only"
            )
        return first


def _server(config: ClockConfig, rule: WaitingRule) -> Server:
    return Server(rule, range(config.num_clients), unit=config.unit, seed=config.seed, measures=config.measures())


def _transport(config: ClockConfig) -> VirtualTransport:
    return VirtualTransport(Durations(config.times, scale=config.scale, seed=config.seed))


def _check_run(config: ClockConfig) -> list[Round]:
    """Purity, deadlines, bookkeeping (the server refuses what is wrong) and progress."""
    closed = list(islice(rounds(_server(config, _Watched(config.rule)), _transport(config)), _ROUNDS))
    if len(closed) < _ROUNDS:
        raise UnlawfulRule(
            f"{config.rule!r} stops after {len(closed)} rounds with {config.times!r}: no job is running and no "
            "deadline is set; close the round, send models, or set a deadline"
        )
    return closed


def _check_checkpoint(config: ClockConfig, closed: list[Round]) -> None:
    """A server restored from JSON in the middle of training goes on with the same rounds."""
    server, transport = _server(config, config.rule), _transport(config)
    transport.send(server.start())
    before: list[Round] = []
    while len(before) < _ROUNDS // 2:
        before += step(server, transport)
    snapshot = json.loads(json.dumps(server.snapshot()))
    restored = Server.restore(config.rule, snapshot, measures=config.measures())
    after: list[Round] = []
    while len(before) + len(after) < _ROUNDS:
        after += step(restored, transport)
    if (before + after)[:_ROUNDS] != closed:
        raise UnlawfulRule(
            f"{config.rule!r}: a server restored from a checkpoint continues with different rounds; keep all that the "
            "rule remembers in the state, as plain values"
        )


class _Unreliable(VirtualTransport):
    """Loses one job in five of every client but 0."""

    def __init__(self, durations: Durations, happenings: list[tuple[int, Event]], draw: random.Random) -> None:
        super().__init__(durations, happenings)
        self._draw = draw

    def wait(self, deadline: int | None) -> tuple[int, list[Event]]:
        now, events = super().wait(deadline)
        return now, [self._lost(event) for event in events]

    def _lost(self, event: Event) -> Event:
        if isinstance(event, Arrived) and event.job.client > 0 and self._draw.random() < 0.2:
            return Failed(event.job, "lost on the way")
        return event


def _check_faults(config: ClockConfig, draw: random.Random) -> None:
    """Clients fail, leave and join at random; as long as one is there, rounds go on."""
    longest = int(float(config.times.mean_time.max()) / float(config.unit)) + 1
    horizon = 12 * longest
    happenings: list[tuple[int, Event]] = []
    for client in range(1, config.num_clients):
        for gone in draw.sample(range(1, horizon), min(3, horizon - 1)):
            happenings += [(gone, Left(client)), (gone + draw.randint(1, longest), Joined(client))]
    durations = Durations(config.times, scale=config.scale, seed=config.seed)
    server = _server(config, _Watched(config.rule))
    last = 0
    for number, closed in enumerate(rounds(server, _Unreliable(durations, happenings, draw))):
        if closed.number != number:
            raise UnlawfulRule(f"{config.rule!r}: round {number} is numbered {closed.number}")
        idle = server.clients - server.in_flight.keys() - server.arrived.keys()
        if config.rule.returns_to_contributors and idle:
            raise UnlawfulRule(
                f"{config.rule!r} leaves client {min(idle)} without a job for good after a fault; "
                "answer Failed and Joined with resend(event) before anything else"
            )
        last = closed.end
        if last > 2 * horizon or number > _MOST_FAULTY_ROUNDS:
            return
    raise UnlawfulRule(
        f"{config.rule!r} stops at {last} when clients fail, leave and join, although client 0 is always available; "
        "decide() must handle Left, Failed and Joined: close a round that waits for no client, and send to clients "
        "that are free"
    )


def _check_fast_way(config: ClockConfig) -> None:
    if config.rule.chunks(config) is None:
        return
    fast, slow = (full_timeline(config, max_rounds=_ROUNDS, by_rule=asked) for asked in (False, True))
    if not fast.equals(slow):
        raise UnlawfulRule(f"{config.rule!r}: chunks() and decide() give different rounds with {config.times!r}")


def _check_phase(config: ClockConfig) -> None:
    """The rounds after a found cycle equal the cycle's own, twice over."""
    found = observe(Recording(config), max_rounds=2000, max_updates=4000).cycle
    if found is None or found.length > 500:
        return
    line = full_timeline(config, max_rounds=found.start + 3 * found.length, by_rule=True)
    once = line[found.start : found.start + found.length]
    for k in (1, 2):
        again = line[found.start + k * found.length : found.start + (k + 1) * found.length]
        same = all(
            a.participants == b.participants
            and a.end - a.start == b.end - b.start
            and [a.number - v for v in a.base_versions] == [b.number - v for v in b.base_versions]
            for a, b in zip(once.rounds, again.rounds, strict=True)
        )
        if not same:
            raise UnlawfulRule(
                f"{config.rule!r}: phase() says that round {found.start + k * found.length} repeats {found.start}, "
                "and it does not; let phase() return all that the future depends on, or None"
            )


__all__ = ["RuleReport", "check_rule"]
