"""The schemes as Flower strategies: one line changes in a server app.

FedAvg waits for all, AsyncFedAvg for the next, FedBuff for m updates, FedFix for Δt.
"""

from __future__ import annotations

from typing import Unpack

from fedtempo import schemes
from fedtempo.clock.ticks import Exact
from fedtempo.flower.strategy import Options, TimedStrategy


class FedAvg(TimedStrategy):
    """Synchronous: a round waits for every client that is there."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(schemes.FedAvg(), **options)


class AsyncFedAvg(TimedStrategy):
    """Asynchronous: every update makes a new model."""

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(schemes.AsyncFedAvg(), **options)


class FedFix(TimedStrategy):
    """A new model every `wait` seconds, from what has arrived by then."""

    def __init__(self, wait: Exact, **options: Unpack[Options]) -> None:
        super().__init__(schemes.FedFix(wait), **options)


class FedBuff(TimedStrategy):
    """A new model from every `size` updates."""

    def __init__(self, size: int, **options: Unpack[Options]) -> None:
        super().__init__(schemes.FedBuff(size), **options)
