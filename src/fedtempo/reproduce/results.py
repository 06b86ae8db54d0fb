"""What a figure's studies leave: one small NetCDF file a part, `FIGURE-PART.nc`, and one for its first stage.

A file has the measures of every run and no models, in 32 bits; its attribute `reproduction` says what was run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fedtempo.errors import InputError
from fedtempo.history import PARAMETER, History
from fedtempo.reproduce.figure_file import Part

KEY = "reproduction"


def path_of(folder: Path, part: Part, *, scout: bool = False) -> Path:
    """Where a part's results are."""
    return folder / f"{part.figure}-{part.name}{'.scout' if scout else ''}.nc"


def drawn_path(folder: Path, part: Part) -> Path:
    """Where the results are that its figure draws: of the first stage if that alone is wanted and there was one."""
    first = path_of(folder, part, scout=True)
    return first if part.only_scout and (part.scout is not None or first.is_file()) else path_of(folder, part)


def compact(history: History) -> xr.Dataset:
    """The measures alone, in 32 bits."""
    dataset = history.dataset.drop_vars([n for n in history.dataset if str(n).startswith(PARAMETER)])
    dataset = dataset.drop_vars([n for n in ("client_loss",) if n in dataset])
    short = [n for n, v in dataset.items() if v.dtype == np.float64 and "time" in v.dims]
    return dataset.assign({n: dataset[n].astype(np.float32) for n in short})


def save(history: History, path: Path, about: dict[str, Any]) -> History:
    """Write a part's results, and give them as they are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    History(compact(history).assign_attrs({KEY: json.dumps(about)})).save(path)
    return History.load(path)


def load(path: Path) -> History | None:
    """What `save` wrote; None where there is nothing."""
    if not path.is_file():
        return None
    history = History.load(path)
    if not {"study", "paper"} <= told(history).keys():
        raise InputError(f"{path}: a history, but not of a figure's part; give a folder that fedtempo reproduce wrote")
    return history


def told(history: History) -> dict[str, Any]:
    """What was run."""
    found: dict[str, Any] = json.loads(history.attrs.get(KEY, "{}"))
    return found
