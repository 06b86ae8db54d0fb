"""A run on Flower as a page that follows it: rounds, clients, losses and other measures, staleness, norms, faults.

A look reads what has been saved since the last one: the state without its arrays, and the lines that it counts more.
Of a long run the charts keep fewer and fewer of the points that lie back.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from fedtempo.flower.clock import seconds
from fedtempo.flower.faults import Fault
from fedtempo.flower.journal import Journal, Measured
from fedtempo.flower.result import RoundRecord
from fedtempo.flower.run_folder import Growth, RunFolder, Tail
from fedtempo.flower.telling import PointsOfRun, run_of
from fedtempo.flower.watching import TAIL, WHOSE, JobOut, Watched, as_a_run, seen_in
from fedtempo.report.browser.live import Row, Section, Sections, chart, head, line, span, table
from fedtempo.report.text import counted, printable, short
from fedtempo.simulation.run_info import RunInfo

_POINTS = 2000
_FAULTS = 100
_CHARTS = 8
_COLOURS = ("var(--accent)", "light-dark(#d55e00,#ff7f2a)", "light-dark(#009e73,#1fc493)")
_ROUNDS = (
    (
        "staleness",
        "Staleness of updates",
        "models since",
        {"mean": "round/staleness", "largest": "round/staleness_max"},
    ),
    ("updates", "Updates of a round", "updates", {"updates": "round/updates"}),
    ("weight", "Weight of a round, Σω", "Σω", {"Σω": "round/weight"}),
)


class _Series:
    """A measure over time, of whose older points fewer are kept."""

    def __init__(self) -> None:
        self.xs: list[float] = []
        self.ys: list[float] = []

    def add(self, x: float, y: float) -> None:
        self.xs.append(x)
        self.ys.append(y)
        if len(self.xs) > _POINTS:
            self.xs, self.ys = self.xs[::2], self.ys[::2]


class _Told:
    """Hears the lines of a journal: series of what `telling.py` tells, and what each client has done."""

    def __init__(self, run: RunInfo) -> None:
        self.series: dict[str, _Series] = {}
        self.updates: Counter[int] = Counter()
        self.staleness: dict[int, int] = {}
        """Of a client's last update."""
        self.faults: deque[Fault] = deque(maxlen=_FAULTS)
        self.happened = self.wrong = 0
        self._points = PointsOfRun([self._point], run)

    def _point(self, run: RunInfo, time: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.series.setdefault(name, _Series()).add(time, value)

    def read(self, lines: list[str], where: str) -> None:
        """What has been added to the journal."""
        journal = Journal(scheme={}, server_lr=1.0, on_disk=False)
        journal.listener = self
        journal.read(lines, where)
        self.faults.extend(journal.faults)
        self.happened += len(journal.faults)
        self.wrong += sum(not fault.quiet for fault in journal.faults)

    def begin(self) -> None:
        """Training starts."""
        self._points.begin()

    def round(self, closed: RoundRecord) -> None:
        """A round has ended."""
        self._points.round(closed)
        for update, stale in zip(closed.updates, closed.staleness, strict=True):
            self.updates[update.client] += 1
            self.staleness[update.client] = stale

    def measured(self, whose: Measured, server_round: int, plain: Mapping[str, Any]) -> None:
        """Measures of a round are known."""
        self._points.measured(whose, server_round, plain)


class WatchedRun:
    """A run's folder, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._end = self._crc = 0
        self._stamp: tuple[int, int] | None = None
        self._told: _Told | None = None
        self._tail: Tail | None = None
        self._warning = ""

    def sections(self) -> Sections:
        """The sections of the page."""
        stamp = self._stamp_now()
        with as_a_run(self._folder):
            if self._tail is None or stamp is None or stamp != self._stamp:
                self._read(self._folder.growth(self._end, self._crc))
                self._tail, self._stamp = self._folder.tail(TAIL), stamp
                self._warning = self._folder.fallen_back
            self._folder.fallen_back = self._warning
            seen = seen_in(self._folder, self._tail)
            told = cast(_Told, self._told)
            found: dict[str, Section] = {"head": _head(seen, told)}
            found["table:clients"] = _clients(seen, told, self._tail.state)
            found |= _charts(seen, told)
            if seen.rounds:
                found["table:rounds"] = _rounds(seen)
            if told.faults:
                found["table:faults"] = _faults(told)
            return found

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            about = (self._folder.path / "state.npz").stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino

    def _read(self, grown: Growth) -> None:
        if self._told is None or grown.anew:
            self._told = _Told(run_of(grown.state["about"]))
        self._told.read(grown.lines, f"{self._folder.path}: rounds.jsonl")
        self._end, self._crc = grown.end, grown.crc


def _head(seen: Watched, told: _Told) -> Section:
    rounds, until = seen.asked.get("rounds"), seen.asked.get("until")
    time = seen.time + (seen.saved_ago if seen.condition == "running" else 0.0)
    shares = [min(part / whole, 1.0) for part, whole in ((seen.server_round, rounds), (time, until)) if whole]
    done = None if not shares else max(shares)
    facts = [
        ("round", f"{seen.server_round}{f' of {rounds:g}' if rounds else ''}"),
        ("training", f"{span(time)}{f' of {span(until)}' if until else ''}"),
        ("saved", f"{span(seen.saved_ago)} ago"),
    ]
    left = None if done is None or not 0 < done < 1 else time * (1 - done) / done
    if seen.condition == "running" and left is not None:
        facts.append(("left", f"about {span(left)}"))
    silent = sum(job.silent for job in seen.jobs)
    facts.append(("in flight", f"{len(seen.jobs)}{f', {silent} silent' if silent else ''}"))
    facts.append(("updates", str(sum(told.updates.values()))))
    facts.append(("faults", str(told.wrong)))
    if seen.norms:
        facts.append(("norm × weight", f"{short(seen.norms[-1])}, median {short(statistics.median(seen.norms))}"))
    words = {
        "running": seen.who,
        "finished": seen.ended or "",
        "stopped": "The run goes on when its server is started again.",
        "killed": f"{seen.who or 'Its server'} is gone. The run goes on when its server is started again.",
        "silent": "Nothing was saved lately, and its server cannot be asked from here.",
    }[seen.condition]
    return head(
        f"{printable(seen.scheme)} on Flower",
        str(seen.folder),
        seen.condition,
        printable(words),
        facts,
        1.0 if seen.condition == "finished" else done,
        printable(seen.warning),
        "Ended" if seen.condition == "finished" else "",
    )


def _charts(seen: Watched, told: _Told) -> dict[str, Section]:
    found = dict(islice(_measures(told), _CHARTS))
    for key, title, unit, names in _ROUNDS:
        there = {label: told.series[name] for label, name in names.items() if name in told.series}
        if any(of.xs for of in there.values()):
            found[f"chart:round {key}"] = _chart(title, unit, there)
    if seen.norms:
        last = line("norm × weight", range(1 - len(seen.norms), 1), seen.norms, _COLOURS[0])
        found["chart:round norms"] = chart("Norm × weight of the last updates", "updates ago", "norm", [last])
    return found


def _measures(told: _Told) -> Iterator[tuple[str, Section]]:
    """A chart for each measure, whoever measures it: losses first."""
    by_name: dict[str, dict[str, _Series]] = {}
    for name, series in told.series.items():
        whose, _, measure = name.partition("/")
        if whose in WHOSE and measure and any(map(math.isfinite, series.ys)):
            by_name.setdefault(measure, {})[whose] = series
    for measure in sorted(by_name, key=lambda name: ("loss" not in name, "accuracy" not in name, name)):
        of, said = by_name[measure], printable(measure)
        labelled = {WHOSE[whose]: of[whose] for whose in WHOSE if whose in of}
        yield f"chart:measure {measure}", _chart(said, said, labelled, log="loss" in measure)


def _chart(title: str, unit: str, series: Mapping[str, _Series], *, log: bool = False) -> Section:
    """Over time; where there are several lines they can be switched."""
    lines = [_line(label, of, k) for k, (label, of) in enumerate(series.items())]
    values = [{"value": label, "colour": _COLOURS[k % len(_COLOURS)]} for k, label in enumerate(series)]
    dims = [{"name": "line", "values": values}] if len(lines) > 1 else []
    return chart(title, "seconds of training", unit, lines, log=log, dims=dims)


def _line(label: str, series: _Series, place: int) -> Section:
    colour = _COLOURS[place % len(_COLOURS)]
    return line(label, series.xs, series.ys, colour, keys={"line": label})


def _clients(seen: Watched, told: _Told, state: Mapping[str, Any]) -> Section:
    """Those that are out longest come first, then those that rest, wait or have left."""
    names, roster, estimates = state["names"], state.get("roster") or [], state["estimates"]
    out = {job.place: job for job in seen.jobs}
    now = seconds(int(state["server"]["now"])) + (0.0 if seen.condition == "finished" else seen.saved_ago)
    rests = {int(client): seconds(int(until)) - now for client, _, _, until in state["patience"] if until > 0}
    ranked = []
    for client, name in enumerate(names):
        job = out.get(client)
        gone = client < len(roster) and roster[client][0] == -1
        said, tone, rank = _doing(job, gone, rests.get(client), ended=seen.ended is not None)
        known = client < len(estimates["jobs"]) and estimates["jobs"][client]
        cells = (
            printable(str(name)),
            said,
            "" if job is None else short(round(job.age, 1)),
            short(float(estimates["time"][client])) if known else "–",
            "" if job is None else str(job.behind),
            str(told.updates[client]),
            str(told.staleness.get(client, "–")),
        )
        ranked.append((rank, -job.age if job is not None else 0.0, client, Row(str(client), cells, tone)))
    rows = [row for *_, row in sorted(ranked, key=lambda one: one[:3])]
    columns = ("<client", "<", "s out", "s per job", "models since", "updates", "last staleness")
    return table(f"Clients, {len(names)}", columns, rows)


def _doing(job: JobOut | None, gone: bool, rest: float | None, *, ended: bool) -> tuple[str, str, int]:
    """What a client does, how it stands out, and its place in the table."""
    if gone:
        return ("left, with a job" if job is not None else "left"), "soft", 3
    if job is not None:
        said = "in flight at the end" if ended else "in flight"
        return ("silent", "bad", 0) if job.silent else (said, "", 0)
    if rest is not None:
        return f"resting{f', {span(rest)} more' if rest > 0 else ''}", "bad", 1
    return ("" if ended else "waiting"), "soft", 2


def _rounds(seen: Watched) -> Section:
    rows = []
    for closed in reversed(seen.rounds):
        stale = closed.staleness
        numbers = (short(sum(closed.weights)), short(sum(stale) / len(stale)), str(max(stale)))
        who = printable(", ".join(closed.contributors[:6])) + (", …" if len(closed.contributors) > 6 else "")
        cells = (str(closed.server_round), f"{closed.time:.1f}", str(len(closed.updates)), *numbers, who)
        rows.append(Row(str(closed.server_round), cells))
    columns = ("round", "at s", "updates", "Σω", "staleness", "largest", "<clients")
    return table("Last rounds, the latest first", columns, rows)


def _faults(told: _Told) -> Section:
    rows = []
    for k, fault in enumerate(reversed(told.faults)):
        who = f"{fault.client} ({fault.identity})" if fault.client >= 0 else ""
        cells = (f"{fault.time:.1f}", printable(fault.kind), printable(who), printable(fault.reason))
        rows.append(Row(str(told.happened - k), cells, "soft" if fault.quiet else ""))
    title = f"Faults and happenings, the latest first; {counted(told.wrong, 'fault')}"
    return table(title, ("at s", "<kind", "<client", "<reason"), rows, most=_FAULTS)
