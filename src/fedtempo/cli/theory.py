"""``fedtempo theory``: every quantity of tables 1 and 2 and, with a problem, every term of the bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.reading import (
    client_times,
    local_table,
    only_one,
    problem_and_times,
    problem_table,
    read_importance,
    read_schemes,
    refuse_without_problem,
)
from fedtempo.cli.run import prepare_jax
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import positive
from fedtempo.errors import InputError
from fedtempo.planning.compare import sensible_waits
from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedFix, Scheme
from fedtempo.theory.document import Clients, Training, bounds_of, quantities_of
from fedtempo.weighting.weight_rules import weight_rule

if TYPE_CHECKING:
    from fedtempo.clock.times import ClientTimes
    from fedtempo.problems.problem import Problem

HORIZON = Fraction(100)
"""Time of training for which a bound is worked out, unless --until says otherwise."""


def theory(
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
    weights: o.Weights = "time-based",
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help="Virtual time at which training ends.", show_default="the long run; 100 with --problem"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Seed of random times and of sampling: work with the timeline that it draws instead of its law.",
            show_default=False,
        ),
    ] = None,
    problem: Annotated[str | None, o.problem_option()] = None,
    partition: o.Partition = None,
    settings: o.Settings = None,
    data_dir: o.DataDir = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = None,
    lr: Annotated[list[str] | None, o.lr_option("auto: the largest with a bound")] = None,
    server_lr: o.ServerLr = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Also train once and measure U, B and what the theorems bound; needs --problem."
        ),
    ] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Show every quantity of the theory and, with --problem, every term of its bounds.

    They are those of the timeline; where times or samples are random, those of their law, or of one draw with --seed.

    Repeat --scheme, --wait, --buffer and --sample for more columns.

    Clients are always there: --failure, --on, --off and --absences are flags of plan, timeline and run.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    made = None
    if problem is None:
        refuse_without_problem(
            partition=partition, set=settings, data_dir=data_dir, lr=lr, steps=steps, batch_size=batch_size,
            server_lr=server_lr, measure=measure,
        )  # fmt: skip
        known = client_times(times, clients, law, spread, resolution)
    else:
        if importance is not None:
            raise InputError("--importance: the problem has its own; leave it out, or use --set importance=rows")
        local = local_table(lr=lr, steps=steps, batch_size=batch_size, server_lr=server_lr)
        only_one(local, "theory", ("lr", "steps", "batch_size", "server_lr"))
        prepare_jax()
        table = problem_table(problem, partition, settings, data_dir)
        made, known = problem_and_times(table, times, clients, law, spread, resolution)
    chosen = read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage) or _usual(known)
    horizon = None if until is None else positive(until, "--until")
    if made is None:
        if seed is not None and horizon is None:
            raise InputError("--seed: it draws a timeline, which needs an end; add --until 100")
        shares = Importance(read_importance(importance), known.num_clients)
        found = quantities_of(Clients(known, shares, weight_rule(weights), horizon, seed), chosen)
    else:
        there = Clients(known, made.importance, weight_rule(weights), horizon or HORIZON, seed)
        found = bounds_of(there, chosen, _training(made, local, measure))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
        return
    from fedtempo.report.theory_tables import show_theory

    show_theory(found)


def _usual(times: ClientTimes) -> list[Scheme]:
    """What is shown when no scheme is named: the paper's three."""
    waits = sensible_waits(times)
    return [FedAvg(), AsyncFedAvg(), FedFix(waits[len(waits) // 2])]


def _training(problem: Problem, local: Mapping[str, Any], measure: bool) -> Training:
    """What is trained; without a learning rate the largest with a bound is taken."""
    from fedtempo.training.solvers import LocalSGD

    rate = local.get("lr", "auto")
    rows = local.get("batch_size", 32)
    work = LocalSGD(
        steps=local.get("steps", 1),
        lr=1.0 if rate == "auto" else float(positive(rate, "--lr")),
        batch_size=None if rows == "all" else rows,
    )
    server = float(positive(local.get("server_lr", 1.0), "--server-lr"))
    return Training(problem, work, rate != "auto", server, measure)
