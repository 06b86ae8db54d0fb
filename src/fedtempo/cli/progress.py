"""While a study or a plan runs: how far it is, and how it is stopped.

Progress is a bar on a terminal, a line now and then elsewhere; always on standard error. Ctrl-C and a polite kill both
stop it in a way that keeps what it has.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fedtempo.errors import Interrupted

if TYPE_CHECKING:
    from fedtempo.planning.progress import RaceProgress
    from fedtempo.simulation.ledger import Progress


@contextmanager
def stoppable(message: str | Callable[[], str]) -> Iterator[None]:
    """SIGTERM stops as Ctrl-C does; `message` says what was kept and how to go on, or finds that out then."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message if isinstance(message, str) else message()) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def ending(report: Callable[[Progress], None] | None, until: float) -> Callable[[Progress], None] | None:
    """What `simulate` should tell its progress to, so that it stops as by Ctrl-C when the clock reaches `until`."""
    if math.isinf(until):
        return report

    def tell(progress: Progress) -> None:
        if report is not None:
            report(progress)
        if time.monotonic() >= until:
            raise KeyboardInterrupt

    return tell


LINE_SECONDS = 10.0


State = TypeVar("State")


@contextmanager
def shown(
    quiet: bool, bar: Callable[[], AbstractContextManager[Callable[[State], None]]], lines: Callable[[State], None]
) -> Iterator[Callable[[State], None] | None]:
    """What to tell progress to: a bar on a terminal, lines elsewhere, nothing where it should be quiet."""
    if quiet:
        yield None
    elif sys.stderr is not None and sys.stderr.isatty():
        with bar() as tell:
            yield tell
    else:
        yield lines


def reporting(quiet: bool) -> AbstractContextManager[Callable[[Progress], None] | None]:
    """What `simulate` should tell its progress to."""
    return shown(quiet, lambda: _bar("training", "compiling", words), _Lines(words))


def racing(quiet: bool) -> AbstractContextManager[Callable[[RaceProgress], None] | None]:
    """What `recommend` should tell its progress to."""
    return shown(quiet, lambda: _bar("planning", "", race_words), _Lines(race_words))


class Told(Protocol):
    """What is told again and again."""

    @property
    def done(self) -> float:
        """From 0 to 1."""


Telling = TypeVar("Telling", bound=Told)


@contextmanager
def _bar(name: str, first: str, in_words: Callable[[Telling], str]) -> Iterator[Callable[[Telling], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    words = TextColumn("{task.description}", markup=False)
    columns = (TextColumn(name), BarColumn(), TaskProgressColumn(), words)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=1.0)

        def tell(progress: Telling) -> None:
            bar.update(task, completed=progress.done, description=in_words(progress))

        yield tell


class _Lines(Generic[Telling]):
    """A line every few seconds."""

    def __init__(self, in_words: Callable[[Telling], str]) -> None:
        self._in_words = in_words
        self._next = time.monotonic() + LINE_SECONDS

    def __call__(self, progress: Telling) -> None:
        if time.monotonic() >= self._next:
            self._next += LINE_SECONDS
            print(f"fedtempo: {progress.done:.0%}, {self._in_words(progress)}", file=sys.stderr)  # noqa: T201


def race_words(progress: RaceProgress) -> str:
    """What is going on, how many cells are left, and which leads."""
    left = f"{progress.cells} cell{'' if progress.cells == 1 else 's'} left"
    parts = [progress.stage, left if progress.cells else "", f"{progress.leader} leads" if progress.leader else ""]
    return ", ".join(filter(None, parts))


def words(progress: Progress) -> str:
    """Rate and time left; before there is any, the memory that is needed."""
    from fedtempo.simulation.costs import size_words

    if not progress.updates:
        return f"compiling; {size_words(progress.memory)} of memory will be needed"
    left = progress.left
    rate = f"{progress.rate:,.0f}".replace(",", " ") + " updates/s"
    return rate if left is None else f"{rate}, {duration(left)} left"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as short as can be."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
