"""A share of a study's units, as one of several jobs that know nothing of each other, and what they have come to.

    fedtempo run study.toml --units 3/8 --out FOLDER      the third of eight jobs, in the same folder as the others

The first job makes the folder; all save their units there, and each its own measures, history.3-of-8.nc. `joined` puts
them together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from fedtempo.errors import DataMissing, InputError
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.merging import merge
from fedtempo.simulation.units import Units

_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})")
_FILE = re.compile(r"history\.(\d+)-of-(\d+)\.nc")


@dataclass(frozen=True)
class Share:
    """The units of one of several jobs."""

    number: int
    """From 1."""
    of: int

    @classmethod
    def of_text(cls, text: str) -> Share:
        """As it is given: 3/8."""
        found = _TEXT.fullmatch(str(text).strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise InputError(f"units: {text!r} is not a share of them; give which of how many jobs, as 3/8")
        return cls(int(found[1]), int(found[2]))

    @property
    def file(self) -> str:
        """The name of the file with this job's measures."""
        return f"history.{self.number}-of-{self.of}.nc"

    def taken(self, units: Units) -> Units:
        """Its units: neighbours, which take about as long, go to different jobs."""
        return units._replace(specs=units.specs[self.number - 1 :: self.of])

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parts_of(folder: Path) -> dict[Share, Path]:
    """The files of the jobs that have measured something."""
    found = {}
    for path in folder.glob("history.*-of-*.nc"):
        if name := _FILE.fullmatch(path.name):
            found[Share(int(name[1]), int(name[2]))] = path
    return found


def study_in(folder: Path) -> tuple[History, str]:
    """What a study's folder holds, of one process or of several jobs; and which jobs are missing, in words."""
    whole, parts = folder / "history.nc", parts_of(folder)
    if whole.exists() or not parts:
        if not whole.exists():
            raise DataMissing(f"{folder}: nothing is measured yet")
        return History.load(whole), ""
    many = sorted({share.of for share in parts})
    if len(many) > 1:
        raise InputError(
            f"{folder} has jobs of studies cut in {' and in '.join(map(str, many))} parts; go on with one number, or "
            f"put all together by fedtempo run --resume {folder}"
        )
    found = merge([History.load(parts[share]) for share in sorted(parts, key=lambda share: share.number)])
    there = {share.number for share in parts}
    missing = [str(k) for k in range(1, many[0] + 1) if k not in there]
    if missing:
        found = replace(found, dataset=found.dataset.assign_attrs(finished=0))
    said = f"{len(there)} of {many[0]} jobs" + (f"; nothing yet from {', '.join(missing)}" if missing else "")
    return found, said
