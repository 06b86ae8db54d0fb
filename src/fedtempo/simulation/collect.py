"""From what the units of a study measured to one labelled data set: a `History`."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from fedtempo.simulation.engine.session import Snapshot, Unit
from fedtempo.simulation.history.history import FIXED, KEPT_AS, MODULE, PARAMETER, STATE, History
from fedtempo.simulation.history.model import hide, leaf_paths

if TYPE_CHECKING:
    from fedtempo.simulation.study import Study
    from fedtempo.simulation.units import Units

FORMAT = 1

_LONG_NAMES = {
    "loss": "federated loss",
    "loss_deviation": "deviation of the loss over clients",
    "surrogate_loss": "surrogate loss",
    "surrogate_deviation": "deviation of the surrogate loss over clients",
    "client_loss": "loss of each client",
    "test_loss": "test loss",
    "rounds": "server rounds done",
    "updates": "client updates done",
    "bytes_up": "bytes that clients have sent",
    "bytes_down": "bytes that clients have been sent for these updates",
    "diverged_at": "virtual time at which the run was seen to diverge",
}


class _Cube:
    """Arrays over (scheme, weights, hyper-parameters, seed, …), filled run by run."""

    def __init__(self, study: Study) -> None:
        self._study = study
        axes = [axis for axis in study.axes if axis.listed]
        self.dims = ("scheme", "weights", *(axis.name for axis in axes), "seed")
        sizes = [len(study.schemes), len(study.rules), *(len(axis.values) for axis in axes), len(study.seeds)]
        self.shape = tuple(sizes)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.trailing: dict[str, tuple[str, ...]] = {}
        self.kept_as: dict[str, str] = {}
        """The type of what is not floating, where it matters."""

    def place(self, unit: Unit, seed: int, run: int) -> tuple[int, ...]:
        """Where a run of a unit belongs."""
        rule, combination = unit.runs[run]
        chosen = self._study.static[unit.static] | self._study.traced[combination]
        inner = [axis.values.index(chosen[axis.name]) for axis in self._study.axes if axis.listed]
        return (unit.scheme, rule, *inner, self._study.seeds.index(unit.seeds[seed]))

    def put(self, name: str, where: tuple[int, ...], value: NDArray[Any], trailing: tuple[str, ...]) -> None:
        if name not in self.arrays:
            self.arrays[name] = np.full((*self.shape, *np.shape(value)), np.nan, dtype=_floating(value))
            self.trailing[name] = trailing
        self.arrays[name][where] = value


def _floating(value: NDArray[Any]) -> np.dtype[Any]:
    found = np.asarray(value).dtype
    return found if np.issubdtype(found, np.floating) else np.dtype(np.float64)


def collected(study: Study, units: Units, outcomes: Sequence[Snapshot | None], seconds: Mapping[str, float]) -> History:
    """The history of what has been run so far; the rest is NaN."""
    cube = _Cube(study)
    time = np.array([float(t) for t in study.measured_at])
    problem = study.problem
    leaves = [PARAMETER + path for path in leaf_paths(problem.parameter_shapes)]
    leaves += [STATE + path for path in leaf_paths(problem.state_shapes)]
    shape = (len(study.schemes), len(study.seeds), study.points)
    counted = {name: _Mean(shape) for name in _COUNTS}
    finished = True
    for spec, outcome in zip(units.specs, outcomes, strict=True):
        if outcome is None:
            finished = False
            continue
        finished = finished and bool(outcome["finished"])
        done, updates = int(outcome["points_done"]), outcome["table:updates"]
        for seed, run in np.ndindex(len(spec.unit.seeds), len(spec.unit.runs)):
            where = cube.place(spec.unit, seed, run)
            for name in _COUNTS:
                counted[name].add((where[0], where[-1]), outcome[f"table:{name}"][:done])
            cost = units.traffic[spec.unit.scheme, spec.unit.static]
            for name, up_to in cost.totals(updates[:done], outcome["table:rounds"][:done]).items():
                cube.put(name, where, np.append(up_to, np.full(study.points - done, np.nan)), ("time",))
            for key, table in outcome.items():
                if key.startswith("table:") and (name := key.removeprefix("table:")) not in _COUNTS:
                    trailing = ("time", "client") if name == "client_loss" else ("time",)
                    cube.put(name, where, table[:, seed, run], trailing)
            at = int(outcome["diverged"][seed, run])
            cube.put("diverged_at", where, np.float64(np.nan if at < 0 else time[at]), ())  # type: ignore[arg-type]
            for k, name in enumerate(leaves):
                if f"model:{k}" in outcome:
                    leaf = outcome[f"model:{k}"][seed, ..., run]
                    if leaf.dtype.kind != "f":
                        cube.kept_as[name] = leaf.dtype.name
                    if at >= 0:  # how far it went on depends on the others
                        leaf = np.full(leaf.shape, np.nan, dtype=_floating(leaf))
                    own = tuple(f"{name.removeprefix(PARAMETER)}_{d}" for d in range(leaf.ndim))
                    cube.put(name, where, leaf, own)
    for name in _ALWAYS:
        if name not in cube.arrays:
            cube.put(name, (0,) * len(cube.shape), np.full(study.points, np.nan), ("time",))
    counts = {name: mean.values for name, mean in counted.items()}
    dataset = _with_module(_dataset(study, cube, counts, time, finished, seconds), study)
    state = jax.tree.structure(problem.state_shapes) if problem.form.stateful else None
    return History(dataset, structure=jax.tree.structure(problem.parameter_shapes), state_structure=state)


def _with_module(dataset: xr.Dataset, study: Study) -> xr.Dataset:
    """With what a PyTorch module's state dict has beside what was trained."""
    names = study.problem.module_names
    if names is None:
        return dataset
    for name, (by_seed, array) in study.problem.fixed_arrays(study.seeds).items():
        held = hide(name)
        dims = tuple(f"{FIXED}{held}_{d}" for d in range(array.ndim - by_seed))
        about = {"long_name": f"{name}, not trained"} | ({} if array.dtype.kind == "f" else {KEPT_AS: array.dtype.name})
        dataset[FIXED + held] = (("seed", *dims) if by_seed else dims, array, about)
    dataset.attrs[MODULE] = json.dumps(names)
    return dataset


class _Mean:
    """What is the same in all runs of a scheme and seed, or its mean where clients are chosen by trained models."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total, self._runs = np.zeros(shape), np.zeros(shape)

    def add(self, where: tuple[int, int], values: NDArray[Any]) -> None:
        self._total[where][: len(values)] += values
        self._runs[where][: len(values)] += 1

    @property
    def values(self) -> NDArray[np.float64]:
        return np.where(self._runs > 0, self._total / np.maximum(self._runs, 1), np.nan)


_COUNTS = ("rounds", "updates")
_ALWAYS = ("loss", "loss_deviation", "surrogate_loss", "surrogate_deviation")


def _dataset(
    study: Study,
    cube: _Cube,
    counted: Mapping[str, NDArray[np.float64]],
    time: NDArray[np.float64],
    finished: bool,
    seconds: Mapping[str, float],
) -> xr.Dataset:
    coords: dict[str, Any] = {
        "scheme": [scheme.label for scheme in study.schemes],
        "weights": [rule.label for rule in study.rules],
    }
    for axis in study.axes:
        held = [np.nan if v is None else v for v in axis.values]
        coords[axis.name] = held if axis.listed else held[0]
    coords |= {"seed": list(study.seeds), "time": ("time", time, {"long_name": "virtual time"})}
    variables: dict[str, Any] = {}
    known = list(_LONG_NAMES)
    for name in sorted(cube.arrays, key=lambda n: (n not in known, known.index(n) if n in known else 0, n)):
        about = {"long_name": _LONG_NAMES.get(name, name.replace("_", " "))}
        if name in cube.kept_as:
            about[KEPT_AS] = cube.kept_as[name]
        variables[name] = ((*cube.dims, *cube.trailing[name]), cube.arrays[name], about)
    for name, values in counted.items():
        variables[name] = (("scheme", "seed", "time"), values, {"long_name": _LONG_NAMES[name]})
    return xr.Dataset(variables, coords=coords, attrs=_attributes(study, finished, seconds))


def _attributes(study: Study, finished: bool, seconds: Mapping[str, float]) -> dict[str, Any]:
    device = jax.devices()[0]
    own = {scheme.label: rule.label for scheme in study.schemes if (rule := scheme.options.own_weights) is not None}
    return {
        "format": FORMAT,
        "kind": "fedtempo history",
        "problem": json.dumps(study.problem.spec()),
        "configuration": json.dumps(study.configuration()),
        "versions": json.dumps({name: _version(name) for name in _libraries(study)}),
        "seeds": json.dumps(list(study.seeds)),
        "hardware": f"{device.platform}: {device.device_kind}, {platform.machine()}, {platform.system()}",
        "engine": study.engine,
        "dtype": study.dtype,
        "surrogate": study.surrogate.label,
        **({"own_weights": json.dumps(own)} if own else {}),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": int(finished),
        **{name: float(value) for name, value in seconds.items()},
    }


def _libraries(study: Study) -> list[str]:
    """Whose versions may matter to the numbers."""
    names = ["fedtempo", "jax", "numpy", "optax", "xarray"]
    if study.problem.module_names is None:
        return names
    return [*names, "torch", *(["torchax"] if study.engine != "torch" else [])]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        from fedtempo import __version__

        return __version__ if name == "fedtempo" else "unknown"
