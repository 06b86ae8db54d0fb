"""What a figure's studies leave: one small NetCDF file a part, `FIGURE-PART.nc`, and one for its first stage.

A file has the measures of every run and no models, in 32 bits; its attribute `reproduction` says what was run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fedtempo.history import PARAMETER, History
from fedtempo.reproduce.figure_file import Part

KEY = "reproduction"


def path_of(folder: Path, part: Part, *, scout: bool = False) -> Path:
    """Where a part's results are."""
    return folder / f"{part.figure}-{part.name}{'.scout' if scout else ''}.nc"


def compact(history: History) -> xr.Dataset:
    """The measures alone, in 32 bits."""
    dataset = history.dataset.drop_vars([n for n in history.dataset if str(n).startswith(PARAMETER)])
    dataset = dataset.drop_vars([n for n in ("client_loss",) if n in dataset])
    return dataset.map(lambda v: v.astype(np.float32) if v.dtype == np.float64 and v.ndim else v, keep_attrs=True)


def save(history: History, path: Path, about: dict[str, Any]) -> History:
    """Write a part's results, and give them as they are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    History(compact(history).assign_attrs({KEY: json.dumps(about)})).save(path)
    return History.load(path)


def load(folder: Path, part: Part, *, scout: bool = False) -> History | None:
    """A part's results, None where there are none."""
    path = path_of(folder, part, scout=scout)
    return History.load(path) if path.is_file() else None


def told(history: History) -> dict[str, Any]:
    """What was run."""
    found: dict[str, Any] = json.loads(history.attrs.get(KEY, "{}"))
    return found
