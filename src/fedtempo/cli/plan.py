"""``fedtempo plan``: what each scheme does with these clients; with ``--problem`` also which one to take.

The clients' times are enough to compare schemes. For a problem and a time, schemes, waits and learning rates race, and
the best is recommended. Times, weights, step and the scheme that ran may come from a run on Flower.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
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
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import is_run
from fedtempo.errors import DataMissing, InputError, Interrupted
from fedtempo.schemes.named import Scheme
from fedtempo.weighting.weight_rules import WEIGHT_RULES, WeightRule

if TYPE_CHECKING:
    from fedtempo.flower.record import Record
    from fedtempo.planning.recommendation import Recommendation
    from fedtempo.training.server_rules import Server

log = logging.getLogger(__name__)

_RACE = "Recommendation"
"""A panel of the help."""


def plan(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="The checkpoint folder of a run on Flower: its clients' times, weights, step, length, and its scheme.",
            show_default=False,
        ),
    ] = None,
    times: o.TimesOrRun = None,
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
    weights: o.WeightsOrRun = None,
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
    correction: o.Correction = None,
    server: o.Server = None,
    compression: o.Compression = None,
    compensate: o.Compensate = None,
    problem: Annotated[str | None, o.problem_option()] = None,
    partition: o.Partition = None,
    settings: o.Settings = None,
    data_dir: o.DataDir = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = None,
    lr: Annotated[list[str] | None, o.lr_option("auto: searched")] = None,
    server_lr: o.ServerLr = None,
    momentum: o.Momentum = None,
    clip: o.Clip = None,
    solver: o.Solver = None,
    draw: o.Draw = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            help="Virtual time at which training ends; needs --problem.",
            show_default="the length of RUN",
            rich_help_panel=_RACE,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="What is to be small at the end: loss, worst (the worst client's loss), metric:accuracy (large), "
            "min:NAME, bytes:1e9 (the loss for so many bytes), time-to:0.3 (the time to a loss).",
            show_default="loss",
            rich_help_panel=_RACE,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            help="What the search may train: client updates, as 50000; time, as 60s, 5m or 1h; or 25% of all cells.",
            show_default="100%",
            rich_help_panel=_RACE,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="How much worse than the best cell the choice may be, as a share; the search ends when that is sure.",
            show_default="0.1",
            rich_help_panel=_RACE,
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            "--pilot",
            help="Share of the client updates that the pilot may use; needs --problem.",
            show_default="0.05",
            rich_help_panel=_RACE,
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            help="Picture to draw, as plan.svg; needs --problem.",
            show_default=False,
            rich_help_panel=_RACE,
        ),
    ] = None,
    dtype: o.Dtype = None,
    engine: o.Engine = None,
    seed: o.Seed = 0,
    details: Annotated[bool, typer.Option("--details", help="Also show every client.")] = False,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Compare schemes for clients of unequal speed: pace, staleness, windows, weights.

    With --problem and --until it trains schemes at several learning rates, drops those that fall behind, and
    recommends a scheme, a wait and a learning rate. Ctrl-C ends that with the best so far.

    RUN is the folder of a run on Flower, finished or not: times, weights and step are then its own, and its scheme is
    compared, too.

    Repeat --scheme, --wait, --buffer and --sample to compare more; without --scheme a sensible set is compared.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    given_times = _times_of(run, times)
    where = (given_times, clients, law, spread, resolution)
    availability: dict[str, Any] = {"failure": failure, "on": on, "off": off, "absences": absences, "period": period}
    sizes: dict[str, Any] = {"waits": wait, "buffers": buffer, "samples": sample, "stages": stage}
    rule = _rule(weights, discount)
    options = {"correction": correction, "server": server, "compression": compression, "compensate": compensate}
    if problem is None:
        refuse_without_problem(
            until=until, partition=partition, set=settings, data_dir=data_dir, lr=lr, steps=steps,
            batch_size=batch_size, server_lr=server_lr, momentum=momentum, clip=clip, solver=solver, draw=draw,
            **options, objective=objective, budget=budget, tolerance=tolerance, pilot=share, figure=figure,
            dtype=dtype, engine=engine,
        )  # fmt: skip
        known = client_times(*where, **availability)
        chosen = read_schemes(scheme, known, **sizes)
        ran = None if run is None else _ran(run, known)
        if ran is not None:
            from fedtempo.planning.compare import default_schemes

            chosen = ran.among(default_schemes(known) if chosen is None else chosen)
        log.info("planning for %s", known)
        compare_schemes(
            known,
            chosen,
            ran,
            importance=read_importance(importance),
            said=[] if ran is None else ran.lines(known, times, weights, step),
            rule=rule,
            discount=discount,
            step=step,
            noise=noise,
            seed=seed,
            details=details,
            as_json=as_json,
        )
        return
    if until is None and run is None:
        raise InputError("--until: how long is the training to take? Give the virtual time, as --until 200")
    if noise is not None:
        raise InputError("--noise: it belongs to a plan without a problem; leave it out, or leave out --problem")
    if importance is not None:
        raise InputError("--importance: the problem has its own; leave it out, or use --set importance=rows")
    local = local_table(lr=lr, steps=steps, batch_size=batch_size, momentum=momentum, clip=clip, server_lr=server_lr)
    only_one(local, "plan", ("steps", "batch_size", "momentum", "clip", "server_lr"))
    _check_numbers(local, share)
    local |= {key: value for key, value in (("solver", solver), ("draw", draw)) if value is not None}
    if figure is not None:
        from fedtempo.report.style import ending_of

        ending_of(figure, "plan.svg")
    from fedtempo.cli.run import prepare_jax
    from fedtempo.schemes.table import options_of

    prepare_jax()
    table = problem_table(problem, partition, settings, data_dir)
    made, known = problem_and_times(table, *where, **availability)
    if known.availability is not None and known.availability.changes:
        raise InputError("--absences: with --problem clients must not come or go for good; add --period")
    chosen = read_schemes(scheme, known, **sizes)
    used = options_of({key: value for key, value in options.items() if value is not None})
    own_rate, rates = local.pop("server_lr", None), local.pop("lr", "auto")
    ran = None if run is None else _ran(run, known)
    if ran is not None and ran.server is not None and server is None:
        used["server"] = ran.server
    if ran is not None and own_rate is None and server is None:
        own_rate = ran.server_lr
    if chosen is None and (ran is not None or used):
        from fedtempo.planning.recommend import schemes_for

        chosen = list(schemes_for(known))
    if chosen is not None:
        chosen = [one.using(**used) if used else one for one in (chosen if ran is None else ran.among(chosen))]
    recommended(
        {"problem": made, "times": known, "schemes": chosen, "local": _local(local)},
        {
            "rates": None if rates == "auto" else rates if isinstance(rates, list) else [rates],
            "until": until if ran is None or until is not None else ran.length,
            "weights": rule or _discounted(WEIGHT_RULES.from_spec(ran.weights if ran else "time-based"), discount),
            "step": step or (ran.step if ran else "stable"),
            "server_lr": own_rate,
            "objective": objective,
            "budget": budget,
            "tolerance": tolerance,
            "share": share,
            "seed": seed,
            "dtype": dtype,
            "engine": engine,
        },
        said=[] if ran is None else ran.lines(known, times, weights, step),
        figure=figure,
        as_json=as_json,
        quiet=quiet,
    )


def compare_schemes(
    times: ClientTimes,
    schemes: Sequence[Scheme] | None,
    ran: Ran | None,
    *,
    importance: Sequence[Fraction] | None,
    said: Sequence[str],
    rule: WeightRule | None,
    discount: str | None,
    step: str | None,
    noise: float | None,
    seed: int,
    details: bool,
    as_json: bool,
) -> None:
    """A plan without a problem."""
    from fedtempo.planning.compare import compare

    compared = compare(
        times,
        schemes,
        importance=importance if importance is not None or ran is None else ran.importance(times),
        weights=rule or _discounted(WEIGHT_RULES.from_spec(ran.weights if ran else "time-based"), discount),
        seed=seed,
        step=step or (ran.step if ran else "stable"),
        noise=noise,
    )
    if as_json:
        _print_json(compared.to_dict(), said)
        return
    from fedtempo.report.tables import show_plan

    _print_lines(said)
    show_plan(compared, details=details)


def recommended(
    what: Mapping[str, Any],
    how: Mapping[str, Any],
    *,
    said: Sequence[str],
    figure: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Let schemes and rates race, and show what is best; what `how` leaves open is as `recommend` has it."""
    from fedtempo.cli.progress import racing, stoppable
    from fedtempo.planning.recommend import recommend

    given = {key: value for key, value in how.items() if value is not None}
    nothing = (
        "stopped before any two cells (a scheme at a learning rate) could be compared, so nothing is recommended; "
        "give it more time, or fewer --scheme and --lr"
    )
    with racing(quiet) as report, stoppable(nothing):
        made: Recommendation = recommend(**what, **given, on_progress=report)
    if as_json:
        _print_json(made.to_dict(), said)
    else:
        from fedtempo.report.recommendation_tables import show_recommendation

        _print_lines(said)
        show_recommendation(made)
    if figure is not None:
        from fedtempo.report.recommendation_figure import save_recommendation

        save_recommendation(made, figure)
        if not as_json:
            typer.echo(f"{figure}: the finalists over time, and every scheme against the time between two models")
    if made.ended == "stopped":
        raise Interrupted("stopped, and this is the best so far; the same command without a stop compares for longer")


def _print_lines(said: Sequence[str]) -> None:
    for line in said:
        typer.echo(line)
    if said:
        typer.echo()


def _print_json(document: dict[str, Any], said: Sequence[str]) -> None:
    typer.echo(json.dumps(document | ({"from_run": list(said)} if said else {}), allow_nan=False))


# -- what flags say


def _rule(weights: str | None, discount: str | None) -> WeightRule | None:
    """The rule that was named; None where it is the run's, or the usual one."""
    if discount is not None:
        _discounted(WEIGHT_RULES.from_spec("time-based"), discount)  # refused before anything is read
    return None if weights is None else _discounted(WEIGHT_RULES.from_spec(weights), discount)


def _discounted(rule: WeightRule, discount: str | None) -> WeightRule:
    from fedtempo.weighting.weight_rules import Discounted, parse_discount

    return rule if discount is None else Discounted(rule, parse_discount(discount))


def _check_numbers(local: Mapping[str, Any], share: float | None) -> None:
    """Refuse, under the flag's name, what `recommend` knows under another."""
    rates = local.get("lr", "auto")
    for rate in rates if isinstance(rates, list) else [rates]:
        if rate != "auto" and not 0 < rate < math.inf:
            raise InputError(f"--lr: {rate:g} is not a learning rate; give numbers above zero, as 0.1,0.3")
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--pilot: {share:g} is not a share of the client updates; give a number such as 0.05")


def _local(table: Mapping[str, Any]) -> Any:
    """The clients' work, but for its rates."""
    from fedtempo.simulation.study_file import local_of

    return local_of({"lr": "auto", **table})


# -- a run on Flower


def _times_of(run: Path | None, times: str | None) -> str:
    """What `--times` says, or else the folder of the run."""
    if run is not None:
        _refuse_no_run(run)
        return f"{run}/" if times is None else times  # a folder's name, even if it is F80
    if times is None:
        raise InputError(
            "--times: how long do the clients take? Give it, as --times F80 --clients 20, or the folder of a run on "
            "Flower, as fedtempo plan run/ (see fedtempo plan --help)"
        )
    return times


def _refuse_no_run(run: Path) -> None:
    """Say what is at the path if it is not a run."""
    if not run.exists():
        raise DataMissing(
            f"{run}: no such folder of a run on Flower; check the path (times are given as --times {run})"
        )
    if is_run(run):
        return
    inside = sorted(path for path in run.iterdir() if is_run(path)) if run.is_dir() else []
    if inside:
        raise InputError(f"{run}: it holds {len(inside)} runs on Flower; give one of them, as {inside[0]}")
    what = "a folder without a run of fedtempo.flower" if run.is_dir() else "a file"
    raise InputError(f"{run}: it is {what}; give the checkpoint folder of a run on Flower, or times as --times")


@dataclass(frozen=True)
class Ran:
    """What a plan takes of a run on Flower."""

    folder: Path
    record: Record
    scheme: Scheme | None
    """Without its server; None if it cannot be compared."""
    server: Server | None
    weights: str
    notes: tuple[str, ...]
    """What is not taken, and why."""

    @property
    def step(self) -> str:
        """The server's."""
        return self.record.step

    @property
    def server_lr(self) -> float | None:
        """None where its server rule is not there to go with it."""
        alone = self.server is None and self.record.scheme.options.server is not None
        return None if alone else self.record.server_lr

    @property
    def length(self) -> Fraction:
        """Seconds of training so far, to whole milliseconds."""
        return Fraction(-(-self.record.timeline.duration // Fraction(1, 1000)), 1000)

    def among(self, schemes: Sequence[Scheme]) -> list[Scheme]:
        """The schemes, and the one that ran."""
        there = self.scheme is None or self.scheme in schemes
        return [*schemes] if there or self.scheme is None else [*schemes, self.scheme]

    def importance(self, times: ClientTimes) -> list[Fraction] | None:
        """p_i of the clients that took part; None if there are others now."""
        active = sorted(set(self.record.timeline.client.tolist()))
        found = [Fraction(self.record.importance[i]).limit_denominator(10**9) for i in active]
        return found if len(active) == times.num_clients and min(found) > 0 else None

    def lines(self, known: ClientTimes, times: str | None, weights: str | None, step: str | None) -> list[str]:
        """Where the times and all else came from."""
        from fedtempo.flower.text import clean

        seconds = f"{float(self.length):g} s of training"
        label = clean(self.record.scheme.label)
        taken = [
            *([f"times of {known.num_clients} clients"] if times is None else []),
            *([f"{self.weights} weights"] if weights is None else []),
            *([f"{self.step} step"] if step is None else []),
        ]
        return [f"From the run in {self.folder} ({label}, {seconds}): {', '.join(taken) or 'its scheme'}.", *self.notes]


def _ran(run: Path, known: ClientTimes) -> Ran:
    """What the folder says; code that it names is not imported, unless the user has named it, too."""
    from fedtempo.cli.show import read_run

    record = read_run(run)
    from fedtempo.flower.run_folder import RunFolder
    from fedtempo.flower.text import clean
    from fedtempo.schemes.table import NamedRule

    notes, scheme, server = [], record.scheme, record.scheme.options.server
    label, size = clean(scheme.label), known.num_clients
    left_out = None
    if isinstance(scheme.waiting, NamedRule):
        left_out = "its rule is code of somebody's own, and nothing is imported for a folder; name it, as --scheme"
    elif scheme.waiting.min_clients > size:
        left_out = f"it needs {scheme.waiting.min_clients} clients, and there are times of {size}"
    if left_out is not None:
        notes.append(f"{label} is not compared: {left_out}.")
    if server is not None:
        server = _usable(server, size)
        if server is None:
            notes.append(
                "Its server rule is code of somebody's own, and nothing is imported for a folder; name it, as --server."
            )
    said = str(RunFolder(run).document()["about"].get("weights", "time-based"))
    name, number = said.partition(", at most ")[::2]
    weights = f"{name}:{number.removesuffix('-fold')}" if number else name
    if name not in WEIGHT_RULES:
        weights = "time-based"
        notes.append(f"Its weights ({clean(said)}) have no name by which to find them; name them, as --weights.")
    bare = None if left_out is not None else _without(server, scheme)
    return Ran(run, record, bare, server if bare != scheme else None, weights, tuple(notes))


def _without(server: Server | None, scheme: Scheme) -> Scheme:
    """The scheme without a server rule that others can have as well: mixing is a part of it."""
    from fedtempo.training.server_rules import MixModels

    own = scheme.options.server
    return scheme if own is None or isinstance(server, MixModels) else scheme.using(server=None)


def _usable(server: Server, clients: int) -> Server | None:
    """The run's server rule, with a place for no more clients than there are; None if it is only a name."""
    from fedtempo.training.robust_rules import RobustRule
    from fedtempo.training.server_rules import NamedServer

    if isinstance(server, NamedServer):
        return None
    if isinstance(server, RobustRule) and server.last is not None and server.last > clients:
        return replace(server, last=None)
    return server
