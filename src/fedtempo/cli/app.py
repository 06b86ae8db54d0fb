"""The commands, and how messages of the option parser become ours."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from typing import Annotated

import click
import typer
from click.exceptions import NoArgsIsHelpError

from fedtempo import __version__
from fedtempo.cli.data import data_app
from fedtempo.cli.flower_app import app as flower_app
from fedtempo.cli.options import Quiet, Verbose, set_loudness
from fedtempo.cli.plan import plan
from fedtempo.cli.reproduce import reproduce
from fedtempo.cli.run import run as run_study
from fedtempo.cli.show import show
from fedtempo.cli.theory import theory
from fedtempo.cli.timeline import timeline
from fedtempo.cli.times import times
from fedtempo.cli.watch import watch
from fedtempo.errors import INTERRUPTED, InputError

app = typer.Typer(
    name="fedtempo",
    help="Asynchronous federated learning at every client's own tempo.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedtempo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: Verbose = 0,
    quiet: Quiet = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Asynchronous federated learning at every client's own tempo."""
    set_loudness(verbose, quiet)


app.command()(plan)
app.command()(timeline)
app.command()(times)
app.command()(theory)
app.command(name="run")(run_study)
app.command(name="app")(flower_app)
app.command()(show)
app.command()(watch)
app.command()(reproduce)
app.add_typer(data_app, name="data")


def run() -> int:
    """Run the command that the arguments name; its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters gets question marks
    try:
        code = app(standalone_mode=False)
    except NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:  # an unknown option, a missing one
        where = error.ctx.command_path if error.ctx else "fedtempo"
        raise InputError(f"{_elsewhere(error) or _said_once(error)} (see {where} --help)") from None
    except SystemExit:  # what Typer makes of a reader that has gone
        raise BrokenPipeError from None
    except click.Abort:
        raise KeyboardInterrupt from None
    if code == INTERRUPTED:  # what Typer makes of Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


_PLAIN_SGD = "it is about plain local SGD and weighted sums of updates"
_ALWAYS_THERE = "its quantities and bounds are those of clients that are always there"
_NO_MODEL = "a timeline is about who contributes when, and no model is trained"
_TRAINING = ("solver", "momentum", "clip", "draw", "schedule", "correction", "server", "compression", "compensate")
_WHY: dict[str, dict[str, str]] = {
    "plan": {
        "schedule": "a plan looks for one learning rate that stays",
        "seeds": "a plan has one seed, --seed",
    },
    "theory": dict.fromkeys(_TRAINING, _PLAIN_SGD)
    | dict.fromkeys(("failure", "on", "off", "absences", "period"), _ALWAYS_THERE)
    | {"step": "the bounds are those of the paper's step", "seeds": "it draws one timeline, --seed"},
    "timeline": dict.fromkeys(
        ("problem", "partition", "set", "data-dir", "lr", "steps", "batch-size", "server-lr", *_TRAINING), _NO_MODEL
    )
    | dict.fromkeys(("weights", "step"), "they change what an update counts for, and not when it comes")
    | {"seeds": "a timeline has one seed, --seed"},
    "run": {
        "importance": "the problem has its own; --set importance=rows may change it",
        "seed": "a study has several seeds, as --seeds 3 or --seeds 0,5,7",
        "json": "the results are in the folder, as history.nc",
    },
}
"""By command: why a flag of another command is not there."""


def _elsewhere(error: click.UsageError) -> str | None:
    """Which commands have an option that this one has not; None where nobody has it."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None or error.ctx.parent is None:
        return None
    here, flag = error.ctx.info_name or "", error.option_name
    group = error.ctx.parent.command
    others: Mapping[str, click.Command] = getattr(group, "commands", {})
    having = [name for name, other in others.items() if any(flag in one.opts for one in other.params)]
    if not having:
        return None
    why = _WHY.get(here, {}).get(flag.lstrip("-"))
    because = f" ({why})" if why else ""
    have = f"{having[0]} has" if len(having) == 1 else f"{', '.join(having[:-1])} and {having[-1]} have"
    return f"{flag}: fedtempo {here} does not have it{because}; fedtempo {have} it"


def _said_once(error: click.UsageError) -> str:
    """The parser's own message; what it suggests twice is said once."""
    return re.sub(r"(Did you mean [^?]*\?)(\s*\1)+", r"\1", error.format_message())
