"""What went otherwise than planned: each with its time, its client and its reason; none of it stops the training.

`Kind` lists the kinds; reply_handler.py notes most of them, training.py and evaluation.py the rest. A client that keeps
failing is set aside, and tried again later: after `max_failures` in a row it rests for retry_after · 2^k, where k
counts its rests since its last good answer; after a rest one more failure sends it to the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from typing import Literal, NamedTuple

from fedtempo.flower.clock import seconds
from fedtempo.flower.text import clean

log = logging.getLogger("flwr")

Kind = Literal[
    "error",
    "refused",
    "deadline",
    "not sent",
    "left",
    "joined",
    "came back",
    "same identity",
    "late",
    "double",
    "unknown",
    "set aside",
    "tried again",
    "evaluation",
    "metrics",
    "examples",
    "weights",
    "restart",
    "checkpoint",
    "saved again",
    "guard",
    "memory",
]
_LONGEST = 1000
"""Characters of a reason."""
_QUIET: frozenset[str] = frozenset({"joined", "came back", "tried again", "restart", "saved again"})
"""Happenings that are written down with the faults, and are none."""


class Fault(NamedTuple):
    """A fault: in seconds of training, by client number (-1: no client) and identity.

    They are the `errors` of a `Result`.

    Example:
        In the app of the example of `simulate_app`:

        >>> broken_app = ClientApp()
        >>> @broken_app.train()
        ... def broken(message, context):
        ...     if context.node_config["partition-id"] == 0:
        ...         raise ValueError("no rows")
        ...     return train(message, context)
        >>> result = simulate_app(server_app, broken_app, times=ft.FixedTimes([4, 2, 1]), until=4)
        >>> fault = result.errors[0]
        >>> fault.time, fault.client, fault.kind, fault.quiet
        (4.0, 0, 'error', False)
    """

    time: float
    client: int
    identity: str
    kind: str
    reason: str

    @property
    def quiet(self) -> bool:
        """Whether nothing went wrong: somebody came, or was tried again."""
        return self.kind in _QUIET

    def __str__(self) -> str:
        who = f"client {self.client} ({self.identity}): " if self.client >= 0 else ""
        return f"{who}{self.kind}: {self.reason}"


class Faults:
    """All faults so far; each is logged once, when it happens."""

    def __init__(self, keep: Callable[[Fault], None]) -> None:
        self._keep = keep

    def note(self, now: int, client: int, identity: str, kind: Kind, reason: str) -> None:
        """Remember and log a fault; what clients have written is cleaned here."""
        fault = Fault(seconds(now), client, clean(identity), kind, clean(reason, _LONGEST))
        self._keep(fault)
        log.log(logging.INFO if fault.quiet else logging.WARNING, "%.1f s: %s", fault.time, fault)


_MOST_DOUBLINGS = 10


class RetryPolicy:
    """Failures in a row, rests and when they end."""

    def __init__(self, max_failures: int, retry_after: int) -> None:
        self._most, self._rest = max_failures, retry_after
        self._failures: dict[int, int] = {}
        self._rests: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def worked(self, client: int) -> None:
        """The client has sent a good update."""
        if client in self._failures:
            del self._failures[client]
            self._rests.pop(client, None)

    def failed(self, client: int, now: int) -> int | None:
        """One more failure; for how long the client is to rest, None if it may go on."""
        self._failures[client] = self._failures.get(client, 0) + 1
        if self._failures[client] < self._most:
            return None
        rests = self._rests.get(client, 0)
        self._rests[client] = rests + 1
        self._failures[client] = self._most - 1
        rest = self._rest << min(rests, _MOST_DOUBLINGS)
        self._until[client] = now + rest
        return rest

    def forgive(self, client: int) -> None:
        """Start anew: the client is another process now."""
        for memory in (self._failures, self._rests, self._until):
            memory.pop(client, None)

    def pardon(self, clients: Set[int], now: int) -> None:
        """These are not to blame: what they did is forgotten, and their rests end now."""
        for client in clients:
            self._failures.pop(client, None)
            self._rests.pop(client, None)
        self._until |= {client: now for client in self._until if client in clients}

    def resting(self, client: int) -> bool:
        """Whether the client is set aside."""
        return client in self._until

    @property
    def next_due(self) -> int | None:
        """When the next rest ends."""
        return min(self._until.values(), default=None)

    def due(self, now: int) -> list[int]:
        """Those whose rest is over; they are no longer set aside."""
        if not self._until:
            return []
        over = sorted(client for client, until in self._until.items() if until <= now)
        for client in over:
            del self._until[client]
        return over

    def snapshot(self) -> list[list[int]]:
        """[client, failures, rests, until or -1] of each."""
        known = sorted({*self._failures, *self._rests, *self._until})
        return [[c, self._failures.get(c, 0), self._rests.get(c, 0), self._until.get(c, -1)] for c in known]

    def restore(self, saved: Sequence[Sequence[int]]) -> None:
        """What `snapshot` gave."""
        for client, failures, rests, until in saved:
            for memory, value in ((self._failures, failures), (self._rests, rests), (self._until, until)):
                if value > 0:
                    memory[client] = value
