"""What the theory says of schemes, on clients and on a problem: worked out for ``fedtempo theory``, and as JSON."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import text
from fedtempo.clock.times import ClientTimes
from fedtempo.display import Brief, Shown, frame_of, one_line
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme

if TYPE_CHECKING:
    import pandas as pd

    from fedtempo.clock.timeline import Timeline
    from fedtempo.problems.problem import Problem
    from fedtempo.theory.bounds import Bound
    from fedtempo.theory.ceiling import Ceiling
    from fedtempo.theory.problem_constants import Constants
    from fedtempo.theory.seven_assumptions import Assumption
    from fedtempo.theory.tables import Quantities
    from fedtempo.theory.virtual_models import Measured
    from fedtempo.training.solvers import LocalSGD
    from fedtempo.weighting.weight_rules import WeightRule

FORMAT = 1


@dataclass(frozen=True)
class Constant:
    """A constant of the problem; `value` None: there is none."""

    symbol: str
    name: str
    value: float | None
    rows_read: int | None = None
    """What it cost; None: nothing beyond the one above."""


@dataclass(frozen=True, repr=False)
class SchemeTheory(Brief):
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


@dataclass(frozen=True, repr=False)
class Theory(Shown):
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

    def table(self) -> pd.DataFrame:
        """The rows of `Quantities.table` for every `scheme`, and those of `Bound.table` where there is a bound."""
        return frame_of(self)

    def __repr__(self) -> str:
        about = "" if self.problem is None else f", {self.problem.name}"
        schemes = ", ".join(s.scheme.label for s in self.schemes)
        return one_line("Theory", f"{self.times.num_clients} clients{about}, {self.weight_rule} weights: {schemes}")


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


log = logging.getLogger(__name__)

MAX_UPDATES = 1_000_000
"""Longer timelines are taken to be their law."""


@dataclass(frozen=True)
class Clients:
    """Whom the schemes wait for, and for how long."""

    times: ClientTimes
    importance: Importance
    rule: WeightRule
    until: Fraction | None
    seed: int | None

    def timeline(self, scheme: Scheme) -> Timeline | None:
        """What happens until the horizon; None where the law is asked for."""
        from fedtempo.schemes.timelines import timeline

        if self.until is None or (self.seed is None and (self.times.random or scheme.waiting.random)):
            return None
        per_time = float((1.0 / self.times.mean_time).sum()) + sum(1.0 / float(wait) for wait in scheme.waiting.waits)
        if float(self.until) * per_time > MAX_UPDATES:
            if self.seed is None:
                return None
            raise InputError(
                f"--until: {text(self.until)} makes more than {MAX_UPDATES} updates and rounds; "
                f"make it at most {MAX_UPDATES / per_time:.2g}, or leave --seed out for the law"
            )
        return timeline(scheme, self.times, until=self.until, importance=self.importance.exact, seed=self.seed or 0)

    def quantities(self, scheme: Scheme, line: Timeline | None) -> Quantities:
        """Of a timeline, or of the law."""
        from fedtempo.theory import quantities

        return quantities(
            timeline=line,
            scheme=scheme,
            times=self.times,
            importance=self.importance,
            weights=self.rule,
            until=None if line is not None else self.until,
            seed=self.seed or 0,
        )


@dataclass(frozen=True)
class Training:
    """What the clients train, and how."""

    problem: Problem
    local: LocalSGD
    rate_given: bool
    server_lr: float
    measure: bool


def quantities_of(clients: Clients, schemes: Sequence[Scheme]) -> Theory:
    """What needs no problem."""
    found = tuple(SchemeTheory(s, clients.quantities(s, clients.timeline(s))) for s in schemes)
    return Theory(clients.times, clients.until, clients.rule.label, found)


def bounds_of(clients: Clients, schemes: Sequence[Scheme], training: Training) -> Theory:
    """Quantities, assumptions, constants and bounds; a bound that the theory refuses is left out with its reason."""
    from fedtempo.theory import constants
    from fedtempo.theory.theorems import Steps

    batch = Steps.of(training.local, training.server_lr).batch_size
    known = constants(training.problem, batch_size=batch)
    log.info("constants of %r", training.problem)
    refused = None
    try:
        known.check()
    except InputError as error:
        refused = str(error)
    begun = [_begun(clients, scheme, training, known, provable=refused is None) for scheme in schemes]
    listed, missing = _constants(known, solve=refused is None)
    refused = refused or missing
    if refused is None:
        log.info("bounds of %d schemes", len(schemes))
        begun = [(_with_bound(s, line, clients, training, known), line) for s, line in begun]
    return Theory(
        clients.times,
        clients.until,
        clients.rule.label,
        tuple(s for s, _ in begun),
        training.problem,
        listed,
        known.how,
        refused,
    )


def _begun(
    clients: Clients, scheme: Scheme, training: Training, known: Constants, *, provable: bool
) -> tuple[SchemeTheory, Timeline | None]:
    """What needs no optimum: quantities, assumptions and the ceiling, with which a given rate is compared."""
    from fedtempo.theory import assumptions, learning_rate_ceiling
    from fedtempo.theory.theorems import Steps

    line = clients.timeline(scheme)
    found = clients.quantities(scheme, line)
    said = assumptions(
        training.problem,
        timeline=line,
        scheme=None if line is not None else scheme,
        times=None if line is not None else clients.times,
        weights=clients.rule if line is None else _weights(clients, scheme),
        local=training.local,
    )
    ceiling: Ceiling | None = None
    if provable:
        steps = Steps.of(training.local, training.server_lr)
        ceiling = learning_rate_ceiling(
            found.expected,
            smoothness=known.smoothness,
            local_steps=steps.local_steps,
            server_lr=steps.server_lr,
        )
        if training.rate_given and steps.local_lr > ceiling.corrected * (1 + 1e-12):
            raise InputError(
                f"--lr: {steps.local_lr:g} is above {ceiling.corrected:.3g}, the largest rate for which the bound is "
                f"proved for {scheme.label} (L = {known.smoothness:.3g}, K = {steps.local_steps}, "
                f"τ = {ceiling.setting.max_delay}); lower it, or leave it out"
            )
    return SchemeTheory(scheme, found, said, ceiling), line


def _with_bound(
    begun: SchemeTheory, line: Timeline | None, clients: Clients, training: Training, known: Constants
) -> SchemeTheory:
    from fedtempo.theory import bound, residuals

    assert begun.ceiling is not None
    local = training.local if training.rate_given else replace(training.local, lr=begun.ceiling.corrected)
    try:
        made = bound(
            training.problem,
            timeline=line,
            scheme=None if line is not None else begun.scheme,
            times=None if line is not None else clients.times,
            weights=clients.rule if line is None else _weights(clients, begun.scheme),
            until=None if line is not None else clients.until,
            local=local,
            server_lr=training.server_lr,
        )
        left = residuals(known, made.expected)  # the problem's optima are found once for all
        made = replace(made, left=left, label=begun.scheme.label)
        log.info("%s: Theorem 1 bounds by %.4g", begun.scheme.label, made.theorem_1)
    except InputError as error:
        hint = "; here: --seed 0" if line is None and clients.times.random else ""
        reason = str(error).removeprefix(f"{begun.scheme}: ")
        return replace(begun, ceiling=None, refused=f"{reason}{hint}")
    met = None
    if training.measure:
        made, met = _measured(made, line, begun.scheme, clients, local)
    return replace(begun, bound=made, measured=met)


def _measured(
    made: Bound, line: Timeline | None, scheme: Scheme, clients: Clients, local: LocalSGD
) -> tuple[Bound, Measured]:
    """The bound with what depends on the models met, from one run."""
    from fedtempo.theory import measure

    drawn = line if line is not None else replace(clients, seed=0).timeline(scheme)
    assert drawn is not None
    log.info("training under %s for %d rounds", scheme.label, drawn.num_rounds)
    met = measure(made.left, drawn, _weights(clients, scheme), local, server_lr=made.steps.server_lr)
    unseen, never = float(met.unseen.mean()), float(met.never_seen.mean())
    return replace(made, gradient_bound=met.gradient_bound, unseen=unseen, never_seen=never), met


def _weights(clients: Clients, scheme: Scheme) -> Any:
    from fedtempo.schemes.timelines import weights

    return weights(scheme, clients.times, importance=clients.importance.exact, rule=clients.rule)


def _constants(known: Constants, *, solve: bool) -> tuple[tuple[Constant, ...], str | None]:
    """Every constant; and where there is no optimum, why."""
    smooth = known.curvature.smooth
    curved = known.rows_read.get("smoothness")
    found = [
        Constant("L", "smoothness", known.smoothness if smooth else None, curved),
        Constant("", "full_smoothness", known.full_smoothness if smooth else None),
        Constant("μ", "convexity", known.convexity),
    ]
    values: list[float | None] = [None] * 4
    refused = None
    if solve:
        try:
            values = [known.optimal_loss, known.heterogeneity, float(known.noise.min()), float(known.noise.max())]
        except InputError as error:
            unpenalised = dict(known.problem.spec().get("arguments", {})).get("l2") == 0  # type: ignore[call-overload]
            refused = f"{error}{'; here: --set l2=0.01' if unpenalised else ''}"
    cost = known.rows_read
    found += [
        Constant("L(θ*)", "optimal_loss", values[0], cost.get("optima")),
        Constant("H", "heterogeneity", values[1]),
        Constant("min σ_i²", "min_noise", values[2], cost.get("noise")),
        Constant("max σ_i²", "max_noise", values[3]),
    ]
    return tuple(found), refused
