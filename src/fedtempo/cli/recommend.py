"""``fedtempo plan --problem``: recommend scheme, wait and learning rate for a problem and a time."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.schemes import Scheme
from fedtempo.weighting import WeightRule

log = logging.getLogger(__name__)


def recommended(
    problem: dict[str, Any],
    times: ClientTimes,
    schemes: Sequence[Scheme] | None,
    *,
    until: str | None,
    rule: WeightRule,
    rates: Sequence[str] | None,
    steps: int,
    batch_size: str,
    share: float,
    seed: int,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Carry out the pilot, and show what follows."""
    from fedtempo.cli.run import prepare_jax

    if until is None:
        raise InputError("--until: how long is the training to take? Give the virtual time, as --until 200")
    prepare_jax()
    from fedtempo.local.solvers import LocalSGD
    from fedtempo.planner.choosing import recommend
    from fedtempo.problems.naming import named
    from fedtempo.report.recommendation_tables import show_recommendation

    if figure is not None:
        from fedtempo.report.style import ending_of

        ending_of(figure, "plan.svg")
    made = recommend(
        named(problem),
        times,
        until=until,
        local=LocalSGD(steps=steps, batch_size=_batch_size(batch_size)),
        schemes=schemes,
        rates=None if not rates else _rates(rates),
        weights=rule,
        share=share,
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps(made.to_dict(), allow_nan=False))
    else:
        show_recommendation(made)
    if figure is not None:
        from fedtempo.report.recommendation_figure import save_recommendation

        save_recommendation(made, figure)
        if not as_json:
            typer.echo(f"{figure}: predicted loss against the wait, with the largest stable rates")


def _batch_size(given: str) -> int | None:
    if given == "all":
        return None
    try:
        return int(given)
    except ValueError:
        raise InputError(f"--batch-size: {given!r} is not a whole number; give rows a step, or all") from None


def _rates(given: Sequence[str]) -> list[float]:
    try:
        return [float(part) for text in given for part in text.split(",")]
    except ValueError:
        raise InputError(f"--lr: {', '.join(given)} are not numbers; give rates as 0.1,0.2") from None
