"""Clients' times as text has them: ``F80`` as in the paper, a list ``1,2,5/2``, a name of the catalogue of devices
(``tifl``, or ``tifl:3`` with a seed), a trace file, a run on Flower.

    read_times("F80", clients=20, law="lognormal:0.5")
    with_availability(times, failure="0.1", on="10", off="5")

The words are those of the commands' flags and of a study file's [times].
"""

from __future__ import annotations

import difflib
import re
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from fedtempo import compat
from fedtempo.clock.devices import CATALOGUE, named
from fedtempo.clock.random_times import (
    ExponentialTimes,
    LogNormalTimes,
    ParetoTimes,
    ShiftedExponentialTimes,
    UniformTimes,
)
from fedtempo.clock.ticks import exact
from fedtempo.clock.times import ClientTimes, FixedTimes
from fedtempo.clock.trace import TraceTimes
from fedtempo.errors import DataMissing, InputError
from fedtempo.registry import imported, nearest

_SPREAD_NAME = re.compile(r"[Ff](\d+(?:\.\d+)?)")
_TRACE_LAWS = ("replay", "bootstrap")
_NUMBERS = {
    "lognormal": (Fraction(1, 2), "sigma"),
    "uniform": (Fraction(1, 2), "half width"),
    "pareto": (Fraction(5, 2), "shape"),
    "shifted-exponential": (Fraction(1, 2), "shift"),
}
"""Laws with a number, as in lognormal:0.5: what it is without one, and what it is called."""
_LAWS = ("fixed", "exponential", *_NUMBERS)
_STATES = ("state.npz", "state.previous.npz")
_RUN_READER = "fedtempo.flower.comparison:run_durations"
"""What reads the times of a run on Flower, loaded where one is given: nothing here needs Flower."""

AVAILABILITY = ("failure", "on", "off", "absences", "period")
"""What says when clients are there, as keys and as flags."""


BANDWIDTH = ("bytes_per_second", "download_bytes_per_second")
"""How fast clients send and receive, as keys: each job takes the time of its bytes as well."""


def with_bandwidth(times: ClientTimes, **given: Any) -> ClientTimes:
    """Fixed times, and the time of sending and receiving the bytes of an update, where a bandwidth is given."""
    rates = {name: value for name, value in given.items() if value is not None}
    if not rates:
        return times
    if not isinstance(times, FixedTimes):
        raise InputError(
            f"bytes_per_second: it needs fixed times, not {times.law} ones; leave out either it or the law"
        )
    if "bytes_per_second" not in rates:
        raise InputError("download_bytes_per_second: give bytes_per_second, of sending, too")
    return FixedTimes.hardware(step_seconds=times.exact_mean_time, steps=1, **rates)


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


def needs_clients(given: str) -> bool:
    """Whether a text says nothing about how many clients there are: F<X>, or a name of the catalogue."""
    return _SPREAD_NAME.fullmatch(given.strip()) is not None or _device(given) is not None


def read_times(
    given: str, clients: int | None, law: str | None, spread: str | None = None, resolution: str | None = None
) -> ClientTimes:
    """The clients' times that `--times`, `--clients` and `--law` describe; `spread` is a law's number, as it was."""
    law, number = _law(law, spread)
    if clients is not None and clients < 1:
        raise InputError(f"--clients: {clients} given, so no client would train; give at least 1")
    device = _device(given)
    if device is not None:
        if law is not None or resolution is not None:
            raise InputError(f"--law, --resolution: {device[0]} has its own law; leave them out")
        return named(device[0], _counted(given, clients), seed=device[1])
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
    try:
        return _drawn(law, number, means, resolution)
    except InputError as error:
        raise InputError(f"--law {law}: {error}") from None


def _drawn(law: str | None, number: Fraction, means: FixedTimes, resolution: str | None) -> ClientTimes:
    """Random times of a law, around these means."""
    exactly = means.multiples
    if law == "exponential":
        return ExponentialTimes(exactly, resolution=resolution)
    if law == "lognormal":
        return LogNormalTimes(exactly, sigma=float(number), resolution=resolution)
    if law == "pareto":
        return ParetoTimes(exactly, shape=number, resolution=resolution)
    if law == "shifted-exponential":
        return ShiftedExponentialTimes(exactly, shift=number, resolution=resolution)
    if not 0 < number < 1:
        raise InputError(f"{number} is no half width between 0 and 1, as a share of the mean; give one")
    return UniformTimes([m * (1 - number) for m in exactly], [m * (1 + number) for m in exactly], resolution=resolution)


def _law(given: str | None, spread: str | None) -> tuple[str | None, Fraction]:
    """A law's name and its number: of "lognormal:0.5", or of "lognormal" and a `spread`."""
    law, colon, text = (given or "").partition(":")
    known = (*_LAWS, *_TRACE_LAWS)
    if law and law not in known:
        raise InputError(f"--law: {law!r} is not known{nearest(law, known)}")
    if colon and law not in _NUMBERS:
        raise InputError(f"--law: {law} takes no number; leave out :{text}, or choose one of {', '.join(_NUMBERS)}")
    if spread is not None:
        if law not in ("lognormal", "uniform"):
            raise InputError("--spread: it belongs to --law lognormal or --law uniform; add one or leave it out")
        if colon:
            raise InputError(f"--spread: --law {given} has its number already; leave --spread out")
        compat.warn(f"--spread {spread}", f"--law {law}:{spread}", stacklevel=4)
        text = spread
    default, name = _NUMBERS.get(law, (Fraction(0), ""))
    return law or None, exact(text, f"--law: {name} of {law}") if text or colon else default


def _device(given: str) -> tuple[str, int] | None:
    """A name of the catalogue and a seed: tifl is tifl:0."""
    name, colon, seed = given.strip().partition(":")
    if name not in CATALOGUE:
        return None
    if colon and not seed.removeprefix("-").isdecimal():
        raise InputError(f"--times: {given}: the seed is a whole number, as in {name}:1")
    return name, int(seed or 0)


def _counted(given: str, clients: int | None) -> int:
    if clients is None:
        raise InputError(f"--times {given} needs the number of clients: add --clients 20")
    return clients


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
    evenly = _SPREAD_NAME.fullmatch(given.strip())
    if evenly:
        return FixedTimes.spread(_counted(given, clients), evenly.group(1))
    parts = [part.strip() for part in given.split(",")]
    if len(parts) == 1 and not re.match(r"[-+.\d]|nan|inf", parts[0], re.IGNORECASE):
        if "/" in given or "." in given:
            raise DataMissing(f"--times: {given[:200]}: no such trace file; check the path")
        near = difflib.get_close_matches(given, CATALOGUE, n=1)
        raise InputError(
            f"--times: {given!r} is neither F<X> (as F80), nor a list (as 1,2,5/2), nor a trace file, nor one of the "
            f"devices that `fedtempo times` lists{f'; did you mean {near[0]}?' if near else ''}"
        )
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
