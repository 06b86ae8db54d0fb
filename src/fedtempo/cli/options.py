"""What the commands have in common: their flags, and what is made of them.

times       `client_times`                         as [times] of a study file
schemes     `read_schemes`, `scheme_tables`        as [[schemes]]
problem     `problem_table`, `problem_and_times`   as [problem]; --set is any other key
local work  `local_table`                          as [local]
"""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import needs_clients, read_times, with_availability
from fedtempo.errors import InputError
from fedtempo.planning.compare import sensible_sizes, sensible_waits
from fedtempo.schemes.named import FedFix, Scheme, StagedFedFix
from fedtempo.schemes.table import SCHEMES

_TIMES, _SCHEMES, _PROBLEM = "Client times", "Schemes", "Problem and local work"
"""Panels of the help."""


def _option(flag: str, *short: str, help: str, panel: str | None, default: str | bool = False) -> Any:
    return typer.Option(flag, *short, help=help, rich_help_panel=panel, show_default=default)


Clients = Annotated[
    int | None,
    _option("--clients", "-M", help="How many clients, for F<X> and devices.", panel=_TIMES),
]
_TIMES_HELP = (
    "F<X> as in the paper (F80: the fastest client needs a fifth of 1), a list 1,2,5/2, published devices by name "
    "(fedtempo times lists them), a trace file, or the checkpoint folder of a run on Flower."
)
Times = Annotated[str, typer.Option("--times", help=_TIMES_HELP, rich_help_panel=_TIMES)]
TimesOrRun = Annotated[str | None, _option("--times", help=_TIMES_HELP, panel=_TIMES, default="those of RUN")]
SeveralTimes = Annotated[
    list[str] | None,
    _option("--times", help=f"{_TIMES_HELP} Repeat it to compare.", panel=_TIMES, default="F80"),
]
Law = Annotated[
    str | None,
    _option(
        "--law",
        help="Around the given times: fixed, exponential, lognormal:0.5 (standard deviation of the log), uniform:0.5 "
        "(half width, as a share of the mean), pareto:2.5 (shape), shifted-exponential:0.5 (share that is fixed). Of a "
        "trace or a run: replay, bootstrap.",
        panel=_TIMES,
        default="fixed, or replay for a trace",
    ),
]
Spread = Annotated[
    str | None,
    _option("--spread", help="Old name of the number in --law lognormal:0.5 and uniform:0.5.", panel=_TIMES),
]
Resolution = Annotated[
    str | None, _option("--resolution", help="Tick to which random times are rounded up.", panel=_TIMES)
]
Failure = Annotated[
    str | None,
    _option(
        "--failure", help="Probability that a job fails: one number, or one per client.", panel=_TIMES, default="0"
    ),
]
On = Annotated[
    str | None,
    _option(
        "--on",
        help="Mean time that a client is there before it goes away; needs --off.",
        panel=_TIMES,
        default="always",
    ),
]
Off = Annotated[
    str | None,
    _option("--off", help="Mean time that a client is away: one number, or one per client; needs --on.", panel=_TIMES),
]
Absences = Annotated[
    str | None,
    _option("--absences", help="When clients are away: a CSV file with client,leaves,returns.", panel=_TIMES),
]
Period = Annotated[
    str | None,
    _option("--period", help="Time after which the absences repeat.", panel=_TIMES, default="never"),
]
SchemeNames = Annotated[
    list[str] | None,
    _option(
        "--scheme",
        help="fedavg, async, fedfix:1/2, fedbuff:5, uniform:5, multinomial:5, fastest:5, highest-loss:5, centralized, "
        "stages; published: fedasync:0.6, fedbuff-published:5, fednova:1,2,5, fedau:async, cutoff:async:20; or "
        "package.module:attribute. Repeat it to compare.",
        panel=_SCHEMES,
    ),
]
Waits = Annotated[list[str] | None, _option("--wait", help="Interval of fedfix; repeat it to compare.", panel=_SCHEMES)]
Buffers = Annotated[
    list[int] | None,
    _option(
        "--buffer", help="Updates per round of fedbuff and fedbuff-published; repeat it to compare.", panel=_SCHEMES
    ),
]
Samples = Annotated[
    list[int] | None,
    _option(
        "--sample",
        help="Clients per round of uniform, multinomial, fastest and highest-loss; repeat it to compare.",
        panel=_SCHEMES,
    ),
]
Stages = Annotated[
    list[str] | None,
    _option(
        "--stage",
        help="Of stages, in order: WAIT:WINDOWS, as 1/4:10; the last is a WAIT alone, as 1/2.",
        panel=_SCHEMES,
    ),
]
ImportanceText = Annotated[
    str | None,
    _option("--importance", help="Importance p_i of each client, as 0.5,1/4,1/4.", panel=_SCHEMES, default="equal"),
]
_WEIGHTS_HELP = "Weight rule: time-based, identical, importance, measured, own-time, or package.module:attribute."
Weights = Annotated[str, typer.Option("--weights", help=_WEIGHTS_HELP, rich_help_panel=_SCHEMES)]
WeightsOrRun = Annotated[
    str | None, _option("--weights", help=_WEIGHTS_HELP, panel=_SCHEMES, default="time-based, or those of RUN")
]
SeveralWeights = Annotated[
    list[str] | None,
    _option(
        "--weights",
        help=f"{_WEIGHTS_HELP} Repeat it to compare.",
        panel=_SCHEMES,
        default="time-based and identical",
    ),
]
Step = Annotated[
    str | None,
    _option(
        "--step",
        help="The server's step: stable (divided by 1 + mean staleness), paper (raw), proven.",
        panel=_SCHEMES,
        default="stable",
    ),
]
Correction = Annotated[
    str | None,
    _option(
        "--correction",
        help="For all schemes: fedprox:0.1, feddane:0.1, feddyn:1, scaffold, or package.module:attribute.",
        panel=_SCHEMES,
    ),
]
Server = Annotated[
    str | None,
    _option(
        "--server",
        help="Server optimizer for all schemes: slowmo:0.9, fedadam, fedyogi, fedadagrad, optax:adam, or "
        "package.module:attribute.",
        panel=_SCHEMES,
    ),
]
Compression = Annotated[
    str | None,
    _option(
        "--compression",
        help="For all schemes: topk:0.01, qsgd:4, lowrank:2, or package.module:attribute.",
        panel=_SCHEMES,
    ),
]
Compensate = Annotated[
    str | None,
    _option(
        "--compensate",
        help="How clients that contribute rarely count for more: weights, rate or work.",
        panel=_SCHEMES,
        default="weights",
    ),
]


def problem_option(default: str | bool = False) -> Any:
    """`--problem`."""
    return _option(
        "--problem",
        help="digits, mnist, cifar10, shakespeare, quadratics, or package.module:function.",
        panel=_PROBLEM,
        default=default,
    )


_PARTITION_HELP = "How rows are dealt to clients: iid, dirichlet:0.1, shards:2, one-label."
Partition = Annotated[str | None, _option("--partition", help=_PARTITION_HELP, panel=_PROBLEM)]
SeveralPartitions = Annotated[
    list[str] | None,
    _option(
        "--partition",
        help=f"{_PARTITION_HELP} Repeat it to compare.",
        panel=_PROBLEM,
        default="the problem's; dirichlet:0.1 for digits",
    ),
]
Settings = Annotated[
    list[str] | None,
    _option("--set", help="KEY=VALUE: another argument of the problem, as l2=0.01; repeat for more.", panel=_PROBLEM),
]
DataDir = Annotated[
    Path | None,
    _option(
        "--data-dir",
        help="Folder with mnist/, cifar10/, shakespeare/.",
        panel=_PROBLEM,
        default="$FEDTEMPO_DATA_DIR, or a cache",
    ),
]


def lr_option(default: str) -> Any:
    """`--lr`."""
    return _option(
        "--lr",
        help="Local learning rate; fedtempo plan and run take several, as 0.1,0.3.",
        panel=_PROBLEM,
        default=default,
    )


Steps = Annotated[
    list[str] | None,
    _option("--steps", help="Local steps K; fedtempo run takes several, as 1,5.", panel=_PROBLEM, default="1"),
]
BatchSize = Annotated[
    list[str] | None,
    _option(
        "--batch-size",
        help="Rows per local step, or all; fedtempo run takes several, as 16,all.",
        panel=_PROBLEM,
        default="32",
    ),
]
ServerLr = Annotated[
    list[str] | None,
    _option(
        "--server-lr", help="Server learning rate; fedtempo run takes several, as 0.5,1.", panel=_PROBLEM, default="1"
    ),
]
Momentum = Annotated[
    list[str] | None,
    _option(
        "--momentum",
        help="Momentum of the local steps; fedtempo run takes several, as 0,0.9.",
        panel=_PROBLEM,
    ),
]
Clip = Annotated[
    list[str] | None,
    _option("--clip", help="Largest norm of a gradient; fedtempo run takes several, as 1,10.", panel=_PROBLEM),
]
Solver = Annotated[
    str | None,
    _option(
        "--solver",
        help="Local solver: sgd, the name of an Optax solver, or package.module:function.",
        panel=_PROBLEM,
        default="sgd",
    ),
]
Draw = Annotated[
    str | None,
    _option(
        "--draw",
        help="How rows are drawn: uniform (with replacement) or epochs (each row once an epoch).",
        panel=_PROBLEM,
        default="uniform",
    ),
]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32, float64 or tensorfloat32.", show_default="float32")
]
Engine = Annotated[str | None, typer.Option("--engine", help="auto, events or waves.", show_default="auto")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of random times and of sampling.")]
Target = Annotated[
    float | None, typer.Option("--target", help="Loss that the table's times refer to.", show_default=False)
]
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, help="Say more; twice for everything.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of tables.")]

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem

T = TypeVar("T")
_LOUDNESS = [logging.WARNING, logging.INFO, logging.DEBUG]


def set_loudness(verbose: int, quiet: bool) -> None:
    """How much standard logging says on standard error."""
    level = logging.ERROR if quiet else _LOUDNESS[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True)


def client_times(
    times: str, clients: int | None, law: str | None, spread: str | None, resolution: str | None, **availability: Any
) -> ClientTimes:
    """The clients' times, and when clients are there."""
    return with_availability(read_times(times, clients, law, spread, resolution), **availability)


# -- the problem and the local work


def problem_table(
    name: str | None, partition: str | None, settings: Sequence[str] | None, data_dir: Path | None
) -> dict[str, Any]:
    """What flags say of a problem, as [problem] of a study file; the number of clients apart."""
    given = {"name": name, "partition": partition, "data_dir": None if data_dir is None else str(data_dir)}
    return {key: value for key, value in given.items() if value is not None} | read_settings(settings)


_OWN_FLAGS = {"partition": "--partition", "data_dir": "--data-dir"}


def read_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """`--set KEY=VALUE` as the keys of a table: numbers, truth values and lists as TOML writes them, else text."""
    found: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise InputError(f"--set: {text!r} is not KEY=VALUE; write it as l2=0.01")
        if key == "name":
            raise InputError(f"--set: the name of the problem is --problem {value}")
        if key in _OWN_FLAGS:
            raise InputError(f"--set: {key} has a flag of its own; write {_OWN_FLAGS[key]} {value}")
        if key in found:
            raise InputError(f"--set: {key} is given twice; give one value")
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def check_clients(clients: int | None, settings: Mapping[str, Any]) -> None:
    """Refuse two numbers of clients."""
    if clients is not None and settings.get("clients", clients) != clients:
        raise InputError(f"--clients: {clients} given, but also --set clients={settings['clients']}; give one of them")


def problem_and_times(
    table: Mapping[str, Any], times: str, clients: int | None, *rest: str | None, **availability: Any
) -> tuple[Problem, ClientTimes]:
    """The problem and the client times that flags describe, with the same number of clients.

    Where neither the times nor `--clients` say how many there are, the problem does.
    """
    from fedtempo.problems.naming import named

    if clients is None and needs_clients(times):
        made = named(table)
        return made, client_times(times, made.num_clients, *rest, **availability)
    check_clients(clients, table)
    known = client_times(times, clients, *rest, **availability)
    asked = {} if clients is None else {"clients": clients}
    return named({**asked, **table}, known.num_clients), known


def refuse_without_problem(**given: object) -> None:
    """Refuse flags that say something of a problem where there is none."""
    for name, value in given.items():
        if not (value is None or value is False or value == []):  # 0 is a value
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag}: it belongs to a problem; add one, as --problem digits")


def local_table(**given: Sequence[str] | None) -> dict[str, Any]:
    """What flags say of the training, by the keys of a study file: a number, or a list of them."""
    found = {
        key: one_or_list(f"--{key.replace('_', '-')}", texts, *_NUMBERS[key]) for key, texts in given.items() if texts
    }
    if isinstance(found.get("lr"), list) and "auto" in found["lr"]:
        raise InputError("--lr: auto searches the rates by itself; give auto alone, or numbers, as 0.1,0.3")
    return found


def one_or_list(flag: str, given: Sequence[str], read: Callable[[str], Any], what: str, example: str) -> Any:
    """What a flag says, repeated or with commas: one value stays one, several make a list."""
    values = []
    for part in (part.strip() for text in given for part in text.split(",")):
        try:
            values.append(read(part))
        except (ValueError, ZeroDivisionError):
            raise InputError(f"{flag}: {part!r} is not {what}; write it as {example}") from None
    return values if len(values) > 1 else values[0]


def _number(text: str) -> float:
    return float(Fraction(text)) if "/" in text else float(text)


_NUMBERS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "lr": (lambda text: text if text == "auto" else _number(text), "a number", "0.1, 0.1,0.3 or auto"),
    "steps": (int, "a whole number", "5 or 1,5"),
    "batch_size": (lambda text: text if text == "all" else int(text), "a whole number of rows", "32, 16,64 or all"),
    "momentum": (_number, "a number", "0.9 or 0,0.9"),
    "clip": (_number, "a number", "1 or 1,10"),
    "server_lr": (_number, "a number", "1 or 0.5,1"),
}
"""How each number of the training is read, what it must be, and an example."""


def only_one(table: Mapping[str, Any], command: str, keys: Sequence[str]) -> None:
    """Refuse lists where a command takes one value."""
    for key in keys:
        if isinstance(table.get(key), list):
            flag, given = "--" + key.replace("_", "-"), ",".join(map(str, table[key]))
            raise InputError(f"{flag}: {given}: fedtempo {command} takes one; fedtempo run compares several")


# -- importance and schemes


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
    _belongs("--buffer", buffers, bare, list(_BUFFERED))
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
        elif text in _BUFFERED:
            sizes = _needed("--buffer 5", buffers or sensible_sizes(times), text)
            for size in sizes:
                out.append(_one(text, size=size))
                written[out[-1]] = {"name": text, "size": size}
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
_BUFFERED = ("fedbuff", "fedbuff-published")
"""Schemes whose size is --buffer."""
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
                f"--stage: {stage!r} cannot stand there; each stage but the last says for how many windows, as 1/4:10, "
                "and the last is just a wait, as 1/2"
            )
        stages.append((exact(wait, "--stage"), int(windows) if windows else None))
    return StagedFedFix.over_windows(times, stages)
