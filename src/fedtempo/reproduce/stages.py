"""Running a part of a figure: in one stage, or in two where a long run for every learning rate would take too long.

    first stage     all learning rates, a short horizon
    second stage    for each scheme the `keep` best of them, the long horizon

Where identical weights are among the weight rules, the rates are ranked by them, as the paper tunes; the best rate of
every other rule goes on too. Each study has a folder of its own: what was stopped goes on, and what is done is not run
again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtempo.cli.description import arguments_of, merged
from fedtempo.errors import ResultsConflict
from fedtempo.grid import RATE
from fedtempo.history import History
from fedtempo.reproduce.figure_file import Part, Table, replaced
from fedtempo.reproduce.results import load, path_of, save, told
from fedtempo.runner import Progress

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem

STORED = ("mnist", "cifar10", "shakespeare")
"""Problems whose data lie in files."""


@dataclass(frozen=True)
class Place:
    """Where results go, and where data come from."""

    folder: Path
    data_dir: Path | None = None
    overwrite: bool = False
    tell: Callable[[str], Callable[[Progress], None] | None] = lambda label: None
    """Given what is being run: whom to tell the progress."""


def run_part(part: Part, place: Place) -> History:
    """A part's results, from what is there and what is left to run; of its first stage where that alone is wanted."""
    if part.scout is None:
        return _stage(part, place, part.study, scout=False)
    scout = _stage(part, place, part.scout, scout=True)
    if part.only_scout:
        return scout
    return _stage(part, place, second_stage(part, scout), scout=False)


def second_stage(part: Part, scout: History) -> Table:
    """The study with each scheme at the rates that go on."""
    rates = kept_rates(scout, part.keep)
    every = sorted({rate for kept in rates.values() for rate in kept})
    return replaced(part.study, {"local": {"lr": every}, "rates": rates})


def kept_rates(scout: History, keep: int) -> dict[str, list[float]]:
    """By scheme, the rates that go on, ascending; a rate of which a seed diverged is ranked last."""
    scores = scout.final().where(~scout.diverged).mean("seed", skipna=False)
    if RATE not in scores.dims:
        rate = float(scout.dataset[RATE])
        return {str(s): [rate] for s in scout.dataset["scheme"].values}
    rates = scout.dataset[RATE].values
    rules = scout.dataset["weights"].values.tolist()
    first = "identical" if "identical" in rules else rules[0]
    kept: dict[str, list[float]] = {}
    for scheme in scout.dataset["scheme"].values.tolist():
        at = {r: scores.sel(scheme=scheme, weights=r).fillna(np.inf).values for r in rules}
        chosen = set(np.argsort(at[first], kind="stable")[:keep].tolist())
        chosen |= {int(np.argmin(at[r])) for r in rules}
        kept[scheme] = sorted(float(rates[k]) for k in chosen)
    return kept


def _stage(part: Part, place: Place, study: Table, *, scout: bool) -> History:
    about = {"figure": part.figure, "part": part.name, "study": study, "paper": part.full, "scout": scout}
    there = load(place.folder, part, scout=scout)
    if there is not None and there.finished and not place.overwrite:
        if told(there).get("study") == study:
            return there
        raise ResultsConflict(
            f"{path_of(place.folder, part, scout=scout)} holds results of another setting; choose another --out, "
            "or add --overwrite"
        )
    history = _run(study, place, path_of(place.folder, part, scout=scout).stem)
    return save(history, path_of(place.folder, part, scout=scout), about)


def _run(table: Table, place: Place, name: str) -> History:
    from fedtempo.study import simulate

    description: dict[str, Any] = merged(table)
    if place.data_dir is not None and description["problem"]["name"] in STORED:
        description = replaced(description, {"problem": {"data_dir": str(place.data_dir)}})
    folder = place.folder / "studies" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    return simulate(
        **arguments_of(description, _problem(json.dumps(description["problem"]))),
        checkpoint=folder,
        overwrite=place.overwrite,
        description=description,
        on_progress=place.tell(name),
    )


@lru_cache(maxsize=1)
def _problem(spec: str) -> Problem:
    """The stages of a part, and parts with other clocks, share their problem."""
    from fedtempo.problems import named

    return named(json.loads(spec))
