"""The measured points of a study as they come, for those who watch its folder: live.jsonl, of a job live.3-of-8.jsonl.

    first line   who runs it, when it is measured, and its units with the labels of their runs
    then         a point of a unit, as soon as it is measured; at the end how it ended
    the lock     the process that writes holds it, and the system takes it back however that ends
    its mtime    renewed every few seconds, for those who do not see locks of other machines

Nothing goes on from this file, so that it need not outlive a power cut: each call begins it anew with what earlier
calls have measured, a reader skips what it cannot read, and where it cannot be written training goes on without.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fedtempo.errors import in_one_line
from fedtempo.files import hold, process

if TYPE_CHECKING:
    from fedtempo.simulation.ledger import Ledger, Table
    from fedtempo.simulation.study import Study
    from fedtempo.simulation.units import Units

FORMAT = 1
LIVE_SECONDS = 1.0
"""How often points are written, if there are any."""
SIGN_SECONDS = 5.0
"""How often the time of the file is renewed, where nothing is written."""
_STEP = 0.002
"""By how much more a study of several parts must have done to say so."""
_UNTOLD = ("rounds", "updates", "client_loss", "loss_deviation", "surrogate_deviation")
_DIGITS = 6


class Live:
    """Writes one such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._pending = b""
        self._end = 0
        self._began = time.monotonic()
        self._looked = self._signed = -math.inf
        self._told: dict[int, int] = {}
        """Points that are told, by unit."""
        self._finished: set[int] = set()
        self._done = -1.0

    def begin(self, about: Mapping[str, Any]) -> None:
        """Begin the file anew, unless another process writes to it; `about` is its first line."""
        try:
            file = self.path.open("ab", buffering=0)
        except OSError:
            return
        try:
            hold(file)
            file.truncate(0)
        except OSError:  # another process is at this study, or the disk has gone
            file.close()
            return
        self._file = file
        who = {**process(), "began_at": round(time.time(), 1)}
        self._line(live=FORMAT, id=secrets.token_hex(8), **who, **about)
        self._write()

    def look(self, ledger: Ledger, *, last: bool = False) -> None:
        """Write the points that are new, where it is time to."""
        now = time.monotonic()
        if self._file is None or (not last and now - self._looked < LIVE_SECONDS):
            return
        self._looked = now
        for k, spec in enumerate(ledger.units.specs):
            if k in self._finished:
                continue
            number, finished = spec.unit.number, ledger.is_finished(k)
            table = ledger.table(k)
            if table is not None:
                self._points(number, table)
            if finished:
                self._finished.add(k)
                self._line(unit=number, finished=True)
        self._write()

    def _points(self, number: int, table: Table) -> None:
        begin, end = self._told.get(number, 0), table.points
        for point in range(begin, end):
            values = {name: _plain(column[point]) for name, column in [*table.columns.items()] if name not in _UNTOLD}
            counts = {name: int(table.columns[name][point]) for name in ("rounds", "updates")}
            self._line(unit=number, point=point, at=self._at, **counts, values=values)
        if end > begin and (table.diverged >= 0).any():
            self._line(unit=number, diverged=table.diverged.tolist())
        self._told[number] = max(begin, end)

    def progress(self, done: float) -> None:
        """How much of a study of several parts is done."""
        if done >= self._done + _STEP or (done >= 1.0 > self._done):
            self._done = done
            self._line(done=round(done, 4), at=self._at)
        self._write()

    def end(self, how: str, why: str = "") -> None:
        """The last line; the lock is given back."""
        if self._file is None:
            return
        self._line(ended=how, why=why, at=self._at)
        self._write()
        with suppress(OSError):
            self._file.close()
        self._file = None

    @property
    def _at(self) -> float:
        """Seconds since it began."""
        return round(time.monotonic() - self._began, 1)

    def _line(self, **what: Any) -> None:
        if self._file is not None:
            text = json.dumps(what, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)
            self._pending += f"{text}\n".encode(errors="replace")

    def _write(self) -> None:
        """Put what is pending on the file, whole lines only; what the disk refuses is tried again by the next look."""
        file, now = self._file, time.monotonic()
        if file is None:
            return
        with suppress(OSError):
            if self._pending:
                file.truncate(self._end)
                whole = memoryview(self._pending)
                while whole:
                    whole = whole[file.write(whole) :]
                self._end += len(self._pending)
                self._pending, self._signed = b"", now
            elif now - self._signed > SIGN_SECONDS:
                self._signed = now
                os.utime(self.path)


@contextmanager
def ending(live: Live | None, ledger: Ledger | None = None) -> Iterator[None]:
    """How the block ends is how the file ends, after what the ledger still has to tell."""
    if live is None:
        yield
        return
    how, why = "failed", ""
    try:
        yield
        how = "finished"
    except KeyboardInterrupt:
        how = "stopped"
        raise
    except BaseException as error:
        why = in_one_line(error)
        raise
    finally:
        with suppress(Exception):  # the study's own end is what counts
            if ledger is not None:
                live.look(ledger, last=True)
        live.end(how, why)


def about_units(study: Study, units: Units, where: Mapping[str, object], of: int, job: str) -> dict[str, Any]:
    """The first line of a study's file; `of`: units of the whole study, of which a job runs some."""
    from fedtempo.simulation.telling import runs_of

    made = []
    for spec in units.specs:
        labels = runs_of(study, spec.unit.seeds[:1], spec.unit, where)
        runs = [{k: v for k, v in labels[0, r].labels.items() if k != "seed"} for r in range(len(spec.unit.runs))]
        made.append({"number": spec.unit.number, "seeds": list(spec.unit.seeds), "runs": _numbers(runs)})
    return {"job": job, "of": of, "times": [float(time) for time in study.measured_at], "units": made}


def _numbers(runs: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    return [{k: v.item() if hasattr(v, "item") else v for k, v in labels.items()} for labels in runs]


def _plain(values: Any) -> Any:
    """Numbers with the digits that somebody who watches needs, as lists; what is not finite is null."""
    found = np.asarray(values, dtype=np.float64)
    known = np.isfinite(found)
    size = np.abs(np.where(known & (found != 0), found, 1.0))
    scale = 10.0 ** np.clip(_DIGITS - 1 - np.floor(np.log10(size)), -300, 300)
    short = np.asarray(np.round(np.where(known, found, 0.0) * scale) / scale)
    if known.all():
        return short.tolist()
    out = short.astype(object)
    out[~known] = None
    return out.tolist()
