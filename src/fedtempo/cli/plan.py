"""``fedtempo plan``: which scheme does what with these clients."""

from __future__ import annotations

import json
import logging
from typing import Annotated

import typer

from fedtempo.cli import options as o

log = logging.getLogger(__name__)


def plan(
    times: o.Times,
    clients: o.Clients = None,
    law: o.Law = None,
    spread: o.Spread = None,
    resolution: o.Resolution = None,
    scheme: o.SchemeNames = None,
    wait: o.Waits = None,
    buffer: o.Buffers = None,
    sample: o.Samples = None,
    stage: o.Stages = None,
    importance: o.ImportanceText = None,
    weights: Annotated[str, typer.Option("--weights", help="time-based, identical or importance.")] = "time-based",
    discount: Annotated[
        str | None,
        typer.Option(
            "--discount", help="For stale updates: polynomial:0.5, hinge:10:4, constant:0.5.", show_default=False
        ),
    ] = None,
    seed: o.Seed = 0,
    details: Annotated[bool, typer.Option("--details", help="Also show every client.")] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Compare schemes for clients of unequal speed: pace, staleness, windows, weights.

    Repeat --scheme, --wait, --buffer, --sample for more; without --scheme a sensible set is compared.
    """
    from fedtempo.discounts import parse_discount
    from fedtempo.planning import compare
    from fedtempo.weighting import Discounted, weight_rule

    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    known = o.read_times(times, clients, law, spread, resolution)
    chosen = o.read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage)
    rule = weight_rule(weights)
    if discount is not None:
        rule = Discounted(rule, parse_discount(discount))
    log.info("planning for %s", known)
    made = compare(known, chosen, importance=o.read_importance(importance), weights=rule, seed=seed)
    if as_json:
        typer.echo(json.dumps(made.to_dict(), allow_nan=False))
        return
    from fedtempo.report.tables import show_plan

    show_plan(made, details=details)
