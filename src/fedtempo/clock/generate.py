"""From a setting to a timeline: `timeline` materialises, `timeline_chunks` streams.

The law is the waiting rule, asked event by event; a rule's own `chunks` must give the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from fedtempo.clock.config import Setting, chunk_updates
from fedtempo.clock.events import Event, Job, Round, Tick
from fedtempo.clock.presence import Failures, Presence
from fedtempo.clock.server import Server
from fedtempo.clock.ticks import MAX_TICKS, Exact, exact, in_ticks, text
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.transport import Durations, VirtualCarrier, moment
from fedtempo.errors import ClockOverflow, InputError, UnlawfulRule

_MAX_NUMBER = 2**31 - 1  # round and job numbers are kept in 32 bits
_MAX_QUIET = 100_000  # moments after which a round of clients that come and go is given up


def stream(
    setting: Setting, *, until: Exact | None = None, max_rounds: int | None = None, by_rule: bool = False
) -> Iterator[Timeline]:
    """The rounds that end at or before `until`, at most `max_rounds`, in chunks; `by_rule` asks the rule itself."""
    last = MAX_TICKS - 1
    if until is not None:
        horizon = exact(until, "until")
        if horizon <= 0:
            raise InputError(f"until: {until} is not above zero; give the time at which to stop")
        last = setting.ticks(horizon)
    left = max_rounds
    source = None if by_rule else quickly(setting)
    for chunk in source if source is not None else (chunk for chunk, _ in asked(setting, last)):
        if chunk.first_round + chunk.num_rounds > _MAX_NUMBER:
            raise ClockOverflow("more than 2^31 rounds; ask for less time or a longer wait")
        inside = chunk.up_to(last) if chunk.num_rounds and int(chunk.ends[-1]) > last else chunk
        if left is not None:
            inside = inside[:left]
            left -= inside.num_rounds
        if inside.num_rounds:
            yield inside
        if left == 0:
            return
        if inside.num_rounds < chunk.num_rounds:
            break
    if until is None:
        gone = ", or ever: clients have left for good" if setting.availability is not None else ""
        raise ClockOverflow(f"no further round ends within what a 64-bit clock can count{gone}; ask for fewer rounds")


def quickly(setting: Setting) -> Iterator[Timeline] | None:
    """The rule's own faster way, where there is one: it takes clients to be always there."""
    chunks = setting.rule.chunks(setting)
    return chunks if setting.availability is None else None


def whole(
    setting: Setting, *, until: Exact | None = None, max_rounds: int | None = None, by_rule: bool = False
) -> Timeline:
    """The timeline in one piece; a horizon in which no round ends is refused."""
    if until is None and max_rounds is None:
        raise InputError("a timeline needs an end: give until= (a time) or rounds= (a number)")
    if max_rounds is not None and max_rounds < 1:
        raise InputError(f"rounds: {max_rounds} is below 1; give the number of rounds")
    parts = stream(setting, until=until, max_rounds=max_rounds, by_rule=by_rule)
    head = next(parts, None)
    if head is None:
        first = next(stream(setting, max_rounds=1, by_rule=by_rule))
        end = int(first.ends[0]) * setting.unit
        raise InputError(f"until: {until} is before the end of the first round; make it at least {text(end)}")
    return Timeline.joined(chain([head], parts))


class _Gathering(Server):
    """A server that starts with whoever is there; its rule was checked with all clients when the setting was made."""

    def start(self, now: Tick = 0) -> tuple[Job, ...]:
        self._now = now
        self._state, first = self.rule.start(self._view())
        return self._send(first)


def world(setting: Setting) -> tuple[Server, VirtualCarrier, Tick]:
    """A server and a carrier for these clients, and when the server starts.

    That is at 0, unless nobody is there and the rule has no interval to count: then with the first who joins.
    """
    times, availability = setting.times.always, setting.availability
    durations = Durations(times, scale=in_ticks(times.unit, setting.unit), seed=setting.seed)
    if availability is None:
        return _server(setting, range(setting.num_clients)), VirtualCarrier(durations), 0
    presence = Presence(setting, availability)
    changes: Iterator[tuple[Tick, Event]] = presence.changes()
    clients, start = presence.first, 0
    if not clients and not setting.rule.waits:
        start, first = next(changes)
        changes, clients = chain([(start, first)], changes), frozenset([getattr(first, "client", 0)])
    fails = Failures(availability.failure, setting.seed) if availability.fails else None
    return _server(setting, clients), VirtualCarrier(durations, changes, fails), start


def _server(setting: Setting, clients: Iterable[int]) -> Server:
    kind = Server if setting.availability is None else _Gathering
    return kind(setting.rule, clients, unit=setting.unit, seed=setting.seed, measures=setting.measures())


def asked(setting: Setting, last: int = MAX_TICKS - 1) -> Iterator[tuple[Timeline, list[int | None]]]:
    """The law: the rule on a virtual carrier, rounds packed into chunks, with the rule's phase before each round."""
    server, carrier, start = world(setting)
    carrier.send(server.start(start))
    before = [server.phase]
    source = _rounds(setting, server, carrier, last)
    begin = 0
    for updates in chunk_updates():
        part = []
        for closed in islice(source, max(1, updates // setting.num_clients)):
            part.append(closed)
            before.append(server.phase)
        if not part and not server.in_flight and server.clients and server.deadline is None:
            raise UnlawfulRule(
                f"{setting.rule!r} has stopped after round {server.version - 1}: no job is out and no deadline is set; "
                "close the round, send models, or set a deadline"
            )
        if not part:
            return
        yield packed(setting, part, begin), before[:-1]
        begin, before = part[-1].end, before[-1:]


def _rounds(setting: Setting, server: Server, carrier: VirtualCarrier, last: Tick) -> Iterator[Round]:
    """As `rounds`, of a server that has started; a round that clients who come and go never let end is given up."""
    most = _MAX_QUIET + 100 * setting.num_clients if setting.availability is not None else None
    version, quiet = server.version, 0
    while (yield from moment(server, carrier, last)):
        quiet = quiet + 1 if server.version == version else 0
        version = server.version
        if most is not None and quiet > most:
            raise InputError(
                f"{setting.rule!r}: round {version} does not end: {most} times somebody came, went or failed; "
                "give clients longer stays, shorter jobs or fewer failures"
            )


def packed(setting: Setting, part: list[Round], start: int) -> Timeline:
    """Rounds as arrays."""
    jobs = [job for closed in part for job in closed.jobs]
    table = np.array(jobs, dtype=np.int64).reshape(len(jobs), 5)
    draws = table[:, 4].astype(np.int32)
    return Timeline(
        unit=setting.unit,
        num_clients=setting.num_clients,
        ends=np.array([closed.end for closed in part], dtype=np.int64),
        offsets=np.cumsum([0, *(len(closed.jobs) for closed in part)], dtype=np.int64),
        client=table[:, 0].astype(np.int32),
        base=table[:, 2].astype(np.int32),
        job=table[:, 1].astype(np.int32),
        draws=draws if setting.rule.counts_draws else None,
        first_round=part[0].number,
        start=start,
    )


class Recording:
    """A clock that is run once and can be read many times: its first `keep` updates stay in memory."""

    def __init__(self, setting: Setting, *, keep: int = 5_000_000) -> None:
        self.setting = setting
        self._room = keep
        self._held: list[Timeline] = []
        self._source = stream(setting)

    def forget(self) -> None:
        """Give the memory back; what is read from now on is made again."""
        self._held, self._room = [], 0

    def rounds(self, count: int) -> Iterator[Timeline]:
        """The first `count` rounds, in chunks; fewer if the clock cannot count as far."""
        done = 0
        for chunk in self._held:
            if done >= count:
                return
            yield chunk[: count - done]
            done += chunk.num_rounds
        try:
            while done < count and self._room > 0:
                following = next(self._source, None)
                if following is None:
                    return
                self._held.append(following)
                self._room -= following.num_updates
                yield following[: count - done]
                done += following.num_rounds
            if done < count:
                yield from _after(stream(self.setting, max_rounds=count), done)
        except ClockOverflow:
            if not done:
                raise
            self._source = iter(())
        except InputError as error:
            self._source = _refusing(error)
            raise


def _refusing(error: InputError) -> Iterator[Timeline]:
    """What was refused once is refused again."""
    raise error
    yield


def _after(chunks: Iterator[Timeline], number: int) -> Iterator[Timeline]:
    """The same rounds from round `number` on."""
    for chunk in chunks:
        part = chunk[max(0, number - chunk.first_round) :]
        if part.num_rounds:
            yield part
