"""Numbers as DataFrames of pandas: what an object's `table()` returns.

Columns have the names of the JSON documents. Numbers are numbers: what there is not is missing (NaN, or `pd.NA` among
whole numbers), and what is infinite is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from fedtempo.clock.cycle import Cycle
    from fedtempo.clock.timeline import Timeline
    from fedtempo.planning.compare import Plan, SchemePlan
    from fedtempo.planning.recommendation import Choice, Recommendation
    from fedtempo.simulation.history.history import History
    from fedtempo.simulation.history.model import Model
    from fedtempo.simulation.history.summary import Summary
    from fedtempo.theory.bounds import Bound
    from fedtempo.theory.document import Theory
    from fedtempo.theory.tables import Quantities
    from fedtempo.weighting.long_run import Participation
    from fedtempo.weighting.weights import Weights

Record = Mapping[str, Any]


def plan_frame(plan: Plan) -> pd.DataFrame:
    """A row a scheme."""
    made = pd.DataFrame([_scheme(one) for one in plan.schemes])
    for name in ("window", "practical_window", "max_delay_bound"):
        made[name] = _counts(getattr(one, name) for one in plan.schemes)
    return made


def _scheme(one: SchemePlan) -> Record:
    values = None if one.weights is None else one.weights.values[-1]
    found = {
        "scheme": one.scheme.label,
        "rounds_per_time": one.rounds_per_time,
        "updates_per_time": one.updates_per_time,
        "idle_share": one.idle_share,
        "mean_delay": one.mean_delay,
        "max_delay": one.max_delay,
        "max_delay_exact": one.max_delay_exact,
        "max_delay_bound": one.max_delay_bound,
        "server_step": one.step,
        "server_step_per_time": _number(one.server_step_per_time),
        "window": one.window,
        "practical_window": one.practical_window,
        "min_weight": np.nan if values is None else float(values.min()),
        "max_weight": np.nan if values is None else float(values.max()),
        "identical_bias": one.identical_bias,
        "identical_chi2": np.inf if one.identical_chi2 is None else one.identical_chi2,
    }
    given = one.over_optimal is not None and one.over_optimal.noise is not None
    found |= {name: _number(value) for name, value in one.ratios.items() if given or name.endswith("_noise")}
    if one.costs is not None:
        found |= asdict(one.costs.work)
        always = {name: value for name, value in asdict(one.costs).items() if name != "work"}
        found |= {f"always_there_{name}": value for name, value in always.items()}
    return found


def scheme_frame(one: SchemePlan) -> pd.DataFrame:
    """A row a client."""
    times, missing = one.run.times, np.full(one.run.times.num_clients, np.nan)
    return pd.DataFrame(
        {
            "client": range(times.num_clients) if times.names is None else list(times.names),
            "mean_time": times.mean_time,
            "importance": one.run.importance.values,
            "participation": one.run.participation.share,
            "weight": missing if one.weights is None else one.weights.values[-1],
            "expected_weight": missing if one.expected_weights is None else one.expected_weights,
        }
    )


def timeline_frame(line: Timeline) -> pd.DataFrame:
    """A row an update."""
    number, numerator, denominator = line.round_of_update, line.unit.numerator, line.unit.denominator
    ends = line.ends.astype(np.float64) * numerator / denominator
    starts = np.concatenate([[float(line.start * line.unit)], ends[:-1]]) if len(ends) else ends
    place = number - line.first_round
    return pd.DataFrame(
        {
            "round": number,
            "round_start": starts[place],
            "round_end": ends[place],
            "client": line.client,
            "job": line.job,
            "base_version": line.base,
            "delay": line.staleness,
            "draws": np.ones_like(line.client) if line.draws is None else line.draws,
        }
    )


def recommendation_frame(made: Recommendation, *, every: bool = False) -> pd.DataFrame:
    """A row a scheme at its best rate, the best first; with `every` a row a scheme and rate that was trained."""
    found = made.cells if every else made.choices
    rows = [{**_trained(one), **({} if made.prior is None else _predicted(made, one))} for one in found]
    frame = pd.DataFrame(rows)
    for name in ("rounds", "updates") if made.prior is not None else ():
        frame[name] = _counts(row[name] for row in rows)
    return frame


def _trained(one: Choice) -> dict[str, Any]:
    return {
        "scheme": one.scheme.label,
        "local_lr": one.local_lr,
        "loss": one.loss,
        "excess": one.excess,
        "error": one.error,
        "seeds": one.seeds,
        "trained": one.trained,
        "behind_low": one.behind.low,
        "behind_high": one.behind.high,
        "why": one.why,
    }


def _predicted(made: Recommendation, one: Choice) -> dict[str, Any]:
    """What the pilot said of the scheme, and of its rate where that was among those predicted."""
    found = next((said for said in made.predictions if said.scheme.label == one.scheme.label), None)
    known: list[float] = [] if found is None else found.lr.tolist()
    place = next((k for k, rate in enumerate(known) if math.isclose(rate, one.local_lr)), None)
    parts = ("progress", "noise", "heterogeneity", "drift")
    return {
        "predicted_loss": one.predicted,
        "rounds": None if found is None else found.num_rounds,
        "updates": None if found is None else found.num_updates,
        "server_step": np.nan if found is None else found.step,
        "stability_limit": made.limits[one.scheme.label].lr if one.scheme.label in made.limits else np.nan,
        "proven_lr": np.nan if found is None else found.proven_lr,
        "proven_loss": np.nan if found is None else found.proven_loss,
        **{name: np.nan if place is None else float(getattr(found, name)[place]) for name in parts},
    }


def summary_frame(summary: Summary) -> pd.DataFrame:
    """A row a scheme and weight rule."""
    rows = []
    for row in summary.rows:
        numbers = asdict(row)
        head = {name: numbers.pop(name) for name in ("scheme", "weights")}
        rows.append({**head, **numbers.pop("chosen"), **numbers.pop("metrics"), **numbers})
    return pd.DataFrame(rows)


def history_frame(history: History, *, target: float | None = None) -> pd.DataFrame:
    """The summary, one after the other where there are several settings."""
    if not history.settings:
        return summary_frame(history.summary(target=target))
    parts = []
    for setting, one in history.split().items():
        values = setting if isinstance(setting, tuple) else (setting,)
        made = summary_frame(one.summary(target=target))
        for place, (name, value) in enumerate(zip(history.settings, values, strict=True)):
            made.insert(place, name, value)
        parts.append(made)
    return pd.concat(parts, ignore_index=True)


def model_frame(model: Model) -> pd.DataFrame:
    """A row an array."""
    return pd.DataFrame(model.leaves(), columns=["name", "kind", "shape", "dtype", "size", "bytes"])


def quantities_frame(found: Quantities) -> pd.DataFrame:
    """A row a quantity."""
    rows = []
    for symbol, name, value in found.listed():
        numbers = dict.fromkeys(("value", "min", "max", "mean"), np.nan)
        if isinstance(value, np.ndarray):
            numbers |= {"min": float(value.min()), "max": float(value.max()), "mean": float(value.mean())}
        elif isinstance(value, int | float):
            numbers["value"] = float(value)
        rows.append({"symbol": symbol, "name": name, **numbers})
    return pd.DataFrame(rows)


def bound_frame(found: Bound) -> pd.DataFrame:
    """A row a term."""
    from fedtempo.report.theory_tables import TERMS, TOTALS

    rows = [{"name": name, "meaning": TERMS[name], "value": _number(value)} for name, value in found.terms.items()]
    for name, _, meaning in TOTALS:
        rows.append({"name": name, "meaning": meaning, "value": _number(getattr(found, name))})
        if name == "theorem_1":
            printed = {"name": "theorem_1_as_printed", "meaning": "with the paper's constants"}
            rows.append({**printed, "value": found.as_printed.total})
    return pd.DataFrame(rows)


def theory_frame(theory: Theory) -> pd.DataFrame:
    """What is known of every scheme, one after the other."""
    parts: list[pd.DataFrame] = []
    for one in theory.schemes:
        made = [quantities_frame(one.quantities)]
        made += [] if one.bound is None else [bound_frame(one.bound)]
        for part in made:
            part.insert(0, "scheme", one.scheme.label)
        parts += made
    return pd.concat(parts, ignore_index=True)


def weights_frame(weights: Weights) -> pd.DataFrame:
    """A row a client and stage."""
    stages, clients = weights.values.shape
    steps = np.ones(stages) if weights.steps is None else np.array(weights.steps)
    return pd.DataFrame(
        {
            "stage": np.repeat(np.arange(stages), clients),
            "client": np.tile(np.arange(clients), stages),
            "weight": weights.values.reshape(-1),
            "step": np.repeat(steps, clients),
        }
    )


def participation_frame(part: Participation) -> pd.DataFrame:
    """A row a client."""
    found = {"client": np.arange(len(part.share)), "share": part.share}
    found |= {} if part.taking_part is None else {"taking_part": part.taking_part}
    return pd.DataFrame(found | ({} if part.error is None else {"error": part.error}))


def cycle_frame(cycle: Cycle) -> pd.DataFrame:
    """A row a client."""
    clients = np.arange(len(cycle.counts))
    return pd.DataFrame({"client": clients, "contributions": cycle.counts, "share": cycle.counts / cycle.length})


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _counts(values: Iterable[int | None]) -> pd.Series[Any]:
    """Whole numbers, some of them missing; floating where 64 bits do not hold them."""
    known = list(values)
    if all(value is None or value < 2**63 for value in known):
        return pd.Series(known, dtype="Int64")
    return pd.Series([_number(value) for value in known])


FRAMES: dict[str, Callable[..., pd.DataFrame]] = {
    "Bound": bound_frame,
    "Cycle": cycle_frame,
    "History": history_frame,
    "Model": model_frame,
    "Participation": participation_frame,
    "Plan": plan_frame,
    "Quantities": quantities_frame,
    "Recommendation": recommendation_frame,
    "SchemePlan": scheme_frame,
    "Summary": summary_frame,
    "Theory": theory_frame,
    "Timeline": timeline_frame,
    "Weights": weights_frame,
}
"""What makes the DataFrame of an object, by its class."""
