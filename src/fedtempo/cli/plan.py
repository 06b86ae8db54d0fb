"""``fedtempo plan``: which scheme does what with these clients."""

from __future__ import annotations

import json
import logging
from typing import Annotated

import typer

from fedtempo.cli.options import (
    AsJson,
    Buffers,
    Clients,
    ImportanceText,
    Law,
    Quiet,
    Resolution,
    Samples,
    SchemeNames,
    Seed,
    Spread,
    Stages,
    Times,
    Verbose,
    Waits,
    read_importance,
    read_schemes,
    read_times,
    set_loudness,
)

log = logging.getLogger(__name__)


def plan(
    times: Times,
    clients: Clients = None,
    law: Law = None,
    spread: Spread = None,
    resolution: Resolution = None,
    scheme: SchemeNames = None,
    wait: Waits = None,
    buffer: Buffers = None,
    sample: Samples = None,
    stage: Stages = None,
    importance: ImportanceText = None,
    weights: Annotated[str, typer.Option("--weights", help="time-based, identical or importance.")] = "time-based",
    discount: Annotated[
        str | None,
        typer.Option(
            "--discount", help="For stale updates: polynomial:0.5, hinge:10:4, constant:0.5.", show_default=False
        ),
    ] = None,
    seed: Seed = 0,
    details: Annotated[bool, typer.Option("--details", help="Also show every client.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = 0,
    quiet: Quiet = False,
) -> None:
    """Compare schemes for clients of unequal speed: pace, staleness, windows, weights.

    Repeat --scheme, --wait, --buffer, --sample for more; without --scheme a sensible set is compared.
    """
    from fedtempo.discounts import parse_discount
    from fedtempo.planning import compare
    from fedtempo.weighting import Discounted, weight_rule

    if verbose or quiet:
        set_loudness(verbose, quiet)
    known = read_times(times, clients, law, spread, resolution)
    chosen = read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage)
    rule = weight_rule(weights)
    if discount is not None:
        rule = Discounted(rule, parse_discount(discount))
    log.info("planning for %s", known)
    made = compare(known, chosen, importance=read_importance(importance), weights=rule, seed=seed)
    if as_json:
        typer.echo(json.dumps(made.to_dict(), allow_nan=False))
        return
    from fedtempo.report.tables import show_plan

    show_plan(made, details=details)
