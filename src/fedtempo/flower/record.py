"""What really happened, in the simulator's own format: a timeline, the weights that were used, the clients' times.

The timeline is in nanoseconds; ω_i(n) includes clipping, so that θ^{n+1} = θ^n + η_g Σ ω_i(n) Δ_i holds as it stands,
or what the scheme's server rule makes of it. Times are rounded up to whole milliseconds.

`Record.replay_events` asks the waiting rule again; `replay` trains the model again by the oracle: Algorithm 1 on the
recorded timeline, with the recorded weights and server rule, going back where the guard did. A folder from somebody
else runs no code: what its scheme names is imported only if the user names it too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedtempo import compat
from fedtempo.clock.timeline import I64, Timeline
from fedtempo.clock.times import Floats
from fedtempo.clock.trace import TraceTimes
from fedtempo.errors import InputError
from fedtempo.flower.clock import NANOSECOND
from fedtempo.flower.courses import Measures
from fedtempo.flower.faults import Fault
from fedtempo.flower.journal import Journal, LoggedEvent, LoggedMeasure, Recovery, replay_events
from fedtempo.flower.result import Result, RoundRecord
from fedtempo.flower.run_folder import RunFolder
from fedtempo.registry import NotImported, only_named
from fedtempo.schemes.named import OPTIONS, Scheme
from fedtempo.schemes.options import SchemeOptions
from fedtempo.schemes.table import SCHEMES, only_named_scheme, registry_of
from fedtempo.schemes.table import scheme_of as read_scheme

if TYPE_CHECKING:
    from fedtempo.grid import Value
    from fedtempo.problems.problem import Problem
    from fedtempo.report.browser.document import WebPage
    from fedtempo.simulation.engine.numerics import Precision
    from fedtempo.training.server_rules import Server
    from fedtempo.training.solvers import LocalOptax
    from fedtempo.weighting.weights import Weights

log = logging.getLogger("flwr")

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
    """A run as it happened. Client i is `names[i]`.

    `recorded` makes it, of a result or of a checkpoint folder.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import recorded
        >>> record = recorded(simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=8))
        >>> record.scheme, record.timeline.num_rounds, record.names
        (FedFix(1), 8, ('node 0', 'node 1', 'node 2'))
        >>> record.replay_events().equals(record.timeline)  # the rule makes the same rounds again
        True
    """

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
    measured: Measures = field(default_factory=dict)
    """Measures of the models: "server", "evaluate" and "train" (by clients), each by round."""
    step: str = "paper"
    """The server's, by name; the weights have it in them."""
    unit: Fraction = NANOSECOND
    """The timeline's tick: nanoseconds, or in virtual time what is exact."""
    recoveries: tuple[Recovery, ...] = ()
    """When the guard went back to an earlier version."""

    @property
    def ends(self) -> I64:
        """[rounds] when each ended, in nanoseconds, rounded up."""
        scale = self.unit / NANOSECOND
        ticks = self.timeline.ends.tolist()
        return np.array([-(-end * scale.numerator // scale.denominator) for end in ticks], dtype=np.int64)

    @property
    def round_seconds(self) -> dict[int, float]:
        """When each model was there, by the number under which it is measured: 0, then the rounds with updates."""
        return dict(enumerate([0.0, *(self.ends[self._taking] / 1e9).tolist()]))

    @property
    def round_updates(self) -> dict[int, int]:
        """By the same numbers, how many updates rounds had taken."""
        return dict(enumerate([0, *self.timeline.offsets[1:][self._taking].tolist()]))

    def to_html(self, path: str | Path | None = None) -> WebPage:
        """The run beside its simulation and its plan as a page for a browser; with `path` also a file."""
        from fedtempo.flower.comparison import compared
        from fedtempo.flower.run_document import run_document

        page = run_document(compared(self))
        if path is not None:
            page.save(path)
        return page

    @property
    def _taking(self) -> np.ndarray:
        """Which rounds took updates."""
        return np.diff(self.timeline.offsets) > 0

    @property
    def told(self) -> tuple[LoggedEvent | LoggedMeasure, ...]:
        """The old name of `events`."""
        compat.warn("Record.told", "Record.events")
        return self.events

    def retold(self) -> Timeline:
        """The old name of `replay_events`."""
        compat.warn("Record.retold", "Record.replay_events")
        return self.replay_events()

    def replay_events(self) -> Timeline:
        """The rounds that the waiting rule makes when the same happens again."""
        rule, known = self.scheme.waiting, self.known
        rounds = replay_events(rule, self.first, self.events, known=known, seed=self.seed)[: self.timeline.num_rounds]
        jobs = [job for closed in rounds for job in closed.jobs]
        return Timeline(
            unit=self.unit,
            num_clients=len(self.names),
            ends=in_units([closed.end for closed in rounds], self.unit),
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


def recorded(source: Result | str | Path, *, scheme: Scheme | str | None = None, trust: bool = False) -> Record:
    """The record of a result, or of a checkpoint folder.

    A folder may name a scheme or a server optimizer of one's own, as "my_module:MyRule". Nothing is imported for that:
    what is not loaded yet is only a name in the record, which prints, and cannot be replayed. Give the `scheme` (or its
    name), import its module before, or `trust` the folder: then what it names is imported.

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import recorded
        >>> result = simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=8)
        >>> record = recorded(result)  # or, of a checkpoint folder: recorded("run/")
        >>> record.times.mean_time, int(record.timeline.staleness.max())
        (array([4., 2., 1.]), 3)
    """
    if isinstance(source, Result):
        if source.journal is None:
            raise InputError("this result has no journal; pass one that a strategy of fedtempo.flower returned")
        return _of(source.journal)
    folder = RunFolder(source)
    state, _, lines = folder.read()
    if folder.fallen_back:
        log.warning("%s", folder.fallen_back)
    try:
        return _of_folder(folder, state, lines, scheme, trust)
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _damaged(folder, error) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise _damaged(folder, error) from None


def _damaged(folder: RunFolder, error: Exception) -> InputError:
    return InputError(
        f"{folder.path}: its files are not the record of a run ({type(error).__name__}: {error}); restore them from a "
        "copy, or choose another folder"
    )


def _of_folder(
    folder: RunFolder, state: Mapping[str, Any], lines: list[str], scheme: Scheme | str | None, trust: bool
) -> Record:
    spec = state["about"]["scheme"]
    if trust:
        SCHEMES.load({key: value for key, value in spec.items() if key not in OPTIONS})
        if "server" in spec:
            registry_of("server").load(spec["server"])
    made = scheme_of(spec) if scheme is None else _given_scheme(scheme, spec)
    journal = Journal(scheme=made, server_lr=state["server_lr"], on_disk=False)
    journal.read(lines, str(folder.path / "rounds.jsonl"))
    journal.names, journal.importance = tuple(state["names"]), tuple(state["importance"])
    journal.step = str(state["about"].get("step", "paper"))
    return _of(journal)


def _of(journal: Journal) -> Record:
    rounds = journal.rounds
    if not any(closed.updates for closed in rounds):
        raise InputError("no round took an update, so there is nothing to record; train for longer")
    scheme = journal.scheme if isinstance(journal.scheme, Scheme) else scheme_of(journal.scheme)
    unit = journal.unit or NANOSECOND
    line = _timeline(rounds, len(journal.names), unit, draws=scheme.waiting.counts_draws)
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
        measured={
            "server": journal.measured("server"),
            "evaluate": journal.measured("evaluate"),
            "train": journal.measured("train"),
        },
        step=journal.step,
        unit=unit,
        recoveries=tuple(journal.recoveries),
    )


def in_units(times: Sequence[int], unit: Fraction) -> I64:
    """Nanoseconds, rounded up, as the whole ticks that they come from."""
    scale = NANOSECOND / unit
    return np.array([time * scale.numerator // scale.denominator for time in times], dtype=np.int64)


def _timeline(rounds: list[RoundRecord], clients: int, unit: Fraction, *, draws: bool) -> Timeline:
    updates = [update for closed in rounds for update in closed.updates]
    return Timeline(
        unit=unit,
        num_clients=clients,
        ends=in_units([closed.end for closed in rounds], unit),
        offsets=np.cumsum([0, *(len(closed.updates) for closed in rounds)], dtype=np.int64),
        client=np.array([update.client for update in updates], dtype=np.int32),
        base=np.array([update.base for update in updates], dtype=np.int32),
        job=np.array([update.job for update in updates], dtype=np.int32),
        draws=np.array([update.draws for update in updates], dtype=np.int32) if draws else None,
    )


def scheme_of(spec: Mapping[str, Any]) -> Scheme:
    """The scheme that a run was made with, and its server rule; what would have to be imported is only named."""
    given = {key: value for key, value in spec.items() if key not in OPTIONS or key == "label"}
    with only_named():
        try:
            scheme = read_scheme(given)
        except NotImported:
            scheme = only_named_scheme(given)
        return scheme if "server" not in spec else scheme.using(server=_server(spec["server"]))


def _server(spec: Mapping[str, Any]) -> Server:
    from fedtempo.training.server_rules import SERVERS, NamedServer

    try:
        return SERVERS.from_spec(spec)
    except NotImported:
        return NamedServer(spec)


def _given_scheme(given: Scheme | str, spec: Mapping[str, Any]) -> Scheme:
    """The scheme that the user gives for a record, if it is the recorded one."""
    scheme = read_scheme(given)
    options = {key: spec[key] for key in OPTIONS if key in spec and key != "label"}
    if options and scheme.options.plain:
        scheme = scheme.using(server=_server(spec["server"])) if "server" in spec else scheme
    other = json.loads(json.dumps(scheme.spec()))
    if {**other, "label": None} != {**spec, "label": None}:
        raise InputError(
            f"scheme: the record is of {_words(spec)}, but {_words(other)} was given; give the scheme of the record"
        )
    return scheme


def _words(spec: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in spec.items() if key != "label"}, ensure_ascii=False)


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

    Example:
        In the app of the example of `simulate_app`:

        >>> from fedtempo.flower import recorded, replay
        >>> record = recorded(simulate_app(server_app, client_app, times=ft.FixedTimes([4, 2, 1]), until=8))
        >>> problem = ft.problems.quadratics(3)  # trained as that run would have trained it
        >>> theta = replay(problem, record, ft.LocalSGD(lr=0.3))
        >>> [round(float(problem.client_losses(model).mean()), 3) for model in (np.zeros(20), theta)]
        [0.606, 0.35]
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
            raise InputError(f"local: {axis.name} has {len(axis.values)} values; give one, as the run had")
        hyper[axis.name] = axis.values[0]
    from fedtempo.simulation.engine.oracle import (
        Return,
        oracle,
    )  # JAX, which a client that imports fedtempo.flower need not load
    from fedtempo.training.robust_rules import RobustRule
    from fedtempo.training.server_rules import MixModels

    server = run.scheme.options.server
    in_order = [clients[record.names[i]] for i in record.timeline.client.tolist()]
    if isinstance(server, MixModels | RobustRule) and in_order != run.timeline.client.tolist():
        raise InputError(
            f"clients: {server.label} depends on the order of a round's updates, which these numbers change; number "
            "the clients in the record's order"
        )
    halves = server is not None and not isinstance(server, MixModels)  # the rate; else the weights have it
    returns = {
        to.number - 1: Return(to.version, run.server_lr * (to.factor if halves else 1.0)) for to in run.recoveries
    }
    model = None
    weights = cast("Weights", run.weights)
    options = SchemeOptions(server=server)
    shares = run.importance if isinstance(server, RobustRule) else None
    run_again = oracle(
        problem,
        run.timeline,
        weights,
        local,
        hyper,
        options=options,
        shares=shares,
        seed=seed,
        dtype=dtype,
        returns=returns,
    )
    for closed in run_again:
        model = closed.model
    return model
