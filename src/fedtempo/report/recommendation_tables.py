"""A recommendation on a terminal: the choice, every scheme at its best rate, what the pilot saw."""

from __future__ import annotations

import math

from rich.console import Console

from fedtempo.planning.recommend import Recommendation
from fedtempo.report.tables import console, short, titled_table

_NOTHING = 1e-12
"""Losses below are rounding."""


def show_recommendation(made: Recommendation) -> None:
    """The choice first, then why."""
    out = console()
    best = made.best
    out.print(
        f"[bold]{best.scheme.label} with local learning rate {best.local_lr:g}[/bold]: predicted loss {best.loss:.4g} "
        f"at time {float(made.until):g}, {best.excess:.2g} above the least"
    )
    _show_schemes(out, made)
    _show_pilot(out, made)
    for sentence in made.assumes:
        out.print(sentence, soft_wrap=not out.is_terminal)


def _show_schemes(out: Console, made: Recommendation) -> None:
    table = titled_table(out, "Schemes, each at its best learning rate; losses above the least")
    table.add_column("scheme", no_wrap=True)
    names = (
        "lr",
        "loss",
        "progress",
        "noise",
        "clients apart",
        "drift",
        "unstable from",
        "proven to",
        "bound",
        "rounds",
    )
    for name in names:
        table.add_column(name, justify="right")
    for choice in made.choices:
        one = made.prediction(choice.scheme)
        k = one.best
        parts = (one.excess[k], one.progress[k], one.noise[k], one.heterogeneity[k], one.drift[k])
        table.add_row(
            choice.scheme.label,
            f"{choice.local_lr:g}",
            *(_small(float(part)) for part in parts),
            short(made.limits[choice.scheme.label].lr),
            f"{one.proven_lr:.2g}",
            f"{one.proven_loss:.2g}",
            str(one.num_rounds),
        )
    out.print(table)
    out.print(
        "bound: what the paper's Theorem 1 promises at the largest rate for which it is proved, its first term alone.",
        soft_wrap=not out.is_terminal,
    )


def _show_pilot(out: Console, made: Recommendation) -> None:
    pilot = made.pilot
    table = titled_table(
        out,
        f"The pilot: {short(made.pilot_updates)} client updates of {short(made.planned_updates)} planned "
        f"({made.pilot_updates / made.planned_updates:.1%})",
    )
    for name in ("loss", "above the least", "largest curvature", "noise of a row", "heterogeneity"):
        table.add_column(name, justify="right")
    numbers = (
        pilot.end_loss,
        made.model.remaining,
        pilot.largest_curvature,
        pilot.mean_noise,
        pilot.mean_heterogeneity,
    )
    table.add_row(*(f"{number:.3g}" for number in numbers))
    out.print(table)


def _small(number: float) -> str:
    if not math.isfinite(number):
        return "unstable"
    return f"{number:.2g}" if number > _NOTHING else "0"
