"""Synchronous FedAvg (section 4.2): Δt^n = max_i T_i. Every client takes part in every round.

    share_i = 1,   d_i = p_i,   rounds in a unit of time 1/E[max_i T_i],   no update is stale,   W = 1

Jobs that fail are sent again within the round: E[max_i G_i τ_i] with G_i jobs until one succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.closed_form import ClosedForm, Everybody, failing, failure, fine_ticks, rationals, slower
from fedtempo.clock.config import ClockConfig, add_up, chunk_updates
from fedtempo.clock.events import Action, Close, Event, View
from fedtempo.clock.importance import Importance
from fedtempo.clock.races import expected_last_success, expected_maximum
from fedtempo.clock.random_times import RandomTimes
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.waiting import State, WaitingRule, resend
from fedtempo.errors import InputError


@dataclass(frozen=True)
class WaitForAll(WaitingRule):
    """A round ends when no job is out any more. `alone`: centralized learning (appendix C.1), M = 1."""

    synchronous = True
    same_clients = True
    keeps_clients_busy = True
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

    def closed_form(self, times: ClientTimes, importance: Importance) -> ClosedForm | None:
        if times.availability is not None and failing(times) is None:
            return None
        clients = times.num_clients
        return ClosedForm(
            np.ones(clients),
            (Fraction(1),) * clients if rationals(clients) else None,
            rounds_per_time=_rounds_per_time(times),
            window=1,
            practical_window=1,
            mean_delay=0.0,
            mean_delay_by_weight=0.0,
            max_delay=0,
            round_law=Everybody(clients),
        )

    def rounds_by(self, times: ClientTimes, until: Fraction) -> int | None:
        return int(until // (int(times.ticks.max()) * times.unit)) if isinstance(times, FixedTimes) else None


def _rounds_per_time(times: ClientTimes) -> Fraction | float | None:
    """1/E[max_i T_i]."""
    if (fails := failing(times)) is not None:
        if (plain := slower(times)) is not None:
            return _rounds_per_time(plain)
        if not isinstance(times.always, FixedTimes):
            return None
        last = expected_last_success(times.always.mean_time, failure(fails))
        return None if last is None else 1.0 / last
    if isinstance(times, FixedTimes):
        return 1 / (int(times.ticks.max()) * times.unit)
    rounded = isinstance(times, RandomTimes)
    longest = expected_maximum(times) if times.random and (fine_ticks(times) or not rounded) else None
    return None if longest is None else 1 / (longest + rounded * float(times.unit) / 2)  # half a tick more


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
