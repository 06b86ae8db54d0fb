"""What it costs that clients come, go and fail: a scheme's pace beside that of the same clients always there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fedtempo.clock.work import Work, work_of
from fedtempo.participation import LongRun


@dataclass(frozen=True)
class Costs:
    """What clients do with their time, and what they would do if they were always there and no job failed."""

    work: Work
    rounds_per_time: float
    """If they were always there; so are the next ones."""
    updates_per_time: float
    idle_share: float
    mean_delay: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        always = {name: value for name, value in asdict(self).items() if name != "work"}
        return {**asdict(self.work), "always_there": always}


def costs_of(run: LongRun) -> Costs | None:
    """None if the clients are always there."""
    if run.times.availability is None:
        return None
    plain = LongRun(run.rule, run.times.always, run.importance, run.seed)
    costs = Costs(
        work_of(run.lasting.record.setting),
        plain.rounds_per_time,
        plain.rounds_per_time * plain.participation.updates_per_round,
        idle_share(plain),
        plain.mean_delay,
    )
    plain.record.forget()
    return costs


def idle_share(run: LongRun) -> float:
    """Share of their time in which clients that are always there have nothing to do."""
    part = run.participation
    taking = part.share if part.taking_part is None else part.taking_part
    busy = float((run.times.clock_mean_time * taking).mean()) * run.rounds_per_time
    return max(0.0, 1.0 - busy)
