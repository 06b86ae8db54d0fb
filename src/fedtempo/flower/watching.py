"""A run as its folder shows it from outside: running, finished or killed. Nothing is written, and nothing is imported.

Only the state without its arrays and the end of the journal are read, so that a look costs the same however long the
run and however large the model. What has happened since the last save is not seen; jobs that are out grow older
meanwhile, unless the run has ended.

    silent   a job is out for more than three times as long as its client's jobs take, or, of a client that has not
             answered yet, than those of the client in the middle. Time since the last save counts once that is three
             times as long ago as rounds take: before, the job may have come back unseen
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedtempo.errors import InputError
from fedtempo.files import this_machine
from fedtempo.flower.clock import seconds
from fedtempo.flower.faults import Fault
from fedtempo.flower.journal import Journal
from fedtempo.flower.result import RoundRecord
from fedtempo.flower.run_folder import RunFolder, Tail
from fedtempo.flower.telling import words_of
from fedtempo.report.text import NONE, counted, printable, short

TAIL = 2**18
"""Bytes of the end of the journal that are read."""
_ROUNDS, _FAULTS, _JOBS, _METRICS = 8, 6, 20, 12
_SILENT = 3.0
_UNHEARD = 60.0
"""Seconds without a save after which a server that cannot be asked is called silent, or three rounds."""
WHOSE = {"server": "server's own", "evaluate": "clients' evaluation", "train": "clients' training"}


@dataclass(frozen=True)
class JobOut:
    """A job that is out."""

    place: int
    """Its client's number."""
    client: str
    number: int
    age: float
    """Seconds since it was sent."""
    usual: float | None
    """Seconds that the client's jobs take; None: it has not answered yet."""
    behind: int
    """Models made since the one that it started from."""
    silent: bool


@dataclass(frozen=True)
class Watched:
    """What a folder shows."""

    folder: Path
    scheme: str
    server_round: int
    condition: Literal["running", "finished", "stopped", "killed", "silent"]
    who: str
    """The server's process, in words; nothing in folders of earlier versions."""
    asked: dict[str, float | None]
    """`rounds`, `until` and `timeout` of the last start; nothing in folders of earlier versions."""
    time: float
    """Seconds of training up to the last save."""
    saved_ago: float
    ended: str | None
    jobs: tuple[JobOut, ...]
    """Those that are out longest come first."""
    resting: tuple[str, ...]
    """Clients that are set aside."""
    rounds: tuple[RoundRecord, ...]
    """The last ones that took updates."""
    measures: dict[str, tuple[int, dict[str, Any]]]
    """The last round that was measured, and its measures: by the server, by clients."""
    norms: tuple[float, ...]
    """Of the contributions that were let in lately."""
    faults: tuple[Fault, ...]
    """The last ones."""
    warning: str


def watched(folder: Path | str) -> Watched:
    """What the folder of a run shows now."""
    place = RunFolder(folder)
    tail = place.tail(TAIL)
    with as_a_run(place):
        return seen_in(place, tail)


@contextmanager
def as_a_run(place: RunFolder) -> Iterator[None]:
    """Files whose checksums are right, and which are no run's, are said in words."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{place.path}: its files are not the record of a run ({type(error).__name__}: {error}); restore them "
            "from a copy"
        ) from None


def seen_in(place: RunFolder, tail: Tail) -> Watched:
    """What the state and the end of the journal show, at this moment."""
    state, journal = tail.state, Journal(scheme={}, server_lr=1.0, on_disk=False)
    journal.read(tail.lines, f"{place.path}: the end of rounds.jsonl")
    server, names, ago = state["server"], state["names"], max(time.time() - tail.saved, 0.0)
    ended = state.get("ended")
    since = 0.0 if ended is not None else ago
    now, jobs, times = int(server["now"]), state["estimates"]["jobs"], state["estimates"]["time"]
    usual = {client: float(times[client]) for client, count in enumerate(jobs) if count}
    middle = statistics.median(usual.values()) if usual else None
    rounds = tuple(closed for closed in journal.rounds if closed.updates)[-_ROUNDS:]
    gap = max((later.time - sooner.time for sooner, later in itertools.pairwise(rounds)), default=0.0)
    unseen = since if since > _SILENT * gap else 0.0
    out = []
    for client, number, base, sent, *_ in server["in_flight"]:
        age, known = seconds(now - sent) + since, usual.get(client, middle)
        silent = known is not None and age - since + unseen > _SILENT * known
        out.append(
            JobOut(client, _name(names, client), number, age, usual.get(client), int(server["version"]) - base, silent)
        )
    measures = {}
    for whose in ("server", "evaluate", "train"):
        found = journal.measured(whose)
        if found:
            last = max(found)
            measures[whose] = last, dict(found[last])
    spec = state["about"]["scheme"]
    return Watched(
        folder=place.path,
        scheme=words_of(spec),
        condition=_condition(place, state, since, gap),
        who=f"process {who['pid']} on {who['host']}" if (who := state.get("who")) else "",
        server_round=int(state["server_round"]),
        asked=dict(state.get("asked") or {}),
        time=seconds(now),
        saved_ago=ago,
        ended=ended,
        jobs=tuple(sorted(out, key=lambda job: -job.age)),
        resting=tuple(_name(names, client) for client, _, _, until in state["patience"] if until > 0),
        rounds=rounds,
        measures=measures,
        norms=tuple(map(float, state["norms"])),
        faults=tuple(journal.faults[-_FAULTS:]),
        warning=place.fallen_back,
    )


def _condition(
    place: RunFolder, state: dict[str, Any], since: float, gap: float
) -> Literal["running", "finished", "stopped", "killed", "silent"]:
    """Whether its server runs: by the lock on the journal, or, of another machine, by when it was saved."""
    if state.get("ended") is not None:
        return "finished"
    held, who = place.is_held(), state.get("who") or {}
    if held:
        return "running"
    if who.get("stopped"):
        return "stopped"
    if held is False and who.get("machine") == this_machine():
        return "killed"
    return "running" if since <= max(_UNHEARD, _SILENT * gap) else "silent"


def _name(names: Sequence[str], client: int) -> str:
    return str(names[client]) if 0 <= client < len(names) else f"client {client}"


# -- as text


def rendered(seen: Watched, *, terminal: bool) -> RenderableType:
    """What the folder shows, as tables."""
    parts: list[RenderableType] = [_head(seen)]
    if seen.warning:
        parts.append(_text(seen.warning))
    if seen.jobs:
        parts += _jobs(seen, terminal)
    if seen.resting:
        parts.append(_text(f"Set aside: {', '.join(seen.resting)}"))
    if seen.rounds:
        parts += _rounds(seen, terminal)
    if seen.measures:
        parts += _measures(seen, terminal)
    if seen.norms:
        middle, most = statistics.median(seen.norms), max(seen.norms)
        parts.append(
            _text(
                f"\nNorm × weight of the last {counted(len(seen.norms), 'update')}: latest {short(seen.norms[-1])}, "
                f"median {short(middle)}, largest {short(most)}"
            )
        )
    if seen.faults:
        parts.append(_title("Latest faults"))
        parts += [_text(f"{fault.time:.1f} s: {fault}") for fault in seen.faults]
    return Group(*parts)


def _head(seen: Watched) -> Text:
    of = f" of {seen.asked['rounds']:g}" if seen.asked.get("rounds") else ""
    until = f" of {seen.asked['until']:g}" if seen.asked.get("until") else ""
    end = {
        "running": "running",
        "finished": f"ended: {seen.ended}",
        "stopped": "stopped; it goes on when its server is started again",
        "killed": f"killed: {seen.who} is gone; it goes on when its server is started again",
        "silent": "not ended: it is running, or was interrupted",
    }[seen.condition]
    done = f": round {seen.server_round}{of}, {seen.time:.1f}{until} s of training"
    said = f"{done}; saved {_ago(seen.saved_ago)} ago; {end}"
    return _text(f"{seen.scheme} in {seen.folder}", "bold").append(printable(said, lines=True), "not bold")


def _jobs(seen: Watched, terminal: bool) -> list[RenderableType]:
    silent = sum(job.silent for job in seen.jobs)
    timeout = seen.asked.get("timeout")
    limit = f"; timeout {timeout:g} s" if timeout else ""
    title = f"{counted(len(seen.jobs), 'job')} out{'' if seen.ended is None else ' at the end'}, {silent} silent{limit}"
    rows = [
        (
            job.client,
            str(job.number),
            f"{job.age:.1f}",
            NONE if job.usual is None else short(job.usual),
            str(job.behind),
            "silent" if job.silent else "",
        )
        for job in seen.jobs[:_JOBS]
    ]
    more = [_text(f"and {len(seen.jobs) - _JOBS} more")] if len(seen.jobs) > _JOBS else []
    return [_title(title), _table(terminal, ("client", "job", "s out", "s per job", "models since", ""), rows), *more]


def _rounds(seen: Watched, terminal: bool) -> list[RenderableType]:
    rows = []
    for closed in seen.rounds:
        stale = closed.staleness
        rows.append(
            (
                str(closed.server_round),
                f"{closed.time:.1f}",
                str(len(closed.updates)),
                short(sum(closed.weights)),
                short(sum(stale) / len(stale)),
                str(max(stale)),
            )
        )
    columns = ("round", "at s", "updates", "Σω", "staleness mean", "max")
    return [_title("The last rounds"), _table(terminal, columns, rows)]


def _measures(seen: Watched, terminal: bool) -> list[RenderableType]:
    rows = []
    for whose, (number, metrics) in seen.measures.items():
        for name, value in list(metrics.items())[:_METRICS]:
            rows.append((WHOSE[whose], str(number), name, _value(value)))
    return [_title("Measures"), _table(terminal, ("whose", "round", "", ""), rows)]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"{', '.join(short(part) for part in value[:4])}{', …' if len(value) > 4 else ''}"
    return short(value)


def _table(terminal: bool, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, collapse_padding=terminal)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _title(text: str) -> Text:
    return _text(f"\n{text}", "bold")


def _text(said: str, style: str = "") -> Text:
    """What clients have said is neither markup nor orders to the terminal."""
    return Text(printable(said, lines=True), style)


def _ago(duration: float) -> str:
    if duration < 120:
        return f"{duration:.0f} s"
    if duration < 7200:
        return f"{duration / 60:.0f} min"
    return f"{duration / 3600:.0f} h" if duration < 172_800 else f"{duration / 86_400:.0f} days"
