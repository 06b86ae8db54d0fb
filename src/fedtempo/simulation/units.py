"""The units of a study: runs that go through the engine together, and what each needs.

A unit has one scheme and one shape of work. It has one seed, or all of them where they share a timeline and the engine
takes them together, and a block of the combinations of weight rules and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import stream
from fedtempo.clock.ticks import text
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.simulation.engine.machine import Machine
from fedtempo.simulation.engine.session import Unit, UnitSpec, room_for
from fedtempo.simulation.engine.task import SHARE, Task
from fedtempo.training.client import ClientWork
from fedtempo.training.server_rules import server_rule
from fedtempo.training.solvers import STEPS, LocalOptax

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study
    from fedtempo.training.compression import Compression
    from fedtempo.training.corrections import Correction
    from fedtempo.training.server_rules import ServerRule


class Kind(NamedTuple):
    """What decides what is compiled: runs of one kind share a machine."""

    shape: int
    """Which choice of the axes that change the shape of the work."""
    correction: Correction | None
    server: ServerRule
    compression: Compression | None
    most_steps: int | None
    """The most local steps of any client, where clients differ in them."""


def kind_of(study: Study, scheme: int, shape: int) -> Kind:
    """The kind of a scheme's runs at one shape of the work."""
    parts = study.schemes[scheme].options
    steps = study.compensated[scheme, 0, shape].steps
    most = None if steps is None else int(steps.max())
    return Kind(shape, parts.correction, server_rule(parts), parts.compression, most)


def kinds_of(study: Study) -> list[Kind]:
    """Every kind of work in a study, once."""
    found = [kind_of(study, s, k) for s in range(len(study.schemes)) for k in range(len(study.shapes))]
    return list(dict.fromkeys(found))


def task_of(study: Study, kind: Kind) -> Task:
    """What is compiled for one kind of work."""
    shape = study.shapes[kind.shape]
    if kind.most_steps is not None:
        shape = {**shape, "local_steps": kind.most_steps}
    work = ClientWork(study.local.job(shape), kind.correction, kind.compression)
    return Task(study.problem.loss, work, kind.server)


def blocks_of(study: Study, cores: int) -> int:
    """Into how many blocks the runs of a scheme and seed are cut, so that every core has work."""
    if study.engine == "waves":
        return 1
    units = len(study.schemes) * len(study.seeds) * len(study.shapes)
    return max(1, min(-(-cores // units), len(study.rules) * len(study.traced)))


def plans_of(study: Study, kinds: Sequence[Kind], machines: Sequence[Machine], blocks: int) -> list[UnitSpec]:
    """The units of a study, and what each needs; `machines` are those of the `kinds`."""
    plans: list[UnitSpec] = []
    for s, scheme in enumerate(study.schemes):
        runs = [(r, c) for r in study.rules_of(scheme) for c in study.traced_of(scheme)]
        asks = bool(scheme.waiting.by_training)  # then every run has rounds of its own
        cuts = [tuple(part) for part in _cut(runs, len(runs) if asks else blocks) if part]
        together = study.engine == "waves" and study.shares_seeds(scheme) and not asks
        for seeds in [study.seeds] if together else [(seed,) for seed in study.seeds]:
            config = study.config(scheme, seeds[0])
            for k in range(len(study.shapes)):
                machine = kinds.index(kind_of(study, s, k))
                for part in cuts:
                    unit = Unit(len(plans), s, k, seeds, part, machine)
                    plans.append(_plan(study, machines[machine], unit, config))
    return _settled(plans, machines)


def _settled(plans: list[UnitSpec], machines: Sequence[Machine]) -> list[UnitSpec]:
    """What the programs' first pieces tell: one size of slots for all schemes that share the compiled code."""
    firsts = {(p.unit.scheme, p.unit.machine): p.first_piece() for p in plans}
    if not any(piece.num_events for piece in firsts.values()):
        raise InputError(f"until: no round ends by {text(plans[0].until)}; give more time")
    slots: dict[int, int] = {}
    for k, machine in enumerate(machines):
        pieces = [piece for (_, number), piece in firsts.items() if number == k]
        machine.tune(pieces, max(len(p.unit.seeds) * len(p.unit.runs) for p in plans if p.unit.machine == k))
        slots[k] = room_for(max(piece.num_slots for piece in pieces))
    return [replace(plan, num_slots=slots[plan.unit.machine]) for plan in plans]


def _plan(study: Study, machine: Machine, unit: Unit, config: ClockConfig) -> UnitSpec:
    pace = float((1.0 / study.times.mean_time).sum())
    capacity = machine.capacity(len(unit.seeds), float(study.until) * pace)
    if config.rule.by_training:
        capacity = min(capacity, max(16, 1 << (config.num_clients - 1).bit_length()))  # a piece is a round
    made = [study.compensated[unit.scheme, r, unit.shape] for r in range(len(study.rules))]
    return UnitSpec(
        unit=unit,
        config=config,
        weights=tuple(one.weights for one in made),
        hyper=_numbers(study, unit, config),
        clients=_clients(study, unit),
        until=study.until,
        points=study.points,
        start=study.measure_from,
        shares=study.shares,
        per_client=study.per_client,
        capacity=capacity,
        max_marks=machine.max_marks(len(unit.runs) * len(unit.seeds)),
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
            raise InputError("schedule: how many rounds there will be is not known ahead; use a constant rate")
        rounds = sum(part.num_rounds for part in stream(config, until=study.until))
        steps = study.shapes[unit.shape]["local_steps"]
        assert isinstance(steps, int)
        found[RATE] = np.array([local.rate(lr, steps, rounds) for lr in found[RATE]])
    return found


def _clients(study: Study, unit: Unit) -> dict[str, NDArray[Any]]:
    """[clients] of every number in which clients differ."""
    found: dict[str, NDArray[Any]] = {SHARE: study.problem.importance.values}
    made = study.compensated[unit.scheme, unit.runs[0][0], unit.shape]
    if made.rates is not None:
        found[RATE] = made.rates
    if made.steps is not None:
        found[STEPS] = made.steps
    return found


def _cut(runs: list[tuple[int, int]], blocks: int) -> list[list[tuple[int, int]]]:
    """Blocks of nearly equal size."""
    edges = [len(runs) * k // blocks for k in range(blocks + 1)]
    return [runs[a:b] for a, b in pairwise(edges)]
