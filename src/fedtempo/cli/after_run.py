"""What ``fedtempo plan RUN`` takes of a run on Flower: times, weights, step, length, and the scheme that ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from fedtempo.clock.times import ClientTimes
from fedtempo.clock.times_text import is_run
from fedtempo.errors import DataMissing, InputError
from fedtempo.schemes.named import Scheme
from fedtempo.weighting.weight_rules import WEIGHT_RULES

if TYPE_CHECKING:
    from fedtempo.flower.record import Record
    from fedtempo.training.server_rules import Server


def times_given(run: Path | None, times: str | None) -> str:
    """What `--times` says, or else the folder of the run."""
    if run is not None:
        _refuse_no_run(run)
        return f"{run}/" if times is None else times  # a folder's name, even if it is F80
    if times is None:
        raise InputError(
            "--times: how long do the clients take? Give it, as --times F80 --clients 20, or the folder of a run on "
            "Flower, as fedtempo plan run/ (see fedtempo plan --help)"
        )
    return times


def _refuse_no_run(run: Path) -> None:
    """Say what is at the path if it is not a run."""
    if not run.exists():
        raise DataMissing(
            f"{run}: no such folder of a run on Flower; check the path (times are given as --times {run})"
        )
    if is_run(run):
        return
    inside = sorted(path for path in run.iterdir() if is_run(path)) if run.is_dir() else []
    if inside:
        raise InputError(f"{run}: it holds {len(inside)} runs on Flower; give one of them, as {inside[0]}")
    what = "a folder without a run of fedtempo.flower" if run.is_dir() else "a file"
    raise InputError(f"{run}: it is {what}; give the checkpoint folder of a run on Flower, or times as --times")


@dataclass(frozen=True)
class Ran:
    """What a plan takes of a run on Flower."""

    folder: Path
    record: Record
    scheme: Scheme | None
    """Without its server; None if it cannot be compared."""
    server: Server | None
    weights: str
    notes: tuple[str, ...]
    """What is not taken, and why."""

    @property
    def step(self) -> str:
        """The server's."""
        return self.record.step

    @property
    def server_lr(self) -> float | None:
        """None where its server rule is not there to go with it."""
        alone = self.server is None and self.record.scheme.options.server is not None
        return None if alone else self.record.server_lr

    @property
    def length(self) -> Fraction:
        """Seconds of training so far, to whole milliseconds."""
        return Fraction(-(-self.record.timeline.duration // Fraction(1, 1000)), 1000)

    def among(self, schemes: Sequence[Scheme]) -> list[Scheme]:
        """The schemes, and the one that ran."""
        there = self.scheme is None or self.scheme in schemes
        return [*schemes] if there or self.scheme is None else [*schemes, self.scheme]

    def importance(self, times: ClientTimes) -> list[Fraction] | None:
        """p_i of the clients that took part; None if there are others now."""
        active = sorted(set(self.record.timeline.client.tolist()))
        found = [Fraction(self.record.importance[i]).limit_denominator(10**9) for i in active]
        return found if len(active) == times.num_clients and min(found) > 0 else None

    def lines(self, known: ClientTimes, times: str | None, weights: str | None, step: str | None) -> list[str]:
        """Where the times and all else came from."""
        from fedtempo.flower.text import clean

        seconds = f"{float(self.length):g} s of training"
        label = clean(self.record.scheme.label)
        taken = [
            *([f"times of {known.num_clients} clients"] if times is None else []),
            *([f"{self.weights} weights"] if weights is None else []),
            *([f"{self.step} step"] if step is None else []),
        ]
        return [f"From the run in {self.folder} ({label}, {seconds}): {', '.join(taken) or 'its scheme'}.", *self.notes]


def read_ran(run: Path, known: ClientTimes) -> Ran:
    """What the folder says; code that it names is not imported, unless the user has named it, too."""
    from fedtempo.cli.show import read_run

    record = read_run(run)
    from fedtempo.flower.run_folder import RunFolder
    from fedtempo.flower.text import clean
    from fedtempo.schemes.table import NamedRule

    notes, scheme, server = [], record.scheme, record.scheme.options.server
    label, size = clean(scheme.label), known.num_clients
    left_out = None
    if isinstance(scheme.waiting, NamedRule):
        left_out = "its rule is code of somebody's own, and nothing is imported for a folder; name it, as --scheme"
    elif scheme.waiting.min_clients > size:
        left_out = f"it needs {scheme.waiting.min_clients} clients, and there are times of {size}"
    if left_out is not None:
        notes.append(f"{label} is not compared: {left_out}.")
    if server is not None:
        server = _usable(server, size)
        if server is None:
            notes.append(
                "Its server rule is code of somebody's own, and nothing is imported for a folder; name it, as --server."
            )
    said = str(RunFolder(run).document()["about"].get("weights", "time-based"))
    name, number = said.partition(", at most ")[::2]
    weights = f"{name}:{number.removesuffix('-fold')}" if number else name
    if name not in WEIGHT_RULES:
        weights = "time-based"
        notes.append(f"Its weights ({clean(said)}) have no name by which to find them; name them, as --weights.")
    bare = None if left_out is not None else _without(server, scheme)
    return Ran(run, record, bare, server if bare != scheme else None, weights, tuple(notes))


def _without(server: Server | None, scheme: Scheme) -> Scheme:
    """The scheme without a server rule that others can have as well: mixing is a part of it."""
    from fedtempo.training.server_rules import MixModels

    own = scheme.options.server
    return scheme if own is None or isinstance(server, MixModels) else scheme.using(server=None)


def _usable(server: Server, clients: int) -> Server | None:
    """The run's server rule, with a place for no more clients than there are; None if it is only a name."""
    from fedtempo.training.robust_rules import RobustRule
    from fedtempo.training.server_rules import NamedServer

    if isinstance(server, NamedServer):
        return None
    if isinstance(server, RobustRule) and server.last is not None and server.last > clients:
        return replace(server, last=None)
    return server
