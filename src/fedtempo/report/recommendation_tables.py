"""A recommendation: the choice, every scheme at its best rate, what the pilot saw."""

from __future__ import annotations

import math

from fedtempo.planning.recommend import Recommendation
from fedtempo.report.page import Grid, Line, Page, names, page, table
from fedtempo.report.text import short

_NOTHING = 1e-12
"""Losses below are rounding."""


def show_recommendation(made: Recommendation) -> None:
    """Print it."""
    recommendation_page(made).show()


def recommendation_page(made: Recommendation) -> Page:
    """The choice first, then why."""
    best = made.best
    return page(
        Line(
            f": predicted loss {best.loss:.4g} at time {float(made.until):g}, {best.excess:.2g} above the least",
            bold=f"{best.scheme.label} with local learning rate {best.local_lr:g}",
        ),
        _schemes(made),
        "bound: what the paper's Theorem 1 promises at the largest rate for which it is proved, its first term alone.",
        _pilot(made),
        *made.assumes,
    )


def _schemes(made: Recommendation) -> Grid:
    heads = (
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
    rows = []
    for choice in made.choices:
        one = made.prediction(choice.scheme)
        k = one.best
        parts = (one.excess[k], one.progress[k], one.noise[k], one.heterogeneity[k], one.drift[k])
        rows.append(
            (
                choice.scheme.label,
                f"{choice.local_lr:g}",
                *(_small(float(part)) for part in parts),
                short(made.limits[choice.scheme.label].lr),
                f"{one.proven_lr:.2g}",
                f"{one.proven_loss:.2g}",
                str(one.num_rounds),
            )
        )
    return table("Schemes, each at its best learning rate; losses above the least", (names("scheme"), *heads), rows)


def _pilot(made: Recommendation) -> Grid:
    pilot = made.pilot
    numbers = (
        pilot.end_loss,
        made.model.remaining,
        pilot.largest_curvature,
        pilot.mean_noise,
        pilot.mean_heterogeneity,
    )
    return table(
        f"The pilot: {short(made.pilot_updates)} client updates of {short(made.planned_updates)} planned "
        f"({made.pilot_updates / made.planned_updates:.1%})",
        ("loss", "above the least", "largest curvature", "noise of a row", "heterogeneity"),
        [[f"{number:.3g}" for number in numbers]],
    )


def _small(number: float) -> str:
    if not math.isfinite(number):
        return "unstable"
    return f"{number:.2g}" if number > _NOTHING else "0"
