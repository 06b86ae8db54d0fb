"""Asynchronous FedAvg (section 4.3): Δt^n = min_i T_i^n. Each update is a round; ties are rounds of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.events import Action, Arrived, Close, Event, View
from fedtempo.clock.rules.free_running import free_running
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.waiting import State, WaitingRule, resend


@dataclass(frozen=True)
class WaitForNext(WaitingRule):
    """A round ends with each update."""

    one_update_a_round = True
    constant_phase = True

    def decide(self, state: State, event: Event, view: View) -> tuple[State, Action]:
        if isinstance(event, Arrived):
            return state, Close((event.job,))
        return state, resend(event)

    def chunks(self, config: ClockConfig) -> Iterator[Timeline]:
        return free_running(config, wait=None)
