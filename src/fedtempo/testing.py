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
    declarations   `barrier`, `constant_phase` and `returns_to_contributors` say what the rule does
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TypeVar

from fedtempo.clock.config import Setting
from fedtempo.clock.cycle import observe
from fedtempo.clock.events import Action, Arrived, Close, Deadline, Event, Failed, Joined, Left, Round, View
from fedtempo.clock.generate import Recording, whole
from fedtempo.clock.random_times import ExponentialTimes
from fedtempo.clock.server import Server
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.transport import Durations, VirtualCarrier, moment, rounds
from fedtempo.clock.waiting import State, WaitingRule
from fedtempo.errors import InputError, UnlawfulRule

T = TypeVar("T")
_ROUNDS = 60
_MOST_CLIENTS = 300
_MOST_FAULTY_ROUNDS = 5000


@dataclass(frozen=True)
class RuleReport:
    """What was checked of a lawful rule."""

    rule: WaitingRule
    settings: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.rule!r} is lawful: {self.rounds} rounds in {self.settings} settings"


def check_rule(rule: WaitingRule, *, settings: int = 40, seed: int = 0) -> RuleReport:
    """Run `rule` through random settings; the first law that it breaks is an UnlawfulRule that says what to change."""
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
        setting = Setting.of(rule, times, seed=draw.randrange(1000))
        closed = _check_run(setting)
        _check_checkpoint(setting, closed)
        _check_faults(setting, draw)
        _check_fast_way(setting)
        _check_phase(setting)
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
        self.barrier, self.constant_phase = rule.barrier, rule.constant_phase

    @property
    def waits(self) -> tuple[Fraction, ...]:
        return self.rule.waits

    def start(self, view: View) -> tuple[State, tuple[int, ...]]:
        return self._same("start", self.rule.start(view), self.rule.start(view))

    def deadline(self, state: State, view: View) -> int | None:
        due: int | None = self._same("deadline", self.rule.deadline(state, view), self.rule.deadline(state, view))
        if due is not None and type(due) is not int:
            raise UnlawfulRule(f"{self.rule!r}: deadline() gave {due!r}; a deadline is a whole number of ticks or None")
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
        if self.barrier and isinstance(action, Close) and (view.in_flight or len(action.take) < len(view.arrived)):
            raise UnlawfulRule(f"{self.rule!r} ends a round before all jobs are in and taken; set barrier = False")
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
                f"{self.rule!r}: {what}() answered {first!r} and then {second!r} to the same question; "
                "keep what the rule remembers in the state, and draw from view.seed and view.version only"
            )
        return first


def _server(setting: Setting, rule: WaitingRule) -> Server:
    return Server(rule, range(setting.num_clients), unit=setting.unit, seed=setting.seed, measures=setting.measures())


def _carrier(setting: Setting) -> VirtualCarrier:
    return VirtualCarrier(Durations(setting.times, scale=setting.scale, seed=setting.seed))


def _check_run(setting: Setting) -> list[Round]:
    """Purity, deadlines, bookkeeping (the server refuses what is wrong) and progress."""
    closed = list(islice(rounds(_server(setting, _Watched(setting.rule)), _carrier(setting)), _ROUNDS))
    if len(closed) < _ROUNDS:
        raise UnlawfulRule(
            f"{setting.rule!r} stops after {len(closed)} rounds with {setting.times!r}: no job out, no deadline set; "
            "close the round, send models, or set a deadline"
        )
    return closed


def _check_checkpoint(setting: Setting, closed: list[Round]) -> None:
    """A server restored from JSON in the middle of training goes on with the same rounds."""
    server, carrier = _server(setting, setting.rule), _carrier(setting)
    carrier.send(server.start())
    before: list[Round] = []
    while len(before) < _ROUNDS // 2:
        before += moment(server, carrier)
    snapshot = json.loads(json.dumps(server.snapshot()))
    restored = Server.restore(setting.rule, snapshot, measures=setting.measures())
    after: list[Round] = []
    while len(before) + len(after) < _ROUNDS:
        after += moment(restored, carrier)
    if (before + after)[:_ROUNDS] != closed:
        raise UnlawfulRule(
            f"{setting.rule!r}: a server restored from a checkpoint goes on with other rounds; "
            "keep all that the rule remembers in the state, as plain values"
        )


class _Unreliable(VirtualCarrier):
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


def _check_faults(setting: Setting, draw: random.Random) -> None:
    """Clients fail, leave and join at random; as long as one is there, rounds go on."""
    longest = int(float(setting.times.mean_time.max()) / float(setting.unit)) + 1
    horizon = 12 * longest
    happenings: list[tuple[int, Event]] = []
    for client in range(1, setting.num_clients):
        for gone in draw.sample(range(1, horizon), min(3, horizon - 1)):
            happenings += [(gone, Left(client)), (gone + draw.randint(1, longest), Joined(client))]
    durations = Durations(setting.times, scale=setting.scale, seed=setting.seed)
    server = _server(setting, _Watched(setting.rule))
    last = 0
    for number, closed in enumerate(rounds(server, _Unreliable(durations, happenings, draw))):
        if closed.number != number:
            raise UnlawfulRule(f"{setting.rule!r}: round {number} is numbered {closed.number}")
        idle = server.clients - server.in_flight.keys() - server.arrived.keys()
        if setting.rule.returns_to_contributors and idle:
            raise UnlawfulRule(
                f"{setting.rule!r} leaves client {min(idle)} without a job for good after a fault; "
                "answer Failed and Joined with resend(event) before anything else"
            )
        last = closed.end
        if last > 2 * horizon or number > _MOST_FAULTY_ROUNDS:
            return
    raise UnlawfulRule(
        f"{setting.rule!r} stops at {last} when clients fail, leave and join, though client 0 is always there; "
        "decide() must answer Left, Failed and Joined: close a round that waits for nobody, send to who is free"
    )


def _check_fast_way(setting: Setting) -> None:
    if setting.rule.chunks(setting) is None:
        return
    fast, slow = (whole(setting, max_rounds=_ROUNDS, by_rule=asked) for asked in (False, True))
    if not fast.equals(slow):
        raise UnlawfulRule(f"{setting.rule!r}: chunks() gives other rounds than decide() with {setting.times!r}")


def _check_phase(setting: Setting) -> None:
    """The rounds after a found cycle equal the cycle's own, twice over."""
    found = observe(Recording(setting), max_rounds=2000, max_updates=4000).cycle
    if found is None or found.length > 500:
        return
    line = whole(setting, max_rounds=found.start + 3 * found.length, by_rule=True)
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
                f"{setting.rule!r}: phase() says that round {found.start + k * found.length} repeats {found.start}, "
                "and it does not; let phase() return all that the future depends on, or None"
            )


__all__ = ["RuleReport", "check_rule"]
