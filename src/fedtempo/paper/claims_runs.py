"""Runs of the paper's figures as the claims read them: per seed, at a chosen rate, up to a time that all have reached.

A run's final value is the mean over the last tenth of the time grid; a run that diverged has the value ∞; one that was
not run, or not carried to the end, has none (NaN). An unfinished study ends at the last time that every scheme and
weight rule has reached.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import xarray as xr

from fedtempo.grid import RATE
from fedtempo.paper.stages import shared_rate
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.selection import at_the_end

Results = Mapping[str, Mapping[str, History]]
"""Figure, part, history."""

IDENTICAL, TIME_BASED = "identical", "time-based"
_MEASURES = ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation", "diverged_at")


class NotRun(Exception):
    """A claim asks for runs that are not there; the message says which."""


@dataclass(frozen=True)
class Runs:
    """The seeds of one scheme, weight rule and rate."""

    dataset: xr.Dataset  # over seed and time, and further hyper-parameters
    rate: float | None
    edge: str = ""  # "largest of 3" where a rate was chosen that is at an end of those that were run
    open: bool = False  # whether there are rates beyond that end which were not run so far

    @property
    def at(self) -> str:
        """The rate, in words."""
        if self.rate is None:
            return ""
        return f"local_lr {self.rate:g}" + (f" ({self.edge})" if self.edge else "")

    def values(self, measure: str) -> xr.DataArray:
        """A measure over time; ∞ from the time on at which a run diverged, NaN where nothing is known."""
        if measure not in self.dataset:
            raise NotRun(f"{measure} was not measured")
        values = self.dataset[measure]
        if "diverged_at" in self.dataset:
            values = values.where(~(self.dataset["diverged_at"] <= self.dataset["time"]), np.inf)
        return values.transpose(..., "time")

    def final(self, measure: str = "loss") -> xr.DataArray:
        """The mean over the last tenth of the time grid, of one point at least, for each seed."""
        values = self.values(measure)
        count = -(-values.sizes["time"] // 10)
        return values.isel(time=slice(-count, None)).mean("time", skipna=False)

    def tail(self, share: float) -> tuple[xr.DataArray, xr.DataArray]:
        """Mean and deviation of the loss over the last `share` of the time, for each seed."""
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
    planned: float
    _chosen: dict[tuple[str, str], xr.Dataset] = field(default_factory=dict, compare=False)
    _tuned: dict[tuple[str, str], float | None] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, name: str, history: History) -> Part:
        """A part up to the time that every scheme and weight rule has reached."""
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
        return cls(name, History(data), float(times[-1]))

    @property
    def horizon(self) -> str:
        """The time that was run, and the paper's."""
        ran = float(self.history.dataset["time"].values[-1])
        open_end = f" of {self.planned:g} planned" if ran < self.planned else ""
        return f"{ran:g}{open_end}, paper {_paper_horizon(self.history) or 'unknown'}"

    def scheme(self, prefix: str) -> str:
        """The label of the scheme that starts so; of several FedFix the one with a wait of one half."""
        labels = [str(s) for s in self.history.dataset["scheme"].values]
        found = [s for s in labels if s.lower().startswith(prefix.lower())]
        if not found:
            raise NotRun(f"{prefix} was not run")
        return next((s for s in found if "1/2" in s or "0.5" in s), found[0])

    def of_scheme(self, prefix: str) -> History:
        """The runs of one scheme."""
        return self.history.select(scheme=self.scheme(prefix))

    def rates(self, prefix: str, rule: str) -> list[float]:
        """The rates at which a scheme was run with a weight rule."""
        chosen = self._of(prefix, rule)
        if RATE not in chosen.dims:
            return [float(chosen[RATE])] if RATE in chosen.coords else []
        tried = np.array(chosen["loss"].notnull().transpose(RATE, ...)).reshape(chosen.sizes[RATE], -1).any(axis=1)
        lost = np.array(History(chosen).diverged.transpose(RATE, ...)).reshape(chosen.sizes[RATE], -1).any(axis=1)
        return [float(r) for r in chosen[RATE].values[tried | lost]]

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
        """The runs of a scheme with a weight rule at the rate that is best for it, or for the rule `tuned_on`."""
        rate, tried = self.tuned(prefix, tuned_on or rule), self.rates(prefix, tuned_on or rule)
        ends = {tried[0]: "smallest", tried[-1]: "largest"} if len(tried) > 1 else {}
        edge = f"{ends[rate]} of {len(tried)}" if rate in ends else ""
        every = _paper_rates(self.history)
        beyond = [r for r in every if (r < tried[0] if edge.startswith("smallest") else r > tried[-1])] if edge else []
        return replace(self.at(prefix, rule, rate), edge=edge, open=bool(beyond))

    def tuned(self, prefix: str, rule: str) -> float | None:
        """The rate that is best for a scheme with a weight rule: `choice.shared_rate` tuned on that rule.

        Where a seed diverged at every rate, the one with the fewest such seeds, and of those the smallest.
        """
        if (prefix, rule) not in self._tuned:
            self._tuned[prefix, rule] = self._best_rate(prefix, rule)
        return self._tuned[prefix, rule]

    def _best_rate(self, prefix: str, rule: str) -> float | None:
        tried = self.rates(prefix, rule)
        if not tried:
            return None
        rate = shared_rate(self.of_scheme(prefix), tuned_on=rule)
        if rate is None or not math.isnan(rate):
            return rate if rate is not None else tried[0]
        lost = [int(np.isinf(self.at(prefix, rule, r).final()).sum()) for r in tried]
        return tried[int(np.argmin(lost))]

    def _of(self, prefix: str, rule: str) -> xr.Dataset:
        if rule not in self.history.dataset["weights"].values:
            raise NotRun(f"{rule} weights were not run")
        if (prefix, rule) not in self._chosen:
            self._chosen[prefix, rule] = self.of_scheme(prefix).select(weights=rule).dataset
        return self._chosen[prefix, rule]


def _paper_rates(history: History) -> list[float]:
    """The paper's learning rates, where the results say them."""
    paper = json.loads(history.attrs.get("reproduction", "{}")).get("paper", {})
    found = paper.get("local", {}).get("lr", [])
    return [float(rate) for rate in (found if isinstance(found, list) else [found])]


def _paper_horizon(history: History) -> str:
    """The paper's horizon, where the results say it: on their own, or as the paper's study."""
    until = history.attrs.get("horizon_of_paper")
    if until is None:
        until = json.loads(history.attrs.get("reproduction", "{}")).get("paper", {}).get("until", "")
    return f"{float(until):g}" if isinstance(until, int | float | np.number) else str(until)


@dataclass
class Book:
    """Results, and which parts of them a claim has read."""

    results: Results
    _read: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _parts(self) -> dict[tuple[str, str], Part]:
        return {}

    def part(self, figure: str, name: str) -> Part:
        """A part of a figure."""
        if name not in self.results.get(figure, {}):
            raise NotRun(f"run: fedtempo reproduce {figure} --scale paper")
        if (figure, name) not in self._parts:
            self._parts[figure, name] = Part.of(name, self.results[figure][name])
        part = self._parts[figure, name]
        self._read[f"{figure} {name}"] = part.horizon
        return part

    def horizon(self) -> str:
        """How far the parts that were read since the last call were run, and the paper's horizon."""
        read, self._read = self._read, {}
        return "; ".join(_grouped(read))


def _grouped(read: Mapping[str, str]) -> Iterator[str]:
    """Each horizon with its parts; without them where there is one horizon."""
    alike: dict[str, list[str]] = {}
    for name, text in read.items():
        alike.setdefault(text, []).append(name.split(" ", 1)[1])
    for text, names in alike.items():
        yield text if len(alike) == 1 else f"{', '.join(dict.fromkeys(names))}: {text}"
