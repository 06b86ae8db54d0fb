"""``fedtempo watch``: a run on Flower from outside, again and again. Nothing is written, but by sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtempo.cli.track import Track, sinks
from fedtempo.clock.times_text import check_saved, is_run
from fedtempo.errors import DataMissing, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

_EVERY = 2.0


def watch(
    folder: Annotated[Path, typer.Argument(help="The checkpoint folder of a run with fedtempo.flower.")],
    text: Annotated[bool, typer.Option("--text", help="In the terminal, as tables: the only way so far.")] = True,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    track: Track = None,
) -> None:
    """Follow a run on Flower by its checkpoint folder: running, finished or killed.

    Jobs that are out and their age, who is silent, the last losses and metrics, Σω and staleness of the last rounds,
    norms, what went wrong lately, and when the run was last saved; every two seconds until Ctrl-C. The folder is only
    read, but for what --track writes there unless it is given a place.
    """
    if not is_run(folder):
        raise DataMissing(f"{folder}: no run of fedtempo.flower is there; give the folder that checkpoint= names")
    check_saved(folder)
    from fedtempo.report.page import console

    out = console()
    with _looking(folder, track) as look:
        if once:
            out.print(look(out.is_terminal), soft_wrap=not out.is_terminal)
            return
        try:
            if not out.is_terminal:
                while True:
                    out.print(look(False), soft_wrap=True)
                    out.print()
                    time.sleep(_EVERY)
            from rich.live import Live

            with Live(look(True), console=out, auto_refresh=False) as live:
                while True:
                    time.sleep(_EVERY)
                    live.update(look(True), refresh=True)
        except KeyboardInterrupt:
            return


@contextmanager
def _looking(folder: Path, track: list[str] | None) -> Iterator[Callable[[bool], RenderableType]]:
    """What looks at the folder, for a terminal or not, and tells the sinks of `--track` what is new."""
    try:
        from fedtempo.flower.telling import Followed
        from fedtempo.flower.watching import rendered, watched
    except ImportError as error:
        raise InputError(f"{folder} holds a run on Flower: {error}") from None
    followed = Followed(folder, sinks(track, folder)) if track else None

    def look(terminal: bool) -> RenderableType:
        if followed is not None:
            followed.look()
        return rendered(watched(folder), terminal=terminal)

    with closing(followed) if followed is not None else nullcontext():
        yield look
