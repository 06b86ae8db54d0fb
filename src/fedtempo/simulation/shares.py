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
    """What a study's folder holds, of one process and of several jobs; which jobs there are, in words."""
    whole, parts = folder / "history.nc", parts_of(folder)
    if not whole.exists() and not parts:
        raise DataMissing(f"{folder}: nothing is measured yet")
    one = [History.load(whole)] if whole.exists() else []
    if one and (one[0].finished or not parts):
        return one[0], ""
    jobs = {share: History.load(parts[share]) for share in sorted(parts, key=lambda share: (share.of, share.number))}
    found = merge([*one, *jobs.values()])
    done, said = False, []
    for of in sorted({share.of for share in jobs}):
        there = {share.number: history.finished for share, history in jobs.items() if share.of == of}
        missing = [str(k) for k in range(1, of + 1) if k not in there]
        done = done or (not missing and all(there.values()))
        said.append(f"{len(there)} of {of} jobs" + (f" (nothing yet from {', '.join(missing)})" if missing else ""))
    found = replace(found, dataset=found.dataset.assign_attrs(finished=int(done)))
    return found, ", ".join([*(["what one process has done"] if one else []), *said])
