"""``fedtempo plan``: what each scheme does with these clients; with ``--problem`` also which one to take.

The clients' times are enough to compare schemes; for a problem and a time, scheme, wait and learning rate are
recommended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.data import DataDir
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import read_times, with_availability
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme
from fedtempo.weighting.weight_rules import WeightRule

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
    weights: Annotated[str, typer.Option("--weights", help="time-based, identical or importance.")] = "time-based",
    step: o.Step = None,
    discount: Annotated[
        str | None,
        typer.Option(
            "--discount", help="For stale updates: polynomial:0.5, hinge:10:4, constant:0.5.", show_default=False
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            help="Recommend for this problem: digits, mnist, cifar10, shakespeare, or package.module:function.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="With --problem: iid, dirichlet:0.1, …", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    until: Annotated[
        str | None, typer.Option("--until", help="With --problem: the time to plan for.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="With --problem: local steps K.")] = 1,
    batch_size: Annotated[str, typer.Option("--batch-size", help="With --problem: rows a step, or all.")] = "32",
    lr: Annotated[
        list[str] | None,
        typer.Option("--lr", help="With --problem: rates to compare, as 0.1,0.2.", show_default="in 1-2-5 steps"),
    ] = None,
    share: Annotated[
        float, typer.Option("--pilot", help="With --problem: share of the client updates for the pilot.")
    ] = 0.05,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="With --problem: picture to write, as plan.svg.", show_default=False)
    ] = None,
    seed: o.Seed = 0,
    details: Annotated[bool, typer.Option("--details", help="Also show every client.")] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Compare schemes for clients of unequal speed: pace, staleness, windows, weights.

    With --problem and --until: a short pilot, then which scheme, wait and learning rate to use. Repeat --scheme,
    --wait, --buffer, --sample for more; without --scheme a sensible set is compared.
    """
    from fedtempo.planning.compare import compare
    from fedtempo.weighting.weight_rules import Discounted, parse_discount, weight_rule

    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    known = with_availability(
        read_times(times, clients, law, spread, resolution),
        failure=failure,
        on=on,
        off=off,
        absences=absences,
        period=period,
    )
    chosen = o.read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage)
    rule = weight_rule(weights)
    if discount is not None:
        rule = Discounted(rule, parse_discount(discount))
    if problem is not None:
        if known.availability is not None and known.availability.changes:
            raise InputError("--absences: with --problem clients must not come or go for good; add --period")
        if importance is not None:
            raise InputError("--importance: with --problem the clients' importance is the problem's; leave it out")
        spec = {"name": problem, "clients": known.num_clients, "partition": partition, "data_dir": data_dir}
        recommended(
            {name: value for name, value in spec.items() if value is not None},
            known,
            chosen,
            until=until,
            rule=rule,
            step=step or "stable",
            rates=lr,
            steps=steps,
            batch_size=batch_size,
            share=share,
            seed=seed,
            figure=figure,
            as_json=as_json,
        )
        return
    if until is not None or partition is not None or lr or figure is not None:
        raise InputError("--until, --partition, --lr and --figure are for a recommendation: give --problem too")
    log.info("planning for %s", known)
    made = compare(
        known, chosen, importance=o.read_importance(importance), weights=rule, seed=seed, step=step or "stable"
    )
    if as_json:
        typer.echo(json.dumps(made.to_dict(), allow_nan=False))
        return
    from fedtempo.report.tables import show_plan

    show_plan(made, details=details)


def recommended(
    problem: dict[str, Any],
    times: ClientTimes,
    schemes: Sequence[Scheme] | None,
    *,
    until: str | None,
    rule: WeightRule,
    step: str,
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
    from fedtempo.planning.recommend import recommend
    from fedtempo.problems.naming import named
    from fedtempo.report.recommendation_tables import show_recommendation
    from fedtempo.training.solvers import LocalSGD

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
        step=step,
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
