"""What a study leaves: every measure over virtual time, the trained models, and all that repeats the run.

    loss               L = Σ p_i L_i                 federated loss (equation 1)
    surrogate_loss     Σ q_i L_i                     what identical weights minimise instead (section 2.4)
    *_deviation        over clients, weighted by p_i, or by q_i for the surrogate

All over (`scheme`, `weights`, hyper-parameters given as lists, `seed`, `time`). A run's final value is the mean over
the last tenth of the grid of virtual time, of one point at least.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import xarray as xr

from fedtempo.errors import DataMissing, InputError
from fedtempo.report.files import write_whole

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedtempo.report.history_tables import Summary

FORMAT = 1
KIND = "fedtempo history"
MODEL_KIND = "fedtempo model"
PARAMETER = "parameter:"
ALWAYS = ("scheme", "weights", "seed", "time")
_CLOSE = 1e-6  # values given in 32 bits, or with seven digits, name a coordinate in 64 bits


def leaf_paths(tree: Any) -> list[str]:
    """Where each leaf of a pytree lies, as "layers/0/w", in the order of its leaves; "" is a tree that is one leaf."""
    import jax

    return ["/".join(_step(key) for key in path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _step(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return _hide(str(getattr(key, name)))
    return _hide(str(key))


def _hide(name: str) -> str:
    """A name without slashes: they separate the steps of a path, and groups in a NetCDF file."""
    return name.replace("%", "%25").replace("/", "%2F")


def _reveal(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def _nested(leaves: Mapping[str, Any]) -> Any:
    """Dictionaries in dictionaries, from paths."""
    if set(leaves) == {""}:
        return leaves[""]
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *steps, last = map(_reveal, path.split("/"))
        place = tree
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = leaf
    return tree


@dataclass(frozen=True, eq=False)
class Model:
    """The parameters that one run ended with, and which run it was."""

    parameters: Any
    where: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the leaves as an .npz file, by their paths; NumPy reads it, nothing in it is pickled."""
        import zipfile

        import jax

        path = Path(path)
        if path.suffix != ".npz":
            raise InputError(f"{path}: models are written as .npz; name the file {path.with_suffix('.npz').name}")
        leaves = dict(zip(leaf_paths(self.parameters), jax.tree_util.tree_leaves(self.parameters), strict=True))
        for name, leaf in leaves.items():
            if np.asarray(leaf).dtype.kind not in "biufc":
                raise InputError(f"{path}: the leaf {name!r} is no array of plain numbers; convert it before saving")

        def write(file: BinaryIO) -> None:
            # savez would refuse a leaf with the name of one of its own arguments
            with zipfile.ZipFile(file, "w") as archive:
                archive.comment = json.dumps({"kind": MODEL_KIND, "where": dict(self.where)}).encode()
                for name, leaf in leaves.items():
                    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, np.asarray(leaf), allow_pickle=False)

        write_whole(path, write)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read what `save` wrote; lists and tuples come back as dictionaries by position."""
        import zipfile

        path = Path(path)
        _must_exist(path, "the path of a saved model")
        try:
            with zipfile.ZipFile(path) as archive:
                note = json.loads(archive.comment or b"{}")
            with np.load(path, allow_pickle=False) as stored:
                leaves = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: not a model that fedtempo saved ({error}); give an .npz file") from None
        if not leaves:
            raise InputError(f"{path}: no arrays in it; give an .npz file that Model.save wrote")
        return cls(_nested(leaves), note.get("where", {}))


@dataclass(frozen=True, repr=False, eq=False)
class History:
    """Measures over virtual time for every scheme, weight rule, hyper-parameter and seed; `dataset` holds them."""

    dataset: xr.Dataset
    structure: Any = field(default=None, kw_only=True)

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
        return tuple(str(d) for d in self.dataset["loss"].dims if d not in ALWAYS)

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
        return self.dataset["loss"].isel(time=-1, drop=True).isnull() & ~self.diverged

    def values(self, measure: str) -> xr.DataArray:
        """A measure by its name."""
        if measure not in self.measures:
            raise InputError(f"no measure {measure!r} in this history; it has {', '.join(self.measures)}")
        return self.dataset[measure]

    # -- files

    def save(self, path: str | Path) -> None:
        """Write a NetCDF file, whole or not at all; an existing one is replaced."""
        stored = _attributes_as_text(_renamed(self.dataset, _hide))
        stored = stored.assign_attrs(format=FORMAT, kind=KIND)
        for values in stored.variables.values():
            values.encoding = {"_FillValue": None} if values.dtype.kind == "f" else {}
        # in memory first: a disk that fills up under HDF5 leaves a file that cannot be closed
        content = bytes(stored.to_netcdf(engine="h5netcdf"))

        def write(file: BinaryIO) -> None:
            file.write(content)

        write_whole(Path(path), write)

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read what `save` wrote, by this version or an earlier one."""
        path = Path(path)
        _must_exist(path, "the path of a saved history")
        try:
            stored = xr.load_dataset(path, engine="h5netcdf", decode_times=False, mask_and_scale=False)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path}: not a NetCDF file that can be read ({reason}); give one of fedtempo's") from None
        if stored.attrs.get("kind") != KIND or "format" not in stored.attrs:
            raise InputError(f"{path}: a NetCDF file, but no history of fedtempo's; give one that it wrote")
        if int(stored.attrs["format"]) > FORMAT:
            raise InputError(
                f"{path}: written in format {int(stored.attrs['format'])}, and this version of fedtempo reads up to "
                f"{FORMAT}; install a newer one"
            )
        for values in stored.variables.values():
            values.encoding = {}
        return cls(_attributes_from_text(_renamed(stored, _reveal)))

    # -- choosing runs

    def only(self, *measures: str) -> History:
        """The same runs with the loss and the measures named alone, without models."""
        kept = [n for n in dict.fromkeys(("loss", *measures, "diverged_at")) if n in self.dataset]
        return History(self.dataset[kept], structure=self.structure)

    def select(self, **coords: Any) -> History:
        """The runs at the given coordinates: one value, a list of values, or a slice of numbers.

        Numbers match to a part in a million; schemes and weight rules are named by their labels, or given themselves.
        A hyper-parameter at one value is a dimension no longer; scheme, weights, seed and time stay dimensions.
        """
        dataset = self.dataset
        for name, wanted in coords.items():
            if name in dataset.dims and name in dataset.coords:
                if isinstance(wanted, slice):
                    dataset = dataset.sel({name: wanted})
                elif isinstance(wanted, list | tuple | range | np.ndarray):
                    dataset = dataset.isel({name: [_position(dataset[name], name, w) for w in wanted]})
                else:
                    at = _position(dataset[name], name, wanted)
                    dataset = dataset.isel({name: [at] if name in ALWAYS else at})
            elif name in dataset.coords and not dataset[name].dims:
                _position(dataset[name], name, wanted)
            elif name in dataset.coords:
                raise InputError(f"{name} was chosen for each scheme and weights; select those, or before best()")
            else:
                names = ", ".join(str(c) for c in dataset.coords if dataset[c].ndim < 2)
                raise InputError(f"no coordinate {name!r} in this history; it has {names}")
        return History(dataset, structure=self.structure)

    sel = select

    def best(self, measure: str = "loss", *, highest: bool | None = None) -> History:
        """For each scheme and weights the hyper-parameters with the lowest final value of a measure.

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
        extra = [d for d in scores.dims if d not in ("scheme", "weights", "seed", *hyper)]
        scores = scores.mean(extra, skipna=False).mean("seed").where(~self.diverged.any("seed"))
        scores = scores.stack(combination=hyper, create_index=False).transpose("scheme", "weights", "combination")
        known = scores.notnull().any("combination")
        if _upwards(measure, highest):
            scores = -scores
        flat = scores.fillna(np.inf).argmin("combination")
        index = dict(zip(hyper, np.unravel_index(flat.values, [self.dataset.sizes[d] for d in hyper]), strict=True))
        return self._at(index, known, f"{measure}: mean over seeds of the mean over the last tenth of the time grid")

    def _at(self, index: Mapping[str, Any], known: xr.DataArray, rule: str) -> History:
        """One combination for each scheme and weights, where `known`; elsewhere nothing."""
        over = ("scheme", "weights")
        pointers: dict[str, Any] = {d: xr.DataArray(np.arange(self.dataset.sizes[d]), dims=d) for d in over}
        pointers |= {name: xr.DataArray(at, dims=over) for name, at in index.items()}
        # chosen by pairs of positions, so that a variable that has no hyper-parameters is left as it is
        chosen = self.dataset.map(lambda v: v.isel({d: p for d, p in pointers.items() if d in v.dims}))
        for name in index:
            values = self.dataset[name].isel({name: pointers[name]}).drop_vars(name)
            chosen = chosen.assign_coords({name: values if known.all() else _where(values, known)})
        if not known.all():
            measured = [n for n, v in chosen.items() if set(over) <= set(v.dims) and n != "diverged_at"]
            chosen = chosen.assign({n: _where(chosen[n], known) for n in measured})
            if "diverged_at" in chosen:
                last = self.dataset["diverged_at"].max(list(index))
                chosen["diverged_at"] = chosen["diverged_at"].where(known, last)
        order = [d for d in ("scheme", "weights", "seed", "time") if d in chosen.dims]
        chosen = chosen.transpose(*order, ...).assign_attrs({**self.dataset.attrs, "chosen_by": rule})
        for variable in chosen.variables:
            chosen[variable].attrs = dict(self.dataset[variable].attrs)
        return History(chosen, structure=self.structure)

    def model(self, **coords: Any) -> Model:
        """The parameters that one run ended with; weights are the time-based ones unless named."""
        if "weights" not in coords and "time-based" in self.dataset["weights"].values:
            coords = {**coords, "weights": "time-based"}
        named = {str(n): v for n, v in self.dataset.items() if str(n).startswith(PARAMETER)}
        if not named:
            raise InputError("this history keeps no models: it has no final parameters")
        run = self.select(**coords)
        over = [d for d in ("scheme", "weights", *self.hyper, "seed") if run.dataset.sizes.get(d, 1) > 1]
        if over:
            several = "; ".join(f"{d} ({_listed(run.dataset[d])})" for d in over)
            raise InputError(f"several models are meant; also name {several}")
        dataset = run.dataset.isel({d: 0 for d in ("scheme", "weights", "seed", *self.hyper) if d in run.dataset.dims})
        leaves = {name.removeprefix(PARAMETER): dataset[name].values for name in named}
        where = {str(n): c.item() for n, c in dataset.coords.items() if c.ndim == 0}
        if all(leaf.dtype.kind == "f" and np.isnan(leaf).all() for leaf in leaves.values()):
            why = "it diverged" if bool(run.diverged.any()) else "it has not been carried to the end"
            raise InputError(f"no parameters of the run {_told(where)}: {why}; choose another run")
        return Model(self._tree(leaves), where)

    def _tree(self, leaves: Mapping[str, Any]) -> Any:
        if self.structure is None:
            return _nested(leaves)
        import jax

        paths = leaf_paths(jax.tree_util.tree_unflatten(self.structure, range(self.structure.num_leaves)))
        if set(paths) != set(leaves):
            raise InputError(f"the structure has leaves {sorted(paths)}, and the history {sorted(leaves)}")
        return jax.tree_util.tree_unflatten(self.structure, [leaves[path] for path in paths])

    # -- numbers

    def final(self, measure: str = "loss") -> xr.DataArray:
        """The mean over the last tenth of the time grid, of one point at least; NaN for a run that diverged.

        In an unfinished study the grid ends, for each scheme and weights, at the last recorded time.
        """
        values = self.values(measure)
        reach = self._reach(values)
        count = -(-(reach + 1) // 10)
        place = xr.DataArray(np.arange(values.sizes["time"]), dims="time")
        inside = (place > reach - count) & (place <= reach)
        total = values.where(inside, 0.0).sum("time", skipna=False)
        mean = (total / count.where(count > 0)).transpose(*(d for d in values.dims if d != "time"))
        return mean.assign_attrs(values.attrs).rename(measure)

    def _reach(self, values: xr.DataArray) -> xr.DataArray:
        """The last place on the grid with a value for each scheme and weights; −1 where there is none."""
        runs = [d for d in values.dims if d not in ("scheme", "weights", "time")]
        place = xr.DataArray(np.arange(values.sizes["time"]), dims="time")
        return place.where(values.notnull().any(runs), -1).max("time").astype(int)

    @property
    def reached(self) -> xr.DataArray:
        """The last time with a federated loss for each scheme and weights; NaN where there is none."""
        reach = self._reach(self.dataset["loss"])
        times = self.dataset["time"].values[reach.values]
        return xr.DataArray(times, dims=reach.dims, coords=reach.coords).where(reach >= 0)

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
        first = self.dataset["time"].where(hit).min("time")
        order = [d for d in values.dims if d != "time"]
        return first.transpose(*order).rename(f"time to {measure} {target:g}").assign_attrs(self.dataset["time"].attrs)

    def mean(self, *measures: str) -> xr.Dataset:
        """The mean over seeds of the measures named, or of all, and how many seeds `diverged`.

        It is NaN from the time on at which one of the seeds diverged; seeds not yet computed are left out.
        """
        return self._over_seeds(measures, lambda values: values.mean("seed", keep_attrs=True))

    def deviation(self, *measures: str) -> xr.Dataset:
        """The sample deviation over seeds (divided by their number less one); NaN for a single seed."""
        return self._over_seeds(measures, lambda values: values.std("seed", ddof=1, keep_attrs=True))

    def _over_seeds(self, measures: Sequence[str], take: Callable[[xr.DataArray], xr.DataArray]) -> xr.Dataset:
        kept = {n: take(self.values(n)) for n in measures or self.measures if "seed" in self.values(n).dims}
        if "diverged_at" in self.dataset:
            gone = (self.dataset["diverged_at"] <= self.dataset["time"]).any("seed")
            runs = set(self.dataset["diverged_at"].dims) - {"seed"}
            kept = {n: v.where(~gone).transpose(*v.dims) if runs <= set(v.dims) else v for n, v in kept.items()}
        return xr.Dataset(kept, attrs=self.dataset.attrs).assign(diverged=self.diverged.sum("seed"))

    def to_dataframe(self) -> pd.DataFrame:
        """One row a run and time, one column a measure; per-client values and parameters stay in `dataset`."""
        flat = [n for n in (*self.measures, "diverged_at") if n in self.dataset]
        flat = [n for n in flat if set(self.dataset[n].dims) <= {*ALWAYS, *self.hyper}]
        order = [str(d) for d in self.dataset["loss"].dims]
        return self.dataset[flat].to_dataframe(dim_order=order).reset_index()

    def summary(self, *, target: float | None = None) -> Summary:
        """One row for each scheme and weights at their best hyper-parameters; the table and its sentences show it."""
        from fedtempo.report.history_tables import summarise

        return summarise(self, target=target)

    # -- pictures

    def plot(self, measure: str = "loss", *, ax: Axes | None = None, path: str | Path | None = None) -> Figure:
        """A measure over virtual time: the mean over seeds, and a band of one deviation; with `path` also a file.

        Where several hyper-parameters are left, those of `best("loss")` are drawn.
        """
        from fedtempo.report.history_figure import measure_figure

        return measure_figure(self, measure, axes=ax, path=None if path is None else Path(path))

    def __repr__(self) -> str:
        from fedtempo.report.history_tables import headline

        dataset = self.dataset
        times = dataset["time"].values
        lines = [f"<fedtempo.History: {headline(self)}>"]
        lines += [f"  {name:<12} {_listed(dataset[name])}" for name in ("scheme", "weights", *self.hyper, "seed")]
        lines.append(f"  {'time':<12} {len(times)} points from {times[0]:g} to {times[-1]:g}")
        lines.append(f"  {'measures':<12} {', '.join(self.measures)}")
        runs, gone, open_ = self.diverged.size, int(self.diverged.sum()), int(self.unfinished.sum())
        state = "finished" if self.finished and not open_ else f"not finished ({open_} without a final value)"
        lines.append(f"  {'runs':<12} {runs}, {gone} diverged, {state}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from fedtempo.report.history_tables import html_table

        return f"<pre>{html.escape(repr(self))}</pre>{html_table(self.summary())}{self.dataset._repr_html_()}"


def _upwards(measure: str, highest: bool | None) -> bool:
    return "accuracy" in measure if highest is None else highest


def _must_exist(path: Path, what: str) -> None:
    if not path.exists():
        raise DataMissing(f"{path}: no such file; give {what}")
    if path.is_dir():
        raise InputError(f"{path}: a folder; give {what}")


def _position(values: xr.DataArray, name: str, wanted: Any) -> int:
    """Where a coordinate has a value, or what it has instead."""
    there = np.atleast_1d(values.values)
    wanted = getattr(wanted, "label", wanted)
    if there.dtype.kind in "iuf":
        try:
            number = float("nan") if wanted is None else float(wanted)
        except (TypeError, ValueError):
            number, there = 0.0, there[:0]
        same = np.isclose(there.astype(float), number, rtol=_CLOSE, atol=0.0, equal_nan=True)
    else:
        same = np.array([str(value) == str(wanted) for value in there], dtype=bool)
    if not same.any():
        raise InputError(f"{name} has no value {wanted!r}; it has {_listed(values)}")
    if there.dtype.kind in "iuf" and same.sum() > 1:
        return int(np.argmin(np.where(same, np.abs(there.astype(float) - number), np.inf)))
    return int(np.argmax(same))


def _listed(values: xr.DataArray, most: int = 12) -> str:
    items = [f"{v:g}" if isinstance(v, float) else str(v) for v in np.atleast_1d(values.values).tolist()]
    return ", ".join(items) if len(items) <= most else f"{', '.join(items[: most - 2])}, …, {items[-1]}"


def _told(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in where.items())


def _where(values: xr.DataArray, known: xr.DataArray) -> xr.DataArray:
    """Values where they are known, elsewhere nothing: NaN, or no text."""
    return values.where(known, "" if values.dtype.kind in "UOT" else np.nan).transpose(*values.dims)


def _renamed(dataset: xr.Dataset, change: Callable[[str], str]) -> xr.Dataset:
    names = {str(name) for name in (*dataset.variables, *dataset.dims)}
    return dataset.rename({name: change(name) for name in names if change(name) != name})


def _attributes_as_text(dataset: xr.Dataset) -> xr.Dataset:
    """Attributes that NetCDF would change (lists of one, truth values, nothing) as JSON, their names kept."""
    odd = [n for n, v in dataset.attrs.items() if isinstance(v, bool) or not isinstance(v, str | int | float)]
    if not odd:
        return dataset.copy()
    told = {n: json.dumps(dataset.attrs[n], default=lambda v: v.tolist()) for n in odd}
    return dataset.assign_attrs({**told, "json_attributes": json.dumps(odd)})


def _attributes_from_text(dataset: xr.Dataset) -> xr.Dataset:
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in dataset.attrs.items()}
    for name in json.loads(plain.pop("json_attributes", "[]")):
        plain[name] = json.loads(plain[name])
    renewed = dataset.copy()
    renewed.attrs = plain
    return renewed
