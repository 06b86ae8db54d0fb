"""Recorded update times: a table of (client, duration), replayed in order or drawn from.

replay:     T_i(job) = durations_i[job mod len(durations_i)]
bootstrap:  T_i(job) = durations_i[⌊u·len(durations_i)⌋],    u = uniform(seed, client, job)
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from fedtempo.clock.streams import stream_key, uniforms
from fedtempo.clock.ticks import MAX_TICKS, Exact, common_unit, positive
from fedtempo.clock.times import ClientTimes, Floats, Ints
from fedtempo.errors import ClockOverflow, DataMissing, InputError


class TraceTimes(ClientTimes):
    r"""Durations as recorded, one list per client. ``TraceTimes.read("trace.csv")`` reads columns client, duration.

    `mode` "replay" takes a client's durations in their order, again and again; "bootstrap" draws from them.
    `resolution` rounds them up to a common tick, `names` are what the clients are called.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("trace.csv").write_text("client,duration\nphone,4\nphone,6\nlaptop,1\nlaptop,2\nlaptop,3\n")
        >>> times = ft.TraceTimes.read("trace.csv")
        >>> times.names, times.mean_time
        (('phone', 'laptop'), array([5., 2.]))
        >>> [int(round.end) for round in ft.timeline(ft.FedAvg(), times, rounds=3).rounds]  # of 4, 6 and again 4
        [4, 10, 14]
        >>> ft.TraceTimes([[4, 6], [1, 2, 3]], mode="bootstrap").random
        True
    """

    law = "trace"

    def __init__(
        self,
        durations: Iterable[Sequence[Exact]],
        *,
        mode: Literal["replay", "bootstrap"] = "replay",
        resolution: Exact | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        if mode not in ("replay", "bootstrap"):
            raise InputError(f"mode: {mode!r} is not known; use 'replay' or 'bootstrap'")
        rows = [[positive(d, f"duration of client {i}") for d in row] for i, row in enumerate(durations)]
        if not rows:
            raise InputError("no clients: the trace is empty; give one list of durations per client")
        for i, row in enumerate(rows):
            if not row:
                raise InputError(f"client {i} has no durations in the trace; give at least one")
        if resolution is not None:
            step = positive(resolution, "resolution")
            rows = [[-(-d // step) * step for d in row] for row in rows]
        self.mode: Literal["replay", "bootstrap"] = mode
        self.random = mode == "bootstrap"
        self._names = tuple(names) if names is not None else tuple(str(i) for i in range(len(rows)))
        self._unit = common_unit(d for row in rows for d in row)
        if max(d for row in rows for d in row) / self._unit >= MAX_TICKS:
            raise ClockOverflow("the trace's durations have too many digits for a 64-bit clock; pass resolution=")
        self._rows = rows
        self._length = np.array([len(row) for row in rows], dtype=np.int64)
        self._first = np.cumsum(self._length) - self._length
        self._means = tuple(sum(int(d / self._unit) for d in row) * self._unit / len(row) for row in rows)
        self._mean_floats = np.array([float(mean) for mean in self._means])
        self._floats = np.array([float(d) for row in rows for d in row])
        self._ticks = np.array([int(d / self._unit) for row in rows for d in row], dtype=np.int64)

    @classmethod
    def read(
        cls, path: str | Path, *, mode: Literal["replay", "bootstrap"] = "replay", resolution: Exact | None = None
    ) -> TraceTimes:
        """From a CSV or Parquet file with columns ``client`` and ``duration``.

        Clients are numbered in the order of their labels if all labels are whole numbers, else as they first appear.
        """
        path = Path(path)
        if not path.exists():
            raise DataMissing(f"{path}: no such trace file; check the path")
        if not path.is_file():
            raise InputError(f"{path}: not a file; a trace is a CSV or Parquet file with columns client, duration")
        records = _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path)
        found: dict[str, list[Fraction]] = {}
        for place, client, duration in records:
            found.setdefault(client, []).append(positive(duration, f"{path}, {place}: duration"))
        if not found:
            raise InputError(f"{path}: the trace has no rows; give at least one client,duration")
        names = list(found)
        if all(name.removeprefix("-").isdecimal() for name in names):
            names.sort(key=int)
        return cls([found[name] for name in names], mode=mode, resolution=resolution, names=names)

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def num_clients(self) -> int:
        return len(self._rows)

    @property
    def unit(self) -> Fraction:
        return self._unit

    @property
    def mean_time(self) -> Floats:
        return self._mean_floats

    @property
    def exact_mean_time(self) -> tuple[Fraction, ...]:
        return self._means

    def draw(self, client: Ints, job: Ints, *, seed: int = 0) -> Ints:
        client, job = np.broadcast_arrays(client, job)
        length = self._length[client]
        if self.random:
            place = (uniforms(stream_key("times", seed), client, job) * length).astype(np.int64)
        else:
            place = job % length
        return np.asarray(self._ticks[self._first[client] + place])

    def exact_expected_rounds(self, wait: Fraction) -> tuple[Fraction, ...]:
        ratio = self._unit / wait
        top, bottom = ratio.numerator, ratio.denominator
        needed = [-(-t * top // bottom) for t in self._ticks.tolist()]
        parts = zip(self._first.tolist(), self._length.tolist(), strict=True)
        return tuple(Fraction(sum(needed[begin : begin + length]), length) for begin, length in parts)

    def expected_rounds(self, wait: Fraction) -> Floats:
        return np.array([float(n) for n in self.exact_expected_rounds(wait)])

    def survival(self, time: float) -> Floats:
        still = self._floats > time
        return np.asarray(np.add.reduceat(still.astype(np.int64), self._first) / self._length, dtype=np.float64)

    def distribution(self, time: float) -> Floats:
        done = self._floats <= time
        return np.asarray(np.add.reduceat(done.astype(np.int64), self._first) / self._length, dtype=np.float64)

    def longest(self) -> tuple[Fraction, ...]:
        return tuple(max(row) for row in self._rows)

    @property
    def job_period(self) -> Ints | None:
        return None if self.random else self._length

    def only(self, clients: Sequence[int]) -> TraceTimes:
        return TraceTimes([self._rows[i] for i in clients], mode=self.mode, names=[self._names[i] for i in clients])

    def kinks(self) -> Floats:
        return np.unique(self._floats)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceTimes) and self.mode == other.mode and self._rows == other._rows

    def __hash__(self) -> int:
        return hash((self.mode, self._unit, self._ticks.tobytes(), self._length.tobytes()))

    def __repr__(self) -> str:
        return f"TraceTimes({self.num_clients} clients, {len(self._ticks)} durations, mode={self.mode!r})"


def _csv(path: Path) -> Iterable[tuple[str, str, str]]:
    """Rows as (place, client, duration); what is malformed is named with its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            if "client" not in header or "duration" not in header:
                raise InputError(
                    f"{path}, line 1: the header is {','.join(header)!r}; it must name the columns client and duration"
                )
            client, duration = header.index("client"), header.index("duration")
            for row in reader:
                place = f"line {reader.line_num}"
                if not row:
                    continue
                if len(row) != len(header):
                    raise InputError(f"{path}, {place}: {len(row)} fields where the header has {len(header)}")
                if not row[client].strip():
                    raise InputError(f"{path}, {place}: the client is empty; name it")
                yield place, row[client].strip(), row[duration]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({error})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file in UTF-8; a trace is CSV with columns client,duration") from None


def _parquet(path: Path) -> Iterable[tuple[str, str, object]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs an extra: pip install 'fedtempo[parquet]'") from None
    try:
        table = parquet.read_table(path, columns=["client", "duration"])
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: not a Parquet file with columns client, duration ({str(error).splitlines()[0]})"
        ) from None
    if {"client", "duration"} - set(table.column_names):
        raise InputError(f"{path}: it must have the columns client and duration, not {table.column_names}")
    durations = table.column("duration").to_pylist()
    if table.schema.field("duration").type == pyarrow.float32():  # 0.1 in 32 bits means 1/10 too
        durations = [None if d is None else np.float32(d) for d in durations]
    for number, (client, duration) in enumerate(
        zip(table.column("client").to_pylist(), durations, strict=True), start=1
    ):
        if client is None or duration is None or not str(client).strip():
            raise InputError(f"{path}, row {number}: an empty value; every row needs client and duration")
        yield f"row {number}", str(client).strip(), duration
