"""Synchronous FedAvg (section 4.2): Δt^n = max_i T_i. Every client takes part in every round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedtempo.clock.config import ClockConfig, add_up, chunk_updates
from fedtempo.clock.events import Action, Close, Event, View
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.waiting import State, WaitingRule, resend
from fedtempo.errors import InputError


@dataclass(frozen=True)
class WaitForAll(WaitingRule):
    """A round ends when no job is out any more. `alone`: centralized learning (appendix C.1), M = 1."""

    synchronous = True
    constant_phase = True

    alone: bool = False

    def check(self, num_clients: int) -> None:
        if self.alone and num_clients != 1:
            raise InputError(f"centralized training has one client, not {num_clients}; use FedAvg, or a single time")

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if (again := resend(event)) is not None:
            return state, again
        if not view.in_flight and view.arrived:
            return state, Close(tuple(view.arrived.values()))
        return state, None

    def chunks(self, config: ClockConfig) -> Iterator[Timeline]:
        return _chunks(config)


def _chunks(config: ClockConfig) -> Iterator[Timeline]:
    clients = np.arange(config.num_clients)
    first, start = 0, 0
    for updates in chunk_updates():
        per_chunk = max(1, updates // len(clients))
        numbers = np.arange(first, first + per_chunk)
        slowest = config.times.draw(clients, numbers[:, None], seed=config.seed).max(axis=1) * config.scale
        ends = add_up(start, slowest)
        if not len(ends):
            return
        own = np.repeat(numbers[: len(ends)].astype(np.int32), len(clients))
        yield Timeline(
            unit=config.unit,
            num_clients=len(clients),
            ends=ends,
            offsets=np.arange(len(ends) + 1, dtype=np.int64) * len(clients),
            client=np.tile(clients.astype(np.int32), len(ends)),
            base=own,
            job=own,
            first_round=first,
            start=start,
        )
        first, start = first + len(ends), int(ends[-1])
