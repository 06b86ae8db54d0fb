"""Plan, simulation and reality of a recorded run, over its length, side by side.

    reality       the recorded rounds, and the weights ω_i(n) that were used
    simulation    the same scheme's clock with the recorded durations replayed, everybody there, nothing going wrong
    plan          the same scheme's long run with the mean durations, and its time-based weights, with the server's step

Clients that no round has taken an update of are in reality alone. Counted for: Σ_n ω_i(n), as a share of all clients'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from fedtempo.clock.ticks import positive
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import FixedTimes, Floats
from fedtempo.clock.trace import TraceTimes
from fedtempo.flower.record import Record, in_units, recorded
from fedtempo.planning.compare import SchemePlan, compare
from fedtempo.schemes.named import FedAvg, Scheme
from fedtempo.schemes.table import NamedRule
from fedtempo.schemes.timelines import timeline

MILLISECOND = Fraction(1, 1000)
_LEAST = 1e-12
"""Of the largest importance: a client may say that it has next to no examples, and the planner knows no zeros."""


@dataclass(frozen=True)
class RunNumbers:
    """What a run comes to; numbers of a plan are means, and need not be whole."""

    rounds: float
    empty_rounds: float | None
    """Rounds that took no update; a plan does not tell."""
    updates: float
    mean_staleness: float
    max_staleness: int

    @property
    def updates_per_round(self) -> float:
        """Updates in a round, empty rounds counted."""
        return self.updates / self.rounds


@dataclass(frozen=True)
class ClientNumbers:
    """What a client did; None where it did nothing."""

    name: str
    seconds: float | None
    """Mean from sending to arrival."""
    jobs: int
    """Updates of it that rounds have taken."""
    share: tuple[float, float | None, float | None]
    """Share of rounds in which it took part: reality, simulation, plan."""
    weight: float | None
    """Mean of ω_i(n)."""
    planned_weight: float | None
    """d_i."""
    counted: float
    """Σ_n ω_i(n), as a share of all clients'."""
    importance: float | None
    """p_i among those that took part."""
    faults: Mapping[str, int]
    """How often what went wrong."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A recorded run beside its simulation and its plan."""

    record: Record
    scheme: Scheme
    """The record's; FedAvg for a FedBuff that waited for more clients than ever answered."""
    active: tuple[int, ...]
    """Clients that took part: the k-th of the simulation and of the plan is `record` client `active[k]`."""
    times: TraceTimes
    """The recorded durations, to the nanosecond."""
    simulated: Timeline | None
    """None, as simulation and plan are, where the rule chooses by training or is only a name: see `recorded`."""
    planned: SchemePlan | None
    reality: RunNumbers
    simulation: RunNumbers | None
    plan: RunNumbers | None
    clients: tuple[ClientNumbers, ...]
    """As the record numbers them."""
    server_faults: Mapping[str, int]
    """What went wrong that was nobody's."""

    @property
    def length(self) -> Fraction:
        """Seconds of training, to the end of the last round."""
        return self.record.timeline.duration

    @property
    def first_difference(self) -> int | None:
        """The first round in which reality and simulation differ in its end, its clients or their versions."""
        real, virtual = self.record.timeline, self.simulated
        if virtual is None:
            return None
        both = min(real.num_rounds, virtual.num_rounds)
        number = {client: k for k, client in enumerate(self.active)}
        pairs = zip(real.rounds, virtual.rounds, strict=False)
        for n, (ours, other) in enumerate(pairs):
            who = tuple(number[client] for client in ours.participants)
            if (ours.end, who, ours.base_versions) != (other.end, other.participants, other.base_versions):
                return n
        return None if real.num_rounds == virtual.num_rounds else both


def compared(record: Record) -> Comparison:
    """The run beside what the simulator makes of the same scheme with the same durations."""
    line = record.timeline
    active = tuple(np.unique(line.client).tolist())
    few = record.scheme.waiting.min_clients > len(active)
    scheme = FedAvg() if few else record.scheme
    times = durations(record)
    importance = np.array([record.importance[i] for i in active])
    importance = np.maximum(importance, _LEAST * importance.max())
    importance /= importance.sum()
    known = not isinstance(scheme.waiting, NamedRule) and not scheme.waiting.by_training
    simulated = _simulated(scheme, times, record, importance) if known else None
    means = FixedTimes([-(-mean // MILLISECOND) * MILLISECOND for mean in times.exact_mean_time])
    planned = compare(means, [scheme], importance=importance.tolist(), step=record.step).schemes[0] if known else None
    return Comparison(
        record=record,
        scheme=scheme,
        active=active,
        times=times,
        simulated=simulated,
        planned=planned,
        reality=_numbers(line),
        simulation=None if simulated is None else _numbers(simulated),
        plan=None
        if planned is None
        else RunNumbers(
            rounds=planned.rounds_per_time * float(line.duration),
            empty_rounds=None,
            updates=planned.updates_per_time * float(line.duration),
            mean_staleness=planned.mean_delay,
            max_staleness=planned.max_delay,
        ),
        clients=_clients(record, active, times, simulated, planned, importance),
        server_faults=Counter(fault.kind for fault in record.faults if fault.client < 0),
    )


def _simulated(scheme: Scheme, times: TraceTimes, record: Record, importance: Floats) -> Timeline:
    """The rounds that end within the recorded ones; of several at its last moment, as many as the run had."""
    line = record.timeline
    simulated = timeline(scheme, times, until=line.duration, importance=importance.tolist(), seed=record.seed)
    before = sum(end * simulated.unit < line.duration for end in simulated.ends.tolist()[line.num_rounds :])
    return simulated[: line.num_rounds + before]


def durations(
    record: Record, *, mode: Literal["replay", "bootstrap"] = "replay", resolution: Fraction | None = None
) -> TraceTimes:
    """The recorded durations of the clients that took part, by name; exact, or rounded up to `resolution`."""
    sent, arrived = (in_units(times.tolist(), record.unit) for times in (record.sent, record.arrived))
    lasted = np.maximum(arrived - sent, 1)
    rows: dict[int, list[Fraction]] = {}
    for client, ticks in zip(record.timeline.client.tolist(), lasted.tolist(), strict=True):
        rows.setdefault(client, []).append(ticks * record.unit)
    active = sorted(rows)
    names = [record.names[i] for i in active]
    return TraceTimes([rows[i] for i in active], mode=mode, resolution=resolution, names=names)


def run_durations(path: Path, mode: Literal["replay", "bootstrap"], resolution: str | None) -> TraceTimes:
    """The durations in a run's folder, in seconds, rounded up to milliseconds or to `resolution`."""
    step = MILLISECOND if resolution is None else positive(resolution, "--resolution")
    return durations(recorded(path), mode=mode, resolution=step)


def _numbers(line: Timeline) -> RunNumbers:
    stale = line.staleness
    return RunNumbers(
        rounds=line.num_rounds,
        empty_rounds=int((np.diff(line.offsets) == 0).sum()),
        updates=line.num_updates,
        mean_staleness=float(stale.mean()),
        max_staleness=int(stale.max()),
    )


def _clients(
    record: Record,
    active: tuple[int, ...],
    times: TraceTimes,
    simulated: Timeline | None,
    planned: SchemePlan | None,
    importance: Floats,
) -> tuple[ClientNumbers, ...]:
    line = record.timeline
    jobs: I64 = line.participation_counts
    used = np.bincount(line.client, weights=record.weights.applied(line), minlength=line.num_clients)
    weights = None if planned is None or planned.weights is None else planned.weights.values[-1] * planned.step
    virtual = None if simulated is None else simulated.participation_counts / simulated.num_rounds
    place = {client: k for k, client in enumerate(active)}
    faults: dict[int, Counter[str]] = {}
    for fault in record.faults:
        faults.setdefault(fault.client, Counter())[fault.kind] += 1
    out = []
    for i, name in enumerate(record.names):
        k, real = place.get(i), int(jobs[i]) / line.num_rounds
        out.append(
            ClientNumbers(
                name=name,
                seconds=None if k is None else float(times.mean_time[k]),
                jobs=int(jobs[i]),
                share=(real, None, None)
                if k is None or virtual is None or planned is None
                else (real, float(virtual[k]), float(planned.run.participation.share[k])),
                weight=None if k is None else float(used[i] / jobs[i]),
                planned_weight=None if k is None or weights is None else float(weights[k]),
                counted=float(used[i] / used.sum()),
                importance=None if k is None else float(importance[k]),
                faults=faults.get(i, {}),
            )
        )
    return tuple(out)
