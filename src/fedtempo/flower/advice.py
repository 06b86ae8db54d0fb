"""When the estimates say that a wait makes no sense, the log says so in words, once, and what to change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

log = logging.getLogger("flwr")

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
    overhead: float,
    identity: Callable[[int], str],
) -> list[Remark]:
    """What is to be said of a wait in seconds, with these client times, ⌈T_i/Δt⌉ and overhead of the carrier."""
    found = []
    floor = max(FLOOR, overhead)
    if wait < floor:
        found.append(
            Remark(
                "floor",
                f"a wait of {wait:g} s is below what Flower's transport takes ({floor:.3g} s), which then decides who "
                f"is in a round instead of the clients' speed. Set wait to {floor:.0f} s or more",
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
            f"client {client} ({identity(client)}) has not answered for {rounds} rounds of {wait:g} s; its next update "
            f"will count {rounds}-fold or more. Set a longer wait or a shorter timeout, or give it less work",
        )
        for client, rounds in missed.items()
        if rounds > ROUNDS_MISSED
    ]


class Adviser:
    """Says each remark once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, found: list[Remark]) -> None:
        """Log what has not been said yet."""
        for about, words in found:
            if about not in self._said:
                self._said.add(about)
                log.warning("%s", words)
