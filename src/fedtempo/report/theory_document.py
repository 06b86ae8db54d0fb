"""What the theory says of schemes, on clients and on a problem, and as a JSON document."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fedtempo.clock.ticks import text
from fedtempo.clock.times import ClientTimes
from fedtempo.schemes import Scheme

if TYPE_CHECKING:  # they load JAX, which quantities alone do without
    from fedtempo.problems.problem import Problem
    from fedtempo.theory.bounds import Bound
    from fedtempo.theory.ceiling import Ceiling
    from fedtempo.theory.seven_assumptions import Assumption
    from fedtempo.theory.tables import Quantities
    from fedtempo.theory.virtual import Measured

FORMAT = 1


@dataclass(frozen=True)
class Constant:
    """A constant of the problem; `value` None: there is none."""

    symbol: str
    name: str
    value: float | None
    rows_read: int | None = None
    """What it cost; None: nothing beyond the one above."""


@dataclass(frozen=True)
class SchemeTheory:
    """What the theory says of one scheme; `refused` says why there is no bound."""

    scheme: Scheme
    quantities: Quantities
    assumptions: tuple[Assumption, ...] = ()
    ceiling: Ceiling | None = None
    bound: Bound | None = None
    measured: Measured | None = None
    refused: str | None = None

    @property
    def source(self) -> str:
        """Whether this is of a timeline or of the stationary law."""
        return self.quantities.expected.source


@dataclass(frozen=True)
class Theory:
    """What the theory says of several schemes with the same clients."""

    times: ClientTimes
    until: Fraction | None
    """Horizon; None: one window of the long run."""
    weight_rule: str
    schemes: tuple[SchemeTheory, ...]
    problem: Problem | None = None
    constants: tuple[Constant, ...] = ()
    how: str | None = None
    """Whether L and μ are exact or estimated."""
    refused: str | None = None
    """Why there is no bound, for all schemes."""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON document; what is infinite or not known is None."""
        problem = None
        if self.problem is not None:
            constants = {c.name: c.value for c in self.constants}
            cost = {c.name: c.rows_read for c in self.constants if c.rows_read is not None}
            problem = {**self.problem.spec(), "constants": constants, "found": self.how, "rows_read": cost}
        document = {
            "format": FORMAT,
            "clients": self.times.num_clients,
            "law": self.times.law,
            "times": self.times.describe(),
            "until": None if self.until is None else text(self.until),
            "weight_rule": self.weight_rule,
            "problem": problem,
            "schemes": [_scheme(s, self.refused) for s in self.schemes],
        }
        found: dict[str, Any] = _plain(document)
        return found


def _scheme(s: SchemeTheory, refused: str | None) -> dict[str, Any]:
    return {
        "scheme": s.scheme.spec(),
        "label": s.scheme.label,
        "source": s.source,
        "quantities": s.quantities.to_dict(),
        "assumptions": [
            {"number": a.number, "name": a.name, "holds": a.holds, "reason": a.reason} for a in s.assumptions
        ],
        "ceiling": None if s.ceiling is None else _ceiling(s.ceiling),
        "bound": None if s.bound is None else _bound(s.bound, s.measured),
        "refused": s.refused or refused,
    }


def _ceiling(c: Ceiling) -> dict[str, Any]:
    return {
        "printed": c.printed,
        "largest": c.largest,
        "binding": c.binding,
        "corrected": c.corrected,
        "conditions": {condition.name: condition.largest for condition in c.conditions},
        "corrected_conditions": {condition.name: condition.largest for condition in c.corrected_conditions},
        "note": c.note,
    }


def _bound(b: Bound, measured: Measured | None) -> dict[str, Any]:
    met = None
    if measured is not None:
        met = {name: float(getattr(measured, name).mean()) for name in ("theorem_1", "theorem_2", "theorem_3")}
        met["gradient_bound"] = measured.gradient_bound
    return {
        "local_lr": b.steps.local_lr,
        "local_steps": b.steps.local_steps,
        "batch_size": b.steps.batch_size,
        "server_lr": b.steps.server_lr,
        "terms": b.terms,
        "theorem_1": b.theorem_1,
        "theorem_1_as_printed": b.as_printed.total,
        "theorem_2": b.theorem_2,
        "theorem_3": b.theorem_3,
        "theorem_3_gradient": b.theorem_3_gradient,
        "corollary_1": b.corollary_1,
        "measured": met,
        "notes": list(b.notes),
    }


def _plain(value: Any) -> Any:
    """As JSON can hold it: no infinities, nothing that is not a number."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
