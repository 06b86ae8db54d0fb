"""Clients' times as text has them: ``F80`` as in the paper, a list ``1,2,5/2``, a trace file, a run on Flower.

    read_times("F80", clients=20, law="lognormal", spread="0.5")
    with_availability(times, failure="0.1", on="10", off="5")

The words are those of the commands' flags and of a study file's [times].
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from fedtempo.clock.random_times import ExponentialTimes, LogNormalTimes, UniformTimes
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.trace import TraceTimes
from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import imported, nearest

_SPREAD_NAME = re.compile(r"[Ff](\d+(?:\.\d+)?)")
_TRACE_LAWS = ("replay", "bootstrap")
_LAWS = ("fixed", "exponential", "lognormal", "uniform")
_STATES = ("state.npz", "state.previous.npz")
_RUN_READER = "fedtempo.flower.comparison:run_durations"
"""What reads the times of a run on Flower, loaded where one is given: nothing here needs Flower."""

AVAILABILITY = ("failure", "on", "off", "absences", "period")
"""What says when clients are there, as keys and as flags."""


def with_availability(times: ClientTimes, **given: object) -> ClientTimes:
    """The clients as `--failure`, `--on`, `--off`, `--absences` and `--period` say; lists may be text, as 0.1,0.2."""
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in ("failure", "on", "off"):
        value = found.get(name)
        if isinstance(value, str) and "," in value:
            found[name] = [part.strip() for part in value.split(",")]
    if isinstance(found.get("absences"), str):
        found["absences"] = Path(found["absences"])
    return times.available(**found) if found else times


def read_times(
    given: str, clients: int | None, law: str | None, spread: str | None, resolution: str | None = None
) -> ClientTimes:
    """The clients' times that `--times`, `--clients` and `--law` describe."""
    if law is not None and law not in (*_LAWS, *_TRACE_LAWS):
        raise InputError(f"--law: {law!r} is not known{nearest(law, (*_LAWS, *_TRACE_LAWS))}")
    if clients is not None and clients < 1:
        raise InputError(f"--clients: {clients} given, so there is nobody to train; give at least 1")
    if spread is not None and law not in ("lognormal", "uniform"):
        raise InputError("--spread: it belongs to --law lognormal or --law uniform; add one or leave it out")
    path = _trace_path(given)
    if path is not None:
        return _read_trace(path, clients, law, resolution)
    if law in _TRACE_LAWS:
        raise InputError(f"--law: {law} needs a trace file in --times, not {given!r}")
    means = _means(given, clients)
    if law in (None, "fixed"):
        if resolution is not None:
            raise InputError("--resolution: fixed times are exact already; leave it out, or choose a random --law")
        return means
    exactly = means.exact_mean_time
    if law == "exponential":
        return ExponentialTimes(exactly, resolution=resolution)
    width = exact(spread, "--spread") if spread is not None else Fraction(1, 2)
    if law == "lognormal":
        return LogNormalTimes(exactly, sigma=float(width), resolution=resolution)
    if not 0 < width < 1:
        raise InputError(f"--spread: {spread} must lie between 0 and 1 for uniform times")
    return UniformTimes([m * (1 - width) for m in exactly], [m * (1 + width) for m in exactly], resolution=resolution)


def _trace_path(given: str) -> Path | None:
    if not given.strip() or len(given) > 4000 or (any(len(part) > 255 for part in given.split("/"))):
        return None  # no file has such a name
    path = Path(given)
    return path if path.suffix.lower() in (".csv", ".parquet", ".pq") or path.exists() else None


def _read_trace(path: Path, clients: int | None, law: str | None, resolution: str | None) -> ClientTimes:
    if law is not None and law not in _TRACE_LAWS:
        raise InputError(f"--law: a trace is replayed or bootstrapped, not {law}; use --law replay or --law bootstrap")
    trace = _recorded(path, "bootstrap" if law == "bootstrap" else "replay", resolution)
    if clients is not None and clients != trace.num_clients:
        raise InputError(f"--clients: {clients} given, but {path} has {trace.num_clients}; leave --clients out")
    return trace


def _recorded(path: Path, mode: Literal["replay", "bootstrap"], resolution: str | None) -> TraceTimes:
    if not path.is_dir():
        return TraceTimes.read(path, mode=mode, resolution=resolution)
    if not is_run(path):
        raise InputError(
            f"--times: {path} is a folder without a run of fedtempo.flower; give its checkpoint folder, or a trace file"
        )
    check_saved(path)
    read = imported(_RUN_READER, "--times")
    assert callable(read)
    found = read(path, mode, resolution)
    assert isinstance(found, TraceTimes)
    return found


def _means(given: str, clients: int | None) -> FixedTimes:
    if not given.strip(", "):
        raise InputError("--times: the list is empty, so there are no clients; give one time per client, as 1,2,5/2")
    named = _SPREAD_NAME.fullmatch(given.strip())
    if named:
        if clients is None:
            raise InputError(f"--times {given} needs the number of clients: add --clients 20")
        return FixedTimes.spread(clients, named.group(1))
    parts = [part.strip() for part in given.split(",")]
    if len(parts) == 1 and not re.match(r"[-+.\d]|nan|inf", parts[0], re.IGNORECASE):
        if "/" in given or "." in given:
            raise DataMissing(f"--times: {given[:200]}: no such trace file; check the path")
        raise InputError(f"--times: {given!r} is neither F<X> (as F80), nor a list (as 1,2,5/2), nor a trace file")
    times = FixedTimes(parts)
    if clients is not None and clients != times.num_clients:
        raise InputError(f"--clients: {clients} given, but --times lists {times.num_clients}; leave --clients out")
    return times


def is_run(path: Path) -> bool:
    """Whether a run of fedtempo.flower was begun in a folder."""
    return any((path / name).is_file() for name in (*_STATES, "rounds.jsonl"))


def check_saved(path: Path) -> None:
    """Refuse a run that has saved nothing yet."""
    if not any((path / name).is_file() for name in _STATES):
        raise DataMissing(f"{path}: no round of the run there is saved yet; wait for its first")
