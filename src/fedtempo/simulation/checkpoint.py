"""A study's folder: what is being run, and what each unit has done so far. Plain JSON and NPZ, no pickle.

    study.json       the configuration, with a format number and the problem's fingerprint
    units/0003.npz   a unit: its measures; while unfinished also its state, to go on from
    history.nc       the measures of all runs; of one of several jobs, history.3-of-8.nc (shares.py)
    live.jsonl       the measured points as they come, for those who watch; nothing goes on from it (live.py)
    track/           what sinks write, where a command puts them (`--track`)
    parts/02/        a study that is a part of this one: of another problem, other times, other rates

Units and history are written every 30 seconds, at the end and on a stop. Every file is written whole or not at all and
is on the disk before the next is begun, so that a kill or a power cut at any moment leaves the last complete one.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedtempo.errors import DataMissing, InputError, ResultsConflict
from fedtempo.files import make_folder, remove, remove_unfinished, write_first, write_whole
from fedtempo.simulation.engine.waiting import Later

FORMAT = 1
_VERSION = re.compile(r"state__slot\.\d+")
"""How versions are called that are saved one by one (engine/waiting.py)."""
WHOLE = "history.nc"
DESKS = ".workers-"
"""How the folders begin of processes that give orders to workers (desk.py)."""
TRACK = "track"
"""The folder of sinks, in that of a study or of a run."""


class Folder:
    """Where a study keeps its results."""

    def __init__(
        self,
        path: Path,
        description: Mapping[str, Any] | None = None,
        before: Callable[[], None] | None = None,
        *,
        measures: str = WHOLE,
    ) -> None:
        """`description`: JSON to keep beside the configuration, so that a command can make the study again.

        `before` is called when the study begins, before anything is written. `measures`: the file for them; where it is
        not the whole study's, other jobs write to the same folder.
        """
        self.path = path
        self._description = description
        self._before = before
        self._measures = measures

    @property
    def history(self) -> Path:
        """The file with the measures."""
        return self.path / self._measures

    @property
    def live(self) -> Path:
        """The file for those who watch."""
        return self.path / f"live{self._measures.removeprefix('history').removesuffix('.nc')}.jsonl"

    @property
    def is_shared(self) -> bool:
        """Whether other jobs write to the same folder."""
        return self._measures != WHOLE

    @property
    def track(self) -> Path:
        """The folder of sinks that have no other place."""
        return self.path / TRACK

    def part(self, number: int, before: Callable[[], None] | None = None) -> Folder:
        """The folder of a study that is a part of this one."""
        return Folder(self.path / "parts" / f"{number:02d}", before=before, measures=self._measures)

    @property
    def _study(self) -> Path:
        return self.path / "study.json"

    def check(self, configuration: dict[str, Any]) -> dict[str, int] | None:
        """The layout with which this study was begun here, None if nothing is here yet; writes nothing.

        Anything else that is here is a conflict.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ResultsConflict(f"{self.path}: there is a file of that name; choose another folder for the results")
        if self._study.is_file():
            document = self._document()
            there = document["configuration"]
            layout: dict[str, int] = document["layout"]
            if there != json.loads(json.dumps(configuration)):
                raise ResultsConflict(
                    f"{self.path} holds the results of another study ({_difference(there, configuration)}); "
                    "choose another folder"
                )
            return layout
        if self.path.is_dir() and any(not self._unfinished(path) for path in self.path.iterdir()):
            raise ResultsConflict(f"{self.path} contains other files and no study; choose another folder")
        return None

    def _unfinished(self, path: Path) -> bool:
        """Whether a path is what a process that was killed in `begin`, or another job there, leaves."""
        if path.name == "units":
            return path.is_dir() and all(half.name.startswith(".") for half in path.iterdir())
        return path.name.startswith((f".{self._study.name}.", DESKS))

    def begin(self, configuration: dict[str, Any], layout: dict[str, int]) -> None:
        """Make the folder this study's, after `check`; what killed processes had half written is removed."""
        if self._before is not None:
            self._before()
        try:
            make_folder(self.path / "units")
            if not self.is_shared:  # else they may be another job's, which is at it
                remove_unfinished(self.path, self._study.name)
                remove_unfinished(self.path, self.history.name)
                remove_unfinished(self.path / "units")
        except OSError as error:
            raise InputError(f"{self.path}: cannot make this folder ({error.strerror}); choose another") from None
        if not self._study.is_file():
            document = {"format": FORMAT, "configuration": configuration, "layout": layout}
            if self._description is not None:
                document["description"] = dict(self._description)
            write_first(self._study, json.dumps(document, indent=2))

    def holds_a_study(self) -> bool:
        """Whether there is one."""
        return self._study.is_file()

    def check_description(self) -> None:
        """Refuse a study.json that is no study's, or a newer version's."""
        self._document()

    def finished(self) -> bool:
        """Whether the study that is there has come to its end."""
        from fedtempo.simulation.shares import study_in

        try:
            return study_in(self.path)[0].finished
        except DataMissing:
            return False

    def step(self) -> str:
        """The server's step of the study that is there; those of 0.6 do not name it."""
        return str(self._document()["configuration"].get("step", "paper"))

    def seeds(self) -> tuple[int, ...]:
        """The seeds of the study that is there."""
        return tuple(int(seed) for seed in self._document()["configuration"].get("seeds", ()))

    def engine(self) -> str:
        """The engine of the study that is there."""
        return str(self._document()["configuration"].get("engine"))

    def description(self) -> dict[str, Any]:
        """What the study that is there was described by."""
        document = self._document()
        if "description" not in document:
            raise InputError(
                f"{self.path}: this study was started from Python; continue with the same call of simulate, "
                f"checkpoint={str(self.path)!r}"
            )
        return dict(document["description"])

    def _document(self) -> dict[str, Any]:
        """What is in study.json."""
        if not self._study.is_file():
            raise DataMissing(f"{self.path}: no study is there (no study.json); check the path")
        try:
            document = json.loads(self._study.read_text(encoding="utf-8"))
            found = int(document["format"])
            if found <= FORMAT:
                layout = {"blocks": int(document["layout"]["blocks"])}
                return {**document, "configuration": dict(document["configuration"]), "layout": layout}
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self._study}: this is not a study's description; choose another folder") from None
        raise InputError(f"{self._study}: format {found}, and this version reads up to {FORMAT}; use a newer fedtempo")

    def clear(self) -> None:
        """Remove the study that is there; what says which one it is goes last, so that no other inherits its units."""
        try:
            for part in sorted((self.path / "parts").glob("*/")):
                Folder(part).clear()
                remove(part / "study.png", part / "study.svg")
            if self.track.is_dir():
                shutil.rmtree(self.track)
            remove(*(self.path / "units").glob("*.npz"))
            remove(*self.path.glob("history.*nc"), *self.path.glob("live.*jsonl"))
            remove(self._study)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot remove the study that is there ({error.strerror}); choose another folder"
            ) from None

    def write_unit(self, number: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Save a unit, in place of what was saved before."""
        named: dict[str, Any] = {name.replace(":", "__", 1): array for name, array in arrays.items()}
        write_whole(self._unit(number), lambda file: np.savez(file, allow_pickle=False, **named))

    def read_unit(self, number: int, *, state: bool = True) -> dict[str, NDArray[Any]] | None:
        """What a unit has saved, with the state to go on from or without it; None if nothing.

        Versions that are saved one by one are read when they are asked for.
        """
        path = self._unit(number)
        if not path.is_file():
            return None
        with _reading(path), ExitStack() as opened:
            file = opened.enter_context(path.open("rb"))
            saved = NpzFile(file, own_fid=True, allow_pickle=False)
            names = [name for name in saved.files if state or not name.startswith("state__")]
            later = {name for name in names if _VERSION.fullmatch(name)}
            arrays: dict[str, Any] = {
                name.replace("__", ":", 1): _later(path, saved, name) if name in later else saved[name]
                for name in names
            }
            if not arrays.keys() >= {"finished", "points_done", "diverged"}:
                raise ValueError("it is not a unit of a study")
            if later:
                opened.pop_all()  # closed when nobody holds what is read later
        return arrays

    def _unit(self, number: int) -> Path:
        return self.path / "units" / f"{number:04d}.npz"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong with the file of a unit becomes one sentence."""
    try:
        yield
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{path}: cannot be read ({error}); remove it to run this part again") from None


def _later(path: Path, saved: Any, name: str) -> Later:
    """An array of a unit that is read when it is asked for, from the file as it was when it was opened."""

    def read() -> NDArray[Any]:
        with _reading(path):
            found: NDArray[Any] = saved[name]
        return found

    return Later(read)


def _difference(there: dict[str, Any], here: dict[str, Any], inside: str = "") -> str:
    """The first thing in which two configurations differ, in words."""
    for key in sorted({*there, *here}, key=lambda key: (key != "step", key)):  # schemes may differ by their steps too
        theirs, ours = there.get(key), json.loads(json.dumps(here.get(key)))
        if isinstance(theirs, dict) and isinstance(ours, dict) and theirs != ours:
            return _difference(theirs, ours, f"{inside}{key}.")
        if theirs != ours:
            return f"its {inside}{key} is {_short(theirs)}, here it is {_short(ours)}"
    return "it differs"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
