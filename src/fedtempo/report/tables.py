"""Plans and timelines as tables on a terminal and as plain aligned text elsewhere; numbers and names as words."""

from __future__ import annotations

import io
import math
import shutil
import sys
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import IO, Any, cast

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from fedtempo.clock.availability import Availability
from fedtempo.clock.ticks import text
from fedtempo.clock.timeline import Timeline
from fedtempo.planning.compare import Plan, SchemePlan

NONE = "–"


def signed(share: float) -> str:
    """A relative difference in percent, or as a multiple where percents grow long."""
    if share > 9.995:
        return f"× {1.0 + share:.2g}"
    percent = f"{100 * share:+.0f}%" if abs(share) >= 0.0995 else f"{100 * share:+.1f}%"
    return "0%" if percent in ("+0.0%", "-0.0%") else percent.replace("-", "−")


def differing(a: float, b: float) -> str:
    """Two numbers with as many digits as it takes to tell them apart."""
    digits = next((d for d in range(3, 12) if f"{a:.{d}g}" != f"{b:.{d}g}"), 12)
    return f"{a:.{digits}g} instead of {b:.{digits}g}"


def cell(value: float, form: str) -> str:
    """A number in a table."""
    return NONE if math.isnan(value) else format(value, form)


def plain(value: Any) -> str:
    """A value of a hyper-parameter."""
    if isinstance(value, float):
        return NONE if math.isnan(value) else f"{value:g}"
    return str(value) or NONE


def counted(number: int, name: str) -> str:
    """As "1 run", "2 runs"."""
    return f"{number} {name}{'s' * (number != 1)}"


def both(names: Sequence[str]) -> str:
    """As "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def some(items: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more there are."""
    more = len(items) - most
    return "; ".join(items[:most]) + (f"; and so for {more} more" if more > 0 else "")


def verb_for(several: Sequence[object], verb: str) -> str:
    """As "a reaches", "a and b reach"."""
    return verb if len(several) > 1 else f"{verb}es"


class _Plain(io.TextIOBase):
    """Standard output without the blanks with which tables pad their lines."""

    def write(self, text: str) -> int:
        sys.stdout.write("\n".join(line.rstrip() for line in text.split("\n")))
        return len(text)


def console() -> Console:
    """Standard output: Rich on a terminal, at least as wide as the tables; elsewhere plain and never cut."""
    if sys.stdout.isatty():
        return Console(highlight=False, width=max(80, shutil.get_terminal_size().columns))
    return Console(file=cast(IO[str], _Plain()), highlight=False, no_color=True, width=400)


def titled_table(out: Console, title: str) -> Table:
    """An empty table under its title, which is a line of its own so that it is never broken."""
    out.print(f"\n[bold]{title}[/bold]")
    return Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, collapse_padding=out.is_terminal)


def show_plan(plan: Plan, *, details: bool = False) -> None:
    """The plan in two tables, what deserves a remark below; with `details` also every client."""
    out = console()
    clients = plan.times.num_clients
    means = plan.times.mean_time
    out.print(
        f"{clients} client{'s' * (clients != 1)}, {plan.times.always.law} times from {short(means.min())} to "
        f"{short(means.max())}, {plan.weight_rule.label} weights, {plan.step} step"
    )
    _show_pace(out, plan)
    _show_costs(out, plan)
    _show_fairness(out, plan)
    for scheme in plan.schemes:
        for remark in scheme.remarks:
            out.print(f"{scheme.scheme.label}: {remark}.", soft_wrap=not out.is_terminal)
    if details:
        for scheme in plan.schemes:
            _show_clients(out, plan, scheme)


def _show_pace(out: Console, plan: Plan) -> None:
    pace = titled_table(out, "Pace and staleness")
    pace.add_column("scheme", no_wrap=True)
    for name in ("rounds/time", "updates/time", "idle", "delay mean", "max", "step", "step/time"):
        pace.add_column(name, justify="right")
    for s in plan.schemes:
        step = s.server_step_per_time
        pace.add_row(
            s.scheme.label,
            short(s.rounds_per_time),
            short(s.updates_per_time),
            f"{s.idle_share:.0%}",
            short(s.mean_delay),
            _delay(s),
            short(s.step),
            "–" if step is None else short(step),
        )
    out.print(pace)


def _show_costs(out: Console, plan: Plan) -> None:
    """What it costs that clients come, go and fail, beside the same clients always there."""
    found = [(scheme, scheme.costs) for scheme in plan.schemes if scheme.costs is not None]
    if not found or plan.times.availability is None:
        return
    there = float(np.mean([costs.work.present for _, costs in found]))
    table = titled_table(out, f"What it costs that clients come, go and fail: {said(plan.times.availability)}")
    table.add_column("scheme", no_wrap=True)
    for name in ("rounds/time", "always there", "updates/time", "always there", "idle", "always there", "work lost"):
        table.add_column(name, justify="right")
    for scheme, costs in found:
        table.add_row(
            scheme.scheme.label,
            short(scheme.rounds_per_time),
            short(costs.rounds_per_time),
            short(scheme.updates_per_time),
            short(costs.updates_per_time),
            f"{scheme.idle_share:.0%}",
            f"{costs.idle_share:.0%}",
            f"{costs.work.failed + costs.work.lost:.0%}",
        )
    out.print(table)
    out.print(f"Clients are there {there:.0%} of the time; idle is of that time.")


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
        parts.append(f"absences of {away} client{'s' * (away != 1)}{again}")
    return ", ".join(parts)


def _show_fairness(out: Console, plan: Plan) -> None:
    fair = titled_table(out, "Windows, weights d_i, and what identical weights would cost")
    fair.add_column("scheme", no_wrap=True)
    for name in ("window", "practical", "d min", "d max", "bias", "χ²"):
        fair.add_column(name, justify="right")
    for s in plan.schemes:
        values = None if s.weights is None else s.weights.values[-1]
        fair.add_row(
            s.scheme.label,
            _whole(s.window),
            _whole(s.practical_window),
            "–" if values is None else short(values.min()),
            "–" if values is None else short(values.max()),
            f"{s.identical_bias:.0%}",
            "∞" if s.identical_chi2 is None else short(s.identical_chi2),
        )
    out.print(fair)
    if any(scheme.remarks for scheme in plan.schemes):
        out.print()


def _show_clients(out: Console, plan: Plan, scheme: SchemePlan) -> None:
    table = titled_table(out, f"{scheme.scheme.label}: participation ({scheme.run.participation.source}) and weights")
    for name in ("client", "time", "importance p", "participation", "weight d", "q", "q/p"):
        table.add_column(name, justify="right")
    part, times, importance = scheme.run.participation, plan.times.mean_time, plan.importance.values
    expected = scheme.expected_weights
    names = plan.times.names
    for i in range(plan.times.num_clients):
        weight = None if scheme.weights is None else scheme.weights.stage(scheme.weights.num_stages - 1)[i]
        table.add_row(
            names[i] if names is not None else str(i),
            short(times[i]),
            short(importance[i]),
            _value(part.exact[i] if part.exact is not None else float(part.share[i])),
            "–" if weight is None else _value(weight),
            "–" if expected is None else short(expected[i]),
            "–" if expected is None else short(expected[i] / importance[i]),
        )
    out.print(table)


def show_timeline(line: Timeline, label: str, *, most: int = 40) -> None:
    """The first rounds, and a summary."""
    out = console()
    table = titled_table(
        out, f"{label}: {line.num_rounds} rounds, {line.num_updates} updates of {line.num_clients} clients"
    )
    for name in ("round", "ends", "participants", "base versions"):
        table.add_column(name, justify="right" if name in ("round", "ends") else "left")
    for closed in line[:most].rounds:
        names = [f"{c}×{k}" if k > 1 else str(c) for c, k in zip(closed.participants, closed.draws, strict=True)]
        table.add_row(str(closed.number), text(closed.end), _list(names), _list(map(str, closed.base_versions)))
    out.print(table)
    if line.num_rounds > most:
        out.print(f"… and {line.num_rounds - most} more rounds: --json lists them all, --out timeline.svg draws them")
    stale = line.staleness
    if len(stale):
        out.print(f"delay: mean {short(stale.mean())}, largest {stale.max()}; live versions: at most {_live(line)}")


def _delay(scheme: SchemePlan) -> str:
    if scheme.max_delay_exact:
        return str(scheme.max_delay)
    return f"≥ {scheme.max_delay}" if scheme.max_delay_bound is None else f"{scheme.max_delay}–{scheme.max_delay_bound}"


def _live(line: Timeline) -> int:
    return int(line.live_versions.max(initial=0))


def _list(items: object, most: int = 12) -> str:
    names = list(items)  # type: ignore[call-overload]
    return " ".join(names[:most]) + (f" … ({len(names)})" if len(names) > most else "") or "–"


def _value(number: Fraction | float) -> str:
    if isinstance(number, Fraction):
        exact = text(number)
        return exact if len(exact) <= 12 else f"≈ {float(number):.6g}"
    return f"{number:.6g}"


def short(number: float) -> str:
    """A number with the digits that a table needs."""
    return f"{float(number):.4g}"


def _whole(number: int | None) -> str:
    if number is None:
        return "–"
    if number < 10**7:
        return str(number)
    return f"{Decimal(number):.2e}".replace("e+", "e")
