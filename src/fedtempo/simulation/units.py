"""The units of a study: runs that go through the engine together, with all that each needs.

A unit has one scheme and one combination of the static axes, those that change what is compiled (local steps, batch
size). It has one seed, or all of them where they share a timeline and the engine takes them together, and some of the
combinations of weight rules and traced numbers (learning rates).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import stream
from fedtempo.clock.ticks import text
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.problems.mapped import any_mapped
from fedtempo.schemes.compensation import Compensated, compensated
from fedtempo.schemes.named import Scheme
from fedtempo.schemes.timelines import expected_weights, weights_of
from fedtempo.simulation.costs import Traffic, traffic_of
from fedtempo.simulation.engine.devices import has_kernels, num_devices
from fedtempo.simulation.engine.machine import EventMachine, Machine, OnDevice, WaveMachine
from fedtempo.simulation.engine.measures import Shares
from fedtempo.simulation.engine.session import LARGE_SLOT, Unit, UnitSpec, room_for
from fedtempo.simulation.engine.spilling import LEAST, SpillingMachine, SpillingStreamedMachine
from fedtempo.simulation.engine.streamed import OnDisk, StreamedMachine
from fedtempo.simulation.engine.task import INNERMOST, OUTERMOST, SHARE, Task
from fedtempo.training.client import ClientWork
from fedtempo.training.server_rules import server_rule
from fedtempo.training.solvers import STEPS, Job, LocalOptax
from fedtempo.training.state_average import StateAverage
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule
from fedtempo.weighting.weights import Weights

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study

T = TypeVar("T")

Made = dict[tuple[int, int, int], Compensated]
"""d_i, and in what else clients differ, by (scheme, weight rule, static combination).

Where the problem has a state, number r + the number of rules are rule r's weights at the stable step, for the state.
"""


IDLE = 0.1
"""A share of the time that a core may wait at the end: fewer and wider units are faster otherwise."""


class Units(NamedTuple):
    """All units of a study, in the order of their numbers."""

    specs: list[UnitSpec]
    machines: list[Machine]
    """What runs them: one for all units that share compiled code; `spec.unit.machine` says which."""
    traffic: dict[tuple[int, int], Traffic]
    """Bytes of one client update, by (scheme, static combination)."""

    @property
    def num_runs(self) -> int:
        """Runs of all units."""
        return sum(spec.unit.num_runs for spec in self.specs)


def splits_of(study: Study, cores: int) -> int:
    """Into how many units the runs of a scheme and seed are split, so that every core has work, or every device."""
    if study.engine == "torch":
        return 1
    places = num_devices(study) if study.engine == "waves" else cores
    together = [_together(study, scheme) for scheme in study.schemes]
    units = sum(1 if one else len(study.seeds) for one in together) * len(study.static)
    runs = len(study.rules) * len(study.traced) * (len(study.seeds) if all(together) else 1)
    least = max(1, min(-(-places // units), runs))

    def idle(splits: int) -> float:
        """The share of the time in which a place waits for the last units."""
        return 1 - units * splits / places / -(-units * splits // places)

    return next((s for s in (least, least + 1) if s <= runs and idle(s) <= IDLE), least)


def _together(study: Study, scheme: Scheme) -> bool:
    """Whether seeds go through together: they share a timeline, and the hardware gains from it."""
    drawn = study.times.random or scheme.waiting.random or bool(scheme.waiting.by_training)
    return study.engine in ("waves", "torch") and not drawn


def units_of(study: Study, splits: int) -> Units:
    """The units of a study, the runs of each scheme and seed in `splits` of them."""
    made = _compensated(study)
    tasks, task_of = _tasks(study, made)
    machines = _machines(study, tasks)
    shares = _shares(study)
    specs: list[UnitSpec] = []
    for s, scheme in enumerate(study.schemes):
        asks = bool(scheme.waiting.by_training)  # then every run has rounds of its own
        runs = [(r, c) for r in _rules(study, scheme) for c in _traced(study, scheme)]
        parts = [part for part in _split(runs, len(runs) if asks else splits) if part]
        times = times_under(study, scheme)
        groups = -(-splits // len(parts)) if _together(study, scheme) else len(study.seeds)
        for seeds in filter(None, _split(study.seeds, groups)):
            config = ClockConfig.of(scheme.waiting, times, study.problem.importance.values, seeds[0])
            for k in range(len(study.static)):
                for part in parts:
                    unit = Unit(len(specs), s, k, tuple(seeds), tuple(part), task_of[s, k])
                    specs.append(_spec(study, made, shares, machines[unit.machine], unit, config))
    traffic = {pair: _traffic(study, *pair, tasks[number]) for pair, number in task_of.items()}
    return Units(*_settled(specs, machines, study.unit_memory), traffic)


def _machines(study: Study, tasks: list[Task]) -> list[Machine]:
    problem, dtype = study.problem, study.dtype
    if study.engine == "torch":
        from fedtempo.simulation.engine.torch_machine import TorchMachine

        return [TorchMachine(problem, task, dtype, study.local) for task in tasks]
    if any_mapped(problem.rows):
        on_disk = OnDisk(problem, dtype)
        return [StreamedMachine(problem, task, dtype, on_disk) for task in tasks]
    rows = OnDevice(problem, dtype)
    return [_machine(study, task, rows) for task in tasks]


def _spilling(machine: Machine) -> Machine:
    """The same machine with models in a file."""
    if isinstance(machine, StreamedMachine):
        return SpillingStreamedMachine(machine.problem, machine.task, machine.dtype, machine.on_device)
    if isinstance(machine, EventMachine):
        return SpillingMachine(machine.problem, machine.task, machine.dtype, machine.on_device)
    return machine.spilling()  # type: ignore[attr-defined, no-any-return]  # that of PyTorch, which may not be installed


def _machine(study: Study, task: Task, rows: OnDevice) -> Machine:
    if study.engine != "waves":
        return EventMachine(study.problem, task, study.dtype, rows)
    if has_kernels():
        from fedtempo.simulation.engine.fused import FusedMachine, is_fused

        if is_fused(study, task):
            return FusedMachine(study.problem, task, study.dtype, rows)
    return WaveMachine(study.problem, task, study.dtype, rows)


def _compensated(study: Study) -> Made:
    found: Made = {}
    long_runs: dict[tuple[WaitingRule, ClientTimes], LongRun] = {}
    for s, scheme in enumerate(study.schemes):
        waiting, times = scheme.waiting, times_under(study, scheme)
        long_run = long_runs.setdefault((waiting, times), LongRun(waiting, times, study.problem.importance))
        rules = [scheme.options.own_weights or rule for rule in study.rules]
        weights = [weights_of(scheme, long_run, rule, study.step) for rule in rules]
        if study.problem.form.stateful:
            weights += [_of_state(scheme, long_run, rule) for rule in rules]
        for r, each in enumerate(weights):
            for k, static in enumerate(study.static):
                steps = static.get("local_steps", 1)
                assert isinstance(steps, int)
                found[s, r, k] = compensated(scheme.options, each, steps, scheme.label)
    return found


def times_under(study: Study, scheme: Scheme) -> ClientTimes:
    """The clients' times under a scheme: those of hardware depend on the bytes of its updates."""
    if not study.times.by_traffic:
        return study.times
    traffic = traffic_under(study, scheme)
    return study.times.for_traffic(traffic.up, traffic.down)


def traffic_under(study: Study, scheme: Scheme) -> Traffic:
    """Bytes of one client update under a scheme."""
    options, problem, numbers = scheme.options, study.problem, study.static[0]
    server = server_rule(options.correction, options.server, problem.num_clients)
    work = ClientWork(study.local.job(numbers), options.correction, options.compression)
    task = Task(problem.form, work, server, StateAverage.of(problem.state_shapes) if problem.form.stateful else None)
    asked = scheme.waiting.asked_a_round(problem.num_clients)
    return traffic_of(problem, task, numbers | study.traced[0], float(asked))


def _of_state(scheme: Scheme, long_run: LongRun, rule: WeightRule) -> Weights:
    """What the problem's state is averaged by: the weights at the stable step, whatever the step is."""
    try:
        return weights_of(scheme.using(step="stable"), long_run, rule)
    except InputError:  # no step is known ahead: at most a whole step is taken all the same
        return weights_of(scheme.using(step="paper"), long_run, rule)


def _tasks(study: Study, made: Made) -> tuple[list[Task], dict[tuple[int, int], int]]:
    """What is to be compiled, each once, and the number of that of a (scheme, static combination)."""
    tasks: list[Task] = []
    keys: list[tuple[Any, ...]] = []
    task_of: dict[tuple[int, int], int] = {}
    average = StateAverage.of(study.problem.state_shapes) if study.problem.form.stateful else None
    runs_axis = OUTERMOST if study.engine == "events" else INNERMOST
    for s, scheme in enumerate(study.schemes):
        options, server = (
            scheme.options,
            server_rule(scheme.options.correction, scheme.options.server, study.problem.num_clients),
        )
        for k, static in enumerate(study.static):
            steps = made[s, 0, k].steps
            most = None if steps is None else int(steps.max())  # of any client, where they differ
            key = (k, options.correction, server, options.compression, most)
            if key not in keys:
                job = study.local.job(static if most is None else {**static, "local_steps": most})
                _check_form(study, job)
                work = ClientWork(job, options.correction, options.compression)
                tasks.append(Task(study.problem.form, work, server, average, runs_axis))
                keys.append(key)
            task_of[s, k] = keys.index(key)
    return tasks, task_of


def _check_form(study: Study, job: Job) -> None:
    """Refuse local work that a loss with a key or a state cannot do."""
    form = study.problem.form
    if study.engine == "torch":
        return
    if job.batch_size is None and not form.plain:
        raise InputError(
            "batch_size: None computes the gradient over all rows in parts, and a loss with a key or a state would "
            "draw or update once per part; give a number of rows"
        )
    if form.stateful and job.carrying is None:
        raise InputError(
            f"local: {study.local!r} carries no state from step to step; use LocalSGD or LocalOptax, or give its Job "
            "a function `carrying`"
        )


def _shares(study: Study) -> Shares:
    """p_i, and q_i of the surrogate: shares of rounds of the reference scheme."""
    p = study.problem.importance
    q = expected_weights(study.surrogate, times_under(study, study.surrogate), importance=p.exact, rule="identical")
    return Shares(p.values, q / q.sum())


def _traffic(study: Study, scheme: int, static: int, task: Task) -> Traffic:
    asked = study.schemes[scheme].waiting.asked_a_round(study.problem.num_clients)
    return traffic_of(study.problem, task, study.static[static] | study.traced[0], float(asked))


def _rules(study: Study, scheme: Scheme) -> range:
    """Which of the weight rules a scheme is run with: the first alone, in whose place its own is, if it has one."""
    return range(1 if scheme.options.own_weights is not None else len(study.rules))


def _traced(study: Study, scheme: Scheme) -> list[int]:
    """Which of the traced combinations a scheme is run at."""
    rates = study.rates.get(scheme.label)
    return [c for c, numbers in enumerate(study.traced) if rates is None or numbers.get(RATE) in rates]


def _split(runs: Sequence[T], splits: int) -> list[Sequence[T]]:
    """Parts of nearly equal size."""
    edges = [len(runs) * k // splits for k in range(splits + 1)]
    return [runs[a:b] for a, b in pairwise(edges)]


def _spec(study: Study, made: Made, shares: Shares, machine: Machine, unit: Unit, config: ClockConfig) -> UnitSpec:
    pace = float((1.0 / config.times.mean_time).sum())
    capacity = machine.capacity(len(unit.seeds), float(study.until) * pace)
    if config.rule.by_training:
        capacity = min(capacity, max(16, 1 << (config.num_clients - 1).bit_length()))  # a piece is a round
    rows = len(study.rules) * (2 if study.problem.form.stateful else 1)
    return UnitSpec(
        unit=unit,
        config=config,
        weights=tuple(made[unit.scheme, r, unit.static].weights for r in range(rows)),
        hyper=_numbers(study, unit, config),
        clients=_clients(study, made[unit.scheme, unit.runs[0][0], unit.static]),
        until=study.until,
        times=study.measured_at,
        shares=shares,
        per_client=study.per_client,
        capacity=capacity,
        max_points=machine.max_points(unit.num_runs),
        num_slots=1,
        bound=study.bound,
    )


def _numbers(study: Study, unit: Unit, config: ClockConfig) -> dict[str, NDArray[np.float64]]:
    """[runs] of every traced number, the local learning rate as its schedule makes it."""
    traced = [study.traced[c] for _, c in unit.runs]
    found = {name: np.array([chosen[name] for chosen in traced], dtype=np.float64) for name in traced[0]}
    local = study.local
    if isinstance(local, LocalOptax) and local.schedule != "constant":
        if config.rule.by_training:
            raise InputError("schedule: the number of rounds is not known ahead; use a constant rate")
        rounds = sum(line.num_rounds for line in stream(config, until=study.until))
        steps = study.static[unit.static]["local_steps"]
        assert isinstance(steps, int)
        found[RATE] = np.array([local.rate(lr, steps, rounds) for lr in found[RATE]])
    return found


def _clients(study: Study, made: Compensated) -> dict[str, NDArray[Any]]:
    """[clients] of every number in which clients differ."""
    found: dict[str, NDArray[Any]] = {SHARE: study.problem.importance.values}
    if made.rates is not None:
        found[RATE] = made.rates
    if made.steps is not None:
        found[STEPS] = made.steps
    return found


def _settled(
    specs: list[UnitSpec], machines: Sequence[Machine], unit_memory: float | None
) -> tuple[list[UnitSpec], list[Machine]]:
    """What the programs' first pieces tell: one size of slots for all schemes that share the compiled code.

    Where versions are more than `unit_memory` bytes, machines that have some of them in a file.
    """
    firsts = {(spec.unit.scheme, spec.unit.machine): (spec, spec.first_piece()) for spec in specs}
    if not any(piece.num_events for _, piece in firsts.values()):
        raise InputError(f"until: no round ends by {text(specs[0].until)}; give more time")
    slots, settled = [], list(machines)
    for m, machine in enumerate(machines):
        mine = [first for (_, number), first in firsts.items() if number == m]
        runs = max(spec.unit.num_runs for spec in specs if spec.unit.machine == m)
        size = runs * machine.version_bytes
        needed = max(piece.num_slots if size <= LARGE_SLOT else spec.most_slots() for spec, piece in mine)
        room = room_for(needed, size)
        if unit_memory is not None and needed * size > unit_memory:
            settled[m], room = _spilling(machine), max(LEAST, int(unit_memory / size))
        settled[m].tune([piece for _, piece in mine], runs)
        slots.append(room)
    return [replace(spec, num_slots=slots[spec.unit.machine]) for spec in specs], settled
