"""Section 5.2.2, figure 3: what the amount of local work K does (CIFAR-10, M = 10, F80, K from 1 to 25).

Mean and deviation of the federated loss over the last 5 % of the time, for each seed. The text names the rate 0.0005,
the caption 0.005: statements are judged at both, and for each by itself in the remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np
import xarray as xr

from fedtempo.paper.claims_kinds import Case, Verdict, against, by_group, claim, tried
from fedtempo.paper.claims_runs import IDENTICAL, TIME_BASED, Book, NotRun
from fedtempo.paper.statistics import FEWEST, Estimate, mean_of, paired

RATES = (0.0005, 0.005)
RULES = (IDENTICAL, TIME_BASED)
LAST = 0.05
FLAT = 0.05
_K = "local_steps"


def tail(book: Book, rule: str, rate: float | None) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean and deviation over the last of the time, over (K, seed); without a K of which nothing was run."""
    mean, deviation = book.part("fig3", "cifar10").at("Async", rule, rate).tail(LAST)
    if _K not in mean.dims:
        raise NotRun(f"{_K} is not a dimension: run several amounts of local work")
    there = mean.notnull().any("seed").values
    if not there.any():
        raise NotRun(f"{rule} weights were not carried to the end at local_lr {rate:g}")
    mean, deviation = mean.isel({_K: there}), deviation.isel({_K: there})
    return mean.sortby(_K).transpose(_K, "seed"), deviation.sortby(_K).transpose(_K, "seed")


def _step(values: xr.DataArray, high: int, low: int) -> Estimate:
    """The difference between two places along K."""
    return paired(values.values[high], values.values[low])


def _means(values: xr.DataArray) -> list[float]:
    """For each K the mean over the seeds that have a value; ∞ where one of them diverged."""
    return [float(row[~np.isnan(row)].mean()) for row in values.values]


def _each(book: Book, measure: Callable[[str, float], Iterator[Case]]) -> Iterator[Case]:
    """The cases of each rate and weight rule."""
    for rate in RATES:
        for rule in RULES:
            for case in tried(rule, partial(measure, rule, rate)):
                yield case.moved(group=f"local_lr {rate:g}")


@claim(
    10,
    "section 5.2.2, figure 3",
    "With more local work K the loss at the end first falls and then rises.",
    "loss at the smallest and at the largest K − at the best K > 0, the best K being neither; fails if every other K "
    "is significantly above one of the ends",
    remark=by_group,
)
def falls_then_rises(book: Book) -> Iterator[Case]:
    """Both ends against the lowest mean, for each rate and weight rule."""

    def ends(rule: str, rate: float) -> Iterator[Case]:
        values, _ = tail(book, rule, rate)
        amounts, means = values[_K].values, _means(values)
        if len(amounts) < 3:
            raise NotRun("fewer than three K were run")
        best = int(np.argmin(means))
        for end, word in ((0, "falls"), (len(amounts) - 1, "rises")):
            if end != best:
                name = f"{rule}, {word}: K = {amounts[end]} against {amounts[best]}"
                yield Case.positive(name, _step(values, end, best))
                continue
            others = [_step(values, k, best) for k in range(len(amounts)) if k != best]
            verdict: Verdict = "fails" if all(other.above for other in others) else "undecided"
            nearest = min(others, key=lambda other: other.number)
            flipped = Estimate(-nearest.number, *_turned(nearest), nearest.seeds)
            yield Case.of(f"{rule}, {word}", flipped, verdict, f"lowest at the end, K = {amounts[best]}")

    return _each(book, ends)


def _turned(found: Estimate) -> tuple[float | None, float | None]:
    return (None if found.high is None else -found.high), (None if found.low is None else -found.low)


@claim(
    11,
    "section 5.2.2, figure 3",
    "The loss wobbles more at the end with every increase of K.",
    "smallest step of the deviation over the last 5 % of the time between neighbouring K; holds if the mean over seeds "
    "increases at every step (rank correlation 1), fails if a decrease is significant",
    remark=by_group,
)
def deviation_grows(book: Book) -> Iterator[Case]:
    """Neighbouring K, for each rate and weight rule."""

    def steps(rule: str, rate: float) -> Iterator[Case]:
        _, values = tail(book, rule, rate)
        amounts = values[_K].values
        if len(amounts) < 2:
            raise NotRun("fewer than two K were run")
        found = [_step(values, k, k - 1) for k in range(1, len(amounts))]
        verdict: Verdict = "holds" if all(f.number > 0 for f in found) else "undecided"
        verdict = "fails" if any(f.below for f in found) else verdict
        least = int(np.argmin([f.number for f in found]))
        note = f"K = {amounts[least]} to {amounts[least + 1]}; rank correlation {_rank_correlation(values):.3g}"
        seeds = min(f.seeds for f in found)
        smallest = found[least]
        yield Case.of(rule, Estimate(smallest.number, smallest.low, smallest.high, seeds), verdict, note)

    return _each(book, steps)


def _rank_correlation(values: xr.DataArray) -> float:
    """Spearman's, of K and the mean over seeds; equal means share their rank."""
    means = np.array(_means(values))
    ranks = np.array([np.mean(np.flatnonzero(np.sort(means) == m)) for m in means])
    if len(set(ranks.tolist())) < 2:
        return 0.0
    return float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])


def _rules_apart(book: Book, above: float, *, deviation: bool) -> Iterator[Case]:
    """Time-based − identical for every K above a bound, for each rate."""

    def at_each(rate: float) -> Iterator[Case]:
        pair = [tail(book, rule, rate)[int(deviation)] for rule in (TIME_BASED, IDENTICAL)]
        time_based, identical = xr.align(*pair, join="inner")
        amounts = [k for k in time_based[_K].values if k > above]
        if not amounts:
            raise NotRun(f"no K above {above:g} was run")
        for k in amounts:
            x, y = time_based.sel({_K: k}), identical.sel({_K: k})
            yield Case.positive(f"K = {k}", paired(x.values, y.values), against(x, y))

    for rate in RATES:
        for case in tried("time-based − identical", partial(at_each, rate)):
            yield case.moved(group=f"local_lr {rate:g}")


@claim(
    12,
    "section 5.2.2, figure 3",
    "Beyond K = 8 the loss wobbles more with time-based weights.",
    "deviation over the last 5 % of the time, time-based − identical > 0 for every K > 8 that was run",
    remark=by_group,
)
def more_deviation(book: Book) -> Iterator[Case]:
    """Every K above 8."""
    return _rules_apart(book, 8, deviation=True)


@claim(
    13,
    "section 5.2.2, figure 3",
    "Beyond K = 15 the loss is higher with time-based weights.",
    "mean over the last 5 % of the time, time-based − identical > 0 for every K > 15 that was run",
    remark=by_group,
)
def higher_mean(book: Book) -> Iterator[Case]:
    """Every K above 15."""
    return _rules_apart(book, 15, deviation=False)


def _flat(book: Book, rate: float, name: str, which: int) -> Case:
    """The two K that differ most, relative to the smaller K, with identical weights."""
    values = tail(book, IDENTICAL, rate)[which]
    kept = values.isel({_K: (values[_K].values >= 8) & (values[_K].values <= 16)})
    amounts = kept[_K].values
    if len(amounts) < 2:
        raise NotRun("fewer than two K from 8 to 16 were run")
    found = {}
    for a, b in combinations(range(len(amounts)), 2):
        low, high = kept.values[a], kept.values[b]
        if np.isinf(low).any() or np.isinf(high).any():
            return Case(name, verdict="undecided", note=f"a seed diverged at K = {amounts[a]} or {amounts[b]}")
        change = (high - low) / low
        found[a, b] = mean_of(change[~np.isnan(change)])
    found = {pair: estimate for pair, estimate in found.items() if estimate.seeds}
    if not found:
        raise NotRun("no seed has two K from 8 to 16")
    (a, b), most = max(found.items(), key=lambda item: abs(item[1].number))
    verdict: Verdict = "holds" if all(f.inside(-FLAT, FLAT) for f in found.values()) else "undecided"
    verdict = "fails" if any(f.outside(-FLAT, FLAT) for f in found.values()) else verdict
    seeds = min(f.seeds for f in found.values())
    worst = Estimate(most.number, most.low, most.high, most.seeds if seeds >= FEWEST else seeds)
    return Case.of(name, worst, verdict, f"K = {amounts[b]} against {amounts[a]}")


@claim(
    14,
    "section 5.2.2, figure 3",
    "With identical weights the loss hardly changes from K = 8 to K = 16.",
    f"relative difference between any two K from 8 to 16, within ±{100 * FLAT:g} %; the largest is shown; beside it "
    "that of the deviation",
    remark=by_group,
)
def identical_is_flat(book: Book) -> Iterator[Case]:
    """Mean, and deviation beside it."""
    for rate in RATES:
        for name, which in (("mean", 0), ("deviation", 1)):
            for case in tried(name, partial(_flat, book, rate, name, which)):
                yield case.moved(group=f"local_lr {rate:g}", beside=which == 1)


@claim(
    15,
    "section 5.2.2",
    "If the rate is searched for each K, time-based weights always end lower.",
    "mean over the last 5 % of the time, identical − time-based > 0 for every K, each at its best of the rates run",
)
def searched_rates(book: Book) -> Iterator[Case]:
    """Every K."""

    def at_each() -> Iterator[Case]:
        part = book.part("fig3", "cifar10")
        found = {}
        for rule in (IDENTICAL, TIME_BASED):
            rates = part.rates("Async", rule)
            found[rule] = {rate: tail(book, rule, rate)[0] for rate in rates}
        amounts = [{k for values in rates.values() for k in values[_K].values.tolist()} for rates in found.values()]
        for k in sorted(set.intersection(*amounts)):
            (x, rate_x), (y, rate_y) = (_better(found[rule], k) for rule in (IDENTICAL, TIME_BASED))
            note = f"{against(x, y)}; local_lr {rate_x:g} against {rate_y:g}"
            yield Case.positive(f"K = {k}", paired(x.values, y.values), note)

    yield from tried("identical − time-based", at_each)


def _better(rates: dict[float, xr.DataArray], k: int) -> tuple[xr.DataArray, float]:
    """The rate with the fewest diverged seeds, and of those with the lowest mean."""

    def score(item: tuple[float, xr.DataArray]) -> tuple[int, float]:
        values = item[1].sel({_K: k}).dropna("seed")
        left = values.where(~np.isinf(values)).dropna("seed")
        return int(np.isinf(values).sum()), float(left.mean()) if left.size else np.inf

    rate, values = min(((r, v) for r, v in rates.items() if k in v[_K].values), key=score)
    return values.sel({_K: k}), rate


CLAIMS = (falls_then_rises, deviation_grows, more_deviation, higher_mean, identical_is_flat, searched_rates)
