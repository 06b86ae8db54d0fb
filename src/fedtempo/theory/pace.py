"""N, the rounds in time T (table 2): FedAvg ⌊T/τ_M⌋, asynchronous Σ ⌊T/τ_i⌋, FedFix ⌊T/Δt⌋, else T × rounds a unit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedtempo.clock.rules import FixedInterval, WaitForAll, WaitForNext
from fedtempo.clock.ticks import Exact, positive
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.importance import Importance
from fedtempo.participation import LongRun
from fedtempo.running import timeline_chunks
from fedtempo.schemes import Scheme


def rounds_in(scheme: Scheme, times: ClientTimes, until: Exact, *, importance: Iterable[Exact] | None = None) -> float:
    """Rounds that end by `until`: a whole number where times are fixed and a closed form counts them, else the mean."""
    horizon = positive(until, "until")
    if isinstance(scheme.waiting, FixedInterval):
        return int(horizon // scheme.waiting.wait)
    if isinstance(times, FixedTimes):
        ticks, clients = np.unique(times.ticks, return_counts=True)
        jobs = [int(horizon // (tick * times.unit)) for tick in ticks.tolist()]
        match scheme.waiting:
            case WaitForAll():
                return jobs[-1]
            case WaitForNext():
                return int(clients @ np.array(jobs, dtype=np.int64))
    if times.availability is not None and times.availability.changes:
        return float(
            sum(part.num_rounds for part in timeline_chunks(scheme, times, until=until, importance=importance))
        )
    run = LongRun(scheme.waiting, times, Importance(importance, times.num_clients))
    return float(horizon) * run.rounds_per_time
