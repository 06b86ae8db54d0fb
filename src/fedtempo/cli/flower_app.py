"""``fedtempo app``: a Flower app in exact virtual time, under its own strategy or under schemes of fedtempo's."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.reading import read_schemes
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.times_text import read_times, with_availability
from fedtempo.clock.trace import TraceTimes
from fedtempo.errors import FedtempoError, InputError, ResultsConflict

if TYPE_CHECKING:
    from fedtempo.flower.result import Result
    from fedtempo.schemes.named import Scheme

log = logging.getLogger(__name__)

OWN = "app"
"""For --scheme: the app's own strategy."""
_STAGED = ("stages", "fedfix-stages")
_SAMPLING = ("uniform", "multinomial", "fastest", "highest-loss")


def app(
    folder: Annotated[Path, typer.Argument(help="The app's folder, as flwr run takes it.")],
    times: Annotated[
        str,
        typer.Option(
            "--times",
            help="F<X>, a list 1,2,5/2, a trace file, a run's folder; or measured:F<X>: each job's own processor time, "
            "times the client's slowdown.",
        ),
    ],
    clients: o.Clients = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Virtual time at which training ends.", show_default="the app's rounds"),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="In the place of the app's number of rounds.", show_default=False)
    ] = None,
    law: o.Law = None,
    spread: o.Spread = None,
    resolution: o.Resolution = None,
    failure: o.Failure = None,
    on: o.On = None,
    off: o.Off = None,
    absences: o.Absences = None,
    period: o.Period = None,
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            "--scheme",
            help="app (its own strategy), fedavg, async, fedfix, fedbuff, uniform, …, or package.module:attribute.",
            show_default=OWN,
        ),
    ] = None,
    wait: o.Waits = None,
    buffer: o.Buffers = None,
    sample: o.Samples = None,
    stage: o.Stages = None,
    server: Annotated[
        str | None,
        typer.Option("--server", help="For all schemes: fedadam, slowmo:0.9, or module:Class.", show_default=False),
    ] = None,
    step: o.Step = None,
    known_times: Annotated[
        bool, typer.Option("--known-times", help="Weights from the times; else measured, as deployed.")
    ] = False,
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", help="Bytes a second, one or one per client.", show_default=False),
    ] = None,
    evaluate_time: Annotated[
        str, typer.Option("--evaluate-time", help="Of clients' evaluation, as a share of a job.")
    ] = "0",
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", "-c", help="Other values for the app's config, as flwr run.", show_default=False),
    ] = None,
    seed: o.Seed = 0,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes that run the ClientApp.", show_default="one per core")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("results/app"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in the folder.")] = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Run a Flower app in virtual time: the same ServerApp and ClientApp, exactly, without waiting.

    Without --scheme the app's own strategy runs. With --scheme one of fedtempo's takes its place, with its keys, nodes,
    configs and evaluation; repeat it to compare. Killed or stopped, the same command goes on to the same record.
    """
    o.set_loudness(verbose, quiet)
    try:
        from fedtempo.flower.virtual.app_folder import app_folder, read_run_config
    except ImportError as error:
        raise InputError(str(error)) from None
    _flower_speaks_once(logging.ERROR if quiet else logging.INFO if verbose else logging.WARNING)
    found = app_folder(folder)
    given = _times(times, clients, law, spread, resolution)
    known = (
        given
        if isinstance(given, _Measured)
        else with_availability(given, failure=failure, on=on, off=off, absences=absences, period=period)
    )
    if isinstance(known, _Measured) and any(x is not None for x in (failure, on, off, absences)):
        raise InputError("--failure, --on, --off, --absences: measured times have none; leave them out")
    schemes = _schemes(scheme, known, wait, buffer, sample, stage, server)
    if schemes.keys() == {OWN}:
        for flag, asked_for in (("--server", server), ("--step", step), ("--known-times", known_times or None)):
            if asked_for is not None:
                raise InputError(f"{flag}: it goes with --scheme; the app's own strategy has its own")
    config = read_run_config(run_config or [])
    asked = {
        "app": found.name, "times": times, "clients": clients, "until": until, "rounds": rounds, "law": law,
        "spread": spread, "resolution": resolution, "failure": failure, "on": on, "off": off, "absences": absences,
        "period": period, "step": step, "known_times": known_times, "bandwidth": bandwidth,
        "evaluate_time": evaluate_time, "run_config": config, "seed": seed, "server": server,
    }  # fmt: skip
    _prepare(out, asked, schemes, overwrite=overwrite)
    from fedtempo.cli.progress import stoppable
    from fedtempo.flower.virtual.client_work import AppPlace
    from fedtempo.flower.virtual.grid import MeasuredTimes
    from fedtempo.flower.virtual.jobs import Workers
    from fedtempo.flower.virtual.simulate import simulate_app

    kept = stoppable(f"stopped, and what was worked out is kept in {out}: the same command goes on")
    with kept, contextlib.closing(Workers(AppPlace(found.client, str(found.path)), workers=workers)) as pool:
        for label, chosen in schemes.items():
            place = out / slug(label)
            if _is_done(place):
                continue
            end = None if until is None else float(exact(until, "--until"))
            own_words = contextlib.redirect_stdout(sys.stderr)  # the ServerApp's
            with _progress(label, end, quiet) as tell, own_words, _server_errors():
                result = simulate_app(
                    folder,
                    times=MeasuredTimes(known.slowdown) if isinstance(known, _Measured) else known,
                    until=until,
                    rounds=rounds,
                    scheme=chosen,
                    options={} if step is None or chosen is None else {"step": step},
                    known_times=known_times,
                    bandwidth=_list(bandwidth),
                    evaluate_time=evaluate_time,
                    run_config=config,
                    seed=seed,
                    executor=pool,
                    folder=place,
                    on_progress=tell,
                )
            _judge(result, label, place)
    present_app(out)


def _list(given: str | None) -> Any:
    return given.split(",") if given is not None and "," in given else given


def _is_done(place: Path) -> bool:
    return (place / "state.npz").is_file() and not (place / "replies.bin").exists()


class _Measured:
    """Jobs that take the processor's time."""

    def __init__(self, slowdown: FixedTimes) -> None:
        fastest = min(slowdown.exact_mean_time)
        self.slowdown = tuple(mean / fastest for mean in slowdown.exact_mean_time)
        self.times = slowdown


def _times(times: str, clients: int | None, law: str | None, spread: str | None, resolution: str | None) -> Any:
    if not times.startswith("measured"):
        return _by_partition(read_times(times, clients, law, spread, resolution))
    if law is not None or spread is not None or resolution is not None:
        raise InputError("--law, --spread, --resolution: measured times have no law; leave them out")
    slowdown = read_times(times.partition(":")[2] or "F0", clients, None, None)
    if not isinstance(slowdown, FixedTimes):
        raise InputError("--times: measured:… takes slowdowns, as measured:F80 or measured:1,2,5")
    return _Measured(slowdown)


def _by_partition(times: ClientTimes) -> ClientTimes:
    """Client i has partition i: where a trace's clients are named by partitions, they are put in that order."""
    if not isinstance(times, TraceTimes):
        return times
    places = {name: place for place, name in enumerate(times.names)}
    numbers = [str(i) for i in range(times.num_clients)]
    return times.only([places[name] for name in numbers]) if places.keys() == set(numbers) else times


def _schemes(
    names: list[str] | None, known: Any, wait: Any, buffer: Any, sample: Any, stage: Any, server: str | None
) -> dict[str, Scheme | None]:
    """What is to run, by label; None is the app's own strategy."""
    texts = list(dict.fromkeys(names or [OWN]))
    times = known.times if isinstance(known, _Measured) else known
    found: dict[str, Scheme | None] = {}
    for name in texts:
        if name == OWN:
            found[OWN] = None
            continue
        mine = {
            "waits": wait if name == "fedfix" else None,
            "buffers": buffer if name == "fedbuff" else None,
            "samples": sample if name in _SAMPLING else None,
            "stages": stage if name in _STAGED else None,
        }
        for made in read_schemes([name], times, **mine) or []:
            whole = made.using(server=server) if server is not None else made
            found[whole.label] = whole
    for flag, values, owners in (
        ("--wait", wait, ("fedfix",)),
        ("--buffer", buffer, ("fedbuff",)),
        ("--sample", sample, _SAMPLING),
        ("--stage", stage, _STAGED),
    ):
        if values and not set(owners) & set(texts):
            raise InputError(f"{flag}: it belongs to --scheme {' or '.join(owners)}, which was not asked for; add it")
    return found


def _flower_speaks_once(level: int) -> None:
    """Flower's log through ours alone."""
    flower = logging.getLogger("flwr")
    flower.handlers.clear()
    flower.setLevel(level)


@contextlib.contextmanager
def _server_errors() -> Iterator[None]:
    """What the ServerApp raises, or Flower in its place, is one message; the traceback with --verbose."""
    try:
        yield
    except FedtempoError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = str(Path(__file__).parents[1])
        if frames[-1].filename.startswith(ours):
            raise
        log.info("the ServerApp's error", exc_info=error)
        place = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}"
        raise InputError(
            f"the ServerApp has failed: {type(error).__name__}: {error} ({place}); --verbose shows where it came from"
        ) from None


def _judge(result: Result, label: str, place: Path) -> None:
    """A run without updates is none; of Flower's own strategies, say what was not taken."""
    faults = [fault for fault in result.errors if fault.client >= 0 and not fault.quiet]
    first = f"client {faults[0].client} at {faults[0].time:.4g}: {faults[0].reason}" if faults else ""
    if not any(closed.updates for closed in result.rounds):
        shutil.rmtree(place, ignore_errors=True)
        if faults:
            raise InputError(f"{label}: no update was taken, and {len(faults)} failed, the first of {first}")
        raise InputError(f"{label}: no round has ended with an update; give a later --until, or more --rounds")
    if label == OWN and faults:
        log.warning("%s: %d updates failed, the first of %s; fedtempo show %s", label, len(faults), first, place)


def slug(label: str) -> str:
    """A folder's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower() or "run"


def _prepare(out: Path, asked: dict[str, Any], schemes: dict[str, Any], *, overwrite: bool) -> None:
    """Take the folder, or go on with what is in it if that is the same."""
    from fedtempo.flower.virtual.runs import RUNS, read_asked, write_runs

    runs = {label: slug(label) for label in schemes}
    if (out / RUNS).is_file() and not overwrite:
        there = read_asked(out)
        differing = [name for name, value in asked.items() if there["asked"].get(name) != value]
        if differing or there["runs"] != runs:
            what = ", ".join(differing) or "schemes"
            raise ResultsConflict(
                f"{out} holds other runs of an app ({what} differ); to replace them add --overwrite, or choose another "
                "--out"
            )
        if all(_is_done(out / name) for name in runs.values()):
            raise ResultsConflict(
                f"{out} holds these runs, finished: fedtempo show {out}; to replace them add --overwrite"
            )
        return
    if out.is_dir() and any(out.iterdir()):
        if not (out / RUNS).is_file():
            raise ResultsConflict(f"{out} holds something else; choose another --out")
        for name in read_asked(out)["runs"].values():
            shutil.rmtree(out / Path(name).name, ignore_errors=True)
    write_runs(out, asked, runs)


@contextlib.contextmanager
def _progress(label: str, until: float | None, quiet: bool) -> Iterator[Callable[[float, int], None] | None]:
    """A line now and then, on standard error."""
    if quiet:
        yield None
        return
    from fedtempo.cli.progress import LINE_SECONDS

    state = {"next": time.monotonic() + LINE_SECONDS}

    def tell(now: float, updates: int) -> None:
        if time.monotonic() >= state["next"]:
            state["next"] = time.monotonic() + LINE_SECONDS
            of = "" if until is None else f" of {until:g}"
            print(f"fedtempo: {label}: time {now:.4g}{of}, {updates} updates", file=sys.stderr)  # noqa: T201

    yield tell


def present_app(folder: Path, out: list[Path] | None = None) -> None:
    """The runs side by side, on standard output and as figures in the folder."""
    from fedtempo.flower.virtual.runs import read_runs, save_runs, show_runs
    from fedtempo.flower.virtual.runs_document import runs_document
    from fedtempo.report.browser.document import is_page

    runs = read_runs(folder)
    show_runs(runs)
    paths = out or [folder / "app.png", folder / "app.svg"]
    for path in paths:
        if is_page(path):
            runs_document(folder, runs).save(path)
        else:
            save_runs(runs, path)
    typer.echo(f"\n{', '.join(str(path) for path in paths)}; each run: fedtempo show {folder}/…")
