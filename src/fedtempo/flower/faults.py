"""What went otherwise than planned: each with its time, its client and its reason; none of it stops the training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, NamedTuple

from fedtempo.flower.clock import seconds

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
    "restart",
]
_QUIET: frozenset[str] = frozenset({"joined", "came back", "tried again", "restart"})
"""Happenings that are written down with the faults, and are none."""


class Fault(NamedTuple):
    """A fault: in seconds of training, by client number (-1: nobody's) and identity."""

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
        """Remember and log a fault."""
        fault = Fault(seconds(now), client, identity, kind, reason)
        self._keep(fault)
        log.log(logging.INFO if fault.quiet else logging.WARNING, "%.1f s: %s", fault.time, fault)
