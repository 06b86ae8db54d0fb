"""Measured points as they come, for whoever wants to draw or keep them elsewhere.

    on_measure(run, time, values)     run: a RunInfo; time: virtual; values: measures by name, rounds, updates, bytes

Every call of `simulate` tells every point of every run once, those that earlier calls have measured first, and the
points of a run in the order of time: what is told does not depend on where a study was stopped. A run that has
diverged is told once more, with NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from fedtempo.errors import InputError
from fedtempo.grid import RATE
from fedtempo.simulation.run_info import RunInfo

if TYPE_CHECKING:
    from fedtempo.simulation.ledger import OnPoints, Table
    from fedtempo.simulation.study import Study
    from fedtempo.simulation.units import Units

OnMeasure = Callable[[RunInfo, float, Mapping[str, float]], object]
_BY_CLIENT = ("client_loss",)
_COUNTS = ("rounds", "updates")


def listeners(given: Any) -> tuple[OnMeasure, ...]:
    """One function that is told, or several."""
    if given is None:
        return ()
    several = isinstance(given, Iterable) and not isinstance(given, str) and not callable(given)
    found = tuple(given) if several else (given,)
    for one in found:
        if not callable(one):
            raise InputError(
                f"on_measure: {one!r} cannot be called; give a function of (run, time, values), or a sink, as "
                'ft.track.csv("points.csv")'
            )
    return found


@contextmanager
def listening(found: Sequence[OnMeasure]) -> Iterator[None]:
    """At the end those that have a `close` are told that this is all."""
    with ExitStack() as stack:
        for one in found:
            stack.callback(getattr(one, "close", lambda: None))
        yield


def on_points(found: Sequence[OnMeasure], study: Study, units: Units, where: Mapping[str, object]) -> OnPoints | None:
    """What turns the tables of units into calls; `where`: the names of the problem and of the times, if they have."""
    if not found:
        return None
    times = [float(time) for time in study.measured_at]
    told = [0] * len(units.specs)
    runs = [runs_of(study, spec.unit.seeds, spec.unit, where) for spec in units.specs]

    def tell(k: int, table: Table) -> None:
        unit = units.specs[k].unit
        traffic = units.traffic[unit.scheme, unit.static]
        for point in range(told[k], table.points):
            told[k] = point + 1
            counts = {name: float(table.columns[name][point]) for name in _COUNTS}
            shared = counts | {n: float(v) for n, v in traffic.totals(counts["updates"], counts["rounds"]).items()}  # type: ignore[arg-type]
            for (seed, run), info in runs[k].items():
                if 0 <= table.diverged[seed, run] < point:
                    continue
                own = {
                    name: float(column[point][seed, run])
                    for name, column in table.columns.items()
                    if name not in (*_COUNTS, *_BY_CLIENT)
                }
                for listener in found:
                    listener(info, times[point], own | shared)

    return tell


def runs_of(
    study: Study, seeds: Sequence[int], unit: Any, where: Mapping[str, object]
) -> dict[tuple[int, int], RunInfo]:
    """By (seed, run) of a unit, which run of the study it is."""
    found = {}
    for r, (rule, combination) in enumerate(unit.runs):
        numbers = study.static[unit.static] | study.traced[combination]
        shown = {axis.name: numbers[axis.name] for axis in study.axes if axis.listed or axis.name == RATE}
        for s, seed in enumerate(seeds):
            labels = {
                **where,
                "scheme": study.schemes[unit.scheme].label,
                "weights": study.rules[rule].label,
                **shown,
                "seed": seed,
            }
            found[s, r] = RunInfo(labels)
    return found
