"""A study: a problem, client times, and a grid of schemes, weight rules, learning rates and seeds; `simulate` runs it.

Runs that differ in numbers only go through the engine together and share their batches; seeds go together where they
share a timeline and the hardware gains from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.ticks import Exact, positive, text
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.grid import RATE, Axis, Value, combinations, numbers
from fedtempo.problems.problem import Problem
from fedtempo.schemes.compensation import Compensated, compensated
from fedtempo.schemes.named import Scheme
from fedtempo.schemes.timelines import expected_weights, weights_of
from fedtempo.simulation.arguments import (
    EngineName,
    a_problem,
    client_times,
    engine_name,
    first_measure,
    fitting_parts,
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
from fedtempo.simulation.checkpoint import Folder
from fedtempo.simulation.collect import collected
from fedtempo.simulation.costs import Traffic, check_memory, estimate, traffic_of
from fedtempo.simulation.engine.machine import EventMachine, Machine, OnDevice, WaveMachine
from fedtempo.simulation.engine.measures import Shares
from fedtempo.simulation.engine.numerics import PRECISIONS, Precision
from fedtempo.simulation.engine.oracle import reference
from fedtempo.simulation.engine.session import UnitSpec
from fedtempo.simulation.history.history import History
from fedtempo.simulation.unit_runner import SAVE_SECONDS, Progress, Runner, cores
from fedtempo.simulation.units import blocks_of, kind_of, kinds_of, plans_of, task_of
from fedtempo.training.solvers import LocalRule
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """Everything that decides the results of a `simulate` call."""

    problem: Problem
    schemes: tuple[Scheme, ...]
    times: ClientTimes
    until: Fraction
    local: LocalRule
    rules: tuple[WeightRule, ...]
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

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The hyper-parameters, in the order of the history's dimensions."""
        return (*self.local.axes, self.server_lr)

    @cached_property
    def shapes(self) -> list[dict[str, Value]]:
        """Combinations of the axes that change the shape of the work."""
        return combinations([axis for axis in self.axes if not axis.traced])

    @cached_property
    def traced(self) -> list[dict[str, Value]]:
        """Combinations of the axes that only change numbers."""
        return combinations([axis for axis in self.axes if axis.traced])

    def traced_of(self, scheme: Scheme) -> list[int]:
        """Which of the traced combinations a scheme is run at."""
        rates = self.rates.get(scheme.label)
        return [k for k, numbers in enumerate(self.traced) if rates is None or numbers.get(RATE) in rates]

    @property
    def num_runs(self) -> int:
        """All runs."""
        each = sum(len(self.rules_of(scheme)) * len(self.traced_of(scheme)) for scheme in self.schemes)
        return len(self.seeds) * len(self.shapes) * each

    def rules_of(self, scheme: Scheme) -> range:
        """Which of the weight rules a scheme is run with: the first alone, in whose place its own is, if it has one."""
        return range(1 if scheme.options.own_weights is not None else len(self.rules))

    def config(self, scheme: Scheme, seed: int) -> ClockConfig:
        """The clock of a scheme under a seed."""
        return ClockConfig.of(scheme.waiting, self.times, self.problem.importance.values, seed)

    def shares_seeds(self, scheme: Scheme) -> bool:
        """Whether all seeds have one timeline."""
        return not (self.times.random or scheme.waiting.random)

    @cached_property
    def compensated(self) -> dict[tuple[int, int, int], Compensated]:
        """d_i, and in what else clients differ, by (scheme, weight rule, shape of the work)."""
        found: dict[tuple[int, int, int], Compensated] = {}
        runs: dict[WaitingRule, LongRun] = {}
        for s, scheme in enumerate(self.schemes):
            run = runs.setdefault(scheme.waiting, LongRun(scheme.waiting, self.times, self.problem.importance))
            for r, rule in enumerate(self.rules):
                weights = weights_of(scheme, run, scheme.options.own_weights or rule)
                for k, shape in enumerate(self.shapes):
                    steps = shape.get("local_steps", 1)
                    assert isinstance(steps, int)
                    found[s, r, k] = compensated(scheme.options, weights, steps, scheme.label)
        return found

    @cached_property
    def traffic(self) -> dict[tuple[int, int], Traffic]:
        """Bytes of one client update, by (scheme, shape of the work)."""
        found: dict[tuple[int, int], Traffic] = {}
        for s, k in product(range(len(self.schemes)), range(len(self.shapes))):
            rule = self.schemes[s].waiting
            asked = rule.asked_a_round(self.problem.num_clients)
            task = task_of(self, kind_of(self, s, k))
            found[s, k] = traffic_of(self.problem, task, self.shapes[k] | self.traced[0], float(asked))
        return found

    @cached_property
    def shares(self) -> Shares:
        """p_i, and q_i of the surrogate: shares of rounds of the reference scheme."""
        p = self.problem.importance
        q = expected_weights(self.surrogate, self.times, importance=p.exact, rule="identical")
        return Shares(p.values, q / q.sum())

    def configuration(self) -> dict[str, Any]:
        """All that is needed to repeat the study, as JSON."""
        return {
            "problem": self.problem.spec(),
            "fingerprint": self.problem.fingerprint(),
            "times": self.times.describe(),
            "law": self.times.law,
            "schemes": [scheme.spec() for scheme in self.schemes],
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


def simulate(
    problem: Problem,
    schemes: Scheme | Sequence[Scheme],
    times: ClientTimes,
    *,
    until: Exact,
    local: LocalRule | None = None,
    weights: str | WeightRule | Sequence[str | WeightRule] = ("time-based",),
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
    checkpoint: str | Path | None = None,
    save_every: float = SAVE_SECONDS,
    overwrite: bool = False,
    description: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> History:
    """Train the problem under every scheme, weight rule, learning rate and seed; the history over virtual time.

    Any number may be a list, and each list becomes a dimension of the history. `until` is the virtual time at which all
    runs end; they are measured at `points` times from `measure_from` to `until`. `rates` says by scheme, named by its
    label, at which of the local learning rates it is run, where it is not to be run at all of them.

    `surrogate` names the scheme whose shares of rounds weight the surrogate loss (asynchronous FedAvg). `per_client`
    also keeps the loss of every client. A run whose loss is not a number, or beyond `bound` times max(1, its first
    loss), counts as diverged; the others go on.

    `checkpoint` is a folder, saved to every `save_every` seconds: a study that was stopped there goes on, to the same
    bits on a processor; `overwrite` replaces a study that is there. Ctrl-C stops it at the next stretch, saved. A JSON
    `description` is kept in the folder. `on_progress` is told several times a second how far it is.
    """
    clients = a_problem(problem).num_clients
    study = Study(
        problem=problem,
        schemes=fitting_parts(some_schemes(schemes, clients), local_rule(local), clients),
        times=client_times(times, clients),
        until=positive(until, "until"),
        local=local_rule(local),
        rules=weight_rules(weights),
        server_lr=numbers("server_lr", server_lr),
        rates=rates_by_scheme(rates, schemes, local_rule(local)),
        seeds=some_seeds(seeds),
        points=grid_points(points),
        measure_from=first_measure(measure_from, until),
        dtype=one_of("dtype", dtype, PRECISIONS),
        engine=engine_name(engine),
        surrogate=surrogate_scheme(surrogate, clients),
        per_client=bool(per_client),
        bound=real("bound", bound),
    )
    save_every = real("save_every", save_every, above=False)
    folder = None if checkpoint is None else Folder(Path(checkpoint), description)
    return run_study(study, folder, save_every=save_every, overwrite=overwrite, on_progress=on_progress)


def run_study(
    study: Study,
    folder: Folder | None = None,
    *,
    save_every: float = SAVE_SECONDS,
    overwrite: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> History:
    """Carry out a study, or the rest of one; what is there when it is interrupted is kept in the folder."""
    if study.engine == "oracle" and folder is not None:
        raise InputError("checkpoint: the oracle keeps none, it is for short runs; choose another engine")
    layout = {"blocks": blocks_of(study, cores())}
    if folder is not None and not (overwrite and folder.holds_a_study()):
        layout = folder.check(study.configuration()) or layout
    rows = OnDevice(study.problem, study.dtype)
    made = WaveMachine if study.engine == "waves" else EventMachine
    kinds = kinds_of(study)
    machines: list[Machine] = [made(study.problem, task_of(study, kind), study.dtype, rows) for kind in kinds]
    plans = plans_of(study, kinds, machines, layout["blocks"])
    if study.engine == "oracle":
        return _by_oracle(study, plans)
    threads = 1 if study.engine == "waves" else min(cores(), len(plans))
    needed = estimate(plans, machines, threads)
    log.info("%d runs in %d units, about %s", study.num_runs, len(plans), needed)
    check_memory(needed)
    if folder is not None:
        if overwrite:
            folder.clear()
        folder.begin(study.configuration(), layout)
    runner = Runner(plans, machines, study.dtype, folder, threads=threads, save_every=save_every, memory=needed.total)

    def so_far() -> History:
        found = collected(study, plans, runner.outcomes, _seconds(runner, machines))
        if folder is not None:
            found.save(folder.history)
        return found

    interrupted = False
    try:
        runner.run(on_progress, so_far)
    except KeyboardInterrupt:
        interrupted = True
    history = so_far()
    if interrupted:
        raise KeyboardInterrupt
    return history


def _seconds(runner: Runner, machines: list[Machine]) -> dict[str, float]:
    """Time spent: compiling, over all threads, and on everything else."""
    compiling = sum(machine.compile_seconds for machine in machines)
    return {"run_seconds": max(0.0, runner.seconds - compiling), "compile_seconds": compiling}


def _by_oracle(study: Study, plans: list[UnitSpec]) -> History:
    begin = time.perf_counter()
    outcomes = [
        reference(
            p, study.problem, study.local, study.shapes[p.unit.shape], study.schemes[p.unit.scheme].options, study.dtype
        )
        for p in plans
    ]
    return collected(study, plans, outcomes, {"run_seconds": time.perf_counter() - begin, "compile_seconds": 0.0})
