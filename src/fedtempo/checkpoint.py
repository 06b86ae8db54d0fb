"""A study's folder: what is being run, and what each unit has done so far. Plain JSON and NPZ, no pickle.

    study.json       the configuration, with a format number and the problem's fingerprint
    units/003.npz    a unit: its measures; while unfinished also its state, to go on from
    history.nc       the measures of all runs, written when the study ends or is stopped

Every file is written whole or not at all, so a process killed at any moment leaves the last complete one.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtempo.errors import DataMissing, InputError, ResultsConflict
from fedtempo.report.files import write_whole

FORMAT = 1


class Folder:
    """Where a study keeps its results."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def history(self) -> Path:
        """The file with the measures."""
        return self.path / "history.nc"

    @property
    def _study(self) -> Path:
        return self.path / "study.json"

    def begin(self, configuration: dict[str, Any], layout: dict[str, int]) -> dict[str, int]:
        """Make the folder this study's; another study's results are a conflict, and are left alone.

        Gives the layout of the units: `layout`, or that with which the study began.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ResultsConflict(f"{self.path}: there is a file of that name; choose another folder for the results")
        if self._study.is_file():
            there = self.configuration()
            if there != json.loads(json.dumps(configuration)):
                raise ResultsConflict(
                    f"{self.path} holds the results of another study ({_difference(there, configuration)}); "
                    "choose another folder"
                )
            return self._layout()
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise ResultsConflict(f"{self.path} holds other files and no study; choose another folder")
        try:
            (self.path / "units").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot make this folder ({error.strerror}); choose another") from None
        text = json.dumps({"format": FORMAT, "configuration": configuration, "layout": layout}, indent=2)
        write_whole(self._study, lambda file: _write(file, text.encode()))
        return layout

    def _layout(self) -> dict[str, int]:
        layout: dict[str, int] = json.loads(self._study.read_text()).get("layout", {})
        return layout

    def configuration(self) -> dict[str, Any]:
        """The configuration of the study that is there."""
        if not self._study.is_file():
            raise DataMissing(f"{self.path}: no study is there (no study.json); check the path")
        try:
            document = json.loads(self._study.read_text())
            found, configuration = document["format"], document["configuration"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self._study}: this is not a study's description; choose another folder") from None
        if not isinstance(found, int) or found > FORMAT:
            raise InputError(
                f"{self._study}: format {found}, and this version reads up to {FORMAT}; use a newer fedtempo"
            )
        return dict(configuration)

    def clear(self) -> None:
        """Remove what the units have done, and the history."""
        for path in [*(self.path / "units").glob("*.npz"), self.history]:
            path.unlink(missing_ok=True)

    def write_unit(self, number: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Save a unit, in place of what was saved before."""
        named: dict[str, Any] = {name.replace(":", "__"): array for name, array in arrays.items()}
        write_whole(self._unit(number), lambda file: np.savez(file, allow_pickle=False, **named))

    def read_unit(self, number: int) -> dict[str, NDArray[Any]] | None:
        """What a unit has saved; None if nothing."""
        path = self._unit(number)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as saved:
                return {name.replace("__", ":", 1): saved[name] for name in saved.files}
        except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it to run this part anew") from None

    def _unit(self, number: int) -> Path:
        return self.path / "units" / f"{number:04d}.npz"


def _write(file: Any, content: bytes) -> None:
    file.write(content)


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    """The first thing in which two configurations differ, in words."""
    for key in sorted({*there, *here}):
        ours = json.loads(json.dumps(here.get(key)))
        if there.get(key) != ours:
            return f"its {key} is {_short(there.get(key))}, here it is {_short(ours)}"
    return "it differs"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
