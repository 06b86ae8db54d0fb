"""What a study leaves: every measure over virtual time, the trained models, and all that repeats the run.

    loss               L = Σ p_i L_i                 federated loss (equation 1)
    surrogate_loss     Σ q_i L_i                     what identical weights minimise instead (section 2.4)
    *_deviation        over clients, weighted by p_i, or by q_i for the surrogate

All over (`scheme`, `weights`, hyper-parameters given as lists, `seed`, `time`), and before them over `problem` and
`times` where a study has several of those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from fedtempo import display
from fedtempo.errors import InputError
from fedtempo.simulation.history.history_file import KIND, read_history, write_history
from fedtempo.simulation.history.model import Model, reveal, tree_of
from fedtempo.simulation.history.parquet_file import check_parquet, write_parquet
from fedtempo.simulation.history.selection import (
    ALWAYS,
    SETTINGS,
    at_coordinates,
    at_positions,
    compared,
    final_value,
    first_time,
    listed,
    lowest,
    over_seeds,
    reach,
)
from fedtempo.simulation.history.summary import Summary, summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARAMETER = "parameter:"
STATE = "state:"
"""How the names of a model's leaves begin, and those of the problem's state."""
FIXED = "fixed:"
"""How the names of arrays begin that belong to a module and were not trained."""
MODULE = "module"
"""Attribute of a history: the names of a PyTorch module's state dict, each with the one that it is kept under."""
KEPT_AS = "kept_as"
"""Attribute of a variable: the type of its whole numbers, which are floating here since a run may have none."""


@dataclass(frozen=True, repr=False, eq=False)
class History(display.Shown):
    """Measures over virtual time for every scheme, weight rule, hyper-parameter and seed; `dataset` holds them.

    ``print(history)`` shows the table and the sentences of ``fedtempo show``.

    `best`, `final`, `time_to`, `select`, `table`, `plot` and `model` read it; ``ft.History.load(path)`` reads what
    `save` wrote.

    Example:
        >>> problem, times = ft.problems.quadratics(4), ft.FixedTimes([4, 2, 1, 1])
        >>> schemes, local = [ft.FedAvg(), ft.FedFix(1)], ft.LocalSGD(lr=[0.1, 0.3])
        >>> history = ft.simulate(problem, schemes, times, until=20, local=local)
        >>> dict(history.dataset.loss.sizes)
        {'scheme': 2, 'weights': 1, 'local_lr': 2, 'seed': 1, 'time': 101}
        >>> best = history.best()  # each scheme at its best learning rate
        >>> best.table()[["scheme", "local_lr", "loss"]].round(3)
              scheme  local_lr   loss
        0     FedAvg       0.3  0.334
        1  FedFix(1)       0.3  0.275
        >>> best.time_to(0.3).squeeze().to_series()
        scheme
        FedAvg        NaN
        FedFix(1)    12.0
        Name: time to loss 0.3, dtype: float64
        >>> best.model(scheme="FedFix(1)").num_parameters
        20
        >>> history.save("history.nc")
        >>> _ = best.plot(path="loss.png")  # and best.to_parquet("loss.parquet")
    """

    dataset: xr.Dataset
    structure: Any = field(default=None, kw_only=True)
    state_structure: Any = field(default=None, kw_only=True)
    """Those of the model and of the problem's state; None where they are not known, as after `load`."""

    def __post_init__(self) -> None:
        missing = [d for d in ALWAYS if d not in self.dataset.dims or d not in self.dataset.coords]
        if missing or "loss" not in self.dataset:
            what = ", ".join(missing) or "loss"
            raise InputError(
                f"the dataset lacks {what}; a history has a loss over {', '.join(ALWAYS)}, with coordinates"
            )

    # -- what is in it

    @property
    def measures(self) -> tuple[str, ...]:
        """The variables over virtual time."""
        return tuple(str(name) for name, values in self.dataset.items() if "time" in values.dims)

    @property
    def hyper(self) -> tuple[str, ...]:
        """The hyper-parameters that were given as lists, and are dimensions."""
        return tuple(str(d) for d in self.dataset["loss"].dims if d not in (*SETTINGS, *ALWAYS))

    @property
    def settings(self) -> tuple[str, ...]:
        """Which of `problem` and `times` the study has several of: dimensions over which `best` does not choose."""
        return tuple(d for d in SETTINGS if d in self.dataset["loss"].dims)

    @property
    def attrs(self) -> dict[str, Any]:
        """What is known about the study: problem, configuration, versions, hardware."""
        return {str(name): value for name, value in self.dataset.attrs.items()}

    @property
    def finished(self) -> bool:
        """Whether every run has been carried to the end."""
        return bool(self.attrs.get("finished", 1))

    @property
    def diverged(self) -> xr.DataArray:
        """Which runs diverged."""
        if "diverged_at" in self.dataset:
            return self.dataset["diverged_at"].notnull()
        return xr.zeros_like(self.dataset["loss"].isel(time=0, drop=True), dtype=bool)

    @property
    def unfinished(self) -> xr.DataArray:
        """Which runs have no value at the end of the grid although they did not diverge."""
        left = self.dataset["loss"].isel(time=-1, drop=True).isnull() & ~self.diverged
        return left & (not self.attrs.get("finished", 0))  # where all is done, what has no value was not asked for

    @property
    def begun(self) -> xr.DataArray:
        """Which runs there are: not those that are still to come, nor rates at which a scheme was not run."""
        return self.dataset["loss"].notnull().any("time") | self.diverged

    def values(self, measure: str) -> xr.DataArray:
        """A measure by its name."""
        if measure not in self.measures:
            raise InputError(f"no measure {measure!r} in this history; it has {', '.join(self.measures)}")
        return self.dataset[measure]

    # -- files

    def save(self, path: str | Path) -> None:
        """Write a NetCDF file, whole or not at all; an existing one is replaced."""
        write_history(self.dataset, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read what `save` wrote, by this version or an earlier one."""
        return cls(read_history(Path(path)))

    # -- choosing runs

    def only(self, *measures: str) -> History:
        """The same runs with the loss and the measures named alone, without models."""
        kept = [n for n in dict.fromkeys(("loss", *measures, "diverged_at")) if n in self.dataset]
        return replace(self, dataset=self.dataset[kept])

    def select(self, **coords: Any) -> History:
        """The runs at the given coordinates: one value, a list of values, or a slice of numbers.

        Numbers match to a part in a million; schemes and weight rules are named by their labels, or given themselves.
        A hyper-parameter at one value is a dimension no longer; scheme, weights, seed and time stay dimensions.
        """
        return replace(self, dataset=at_coordinates(self.dataset, coords))

    sel = select

    def split(self, dimension: str | None = None) -> dict[Any, History]:
        """A history for each value of a dimension, by value; without a name, for each of the study's settings.

        `merge` puts them together again.
        """
        if dimension is None:
            if not self.settings:
                raise InputError("split: this study has one problem and one setting of times; name a dimension")
            return self._by_setting()
        if dimension not in (*self.settings, *self.hyper, *ALWAYS) or dimension == "time":
            names = ", ".join(d for d in (*self.settings, *self.hyper, *ALWAYS) if d != "time")
            raise InputError(f"split: there is no dimension {dimension!r}; choose one of {names}")
        values = self.dataset[dimension].values.tolist()
        return {value: self._at({dimension: k}) for k, value in enumerate(values)}

    def _by_setting(self) -> dict[Any, History]:
        """By the names of a setting: one, or a pair of them."""
        places = product(*(enumerate(self.dataset[d].values.tolist()) for d in self.settings))
        found = {}
        for place in places:
            names = tuple(name for _, name in place)
            at = {d: k for d, (k, _) in zip(self.settings, place, strict=True)}
            found[names[0] if len(names) == 1 else names] = self._at(at)
        return found

    def _at(self, places: Mapping[str, int]) -> History:
        """The runs at places of some dimensions; those of every history stay dimensions."""
        kept = {d: [k] if d in ALWAYS else k for d, k in places.items()}
        return replace(self, dataset=self.dataset.isel(kept))

    def best(self, measure: str = "loss", *, highest: bool | None = None) -> History:
        """For each scheme and weights, and each setting, the hyper-parameters with the lowest final value of a measure.

        The rule: the mean over seeds of the mean over the last tenth of the time grid. A combination of which a seed
        diverged is out; where all are, every measure is NaN. `highest` turns the rule around, and is the default for
        measures with "accuracy" in their name. In an unfinished study the grid ends, for each scheme and weights, at
        the last recorded time, and seeds that have not come so far are left out.
        The hyper-parameters become coordinates over (scheme, weights).
        """
        scores = self.final(measure)
        if not {"scheme", "weights", "seed"} <= set(scores.dims):
            raise InputError(f"{measure} is not measured for each scheme, weights and seed; choose by another measure")
        hyper = self.hyper
        if not hyper:
            return self
        extra = [d for d in scores.dims if d not in (*compared(scores.dims), "seed", *hyper)]
        scores = scores.mean(extra, skipna=False).mean("seed").where(~self.diverged.any("seed"))
        index, known = lowest(-scores if _upwards(measure, highest) else scores, hyper)
        rule = f"{measure}: mean over seeds of the mean over the last tenth of the time grid"
        chosen = at_positions(self.dataset, index, known).assign_attrs(chosen_by=rule)
        return replace(self, dataset=chosen)

    def model(self, **coords: Any) -> Model:
        """The parameters that one run ended with, and the problem's state; weights are time-based unless named."""
        if "weights" not in coords and "time-based" in self.dataset["weights"].values:
            coords = {**coords, "weights": "time-based"}
        named = {str(n): v for n, v in self.dataset.items() if str(n).startswith(PARAMETER)}
        if not named:
            why = ": the problems' models have different shapes" if "left_out" in self.attrs else ""
            raise InputError(f"this history keeps no models{why or ': it has no final parameters'}")
        run = self.select(**coords)
        every = (*self.settings, "scheme", "weights", *self.hyper, "seed")
        over = [d for d in every if run.dataset.sizes.get(d, 1) > 1]
        if over:
            several = "; ".join(f"{d} ({listed(run.dataset[d])})" for d in over)
            raise InputError(f"several models match; also give {several}")
        dataset = run.dataset.isel({d: 0 for d in every if d in run.dataset.dims})
        leaves = {name.removeprefix(PARAMETER): dataset[name].values for name in named}
        where = {str(n): c.item() for n, c in dataset.coords.items() if c.ndim == 0}
        if all(leaf.dtype.kind == "f" and np.isnan(leaf).all() for leaf in leaves.values()):
            why = "it diverged" if bool(run.diverged.any()) else "it did not reach the end"
            raise InputError(f"no parameters of the run {_in_words(where)}: {why}; choose another run")
        state = {str(n).removeprefix(STATE): _typed(v) for n, v in dataset.items() if str(n).startswith(STATE)}
        own = tree_of(state, self.state_structure) if state else None
        return Model(tree_of(leaves, self.structure), where, own, _module(dataset))

    # -- numbers

    def final(self, measure: str = "loss") -> xr.DataArray:
        """The mean over the last tenth of the time grid, of one point at least; NaN for a run that diverged.

        In an unfinished study the grid ends, for each scheme and weights, at the last recorded time.
        """
        return final_value(self.values(measure)).rename(measure)

    @property
    def reached(self) -> xr.DataArray:
        """The last time with a federated loss for each scheme and weights; NaN where there is none."""
        last = reach(self.dataset["loss"])
        times = self.dataset["time"].values[last.values]
        return xr.DataArray(times, dims=last.dims, coords=last.coords).where(last >= 0)

    def time_to(
        self, target: float, measure: str = "loss", *, over: str | None = None, highest: bool | None = None
    ) -> xr.DataArray:
        """The first time on the grid at which a measure is at or below `target`; NaN where it never is.

        At or above it with `highest`, the default for measures with "accuracy" in their name. `over="seed"` asks for
        the mean over seeds instead of each run. Nothing is interpolated between the points of the grid.
        """
        if over not in (None, "seed"):
            raise InputError(f"over={over!r}: a mean is taken over 'seed', or over nothing (None)")
        values = self.values(measure) if over is None else self.mean(measure)[measure]
        hit = values >= target if _upwards(measure, highest) else values <= target
        return first_time(self.dataset["time"], hit).rename(f"time to {measure} {target:g}")

    def mean(self, *measures: str) -> xr.Dataset:
        """The mean over seeds of the measures named, or of all, and how many seeds `diverged`.

        It is NaN from the time on at which one of the seeds diverged; seeds not yet computed are left out.
        """
        return self._over_seeds(measures, lambda values: values.mean("seed", keep_attrs=True))

    def deviation(self, *measures: str) -> xr.Dataset:
        """The sample deviation over seeds (divided by their number less one); NaN for a single seed."""
        return self._over_seeds(measures, lambda values: values.std("seed", ddof=1, keep_attrs=True))

    def _over_seeds(self, measures: Sequence[str], take: Callable[[xr.DataArray], xr.DataArray]) -> xr.Dataset:
        values = {name: self.values(name) for name in measures or self.measures}
        kept = over_seeds(self.dataset, values, take)
        return xr.Dataset(kept, attrs=self.dataset.attrs).assign(diverged=self.diverged.sum("seed"))

    def to_dataframe(self) -> pd.DataFrame:
        """One row a run and time, one column a measure; per-client values and parameters stay in `dataset`."""
        flat = [n for n in (*self.measures, "diverged_at") if n in self.dataset]
        flat = [n for n in flat if set(self.dataset[n].dims) <= {*ALWAYS, *self.settings, *self.hyper}]
        order = [str(d) for d in self.dataset["loss"].dims]
        return self.dataset[flat].to_dataframe(dim_order=order).reset_index()

    def to_parquet(self, path: str | Path) -> None:
        """Write the rows of `to_dataframe` as a Parquet file, whole or not at all.

        What is known about the study is in the file's metadata, as JSON under "fedtempo". It needs
        ``pip install 'fedtempo[parquet]'``.
        """
        check_parquet(Path(path))
        frame = self.to_dataframe()
        about = {"kind": KIND, "measures": list(self.measures), "hyper": list(self.hyper), **self.attrs}
        write_parquet({str(name): frame[name].to_numpy() for name in frame}, Path(path), about)

    def summary(self, *, target: float | None = None) -> Summary:
        """One row for each scheme and weights at their best hyper-parameters; the table and its sentences show it."""
        if self.settings:
            names = " and ".join(f"{d} ({listed(self.dataset[d])})" for d in self.settings)
            raise InputError(f"summary: there are several of {names}; take one of history.split().values()")
        return summarise(self, target=target)

    def table(self, *, target: float | None = None) -> pd.DataFrame:
        """The rows of `summary` as a DataFrame; of several problems or times, with columns that name them.

        `scheme`, `weights`, the hyper-parameters that were best, and the numbers of `Row`. `to_dataframe` has every
        run and time instead.
        """
        return display.frame_of(self, target=target)

    # -- pictures

    def plot(
        self,
        measure: str = "loss",
        *,
        over: str = "time",
        ax: Axes | None = None,
        path: str | Path | None = None,
        style: str = "light",
    ) -> Figure:
        """A measure over virtual time: the mean over seeds, and a band of one deviation; with `path` also a file.

        `over` is time, rounds, updates, bytes_up or bytes_down; `style` is light or dark. Several problems or client
        times have a panel each. Where several hyper-parameters are left, those of `best("loss")` are drawn.
        """
        return display.history_figure(self, measure, over=over, axes=ax, path=path, style=style)

    def to_html(self, path: str | Path | None = None, *, target: float | None = None) -> display.WebPage:
        """The study as a page for a browser: one file with tables that sort, curves that can be zoomed, and settings.

        A notebook shows it; with `path`, which ends in .html, it is also written.
        """
        return display.history_html(self, target=target, path=path)

    def __repr__(self) -> str:
        return display.history_line(self)

    def _repr_html_(self) -> str:
        data = f"<details><summary>dataset</summary>{self.dataset._repr_html_()}</details>"
        return f"{super()._repr_html_()}{data}"


def _module(dataset: xr.Dataset) -> dict[str, Any] | None:
    """What is known of the PyTorch module that a model is of."""
    if MODULE not in dataset.attrs:
        return None
    fixed = {reveal(str(n).removeprefix(FIXED)): _typed(v) for n, v in dataset.items() if str(n).startswith(FIXED)}
    return {"names": json.loads(dataset.attrs[MODULE]), "fixed": fixed}


def _typed(values: xr.DataArray) -> Any:
    """Values in the type that they had."""
    return values.values.astype(values.attrs[KEPT_AS]) if KEPT_AS in values.attrs else values.values


def _upwards(measure: str, highest: bool | None) -> bool:
    return "accuracy" in measure if highest is None else highest


def _in_words(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in where.items())
