"""What `recommend` is given, checked: the problem, the time, what is compared, and what may be spent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedtempo.clock.ticks import Exact, positive
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.problems.problem import Problem
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedBuff, FedFix, Scheme
from fedtempo.simulation.arguments import EngineName, a_problem, client_times, engine_for, local_rule, one_of, real
from fedtempo.simulation.costs import model_bytes
from fedtempo.simulation.engine.numerics import PRECISIONS, Precision
from fedtempo.simulation.rate_search import at_rates, first_rates, searches
from fedtempo.training.solvers import LocalRule
from fedtempo.weighting.steps import check_step
from fedtempo.weighting.weight_rules import WeightRule

_WAITS = tuple(Fraction(n, 8) for n in (1, 2, 4, 6))
"""Of the slowest client's mean time."""
_SIZES = (0.1, 0.25, 0.5, 0.75)
"""Of the number of clients."""
_UNITS = {"s": 1, "m": 60, "h": 3600}


def schemes_for(
    times: ClientTimes, waits: Iterable[Exact] | None = None, sizes: Iterable[int] | None = None
) -> tuple[Scheme, ...]:
    """FedAvg, asynchronous FedAvg, FedFix over waits, FedBuff over sizes."""
    clients = times.num_clients
    slowest = slowest_of(times)
    waits = [slowest * part for part in _WAITS] if waits is None else [positive(w, "wait") for w in waits]
    if sizes is None:
        sizes = sorted({round(clients * part) for part in _SIZES} - {0, 1, clients})
    if clients == 1:
        return (FedAvg(),)
    return (FedAvg(), AsyncFedAvg(), *(FedFix(wait) for wait in waits), *(FedBuff(size) for size in sizes))


def slowest_of(times: ClientTimes) -> Fraction:
    """The slowest client's mean time, to a hundredth."""
    return Fraction(round(100 * float(times.mean_time.max())), 100) or Fraction(1, 100)


def checked_rates(rates: Iterable[float]) -> Floats:
    """Given rates, ascending."""
    found = np.unique(np.array([float(rate) for rate in rates]))
    if not len(found) or not np.isfinite(found).all() or found[0] <= 0:
        raise InputError(f"rates: {found.tolist()} must be positive numbers; give at least one")
    return found


@dataclass(frozen=True)
class Budget:
    """What a race may spend: client updates, a share of the full grid's, or seconds."""

    kind: str
    number: float


def budget_of(given: object) -> Budget:
    """From a number of client updates, or from text: 50000, 25%, 60s, 5m, 1h."""
    words = "budget: {!r} is not known; give client updates as 50000, a share of the grid as 25%, or seconds as 60s"
    if isinstance(given, Budget):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = str(given)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*(%|s|m|h)?\s*", str(given))
    if match is None or not 0 < float(match[1]) < math.inf:
        raise InputError(words.format(given))
    number, unit = float(match[1]), match[2]
    if unit == "%":
        return Budget("share", number / 100)
    return Budget("updates", number) if unit is None else Budget("seconds", number * _UNITS[unit])


@dataclass(frozen=True)
class Asked:
    """What is to be planned, checked."""

    problem: Problem
    times: ClientTimes
    """With the bytes of a model, where they depend on bytes."""
    until: Fraction
    local: LocalRule
    rates: tuple[float, ...] | None
    """To be compared; None: to be found."""
    compared: tuple[Scheme, ...]
    free: bool
    """Whether waits and sizes are refined."""
    rule: str | WeightRule
    step: str
    server_lr: float
    dtype: Precision
    engine: EngineName

    @property
    def rated(self) -> bool:
        """Whether the local work has a learning rate."""
        return any(axis.name == RATE for axis in self.local.axes)

    @property
    def planned(self) -> float:
        """Client updates that the clients can make in the time."""
        return float(self.until) * float((1 / self.times.mean_time).sum())

    @property
    def reference(self) -> str | None:
        """FedAvg's label, if it is compared."""
        return next((scheme.label for scheme in self.compared if type(scheme) is FedAvg), None)

    def number(self, name: str) -> Any:
        """A number of the local work."""
        return next((axis.values[0] for axis in self.local.axes if axis.name == name), None)


def asked_of(
    problem: Problem,
    times: ClientTimes,
    until: Exact,
    local: LocalRule | None,
    schemes: Sequence[Scheme] | None,
    waits: Iterable[Exact] | None,
    sizes: Iterable[int] | None,
    rates: Iterable[float] | None,
    weights: str | WeightRule,
    step: str,
    server_lr: float,
    dtype: Precision,
    engine: EngineName,
) -> Asked:
    """The arguments of `recommend`, each checked; one of the wrong kind says what to give instead."""
    horizon, precision = positive(until, "until"), one_of("dtype", dtype, PRECISIONS)
    work = local_rule(local)
    if searches(work):
        work = at_rates(work, first_rates(work)[1:2])
    listed = [axis for axis in work.axes if axis.listed and len(axis.values) > 1]
    given = None if rates is None else tuple(checked_rates(rates).tolist())
    for axis in listed:
        if axis.name != RATE:
            raise InputError(f"local: {axis.name} has {len(axis.values)} values; give one and plan each separately")
        given = given or tuple(sorted(float(rate) for rate in axis.values if rate is not None))
    problem = a_problem(problem)
    called, problem = engine_for(engine, problem, work, precision)
    if called == "oracle":
        raise InputError("engine: the oracle trains one run after the other; choose events, waves or torch to plan")
    times = client_times(times, problem.num_clients)
    if times.availability is not None and times.availability.changes:
        raise InputError("times: clients come or go for good, and what is best changes with them; give a period")
    timed = times.for_traffic(model_bytes(problem), model_bytes(problem)) if times.by_traffic else times
    compared = tuple(schemes) if schemes is not None else schemes_for(timed, waits, sizes)
    if not any(axis.name == RATE for axis in work.axes):
        given = (0.0,)
    return Asked(
        problem=problem,
        times=timed,
        until=horizon,
        local=work,
        rates=given,
        compared=compared,
        free=schemes is None and waits is None and sizes is None,
        rule=weights,
        step=check_step(step),
        server_lr=real("server_lr", server_lr),
        dtype=precision,
        engine=called,
    )
