"""What really happened, in the simulator's own format: a timeline, the weights that were used, the clients' times.

The timeline is in nanoseconds; ω_i(n) includes clipping, so that θ^{n+1} = θ^n + η_g Σ ω_i(n) Δ_i holds as it stands,
or what the scheme's server rule makes of it. Times are rounded up to whole milliseconds.

`Record.replay_events` asks the waiting rule again; `replay` trains the model again by the oracle: Algorithm 1 on the
recorded timeline, with the recorded weights and server rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.clock.trace import TraceTimes
from fedtempo.errors import InputError
from fedtempo.flower.clock import NANOSECOND
from fedtempo.flower.faults import Fault
from fedtempo.flower.journal import Journal, LoggedEvent, LoggedMeasure, replay_events
from fedtempo.flower.result import Result, RoundRecord
from fedtempo.flower.state import RunFolder
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.schemes.options import SchemeOptions

if TYPE_CHECKING:
    from fedtempo.grid import Value
    from fedtempo.problems.problem import Problem
    from fedtempo.simulation.engine.numerics import Precision
    from fedtempo.training.server_rules import MixModels, ServerOptimizer
    from fedtempo.training.solvers import LocalOptax
    from fedtempo.weighting.weights import Weights

_MILLISECOND = 10**6


@dataclass(frozen=True, eq=False)
class RecordedWeights:
    """The weights that were used, update by update, as the engines ask for them."""

    values: Floats
    """[updates] ω_i(n)."""
    offsets: I64
    """[rounds + 1] where each round's updates begin."""

    def applied(self, line: Timeline) -> Floats:
        """ω_i(n) of the updates of the recorded timeline, or of a slice of it."""
        first, last = line.first_round, line.first_round + line.num_rounds
        if last >= len(self.offsets) or not np.array_equal(
            line.offsets, self.offsets[first : last + 1] - self.offsets[first]
        ):
            raise InputError("these weights belong to the recorded timeline; give that, or a slice of it")
        return self.values[int(self.offsets[first]) : int(self.offsets[last])]


@dataclass(frozen=True, eq=False)
class Record:
    """A run as it happened. Client i is `names[i]`."""

    scheme: Scheme
    timeline: Timeline
    weights: RecordedWeights
    times: TraceTimes
    """Durations of the jobs that rounds have taken, of the clients that have any."""
    importance: tuple[float, ...]
    names: tuple[str, ...]
    server_lr: float
    first: tuple[int, ...]
    """The clients that were there at the start."""
    events: tuple[LoggedEvent | LoggedMeasure, ...]
    """What the server heard, in order."""
    sent: I64
    """[updates] when each job that a round has taken was sent, in nanoseconds."""
    arrived: I64
    """[updates] when its update arrived."""
    bytes_up: I64
    """[updates] bytes of its arrays as Flower carried them; 0 where an older version did not count them."""
    faults: tuple[Fault, ...]
    """What went wrong, in order."""
    known: tuple[LoggedMeasure, ...] = ()
    """What the server knew of the clients at the start, where the rule needs that."""
    seed: int = 0
    """Of the rule's draws."""

    @property
    def told(self) -> tuple[LoggedEvent | LoggedMeasure, ...]:
        """The old name of `events`."""
        warnings.warn("Record.told is called Record.events", FutureWarning, stacklevel=2)
        return self.events

    def retold(self) -> Timeline:
        """The old name of `replay_events`."""
        warnings.warn("Record.retold() is called Record.replay_events()", FutureWarning, stacklevel=2)
        return self.replay_events()

    def replay_events(self) -> Timeline:
        """The rounds that the waiting rule makes when the same happens again."""
        rule, known = self.scheme.waiting, self.known
        rounds = replay_events(rule, self.first, self.events, known=known, seed=self.seed)[: self.timeline.num_rounds]
        jobs = [job for closed in rounds for job in closed.jobs]
        return Timeline(
            unit=NANOSECOND,
            num_clients=len(self.names),
            ends=np.array([closed.end for closed in rounds], dtype=np.int64),
            offsets=np.cumsum([0, *(len(closed.jobs) for closed in rounds)], dtype=np.int64),
            client=np.array([job.client for job in jobs], dtype=np.int32),
            base=np.array([job.base for job in jobs], dtype=np.int32),
            job=np.array([job.number for job in jobs], dtype=np.int32),
            draws=np.array([job.draws for job in jobs], dtype=np.int32) if rule.counts_draws else None,
        )

    def numbered(self, numbers: Mapping[str, int]) -> Record:
        """The same run with client numbers by identity, such as those of a problem's clients.

        Clients that took part must be named, each by a number of its own.
        """
        active = np.unique(self.timeline.client).tolist()
        missing = [self.names[i] for i in active if self.names[i] not in numbers]
        if missing:
            raise InputError(f"clients: {', '.join(missing[:5])} took part but have no number; name them")
        new = np.full(len(self.names), -1, dtype=np.int64)
        for i in active:
            new[i] = numbers[self.names[i]]
        if len(set(new[active].tolist())) < len(active):
            raise InputError("clients: two that took part have the same number; give each its own")
        line = self.timeline
        client = new[line.client].astype(np.int32)
        order = np.lexsort((client, line.round_of_update))
        count = int(max(numbers.values())) + 1
        shown, importance = [""] * count, [0.0] * count
        for name, number in numbers.items():
            shown[number] = name
        for i in active:
            importance[new[i]] = self.importance[i]
        return replace(
            self,
            timeline=replace(
                line,
                num_clients=count,
                client=client[order],
                base=line.base[order],
                job=line.job[order],
                draws=None if line.draws is None else line.draws[order],
            ),
            weights=RecordedWeights(self.weights.values[order], self.weights.offsets),
            names=tuple(shown),
            importance=tuple(importance),
            events=(),
            known=(),
            first=(),
            sent=self.sent[order],
            arrived=self.arrived[order],
            bytes_up=self.bytes_up[order],
            faults=(),
        )


def recorded(source: Result | str | Path) -> Record:
    """The record of a result, or of a checkpoint folder."""
    if isinstance(source, Result):
        if source.journal is None:
            raise InputError("this result has no journal; pass one that a strategy of fedtempo.flower gave")
        return _of(source.journal)
    state, _, lines = RunFolder(source).read()
    journal = Journal(scheme=state["about"]["scheme"], server_lr=state["server_lr"], on_disk=False)
    journal.read(lines)
    journal.names, journal.importance = tuple(state["names"]), tuple(state["importance"])
    return _of(journal)


def _of(journal: Journal) -> Record:
    rounds = journal.rounds
    if not any(closed.updates for closed in rounds):
        raise InputError("no round took an update, so there is nothing to record; train for longer")
    scheme = journal.scheme if isinstance(journal.scheme, Scheme) else scheme_of(journal.scheme)
    line = _timeline(rounds, len(journal.names), draws=scheme.waiting.counts_draws)
    line.validate()
    updates = [update for closed in rounds for update in closed.updates]
    rows: dict[int, list[Fraction]] = {}
    for update in updates:
        lasted = -(-(update.arrived - update.sent) // _MILLISECOND)
        rows.setdefault(update.client, []).append(Fraction(max(lasted, 1), 1000))
    active = sorted(rows)
    return Record(
        scheme=scheme,
        timeline=line,
        weights=RecordedWeights(np.array([update.weight * update.clipped for update in updates]), line.offsets),
        times=TraceTimes([rows[i] for i in active], names=[journal.names[i] for i in active]),
        importance=journal.importance,
        names=journal.names,
        server_lr=journal.server_lr,
        first=journal.first,
        events=tuple(journal.events),
        sent=np.array([update.sent for update in updates], dtype=np.int64),
        arrived=np.array([update.arrived for update in updates], dtype=np.int64),
        bytes_up=np.array([update.bytes_up for update in updates], dtype=np.int64),
        faults=tuple(journal.faults),
        known=journal.known,
        seed=journal.seed,
    )


def _timeline(rounds: list[RoundRecord], clients: int, *, draws: bool) -> Timeline:
    updates = [update for closed in rounds for update in closed.updates]
    return Timeline(
        unit=NANOSECOND,
        num_clients=clients,
        ends=np.array([closed.end for closed in rounds], dtype=np.int64),
        offsets=np.cumsum([0, *(len(closed.updates) for closed in rounds)], dtype=np.int64),
        client=np.array([update.client for update in updates], dtype=np.int32),
        base=np.array([update.base for update in updates], dtype=np.int32),
        job=np.array([update.job for update in updates], dtype=np.int32),
        draws=np.array([update.draws for update in updates], dtype=np.int32) if draws else None,
    )


def scheme_of(spec: Mapping[str, Any]) -> Scheme:
    """The scheme that a run was made with, and its server rule."""
    scheme = _plain(spec)
    return scheme if "server" not in spec else scheme.using(server=_server(spec["server"]))


def _server(spec: Mapping[str, Any]) -> ServerOptimizer | MixModels:
    from fedtempo.training.server_rules import FedAdaGrad, FedAdam, FedYogi, MixModels, SlowMo

    rules: dict[str, Callable[..., ServerOptimizer | MixModels]] = {
        "slowmo": SlowMo,
        "fedadam": FedAdam,
        "fedyogi": FedYogi,
        "fedadagrad": FedAdaGrad,
        "mixing": MixModels,
    }
    name, numbers = spec.get("name"), {key: value for key, value in spec.items() if key != "name"}
    if name not in rules:
        raise InputError(f"server rule {name!r} is not one of {', '.join(rules)}")
    try:
        return rules[name](**numbers)
    except TypeError:
        raise InputError(f"server rule {name}: {', '.join(numbers)} are not the numbers that it has here") from None


def _plain(spec: Mapping[str, Any]) -> Scheme:
    match spec:
        case {"name": "fedavg"}:
            return FedAvg()
        case {"name": "async"}:
            return AsyncFedAvg()
        case {"name": "fedfix", "wait": wait}:
            return FedFix(cast(str, wait))
        case {"name": "fedbuff", "size": size}:
            return FedBuff(cast(int, size))
    raise InputError(f"scheme {spec.get('name')!r} is not one of fedavg, async, fedfix, fedbuff")


def replay(
    problem: Problem,
    record: Record,
    local: LocalOptax,
    *,
    clients: Mapping[str, int] | None = None,
    seed: int = 0,
    dtype: Precision = "float64",
) -> Any:
    """The parameters after the last recorded round, when clients train `problem` by `local` on the simulator's batches.

    `clients` numbers identities as the problem does; without it, identities that are whole numbers are those numbers,
    and others are numbered as the record numbers them. Batches are those of (client, job) under `seed`.
    """
    if clients is None:
        active = [(record.names[i], i) for i in sorted(set(record.timeline.client.tolist()))]
        whole = all(name.isdecimal() for name, _ in active)
        clients = {name: int(name) if whole else i for name, i in active}
    run = record.numbered(clients)
    if run.timeline.num_clients > problem.num_clients:
        raise InputError(
            f"clients: the run has clients up to number {run.timeline.num_clients - 1}, the problem has "
            f"{problem.num_clients} of them; give clients= by identity"
        )
    hyper: dict[str, Value] = {"server_lr": run.server_lr}
    for axis in local.axes:
        if len(axis.values) > 1:
            raise InputError(f"local: {axis.name} has {len(axis.values)} values; a run had one")
        hyper[axis.name] = axis.values[0]
    from fedtempo.simulation.engine.oracle import (
        oracle,
    )  # JAX, which a client that imports fedtempo.flower need not load
    from fedtempo.training.server_rules import MixModels

    server = run.scheme.options.server
    in_order = [clients[record.names[i]] for i in record.timeline.client.tolist()]
    if isinstance(server, MixModels) and in_order != run.timeline.client.tolist():
        raise InputError(
            "clients: mixing goes by the order of a round's updates, and by these numbers it would be another; number "
            "the clients in the record's order"
        )
    model = None
    weights = cast("Weights", run.weights)
    parts = SchemeOptions(server=server)
    for closed in oracle(problem, run.timeline, weights, local, hyper, parts=parts, seed=seed, dtype=dtype):
        model = closed.model
    return model
