"""From a clock's config to a timeline: `full_timeline` materialises, `stream` gives it in chunks.

The law is the waiting rule, asked event by event; a rule's own `chunks` must give the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from fedtempo.clock.config import ClockConfig, chunk_updates
from fedtempo.clock.events import Event, Job, Round, Tick
from fedtempo.clock.presence import Failures, Presence
from fedtempo.clock.server import Server
from fedtempo.clock.ticks import MAX_TICKS, Exact, exact, in_ticks, text
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.transport import Durations, VirtualTransport, step
from fedtempo.errors import ClockOverflow, InputError, UnlawfulRule

_MAX_NUMBER = 2**31 - 1  # round and job numbers are kept in 32 bits
_MAX_QUIET = 100_000  # moments after which a round of clients that come and go is given up


def stream(
    config: ClockConfig, *, until: Exact | None = None, max_rounds: int | None = None, by_rule: bool = False
) -> Iterator[Timeline]:
    """The rounds that end at or before `until`, at most `max_rounds`, in chunks; `by_rule` asks the rule itself."""
    last = MAX_TICKS - 1
    if until is not None:
        horizon = exact(until, "until")
        if horizon <= 0:
            raise InputError(f"until: {until} is not above zero; give the time at which to stop")
        last = config.ticks(horizon)
    left = max_rounds
    source = None if by_rule else fast_chunks(config)
    for chunk in source if source is not None else (chunk for chunk, _ in by_events(config, last)):
        if chunk.first_round + chunk.num_rounds > _MAX_NUMBER:
            raise ClockOverflow("more than 2^31 rounds; simulate less time, or use a longer wait")
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
        gone = " (clients have left for good)" if config.availability is not None else ""
        raise ClockOverflow(f"no further round ends before a 64-bit clock overflows{gone}; ask for fewer rounds")


def fast_chunks(config: ClockConfig) -> Iterator[Timeline] | None:
    """The rule's own faster way, where there is one: it takes clients to be always there."""
    chunks = config.rule.chunks(config)
    return chunks if config.availability is None else None


def full_timeline(
    config: ClockConfig, *, until: Exact | None = None, max_rounds: int | None = None, by_rule: bool = False
) -> Timeline:
    """The timeline in one piece; a horizon in which no round ends is refused."""
    if until is None and max_rounds is None:
        raise InputError("a timeline needs an end: give until= (a time) or rounds= (a number)")
    if max_rounds is not None and max_rounds < 1:
        raise InputError(f"rounds: {max_rounds} is below 1; give the number of rounds")
    parts = stream(config, until=until, max_rounds=max_rounds, by_rule=by_rule)
    head = next(parts, None)
    if head is None:
        first = next(stream(config, max_rounds=1, by_rule=by_rule))
        end = int(first.ends[0]) * config.unit
        raise InputError(f"until: {until} is before the end of the first round; make it at least {text(end)}")
    return Timeline.joined(chain([head], parts))


class _Gathering(Server):
    """A server that starts with whoever is there; its rule was checked with all clients by `ClockConfig.of`."""

    def start(self, now: Tick = 0) -> tuple[Job, ...]:
        self._now = now
        self._state, first = self.rule.start(self._view())
        return self._send(first)


def make_server(config: ClockConfig) -> tuple[Server, VirtualTransport, Tick]:
    """A server and a transport for these clients, and when the server starts.

    That is at 0, unless nobody is there and the rule has no interval to count: then with the first who joins.
    """
    times, availability = config.times.always, config.availability
    durations = Durations(times, scale=in_ticks(times.unit, config.unit), seed=config.seed)
    if availability is None:
        return _server(config, range(config.num_clients)), VirtualTransport(durations), 0
    presence = Presence(config, availability)
    changes: Iterator[tuple[Tick, Event]] = presence.changes()
    clients, start = presence.first, 0
    if not clients and not config.rule.waits:
        start, first = next(changes)
        changes, clients = chain([(start, first)], changes), frozenset([getattr(first, "client", 0)])
    fails = Failures(availability.failure, config.seed) if availability.fails else None
    return _server(config, clients), VirtualTransport(durations, changes, fails), start


def _server(config: ClockConfig, clients: Iterable[int]) -> Server:
    kind = Server if config.availability is None else _Gathering
    return kind(config.rule, clients, unit=config.unit, seed=config.seed, measures=config.measures())


def by_events(config: ClockConfig, last: int = MAX_TICKS - 1) -> Iterator[tuple[Timeline, list[int | None]]]:
    """The law: the rule on a virtual transport, rounds packed into chunks, with the rule's phase before each round."""
    server, transport, start = make_server(config)
    transport.send(server.start(start))
    before = [server.phase]
    source = _rounds(config, server, transport, last)
    begin = 0
    for updates in chunk_updates():
        part = []
        for closed in islice(source, max(1, updates // config.num_clients)):
            part.append(closed)
            before.append(server.phase)
        if not part and not server.in_flight and server.clients and server.deadline is None:
            raise UnlawfulRule(
                f"{config.rule!r} has stopped after round {server.version - 1}: no job is running and no deadline is "
                "set; "
                "close the round, send models, or set a deadline"
            )
        if not part:
            return
        yield packed(config, part, begin), before[:-1]
        begin, before = part[-1].end, before[-1:]


def _rounds(config: ClockConfig, server: Server, transport: VirtualTransport, last: Tick) -> Iterator[Round]:
    """As `rounds`, of a server that has started; a round that clients who come and go never let end is given up."""
    most = _MAX_QUIET + 100 * config.num_clients if config.availability is not None else None
    version, quiet = server.version, 0
    while (yield from step(server, transport, last)):
        quiet = quiet + 1 if server.version == version else 0
        version = server.version
        if most is not None and quiet > most:
            raise InputError(
                f"{config.rule!r}: round {version} does not end: clients joined, left or failed {most} times; give "
                "clients longer stays, shorter jobs or fewer failures"
            )


def packed(config: ClockConfig, part: list[Round], start: int) -> Timeline:
    """Rounds as arrays."""
    jobs = [job for closed in part for job in closed.jobs]
    table = np.fromiter(chain.from_iterable(jobs), dtype=np.int64, count=5 * len(jobs)).reshape(len(jobs), 5)
    draws = table[:, 4].astype(np.int32)
    return Timeline(
        unit=config.unit,
        num_clients=config.num_clients,
        ends=np.array([closed.end for closed in part], dtype=np.int64),
        offsets=np.cumsum([0, *(len(closed.jobs) for closed in part)], dtype=np.int64),
        client=table[:, 0].astype(np.int32),
        base=table[:, 2].astype(np.int32),
        job=table[:, 1].astype(np.int32),
        draws=draws if config.rule.counts_draws else None,
        first_round=part[0].number,
        start=start,
    )


class Recording:
    """A clock that is run once and can be read many times: its first `keep` updates stay in memory."""

    def __init__(self, config: ClockConfig, *, keep: int = 5_000_000) -> None:
        self.config = config
        self._room = keep
        self._held: list[Timeline] = []
        self._source = stream(config)

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
                yield from _after(stream(self.config, max_rounds=count), done)
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
