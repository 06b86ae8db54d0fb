"""What comes out of a training: Flower's Result, and what asynchronous training needs to be understood.

A round n is one end of the waiting rule's; `server_round` counts those that took updates, as Flower counts rounds.
Staleness of an update: n − ρ_i(n).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flwr.serverapp import strategy

from fedtempo import compat
from fedtempo.flower.clock import TransportCosts, seconds
from fedtempo.flower.faults import Fault

if TYPE_CHECKING:
    from fedtempo.flower.journal import Journal


class UpdateRecord(NamedTuple):
    """A client's update as a round took it; times in nanoseconds of training.

    Example:
        In the app of the example of `simulate_app`:

        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=4)
        >>> update = result.rounds[-1].updates[0]
        >>> update.client, update.duration, update.base
        (0, 4.0, 0)
    """

    client: int
    job: int
    base: int
    """ρ_i(n)."""
    sent: int
    arrived: int
    weight: float
    """ω_i(n)."""
    clipped: float
    """Factor by which its norm was clipped, 1 if it was not."""
    bytes_up: int = 0
    """Bytes of its arrays as Flower carried them; 0 in records of versions that did not count them."""
    draws: int = 1
    """How often its client was drawn for this job; `weight` counts them."""

    @property
    def row(self) -> tuple[float, ...]:
        """The update in the journal; draws are written where there are several."""
        return tuple(self) if self.draws > 1 else self[:-1]

    @property
    def duration(self) -> float:
        """Seconds from sending to arrival."""
        return seconds(self.arrived - self.sent)


class RoundRecord(NamedTuple):
    """A round that has ended, at `end` nanoseconds of training.

    They are the `rounds` of a `Result`.

    Example:
        In the app of the example of `simulate_app`:

        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=4)
        >>> last = result.rounds[-1]
        >>> last.time, last.contributors, last.durations, last.staleness
        (4.0, ('node 0', 'node 1', 'node 2'), (4.0, 2.0, 1.0), (3, 1, 0))
    """

    number: int
    server_round: int
    end: int
    updates: tuple[UpdateRecord, ...]
    contributors: tuple[str, ...]
    """Identities, in the order of `updates`."""
    step: float = 1.0
    """The server's, which the weights have in them."""

    def __str__(self) -> str:
        who = ", ".join(self.contributors[:5]) + (", …" if len(self.contributors) > 5 else "")
        stale = max(self.staleness, default=0)
        return f"{self.time:.1f} s: {_counted(len(self.updates), 'update')} ({who}), staleness at most {stale}"

    @property
    def time(self) -> float:
        """Its end in seconds of training."""
        return seconds(self.end)

    @property
    def staleness(self) -> tuple[int, ...]:
        """N − ρ_i(n) of each update."""
        return tuple(self.number - update.base for update in self.updates)

    @property
    def weights(self) -> tuple[float, ...]:
        """ω_i(n) of each update."""
        return tuple(update.weight for update in self.updates)

    @property
    def durations(self) -> tuple[float, ...]:
        """Seconds that each update took."""
        return tuple(update.duration for update in self.updates)


@dataclass(repr=False)
class Result(strategy.Result):
    """Flower's Result, with the times of all rounds. `recorded(result)` makes a timeline of it.

    It is what `start` of the strategies and `simulate_app` return.

    Example:
        In the app of the example of `simulate_app`:

        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=8)
        >>> len(result.rounds), result.client_times, result.stopped
        (8, {'node 0': 4.0, 'node 1': 2.0, 'node 2': 1.0}, 'the time is over: 8 s')
        >>> result.arrays.to_numpy_ndarrays()[0].round(2)  # the last model
        array([1.15])
    """

    rounds: list[RoundRecord] = field(default_factory=list)
    client_times: dict[str, float] = field(default_factory=dict)
    """Estimated seconds from sending to arrival, by identity."""
    errors: list[Fault] = field(default_factory=list)
    transport: TransportCosts = field(default_factory=TransportCosts)
    stopped: str = ""
    """Why training ended."""
    journal: Journal | None = None
    """All that was written down, from which `recorded` makes a record."""
    folder: Path | None = None
    """Where the run is saved, if it is."""

    @property
    def carrier(self) -> TransportCosts:
        """The old name of `transport`."""
        compat.warn("Result.carrier", "Result.transport")
        return self.transport

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.summary()}"

    def summary(self) -> str:
        """What happened, in a few lines."""
        sizes = [len(closed.updates) for closed in self.rounds if closed.updates]
        empty = len(self.rounds) - len(sizes)
        idle = f" (and {empty} without updates)" if empty else ""
        wrong = Counter(fault.kind for fault in self.errors if not fault.quiet)
        kinds = ", ".join(f"{kind} {count}" for kind, count in wrong.most_common())
        span = self.rounds[-1].time if self.rounds else 0.0
        times = ", ".join(f"{name} {time:.3g} s" for name, time in sorted(self.client_times.items())[:10])
        more = f", … ({len(self.client_times)} clients)" if len(self.client_times) > 10 else ""
        return (
            f"Rounds: {len(sizes)}{idle} in {span:.1f} s, {_counted(sum(sizes), 'update')}; stopped: {self.stopped}\n"
            f"Client times: {times or 'none'}{more}\n"
            f"Received: {in_bytes(sum(update.bytes_up for closed in self.rounds for update in closed.updates))}\n"
            f"Server: {self.transport}\n"
            f"Faults: {wrong.total()}{f' ({kinds})' if kinds else ''}"
        )


def in_bytes(number: int) -> str:
    """A number of bytes in words, as "1.23 MB"."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if number >= 999.5 * 1000 ** (power - 1):
            return f"{number / 1000**power:.3g} {unit}"
    return _counted(number, "byte")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
