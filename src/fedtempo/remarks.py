"""What deserves a word in a plan, in plain words."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedtempo.clock.rules import FixedInterval, IntervalStages, WaitForSome
from fedtempo.clock.ticks import text
from fedtempo.clock.times import FixedTimes

if TYPE_CHECKING:
    from fedtempo.participation import LongRun
    from fedtempo.planning import SchemePlan


def remarks_on(plan: SchemePlan) -> list[str]:
    """What deserves a word."""
    run, clients = plan.run.lasting, plan.run.times.num_clients
    waiting = plan.scheme.waiting
    part = run.participation
    out = _stretches(plan.run)
    if isinstance(waiting, WaitForSome) and waiting.size == clients:
        out.append("the buffer holds every client: the same rounds as FedAvg")
    elif isinstance(waiting, WaitForSome) and waiting.size == 1:
        out.append("a buffer of one: the same rounds as asynchronous FedAvg")
    if isinstance(waiting, IntervalStages):
        stages = ", then ".join(f"{w} for {n} rounds" if n is not None else str(w) for w, n in waiting.stages)
        out.append(f"waits {stages}; the numbers are those of the last stage")
    if isinstance(run.rule, FixedInterval) and isinstance(run.times, FixedTimes):
        out += _interval_remarks(run.rule.wait, run.times)
    if part.source == "cycle" and run.observation.cycle is not None:
        by_speed = (1.0 / run.times.mean_time) / (1.0 / run.times.mean_time).sum()
        off = float(np.abs(plan.identical_share / by_speed - 1.0).max())
        cycle = run.observation.cycle
        out.append(
            f"clients lock into a cycle of {cycle.length} rounds after {cycle.start}; "
            f"their participation is off 1/time by up to {off:.0%}"
        )
    if part.source == "estimate" and part.error is not None:
        seen = part.share > 0
        error = float((part.error[seen] / part.share[seen]).max(initial=0.0))
        out.append(
            f"no closed form and no cycle found: participation is estimated from {run.observation.rounds} rounds, "
            f"to about {max(error, 0.001):.1%}"
        )
    if plan.window is not None and plan.practical_window is not None and plan.window > 10**6 > plan.practical_window:
        out.append(
            f"the exact window is out of reach; {plan.practical_window} rounds give each client its share to 1 %"
        )
    return out


def _stretches(run: LongRun) -> list[str]:
    """Of clients that come or go for good."""
    availability = run.times.availability
    if availability is None or not availability.changes:
        return []
    stretches = availability.stretches
    begin, clients = stretches[-1]
    return [
        f"clients join or leave for good {len(stretches) - 1} times; the numbers are those from {text(begin)} on, when "
        f"{len(clients)} of {run.times.num_clients} are there, and weights change with each stretch"
    ]


def _interval_remarks(wait: Fraction, times: FixedTimes) -> list[str]:
    needed = times.rounds_needed(wait)
    low, high = int(needed.min()), int(needed.max())
    if low == high and low > 1:
        return [
            f"every client contributes to the same one round in {low}, the others are empty: "
            f"it acts as FedAvg with server rate {low}"
        ]
    if high == 1:
        slowest = int(times.ticks.max()) * times.unit
        idle = "" if wait == slowest else f", {text(wait - slowest)} longer than needed"
        return [f"every client is back in every round: the same rounds as FedAvg{idle}"]
    if low > 1:
        return ["the wait is shorter than the fastest client's time, so some rounds are empty"]
    return []
