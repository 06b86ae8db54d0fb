"""``fedtempo watch``: a study or a run on Flower from outside, again and again, in a browser or in the terminal.

Nothing is written, but by sinks.
"""

from __future__ import annotations

import signal
import time
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtempo.cli.track import Track, sinks
from fedtempo.clock.times_text import check_saved, is_run
from fedtempo.errors import DataMissing, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtempo.report.browser.live import Sections
    from fedtempo.simulation.telling import OnMeasure

_EVERY = 2.0
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class _Watched:
    """What is followed, in both forms."""

    text: Callable[[bool], RenderableType]
    """For a terminal, or not."""
    sections: Callable[[], Sections]
    close: Callable[[], object]


def watch(
    folder: Annotated[
        Path, typer.Argument(help="A study's folder, or the checkpoint folder of a run with fedtempo.flower.")
    ],
    text: Annotated[bool, typer.Option("--text", help="In the terminal, as tables.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, as text, and end.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="The page's port.", show_default="one that is free"),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Who can reach the page: 127.0.0.1 is this machine alone; 0.0.0.0 is everyone on its networks, who "
            "read what passes, token included: there is no encryption.",
        ),
    ] = _HERE[0],
    show: Annotated[bool, typer.Option("--open", help="Open the page in your browser.")] = False,
    track: Track = None,
) -> None:
    """Follow a study or a run on Flower by its folder: running, finished, stopped or killed.

    Serves a page on this machine until Ctrl-C and prints its address, which holds a token: progress, losses, clients,
    rounds, faults, as they come. With --text the same as tables in the terminal, every two seconds.

    The folder is only read, but for what --track writes there unless it is given a place.
    """
    if (text or once) and (port is not None or host != _HERE[0] or show):
        raise InputError("--port, --host and --open: they are for the page; leave them out, or --text and --once")
    opened = _opened(folder, track)
    if text or once:
        watched = opened()
        try:
            _in_terminal(watched.text, once=once)
        finally:
            watched.close()
        return
    _on_page(folder, opened, host, port or 0, show)


def _in_terminal(look: Callable[[bool], RenderableType], *, once: bool) -> None:
    from fedtempo.report.page import console

    out = console()
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


def _on_page(folder: Path, opened: Callable[[], _Watched], host: str, port: int, show: bool) -> None:
    from fedtempo.report.browser.live import live_page
    from fedtempo.report.browser.server import LiveServer

    watched: list[_Watched] = []  # made, used and closed in the one thread that looks

    def look() -> Sections:
        if not watched:
            watched.append(opened())
        return watched[0].sections()

    def closed() -> None:
        for one in watched:
            one.close()

    page = live_page(f"Watching {folder.name or folder}")
    server = LiveServer(page, look, host=host, port=port, closed=closed)

    def begun() -> None:
        typer.echo(server.url)
        if host not in _HERE:
            typer.echo(
                f"fedtempo: this page is open to other machines, under {host}: whoever has the address reads it, and "
                "nothing is encrypted on the way. From afar, ssh -L is safer.",
                err=True,
            )
        typer.echo(f"fedtempo: following {folder}; Ctrl-C ends it", err=True)
        if show:
            webbrowser.open(server.url)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is no other than Ctrl-C
    try:
        with suppress(KeyboardInterrupt):
            server.run(begun)
    finally:
        signal.signal(signal.SIGTERM, before)


def _opened(folder: Path, track: list[str] | None) -> Callable[[], _Watched]:
    """What makes ready what is in the folder, once it is known that it can be followed."""
    if (folder / "study.json").is_file():
        if track:
            raise InputError(f"--track: {folder} holds a study, and fedtempo run --track follows those; leave it out")
        from fedtempo.simulation.checkpoint import Folder

        Folder(folder).check_description()
        return partial(_study, folder)
    if is_run(folder):
        check_saved(folder)
        try:
            from fedtempo.flower.watching import watched
        except ImportError as error:
            raise InputError(f"{folder} holds a run on Flower: {error}") from None
        watched(folder)
        return partial(_run, folder, sinks(track, folder) if track else None)
    raise DataMissing(_what_else(folder))


def _study(folder: Path) -> _Watched:
    from fedtempo.report.browser.live_study import sections_of
    from fedtempo.report.watch_text import rendered
    from fedtempo.simulation.watching import WatchedStudy

    watched = WatchedStudy(folder)
    return _Watched(
        lambda terminal: rendered(watched.look(), terminal=terminal),
        lambda: sections_of(watched.look()),
        lambda: None,
    )


def _run(folder: Path, told: Sequence[OnMeasure] | None) -> _Watched:
    from fedtempo.flower.live_run import WatchedRun
    from fedtempo.flower.telling import Followed
    from fedtempo.flower.watching import rendered, watched

    followed = Followed(folder, told) if told is not None else None
    points = WatchedRun(folder)

    def tell() -> None:
        if followed is not None:
            followed.look()

    def text(terminal: bool) -> RenderableType:
        tell()
        return rendered(watched(folder), terminal=terminal)

    def sections() -> Sections:
        tell()
        return points.sections()

    return _Watched(text, sections, followed.close if followed is not None else lambda: None)


def _what_else(folder: Path) -> str:
    """What is there instead of a study or a run, and where some are."""
    if folder.is_file():
        return f"{folder}: this is a file, and what runs is followed by its folder; fedtempo show reads history files"
    if not folder.is_dir():
        return f"{folder}: there is no such folder; check the path, or wait until the study or the run has begun"
    below = [*folder.glob("*/study.json"), *folder.glob("*/state.npz"), *folder.glob("*/*/state.npz")]
    inside = sorted({str(path.parent) for path in below})
    if inside:
        more = f" and {len(inside) - 5} more" if len(inside) > 5 else ""
        return f"{folder}: no study or run is there itself; there are some in {', '.join(inside[:5])}{more}: give one"
    if (folder / "runs.json").is_file():
        return f"{folder}: runs of an app in virtual time are there, which are done when they are saved; fedtempo show"
    there = sorted(path.name for path in folder.iterdir())
    if not there:
        return f"{folder}: the folder is empty; give that of a study, or the one that checkpoint= names"
    some = ", ".join(there[:4]) + (", …" if len(there) > 4 else "")
    return (
        f"{folder}: no study (study.json) and no run of fedtempo.flower (state.npz) is there, but {some}; give the "
        "folder of fedtempo run, or the one that checkpoint= names"
    )
