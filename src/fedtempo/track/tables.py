"""CSV and Parquet: one row a run and time, with columns of `History.to_dataframe`: labels, time, measures.

The file is written whole, and replaces what was there. Between two such writings a CSV file grows by the rows that are
new, as long as there are no other columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedtempo.files import make_folder, storage_errors, write_text
from fedtempo.simulation.history.parquet_file import check_parquet, write_parquet
from fedtempo.simulation.run_info import RunInfo
from fedtempo.track.sink import Sink, Told

_Row = list[float | None]
"""The values of the measures, in the order of their columns; short where a measure has come up later."""


class Table(Sink):
    """Rows that are kept until the file is whole."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._runs: dict[str, RunInfo] = {}
        self._rows: dict[str, dict[float, _Row]] = {}
        """By run and time."""
        self._labels: dict[str, None] = {}
        self._measures: dict[str, int] = {}
        """The columns: names, and the places of measures."""
        self._begun: set[str] = set()
        """The runs that have been told since the sink was opened or closed."""

    def _write(self, told: Sequence[Told]) -> None:
        columns = len(self._labels), len(self._measures)
        fresh: list[tuple[RunInfo, float, _Row]] = []
        only_new = True
        for of_run in told:
            run = of_run.run
            if run.name not in self._begun:
                self._begun.add(run.name)
                only_new = only_new and run.name not in self._rows
                self._runs[run.name], self._rows[run.name] = run, {}
                self._labels.update(dict.fromkeys(run.labels))
            rows = self._rows[run.name]
            for point in of_run.points.values():
                only_new = only_new and point.time not in rows
                row = rows.setdefault(point.time, [])
                for name, value in point.values.items():
                    place = self._measures.setdefault(name, len(self._measures))
                    row.extend([None] * (place + 1 - len(row)))
                    row[place] = value
                fresh.append((run, point.time, row))
        self._save(fresh if only_new and columns == (len(self._labels), len(self._measures)) else None)

    def _save(self, fresh: list[tuple[RunInfo, float, _Row]] | None) -> None:
        """Write the file; `fresh`: the rows that are new, where nothing else is."""
        raise NotImplementedError

    def _every_row(self) -> Iterable[tuple[RunInfo, float, _Row]]:
        return ((self._runs[name], time, row) for name, rows in self._rows.items() for time, row in rows.items())

    def _make_folder(self) -> None:
        with storage_errors(self.path):
            make_folder(self.path.parent)

    def _end(self, stopped: bool) -> None:
        self._begun.clear()


class CSV(Table):
    """A CSV file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._grown = False
        """Whether rows stand at the end of the file that belong before others."""
        self._there = False
        """Whether the file is ours."""

    def _save(self, fresh: list[tuple[RunInfo, float, _Row]] | None) -> None:
        if fresh is not None and self._there:
            with storage_errors(self.path), self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self._text(fresh))
            self._grown = True
            return
        self._make_folder()
        write_text(self.path, _lines([[*self._labels, "time", *self._measures]]) + self._text(self._every_row()))
        self._there, self._grown = True, False

    def _text(self, rows: Iterable[tuple[RunInfo, float, _Row]]) -> str:
        return _lines(
            [*(run.labels.get(name) for name in self._labels), time, *row, *[None] * (len(self._measures) - len(row))]
            for run, time, row in rows
        )

    def _end(self, stopped: bool) -> None:
        super()._end(stopped)
        if self._grown:
            self._save(None)
        self._there = False


class Parquet(Table):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        check_parquet(path)

    def _save(self, fresh: list[tuple[RunInfo, float, _Row]] | None) -> None:
        self._make_folder()
        rows = list(self._every_row())
        columns: dict[str, list[object]] = {name: [run.labels.get(name) for run, *_ in rows] for name in self._labels}
        columns["time"] = [time for _, time, _ in rows]
        for name, place in self._measures.items():
            columns[name] = [row[place] if place < len(row) else None for *_, row in rows]
        write_parquet(columns, self.path, {"kind": "points of runs"})


def _lines(rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
