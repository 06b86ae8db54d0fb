"""``fedtempo plan``: what each scheme does with these clients; with ``--problem`` also which one to take.

The clients' times are enough to compare schemes; for a problem and a time, scheme, wait and learning rate are
recommended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme, without_options
from fedtempo.weighting.weight_rules import WeightRule

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem

log = logging.getLogger(__name__)


def plan(
    times: o.Times,
    clients: o.Clients = None,
    law: o.Law = None,
    spread: o.Spread = None,
    resolution: o.Resolution = None,
    failure: o.Failure = None,
    on: o.On = None,
    off: o.Off = None,
    absences: o.Absences = None,
    period: o.Period = None,
    scheme: o.SchemeNames = None,
    wait: o.Waits = None,
    buffer: o.Buffers = None,
    sample: o.Samples = None,
    stage: o.Stages = None,
    importance: o.ImportanceText = None,
    weights: o.Weights = "time-based",
    step: o.Step = None,
    discount: Annotated[
        str | None,
        typer.Option(
            "--discount",
            help="For stale updates: polynomial:0.5, hinge:10:4, constant:0.5.",
            show_default=False,
            rich_help_panel="Schemes",
        ),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise",
            help="σ²/ε, at which guarantees are compared with the lower bound; else from 0 to infinity.",
            show_default=False,
            rich_help_panel="Schemes",
        ),
    ] = None,
    problem: Annotated[str | None, o.problem_option()] = None,
    partition: o.Partition = None,
    settings: o.Settings = None,
    data_dir: o.DataDir = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Virtual time at which training ends; needs --problem.", show_default=False),
    ] = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = None,
    lr: Annotated[list[str] | None, o.lr_option("auto: in steps of 1, 2, 5")] = None,
    server_lr: o.ServerLr = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--pilot",
            help="Share of the client updates that the pilot may use; needs --problem.",
            show_default="0.05",
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Picture to draw, as plan.svg; needs --problem.", show_default=False)
    ] = None,
    seed: o.Seed = 0,
    details: Annotated[bool, typer.Option("--details", help="Also show every client.")] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Compare schemes for clients of unequal speed: pace, staleness, windows, weights.

    With --problem and --until it trains a short pilot and recommends a scheme, a wait and a learning rate.

    Repeat --scheme, --wait, --buffer and --sample to compare more; without --scheme a sensible set is compared.
    """
    from fedtempo.planning.compare import compare
    from fedtempo.weighting.weight_rules import Discounted, parse_discount, weight_rule

    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    rest = (law, spread, resolution)
    availability = {"failure": failure, "on": on, "off": off, "absences": absences, "period": period}
    rule = weight_rule(weights)
    if discount is not None:
        rule = Discounted(rule, parse_discount(discount))
    if problem is not None:
        if until is None:
            raise InputError("--until: how long is the training to take? Give the virtual time, as --until 200")
        if noise is not None:
            raise InputError("--noise: it belongs to a plan without a problem; leave it out, or leave out --problem")
        if importance is not None:
            raise InputError("--importance: the problem has its own; leave it out, or use --set importance=rows")
        local = o.local_table(lr=lr, steps=steps, batch_size=batch_size, server_lr=server_lr)
        o.only_one(local, "plan", ("steps", "batch_size", "server_lr"))
        if figure is not None:
            from fedtempo.report.style import ending_of

            ending_of(figure, "plan.svg")
        from fedtempo.cli.run import prepare_jax

        prepare_jax()
        table = o.problem_table(problem, partition, settings, data_dir)
        made, known = o.problem_and_times(table, times, clients, *rest, **availability)
        if known.availability is not None and known.availability.changes:
            raise InputError("--absences: with --problem clients must not come or go for good; add --period")
        chosen = o.read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage)
        for one in chosen or ():
            without_options(one)
        recommended(
            made,
            known,
            chosen,
            until=until,
            rule=rule,
            step=step or "stable",
            local=local,
            share=0.05 if share is None else share,
            seed=seed,
            figure=figure,
            as_json=as_json,
        )
        return
    o.refuse_without_problem(
        until=until, partition=partition, set=settings, data_dir=data_dir, lr=lr, steps=steps, batch_size=batch_size,
        server_lr=server_lr, pilot=share, figure=figure,
    )  # fmt: skip
    known = o.client_times(times, clients, *rest, **availability)
    chosen = o.read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage)
    log.info("planning for %s", known)
    compared = compare(
        known,
        chosen,
        importance=o.read_importance(importance),
        weights=rule,
        seed=seed,
        step=step or "stable",
        noise=noise,
    )
    if as_json:
        typer.echo(json.dumps(compared.to_dict(), allow_nan=False))
        return
    from fedtempo.report.tables import show_plan

    show_plan(compared, details=details)


def recommended(
    problem: Problem,
    times: ClientTimes,
    schemes: Sequence[Scheme] | None,
    *,
    until: str,
    rule: WeightRule,
    step: str,
    local: Mapping[str, Any],
    share: float,
    seed: int,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Carry out the pilot, and show what follows."""
    from fedtempo.planning.recommend import recommend
    from fedtempo.report.recommendation_tables import show_recommendation
    from fedtempo.simulation.study_file import local_of

    rates = local.get("lr", "auto")
    made = recommend(
        problem,
        times,
        until=until,
        local=local_of({key: local[key] for key in ("steps", "batch_size") if key in local}),  # type: ignore[arg-type]
        schemes=schemes,
        rates=None if rates == "auto" else rates if isinstance(rates, list) else [rates],
        weights=rule,
        step=step,
        server_lr=local.get("server_lr", 1.0),
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
