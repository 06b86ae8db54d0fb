"""The flags that commands have in common, each declared once: `clients: o.Clients = None`.

What they say is read in `fedtempo.cli.reading`.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

_TIMES, _SCHEMES, _PROBLEM = "Client times", "Schemes", "Problem and local work"
"""Panels of the help."""


def _option(flag: str, *short: str, panel: str, help: str, default: str | bool = False) -> Any:
    return typer.Option(flag, *short, help=help, rich_help_panel=panel, show_default=default)


_times = partial(_option, panel=_TIMES)
_scheme = partial(_option, panel=_SCHEMES)
_problem = partial(_option, panel=_PROBLEM)


Clients = Annotated[int | None, _times("--clients", "-M", help="How many clients, for F<X> and devices.")]
_TIMES_HELP = (
    "F<X> as in the paper (F80: the fastest client needs a fifth of 1), a list 1,2,5/2, published devices by name "
    "(fedtempo times lists them), a trace file, or the checkpoint folder of a run on Flower."
)
Times = Annotated[str, _times("--times", help=_TIMES_HELP)]
TimesOrRun = Annotated[str | None, _times("--times", help=_TIMES_HELP, default="those of RUN")]
SeveralTimes = Annotated[
    list[str] | None, _times("--times", help=f"{_TIMES_HELP} Repeat it to compare.", default="F80")
]
Law = Annotated[
    str | None,
    _times(
        "--law",
        help="Around the given times: fixed, exponential, lognormal:0.5 (standard deviation of the log), uniform:0.5 "
        "(half width, as a share of the mean), pareto:2.5 (shape), shifted-exponential:0.5 (share that is fixed). Of a "
        "trace or a run: replay, bootstrap.",
        default="fixed, or replay for a trace",
    ),
]
Spread = Annotated[
    str | None, _times("--spread", help="Old name of the number in --law lognormal:0.5 and uniform:0.5.")
]
Resolution = Annotated[str | None, _times("--resolution", help="Tick to which random times are rounded up.")]
Failure = Annotated[
    str | None, _times("--failure", help="Probability that a job fails: one number, or one per client.", default="0")
]
On = Annotated[
    str | None,
    _times("--on", help="Mean time that a client is there before it goes away; needs --off.", default="always"),
]
Off = Annotated[
    str | None, _times("--off", help="Mean time that a client is away: one number, or one per client; needs --on.")
]
Absences = Annotated[
    str | None, _times("--absences", help="When clients are away: a CSV file with client,leaves,returns.")
]
Period = Annotated[str | None, _times("--period", help="Time after which the absences repeat.", default="never")]
SchemeNames = Annotated[
    list[str] | None,
    _scheme(
        "--scheme",
        help="fedavg, async, fedfix:1/2, fedbuff:5, uniform:5, multinomial:5, fastest:5, highest-loss:5, centralized, "
        "stages; published: fedasync:0.6, fedbuff-published:5, fednova:1,2,5, fedau:async, cutoff:async:20; or "
        "package.module:attribute. Repeat it to compare.",
    ),
]
Waits = Annotated[list[str] | None, _scheme("--wait", help="Interval of fedfix; repeat it to compare.")]
Buffers = Annotated[
    list[int] | None,
    _scheme("--buffer", help="Updates per round of fedbuff and fedbuff-published; repeat it to compare."),
]
Samples = Annotated[
    list[int] | None,
    _scheme(
        "--sample", help="Clients per round of uniform, multinomial, fastest and highest-loss; repeat it to compare."
    ),
]
Stages = Annotated[
    list[str] | None,
    _scheme("--stage", help="Of stages, in order: WAIT:WINDOWS, as 1/4:10; the last is a WAIT alone, as 1/2."),
]
ImportanceText = Annotated[
    str | None, _scheme("--importance", help="Importance p_i of each client, as 0.5,1/4,1/4.", default="equal")
]
_WEIGHTS_HELP = "Weight rule: time-based, identical, importance, measured, own-time, or package.module:attribute."
Weights = Annotated[str, _scheme("--weights", help=_WEIGHTS_HELP, default=True)]
WeightsOrRun = Annotated[str | None, _scheme("--weights", help=_WEIGHTS_HELP, default="time-based, or those of RUN")]
SeveralWeights = Annotated[
    list[str] | None,
    _scheme("--weights", help=f"{_WEIGHTS_HELP} Repeat it to compare.", default="time-based and identical"),
]
Step = Annotated[
    str | None,
    _scheme(
        "--step",
        help="The server's step: stable (divided by 1 + mean staleness), paper (raw), proven.",
        default="stable",
    ),
]
Correction = Annotated[
    str | None,
    _scheme(
        "--correction",
        help="For all schemes: fedprox:0.1, feddane:0.1, feddyn:1, scaffold, or package.module:attribute.",
    ),
]
Server = Annotated[
    str | None,
    _scheme(
        "--server",
        help="Server optimizer for all schemes: slowmo:0.9, fedadam, fedyogi, fedadagrad, optax:adam, or "
        "package.module:attribute.",
    ),
]
Compression = Annotated[
    str | None,
    _scheme("--compression", help="For all schemes: topk:0.01, qsgd:4, lowrank:2, or package.module:attribute."),
]
Compensate = Annotated[
    str | None,
    _scheme(
        "--compensate",
        help="How clients that contribute rarely count for more: weights, rate or work.",
        default="weights",
    ),
]


def problem_option(default: str | bool = False) -> Any:
    """`--problem`."""
    return _problem(
        "--problem",
        help="digits, mnist, cifar10, shakespeare, quadratics, or package.module:function.",
        default=default,
    )


_PARTITION_HELP = "How rows are dealt to clients: iid, dirichlet:0.1, shards:2, one-label."
Partition = Annotated[str | None, _problem("--partition", help=_PARTITION_HELP)]
SeveralPartitions = Annotated[
    list[str] | None,
    _problem(
        "--partition",
        help=f"{_PARTITION_HELP} Repeat it to compare.",
        default="the problem's; dirichlet:0.1 for digits",
    ),
]
Settings = Annotated[
    list[str] | None, _problem("--set", help="KEY=VALUE: another argument of the problem, as l2=0.01; repeat for more.")
]
DataDir = Annotated[
    Path | None,
    _problem(
        "--data-dir", help="Folder with mnist/, cifar10/, shakespeare/.", default="$FEDTEMPO_DATA_DIR, or a cache"
    ),
]


def lr_option(default: str) -> Any:
    """`--lr`."""
    return _problem(
        "--lr", help="Local learning rate; fedtempo plan and run take several, as 0.1,0.3.", default=default
    )


Steps = Annotated[
    list[str] | None, _problem("--steps", help="Local steps K; fedtempo run takes several, as 1,5.", default="1")
]
BatchSize = Annotated[
    list[str] | None,
    _problem("--batch-size", help="Rows per local step, or all; fedtempo run takes several, as 16,all.", default="32"),
]
ServerLr = Annotated[
    list[str] | None,
    _problem("--server-lr", help="Server learning rate; fedtempo run takes several, as 0.5,1.", default="1"),
]
Momentum = Annotated[
    list[str] | None, _problem("--momentum", help="Momentum of the local steps; fedtempo run takes several, as 0,0.9.")
]
Clip = Annotated[
    list[str] | None, _problem("--clip", help="Largest norm of a gradient; fedtempo run takes several, as 1,10.")
]
Solver = Annotated[
    str | None,
    _problem(
        "--solver", help="Local solver: sgd, the name of an Optax solver, or package.module:function.", default="sgd"
    ),
]
Draw = Annotated[
    str | None,
    _problem(
        "--draw",
        help="How rows are drawn: uniform (with replacement) or epochs (each row once an epoch).",
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
    int, typer.Option("--verbose", "-v", count=True, help="Say more; twice for everything.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON document instead of tables.")]

_LOUDNESS = [logging.WARNING, logging.INFO, logging.DEBUG]


def set_loudness(verbose: int, quiet: bool) -> None:
    """How much standard logging says on standard error."""
    level = logging.ERROR if quiet else _LOUDNESS[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True)
