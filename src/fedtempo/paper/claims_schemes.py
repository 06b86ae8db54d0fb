"""Section 5.2.3, figures 4 to 7: FedAvg, asynchronous FedAvg, FedFix(1/2), and FedBuff beside them (K = 10).

Figure 4 compares every scheme at its own best rate, figures 5 to 7 at every rate. Final values are means over the last
tenth of the time grid; the same seed means the same batches, so differences are paired. The remark on F0, where all
clients take one unit of time, needs no results: FedFix(1/2) is FedAvg with η_g = 2 (and with twice the local rate
only for K = 1), since

    d_i = ⌈τ_i / Δt⌉ p_i = 2 p_i            every second round is empty, in the others every client counts twice

τ_i is `mean_time`, Δt `wait`, p_i `importance`, d_i `weights`, η_g `server_lr`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import xarray as xr

from fedtempo.paper.claims_cost import SERVED, Scheme, Work
from fedtempo.paper.claims_kinds import Case, Deciding, claim, compared, known, larger, minus, numbers, over
from fedtempo.paper.claims_rules import Finding, Verdict, answer, exact, examine, sample, unique
from fedtempo.paper.claims_runs import SMALL_RATES, TIME_BASED, Book, NotRun, Part, Runs
from fedtempo.paper.statistics import FEWEST, Floats, largest_rise, mean_of, rises_elsewhere

TOLERANCE = 1e-9
ROUNDS = (1, 3, 10)


@cache
def distances() -> dict[int, tuple[float, float]]:
    """After so many units of time, how far FedFix's model is from FedAvg's, and from AsyncFedAvg's, with η_g = 2."""
    from fedtempo.clock.times import FixedTimes
    from fedtempo.problems import quadratics
    from fedtempo.schemes.named import AsyncFedAvg, FedAvg, FedFix
    from fedtempo.simulation.study import simulate
    from fedtempo.training.solvers import LocalSGD

    problem = quadratics(clients=4, dimension=3, noise=1.0, seed=0)
    times = FixedTimes([1] * 4)
    local = LocalSGD(steps=2, lr=0.05, batch_size=2)
    schemes = [FedFix(wait="1/2"), FedAvg(), AsyncFedAvg()]
    found = {}
    for until in ROUNDS:
        history = simulate(
            problem,
            schemes,
            times,
            until=until,
            local=local,
            step="paper",
            server_lr=[1.0, 2.0],
            points=2,
            dtype="float64",
            engine="oracle",  # the readable engine, which has little to compile
        )
        fixed, *doubled = (
            np.asarray(history.model(scheme=scheme, server_lr=rate).parameters)
            for scheme, rate in zip(schemes, (1.0, 2.0, 2.0), strict=True)
        )
        found[until] = (float(np.abs(fixed - doubled[0]).max()), float(np.abs(fixed - doubled[1]).max()))
    return found


def _exact(cases: Sequence[Case]) -> Verdict:
    within = all(case.number is not None and case.number <= TOLERANCE for case in cases)
    return exact(within, "of FedAvg, not of asynchronous FedAvg; local rate 2 η_l only for K = 1")


@claim(
    21,
    "section 5.2.3, on F0",
    "With clients of equal speed FedFix(1/2) behaves as asynchronous FL with the server rate 2.",
    f"largest distance between the models' parameters, FedFix(1/2) and FedAvg with the server rate 2, at most "
    f"{TOLERANCE:g}; exact, on quadratics in 64 bits",
    Deciding("any", "distance of two models", f"{TOLERANCE:g}, rounding", "it is an identity, checked here"),
    judge=_exact,
)
def fedfix_is_fedavg(book: Book) -> Iterator[Case]:
    """After one, a few and more rounds."""
    for rounds, (synchronous, asynchronous) in distances().items():
        name = f"after {rounds} round{'s' * (rounds > 1)} of FedAvg"
        note = f"to AsyncFedAvg with the server rate 2: {asynchronous:.2g}"
        equal = synchronous <= TOLERANCE
        finding = Finding(equal, not equal, 0.0 if equal else 1.0, 1.0 if equal else 0.0, (), None)
        yield Case(name, synchronous, finding=finding, note=note, word="equal" if equal else "not equal")


EXACT_CLAIMS = (fedfix_is_fedavg,)


SCENARIOS = tuple(
    f"{data}-{m}-{times}" for data in ("cifar10", "shakespeare") for m in (20, 50) for times in ("F0", "F80")
)
EXPLORED = {"fig5": "cifar10-20-F80", "fig6": "cifar10-50-F80", "fig7": "shakespeare-20-F80"}
FEDAVG, ASYNC, FEDFIX, FEDBUFF = "FedAvg", "Async", "FedFix", "FedBuff"
UNEQUAL = ("shakespeare-20-F80", "shakespeare-50-F80")
FAR = 5_000.0
UNSTEADY_FROM = 4_000.0


def deciding(
    scenarios: Sequence[str], schemes: tuple[Scheme, ...], what: str, *, unit: str = "federated loss"
) -> Deciding:
    """Some schemes at three rates in some scenarios, to the paper's horizon."""
    work = tuple(
        Work(data, FAR, SERVED * 3, schemes, int(clients), int(times.removeprefix("F")), (10,))
        for data, clients, times in (name.split("-") for name in scenarios)
    )
    told = f"{what}: {SERVED} partitions × 3 rates × {len(schemes)} scheme{'s' * (len(schemes) > 1)}"
    return Deciding("5 000", unit, "any difference above 0", told, work)


def best(part: Part, scheme: str) -> Runs:
    """A scheme at its own best rate."""
    return part.best(scheme, TIME_BASED)


def beats(part: Part, winner: str, loser: str) -> Case:
    """Whether a scheme ends lower than another, both at their best rates."""
    return larger(part, best(part, loser), best(part, winner))


@claim(
    16,
    "section 5.2.3, figure 4",
    "FedFix with a wait of one half ends lower than FedAvg in every scenario.",
    "federated loss, FedAvg − FedFix(1/2) > 0, each at its own best rate",
    deciding(
        SCENARIOS, ("FedAvg", "FedFix"), "8 scenarios, rates up to 1 and beyond until the best has a worse one above it"
    ),
)
def fedfix_beats_fedavg(book: Book) -> Iterator[Case]:
    """Eight scenarios."""
    return over(book, "fig4", SCENARIOS, lambda part: beats(part, FEDFIX, FEDAVG))


@claim(
    17,
    "section 5.2.3, figure 4",
    "With clients of equal speed (F0, which the paper here calls heterogeneous) FedAvg ends lower than "
    "asynchronous FedAvg.",
    "federated loss, AsyncFedAvg − FedAvg > 0, each at its own best rate, where all clients take the same time",
    deciding([s for s in SCENARIOS if s.endswith("F0")], ("FedAvg", "async"), "4 scenarios of F0"),
)
def fedavg_beats_async(book: Book) -> Iterator[Case]:
    """The four scenarios of equal clients."""
    return over(book, "fig4", [s for s in SCENARIOS if s.endswith("-F0")], lambda part: beats(part, FEDAVG, ASYNC))


@claim(
    18,
    "section 5.2.3, figure 4",
    "Even with clients of unequal speed FedAvg can end lower than asynchronous FedAvg, namely on Shakespeare.",
    "federated loss, AsyncFedAvg − FedAvg > 0 in one scenario at least, each at its own best rate",
    deciding(UNEQUAL, ("FedAvg", "async"), "Shakespeare, F80"),
    some=True,
)
def fedavg_can_beat_async(book: Book) -> Iterator[Case]:
    """One of the two scenarios of unequal clients at least."""
    return over(book, "fig4", UNEQUAL, lambda part: beats(part, FEDAVG, ASYNC))


@claim(
    19,
    "section 5.2.3, figures 5 to 7",
    "At small learning rates asynchronous FedAvg ends lower than FedFix, and FedFix lower than FedAvg.",
    "federated loss, FedFix − AsyncFedAvg > 0 and FedAvg − FedFix > 0, at the three smallest rates that all three ran",
    deciding(tuple(EXPLORED.values()), ("FedAvg", "async", "FedFix"), "3 scenarios, the smallest rates"),
)
def order_at_small_rates(book: Book) -> Iterator[Case]:
    """Three figures, three rates, two steps."""

    def steps(part: Part) -> Iterator[Case]:
        tried = [set(part.rates(scheme, TIME_BASED)) for scheme in (ASYNC, FEDFIX, FEDAVG)]
        rates = sorted(set.intersection(*tried))[:3]
        if len(rates) < 3:
            raise NotRun("fewer than three rates were run for all three schemes")
        for rate in rates:
            for high, low in ((FEDFIX, ASYNC), (FEDAVG, FEDFIX)):
                name = f"{part.name}, {part.scheme(high)} − {part.scheme(low)}"
                yield replace(larger(part, part.at(high, TIME_BASED, rate), part.at(low, TIME_BASED, rate)), name=name)

    for figure, name in EXPLORED.items():
        there = name in book.results.get("fig4" + SMALL_RATES, {})
        yield from over(book, "fig4" if there else figure, [name], steps, SMALL_RATES)


@claim(
    20,
    "section 5.2.3, figure 4",
    "The loss of FedAvg at its best rate does not fall steadily on Shakespeare.",
    "rise of the loss after T = 4 000, of which the paper speaks (after the first tenth of a shorter run): of each "
    "run, between the two times where the mean of the others rises most; unsteady if it is above 0 and more than "
    "twice its deviation",
    deciding(
        UNEQUAL,
        ("FedAvg",),
        "Shakespeare, M = 20 and 50 (FedAvg is the same at F0 and F80)",
        unit="rise of the loss after T = 4 000",
    ),
)
def fedavg_is_unsteady(book: Book) -> Iterator[Case]:
    """The four scenarios of Shakespeare."""

    def rise(part: Part) -> Case:
        runs = best(part, FEDAVG)
        values = runs.values("loss")
        times = values["time"].values
        since = UNSTEADY_FROM if times[-1] > UNSTEADY_FROM else 0.1 * times[-1]
        values = values.isel(time=np.flatnonzero(times >= since))
        known_to_the_end = values.notnull().all("time")
        if not bool(known_to_the_end.any()) or values.sizes["time"] < 2:
            raise NotRun("FedAvg was not carried to the end")
        ends = values.isel(time=0, drop=True).where(known_to_the_end)
        if np.isinf(values).any():
            nothing = compared(part, ends, choices=[runs.choice], flaws=("FedAvg diverged",))
            return replace(Case.of(part.name, nothing, runs.at), number=None, low=None, high=None, word="unclear")
        units, curves = _curves(values.where(known_to_the_end))
        _, _, most = largest_rise(curves.mean(axis=0))
        found = rises_elsewhere(curves) if len(curves) >= FEWEST else np.full(len(curves), most)
        spread = float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
        wobbly = 0 < mean_of(found).number <= 2 * spread
        flaws = ("the rise is not twice its deviation",) if wobbly else ()
        note = f"the mean rises by {max(most, 0.0):.3g} after T = {since:g}; {runs.at}"
        return Case.of(
            part.name, compared(part, _as_runs(found, units, ends), choices=[runs.choice], flaws=flaws), note
        )

    return over(book, "fig4", [s for s in SCENARIOS if s.startswith("shakespeare")], rise)


def _curves(values: xr.DataArray) -> tuple[list[tuple[int, ...]], Floats]:
    """A curve for each unit: of each partition the mean over its seeds, of fewer than three partitions each run."""
    flat = values.transpose("partition", "seed", "time").values
    there = ~np.isnan(flat).any(axis=2)
    rows = [p for p in range(len(flat)) if there[p].any()]
    if len(rows) >= FEWEST:
        return [(p,) for p in rows], np.array([flat[p][there[p]].mean(axis=0) for p in rows])
    places: list[tuple[int, ...]] = [(p, s) for p in rows for s in np.flatnonzero(there[p]).tolist()]
    return places, np.array([flat[place] for place in places])


def _as_runs(found: Floats, units: list[tuple[int, ...]], like: xr.DataArray) -> xr.DataArray:
    """A number of each unit as that of all its runs."""
    like = like.transpose("partition", "seed")
    values = np.full(like.shape, np.nan)
    for unit, number in zip(units, found.tolist(), strict=True):
        values[unit] = number
    return like.copy(data=values).where(like.notnull())


def _settled(cases: Sequence[Case]) -> Verdict:
    return answer([case.finding for case in cases], all(case.word == "certain" for case in cases))


def _places(cases: Sequence[Case]) -> str:
    """In how many scenarios FedBuff has which place."""
    ran = [case for case in cases if case.number is not None]
    if not ran:
        return ""
    words = ("first", "second", "third", "last")
    places = Counter(int(case.number or 0) for case in ran)
    listed = ", ".join(f"{words[place - 1]} in {places[place]}" for place in sorted(places))
    certain = sum(case.word == "certain" for case in ran)
    return f"FedBuff is {listed} of {len(ran)} scenarios by mean loss; the place is certain in {certain}"


@claim(
    22,
    "a question of our own, on figure 4",
    "Where does FedBuff stand among the four schemes?",
    "its place by final federated loss, each scheme at its own best rate; the interval is from the schemes that are "
    "significantly better to those that are significantly worse",
    deciding(SCENARIOS, ("FedAvg", "async", "FedFix", "FedBuff"), "8 scenarios", unit="place, 1 to 4"),
    judge=_settled,
    remark=_places,
)
def place_of_fedbuff(book: Book) -> Iterator[Case]:
    """Eight scenarios."""

    def place(part: Part) -> Case:
        runs = [best(part, scheme) for scheme in (FEDBUFF, FEDFIX, FEDAVG, ASYNC)]
        labels = [part.scheme(scheme) for scheme in (FEDBUFF, FEDFIX, FEDAVG, ASYNC)]
        buffered, *others = (each.final() for each in runs)
        for label, values in zip(labels[1:], others, strict=True):
            known(label, buffered, values)
        apart = [minus(buffered, values) for values in others]
        found = [mean_of(sample(numbers(gap))) for gap in apart]
        number = 1 + sum(gap.number > 0 for gap in found)
        low, high = 1 + sum(gap.above for gap in found), 4 - sum(gap.below for gap in found)
        why = [examine(compared(part, gap, choices=[each.choice for each in runs])) for gap in apart]
        finding = replace(why[0], reasons=unique(reason for each in why for reason in each.reasons))
        note = "; ".join(
            f"{labels[0]} − {label} {_shown(gap.number)}" for label, gap in zip(labels[1:], found, strict=True)
        )
        certain = low == high and all(gap.seeds >= FEWEST for gap in found)
        shown = Case(part.name, number, finding=finding, note=note, word="certain" if certain else "uncertain")
        return replace(shown, low=low, high=high) if all(gap.seeds >= FEWEST for gap in found) else shown

    return over(book, "fig4", SCENARIOS, place)


def _shown(number: float) -> str:
    return f"{number:+.3g}".replace("-", "−").replace("inf", "∞")


CLAIMS = (
    fedfix_beats_fedavg,
    fedavg_beats_async,
    fedavg_can_beat_async,
    order_at_small_rates,
    fedavg_is_unsteady,
    place_of_fedbuff,
)
