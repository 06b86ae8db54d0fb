"""Section 5.2.3, figures 4 to 7: FedAvg, asynchronous FedAvg, FedFix(1/2), and FedBuff beside them (K = 10).

Figure 4 compares every scheme at its own best rate, figures 5 to 7 at every rate. Final values are means over the last
tenth of the time grid; the same seed means the same batches, so differences are paired. The remark on F0, where all
clients take one unit of time, needs no results: FedFix(1/2) is FedAvg with η_g = 2, since

    d_i = ⌈τ_i / Δt⌉ p_i = 2 p_i            every second round is empty, in the others every client counts twice

τ_i is `mean_time`, Δt `wait`, p_i `importance`, d_i `weights`, η_g `server_lr`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from fedtempo.paper.claims_kinds import Case, Verdict, claim, known, larger, over, some
from fedtempo.paper.claims_runs import TIME_BASED, Book, NotRun, Part, Runs
from fedtempo.paper.statistics import FEWEST, largest_rise, mean_of, paired, rises_elsewhere

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


@claim(
    21,
    "section 5.2.3, on F0",
    "With clients of equal speed FedFix(1/2) is FedAvg with the server rate 2 (the paper says asynchronous).",
    f"largest distance between the two models' parameters, at most {TOLERANCE:g}; exact, on quadratics in 64 bits",
)
def fedfix_is_fedavg(book: Book) -> Iterator[Case]:
    """After one, a few and more rounds."""
    for rounds, (synchronous, asynchronous) in distances().items():
        name = f"after {rounds} round{'s' * (rounds > 1)} of FedAvg"
        note = f"to AsyncFedAvg with the server rate 2: {asynchronous:.2g}"
        yield Case(name, synchronous, None, None, "holds" if synchronous <= TOLERANCE else "fails", note)


EXACT_CLAIMS = (fedfix_is_fedavg,)


SCENARIOS = tuple(
    f"{data}-{m}-{times}" for data in ("cifar10", "shakespeare") for m in (20, 50) for times in ("F0", "F80")
)
EXPLORED = {"fig5": "cifar10-20-F80", "fig6": "cifar10-50-F80", "fig7": "shakespeare-20-F80"}
FEDAVG, ASYNC, FEDFIX, FEDBUFF = "FedAvg", "Async", "FedFix", "FedBuff"


def best(part: Part, scheme: str) -> Runs:
    """A scheme at its own best rate."""
    return part.best(scheme, TIME_BASED)


def beats(part: Part, winner: str, loser: str) -> Case:
    """Whether a scheme ends lower than another, both at their best rates."""
    return larger(part.name, best(part, loser), best(part, winner))


@claim(
    16,
    "section 5.2.3, figure 4",
    "FedFix with a wait of one half ends lower than FedAvg in every scenario.",
    "federated loss, FedAvg − FedFix(1/2) > 0, each at its own best rate",
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
)
def fedavg_beats_async(book: Book) -> Iterator[Case]:
    """The four scenarios of equal clients."""
    return over(book, "fig4", [s for s in SCENARIOS if s.endswith("-F0")], lambda part: beats(part, FEDAVG, ASYNC))


@claim(
    18,
    "section 5.2.3, figure 4",
    "Even with clients of unequal speed FedAvg can end lower than asynchronous FedAvg, namely on Shakespeare.",
    "federated loss, AsyncFedAvg − FedAvg > 0 in one scenario at least, each at its own best rate",
    rule=some,
)
def fedavg_can_beat_async(book: Book) -> Iterator[Case]:
    """One of the two scenarios of unequal clients at least."""
    names = [s for s in SCENARIOS if s.startswith("shakespeare") and s.endswith("-F80")]
    return over(book, "fig4", names, lambda part: beats(part, FEDAVG, ASYNC))


@claim(
    19,
    "section 5.2.3, figures 5 to 7",
    "At small learning rates asynchronous FedAvg ends lower than FedFix, and FedFix lower than FedAvg.",
    "federated loss, FedFix − AsyncFedAvg > 0 and FedAvg − FedFix > 0, at the three smallest rates that all three ran",
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
                case = larger(name, part.at(high, TIME_BASED, rate), part.at(low, TIME_BASED, rate))
                yield _with_sign(case) if case.seeds < FEWEST else case

    for figure, name in EXPLORED.items():
        yield from over(book, figure, [name], steps)


def _with_sign(case: Case) -> Case:
    """What the sign alone says, where there is no interval."""
    sign = "as stated" if (case.number or 0.0) > 0 else "not as stated"
    return Case(case.name, case.number, None, None, case.verdict, f"{case.note}; the sign is {sign}", case.seeds)


@claim(
    20,
    "section 5.2.3, figure 4",
    "The loss of FedAvg at its best rate does not fall steadily on Shakespeare.",
    "rise of the loss after the first tenth of the time: of each seed, between the two times where the mean of the "
    "other seeds rises most; holds if its mean exceeds twice its deviation over seeds and is significantly above 0, "
    "fails if the mean loss never rises, or this rise is significantly below 0",
)
def fedavg_is_unsteady(book: Book) -> Iterator[Case]:
    """The four scenarios of Shakespeare."""

    def rise(part: Part) -> Case:
        runs = best(part, FEDAVG)
        values = runs.values("loss").transpose("seed", "time")
        curves = values.isel(time=np.flatnonzero(values["time"].values >= 0.1 * values["time"].values[-1])).values
        curves = curves[~np.isnan(curves).any(axis=1)]
        if not len(curves) or curves.shape[1] < 2:
            raise NotRun("FedAvg was not carried to the end")
        if np.isinf(curves).any():
            return Case(part.name, verdict="undecided", note=f"FedAvg diverged; {runs.at}")
        _, _, most = largest_rise(curves.mean(axis=0))
        note = f"the mean over seeds rises by {max(most, 0.0):.3g}; {runs.at}"
        if len(curves) < FEWEST:
            return Case.of(part.name, mean_of([most] * len(curves)), "undecided", note)
        rises = rises_elsewhere(curves)
        found = mean_of(rises)
        steady = most <= 0 or found.below
        unsteady = found.number > 2 * float(np.std(rises, ddof=1)) and found.above
        verdict: Verdict = "fails" if steady else "holds" if unsteady else "undecided"
        return Case.of(part.name, found, verdict, note)

    return over(book, "fig4", [s for s in SCENARIOS if s.startswith("shakespeare")], rise)


def _settled(cases: Sequence[Case]) -> Verdict:
    found = {case.verdict for case in cases}
    if found <= {"not run"}:
        return "not run"
    return "answered" if found <= {"answered", "not run"} else "undecided"


def _places(cases: Sequence[Case]) -> str:
    """In how many scenarios FedBuff has which place."""
    ran = [case for case in cases if case.number is not None]
    if not ran:
        return ""
    words = ("first", "second", "third", "last")
    places = Counter(int(case.number or 0) for case in ran)
    listed = ", ".join(f"{words[place - 1]} in {places[place]}" for place in sorted(places))
    certain = sum(case.verdict == "answered" for case in ran)
    return f"FedBuff is {listed} of {len(ran)} scenarios by mean loss; the place is certain in {certain}"


@claim(
    22,
    "a question of our own, on figure 4",
    "Where does FedBuff stand among the four schemes?",
    "its place by final federated loss, each scheme at its own best rate; the interval is from the schemes that are "
    "significantly better to those that are significantly worse",
    rule=_settled,
    remark=_places,
)
def place_of_fedbuff(book: Book) -> Iterator[Case]:
    """Eight scenarios."""

    def place(part: Part) -> Case:
        finals = {part.scheme(scheme): best(part, scheme).final() for scheme in (FEDBUFF, FEDFIX, FEDAVG, ASYNC)}
        (own, buffered), *others = finals.items()
        for label, values in others:
            known(label, buffered, values)
        apart = [paired(buffered.values, values.values) for _, values in others]
        number = 1 + sum(found.number > 0 for found in apart)
        low, high = 1 + sum(found.above for found in apart), 4 - sum(found.below for found in apart)
        seeds = min(found.seeds for found in apart)
        gaps = zip(others, apart, strict=True)
        note = "; ".join(f"{own} − {label} {_shown(found.number)}" for (label, _), found in gaps)
        if seeds < FEWEST:
            few = "one seed" if seeds == 1 else f"{seeds} seeds"
            return Case(part.name, number, None, None, "undecided", f"{note}; {few}, too few for an interval", seeds)
        return Case(part.name, number, low, high, "answered" if low == high else "undecided", note, seeds)

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
