"""A history in numbers: every scheme and weight rule at its best hyper-parameters, held to one target.

Unless it is given, the target is the federated loss at which FedAvg (where it is missing, the first scheme) with
time-based weights has gone 95 % of its way from its first value to its final one, rounded up to three digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

from fedtempo.display import Shown, frame_of, one_line

if TYPE_CHECKING:
    import pandas as pd

    from fedtempo.simulation.history.history import History

OWN = "its own"
"""What stands for the weights of a scheme that brings them."""
FAIR = "time-based"
REFERENCE = "FedAvg"
TEST = "test_"
"""How measures on test data begin."""
_WAY = 0.95


@dataclass(frozen=True)
class Row:
    """One scheme and weight rule at its best hyper-parameters; NaN is what is not known."""

    scheme: str
    weights: str
    chosen: Mapping[str, Any]
    loss: float
    loss_over_seeds: float
    loss_over_clients: float
    surrogate: float
    surrogate_over_seeds: float
    accuracy: float
    time_to_target: float
    time_over_seeds: float
    rounds: float
    updates: float
    bias_cost: float
    reached: float
    diverged: int
    runs: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Final values of measures of one's own on test data, by name."""


@dataclass(frozen=True, repr=False)
class Summary(Shown):
    """The rows of a comparison, the target they are held to, and how it was set.

    ``print(summary)`` shows the table and the sentences of ``fedtempo show``.
    """

    rows: tuple[Row, ...]
    target: float
    target_rule: str
    hyper: tuple[str, ...]
    history: History | None = field(default=None, compare=False)
    """What it is of, for the sentences."""

    def table(self) -> pd.DataFrame:
        """A row a scheme and weight rule, with the hyper-parameters that were best and the numbers of `Row`."""
        return frame_of(self)

    def __repr__(self) -> str:
        schemes, number = len({r.scheme for r in self.rows}), len(self.rows)
        return one_line(
            "Summary",
            f"{schemes} scheme{'s' * (schemes != 1)} in {number} row{'s' * (number != 1)}, target "
            f"{self.target:.4g} ({self.target_rule})",
        )

    def row(self, scheme: str, weights: str = "time-based") -> Row | None:
        """The row of a scheme, if there is one."""
        return next((r for r in self.rows if (r.scheme, r.weights) == (scheme, weights)), None)


def summarise(history: History, *, target: float | None = None) -> Summary:
    """Every scheme and weight rule at its best hyper-parameters, held to one target."""
    measures = ("loss_deviation", "surrogate_loss", "test_accuracy", "rounds", "updates", *_own_metrics(history))
    best = history.only(*measures).best("loss")
    level, rule = (float(target), "as given") if target is not None else _target(best)
    own = json.loads(history.dataset.attrs.get("own_weights", "{}"))
    rules = best.dataset["weights"].values.tolist()
    rows = tuple(
        replace(row, weights=OWN) if scheme in own else row
        for scheme in best.dataset["scheme"].values.tolist()
        for row in (_row(history, best, level, scheme, weights) for weights in (rules[:1] if scheme in own else rules))
    )
    fair = {row.scheme: row for row in rows if row.weights == FAIR}
    priced = tuple(replace(row, bias_cost=_cost(row, fair.get(row.scheme))) for row in rows)
    return Summary(priced, level, rule, _chosen(history, best), history)


def _own_metrics(history: History) -> list[str]:
    """Measures on test data beside loss and accuracy."""
    return [name for name in history.measures if name.startswith(TEST) and name not in ("test_loss", "test_accuracy")]


def _chosen(history: History, best: History) -> tuple[str, ...]:
    """The hyper-parameters that are chosen for each scheme and weight rule, here or by `best` before."""
    coords = best.dataset.coords.items()
    earlier = [str(n) for n, c in coords if c.ndim and n not in c.dims and "scheme" in c.dims]
    return tuple(dict.fromkeys((*history.hyper, *earlier)))


def _row(history: History, best: History, level: float, scheme: str, weights: str) -> Row:
    one = best.select(scheme=scheme, weights=weights)
    until = float(one.reached.item())
    seeds = one.dataset.sizes["seed"]
    mean = one.mean()
    runs = history.diverged.sel(scheme=scheme, weights=weights)

    def ends(measure: str) -> tuple[float, float]:
        """Mean and sample deviation over seeds; no mean when one of them diverged."""
        if measure not in one.measures or bool(one.diverged.any()):
            return math.nan, math.nan
        values = one.final(measure)
        return float(values.mean()), float(values.std(ddof=1)) if seeds > 1 else math.nan

    def done(measure: str) -> float:
        known = measure in mean and not math.isnan(until)
        return float(mean[measure].sel(time=until).item()) if known else math.nan

    loss, surrogate, each = ends("loss"), ends("surrogate_loss"), one.time_to(level)
    return Row(
        scheme=scheme,
        weights=weights,
        chosen={name: one.dataset[name].item() for name in _chosen(history, best)},
        loss=loss[0],
        loss_over_seeds=loss[1],
        loss_over_clients=ends("loss_deviation")[0],
        surrogate=surrogate[0],
        surrogate_over_seeds=surrogate[1],
        accuracy=ends("test_accuracy")[0],
        time_to_target=float(one.time_to(level, over="seed").item()),
        time_over_seeds=float(each.std(ddof=1)) if seeds > 1 else math.nan,
        rounds=done("rounds"),
        updates=done("updates"),
        bias_cost=math.nan,
        reached=until,
        diverged=int(runs.sum()),
        runs=int(runs.size),
        metrics={name.removeprefix(TEST): ends(name)[0] for name in _own_metrics(best)},
    )


def _cost(row: Row, fair: Row | None) -> float:
    """By how much of its value the final federated loss is above that of time-based weights."""
    if fair is None or row is fair or row.reached != fair.reached or not fair.loss > 0:
        return math.nan
    return row.loss / fair.loss - 1.0


def _target(best: History) -> tuple[float, str]:
    """The level that the reference scheme comes to on its way, and which scheme that is."""
    dataset, mean, final = best.dataset, best.mean("loss")["loss"], best.final("loss").mean("seed")
    schemes = dataset["scheme"].values.tolist()
    weights = dataset["weights"].values.tolist()
    rule = FAIR if FAIR in weights else weights[0]
    for scheme in sorted(schemes, key=lambda name: name != REFERENCE):
        start = float(mean.sel(scheme=scheme, weights=rule)[0])
        end = float(final.sel(scheme=scheme, weights=rule))
        if end < start and not bool(best.diverged.sel(scheme=scheme, weights=rule).any()):
            level = _up(end + (1.0 - _WAY) * (start - end))
            return level, f"where {scheme} with {rule} weights has gone {_WAY:.0%} of its way"
    return math.nan, "no scheme's loss fell"


def _up(value: float, digits: int = 3) -> float:
    """Rounded up to a few digits, so that the level shown is the level used."""
    if value == 0.0:
        return value
    exact = Decimal(f"{value:.12g}")  # without the last digits of a float, which would round up what is round
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return float((exact / unit).to_integral_value(ROUND_CEILING) * unit)
