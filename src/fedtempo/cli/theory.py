"""``fedtempo theory``: every quantity of tables 1 and 2 and, with a problem, every term of the bound."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.data import DataDir
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
    from fedtempo.training.solvers import LocalSGD

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
    weights: Annotated[str, typer.Option("--weights", help="time-based, identical or importance.")] = "time-based",
    until: Annotated[
        str | None,
        typer.Option("--until", help="Time at which training ends.", show_default="long run; 100 with a problem"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="The timeline drawn under this seed, not the law.", show_default=False),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            help="digits, mnist, cifar10, shakespeare, quadratics, or package.module:function.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="iid, dirichlet:0.1, shards:2, one-label.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the problem, as l2=0.01; repeat for more.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Local learning rate.", show_default="the largest with a bound")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Local steps K.", show_default="1")] = None,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", help="Rows a step; 'all' for all.", show_default="32")
    ] = None,
    server_lr: Annotated[
        float | None, typer.Option("--server-lr", help="Server learning rate.", show_default="1")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also train once: U, B, and what the theorems bound.")
    ] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Show every quantity of the theory and, with --problem, every term of its bounds.

    Of the timeline where participation is certain; where it is drawn, of its law, or of one timeline with --seed.
    Repeat --scheme, --wait, --buffer, --sample for more columns.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    of_a_problem = {"partition": partition, "set": settings, "data-dir": data_dir, "lr": lr, "steps": steps}
    of_a_problem |= {"batch-size": batch_size, "server-lr": server_lr, "measure": measure or None}
    made = None
    if problem is not None:
        if importance is not None:
            raise InputError("--importance: the problem has its own; leave it out, or use --set importance=rows")
        made = _problem(problem, _number_of_clients(times, clients), partition, settings, data_dir)
        clients = made.num_clients if clients is None and _number_of_clients(times, None) is None else clients
    elif extra := [name for name, given in of_a_problem.items() if given is not None]:
        raise InputError(f"--{extra[0]}: it belongs to a problem; add one, as --problem digits")
    known = o.read_times(times, clients, law, spread, resolution)
    if made is not None and made.num_clients != known.num_clients:
        raise InputError(
            f"--problem: {problem} has {made.num_clients} clients, but there are times of {known.num_clients}; "
            f"give one time per client, or --set clients={known.num_clients}"
        )
    chosen = o.read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage) or _usual(known)
    horizon = None if until is None else positive(until, "--until")
    if made is None:
        if seed is not None and horizon is None:
            raise InputError("--seed: it draws a timeline, which needs an end; add --until 100")
        shares = Importance(o.read_importance(importance), known.num_clients)
        found = quantities_of(Clients(known, shares, weight_rule(weights), horizon, seed), chosen)
    else:
        local = _local(lr, steps, batch_size)
        server = _above_zero("--server-lr", 1.0 if server_lr is None else server_lr)
        there = Clients(known, made.importance, weight_rule(weights), horizon or HORIZON, seed)
        found = bounds_of(there, chosen, Training(made, local, lr is not None, server, measure))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
        return
    from fedtempo.report.theory_tables import show_theory

    show_theory(found)


def _usual(times: ClientTimes) -> list[Scheme]:
    """What is shown when no scheme is named: the paper's three."""
    waits = sensible_waits(times)
    return [FedAvg(), AsyncFedAvg(), FedFix(waits[len(waits) // 2])]


def _number_of_clients(times: str, clients: int | None) -> int | None:
    """As `--clients` or a list of times says; None where F<X> leaves it to the problem."""
    named = times.strip()[:1] in ("F", "f") and times.strip()[1:].replace(".", "", 1).isdecimal()
    return clients if named else o.read_times(times, clients, None, None).num_clients


def _problem(
    name: str, clients: int | None, partition: str | None, settings: Sequence[str] | None, data_dir: Path | None
) -> Problem:
    """The problem that the flags name, as ``fedtempo run`` has it."""
    if clients is not None and clients < 1:
        raise InputError(f"--clients: {clients} given, so there is nobody to train; give at least 1")
    spec: dict[str, Any] = {"name": name}
    if clients is not None and ":" not in name:  # a function of one's own may have a number of its own
        spec["clients"] = clients
    if partition is not None:
        spec["partition"] = partition
    if data_dir is not None:
        spec["data_dir"] = str(data_dir)
    for given in settings or []:
        key, equals, value = given.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError(f"--set: {given!r} is not KEY=VALUE; write it as l2=0.01")
        spec[key.strip()] = _value(value.strip())
    prepare_jax()
    from fedtempo.problems import named

    return named(spec)


def _value(written: str) -> Any:
    """A number, truth value or list as TOML writes it; anything else is text."""
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def _local(lr: float | None, steps: int | None, batch_size: str | None) -> LocalSGD:
    from fedtempo.training.solvers import LocalSGD

    rows: int | None = 32
    if batch_size is not None:
        if batch_size != "all" and not batch_size.strip().isdecimal():
            raise InputError(f"--batch-size: {batch_size!r} is not a number of rows; give one, or all")
        rows = None if batch_size == "all" else int(batch_size)
    rate = 1.0 if lr is None else _above_zero("--lr", lr)
    return LocalSGD(steps=1 if steps is None else steps, lr=rate, batch_size=rows)


def _above_zero(flag: str, number: float) -> float:
    return float(positive(number, flag))
