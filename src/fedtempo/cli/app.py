"""The commands, their exit codes, and the way messages reach a person.

Exit codes: 0 done, 2 input, 3 data missing, 4 results conflict, 130 interrupted. Results go to standard output,
everything else to standard error.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import click
import typer

from fedtempo import __version__
from fedtempo.cli.options import Quiet, Verbose, set_loudness
from fedtempo.cli.plan import plan
from fedtempo.cli.timeline import timeline
from fedtempo.errors import INTERRUPTED, FedtempoError

app = typer.Typer(
    name="fedtempo",
    help="Asynchronous federated learning at every client's own tempo.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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


def main() -> None:
    """Run the command line."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # what Typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except FedtempoError as error:
        typer.echo(f"fedtempo: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:  # an unknown option, a missing one
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        typer.echo("fedtempo: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader has gone, as in `fedtempo plan … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
