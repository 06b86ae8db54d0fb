"""The commands, and how messages of the option parser become ours."""

from __future__ import annotations

import io
import sys
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
        raise InputError(f"{error.format_message()} (see {where} --help)") from None
    except SystemExit:  # what Typer makes of a reader that has gone
        raise BrokenPipeError from None
    except click.Abort:
        raise KeyboardInterrupt from None
    if code == INTERRUPTED:  # what Typer makes of Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0
