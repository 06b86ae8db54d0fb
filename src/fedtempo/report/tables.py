"""Plans and timelines: their tables, and what deserves a word below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import numpy as np

from fedtempo.clock.availability import Availability
from fedtempo.clock.ticks import text
from fedtempo.clock.timeline import Timeline
from fedtempo.planning.compare import Plan, SchemePlan
from fedtempo.report.page import BLANK, Grid, Line, Page, names, page, table, words
from fedtempo.report.text import NONE, cell, counted, short
from fedtempo.theory.optimality import OverOptimal
from fedtempo.weighting.weights import Weights

MOST = 40
"""Rows of a table of rounds or clients that `print` shows."""


def show_plan(plan: Plan, *, details: bool = False) -> None:
    """Print the plan; with `details` also every client."""
    plan_page(plan, details=details).show()


def plan_page(plan: Plan, *, details: bool = False) -> Page:
    """The plan in two tables, what deserves a remark below; with `details` also every client."""
    means = plan.times.mean_time
    return page(
        f"{counted(plan.times.num_clients, 'client')}, {plan.times.always.law} times from {short(means.min())} to "
        f"{short(means.max())}, {plan.weight_rule.label} weights, {plan.step} step",
        _pace(plan.schemes),
        *_guarantees(plan.schemes),
        *_costs(plan),
        _fairness(plan.schemes),
        *_remarks(plan.schemes),
        *([_clients(scheme) for scheme in plan.schemes] if details else []),
    )


def scheme_page(scheme: SchemePlan) -> Page:
    """What a plan says of one scheme: its rows, its remarks, and its clients."""
    one = (scheme,)
    hidden = scheme.run.times.num_clients - MOST
    more = f"… and {hidden} more clients: .table() lists them all" if hidden > 0 else None
    return page(_pace(one), *_guarantees(one), _fairness(one), *_remarks(one), _clients(scheme, MOST), more)


def _remarks(schemes: Iterable[SchemePlan]) -> list[Line]:
    found = [Line(f"{scheme.scheme.label}: {remark}.") for scheme in schemes for remark in scheme.remarks]
    return [BLANK, *found] if found else []


def _pace(schemes: Sequence[SchemePlan]) -> Grid:
    heads = ("rounds/time", "updates/time", "idle", "delay mean", "max", "step", "step/time", "over optimal")
    made = table(
        "Pace and staleness",
        (names("scheme"), *heads),
        (
            (
                s.scheme.label,
                short(s.rounds_per_time),
                short(s.updates_per_time),
                f"{s.idle_share:.0%}",
                short(s.mean_delay),
                _delay(s),
                short(s.step),
                NONE if s.server_step_per_time is None else short(s.server_step_per_time),
                _over_optimal(s.over_optimal, "heterogeneous"),
            )
            for s in schemes
        ),
    )
    return replace(made, spare=("over optimal",))


def _over_optimal(found: OverOptimal | None, data: Literal["heterogeneous", "homogeneous"], between: str = "–") -> str:
    """From no noise to noise alone, or at the noise given."""
    if found is None:
        return NONE
    wanted = (found.no_noise, found.all_noise) if found.at_noise is None else (found.at_noise,)
    values = [getattr(ratio, data) for ratio in wanted]
    return NONE if None in values else between.join(f"{value:.3g}" for value in values)


def _guarantees(schemes: Sequence[SchemePlan]) -> Iterator[Line]:
    """What over optimal means, and its values if the clients drew from the same data."""
    known = [(scheme.scheme.label, scheme.over_optimal) for scheme in schemes if scheme.over_optimal is not None]
    if not known:
        return
    noise = known[0][1].noise
    where = "from no noise to noise alone" if noise is None else f"at noise σ²/ε = {noise:g}"
    means = "" if schemes[0].run.times.always.law == "fixed" else ", with mean times"
    same = ", ".join(f"{label} {_over_optimal(one, 'homogeneous', ' to ')}" for label, one in known)
    yield BLANK
    yield Line(f"over optimal: worst-case guarantee over the lower bound, {where}{means}.")
    yield Line(f"If all clients drew from the same data: {same}.")


def _costs(plan: Plan) -> Iterator[Grid | Line]:
    """What it costs that clients come, go and fail, beside the same clients always there."""
    found = [(scheme, scheme.costs) for scheme in plan.schemes if scheme.costs is not None]
    if not found or plan.times.availability is None:
        return
    heads = ("rounds/time", "always there", "updates/time", "always there", "idle", "always there", "work lost")
    yield table(
        f"What it costs that clients come, go and fail: {said(plan.times.availability)}",
        (names("scheme"), *heads),
        (
            (
                scheme.scheme.label,
                short(scheme.rounds_per_time),
                short(costs.rounds_per_time),
                short(scheme.updates_per_time),
                short(costs.updates_per_time),
                f"{scheme.idle_share:.0%}",
                f"{costs.idle_share:.0%}",
                f"{costs.work.failed + costs.work.lost:.0%}",
            )
            for scheme, costs in found
        ),
    )
    there = float(np.mean([costs.work.present for _, costs in found]))
    yield Line(f"Clients are there {there:.0%} of the time; idle is of that time.")


def said(availability: Availability) -> str:
    """An availability in a few words."""
    parts = []
    for name, values in (("failure", availability.failure), ("on", availability.on), ("off", availability.off)):
        if values is not None and any(values):
            low, high = float(min(values)), float(max(values))
            parts.append(f"{name} {short(low)}" + (f" to {short(high)}" if high > low else ""))
    away = sum(bool(rows) for rows in availability.absences)
    if away:
        again = f", every {text(availability.period)}" if availability.period is not None else ""
        parts.append(f"absences of {counted(away, 'client')}{again}")
    return ", ".join(parts)


def _fairness(schemes: Iterable[SchemePlan]) -> Grid:
    rows = []
    for s in schemes:
        values = None if s.weights is None else s.weights.values[-1]
        rows.append(
            (
                s.scheme.label,
                _whole(s.window),
                _whole(s.practical_window),
                NONE if values is None else short(values.min()),
                NONE if values is None else short(values.max()),
                f"{s.identical_bias:.0%}",
                "∞" if s.identical_chi2 is None else short(s.identical_chi2),
            )
        )
    heads = ("window", "practical", "d min", "d max", "bias", "χ²")
    return table("Windows, weights d_i, and what identical weights would cost", (names("scheme"), *heads), rows)


def _clients(scheme: SchemePlan, most: int | None = None) -> Grid:
    part, times, importance = scheme.run.participation, scheme.run.times, scheme.run.importance.values
    expected = scheme.expected_weights
    weights = None if scheme.weights is None else weights_in(scheme.weights, -1)
    rows = (
        (
            client_name(times.names, i),
            short(times.mean_time[i]),
            short(importance[i]),
            exactly(part.exact[i] if part.exact is not None else float(part.share[i])),
            NONE if weights is None else exactly(weights[i]),
            NONE if expected is None else short(expected[i]),
            NONE if expected is None else short(expected[i] / importance[i]),
        )
        for i in range(times.num_clients if most is None else min(most, times.num_clients))
    )
    heads = ("client", "time", "importance p", "participation", "weight d", "q", "q/p")
    return table(f"{scheme.scheme.label}: participation ({part.source}) and weights", heads, rows)


def weights_in(weights: Weights, stage: int) -> Sequence[Fraction | float]:
    """d_i of a stage, exactly where that is known."""
    exact = weights.exact[stage]
    return weights.values[stage].tolist() if exact is None else exact


def client_name(known: tuple[str, ...] | None, client: int) -> str:
    """The name of a client, or its number."""
    return str(client) if known is None else known[client]


def exactly(number: Fraction | float) -> str:
    """A rational as it is written where that is short, else a number with six digits."""
    if isinstance(number, Fraction):
        exact = text(number)
        return exact if len(exact) <= 12 else f"≈ {float(number):.6g}"
    return cell(number, ".6g")


def _delay(scheme: SchemePlan) -> str:
    if scheme.max_delay_exact:
        return str(scheme.max_delay)
    return f"≥ {scheme.max_delay}" if scheme.max_delay_bound is None else f"{scheme.max_delay}–{scheme.max_delay_bound}"


def _whole(number: int | None) -> str:
    if number is None:
        return NONE
    if number < 10**7:
        return str(number)
    return f"{Decimal(number):.2e}".replace("e+", "e")


# -- timelines


def show_timeline(line: Timeline, label: str | None = None, *, most: int = MOST) -> None:
    """Print the first rounds, and a summary."""
    timeline_page(line, label, most=most, more="--json lists them all, --out timeline.svg draws them").show()


def timeline_page(
    line: Timeline, label: str | None = None, *, most: int = MOST, more: str = ".table() lists them all"
) -> Page:
    """The first rounds, and a summary; `more` says where the others are."""
    known = None if line.origin is None else line.origin.config.times.names
    names = known or [str(client) for client in range(line.num_clients)]
    rounds = (
        (
            str(closed.number),
            text(closed.end),
            _list(
                f"{names[c]}×{k}" if k > 1 else names[c] for c, k in zip(closed.participants, closed.draws, strict=True)
            ),
            _list(map(str, closed.base_versions)),
        )
        for closed in line[:most].rounds
    )
    title = (
        f"{label or line.label or 'Timeline'}: {counted(line.num_rounds, 'round')}, "
        f"{counted(line.num_updates, 'update')} of {counted(line.num_clients, 'client')}"
    )
    hidden = line.num_rounds - most
    return page(
        table(title, ("round", "ends", words("participants"), words("base versions")), rounds),
        f"… and {hidden} more rounds: {more}" if hidden > 0 else None,
        _staleness(line) if line.num_updates else None,
    )


def _staleness(line: Timeline) -> str:
    stale, live = line.staleness, int(line.live_versions.max(initial=0))
    return f"delay: mean {short(stale.mean())}, largest {stale.max()}; live versions: at most {live}"


def _list(items: Iterable[str], most: int = 12) -> str:
    listed = list(items)
    return " ".join(listed[:most]) + (f" … ({len(listed)})" if len(listed) > most else "") or NONE
