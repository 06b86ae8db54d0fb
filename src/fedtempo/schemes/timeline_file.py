"""A timeline as a file, Parquet or CSV: a row an update, written round after round, so that its length costs no memory.

The columns are those of `Timeline.table()`, and `round_end_ticks`: the exact end of the round, in ticks of the `unit`
that a Parquet file's metadata name. The file appears under its name when all of it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline, stream
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact, text
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes
from fedtempo.errors import InputError
from fedtempo.files import write_whole
from fedtempo.schemes.named import Scheme

ENDINGS = (".parquet", ".pq", ".csv")
"""Of the files that a timeline is written to."""
GROUP_ROWS = 1 << 18
"""About how many rows lie together in a Parquet file, and in memory."""

Columns = dict[str, NDArray[Any]]


class Written(NamedTuple):
    """How much a file holds."""

    rounds: int
    updates: int


def write_timeline(
    path: str | Path,
    scheme: Scheme,
    times: ClientTimes,
    *,
    until: Exact | None = None,
    rounds: int | None = None,
    importance: Iterable[Exact] | None = None,
    seed: int = 0,
) -> Written:
    """The rounds of ``ft.timeline`` in a file that ends in .parquet or .csv, in flat memory however many there are.

    A row an update; rounds without updates have none. The file is there when all of it is written, or not at all.

    Example:
        >>> ft.write_timeline("line.csv", ft.FedFix(1), ft.FixedTimes([3, 2, 1]), until=3)
        Written(rounds=3, updates=5)
        >>> from pathlib import Path
        >>> print(Path("line.csv").read_text())
        round,round_start,round_end,round_end_ticks,client,job,base_version,delay,draws
        0,0.0,1.0,1,2,0,0,0,1
        1,1.0,2.0,2,1,0,0,1,1
        1,1.0,2.0,2,2,1,1,0,1
        2,2.0,3.0,3,0,0,0,2,1
        2,2.0,3.0,3,2,2,2,0,1
    """
    if until is None and rounds is None:
        raise InputError("a timeline needs an end: give until= (a time) or rounds= (a number)")
    if rounds is not None and rounds < 1:
        raise InputError(f"rounds: {rounds} is below 1; give the number of rounds")
    scheme.waiting.check(times.num_clients)
    known = Importance(importance, times.num_clients)
    config = ClockConfig.of(scheme.waiting, times, known.values, seed)
    return write_rounds(Path(path), config, about={"scheme": scheme.spec()}, until=until, rounds=rounds)


def write_rounds(
    path: Path, config: ClockConfig, *, about: dict[str, Any], until: Exact | None = None, rounds: int | None = None
) -> Written:
    """The rounds of a clock; `about` goes into a Parquet file's metadata."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{path}: a timeline is written to a file that ends in .parquet or .csv")
    if ending != ".csv":
        _check_pyarrow(path)
    parts = stream(config, until=until, max_rounds=rounds)
    first = next(parts, None)
    if first is None:
        full_timeline(config, until=until, max_rounds=1)  # says when the first round ends
        raise InputError(f"until: no round ends by {until}; give more time")
    done = [0, 0]

    def counted(lines: Iterator[Timeline]) -> Iterator[Columns]:
        for line in lines:
            done[0] += line.num_rounds
            done[1] += line.num_updates
            yield from _columns(line)

    head = {"clients": config.num_clients, "seed": config.seed, "unit": text(config.unit), **about}
    fill = _csv if ending == ".csv" else _parquet
    write_whole(path, fill(counted(chain([first], parts)), head))
    return Written(*done)


def _columns(line: Timeline) -> Iterator[Columns]:
    """A row an update, some at a time."""
    ends = _floats(line.ends, line.unit)
    starts = np.concatenate([_floats(np.array([line.start]), line.unit), ends[:-1]])
    for begin in range(0, max(1, line.num_updates), GROUP_ROWS):
        some = slice(begin, begin + GROUP_ROWS)
        update = np.arange(begin, min(begin + GROUP_ROWS, line.num_updates))
        place = np.searchsorted(line.offsets, update, side="right") - 1
        number = place + line.first_round
        yield {
            "round": number,
            "round_start": starts[place],
            "round_end": ends[place],
            "round_end_ticks": line.ends[place],
            "client": line.client[some],
            "job": line.job[some],
            "base_version": line.base[some],
            "delay": number - line.base[some],
            "draws": np.ones(len(update), dtype=np.int32) if line.draws is None else line.draws[some],
        }


def _floats(ticks: NDArray[np.int64], unit: Fraction) -> NDArray[np.float64]:
    return np.asarray(ticks.astype(np.float64) * unit.numerator / unit.denominator)


def _grouped(parts: Iterator[Columns]) -> Iterator[Columns]:
    """Small parts together."""
    held: list[Columns] = []
    rows = 0
    for part in parts:
        held.append(part)
        rows += len(part["round"])
        if rows >= GROUP_ROWS:
            yield {name: np.concatenate([one[name] for one in held]) for name in part}
            held, rows = [], 0
    if held:
        yield {name: np.concatenate([one[name] for one in held]) for name in held[0]}


def _check_pyarrow(path: Path) -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError(
            f"{path}: writing Parquet needs an extra: pip install 'fedtempo[parquet]'; or write a .csv"
        ) from None


def _parquet(parts: Iterator[Columns], about: dict[str, Any]) -> Callable[[BinaryIO], None]:
    def fill(file: BinaryIO) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        writer = None
        try:
            for columns in _grouped(parts):
                table = pa.table(columns).replace_schema_metadata({"fedtempo": json.dumps(about)})
                if writer is None:
                    writer = parquet.ParquetWriter(file, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()

    return fill


def _csv(parts: Iterator[Columns], about: dict[str, Any]) -> Callable[[BinaryIO], None]:
    def fill(file: BinaryIO) -> None:
        import pandas as pd

        header = True
        for columns in _grouped(parts):
            pd.DataFrame(columns).to_csv(file, header=header, index=False)
            header = False

    return fill
