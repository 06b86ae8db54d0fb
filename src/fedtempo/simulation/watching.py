"""A study as its folder shows it from outside: running, finished, stopped or killed. Nothing is written or imported.

`live.py` says what lies there. A look reads what has been added since the last one, however long the study. Who runs
it is told by the lock on that file where it is a process of this machine; of others by whether the file's time is
renewed, which needs no clock that both agree on.

    finished, stopped, failed    the last line says so
    running                      the lock is held, or the file's time was renewed in the last minute
    killed                       no last line, and on this machine nobody holds the lock
    silent                       no last line, and a process of another machine has not renewed the time for a minute
    unknown                      nobody has left such a file: a study of an earlier version
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import DataMissing
from fedtempo.files import is_held, this_machine

Condition = Literal["running", "finished", "stopped", "failed", "killed", "silent", "unknown"]
SILENT_SECONDS = 60.0
"""After so long without a sign a process that cannot be asked is called silent."""
_HEAD = 64
_SLOPE = 20
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class UnitSeen:
    """A unit of a study."""

    name: str
    """Its scheme, and its part of a study of several."""
    runs: int
    seeds: tuple[int, ...]
    share: float
    finished: bool
    diverged: int
    """Runs, over all its seeds."""
    running: bool
    """Whether the process that has it runs."""


@dataclass(frozen=True)
class Curve:
    """What runs that differ by their seeds alone have measured."""

    labels: Mapping[str, object]
    times: NDArray[np.float64]
    values: Mapping[str, NDArray[np.float64]]
    """[seeds, times] a measure, as far as it goes; NaN elsewhere."""
    diverged: tuple[float, ...]
    """When its runs were seen to diverge, of those that have."""


@dataclass(frozen=True)
class StudySeen:
    """What a study's folder shows."""

    folder: Path
    condition: Condition
    words: str
    """Who, and why, in words."""
    heard: float | None
    """Seconds since the last sign."""
    done: float
    """From 0 to 1."""
    left: float | None
    """Seconds to go."""
    elapsed: float | None
    """Seconds since the running process began, or for which the last one ran."""
    units: tuple[UnitSeen, ...]
    others: int
    """Units that no job has begun."""
    curves: tuple[Curve, ...]


class WatchedStudy:
    """A study's folder, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, _LiveFile] = {}
        self._curves: tuple[Curve, ...] = ()

    def look(self) -> StudySeen:
        """What it shows now."""
        if not (self.folder / "study.json").is_file():
            raise DataMissing(f"{self.folder}: no study is there any more (no study.json); it was moved or removed")
        there = [*sorted(self.folder.glob("live*.jsonl")), *sorted(self.folder.glob("parts/*/live*.jsonl"))]
        files = {path: self._files.get(path) or _LiveFile(path) for path in there}
        changed = files.keys() != self._files.keys()
        self._files = files
        for one in files.values():
            changed = one.look() or changed
        tops = [one for path, one in files.items() if path.parent == self.folder and one.about]
        if not tops:
            return _of_history(self.folder)
        units = [one for one in files.values() if one.units]
        if changed:
            self._curves = tuple(_curves(units))
        return self._seen(tops, units)

    def _seen(self, tops: Sequence[_LiveFile], units: Sequence[_LiveFile]) -> StudySeen:
        running = {one.path.name for one in tops if one.condition == "running"}
        seen = [unit for one in units for unit in one.seen(one.path.name in running)]
        parted = any(one.about.get("parts") for one in tops)
        of = max((int(one.about.get("of", 0)) for one in tops), default=0)
        others = 0 if parted else max(of - len(seen), 0)
        if parted:
            done = max(one.progress for one in tops)
        else:
            done = sum(unit.share for unit in seen) / max(of, len(seen), 1)
        condition, words = _together(tops, whole=not others)
        lefts = [left for one in tops if one.condition == "running" and (left := one.left) is not None]
        return StudySeen(
            folder=self.folder,
            condition=condition,
            words=words,
            heard=min(one.heard for one in tops),
            done=1.0 if condition == "finished" else min(done, 1.0),
            left=max(lefts, default=None) if condition == "running" else None,
            elapsed=max(one.elapsed for one in tops),
            units=tuple(seen),
            others=others,
            curves=self._curves,
        )


@dataclass
class _Unit:
    """What is known of a unit."""

    seeds: tuple[int, ...]
    runs: list[dict[str, object]]
    points: int
    done: int = 0
    finished: bool = False
    diverged: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    values: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """[points, seeds, runs] a measure."""

    @property
    def share(self) -> float:
        return 1.0 if self.finished else self.done / max(self.points, 1)


class _LiveFile:
    """One file, read as far as it went."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head = b""
        self._mtime, self._renewed = 0, -1.0
        """When the file was touched last, by its own clock and, once that was seen to change, by ours."""
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self.about: dict[str, Any] = {}
        self.units: dict[int, _Unit] = {}
        self.ended: tuple[str, str] | None = None
        self._progress: list[tuple[float, float]] = []
        self._at = 0.0
        self.condition: Condition = "unknown"

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        before = self._offset, self.condition
        with suppress(OSError), self.path.open("rb") as file:
            head, about = file.read(_HEAD), os.fstat(file.fileno())
            if not self._head or not head.startswith(self._head) or about.st_size < self._offset:
                self._forget()
            self._head = head
            if about.st_mtime_ns != self._mtime:
                self._renewed = time.monotonic() if self._mtime else -1.0
                self._mtime = about.st_mtime_ns
            file.seek(self._offset)
            text = file.read()
            whole = text.rfind(b"\n") + 1
            for line in text[:whole].splitlines():
                with suppress(*_WRONG):  # torn by a power cut, or nothing of ours
                    self._take(json.loads(line))
            self._offset += whole
        self.condition = self._found()
        return before != (self._offset, self.condition)

    def _take(self, line: Mapping[str, Any]) -> None:
        self._at = max(self._at, float(line.get("at", 0.0)))
        if "live" in line:
            points = len(line.get("times", ()))
            units = {
                int(one["number"]): _Unit(tuple(one["seeds"]), [dict(run) for run in one["runs"]], points)
                for one in line.get("units", ())
            }
            self.about, self.units = dict(line), units
        elif "ended" in line:
            self.ended = str(line["ended"]), str(line["why"])
        elif "done" in line:
            self._progress.append((float(line["at"]), float(line["done"])))
        elif "finished" in line:
            self.units[int(line["unit"])].finished = True
        elif "diverged" in line:
            self.units[int(line["unit"])].diverged = np.array(line["diverged"], dtype=np.int64)
        else:
            self._point(self.units[int(line["unit"])], int(line["point"]), line["values"])

    @staticmethod
    def _point(unit: _Unit, point: int, values: Mapping[str, Any]) -> None:
        shape = (unit.points, len(unit.seeds), len(unit.runs))
        if not 0 <= point < unit.points:
            raise ValueError("no such point")
        for name, value in values.items():
            row = np.array(value, dtype=np.float64)  # null is NaN
            unit.values.setdefault(str(name), np.full(shape, np.nan))[point] = row
        unit.done = max(unit.done, point + 1)

    # -- who runs it

    def _found(self) -> Condition:
        if self.ended is not None:
            return {"finished": "finished", "stopped": "stopped"}.get(self.ended[0], "failed")  # type: ignore[return-value]
        if not self.about:
            return "unknown"
        held = is_held(self.path)
        if held:
            return "running"
        if held is False and self.about.get("machine") == this_machine():
            return "killed"
        return "running" if self.heard <= SILENT_SECONDS else "silent"

    @property
    def heard(self) -> float:
        """Seconds since the last sign: by our clock once one was seen to come, else by the file's."""
        if self._renewed >= 0:
            return time.monotonic() - self._renewed
        return max(0.0, time.time() - self._mtime / 1e9)

    @property
    def who(self) -> str:
        """The process, in words."""
        return f"process {self.about.get('pid')} on {self.about.get('host')}"

    @property
    def job(self) -> str:
        """Which of several."""
        job = self.about.get("job") or self.path.name.removeprefix("live.").removesuffix("jsonl").rstrip(".")
        return f"job {str(job).replace('-of-', '/')}" if job else ""

    @property
    def elapsed(self) -> float:
        """Seconds that it has run."""
        began = self.about.get("began_at")
        if self.condition != "running" or not isinstance(began, int | float):
            return self._at
        return max(self._at, time.time() - began)

    @property
    def progress(self) -> float:
        """How much of its own is done."""
        if self._progress:
            return self._progress[-1][1]
        return sum(unit.share for unit in self.units.values()) / max(len(self.units), 1)

    @property
    def left(self) -> float | None:
        """Seconds to go at the pace so far; of a study of several parts, at the pace lately."""
        if self._progress:
            at, done = self._progress[-1]
            at0, done0 = self._progress[max(0, len(self._progress) - _SLOPE)]
            return (at - at0) * (1 - done) / (done - done0) if done > done0 else None
        gained = self.progress - float(self.about.get("done", 0.0))
        return self.elapsed * (1 - self.progress) / gained if gained > 0 else None

    # -- what it has measured

    @property
    def part(self) -> str:
        """Which part of a study of several."""
        return self.path.parent.name if self.path.parent.parent.name == "parts" else ""

    def seen(self, running: bool) -> Iterator[UnitSeen]:
        """Its units."""
        for unit in self.units.values():
            schemes = list(dict.fromkeys(str(run.get("scheme", "?")) for run in unit.runs))
            where = [str(unit.runs[0][k]) for k in ("problem", "times") if unit.runs and k in unit.runs[0]]
            name = ", ".join([*schemes, *where, *([f"part {self.part}"] if self.part else [])])
            diverged = int((unit.diverged >= 0).sum())
            runs = len(unit.runs) * len(unit.seeds)
            goes_on = running and self.condition == "running"
            yield UnitSeen(name, runs, unit.seeds, unit.share, unit.finished, diverged, goes_on)


def _together(tops: Sequence[_LiveFile], *, whole: bool) -> tuple[Condition, str]:
    """The condition of all jobs as one, and what is to be said of each that is not fine."""
    by: dict[Condition, list[_LiveFile]] = {}
    for one in tops:
        by.setdefault(one.condition, []).append(one)
    if whole and set(by) == {"finished"}:
        return "finished", ""
    order: tuple[Condition, ...] = ("running", "failed", "killed", "silent", "stopped", "unknown", "finished")
    condition = next(name for name in order if name in by)
    if condition == "finished":  # and other jobs have yet to begin
        condition = "stopped"
        return condition, f"{len(tops)} of its jobs finished; others have not begun"
    said = []
    for name in order:
        if name in by and name != "finished":
            said += [_said(one, name) for one in by[name][:4]]
    return condition, "; ".join(filter(None, said))


def _said(one: _LiveFile, condition: Condition) -> str:
    job = f"{one.job}, " if one.job else ""
    match condition:
        case "running" if one.heard > SILENT_SECONDS:
            return f"{job}{one.who}, silent for {one.heard:.0f} s: it compiles, or is suspended"
        case "running":
            return f"{job}{one.who}"
        case "failed":
            return f"{job}{one.ended[1] if one.ended else ''}"
        case "killed":
            return f"{job}{one.who} is gone: it was killed, or its machine went down"
        case "silent":
            return f"{job}{one.who} gives no sign; from here it cannot be asked"
        case "stopped":
            return f"{job}what was done is kept"
    return job.rstrip(", ")


def _curves(files: Sequence[_LiveFile]) -> Iterator[Curve]:
    """One for each set of labels, over all units, jobs and parts."""
    found: dict[tuple[tuple[str, str], ...], tuple[dict[str, object], list[float], dict[int, tuple[_Unit, int, int]]]]
    found = {}
    for one in files:
        times = [float(time) for time in one.about.get("times", ())]
        for unit in one.units.values():
            for r, labels in enumerate(unit.runs):
                key = tuple((name, str(value)) for name, value in labels.items())
                runs = found.setdefault(key, (labels, times, {}))[2]
                for s, seed in enumerate(unit.seeds):
                    runs[seed] = unit, s, r
    for labels, times, runs in found.values():
        measures = dict.fromkeys(name for unit, _, _ in runs.values() for name in unit.values)
        end = max((unit.done for unit, _, _ in runs.values()), default=0)
        values = {
            name: np.stack([_column(unit, name, s, r)[:end] for unit, s, r in runs.values()]) for name in measures
        }
        at = [int(unit.diverged[s, r]) for unit, s, r in runs.values() if unit.diverged.shape > (s, r)]
        yield Curve(labels, np.array(times[:end]), values, tuple(times[k] for k in at if 0 <= k < len(times)))


def _column(unit: _Unit, name: str, seed: int, run: int) -> NDArray[np.float64]:
    """What one run has measured, as far as it went and until it diverged."""
    if name not in unit.values:
        return np.full(unit.points, np.nan)
    column = unit.values[name][:, seed, run].copy()
    at = int(unit.diverged[seed, run]) if unit.diverged.shape > (seed, run) else -1
    column[at + 1 if at >= 0 else unit.done :] = np.nan
    return column


def _of_history(folder: Path) -> StudySeen:
    """What the measures of a study of an earlier version show."""
    from fedtempo.simulation.shares import study_in

    try:
        history, _ = study_in(folder)
    except DataMissing:
        words = "nothing is measured yet, and it has left no file that says who runs it"
        return StudySeen(folder, "unknown", words, None, 0.0, None, None, (), 0, ())
    data = history.dataset
    over = ("seed", "time")
    names = [n for n, v in data.items() if {*over} <= {*v.dims} and "client" not in v.dims and n not in _COUNTED]
    others = [str(dim) for dim in data["loss"].dims if dim not in over]
    curves = []
    for chosen in np.ndindex(*(data.sizes[dim] for dim in others)):
        one = data[names].isel(dict(zip(others, chosen, strict=True)))
        values = {str(name): np.asarray(one[name].transpose(*over).values, dtype=np.float64) for name in names}
        if any(np.isfinite(table).any() for table in values.values()):
            labels = {dim: one[dim].values.item() for dim in others}
            curves.append(Curve(labels, np.asarray(data["time"].values, dtype=np.float64), values, ()))
    heard = max(0.0, time.time() - max(path.stat().st_mtime for path in folder.glob("history*.nc")))
    if history.finished:
        return StudySeen(folder, "finished", "", heard, 1.0, None, None, (), 0, tuple(curves))
    words = "it is not finished, and has left no file that says who runs it"
    done = float(np.mean([np.isfinite(curve.values["loss"]).mean() for curve in curves])) if curves else 0.0
    return StudySeen(folder, "unknown", words, heard, done, None, None, (), 0, tuple(curves))


_COUNTED = ("rounds", "updates", "bytes_up", "bytes_down")
