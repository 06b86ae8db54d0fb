"""Running a part of a figure, what it leaves on disk, and the learning rate at which it is compared (section 5.1).

    one stage       the study as it is
    two stages      all learning rates over a short horizon, then for each scheme the `keep` best over the long one
    widened         then, where the best rate of a scheme is the last one on its side, the two next to it over the long
                    one, as often as the figure's file says
    beside          what the claims are judged by: many partitions, the beginning; of the partitions a few choose the
                    rates at which the others are run

Where identical weights are among the weight rules, the rates are ranked by them, as the paper tunes; the best rate of
every other rule goes on too. Each study has a folder of its own: what was stopped goes on, and what is done is not run
again. It leaves one small NetCDF file a part, `FIGURE-PART.nc`, and one for its first stage: the measures of every run
in 32 bits, no models, and in the attribute `reproduction` what was run. In another setting than the paper's text the
name has it too, `FIGURE-PART.authors.nc`; the runs beside are `FIGURE-PART.partitions.nc`.

    shared    tuned on identical weights, and used for every weight rule: the paper's way, an advantage to identical
    own       each scheme and weight rule at its own best rate

Tuned means the lowest final federated loss: mean over seeds of the mean over the last tenth of the time grid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from fedtempo.errors import InputError, ResultsConflict
from fedtempo.grid import RATE
from fedtempo.paper.figure_file import RUNS, TEXT, Part, Table, replaced, suffix
from fedtempo.problems.data import DATASETS
from fedtempo.schemes.table import scheme_of
from fedtempo.simulation.history.history import PARAMETER, History
from fedtempo.simulation.history.merging import merge
from fedtempo.simulation.history.summary import FAIR
from fedtempo.simulation.ledger import Progress
from fedtempo.simulation.rate_search import between
from fedtempo.simulation.study_file import arguments_of, merged

if TYPE_CHECKING:
    from fedtempo.problems.problem import Problem
    from fedtempo.problems.redealt import EachSeed

KEY = "reproduction"
PARTITIONS = RUNS[0]
SCOUT = "scout"
"""The first stage, in the names of files."""


def path_of(folder: Path, part: Part, stage: str = "") -> Path:
    """Where a part's results are, or those of its first stage, or of a run beside it."""
    return folder / f"{part.figure}-{part.name}{suffix(part.setting)}{stage and f'.{stage}'}.nc"


def drawn_path(folder: Path, part: Part) -> Path:
    """Where the results are that its figure draws: of the first stage if that alone is wanted and there was one."""
    first = path_of(folder, part, SCOUT)
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
    if not {"study", "paper"} <= what_was_run(history).keys():
        raise InputError(f"{path}: a history, but not of a figure's part; give a folder that fedtempo reproduce wrote")
    return history


def what_was_run(history: History) -> dict[str, Any]:
    """The setting, the study, the paper's own, and the first stage if there was one, as `save` wrote them down."""
    found: dict[str, Any] = json.loads(history.attrs.get(KEY, "{}"))
    return {"setting": TEXT, **found}  # a file without a setting is of the paper's text


def at_shared_rate(history: History, *, tuned_on: str = "identical") -> History:
    """The runs of a history of one scheme at the rate that is best for the weight rule `tuned_on`."""
    rate = shared_rate(history, tuned_on=tuned_on)
    return history if rate is None else history.select(**{RATE: rate})


def shared_rate(history: History, *, tuned_on: str = "identical") -> float | None:
    """That rate; None if there is only one."""
    if RATE not in history.hyper:
        return None
    best = history.only().select(weights=tuned_on).best()
    return float(best.dataset[RATE].values.item())


def at_own_rates(history: History) -> History:
    """Every scheme and weight rule at its best rate."""
    return history.best()


def at_rate_of(history: History, scheme: str) -> History:
    """Every scheme at the rate that is best for one of them."""
    if RATE not in history.hyper:
        return history
    best = history.only().select(scheme=scheme, weights=rule_of(history)).best()
    rate = float(best.dataset[RATE].values.item())
    return history.select(**{RATE: rate}) if math.isfinite(rate) else history.best()  # it diverged at every rate


def rule_of(history: History) -> str:
    """The weight rule that schemes are compared with: time-based, or the only one there is."""
    rules = [str(rule) for rule in history.dataset["weights"].values]
    return FAIR if FAIR in rules else rules[0]


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
        return _widened(part, place, _stage(part, place, part.study))
    first = _stage(part, place, part.scout, SCOUT)
    if part.only_scout:
        return first
    return _widened(part, place, _stage(part, place, second_stage(part, first), after=first), first)


def run_beside(part: Part, place: Place) -> dict[str, History]:
    """What the claims are judged by beside a part's own study, by name."""
    return {
        name: _chosen(part, place, study) if name == PARTITIONS and part.choosers else _stage(part, place, study, name)
        for name, study in part.runs.items()
    }


def _chosen(part: Part, place: Place, study: Table) -> History:
    """The partitions: a few of them at every rate, the others at the best rate of each weight rule there."""
    path, seeds = path_of(place.folder, part, PARTITIONS), study["seeds"]
    chosen_by = seeds[: part.choosers]
    about = {**_about(part, study, PARTITIONS), "choosers": chosen_by}
    begun = _with_fewer_seeds(path, about)
    there = _there(place, path, about) if begun is None else None
    if there is not None:
        return there
    if begun is None:
        few, done, left = _run({**study, "seeds": chosen_by}, place, path.with_suffix(".choosers.nc")), chosen_by, path
        begun = History(compact(few))
    else:
        few, done = begun.select(seed=chosen_by), what_was_run(begun)["study"]["seeds"]
        left = path.with_suffix(f".after{len(done)}.nc")
    others = {**study, "seeds": seeds[len(done) :]}
    rest = _run(_at_rates(others, kept_rates(few, 1)), place, left)
    return save(merge([begun, History(compact(rest))]), path, about)


def _with_fewer_seeds(path: Path, about: Table) -> History | None:
    """What is there and done of a study whose first seeds were run; None if there is nothing of that kind."""
    there = load(path)
    if there is None or not there.finished:
        return None
    was = what_was_run(there)
    seeds, every = was["study"]["seeds"], about["study"]["seeds"]
    more = len(seeds) < len(every) and seeds == every[: len(seeds)]
    same = all(was.get(key) == about.get(key) for key in ("setting", "choosers"))
    return there if more and same and {**was["study"], "seeds": every} == about["study"] else None


def second_stage(part: Part, scout: History) -> Table:
    """The study with each scheme at the rates that go on."""
    return _at_rates(part.study, kept_rates(scout, part.keep))


def _at_rates(study: Table, rates: dict[str, list[float]]) -> Table:
    """A study with each scheme at rates of its own."""
    every = sorted({rate for kept in rates.values() for rate in kept})
    return {**replaced(study, {"local": {"lr": every}}), "rates": rates}  # in the place of what it said of them


def kept_rates(scout: History, keep: int) -> dict[str, list[float]]:
    """By scheme, the rates that go on, ascending; a rate of which a seed diverged is ranked last."""
    scores = _scores(scout)
    if further := [str(d) for d in scores.dims if d not in ("scheme", "weights", RATE)]:
        raise InputError(f"stages choose learning rates alone, but the study has several {further[0]}; give one of it")
    if RATE not in scores.dims:
        rate = float(scout.dataset[RATE])
        return {str(s): [rate] for s in scout.dataset["scheme"].values}
    rates = scout.dataset[RATE].values
    rules = scout.dataset["weights"].values.tolist()
    first = _tuning_rule(scout)
    kept: dict[str, list[float]] = {}
    for scheme in scout.dataset["scheme"].values.tolist():
        at = {r: scores.sel(scheme=scheme, weights=r).fillna(np.inf).values for r in rules}
        chosen = set(np.argsort(at[first], kind="stable")[:keep].tolist())
        chosen |= {int(np.argmin(at[r])) for r in rules}
        kept[scheme] = sorted(float(rates[k]) for k in chosen)
    return kept


def _scores(history: History) -> xr.DataArray:
    """The final loss of each rate, a mean over seeds; NaN where one of them diverged or was not run."""
    return history.final().where(~history.diverged).mean("seed", skipna=False)


def _tuning_rule(history: History) -> str:
    rules = history.dataset["weights"].values.tolist()
    return "identical" if "identical" in rules else str(rules[0])


def missing_rates(history: History, grid: Sequence[float], first: History | None = None) -> dict[str, list[float]]:
    """By scheme, the next two rates on each side on which its best one has none that was run as far or diverged.

    They are those of the grid, and beyond it 1, 2 and 5 times powers of ten. `first` is the first stage.
    """
    scores, missing = _scores(history).sel(weights=_tuning_rule(history)), {}
    if RATE not in scores.dims:
        return {}
    for scheme in _schemes(history):
        row = scores.sel(scheme=scheme).values
        if not np.isfinite(row).any():
            continue
        best = float(scores[RATE].values[int(np.nanargmin(row))])
        done = _done(history, first, scheme)
        known = sorted({*done, *grid})
        ladder = [*between(known[0] / 100, known[0]), *known, *between(known[-1], known[-1] * 100)]
        above = [rate for rate in ladder if rate > best * (1 + 1e-6)][:2]
        below = [rate for rate in ladder if rate < best * (1 - 1e-6)][-2:]
        asked = (*(above if not _in(above[0], done) else []), *(below if not _in(below[-1], done) else []))
        wanted = sorted(rate for rate in asked if not _in(rate, done))
        if wanted:
            missing[scheme] = wanted
    return missing


def _schemes(history: History) -> list[str]:
    return [str(scheme) for scheme in history.dataset["scheme"].values]


def _done(history: History, first: History | None, scheme: str) -> list[float]:
    """The rates at which a scheme was run as far, or diverged."""
    row = _scores(history).sel(weights=_tuning_rule(history), scheme=scheme)
    run = row[RATE].values[np.isfinite(row.values)].tolist()
    return [*run, *_lost(history, scheme), *_lost(first, scheme)]


def _lost(history: History | None, scheme: str) -> list[float]:
    """The rates at which a seed of a scheme diverged."""
    if history is None or RATE not in history.dataset.dims or scheme not in history.dataset["scheme"].values:
        return []
    lost = history.diverged.sel(scheme=scheme)
    gone = lost.any([d for d in lost.dims if d != RATE]).values
    return [float(rate) for rate in history.dataset[RATE].values[gone]]


def _in(rate: float, rates: Sequence[float]) -> bool:
    return any(math.isclose(rate, other, rel_tol=1e-6) for other in rates)


def _widened(part: Part, place: Place, history: History, first: History | None = None) -> History:
    """With rates beyond, until the best of every scheme has one on both sides that is worse, or diverged."""
    if not part.widen:
        return history
    path = path_of(place.folder, part)
    given = part.full.get("local", {}).get("lr", [])
    grid = [float(rate) for rate in (given if isinstance(given, list) else [given])]
    about = what_was_run(history)
    while len(about.get("widened", [])) < part.widen:
        missing = missing_rates(history, grid, first)
        if not missing:
            break
        if part.together:
            every = sorted({rate for rates in missing.values() for rate in rates})
            left = {s: [r for r in every if not _in(r, _done(history, first, s))] for s in _schemes(history)}
            missing = {scheme: rates for scheme, rates in left.items() if rates}
        about["widened"] = [*about.get("widened", []), missing]
        study = _at_rates({**part.study, "schemes": _named(merged(part.study)["schemes"], missing)}, missing)
        more = _run(study, place, path.with_suffix(f".more{len(about['widened'])}.nc"))
        history = save(merge([history, History(compact(more))]), path, about)
    return history


def _named(schemes: Sequence[Table], labels: Mapping[str, Any]) -> list[Table]:
    """Those of some schemes that are meant."""
    return [spec for spec in schemes if scheme_of(spec, "schemes").label in labels]


def _stage(part: Part, place: Place, study: Table, stage: str = "", after: History | None = None) -> History:
    """One stage of a part, or a run beside it; the second one `after` the results of the first."""
    path = path_of(place.folder, part, stage)
    about = _about(part, study, stage)
    there = _there(place, path, about)
    if there is not None:
        return there
    if after is not None:
        then = what_was_run(after)["study"]
        about["first_stage"] = {"until": then["until"], "seeds": after.dataset.sizes["seed"]}
    return save(_run(study, place, path, after), path, about)


def _there(place: Place, path: Path, about: Table) -> History | None:
    """What is there and done of a study; other results in its place are refused, or taken away."""
    there = load(path)
    if there is None or not there.finished:
        return None
    was = what_was_run(there)
    if all(was.get(key) == about.get(key) for key in ("study", "setting", "choosers")):
        return there
    if not place.overwrite:
        raise ResultsConflict(f"{path} contains results of other settings; choose another --out, or add --overwrite")
    path.unlink()
    return None


def _about(part: Part, study: Table, stage: str) -> Table:
    """What was run, to be written down beside the results."""
    about: Table = {"figure": part.figure, "part": part.name, "study": study, "paper": part.full}
    return about | {"setting": part.setting, **({"run": stage} if stage in RUNS else {})}


def _run(table: Table, place: Place, path: Path, after: History | None = None) -> History:
    from fedtempo.problems.problem import Problem
    from fedtempo.simulation.study import simulate

    description: dict[str, Any] = merged({"step": "paper", **table})
    if place.data_dir is not None and description["problem"]["name"] in DATASETS:
        description = replaced(description, {"problem": {"data_dir": str(place.data_dir)}})
    problem = _problem(json.dumps(description["problem"]))
    was = None if after is None else json.loads(after.attrs["configuration"])["fingerprint"]
    if was is not None and isinstance(problem, Problem) and was != problem.fingerprint():
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
def _problem(spec: str) -> Problem | EachSeed:
    """The stages of a part, and parts with other clocks, share their problem."""
    from fedtempo.problems.redealt import problem_of

    return problem_of(json.loads(spec))
