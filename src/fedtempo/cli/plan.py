"""``fedtempo plan``: what each scheme does with these clients; with ``--problem`` also which one to take.

The clients' times are enough to compare schemes. For a problem and a time, schemes, waits and learning rates race, and
the best is recommended. Times, weights, step and the scheme that ran may come from a run on Flower.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.after_run import Ran, read_ran, times_given
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
from fedtempo.cli.where import Cluster, Workers, trained_by
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError, Interrupted
from fedtempo.schemes.named import Scheme
from fedtempo.weighting.weight_rules import WEIGHT_RULES, WeightRule

if TYPE_CHECKING:
    from fedtempo.planning.compare import Plan
    from fedtempo.planning.recommendation import Recommendation

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
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            help="Also write plan.html, a page on which wait, buffer, clients and weights can be turned, or a picture: "
            "plan.svg, .png, .pdf. Repeat for more.",
            show_default=False,
        ),
    ] = None,
    dtype: o.Dtype = None,
    engine: o.Engine = None,
    workers: Workers = None,
    cluster: Cluster = None,
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
    check_outputs(out)
    where = (times_given(run, times), clients, law, spread, resolution)
    _check_weights(weights, discount)
    given = Given(
        run,
        times,
        where,
        {"failure": failure, "on": on, "off": off, "absences": absences, "period": period},
        scheme,
        {"waits": wait, "buffers": buffer, "samples": sample, "stages": stage},
        weights,
        discount,
        step,
    )
    options = {"correction": correction, "server": server, "compression": compression, "compensate": compensate}
    if problem is None:
        refuse_without_problem(
            until=until, partition=partition, set=settings, data_dir=data_dir, lr=lr, steps=steps,
            batch_size=batch_size, server_lr=server_lr, momentum=momentum, clip=clip, solver=solver, draw=draw,
            **options, objective=objective, budget=budget, tolerance=tolerance, pilot=share, figure=figure,
            dtype=dtype, engine=engine, workers=workers, cluster=cluster,
        )  # fmt: skip
        compare_schemes(
            given, importance=importance, noise=noise, seed=seed, details=details, as_json=as_json, out=out or ()
        )
        return
    _refuse_with_problem(run, until, noise, importance)
    local = local_table(lr=lr, steps=steps, batch_size=batch_size, momentum=momentum, clip=clip, server_lr=server_lr)
    only_one(local, "plan", ("steps", "batch_size", "momentum", "clip", "server_lr"))
    _check_numbers(local, share)
    local |= {key: value for key, value in (("solver", solver), ("draw", draw)) if value is not None}
    if figure is not None:
        from fedtempo.report.style import ending_of

        ending_of(figure, "plan.svg")
        check_folder(figure)
    what, said = _what_races(given, problem_table(problem, partition, settings, data_dir), local, options, until)
    search = {"objective": objective, "budget": budget, "tolerance": tolerance, "share": share}
    machine = {"seed": seed, "dtype": dtype, "engine": engine}
    with trained_by(workers, cluster) as executor:
        recommended(
            what | search | machine | executor, said=said, figure=figure, as_json=as_json, quiet=quiet, out=out or ()
        )


@dataclass(frozen=True)
class Given:
    """What flags say of clients, schemes and weights; what they leave open is the run's, or the usual."""

    run: Path | None
    times: str | None
    where: tuple[str, int | None, str | None, str | None, str | None]
    """Times, or the run's; how many, law, spread, resolution."""
    availability: Mapping[str, Any]
    names: Sequence[str] | None
    sizes: Mapping[str, Any]
    weights: str | None
    discount: str | None
    step: str | None

    def schemes(self, known: ClientTimes) -> list[Scheme] | None:
        """Those that are named; None if none is."""
        return read_schemes(self.names, known, **self.sizes)

    def ran(self, known: ClientTimes) -> Ran | None:
        """The run, if there is one."""
        return None if self.run is None else read_ran(self.run, known)

    def said(self, ran: Ran | None, known: ClientTimes) -> list[str]:
        """What was taken of the run."""
        return [] if ran is None else ran.lines(known, self.times, self.weights, self.step)

    def rule_and_step(self, ran: Ran | None) -> dict[str, Any]:
        """Weights and step, as `compare` and `recommend` take them."""
        named = self.weights or (ran.weights if ran else "time-based")
        return {
            "weights": _discounted(WEIGHT_RULES.from_spec(named), self.discount),
            "step": self.step or (ran.step if ran else "stable"),
        }


def compare_schemes(
    given: Given,
    *,
    importance: str | None,
    noise: float | None,
    seed: int,
    details: bool,
    as_json: bool,
    out: Sequence[Path],
) -> None:
    """A plan without a problem."""
    from fedtempo.planning.compare import compare, default_schemes

    known = client_times(*given.where, **given.availability)
    chosen = given.schemes(known)
    ran = given.ran(known)
    if ran is not None:
        chosen = ran.among(default_schemes(known) if chosen is None else chosen)
    log.info("planning for %s", known)
    shares = read_importance(importance)
    said = given.said(ran, known)
    compared = compare(
        known,
        chosen,
        importance=shares if shares is not None or ran is None else ran.importance(known),
        seed=seed,
        noise=noise,
        **given.rule_and_step(ran),
    )
    if as_json:
        _print_json(compared.to_dict(), said)
    else:
        from fedtempo.report.tables import show_plan

        _print_lines(said)
        show_plan(compared, details=details)
    write_plan(compared, None, out, quiet=as_json)


def _what_races(
    given: Given, table: Mapping[str, Any], local: dict[str, Any], options: Mapping[str, str | None], until: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Problem, clients, schemes and work as `recommend` takes them, and what was taken of a run."""
    from fedtempo.cli.run import prepare_jax
    from fedtempo.schemes.table import options_of

    prepare_jax()
    made, known = problem_and_times(table, *given.where, **given.availability)
    if known.availability is not None and known.availability.changes:
        raise InputError("--absences: with --problem clients must not come or go for good; add --period")
    chosen = given.schemes(known)
    used = options_of({key: value for key, value in options.items() if value is not None})
    server_lr, rates = local.pop("server_lr", None), local.pop("lr", "auto")
    ran = given.ran(known)
    if ran is not None and options["server"] is None:
        used |= {} if ran.server is None else {"server": ran.server}
        server_lr = ran.server_lr if server_lr is None else server_lr
    what = {
        "problem": made,
        "times": known,
        "schemes": _with_options(chosen, used, ran, known),
        "local": _local(local),
        "rates": None if rates == "auto" else rates if isinstance(rates, list) else [rates],
        "until": ran.length if until is None and ran is not None else until,
        "server_lr": server_lr,
        **given.rule_and_step(ran),
    }
    return what, given.said(ran, known)


def _with_options(
    schemes: Sequence[Scheme] | None, used: Mapping[str, Any], ran: Ran | None, known: ClientTimes
) -> list[Scheme] | None:
    """The schemes that race, each with the options; None where `recommend` is to choose them."""
    from fedtempo.planning.recommend import schemes_for

    if schemes is None and ran is None and not used:
        return None
    listed = list(schemes_for(known)) if schemes is None else list(schemes)
    listed = listed if ran is None else ran.among(listed)
    return [scheme.using(**used) for scheme in listed] if used else listed


def recommended(
    what: Mapping[str, Any],
    *,
    said: Sequence[str],
    figure: Path | None,
    as_json: bool,
    quiet: bool,
    out: Sequence[Path] = (),
) -> None:
    """Let schemes and rates race, and show what is best; what is None is as `recommend` has it."""
    from fedtempo.cli.progress import racing, stoppable
    from fedtempo.planning.recommend import recommend

    nothing = (
        "stopped before any two cells (a scheme at a learning rate) could be compared, so nothing is recommended; "
        "give it more time, or fewer --scheme and --lr"
    )
    with racing(quiet) as report, stoppable(nothing):
        named = {key: value for key, value in what.items() if value is not None}
        made: Recommendation = recommend(**named, on_progress=report)
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
    if out:
        from fedtempo.planning.compare import compare

        schemes, shares = [one.scheme for one in made.choices], what["problem"].importance.exact
        compared = compare(made.times, schemes, importance=shares, weights=made.rule, step=made.step)
        write_plan(compared, made, out, quiet=as_json)
    if made.ended == "stopped":
        raise Interrupted("stopped, and this is the best so far; the same command without a stop compares for longer")


def check_outputs(out: Sequence[Path] | None) -> None:
    """Refuse names of files that cannot be written before anything is worked out."""
    for path in out or ():
        if path.suffix.lower() not in (".html", ".htm", ".svg", ".png", ".pdf"):
            raise InputError(f"--out: {path} must end in .html (a page), .svg, .png or .pdf, as in plan.html")
        check_folder(path)


def check_folder(path: Path) -> None:
    """Refuse a file in a folder that is not there."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")


def write_plan(compared: Plan, made: Recommendation | None, out: Sequence[Path], *, quiet: bool) -> None:
    """The pages and the pictures that `--out` asks for."""
    for path in out:
        is_page = path.suffix.lower().startswith(".htm")
        if is_page:
            compared.to_html(path, recommendation=made)
        else:
            (compared if made is None else made).plot(path)
        if not quiet:
            typer.echo(f"\n{path}{': open it in a browser' if is_page else ''}")


def _print_lines(said: Sequence[str]) -> None:
    for line in said:
        typer.echo(line)
    if said:
        typer.echo()


def _print_json(document: dict[str, Any], said: Sequence[str]) -> None:
    typer.echo(json.dumps(document | ({"from_run": list(said)} if said else {}), allow_nan=False))


# -- what flags say


def _check_weights(weights: str | None, discount: str | None) -> None:
    """Refuse what cannot be before anything is read."""
    if weights is not None or discount is not None:
        _discounted(WEIGHT_RULES.from_spec("time-based" if weights is None else weights), discount)


def _refuse_with_problem(run: Path | None, until: str | None, noise: float | None, importance: str | None) -> None:
    """Refuse what does not go with a problem, or is missing with it."""
    if until is None and run is None:
        raise InputError("--until: how long is the training to take? Give the virtual time, as --until 200")
    if noise is not None:
        raise InputError("--noise: it belongs to a plan without a problem; leave it out, or leave out --problem")
    if importance is not None:
        raise InputError("--importance: the problem has its own; leave it out, or use --set importance=rows")


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
