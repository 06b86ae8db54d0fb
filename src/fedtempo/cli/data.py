"""``fedtempo data``: download the data sets, and see which ones are there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtempo.cli import options as o
from fedtempo.cli.progress import LINE_SECONDS, shown
from fedtempo.errors import Interrupted

if TYPE_CHECKING:
    from fedtempo.problems.data import Fetching


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Folder with mnist/, cifar10/, shakespeare/.", show_default="$FEDTEMPO_DATA_DIR, or a cache"
    ),
]

data_app = typer.Typer(help="Download the data sets, and see which ones are there.", no_args_is_help=True)


@data_app.command(name="get")
def get_data(
    names: Annotated[list[str], typer.Argument(help="mnist, cifar10, shakespeare.", metavar="NAME...")],
    data_dir: DataDir = None,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Download data sets from their official addresses; what is there already stays.

    NAME is mnist, cifar10 or shakespeare. Ctrl-C keeps what has come so far; the same command goes on from there.
    """
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    from fedtempo.problems.data.catalogue import data_set, get

    for name in names:
        data_set(name)
    for name in dict.fromkeys(names):
        with shown(quiet, _bar, _Lines()) as report:
            try:
                paths = get(name, data_dir, on_progress=report)
            except KeyboardInterrupt:
                raise Interrupted("stopped, and what has come is kept: the same command goes on from there") from None
        typer.echo(f"{name}: {_size(paths)} in {paths[0].parent}")


@data_app.command(name="list")
def list_data(data_dir: DataDir = None, verbose: o.Verbose = 0, quiet: o.Quiet = False) -> None:
    """Show which data sets are there, and where they are looked for."""
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    from fedtempo.problems.data.catalogue import DATASETS, command, folder_of, held

    rows = [(name, _size(paths) if (paths := held(name, data_dir)) else "not there") for name in DATASETS]
    for name, state in rows:
        typer.echo(f"{name:<11}  {state:>9}  {folder_of(name, data_dir)}")
    missing = [name for name, state in rows if state == "not there"]
    if missing and not quiet:
        typer.echo(f"\nTo download what is not there: {command(' '.join(missing), data_dir)}", err=True)


def _size(paths: list[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1e6:.1f} MB"


@contextmanager
def _bar() -> Iterator[Callable[[Fetching], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("connecting", total=None)

        def tell(fetching: Fetching) -> None:
            bar.update(task, description=fetching.file, completed=fetching.done, total=fetching.total)

        yield tell


class _Lines:
    """A line for each file, and one every few seconds."""

    def __init__(self) -> None:
        self._file, self._next = "", 0.0

    def __call__(self, fetching: Fetching) -> None:
        if fetching.file != self._file or time.monotonic() >= self._next:
            self._file, self._next = fetching.file, time.monotonic() + LINE_SECONDS
            of = "" if fetching.total is None else f" of {fetching.total / 1e6:.1f}"
            print(f"fedtempo: {fetching.file}, {fetching.done / 1e6:.1f}{of} MB", file=sys.stderr)  # noqa: T201
