"""The units of a study: runs that go through the engine together, and what each needs.

A unit has one scheme and one shape of work. It has one seed, or all of them where they share a timeline and the engine
takes them together, and a block of the combinations of weight rules and numbers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedtempo.clock.ticks import text
from fedtempo.engine.machine import Machine
from fedtempo.engine.session import Plan, Unit, room_for
from fedtempo.engine.task import Task
from fedtempo.errors import InputError
from fedtempo.grid import Value
from fedtempo.schemes import Scheme

if TYPE_CHECKING:
    from fedtempo.study import Study


def task_of(study: Study, shape: dict[str, Value]) -> Task:
    """What is compiled for one shape of the work."""
    return Task(study.problem.loss, study.local.job(shape), study.server)


def blocks_of(study: Study, cores: int) -> int:
    """Into how many blocks the runs of a scheme and seed are cut, so that every core has work."""
    if study.engine == "waves":
        return 1
    units = len(study.schemes) * len(study.seeds) * len(study.shapes)
    return max(1, min(-(-cores // units), len(study.rules) * len(study.traced)))


def plans_of(study: Study, machines: dict[int, Machine], blocks: int) -> list[Plan]:
    """The units of a study, and what each needs."""
    plans: list[Plan] = []
    for s, scheme in enumerate(study.schemes):
        runs = [(r, c) for r in range(len(study.rules)) for c in study.traced_of(scheme)]
        cuts = [tuple(part) for part in _cut(runs, blocks) if part]
        together = study.engine == "waves" and study.shares_seeds(scheme)
        for seeds in [study.seeds] if together else [(seed,) for seed in study.seeds]:
            for k in range(len(study.shapes)):
                for part in cuts:
                    unit = Unit(len(plans), s, k, seeds, part)
                    plans.append(_plan(study, machines[k], unit, scheme))
    return _settled(plans, machines)


def _settled(plans: list[Plan], machines: dict[int, Machine]) -> list[Plan]:
    """What the programs' first pieces tell: one size of slots for all schemes, since they share the compiled code."""
    firsts = {(p.unit.scheme, p.unit.shape): next(p.pieces()) for p in plans}
    if not any(piece.num_events for piece in firsts.values()):
        raise InputError(f"until: no round ends by {text(plans[0].until)}; give more time")
    slots: dict[int, int] = {}
    for k, machine in machines.items():
        pieces = [piece for (_, shape), piece in firsts.items() if shape == k]
        machine.tune(pieces, max(len(p.unit.seeds) * len(p.unit.runs) for p in plans if p.unit.shape == k))
        slots[k] = room_for(max(piece.num_slots for piece in pieces))
    return [replace(plan, num_slots=slots[plan.unit.shape]) for plan in plans]


def _plan(study: Study, machine: Machine, unit: Unit, scheme: Scheme) -> Plan:
    traced = [study.traced[c] for _, c in unit.runs]
    pace = float((1.0 / study.times.mean_time).sum())
    return Plan(
        unit=unit,
        setting=study.setting(scheme, unit.seeds[0]),
        weights=tuple(study.applied[unit.scheme, r] for r in range(len(study.rules))),
        hyper={name: np.array([combination[name] for combination in traced], dtype=np.float64) for name in traced[0]},
        until=study.until,
        points=study.points,
        start=study.measure_from,
        shares=study.shares,
        per_client=study.per_client,
        capacity=machine.capacity(len(unit.seeds), float(study.until) * pace),
        max_marks=machine.max_marks(len(unit.runs) * len(unit.seeds)),
        num_slots=1,
        bound=study.bound,
    )


def _cut(runs: list[tuple[int, int]], blocks: int) -> list[list[tuple[int, int]]]:
    """Blocks of nearly equal size."""
    edges = [len(runs) * k // blocks for k in range(blocks + 1)]
    return [runs[a:b] for a, b in pairwise(edges)]
