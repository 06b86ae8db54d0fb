"""What the commands have in common: their flags, and the schemes and the importance that flags describe."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, TypeVar

import typer

from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.planning.compare import sensible_sizes, sensible_waits
from fedtempo.schemes.named import FedBuff, FedFix, Scheme, StagedFedFix
from fedtempo.schemes.table import SCHEMES

Clients = Annotated[
    int | None, typer.Option("--clients", "-M", help="How many clients, for F<X> and devices.", show_default=False)
]
Times = Annotated[
    str,
    typer.Option(
        "--times",
        help="F<X> as in the paper (F80: the fastest needs a fifth of 1), a list 1,2,5/2, published devices by name "
        "(fedtempo times lists them), a trace file, or the checkpoint folder of a run on Flower.",
    ),
]
Law = Annotated[
    str | None,
    typer.Option(
        "--law",
        help="Around the given times: fixed, exponential, lognormal:0.5 (deviation of log time), uniform:0.5 (half "
        "width, as a share of the mean), pareto:2.5 (shape), shifted-exponential:0.5 (share that is fixed). Of a "
        "trace or run: replay, bootstrap.",
        show_default="fixed, or replay for a trace",
    ),
]
Spread = Annotated[
    str | None,
    typer.Option("--spread", help="Old name of the number in --law lognormal:0.5, uniform:0.5.", show_default=False),
]
Resolution = Annotated[
    str | None, typer.Option("--resolution", help="Tick to which random times are rounded up.", show_default=False)
]
Failure = Annotated[
    str | None,
    typer.Option("--failure", help="Probability that a job fails: 0.1, or one per client.", show_default="0"),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", help="Mean time that a client is there, before it goes away; with --off.", show_default="always"
    ),
]
Off = Annotated[
    str | None,
    typer.Option(
        "--off", help="Mean time that it is away, before it comes back; one, or one per client.", show_default=False
    ),
]
Absences = Annotated[
    str | None,
    typer.Option("--absences", help="When clients are away: a file with client,leaves,returns.", show_default=False),
]
Period = Annotated[
    str | None, typer.Option("--period", help="Time after which the absences repeat.", show_default="they do not")
]
SchemeNames = Annotated[
    list[str] | None,
    typer.Option(
        "--scheme",
        help="fedavg, async, fedfix, fedbuff, uniform, multinomial, fastest, centralized, stages, "
        "or package.module:attribute.",
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
Step = Annotated[
    str | None,
    typer.Option(
        "--step",
        help="The server's: stable (divided by 1 + mean staleness), paper (raw), proven.",
        show_default="stable",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of random times and sampling.")]
Target = Annotated[
    float | None, typer.Option("--target", help="Loss that the table's times refer to.", show_default=False)
]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; twice for everything.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but results and errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of tables.")]

T = TypeVar("T")
_LOUDNESS = [logging.WARNING, logging.INFO, logging.DEBUG]


def set_loudness(verbose: int, quiet: bool) -> None:
    """How much standard logging says on standard error."""
    level = logging.ERROR if quiet else _LOUDNESS[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True)


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
    found = scheme_tables(names, times, waits=waits, buffers=buffers, samples=samples, stages=stages)
    return None if found is None else list(found)


def scheme_tables(
    names: Sequence[str] | None,
    times: ClientTimes,
    *,
    waits: Sequence[str] | None,
    buffers: Sequence[int] | None,
    samples: Sequence[int] | None,
    stages: Sequence[str] | None,
) -> dict[Scheme, dict[str, object]] | None:
    """The schemes asked for, in order, each with its table in a study file; None if none was named."""
    texts = list(dict.fromkeys(names or []))
    bare = [text for text in texts if text in SCHEMES]
    _belongs("--wait", waits, bare, ["fedfix"])
    _belongs("--buffer", buffers, bare, ["fedbuff"])
    _belongs("--sample", samples, bare, list(_SAMPLED))
    _belongs("--stage", stages, bare, list(_STAGED))
    if not texts:
        return None
    out: list[Scheme] = []
    written: dict[Scheme, dict[str, object]] = {}
    for text in texts:
        if text in _SAMPLED:
            out += [_one(text, size=size) for size in _needed("--sample 5", samples, text)]
        elif text == "fedfix":
            out += [FedFix(wait) for wait in (waits or sensible_waits(times))]
        elif text == "fedbuff":
            out += [FedBuff(size) for size in _needed("--buffer 5", buffers or sensible_sizes(times), text)]
        elif text in _STAGED:
            out.append(_staged(_needed("--stage 1/4:10 --stage 1/2", stages, text), times))
        else:
            out.append(_one(text))
            written[out[-1]] = {"name": text}
    for scheme in out:
        scheme.waiting.check(times.num_clients)
    return {scheme: written.get(scheme) or scheme.spec() for scheme in out}


_SAMPLED = ("uniform", "multinomial", "fastest", "highest-loss")
"""Schemes whose size is --sample."""
_STAGED = ("stages", "fedfix-stages")


def _one(text: str, **arguments: object) -> Scheme:
    return SCHEMES.from_spec({"name": text, **arguments}, "--scheme")


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
