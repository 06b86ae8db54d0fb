"""``fedtempo run``: carry out a study, described by flags, by a file, or by nothing at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.reading import check_clients, local_table, read_settings, scheme_tables
from fedtempo.cli.track import Track, sinks
from fedtempo.cli.where import Cluster, Units, Workers, trained_by
from fedtempo.clock.times_text import AVAILABILITY, BANDWIDTH
from fedtempo.errors import InputError, ResultsConflict, WorkersLost
from fedtempo.registry import NotImported, Registry, only_named

if TYPE_CHECKING:
    from fedtempo.simulation.checkpoint import Folder

log = logging.getLogger(__name__)


def run(
    study: Annotated[
        Path | None, typer.Argument(help="A study file (TOML); without it, digits with 20 unequal clients.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results.", show_default="results/<problem>")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the study in this folder.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the study that is in the folder.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --resume: import the code that the study names.")
    ] = False,
    problem: Annotated[str | None, o.problem_option("digits")] = None,
    clients: o.Clients = None,
    partition: o.SeveralPartitions = None,
    settings: o.Settings = None,
    data_dir: o.DataDir = None,
    times: o.SeveralTimes = None,
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
    weights: o.SeveralWeights = None,
    correction: o.Correction = None,
    server: o.Server = None,
    compression: o.Compression = None,
    compensate: o.Compensate = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Virtual time at which training ends.", show_default="100")
    ] = None,
    steps: o.Steps = None,
    batch_size: o.BatchSize = None,
    lr: Annotated[list[str] | None, o.lr_option("auto: searched")] = None,
    server_lr: o.ServerLr = None,
    momentum: o.Momentum = None,
    clip: o.Clip = None,
    solver: o.Solver = None,
    draw: o.Draw = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            help="Of the local learning rate: constant, or horizon (lr divided by the root of steps times rounds).",
            show_default="constant",
            rich_help_panel="Problem and local work",
        ),
    ] = None,
    step: o.Step = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            help="Seeds of random times, sampling, batches and first models: how many, or a list as 0,5,7.",
            show_default="3",
        ),
    ] = None,
    points: Annotated[
        int | None, typer.Option("--points", help="At how many times to measure.", show_default="101")
    ] = None,
    dtype: o.Dtype = None,
    engine: o.Engine = None,
    target: o.Target = None,
    track: Track = None,
    workers: Workers = None,
    cluster: Cluster = None,
    units: Units = None,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Train under several schemes, learning rates and seeds; results, table and figure go to a folder.

    STUDY is a TOML file; without it, digits with 20 unequal clients. Flags override the file.

    Ctrl-C stops the study and keeps what it has; --resume goes on.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    flags = _flags(
        problem=problem,
        clients=clients,
        partition=partition,
        settings=settings,
        data_dir=None if data_dir is None else str(data_dir),
        times=times,
        law=law,
        spread=spread,
        resolution=resolution,
        failure=failure,
        on=on,
        off=off,
        absences=absences,
        period=period,
        schemes=(scheme, wait, buffer, sample, stage),
        weights=weights,
        correction=correction,
        server=server,
        compression=compression,
        compensate=compensate,
        until=until,
        lr=lr,
        steps=steps,
        batch_size=batch_size,
        momentum=momentum,
        clip=clip,
        solver=solver,
        draw=draw,
        schedule=schedule,
        step=step,
        server_lr=server_lr,
        seeds=seeds,
        points=points,
        dtype=dtype,
        engine=engine,
    )
    prepare_jax()
    from fedtempo.simulation.checkpoint import Folder
    from fedtempo.simulation.study_file import merged, read_study, without_a_file

    if resume is not None:
        again = _named_again(flags)
        if study is not None or out is not None or overwrite or again is None:
            raise InputError("--resume: the study is described in its folder; leave the file and other flags out")
        folder, description = resume, Folder(resume).description()
        for flag, text in again:
            registry_of(flag).load(text, f"--{flag}")
    elif trust:
        raise InputError("--trust: it belongs to --resume; what you name yourself is imported anyhow")
    else:
        begun = read_study(study) if study is not None else without_a_file(flags.get("problem"))
        description = merged(_overridden(begun, flags))
        folder = out if out is not None else Path("results") / _name_of(description["problem"])
        if not overwrite and units is None:  # else the jobs before this one have begun it
            _refuse_what_is_there(Folder(folder))
    with only_named(resume is not None and not trust):
        arguments = _arguments(description, folder)
    arguments |= {"on_measure": sinks(track, folder, units), "units": units, "overwrite": overwrite}
    with trained_by(workers, cluster) as executor:
        _carry_out(arguments | executor, description, folder, quiet=quiet, target=target)


def _name_of(problem: dict[str, Any]) -> str:
    """The folder's name for a problem, or for several."""
    from fedtempo.simulation.study_file import several

    first = next(iter(problem.values())) if several(problem) else problem
    return str(first["name"]).rpartition(":")[2]


_NUMBERS = ("lr", "steps", "batch_size", "momentum", "clip", "server_lr")


def _flags(**given: Any) -> dict[str, Any]:
    schemes = given.pop("schemes")
    kept = {name: value for name, value in given.items() if value not in (None, [])}
    return kept | ({"schemes": schemes} if any(schemes) else {})


def _overridden(description: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """A description with what the flags say in the place of what it said."""
    from fedtempo.simulation.study_file import DEFAULT, check_tables, several

    out = dict(description)
    check_tables(out)
    tables: dict[str, dict[str, Any]] = {name: dict(out.get(name, {})) for name in ("problem", "times", "local")}
    if "problem" in flags and flags["problem"] != tables["problem"].get("name", DEFAULT["problem"]["name"]):
        tables["problem"] = {"name": flags["problem"]}
    changed: dict[str, Any] = {name: flags[name] for name in ("clients", "data_dir") if name in flags}
    settings = read_settings(flags.get("settings"))
    check_clients(changed.get("clients"), settings)
    changed |= settings
    tables["problem"] = _changed("partition", tables["problem"], changed, flags.get("partition"))
    if {"times", "law"} & flags.keys() and not several(tables["times"]):
        kept = {*AVAILABILITY, *BANDWIDTH, *(() if "times" in flags else ("times",))}
        tables["times"] = {k: v for k, v in tables["times"].items() if k in kept}
    changed = {k: flags[k] for k in ("law", "spread", "resolution", *AVAILABILITY) if k in flags}
    tables["times"] = _changed("times", tables["times"], changed, flags.get("times"))
    numbers = local_table(**{k: flags[k] for k in _NUMBERS if k in flags})
    if "server_lr" in numbers:
        out["server_lr"] = numbers.pop("server_lr")
    tables["local"] |= numbers | {k: flags[k] for k in ("solver", "draw", "schedule") if k in flags}
    out |= {name: table for name, table in tables.items() if table}
    if "seeds" in flags:
        out["seeds"] = _seeds(flags["seeds"])
    out |= {k: flags[k] for k in ("weights", "step", "until", "points", "dtype", "engine") if k in flags}
    if "schemes" in flags:
        out["schemes"] = _schemes(out, *flags["schemes"])
    options = {k: flags[k] for k in ("correction", "server", "compression", "compensate") if k in flags}
    if options:
        listed = out["schemes"] if "schemes" in out else DEFAULT["schemes"]
        out["schemes"] = [{**table, **options} for table in listed]
    return out


def _changed(flag: str, table: dict[str, Any], changed: dict[str, Any], given: list[str] | None) -> dict[str, Any]:
    """A table of times or of a problem with what flags say; a flag that is repeated makes a table of each value."""
    from fedtempo.simulation.study_file import several

    if several(table):
        if given is not None:
            raise InputError(f"--{flag}: the study file has several of them, {', '.join(table)}; leave the flag out")
        return {name: {**inner, **changed} for name, inner in table.items()}
    whole = {**table, **changed}
    if given is None:
        return whole
    each = {text: {**whole, flag: text} for text in given}
    return each if len(each) > 1 else next(iter(each.values()))


def _schemes(description: dict[str, Any], names: Any, waits: Any, buffers: Any, samples: Any, stages: Any) -> Any:
    """The schemes that the flags name, as tables; some of their defaults depend on the clients' times."""
    from fedtempo.problems.naming import num_clients
    from fedtempo.simulation.study_file import known_times, merged, several, times_of

    whole = merged({k: v for k, v in description.items() if k != "schemes"})
    problem, table = (next(iter(t.values())) if several(t) else t for t in (whole["problem"], whole["times"]))
    times = known_times(table)
    if times is None:
        times = times_of(table, num_clients(problem))
    found = scheme_tables(names, times, waits=waits, buffers=buffers, samples=samples, stages=stages)
    return list((found or {}).values())


def _seeds(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds: {text!r} is neither a number of seeds nor a list such as 0,5,7") from None
    if "," not in text and values[0] < 1:
        raise InputError(f"--seeds: {text} seeds leave nothing to run; give at least 1")
    return values if "," in text else list(range(values[0]))


def prepare_jax() -> None:
    """Compiled code is kept between calls, where the user has not said otherwise."""
    from fedtempo.simulation.compilation import keep_on_disk

    keep_on_disk()


def _refuse_what_is_there(folder: Folder) -> None:
    """A folder that already holds a study is not written to by accident."""
    if not folder.holds_a_study():
        return
    state = "finished" if folder.finished() else "unfinished"
    onward = f"fedtempo show {folder.path}" if state == "finished" else f"fedtempo run --resume {folder.path}"
    raise ResultsConflict(
        f"{folder.path} holds a study, {state}: {onward}; to replace it add --overwrite, or choose another --out"
    )


def _arguments(description: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `simulate` is called with; a folder's description imports only what the user has named."""
    from fedtempo.simulation.study_file import arguments_of

    try:
        return arguments_of(description)
    except NotImported as error:
        if not error.place:
            raise
        raise InputError(
            f"--resume: the study in {folder} names {error.place}, which would be imported and run. If you trust it, "
            "name it again (by --problem, --scheme, --server, --correction, --compression or --weights), or add "
            "--trust to import all that the study names"
        ) from None


def _named_again(flags: dict[str, Any]) -> list[tuple[str, str]] | None:
    """Code that flags name: the flag and the text; None if a flag says anything else."""
    texts: list[tuple[str, str]] = []
    for flag, given in flags.items():
        if flag == "schemes":
            names, *others = given
            if any(others):
                return None
            texts += [("scheme", name) for name in names or []]
        elif flag in ("problem", "server", "correction", "compression", "weights"):
            texts += [(flag, text) for text in (given if isinstance(given, list) else [given])]
        else:
            return None
    own = all(text.partition(":")[2] and text.partition(":")[0] not in registry_of(flag) for flag, text in texts)
    return texts if own else None


def registry_of(flag: str) -> Registry[Any]:
    """The names of the kind that a flag has."""
    if flag == "problem":
        from fedtempo.problems.naming import PROBLEMS

        return PROBLEMS
    from fedtempo.schemes.table import registry_of as of_option

    return of_option(flag)


def _carry_out(
    arguments: dict[str, Any],
    description: dict[str, Any],
    folder: Path,
    *,
    quiet: bool,
    target: float | None,
) -> None:
    from fedtempo.cli.progress import reporting, stoppable
    from fedtempo.cli.show import present
    from fedtempo.simulation.study import simulate
    from fedtempo.simulation.study_file import names_own_code

    job = "" if arguments["units"] is None else f" --units {arguments['units']}"
    onward = f"fedtempo run --resume {folder}{job}{' --trust' if names_own_code(description) else ''}"

    def kept() -> str:
        if not (folder / "history.nc").exists() and not job:
            return f"stopped; go on with {onward}"
        return f"stopped, and everything so far is kept: fedtempo show {folder}, or go on with {onward}"

    with reporting(quiet) as report, stoppable(kept):
        try:
            history = simulate(**arguments, checkpoint=folder, description=description, on_progress=report)
        except WorkersLost as error:
            raise WorkersLost(f"{error}: {onward}") from None
    if arguments["units"] is not None:
        typer.echo(f"job {arguments['units']} is done; all jobs together: fedtempo show {folder}")
        return
    present(history, folder, target=target)
