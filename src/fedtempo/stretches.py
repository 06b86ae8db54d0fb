"""Clients that join or leave for good: what holds in each stretch of time in which the same clients are there.

    in stretch k, with P_k there:  p_i^k = p_i/Σ_{j∈P_k} p_j,   participation_i^k that of P_k alone,   d_i^k from both

so that over a stretch that is long against the clients' times, those who are there count by their importance. A client
that has left keeps its last weight, for an update that still waits for its round. A round belongs to the stretch in
which it ends.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fedtempo.clock.rules import CuredSample, FastestClients, IntervalStages, UniformSample, WaitForSome
from fedtempo.clock.ticks import text
from fedtempo.clock.times import Floats
from fedtempo.clock.waiting import WaitingRule
from fedtempo.errors import InputError
from fedtempo.importance import Importance

if TYPE_CHECKING:
    from fedtempo.participation import LongRun, Participation
    from fedtempo.weight_rules import WeightRule

MAX_STRETCHES = 100
"""Up to how many stretches weights are worked out for."""


def during(run: LongRun, number: int) -> LongRun:
    """The long run of those who are there in one of the stretches, numbered anew, as if it never ended."""
    availability = run.times.availability
    assert availability is not None
    begin, clients = availability.stretches[number]
    if not clients:
        raise InputError(
            f"absences: nobody is there from {text(begin)} on, so that there is no long run; "
            "let somebody stay, or give a period"
        )
    total = sum((run.importance.exact[i] for i in clients), Fraction(0))
    importance = Importance([run.importance.exact[i] / total for i in clients], len(clients))
    return type(run)(_fitted(run.rule, len(clients)), run.times.only(clients), importance, run.seed)


def _fitted(rule: WaitingRule, num_clients: int) -> WaitingRule:
    """What a rule does when only so many clients are there."""
    match rule:
        case WaitForSome(size=size) | UniformSample(size=size) | FastestClients(size=size) if size > num_clients:
            return replace(rule, size=num_clients)
    return rule


def of_all(run: LongRun, values: Floats) -> Floats:
    """[clients] what is known of those who stay; 0 for the others."""
    availability = run.times.availability
    if availability is None or not availability.changes:
        return values
    out = np.zeros(run.times.num_clients)
    out[list(availability.stretches[-1].clients)] = values
    return out


def participation_of_all(run: LongRun, found: Participation) -> Participation:
    """The participation of those who stay, with nothing for the others."""
    assert run.times.availability is not None
    exact = None
    if found.exact is not None:
        known = dict(zip(run.times.availability.stretches[-1].clients, found.exact, strict=True))
        exact = tuple(known.get(i, Fraction(0)) for i in range(run.times.num_clients))
    error, taking = (None if v is None else of_all(run, v) for v in (found.error, found.taking_part))
    return replace(found, share=of_all(run, found.share), exact=exact, error=error, taking_part=taking)


def weights_by_stretch(
    waiting: WaitingRule, run: LongRun, rule: WeightRule
) -> tuple[Floats, tuple[tuple[Fraction, ...] | None, ...], tuple[Fraction, ...]]:
    """[stretches, clients] d_i, as rationals where they are known, and when each stretch begins."""
    availability = run.times.availability
    assert availability is not None
    stretches = availability.stretches
    if isinstance(waiting, IntervalStages):
        raise InputError(
            "FedFix in stages and clients that come or go for good: weights would have to follow both; use one wait, "
            "as ft.FedFix('1/2'), or give absences a period"
        )
    if waiting.asks_for or isinstance(waiting, CuredSample) or rule.by_client:
        what = rule.label if rule.by_client else repr(waiting)
        raise InputError(
            f"{what} and clients that come or go for good: its weights are those of one set of clients; give absences "
            "a period, or use another scheme"
        )
    if len(stretches) > MAX_STRETCHES:
        raise InputError(
            f"absences: clients come or go {len(stretches) - 1} times, each time for good, and weights are worked out "
            f"for at most {MAX_STRETCHES} stretches; give a period, so that they repeat"
        )
    values = np.zeros((len(stretches), run.times.num_clients))
    exact: list[tuple[Fraction, ...] | None] = []
    row: list[Fraction] | None = [Fraction(0)] * run.times.num_clients
    for number, (_, clients) in enumerate(stretches):
        if number:
            values[number] = values[number - 1]
        if clients:
            part = during(run, number)
            here, rational = rule.base(part.importance, part.participation)
            values[number, list(clients)] = here
            row = None if rational is None or row is None else _put(row, clients, rational)
        exact.append(None if row is None else tuple(row))
    return values, tuple(exact), tuple(stretch.begin for stretch in stretches)


def _put(row: list[Fraction], clients: tuple[int, ...], values: tuple[Fraction, ...]) -> list[Fraction]:
    known = dict(zip(clients, values, strict=True))
    return [known.get(i, before) for i, before in enumerate(row)]
