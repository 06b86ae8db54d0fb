"""Section 5.2.2, figure 3: what the amount of local work K does (CIFAR-10, M = 10, F80, K from 1 to 25).

Mean and deviation of the federated loss over the last 5 % of the time, for each run. The text names the rate 0.0005,
the caption 0.005: each is judged by itself. Where one holds and the other fails, the statement holds with a correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import xarray as xr

from fedtempo.paper.claims_cost import SERVED, Work
from fedtempo.paper.claims_kinds import Case, Deciding, against, claim, compared, minus, numbers, tried
from fedtempo.paper.claims_rules import Choice, listed, sample
from fedtempo.paper.claims_runs import IDENTICAL, PARTITIONS, TIME_BASED, Book, NotRun, Part, score
from fedtempo.paper.statistics import chance_above, mean_of

RATES = (0.0005, 0.005)
RULES = (IDENTICAL, TIME_BASED)
LAST = 0.05
FLAT = 0.05
FAR = 25_000.0
AMOUNTS = (1, 2, 4, 8, 12, 16, 25)
_K = "local_steps"


_RUNS = ("partition", "seed")


def deciding(
    unit: str, amounts: tuple[int, ...], *, rules: int = 2, rates: int = 2, margin: str = "any difference above 0"
) -> Deciding:
    """Some amounts of local work to the paper's horizon."""
    spoken = "1 to 25" if len(amounts) == 25 else listed([str(k) for k in amounts])
    weights = "identical weights" if rules == 1 else "2 weight rules"
    what = f"K = {spoken}: {SERVED} partitions × {rates} rates × {weights}"
    return Deciding("25 000", unit, margin, what, (Work("cifar10", FAR, SERVED * rates * rules, amounts=amounts),))


def figure(book: Book, beside: str = "") -> Part:
    """The one part of figure 3."""
    return book.part("fig3", "cifar10", beside)


def tail(book: Book, rule: str, rate: float | None, beside: str = "") -> tuple[xr.DataArray, xr.DataArray]:
    """Mean and deviation over the last of the time, over (K, partition, seed); without a K of which nothing was run."""
    mean, deviation = figure(book, beside).at("Async", rule, rate).tail(LAST)
    if _K not in mean.dims:
        raise NotRun(f"{_K} is not a dimension: run several amounts of local work")
    there = mean.notnull().any(_RUNS).values
    if not there.any():
        raise NotRun(f"{rule} weights were not carried to the end at local_lr {rate:g}")
    mean, deviation = mean.isel({_K: there}), deviation.isel({_K: there})
    return mean.sortby(_K).transpose(_K, *_RUNS), deviation.sortby(_K).transpose(_K, *_RUNS)


def _each(book: Book, measure: Callable[[str, float], Iterator[Case]]) -> Iterator[Case]:
    """The cases of each rate and weight rule."""
    for rate in RATES:
        for rule in RULES:
            for case in tried(rule, partial(measure, rule, rate)):
                yield case.moved(group=f"local_lr {rate:g}")


def by_rate(cases: Sequence[Case]) -> str:
    """How many cases are as stated at each rate by itself."""
    groups = dict.fromkeys(case.group for case in cases)
    inside = {name: [case for case in cases if case.group == name] for name in groups}
    counts = {name: sum(case.finding.as_stated for case in found) for name, found in inside.items()}
    return "; ".join(f"at {name}: {counts[name]} of {len(found)} as stated" for name, found in inside.items())


@claim(
    10,
    "section 5.2.2, figure 3",
    "With more local work K the loss at the end first falls and then rises.",
    "loss at the smallest and at the largest K − at the best K > 0, the best K being neither, and chosen on other "
    "runs; the other way round if every other K is above one of the ends",
    deciding("loss over the last 5 %", AMOUNTS),
    remark=by_rate,
)
def falls_then_rises(book: Book) -> Iterator[Case]:
    """Both ends against the lowest mean, for each rate and weight rule."""

    def ends(rule: str, rate: float) -> Iterator[Case]:
        part, (values, _) = figure(book), tail(book, rule, rate)
        amounts = values[_K].values
        if len(amounts) < 3:
            raise NotRun("fewer than three K were run")
        best = int(np.argmin([score(row.where(part.choosing)) for row in values]))
        values = part.judged(values)
        for end, word in ((0, "falls"), (len(amounts) - 1, "rises")):
            if end != best:
                name = f"{rule}, {word}: K = {amounts[end]} against {amounts[best]}"
                yield Case.of(name, compared(part, minus(values[end], values[best])))
                continue
            apart = [minus(values[k], values[end]) for k in range(len(amounts)) if k != end]
            least = max(apart, key=lambda found: chance_above(sample(numbers(found))))
            lowest = min(apart, key=lambda found: mean_of(sample(numbers(found))).number)
            flaws = ("the lowest K is at an end on some runs only",) if bool(lowest.mean() <= 0) else ()
            note = f"lowest at the end, K = {amounts[end]}"
            yield Case.of(f"{rule}, {word}", compared(part, -least, flaws=flaws), note)

    return _each(book, ends)


@claim(
    11,
    "section 5.2.2, figure 3",
    "The loss wobbles more at the end with every increase of K.",
    "every step of the deviation over the last 5 % of the time between neighbouring K > 0; the smallest is shown",
    deciding("deviation over the last 5 %", tuple(range(1, 26))),
    remark=by_rate,
)
def deviation_grows(book: Book) -> Iterator[Case]:
    """Neighbouring K, for each rate and weight rule."""

    def steps(rule: str, rate: float) -> Iterator[Case]:
        _, values = tail(book, rule, rate)
        amounts = values[_K].values
        if len(amounts) < 2:
            raise NotRun("fewer than two K were run")
        found = [minus(values[k], values[k - 1]) for k in range(1, len(amounts))]
        shown = [mean_of(sample(numbers(step))) for step in found]
        least = int(np.argmin([estimate.number for estimate in shown]))
        note = f"K = {amounts[least]} to {amounts[least + 1]}; rank correlation {_rank_correlation(values):.3g}"
        yield Case.of(rule, compared(figure(book), *found), note, shown[least])

    return _each(book, steps)


def _rank_correlation(values: xr.DataArray) -> float:
    """Spearman's, of K and the mean over runs; equal means share their rank."""
    means = np.array([float(row[~np.isnan(row)].mean()) for row in values.values])
    ranks = np.array([np.mean(np.flatnonzero(np.sort(means) == m)) for m in means])
    if len(set(ranks.tolist())) < 2:
        return 0.0
    return float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])


def _rules_apart(book: Book, above: float, beside: str = "", *, deviation: bool) -> Iterator[Case]:
    """Time-based − identical for every K above a bound, for each rate."""

    def at_each(rate: float) -> Iterator[Case]:
        pair = [tail(book, rule, rate, beside)[int(deviation)] for rule in (TIME_BASED, IDENTICAL)]
        time_based, identical = xr.align(*pair, join="inner")
        amounts = [k for k in time_based[_K].values if k > above]
        if not amounts:
            raise NotRun(f"no K above {above:g} was run")
        for k in amounts:
            x, y = time_based.sel({_K: k}), identical.sel({_K: k})
            yield Case.of(f"K = {k}", compared(figure(book, beside), minus(x, y)), against(x, y))

    for rate in RATES:
        for case in tried("time-based − identical", partial(at_each, rate)):
            yield case.moved(group=f"local_lr {rate:g}")


@claim(
    12,
    "section 5.2.2, figure 3",
    "Beyond K = 8 the loss wobbles more with time-based weights.",
    "deviation over the last 5 % of the time, time-based − identical > 0 for every K > 8 that was run",
    deciding("deviation over the last 5 %", (12, 16, 25)),
    remark=by_rate,
)
def more_deviation(book: Book) -> Iterator[Case]:
    """Every K above 8."""
    return _rules_apart(book, 8, deviation=True)


@claim(
    13,
    "section 5.2.2, figure 3",
    "Beyond K = 15 the loss is higher with time-based weights.",
    "mean over the last 5 % of the time, time-based − identical > 0 for every K > 15 that was run",
    deciding("loss over the last 5 %", (16, 25)),
    remark=by_rate,
)
def higher_mean(book: Book) -> Iterator[Case]:
    """Every K above 15."""
    return _rules_apart(book, 15, PARTITIONS, deviation=False)


def _flat(book: Book, rate: float, name: str, which: int) -> Case:
    """Any two K, relative to the smaller one, with identical weights; the two that differ most are shown."""
    values = tail(book, IDENTICAL, rate)[which]
    kept = values.isel({_K: (values[_K].values >= 8) & (values[_K].values <= 16)})
    amounts = kept[_K].values
    if len(amounts) < 2:
        raise NotRun("fewer than two K from 8 to 16 were run")
    if np.isinf(kept).any():
        lost = compared(figure(book), minus(kept[-1], kept[0]), flaws=("a seed diverged",))
        return Case.of(name, lost, f"a seed diverged at one of K = {amounts[0]} to {amounts[-1]}")
    found = {(a, b): (kept[b] - kept[a]) / kept[a] for a, b in combinations(range(len(amounts)), 2)}
    found = {pair: change for pair, change in found.items() if change.notnull().any()}
    if not found:
        raise NotRun("no run has two K from 8 to 16")
    (a, b), most = max(found.items(), key=lambda item: abs(float(item[1].mean())))
    comparison = compared(figure(book), *found.values(), kind="same", margin=FLAT)
    shown = mean_of(sample(numbers(most)))
    return Case.of(name, comparison, f"K = {amounts[b]} against {amounts[a]}", shown)


@claim(
    14,
    "section 5.2.2, figure 3",
    "With identical weights the loss hardly changes from K = 8 to K = 16.",
    f"relative difference between any two K from 8 to 16, within ±{100 * FLAT:g} %; the largest is shown; beside it "
    "that of the deviation",
    deciding("relative difference", (8, 12, 16), rules=1, margin=f"hardly: within ±{100 * FLAT:g} %"),
    remark=by_rate,
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
    deciding("loss over the last 5 %", AMOUNTS, rates=3),
)
def searched_rates(book: Book) -> Iterator[Case]:
    """Every K."""

    def at_each() -> Iterator[Case]:
        part = figure(book)
        found = {rule: {r: tail(book, rule, r)[0] for r in part.rates("Async", rule)} for rule in RULES}
        amounts = [{k for values in rates.values() for k in values[_K].values.tolist()} for rates in found.values()]
        for k in sorted(set.intersection(*amounts)):
            (x, first), (y, second) = (_best_at(part, rule, found[rule], k) for rule in RULES)
            note = f"{against(x, y)}; local_lr {first.rate:g} against {second.rate:g}"
            yield Case.of(f"K = {k}", compared(part, minus(x, y), choices=(first, second)), note)

    yield from tried("identical − time-based", at_each)


def _best_at(part: Part, rule: str, rates: dict[float, xr.DataArray], k: int) -> tuple[xr.DataArray, Choice]:
    """What was not used for choosing, at the rate that is best for one K: fewest diverged runs, lowest mean."""
    there = {rate: values.sel({_K: k}) for rate, values in rates.items() if k in values[_K].values}
    rate = min(there, key=lambda r: score(there[r].where(part.choosing)))
    about = part.choice("Async", rule, rate)
    if about is None:
        raise NotRun("the results do not say their learning rates")
    lost = tuple(r for r, values in there.items() if bool(np.isinf(values).any()))
    return part.judged(there[rate]), replace(about, finished=tuple(there), diverged=lost)


CLAIMS = (falls_then_rises, deviation_grows, more_deviation, higher_mean, identical_is_flat, searched_rates)
