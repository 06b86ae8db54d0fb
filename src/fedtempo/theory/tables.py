"""Every quantity of tables 1 and 2 (and of the appendix's list) that needs no model, by name: `quantities`.

Symbols and names are listed by `Quantities.rows`; T_i^n is `remaining_times`; R, Σ, P and U need losses and come
with the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedtempo import display
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import Exact
from fedtempo.clock.timeline import Timeline
from fedtempo.clock.times import ClientTimes, Floats
from fedtempo.display import Shown, frame_of, one_line
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme, without_options
from fedtempo.schemes.timelines import weights_of
from fedtempo.theory.data_types import DataTypes, TypeWeights
from fedtempo.theory.expected import AnyWeights, Expected, expected_from_scheme, expected_from_timeline, resolved
from fedtempo.weighting.long_run import LongRun
from fedtempo.weighting.weight_rules import WeightRule, weight_rule
from fedtempo.weighting.weights import Weights

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SHOWN = 6
"""Up to how many values a table row lists."""


@dataclass(frozen=True, eq=False, repr=False)
class Quantities(Shown):
    """What clients and rounds amount to, without a model; ``print`` shows the table of ``fedtempo theory``.

    Example:
        >>> found = ft.theory.quantities(scheme=ft.FedFix(1), times=ft.FixedTimes([4, 2, 1]))
        >>> found.table().set_index("name").value[["num_rounds", "max_bias", "max_delay", "mean_delay", "window"]]
        name
        num_rounds    4.000000
        max_bias      0.000000
        max_delay     3.000000
        mean_delay    0.714286
        window        4.000000
        Name: value, dtype: float64
    """

    importance: Floats
    """[clients] p_i."""
    weights: Floats | None
    """[clients] d_i; None where they change with the stage."""
    expected: Expected
    """q_i(n), α, β, γ_i, τ, ρ, W, N."""
    types: DataTypes
    """Q_j."""
    by_type: TypeWeights
    """r_j, s_j(n), χ²."""
    mean_delay: float
    """Mean of n − ρ_i(n) over updates."""
    mean_time: Floats | None
    """[clients] E[T_i], where the times were given."""
    round_time: float
    """Mean of Δt^n."""
    label: str | None = None
    """Of the scheme, where it was given."""

    @property
    def max_bias(self) -> float:
        """Max |q̃_i/p_i − 1|."""
        return float(np.abs(self.expected.normalised_run / self.importance - 1.0).max())

    @property
    def chi_squared_mean(self) -> float:
        """Mean of χ_n² over the N rounds."""
        return float(self.expected.rounds @ self.by_type.chi_squared / self.expected.num_rounds)

    def rows(self) -> list[tuple[str, str, str]]:
        """(symbol, name, value) for a table."""
        return [(symbol, name, _text(value)) for symbol, name, value in self.listed()]

    def to_dict(self) -> dict[str, Any]:
        """The same by name, as JSON can hold it; an infinite value is None."""
        return {name: _plain(value) for _, name, value in self.listed()}

    def table(self) -> pd.DataFrame:
        """A row a quantity: `symbol`, `name`, and its `value`, or `min`, `max` and `mean` of one value a client."""
        return frame_of(self)

    def plot(self, path: str | Path | None = None, *, style: str = "light") -> Figure:
        """How much each client counts, and its weight; with `path` also a file, SVG, PNG or PDF by its ending."""
        return display.quantities_figure(self, path=path, style=style)

    def __repr__(self) -> str:
        q = self.expected
        return one_line(
            "Quantities",
            f"{self.label or 'a run'} with {q.num_clients} clients over {q.num_rounds} rounds, from the "
            f"{'timeline' if q.source == 'timeline' else 'law'}: α {q.co_participation:.4g}, β {q.weight_spread:.4g}, "
            f"τ {q.max_delay}, W {q.window}",
        )

    def listed(self) -> list[tuple[str, str, object]]:
        """(symbol, name, value): a number, an array over clients or types, or None."""
        q, s = self.expected, self.by_type
        taking = q.weights[q.weights > 0]
        return [
            ("M", "num_clients", q.num_clients),
            ("J", "num_types", self.types.num_types),
            ("N", "num_rounds", q.num_rounds),
            ("p_i", "importance", self.importance),
            ("d_i", "weights", self.weights),
            ("T_i", "mean_time", self.mean_time),
            ("Δt^n", "mean_round_time", self.round_time),
            ("", "kinds_of_rounds", len(q.rounds)),
            ("", "empty_rounds", float(q.rounds[q.total == 0].sum())),
            ("min q_i(n)", "min_weight", float(taking.min()) if taking.size else 0.0),
            ("max q_i(n)", "max_weight", float(q.weights.max())),
            ("max q̃_i(n)", "max_normalised_weight", float(q.normalised.max())),
            ("q_i", "expected_weight", q.expected_weight),
            ("q̃_i", "normalised_expected_weight", q.normalised_run),
            ("max |q̃_i/p_i − 1|", "max_bias", self.max_bias),
            ("r_j", "type_importance", s.type_importance),
            ("s_j", "type_expected_weight", s.expected_weight),
            ("s̃_j", "type_normalised_expected_weight", s.normalised_run),
            ("mean χ_n²", "chi_squared_mean", self.chi_squared_mean),
            ("max χ_n²", "chi_squared_max", float(s.chi_squared.max())),
            ("χ²", "chi_squared", s.chi_squared_run),
            ("α", "co_participation", q.co_participation),
            ("β", "weight_spread", q.weight_spread),
            ("max γ_i(n)", "max_gamma", 0.0 if q.gamma is None else float(q.gamma.max())),
            ("τ", "max_delay", q.max_delay),
            ("", "mean_delay", self.mean_delay),
            ("ρ", "max_total_weight", q.max_total_weight),
            ("W", "window", q.window),
        ]


def quantities(
    *,
    timeline: Timeline | None = None,
    weights: AnyWeights | None = None,
    scheme: Scheme | None = None,
    times: ClientTimes | None = None,
    importance: Iterable[Exact] | Importance | None = None,
    types: DataTypes | Sequence[object] | None = None,
    rounds: int | None = None,
    until: Exact | None = None,
    co_participation: float | None = None,
    seed: int = 0,
) -> Quantities:
    """What happened in a `timeline`, or what is to be expected of a `scheme` with clients' `times`.

    With a timeline, `weights` are d_i; they may be left to a rule if scheme and times are given too. `types` are labels
    of the clients' data, all different unless given. `rounds` or `until` set N for the stationary law.

    Example:
        >>> times = ft.FixedTimes.spread(10, 80)
        >>> found = ft.theory.quantities(scheme=ft.FedFix("1/2"), times=times)  # what is to be expected
        >>> found.expected.max_delay, found.expected.window
        (1, 2)
        >>> line = ft.timeline(ft.AsyncFedAvg(), times, until=20)
        >>> d = ft.weights(ft.AsyncFedAvg(), times, rule="identical")
        >>> happened = ft.theory.quantities(timeline=line, weights=d)
        >>> round(happened.max_bias, 2)  # some client counts so much more than it should
        1.37
    """
    if timeline is None and (scheme is None or times is None):
        raise InputError("quantities need a timeline with its weights, or a scheme with times")
    clients = timeline.num_clients if timeline is not None else times.num_clients  # type: ignore[union-attr]
    p = Importance(importance.exact if isinstance(importance, Importance) else importance, clients)
    kinds = types if isinstance(types, DataTypes) else None
    kinds = kinds or (DataTypes.all_different(clients) if types is None else DataTypes(types))  # type: ignore[arg-type]
    run = None if scheme is None or times is None else LongRun(without_options(scheme).waiting, times, p, seed)
    if timeline is not None:
        d = _given(scheme, run, weights)
        expected = expected_from_timeline(timeline, d, co_participation=co_participation)
        delay = float(timeline.staleness.mean()) if timeline.num_updates else 0.0
        length = float(timeline.duration) / timeline.num_rounds
    else:
        assert scheme is not None and times is not None  # noqa: PT018
        assert run is not None
        d = resolved(scheme, run, "time-based" if weights is None else weights)
        expected = expected_from_scheme(
            scheme, times, p, d, rounds=rounds, until=until, co_participation=co_participation, seed=seed
        )
        delay, length = run.mean_delay, 1.0 / run.rounds_per_time
    changing = isinstance(d, Weights) and d.num_stages > 1
    return Quantities(
        importance=p.values,
        weights=None if changing else np.asarray(d, dtype=np.float64),
        expected=expected,
        types=kinds,
        by_type=TypeWeights.of(kinds, expected, p.values),
        mean_delay=delay,
        mean_time=None if times is None else times.mean_time,
        round_time=length,
        label=None if scheme is None else scheme.label,
    )


def _given(scheme: Scheme | None, run: LongRun | None, weights: AnyWeights | None) -> Weights | ArrayLike:
    """Weights for a timeline: as given, or by a rule where scheme and times say what it needs."""
    if weights is not None and not isinstance(weights, (str, WeightRule)):
        return weights
    if scheme is None or run is None:
        raise InputError(
            f"weights: {weights!r}; with a timeline alone give one d_i per client, or scheme and times too"
        )
    return weights_of(scheme, run, weight_rule("time-based" if weights is None else weights))


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, np.ndarray):
        if len(value) <= _SHOWN:
            return ", ".join(f"{v:.4g}" for v in value.tolist())
        return f"{value.min():.4g} to {value.max():.4g}, mean {value.mean():.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and not np.isfinite(value) else value
