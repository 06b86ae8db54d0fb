"""Who worked when: the jobs of a timeline, those that came to nothing, and when clients were away, in units of time."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedtempo.clock.activity import ARRIVED, FAILED, LOST, RUNNING, Activity, activity_of
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.ticks import in_ticks
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats


@dataclass(frozen=True)
class Jobs:
    """Jobs as (client, sent, back, taken) in time; `delay` is −1 while a job is not taken."""

    client: I64
    sent: Floats
    back: Floats
    taken: Floats
    delay: I64


@dataclass(frozen=True)
class Spans:
    """Times of clients, from when to when."""

    client: I64
    begin: Floats
    end: Floats


@dataclass(frozen=True)
class Work:
    """All that is drawn of the clients: their jobs, those that came to nothing, and when they were away."""

    jobs: Jobs
    failed: Spans
    lost: Spans
    away: Spans

    def between(self, begin: float, end: float) -> Work:
        """What is seen between two times."""
        return Work(
            _cut_jobs(self.jobs, begin, end),
            *(_cut(spans, begin, end) for spans in (self.failed, self.lost, self.away)),
        )


def jobs_of(config: ClockConfig, line: Timeline, horizon: float) -> Jobs:
    """The jobs of a timeline from its first round on, and those still out at its end."""
    unit = float(line.unit)
    begins = np.concatenate([[line.start], line.ends])
    client, job = line.client.astype(np.int64), line.job.astype(np.int64)
    sent = begins[line.base - line.first_round]
    taken = begins[line.round_of_update - line.first_round + 1]
    delay = line.staleness
    if config.rule.returns_to_contributors:
        everyone = np.arange(line.num_clients)
        last_sent, last_job = np.full(line.num_clients, line.start), np.zeros(line.num_clients, dtype=np.int64)
        last_sent[line.client] = taken
        last_job[line.client] = job + 1
        client, job = np.concatenate([client, everyone]), np.concatenate([job, last_job])
        sent = np.concatenate([sent, last_sent])
        taken = np.concatenate([taken, np.full(line.num_clients, np.iinfo(np.int64).max)])
        delay = np.concatenate([delay, np.full(line.num_clients, -1)])
    back = sent + config.times.draw(client, job, seed=config.seed) * config.scale
    seen = sent * unit < horizon
    return Jobs(
        client[seen],
        (sent * unit)[seen],
        np.minimum(back * unit, horizon)[seen],
        np.minimum(taken.astype(np.float64) * unit, horizon)[seen],
        delay[seen],
    )


def work_of(config: ClockConfig, line: Timeline, horizon: float) -> Work:
    """The jobs of a timeline that begins with round 0; of clients that come and go, all that became of them."""
    if config.availability is None:
        nothing = Spans(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))
        return Work(jobs_of(config, line, horizon), nothing, nothing, nothing)
    found = activity_of(config, in_ticks(Fraction(horizon), config.unit))
    unit = float(config.unit)
    used = np.isin(found.outcome, (ARRIVED, RUNNING)) & (found.sent * unit < horizon)
    sent, back = found.sent.astype(np.float64) * unit, found.back.astype(np.float64) * unit
    taken = np.where(found.taken < 0, horizon, found.taken * unit)
    jobs = Jobs(found.client[used], sent[used], back[used], taken[used], found.delay[used])
    client, begin, end = found.absences.T
    return Work(jobs, _ended(found, FAILED, unit), _ended(found, LOST, unit), Spans(client, begin * unit, end * unit))


def _ended(found: Activity, outcome: int, unit: float) -> Spans:
    which = found.outcome == outcome
    return Spans(found.client[which], found.sent[which] * unit, found.back[which] * unit)


def _cut(spans: Spans, begin: float, end: float) -> Spans:
    seen = (spans.end > begin) & (spans.begin < end)
    return Spans(spans.client[seen], np.maximum(spans.begin[seen], begin), np.minimum(spans.end[seen], end))


def _cut_jobs(jobs: Jobs, begin: float, end: float) -> Jobs:
    seen = (jobs.taken > begin) & (jobs.sent < end)
    sent, back, taken = (np.clip(times[seen], begin, end) for times in (jobs.sent, jobs.back, jobs.taken))
    return Jobs(jobs.client[seen], sent, back, taken, jobs.delay[seen])
