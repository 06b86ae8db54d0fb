"""A study: a problem, client times, and a grid of schemes, weight rules, learning rates and seeds; `simulate` runs it.

    simulate → Study (what is asked) → units (what runs together) → unit runner (carries them out) → collect (history)

Runs that differ in numbers only are one unit and share their batches; seeds go together where they share a timeline
and the hardware gains from it. Several problems or client times, and rates that are searched, are several studies
(several.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fedtempo.clock.ticks import Exact, positive, text
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError, ResultsConflict, WorkersLost
from fedtempo.grid import Axis, Value, combinations, numbers
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import Scheme
from fedtempo.simulation.arguments import (
    ENGINES,
    EngineName,
    a_problem,
    by_name,
    client_times,
    engine_for,
    first_measure,
    fitting_local,
    fitting_options,
    gigabytes,
    grid_points,
    local_rule,
    one_of,
    rates_by_scheme,
    real,
    some_schemes,
    some_seeds,
    surrogate_scheme,
    weight_rules,
)
from fedtempo.simulation.checkpoint import WHOLE, Folder
from fedtempo.simulation.collect import collected
from fedtempo.simulation.compilation import keep_on_disk
from fedtempo.simulation.costs import check_memory, estimate, room_for_versions
from fedtempo.simulation.desk import clear_desks
from fedtempo.simulation.engine.devices import Devices, cores, groups_of
from fedtempo.simulation.engine.numerics import PRECISIONS, Precision
from fedtempo.simulation.engine.oracle import reference
from fedtempo.simulation.engine.program import grid_times
from fedtempo.simulation.executors import ExecutorRunner, Sender, workers_of
from fedtempo.simulation.history.history import History
from fedtempo.simulation.ledger import SAVE_SECONDS, Ledger, Progress
from fedtempo.simulation.live import Live, about_units, ending
from fedtempo.simulation.rate_search import at_rates, first_rates, searches
from fedtempo.simulation.several import run_several
from fedtempo.simulation.shares import Share
from fedtempo.simulation.telling import OnMeasure, listeners, listening, on_points
from fedtempo.simulation.unit_runner import Runner
from fedtempo.simulation.units import Units, splits_of, units_of
from fedtempo.training.solvers import LocalRule
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule

log = logging.getLogger(__name__)

Given = Problem | Callable[[int], Problem]
"""A problem, or a function that makes one for each seed."""


@dataclass(frozen=True)
class Study:
    """Everything that decides the results of a `simulate` call."""

    problem: Problem
    schemes: tuple[Scheme, ...]
    times: ClientTimes
    until: Fraction
    local: LocalRule
    rules: tuple[WeightRule, ...]
    step: str
    """The server's, which `server_lr` multiplies."""
    server_lr: Axis
    rates: Mapping[str, tuple[float, ...]]
    """By scheme, the local learning rates that it is run at; all of them for a scheme that is not named."""
    seeds: tuple[int, ...]
    points: int
    measure_from: Fraction
    dtype: Precision
    engine: EngineName
    surrogate: Scheme
    per_client: bool
    bound: float
    base_memory: float | None = None
    """Bytes of models that are in memory at once; None: all that there is room for. It changes no result."""
    unit_memory: float | None = None
    """Those of a unit; None: all."""

    @property
    def measured_at(self) -> tuple[Fraction, ...]:
        """The times at which runs are measured."""
        return tuple(grid_times(self.until, self.points, self.measure_from))

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The hyper-parameters, in the order of the history's dimensions."""
        return (*self.local.axes, self.server_lr)

    @cached_property
    def static(self) -> list[dict[str, Value]]:
        """Combinations of the axes that change what is compiled: local steps, batch size."""
        return combinations([axis for axis in self.axes if not axis.traced])

    @cached_property
    def traced(self) -> list[dict[str, Value]]:
        """Combinations of the axes that only change numbers."""
        return combinations([axis for axis in self.axes if axis.traced])

    def configuration(self) -> dict[str, Any]:
        """All that is needed to repeat the study, as JSON."""
        return {
            **({} if self.step == "paper" else {"step": self.step}),  # so that studies of 0.6 are known again
            "problem": self.problem.spec(),
            "fingerprint": self.problem.fingerprint(),
            "times": self.times.describe(),
            "law": self.times.law,
            "schemes": [self._spec(scheme) for scheme in self.schemes],
            "weights": [rule.identity for rule in self.rules],
            "until": text(self.until),
            "local": self.local.spec(),
            "server_lr": list(self.server_lr.values) if self.server_lr.listed else self.server_lr.values[0],
            **({"rates": {label: list(rates) for label, rates in self.rates.items()}} if self.rates else {}),
            "seeds": list(self.seeds),
            "points": self.points,
            **({"measure_from": text(self.measure_from)} if self.measure_from else {}),
            "dtype": self.dtype,
            "engine": self.engine,
            "surrogate": self.surrogate.spec(),
            "per_client": self.per_client,
            "bound": self.bound,
        }

    def _spec(self, scheme: Scheme) -> dict[str, object]:
        return {
            key: value for key, value in scheme.spec().items() if (key, value, self.step) != ("step", "paper", "paper")
        }


@dataclass(frozen=True)
class How:
    """What does not change the results of a study: where its units run, and who is told."""

    save_every: float = SAVE_SECONDS
    overwrite: bool = False
    on_progress: Callable[[Progress], None] | None = None
    on_history: Callable[[History], None] | None = None
    """Told the history so far whenever that is saved."""
    listeners: tuple[OnMeasure, ...] = ()
    where: Mapping[str, object] = field(default_factory=dict)
    """The names of the problem and of the client times, where the study is one of several."""
    sender: Sender | None = None
    """Gives units to workers; None: the threads of this process."""
    share: Share | None = None
    """Which units are run, where other jobs run the others."""


def simulate(
    problem: Given | Mapping[str, Given],
    schemes: Scheme | Sequence[Scheme],
    times: ClientTimes | Mapping[str, ClientTimes],
    *,
    until: Exact,
    local: LocalRule | None = None,
    weights: str | WeightRule | Sequence[str | WeightRule] = ("time-based",),
    step: str | None = None,
    server_lr: float | Sequence[float] = 1.0,
    rates: Mapping[str, Sequence[float]] | None = None,
    seeds: int | Iterable[int] = (0,),
    points: int = 101,
    measure_from: Exact = 0,
    dtype: Precision = "float32",
    engine: EngineName = "auto",
    surrogate: Scheme | None = None,
    per_client: bool = False,
    bound: float = 1e6,
    base_memory: float | None = None,
    checkpoint: str | Path | None = None,
    save_every: float = SAVE_SECONDS,
    overwrite: bool = False,
    description: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_measure: OnMeasure | Sequence[OnMeasure] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    units: str | None = None,
) -> History:
    """Train the problem under every scheme, weight rule, learning rate and seed; returns a history over virtual time.

    Any number may be a list, and each list becomes a dimension of the history. `until` is the virtual time at which all
    runs end; they are measured at `points` times from `measure_from` to `until`. `seeds` is how many, or a list of
    which.

    With `local=ft.LocalSGD(lr="auto", …)` the learning rates are searched: 0.01, 0.1 and 1, then decades more until the
    best of every scheme has worse ones on both sides, then 2 and 5 in between; all schemes are trained at all of them.
    `rates` says by scheme, named by its label, at which of given rates it is run, where it is not to be run at all.

    `problem` may be a function from a seed to a problem, as ``lambda seed: ft.problems.mnist(seed=seed)``: then every
    seed has its own data, and an interval over seeds is one over ways of dealing them.

    `times` and `problem` may be several by name, as ``{"F0": …, "F80": …}``: each becomes a dimension of the history
    over which `History.best` does not choose.

    `step` is "stable" unless said otherwise: the server's step is divided by 1 + the mean staleness of what it applies,
    so that a local learning rate that is good for FedAvg is good for every scheme. "paper" is the raw step of the
    theory, "proven" the largest for which stability is proved. A study that was begun before there were steps goes on
    with "paper". `server_lr` multiplies the step.

    `surrogate` names the scheme whose shares of rounds weight the surrogate loss (asynchronous FedAvg). `per_client`
    also keeps the loss of every client. A run whose loss is not a number, or beyond `bound` times max(1, its first
    loss), counts as diverged; the others go on.

    `base_memory` is how many gigabytes of models from which jobs start are in memory at once; the others wait in a file
    where TMPDIR says, to the same bits. Without it all are in memory, as long as this machine has so much.

    `checkpoint` is a folder, saved to every `save_every` seconds: a study that was stopped there goes on, to the same
    bits on a processor, with the engine that it was begun with unless another is named; `overwrite` replaces a study
    that is there. Ctrl-C stops it within a second or so, saved. A JSON `description` is kept in the folder.
    `on_progress` is told several times a second how far it is. `on_measure(run, time, values)`, a function or several,
    is told every measured point of every run once, those of earlier calls first; `ft.track` has some for other tools.

    Units of the study go through the cores of this machine in this process. `workers` is in how many processes
    instead, or `executor` any executor of `concurrent.futures`, as ``client.get_executor()`` of Dask: the bits are the
    same. `units="3/8"` runs an eighth of them, as one of eight jobs that share the checkpoint folder. docs/scale.md is
    the guide.

    Example:
        >>> problem = ft.problems.quadratics(4, heterogeneity=2)
        >>> times = ft.FixedTimes([4, 2, 1, 1])
        >>> schemes = [ft.FedAvg(), ft.FedFix(1)]
        >>> history = ft.simulate(problem, schemes, times, until=20, local=ft.LocalSGD(lr=[0.1, 0.3]), seeds=[0, 1])
        >>> print(history.best())
        quadratics, 4 clients: 2 schemes × 1 weight rule × 2 seeds, virtual time 0 to 20, events engine, float32
        <BLANKLINE>
        Every scheme at its best rates
        scheme     weights     local_lr   loss  spread  to 1.16  rounds  updates
        FedAvg     time-based       0.3  1.141   0.517       16       5       20
        FedFix(1)  time-based       0.3  1.065   0.458        8      20       55
        <BLANKLINE>
        loss: the federated loss, averaged over the last tenth of the time, ± its deviation over 2 seeds; spread:
        its deviation over clients; to 1.16: when the mean over seeds comes to that loss, the target (where FedAvg
        with time-based weights has gone 95% of its way).
        With time-based weights FedFix(1) reaches a federated loss of 1.16 first, at time 8: 2 times sooner than
        FedAvg, at 16.
    """
    keep_on_disk()
    told = listeners(on_measure)
    share = None if units is None else Share.of_text(units)
    measures = WHOLE if share is None else share.file
    folder = None if checkpoint is None else Folder(Path(checkpoint), description, measures=measures)
    there = folder if folder is not None and not overwrite and folder.holds_a_study() else None
    work, precision = local_rule(local), one_of("dtype", dtype, PRECISIONS)
    chosen = _engine(engine, there)
    step, some = _step(step, there), some_seeds(seeds, None if there is None else there.seeds())
    save_every = real("save_every", save_every, above=False)
    if share is not None:
        _check_share(share, folder, overwrite, searches(work))
    if searches(work) and rates is not None:
        raise InputError("rates: lr='auto' finds the rates itself; leave rates out, or give lr as a list")
    tried = at_rates(work, first_rates(work)) if searches(work) else work
    problems = {
        name: engine_for(chosen, a_problem(one, some), tried, precision)
        for name, one in by_name("problem", problem).items()
    }

    def made(named: str | None, times: ClientTimes, local: LocalRule) -> Study:
        called, problem = problems[named]
        if base_memory is not None and (chosen, called) == ("auto", "waves"):
            called = "events"
        return study_of(
            problem,
            schemes,
            times,
            until=until,
            local=local,
            weights=weights,
            step=step,
            server_lr=server_lr,
            rates=rates,
            seeds=some,
            points=points,
            measure_from=measure_from,
            dtype=precision,
            engine=called,
            surrogate=surrogate,
            per_client=per_client,
            bound=bound,
            base_memory=base_memory,
        )

    studies = {
        (named, setting): partial(made, named, given)
        for named in problems
        for setting, given in by_name("times", times).items()
    }
    _check_folder(folder, problems.values())
    with workers_of(executor, workers) as sender, listening(told):
        how = How(
            save_every=save_every,
            overwrite=overwrite,
            on_progress=on_progress,
            listeners=told,
            sender=sender,
            share=share,
        )
        if list(studies) == [(None, None)] and not searches(work):
            return run_study(studies[None, None](work), folder, how)
        return run_several(studies, work, folder, run_study, how)


def study_of(
    problem: Problem,
    schemes: Scheme | Sequence[Scheme],
    times: ClientTimes,
    *,
    until: Exact,
    local: LocalRule,
    seeds: tuple[int, ...],
    engine: EngineName,
    weights: str | WeightRule | Sequence[str | WeightRule] = ("time-based",),
    step: str = "stable",
    server_lr: float | Sequence[float] = 1.0,
    rates: Mapping[str, Sequence[float]] | None = None,
    points: int = 101,
    measure_from: Exact = 0,
    dtype: Precision = "float32",
    surrogate: Scheme | None = None,
    per_client: bool = False,
    bound: float = 1e6,
    base_memory: float | None = None,
) -> Study:
    """A study of one problem and one setting of client times, each argument checked; as `simulate` has them."""
    clients = problem.num_clients
    return Study(
        problem=problem,
        schemes=fitting_options(some_schemes(schemes, clients), local, clients),
        times=client_times(times, clients),
        until=positive(until, "until"),
        local=fitting_local(local, engine),
        rules=weight_rules(weights),
        step=step,
        server_lr=numbers("server_lr", server_lr),
        rates=rates_by_scheme(rates, schemes, local),
        seeds=seeds,
        points=grid_points(points),
        measure_from=first_measure(measure_from, until),
        dtype=dtype,
        engine=engine,
        surrogate=surrogate_scheme(surrogate, clients),
        per_client=bool(per_client),
        bound=real("bound", bound),
        base_memory=gigabytes("base_memory", base_memory, engine),
    )


def _check_folder(folder: Folder | None, problems: Iterable[tuple[EngineName, Problem]]) -> None:
    if folder is not None and any(engine == "oracle" for engine, _ in problems):
        raise InputError("checkpoint: the oracle saves none, since it is for short runs; choose another engine")


def _check_share(share: Share, folder: Folder | None, overwrite: bool, searching: bool) -> None:
    if folder is None:
        raise InputError(f"units: job {share} leaves its part in a folder that all jobs share; give checkpoint=")
    if overwrite:
        raise InputError(f"units: job {share} must not remove what others have done; remove the folder, or leave it")
    if searching:
        raise InputError(
            f"units: which learning rates come next depends on what all jobs find, and job {share} sees its own; give "
            "the rates as a list, or use workers or an executor"
        )


def _step(given: str | None, there: Folder | None) -> str:
    """The step that is asked for, else that of the study that is there, else the stable one."""
    if given is not None:
        return check_step(given)
    return "stable" if there is None else there.step()


def _engine(given: EngineName, there: Folder | None) -> EngineName:
    """The engine that is asked for; where that is left open, that of the study that is there."""
    begun = there.engine() if given == "auto" and there is not None else None
    return next((name for name in ENGINES if name == begun), given)


def run_study(study: Study, folder: Folder | None = None, how: How | None = None) -> History:
    """Carry out a study, or the rest of one; what is there when it is interrupted is kept in the folder."""
    how = how or How()
    layout = {"blocks": splits_of(study, cores())}  # as the folder names it
    if folder is not None and not (how.overwrite and folder.holds_a_study()):
        layout = folder.check(study.configuration()) or layout
    units = units_of(study, layout["blocks"])
    if study.engine == "oracle":
        return _by_oracle(study, units)
    groups = groups_of(study, units.machines, len(units.specs))
    threads = len(groups) if study.engine in ("waves", "torch") else min(cores(), len(units.specs))
    at_once = threads if how.sender is None else min(how.sender.workers or 1, len(units.specs))
    needed = estimate(units.specs, units.machines, at_once)
    room = study.base_memory
    if room is None and study.engine in ("events", "torch"):
        room = room_for_versions(needed, units.specs, units.machines, at_once)
        if room is not None:
            log.warning("%s is too much for this machine: models that are needed last wait in a file", needed)
    if room is not None:
        study = replace(study, unit_memory=room / at_once)
        units = units_of(study, layout["blocks"])
        needed = estimate(units.specs, units.machines, at_once)
    log.info("%d runs in %d units, about %s", units.num_runs, len(units.specs), needed)
    check_memory(needed)
    if folder is not None:
        clear_desks(folder.path, folder.history.stem)
        if how.overwrite:
            folder.clear()
        folder.begin(study.configuration(), layout)
        if folder.is_shared and (first := folder.check(study.configuration())) not in (None, layout):
            layout = first or layout  # of the job that has begun
            units = units_of(study, layout["blocks"])
    of = len(units.specs)
    if how.share is not None:
        units = how.share.taken(units)

    def so_far() -> History:
        compiling = runner.compile_seconds
        seconds = {"run_seconds": max(0.0, ledger.seconds - compiling), "compile_seconds": compiling}
        found = collected(study, units, ledger.outcomes, seconds)
        if folder is not None:
            found.save(folder.history)
            if how.on_history is not None:
                how.on_history(found)
        return found

    live = None if folder is None else Live(folder.live)
    ledger = Ledger(
        units,
        folder,
        memory=needed.total,
        save_every=how.save_every,
        on_progress=how.on_progress,
        on_points=on_points(how.listeners, study, units, how.where),
        on_save=so_far,
        live=live,
    )
    ledger.recall()
    if live is not None:
        job = "" if how.share is None else str(how.share)
        live.begin({"done": ledger.progress().done, **about_units(study, units, how.where, of, job)})
    runner: Runner | ExecutorRunner
    with ending(live, ledger):
        if how.sender is None:
            devices = Devices(study, units.machines, groups)
            runner = Runner(ledger, study.dtype, devices, threads=None if study.engine == "torch" else threads)
        else:
            runner = ExecutorRunner(ledger, study, layout["blocks"], how.sender)
        try:
            runner.run()
        except (KeyboardInterrupt, WorkersLost):
            so_far()
            raise
        except ResultsConflict:  # what lies there is somebody else's
            raise
        except Exception:
            with suppress(Exception):  # the first thing that went wrong is said
                so_far()
            raise
        return so_far()


def _by_oracle(study: Study, units: Units) -> History:
    """By the loop that reads like the paper."""
    begin = time.perf_counter()
    outcomes = [
        reference(
            spec,
            study.problem,
            study.local,
            study.static[spec.unit.static],
            study.schemes[spec.unit.scheme].options,
            study.dtype,
        )
        for spec in units.specs
    ]
    return collected(study, units, outcomes, {"run_seconds": time.perf_counter() - begin, "compile_seconds": 0.0})
