"""What the commands have in common: clients' times, schemes and importance, read from text."""

from __future__ import annotations

import difflib
import logging
import re
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from fedtempo.clock.random_times import ExponentialTimes, LogNormalTimes, UniformTimes
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.trace import TraceTimes
from fedtempo.errors import DataMissing, InputError
from fedtempo.planning.compare import sensible_sizes, sensible_waits
from fedtempo.schemes.named import (
    AsyncFedAvg,
    Centralized,
    FastestSampling,
    FedAvg,
    FedBuff,
    FedFix,
    MultinomialSampling,
    Scheme,
    StagedFedFix,
    UniformSampling,
)

Clients = Annotated[int | None, typer.Option("--clients", "-M", help="How many clients, for F<X>.", show_default=False)]
Times = Annotated[
    str,
    typer.Option(
        "--times",
        help="F<X> as in the paper (F80: the fastest needs a fifth of 1), a list 1,2,5/2, a trace file, or the "
        "checkpoint folder of a run on Flower.",
    ),
]
Law = Annotated[
    str | None,
    typer.Option(
        "--law",
        help="fixed, exponential, lognormal, uniform: around the given times; replay or bootstrap: of a trace or run.",
        show_default="fixed, or replay for a trace",
    ),
]
Spread = Annotated[
    str | None,
    typer.Option(
        "--spread",
        help="lognormal: deviation of log time; uniform: half width, as a share of the mean.",
        show_default="0.5",
    ),
]
Resolution = Annotated[
    str | None, typer.Option("--resolution", help="Tick to which random times are rounded up.", show_default=False)
]
SchemeNames = Annotated[
    list[str] | None,
    typer.Option(
        "--scheme",
        help="fedavg, async, fedfix, fedbuff, uniform, multinomial, fastest, centralized, stages.",
        show_default=False,
    ),
]
Waits = Annotated[list[str] | None, typer.Option("--wait", help="Interval of fedfix.", show_default=False)]
Buffers = Annotated[list[int] | None, typer.Option("--buffer", help="Updates a fedbuff round.", show_default=False)]
Samples = Annotated[
    list[int] | None,
    typer.Option("--sample", help="Clients a round: uniform, multinomial, fastest.", show_default=False),
]
Stages = Annotated[
    list[str] | None,
    typer.Option("--stage", help="WAIT:WINDOWS of stages, in order; the last one just WAIT.", show_default=False),
]
ImportanceText = Annotated[
    str | None, typer.Option("--importance", help="p_i as a list 0.5,1/4,1/4.", show_default="equal")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of random times and sampling.")]
Target = Annotated[
    float | None, typer.Option("--target", help="Loss that the table's times refer to.", show_default=False)
]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice for everything.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but results and errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of tables.")]

T = TypeVar("T")
_SPREAD_NAME = re.compile(r"[Ff](\d+(?:\.\d+)?)")
_TRACE_LAWS = ("replay", "bootstrap")
_LOUDNESS = [logging.WARNING, logging.INFO, logging.DEBUG]
_LAWS = ("fixed", "exponential", "lognormal", "uniform")


def set_loudness(verbose: int, quiet: bool) -> None:
    """How much standard logging says on standard error."""
    level = logging.ERROR if quiet else _LOUDNESS[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True)


def read_times(
    given: str, clients: int | None, law: str | None, spread: str | None, resolution: str | None = None
) -> ClientTimes:
    """The clients' times that `--times`, `--clients` and `--law` describe."""
    if law is not None and law not in (*_LAWS, *_TRACE_LAWS):
        raise InputError(f"--law: {law!r} is not known{nearest(law, (*_LAWS, *_TRACE_LAWS))}")
    if clients is not None and clients < 1:
        raise InputError(f"--clients: {clients} given, so there is nobody to train; give at least 1")
    if spread is not None and law not in ("lognormal", "uniform"):
        raise InputError("--spread: it belongs to --law lognormal or --law uniform; add one or leave it out")
    path = _trace_path(given)
    if path is not None:
        return _read_trace(path, clients, law, resolution)
    if law in _TRACE_LAWS:
        raise InputError(f"--law: {law} needs a trace file in --times, not {given!r}")
    means = _means(given, clients)
    if law in (None, "fixed"):
        if resolution is not None:
            raise InputError("--resolution: fixed times are exact already; leave it out, or choose a random --law")
        return means
    exactly = means.exact_mean_time
    if law == "exponential":
        return ExponentialTimes(exactly, resolution=resolution)
    width = exact(spread, "--spread") if spread is not None else Fraction(1, 2)
    if law == "lognormal":
        return LogNormalTimes(exactly, sigma=float(width), resolution=resolution)
    if not 0 < width < 1:
        raise InputError(f"--spread: {spread} must lie between 0 and 1 for uniform times")
    return UniformTimes([m * (1 - width) for m in exactly], [m * (1 + width) for m in exactly], resolution=resolution)


def _trace_path(given: str) -> Path | None:
    if not given.strip() or len(given) > 4000 or (any(len(part) > 255 for part in given.split("/"))):
        return None  # no file has such a name
    path = Path(given)
    return path if path.suffix.lower() in (".csv", ".parquet", ".pq") or path.exists() else None


def _read_trace(path: Path, clients: int | None, law: str | None, resolution: str | None) -> ClientTimes:
    if law is not None and law not in _TRACE_LAWS:
        raise InputError(f"--law: a trace is replayed or bootstrapped, not {law}; use --law replay or --law bootstrap")
    trace = _recorded(path, "bootstrap" if law == "bootstrap" else "replay", resolution)
    if clients is not None and clients != trace.num_clients:
        raise InputError(f"--clients: {clients} given, but {path} has {trace.num_clients}; leave --clients out")
    return trace


def _recorded(path: Path, mode: Literal["replay", "bootstrap"], resolution: str | None) -> TraceTimes:
    if not path.is_dir():
        return TraceTimes.read(path, mode=mode, resolution=resolution)
    from fedtempo.cli.show import is_run, read_run_times

    if not is_run(path):
        raise InputError(
            f"--times: {path} is a folder without a run of fedtempo.flower; give its checkpoint folder, or a trace file"
        )
    return read_run_times(path, mode, resolution)


def _means(given: str, clients: int | None) -> FixedTimes:
    if not given.strip(", "):
        raise InputError("--times: the list is empty, so there are no clients; give one time per client, as 1,2,5/2")
    named = _SPREAD_NAME.fullmatch(given.strip())
    if named:
        if clients is None:
            raise InputError(f"--times {given} needs the number of clients: add --clients 20")
        return FixedTimes.spread(clients, named.group(1))
    parts = [part.strip() for part in given.split(",")]
    if len(parts) == 1 and not re.match(r"[-+.\d]|nan|inf", parts[0], re.IGNORECASE):
        if "/" in given or "." in given:
            raise DataMissing(f"--times: {given[:200]}: no such trace file; check the path")
        raise InputError(f"--times: {given!r} is neither F<X> (as F80), nor a list (as 1,2,5/2), nor a trace file")
    times = FixedTimes(parts)
    if clients is not None and clients != times.num_clients:
        raise InputError(f"--clients: {clients} given, but --times lists {times.num_clients}; leave --clients out")
    return times


def read_importance(given: str | None) -> list[Fraction] | None:
    """`--importance` as rationals."""
    if given is None:
        return None
    return [exact(part, f"--importance of client {i}") for i, part in enumerate(given.split(","))]


def read_schemes(
    names: Sequence[str] | None,
    times: ClientTimes,
    *,
    waits: Sequence[str] | None,
    buffers: Sequence[int] | None,
    samples: Sequence[int] | None,
    stages: Sequence[str] | None,
) -> list[Scheme] | None:
    """The schemes asked for, in order; None if none was named."""
    asked = list(names or [])
    known = [*PLAIN, *SIZED, "fedfix", "fedbuff", "stages"]
    for name in asked:
        if name not in known:
            raise InputError(f"--scheme: {name!r} is not known{nearest(name, known)}")
    _belongs("--wait", waits, asked, ["fedfix"])
    _belongs("--buffer", buffers, asked, ["fedbuff"])
    _belongs("--sample", samples, asked, list(SIZED))
    _belongs("--stage", stages, asked, ["stages"])
    if not asked:
        return None
    out: list[Scheme] = []
    for name in dict.fromkeys(asked):
        if name in PLAIN:
            out.append(PLAIN[name]())
        elif name in SIZED:
            out += [SIZED[name](size) for size in _needed("--sample 5", samples, name)]
        elif name == "fedfix":
            out += [FedFix(wait) for wait in (waits or sensible_waits(times))]
        elif name == "fedbuff":
            out += [FedBuff(size) for size in _needed("--buffer 5", buffers or sensible_sizes(times), name)]
        else:
            out.append(_staged(_needed("--stage 1/4:10 --stage 1/2", stages, name), times))
    for scheme in out:
        scheme.waiting.check(times.num_clients)
    return list(dict.fromkeys(out))


PLAIN: dict[str, Callable[[], Scheme]] = {"fedavg": FedAvg, "async": AsyncFedAvg, "centralized": Centralized}
SIZED: dict[str, Callable[[int], Scheme]] = {
    "uniform": UniformSampling,
    "multinomial": MultinomialSampling,
    "fastest": FastestSampling,
}


def _belongs(flag: str, values: Sequence[object] | None, asked: Sequence[str], schemes: list[str]) -> None:
    if values and not set(schemes) & set(asked):
        raise InputError(
            f"{flag}: it belongs to --scheme {' or '.join(schemes)}, which was not asked for; add --scheme {schemes[0]}"
        )


def _needed(example: str, values: Sequence[T] | None, name: str) -> Sequence[T]:
    if not values:
        raise InputError(f"--scheme {name}: it needs a number; add {example}")
    return values


def _staged(given: Sequence[str], times: ClientTimes) -> Scheme:
    stages: list[tuple[Fraction, int | None]] = []
    for k, stage in enumerate(given):
        wait, _, windows = stage.partition(":")
        last = k == len(given) - 1
        if last == bool(windows) or (windows and not windows.isdecimal()):
            raise InputError(
                f"--stage: {stage!r} does not do; each stage but the last says for how many windows, as 1/4:10, "
                "and the last is just a wait, as 1/2"
            )
        stages.append((exact(wait, "--stage"), int(windows) if windows else None))
    return StagedFedFix.over_windows(times, stages)


def nearest(name: str, known: Sequence[str]) -> str:
    """What to use instead of a name that is not known."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}? Known: {', '.join(known)}" if near else f"; use one of {', '.join(known)}"
