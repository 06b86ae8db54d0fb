"""Runs of the paper's figures as the claims read them: per run, at a chosen rate, up to a time that all have reached.

A run has a partition, which is the seed by which the data were dealt, and a seed. Its final value is the mean over the
last tenth of the time grid; a run that diverged has the value ∞; one that was not run, or not carried to the end, has
none (NaN). An unfinished study ends at the last time that every scheme and weight rule has reached.

What was run beside a figure for its claims is read in its place: many partitions, or the beginning on a finer grid.

A rate is chosen on some of the runs, and judged on the others: on the seeds of the first stage if there was one, else
on a fifth of the seeds, one at least; where a partition has one seed only, on a fifth of the partitions, or on those
that were run at every rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import xarray as xr

from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.paper.claims_rules import Choice, at_edge
from fedtempo.paper.figure_file import FIGURES, RUNS, TEXT, read_figure, suffix
from fedtempo.paper.stages import load, what_was_run
from fedtempo.problems.naming import EACH
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import at_the_end

Results = Mapping[str, Mapping[str, History]]
"""Figure, part, history; the first stages of figure NAME are those of "NAME.scout", runs beside "NAME.partitions"."""

SETTINGS = {"text": "The paper's text", "authors": "The authors' scripts"}
"""What may be judged: a table of the page for each that has results."""

IDENTICAL, TIME_BASED = "identical", "time-based"
FIRST_STAGE = ".scout"
PARTITIONS, BEGINNING, SMALL_RATES = (f".{run}" for run in RUNS)
_MEASURES = ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation", "diverged_at")


class NotRun(Exception):
    """A claim asks for runs that are not there; the message says which."""


@dataclass(frozen=True)
class Runs:
    """The runs of one scheme, weight rule and rate."""

    dataset: xr.Dataset  # over partition, seed and time, and further hyper-parameters
    rate: float | None
    choice: Choice | None = None
    """How the rate was chosen; None where it was given."""

    @property
    def at(self) -> str:
        """The rate, in words."""
        if self.rate is None:
            return ""
        edge = at_edge(self.choice) if self.choice else ""
        return f"local_lr {self.rate:g}" + (f" ({edge} of those run so far)" if edge else "")

    def chosen(self, choice: Choice | None) -> Runs:
        """The same runs, with how their rate was chosen."""
        return replace(self, choice=choice)

    def values(self, measure: str) -> xr.DataArray:
        """A measure over time; ∞ from the time on at which a run diverged, NaN where nothing is known."""
        if measure not in self.dataset:
            raise NotRun(f"{measure} was not measured")
        values = self.dataset[measure]
        if "diverged_at" in self.dataset:
            values = values.where(~(self.dataset["diverged_at"] <= self.dataset["time"]), np.inf)
        return values.transpose(..., "time")

    def final(self, measure: str = "loss") -> xr.DataArray:
        """The mean over the last tenth of the time grid, of one point at least, for each run."""
        values = self.values(measure)
        count = -(-values.sizes["time"] // 10)
        return values.isel(time=slice(-count, None)).mean("time", skipna=False)

    def tail(self, share: float) -> tuple[xr.DataArray, xr.DataArray]:
        """Mean and deviation of the loss over the last `share` of the time, for each run."""
        values = at_the_end(self.values("loss"), share)
        if values.sizes["time"] < 2:
            raise NotRun(f"fewer than two measurements lie in the last {100 * share:g} % of the time")
        gone = (abs(values) == np.inf).any("time")
        settled = values.where(~gone)
        spread = settled.std("time", ddof=1, skipna=False)
        return settled.mean("time", skipna=False).where(~gone, np.inf), spread.where(~gone, np.inf)


@dataclass(frozen=True)
class Part:
    """One part of a figure."""

    name: str
    history: History
    first: History | None = None
    """Its first stage."""
    _chosen: dict[tuple[str, str], xr.Dataset] = field(default_factory=dict, compare=False)
    _tuned: dict[tuple[str, str], float | None] = field(default_factory=dict, compare=False)
    _best: dict[tuple[str, str, str], Runs] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, name: str, history: History, first: History | None = None) -> Part:
        """A part up to the time that every scheme and weight rule has reached."""
        history = by_partition(history)
        kept = [v for v in _MEASURES if v in history.dataset]
        data = history.dataset[kept].astype(np.float64)
        loss, times = data["loss"], data["time"].values
        going = loss.notnull() & ~history.diverged
        others = [d for d in loss.dims if d not in ("scheme", "weights", "time")]
        place = xr.DataArray(np.arange(len(times)), dims="time")
        last = place.where(going.any(others), -1).max("time").values
        if not (loss.notnull().any() or history.diverged.any()):
            raise NotRun("there is no value yet")
        if (last >= 0).any():
            end = int(last[last >= 0].min())
            data = data.isel(time=slice(0, end + 1))
            if "diverged_at" in data:
                data["diverged_at"] = data["diverged_at"].where(data["diverged_at"] <= times[end])
        return cls(name, History(data), None if first is None else by_partition(first))

    @property
    def time(self) -> float:
        """How far it was run."""
        return float(self.history.dataset["time"].values[-1])

    @property
    def horizon(self) -> float | None:
        """How far the paper goes, where the results say it."""
        until = self.history.attrs.get("horizon_of_paper", what_was_run(self.history).get("paper", {}).get("until"))
        try:
            return float(until)
        except (TypeError, ValueError):
            return None

    @cached_property
    def choosing(self) -> xr.DataArray:
        """Which runs rates are chosen on, over partition and seed."""
        data = self.history.dataset
        partitions, seeds = data.sizes["partition"], data.sizes["seed"]
        about = what_was_run(self.history)
        stage = int(about.get("first_stage", {}).get("seeds", 0))
        found = np.zeros((partitions, seeds), dtype=bool)
        if seeds > 1:
            found[:, : min(stage or max(1, seeds // 5), seeds)] = True
        else:
            chosen_by = about.get("choosers") or data["partition"].values[: max(1, partitions // 5)].tolist()
            found[np.isin(data["partition"].values, chosen_by)] = True
        return xr.DataArray(
            found, dims=("partition", "seed"), coords={d: data[d].values for d in ("partition", "seed")}
        )

    def without(self, choice: Choice | None) -> Part:
        """The part without the runs by which a rate was chosen elsewhere."""
        data = self.history.dataset
        used = frozenset() if choice is None else choice.runs
        kept = [[(int(p), int(s)) not in used for s in data["seed"].values] for p in data["partition"].values]
        mask = xr.DataArray(kept, dims=("partition", "seed"))
        return Part(
            self.name,
            History(data.map(lambda v: v.where(mask) if "partition" in v.dims else v, keep_attrs=True)),
            self.first,
        )

    def judged(self, values: xr.DataArray) -> xr.DataArray:
        """The values of the runs on which nothing was chosen; all of them where there is one run alone."""
        return values if bool(self.choosing.all()) else values.where(~self.choosing)

    def scheme(self, prefix: str) -> str:
        """The label of the scheme that starts so; of several FedFix the one with a wait of one half."""
        labels = [str(s) for s in self.history.dataset["scheme"].values]
        found = [s for s in labels if s.lower().startswith(prefix.lower())]
        if not found:
            raise NotRun(f"{prefix} was not run")
        return next((s for s in found if "1/2" in s or "0.5" in s), found[0])

    def rates(self, prefix: str, rule: str) -> list[float]:
        """The rates at which a scheme was run with a weight rule."""
        return _rates(self._of(prefix, rule))[0]

    def at(self, prefix: str, rule: str, rate: float | None) -> Runs:
        """The runs of a scheme with a weight rule at a rate."""
        chosen, tried = self._of(prefix, rule), self.rates(prefix, rule)
        who = f"{self.scheme(prefix)} with {rule} weights"
        if rate is not None:
            near = [r for r in tried if math.isclose(r, rate, rel_tol=1e-6)]
            if not near:
                raise NotRun(f"{who} was not run at local_lr {rate:g}")
            if RATE in chosen.dims:
                chosen = chosen.sel({RATE: near[0]})
            rate = near[0]
        elif not chosen["loss"].notnull().any():
            raise NotRun(f"{who} was not run")
        return Runs(chosen.isel(scheme=0, weights=0), rate)

    def best(self, prefix: str, rule: str, *, tuned_on: str | None = None) -> Runs:
        """The runs of a scheme with a weight rule at the rate that is best for it, or for the rule `tuned_on`.

        Those by which the rate was chosen are left out.
        """
        key = (prefix, rule, tuned_on or rule)
        if key not in self._best:
            self._best[key] = self._at_best(*key)
        return self._best[key]

    def _at_best(self, prefix: str, rule: str, tuned_on: str) -> Runs:
        rate = self.tuned(prefix, tuned_on)
        runs = self.at(prefix, rule, rate)
        data = runs.dataset.map(lambda v: self.judged(v) if {"partition", "seed"} <= set(v.dims) else v)
        return replace(runs, dataset=data, choice=self.choice(prefix, tuned_on, rate))

    def choice(self, prefix: str, rule: str, rate: float | None) -> Choice | None:
        """What is known about a rate that was chosen for a scheme with a weight rule."""
        if rate is None:
            return None
        finished, diverged = _rates(self._of(prefix, rule))
        grid = [*finished, *_paper_rates(self.history)]
        if self.first is not None:
            tried, lost = _rates(_one(self.first, self.scheme(prefix), rule))
            grid, diverged = [*grid, *tried], [*diverged, *lost]
        chosen = self.choosing
        places = zip(*np.nonzero(chosen.values), strict=True)
        runs = frozenset((int(chosen["partition"][p]), int(chosen["seed"][s])) for p, s in places)
        return Choice(rate, _distinct(grid), _distinct(finished), _distinct(diverged), runs)

    def tuned(self, prefix: str, rule: str) -> float | None:
        """The rate with the lowest final loss, of those at which no run diverged: mean over the runs that choose.

        Where one diverged at every rate, the one with the fewest such runs, and of those the smallest.
        """
        if (prefix, rule) not in self._tuned:
            self._tuned[prefix, rule] = self._best_rate(prefix, rule)
        return self._tuned[prefix, rule]

    def _best_rate(self, prefix: str, rule: str) -> float | None:
        tried = self.rates(prefix, rule)
        if not tried:
            return None
        finals = [self.at(prefix, rule, rate).final().where(self.choosing) for rate in tried]
        return tried[int(np.argmin([score(values) for values in finals]))] if finals else None

    def _of(self, prefix: str, rule: str) -> xr.Dataset:
        if rule not in self.history.dataset["weights"].values:
            raise NotRun(f"{rule} weights were not run")
        if (prefix, rule) not in self._chosen:
            self._chosen[prefix, rule] = _one(self.history, self.scheme(prefix), rule)
        return self._chosen[prefix, rule]


def score(values: xr.DataArray) -> float:
    """The mean of the values that are known; one that is infinite is worse than any that is not, two more so."""
    there = values.values[~np.isnan(values.values)]
    lost = int(np.isinf(there).sum())
    if not there.size:
        return math.inf
    return 1e300 * lost if lost else float(there.mean())


def by_partition(history: History) -> History:
    """A history with the dimension `partition`: its seeds where each deals the data anew, the problems of one that has
    several, else the seed of its one.

    A problem's name ends with the seed by which it was dealt, as mnist-shard-42; else they are numbered.
    """
    data = history.dataset
    if "partition" in data.dims:
        return history
    about = what_was_run(history).get("study", {})
    if about.get("problem", {}).get("seed") == EACH:
        found = data.rename(seed="partition")
        moved = [name for name, values in found.items() if "partition" in values.dims]
        return History(found.assign({name: found[name].expand_dims(seed=[0]) for name in moved}))
    if "problem" in data.dims:
        ends = [re.search(r"-(\d+)$", str(name)) for name in data["problem"].values.tolist()]
        seeds = [int(end[1]) for end in ends if end is not None]
        if len(set(seeds)) < data.sizes["problem"]:
            seeds = list(range(data.sizes["problem"]))
        return History(data.rename(problem="partition").assign_coords(partition=seeds))
    seed = int(about.get("problem", {}).get("seed", 0))
    moved = [name for name, values in data.items() if "seed" in values.dims]
    return History(data.assign({name: data[name].expand_dims(partition=[seed]) for name in moved}))


def partitions_of(history: History, part: str) -> History:
    """Of a study of several problems, those of one part of a figure: PART-SEED, for each seed a partition."""
    names = [str(name) for name in history.dataset["problem"].values.tolist()]
    own = [name for name in names if re.fullmatch(rf"{re.escape(part)}-\d+", name)]
    if not own:
        raise InputError(f"{part}: there is no problem {part}-SEED among {', '.join(names)}; name them so in the study")
    return by_partition(history.select(problem=own))


def _one(history: History, scheme: str, rule: str) -> xr.Dataset:
    """The runs of one scheme with a weight rule; none where either was not run."""
    data = history.dataset
    if scheme not in data["scheme"].values or rule not in data["weights"].values:
        return data.isel(scheme=slice(0, 0))
    return history.select(scheme=scheme, weights=rule).dataset


def _rates(runs: xr.Dataset) -> tuple[list[float], list[float]]:
    """The rates at which there are runs, and those at which one diverged."""
    if RATE not in runs.coords:
        return [], []
    rates = np.atleast_1d(runs[RATE].values)
    begun, lost = runs["loss"].notnull(), History(runs).diverged
    others = [d for d in begun.dims if d != RATE]
    begun, lost = begun.any(others), lost.any([d for d in lost.dims if d != RATE])
    there = np.atleast_1d((begun | lost).values)
    return rates[there].tolist(), rates[np.atleast_1d(lost.values)].tolist()


def _distinct(rates: list[float]) -> tuple[float, ...]:
    """In order, each once, though some were written in 32 bits."""
    found: list[float] = []
    for rate in sorted(map(float, rates)):
        if not found or not math.isclose(rate, found[-1], rel_tol=1e-6):
            found.append(rate)
    return tuple(found)


def _paper_rates(history: History) -> list[float]:
    """The paper's learning rates, where the results say them."""
    found = what_was_run(history).get("paper", {}).get("local", {}).get("lr", [])
    return [float(rate) for rate in (found if isinstance(found, list) else [found])]


@dataclass
class Book:
    """Results, and the parts of them that were read."""

    results: Results
    setting: str = TEXT
    _parts: dict[tuple[str, str], Part] = field(default_factory=dict)

    def has(self, figure: str, name: str, beside: str) -> bool:
        """Whether that was run beside a part of a figure."""
        return name in self.results.get(figure + beside, {})

    def part(self, figure: str, name: str, *beside: str) -> Part:
        """A part of a figure, or in its place the first of what was run `beside` it that is there."""
        run = (figure + each for each in beside)
        there = next((each for each in run if name in self.results.get(each, {})), figure)
        if name not in self.results.get(there, {}):
            asked = f"--scale paper --setting {self.setting}" if suffix(self.setting) else "--scale paper"
            raise NotRun(f"run: fedtempo reproduce {figure} {asked}")
        if (there, name) not in self._parts:
            first = self.results.get(f"{figure}{FIRST_STAGE}", {}).get(name)
            self._parts[there, name] = Part.of(name, self.results[there][name], first)
        return self._parts[there, name]


def stored(folder: Path) -> dict[str, dict[str, dict[str, History]]]:
    """For each setting the results in a folder; what they are is written in them.

    Files of one part that were dealt by other seeds are its partitions; a file of several partitions stands for itself.
    """
    found: dict[str, dict[str, dict[str, list[History]]]] = {}
    for path in sorted(folder.glob("fig*.nc")):
        history = load(path)
        about = {} if history is None else what_was_run(history)
        if history is None or about.get("figure") not in FIGURES:
            continue
        figure = about["figure"] + (FIRST_STAGE if path.stem.endswith(FIRST_STAGE) else "")
        figure += f".{about['run']}" if "run" in about else ""
        setting = found.setdefault(str(about.get("setting", "text")), {})
        setting.setdefault(figure, {}).setdefault(about["part"], []).append(history)
    return {
        setting: _with_appendix({f: {name: joined(all_of) for name, all_of in p.items()} for f, p in figures.items()})
        for setting, figures in found.items()
    }


def joined(histories: list[History]) -> History:
    """One history of a part's partitions: that which has several of them, or of each file one."""
    parts = [by_partition(h).dataset for h in histories]
    several = max(parts, key=lambda data: int(data.sizes["partition"]))
    if len(parts) == 1 or several.sizes["partition"] > 1:
        return History(several)
    parts = sorted(parts, key=lambda data: int(data["partition"][0]))
    return History(xr.concat(parts, dim="partition", join="outer", combine_attrs="override"))


def _with_appendix(results: dict[str, dict[str, History]]) -> dict[str, dict[str, History]]:
    """With the figures that draw the first stage of another one, or the whole of it where there is none."""
    for name in FIGURES:
        for part in read_figure(name, "full").parts:
            if part.only_scout:
                theirs = [results.get(part.figure + end, {}).get(part.name) for end in (FIRST_STAGE, "")]
                there = next((history for history in theirs if history is not None), None)
                if there is not None:
                    results.setdefault(name, {})[part.name] = there
    return results
