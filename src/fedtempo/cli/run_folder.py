"""A folder in which a strategy of `fedtempo.flower` has kept its run, as the commands meet it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedtempo.clock.ticks import positive
from fedtempo.errors import DataMissing, InputError

if TYPE_CHECKING:
    from fedtempo.clock.trace import TraceTimes
    from fedtempo.flower.record import Record


def is_run(path: Path) -> bool:
    """Whether a run was begun there."""
    return any((path / name).is_file() for name in ("state.npz", "rounds.jsonl"))


def read_run(path: Path) -> Record:
    """The record of the run; what it needs is imported only now."""
    if not (path / "state.npz").is_file():
        raise DataMissing(f"{path}: no round of the run there is saved yet; wait for its first")
    try:
        from fedtempo.flower import recorded
    except ImportError as error:
        raise InputError(f"{path} holds a run on Flower: {error}") from None
    return recorded(path)


def read_run_times(path: Path, mode: Literal["replay", "bootstrap"], resolution: str | None) -> TraceTimes:
    """The recorded durations by client, in seconds, rounded up to milliseconds or to `resolution`."""
    record = read_run(path)
    from fedtempo.flower.comparison import MILLISECOND, durations

    step = MILLISECOND if resolution is None else positive(resolution, "--resolution")
    return durations(record, mode=mode, resolution=step)
