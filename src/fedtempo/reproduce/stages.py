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
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtempo.cli.description import arguments_of, merged
from fedtempo.data import DATASETS
from fedtempo.errors import ResultsConflict
from fedtempo.grid import RATE
from fedtempo.history import History
from fedtempo.reproduce.figure_file import Part, Table, replaced
from fedtempo.reproduce.results import load, path_of, save, told
from fedtempo.runner import Progress

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem


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
        return _stage(part, place, part.study)
    first = _stage(part, place, part.scout, scout=True)
    return first if part.only_scout else _stage(part, place, second_stage(part, first), after=first)


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


def _stage(part: Part, place: Place, study: Table, *, scout: bool = False, after: History | None = None) -> History:
    """One stage of a part, the second `after` the results of the first."""
    path = path_of(place.folder, part, scout=scout)
    there = load(path)
    if there is not None and there.finished:
        if told(there)["study"] == study:
            return there
        if not place.overwrite:
            raise ResultsConflict(f"{path} holds results of another setting; choose another --out, or add --overwrite")
        path.unlink()
    about: Table = {"figure": part.figure, "part": part.name, "study": study, "paper": part.full}
    if after is not None:
        then = told(after)["study"]
        about["first_stage"] = {"until": then["until"], "seeds": after.dataset.sizes["seed"]}
    return save(_run(study, place, path, after), path, about)


def _run(table: Table, place: Place, path: Path, after: History | None = None) -> History:
    from fedtempo.study import simulate

    description: dict[str, Any] = merged(table)
    if place.data_dir is not None and description["problem"]["name"] in DATASETS:
        description = replaced(description, {"problem": {"data_dir": str(place.data_dir)}})
    problem = _problem(json.dumps(description["problem"]))
    if after is not None and json.loads(after.attrs["configuration"])["fingerprint"] != problem.fingerprint():
        raise ResultsConflict(f"{path}: its first stage was run on other data; choose another --out, or the same data")
    folder = place.folder / "studies" / path.stem
    folder.parent.mkdir(parents=True, exist_ok=True)
    run = partial(
        simulate,
        **arguments_of(description, problem),
        checkpoint=folder,
        description=description,
        on_progress=place.tell(path.stem),
    )
    try:
        return run()
    except ResultsConflict:
        if not place.overwrite:
            raise
    return run(overwrite=True)


@lru_cache(maxsize=1)
def _problem(spec: str) -> Problem:
    """The stages of a part, and parts with other clocks, share their problem."""
    from fedtempo.problems import named

    return named(json.loads(spec))
