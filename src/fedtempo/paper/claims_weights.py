"""Section 5.2.1, figure 2: what weights do to asynchronous FedAvg (M = 10, F80, K = 1).

    gap = final value with identical weights − with time-based ones, at the rate that is best for identical

Final values are means over the last tenth of the time grid; the same seed means the same batches, so gaps are paired.
A ratio of gaps x / y lies between a and b where x − a y and b y − x are above zero on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import xarray as xr

from fedtempo.paper.claims_cost import SERVED, Work
from fedtempo.paper.claims_kinds import (
    Case,
    Deciding,
    against,
    claim,
    compared,
    known,
    larger,
    minus,
    numbers,
    over,
    tried,
)
from fedtempo.paper.claims_rules import sample
from fedtempo.paper.claims_runs import BEGINNING, IDENTICAL, PARTITIONS, TIME_BASED, Book, NotRun, Part, Runs
from fedtempo.paper.statistics import ratio_of

DATA = ("mnist", "mnist-shard", "cifar10", "shakespeare")
TWICE = (1.5, 3.0)
EARLY = 0.1
LATE = 0.5
RATES = 3
_ASYNC = "Async"
_FAR = {"mnist": 200_000, "mnist-shard": 200_000, "cifar10": 100_000, "shakespeare": 100_000}


def deciding(unit: str, *names: str, margin: str = "any difference above 0", until: float | None = None) -> Deciding:
    """Both weight rules at three rates on some data sets, up to the paper's horizon unless said."""
    far = {name: float(until or _FAR[name]) for name in names}
    work = tuple(Work(name.removesuffix("-shard"), far[name], SERVED * RATES * 2) for name in names)
    spoken = ", ".join(f"{_FAR[name]:,}".replace(",", " ") for name in names)
    horizon = spoken if until is None else "the beginning"
    if until is None and len({_FAR[name] for name in names}) == 1:
        horizon = f"{_FAR[names[0]]:,}".replace(",", " ")
    what = f"{', '.join(names)}: {SERVED} partitions × {RATES} rates × 2 weight rules"
    what += (
        ""
        if until is None
        else f" to T = {until:,.0f}".replace(",", " ") + ", measured from the first jobs on; the rate is claim 1's"
    )
    return Deciding(horizon, unit, margin, what, work)


def shared(part: Part) -> tuple[Runs, Runs]:
    """Identical and time-based weights at the rate that is best for identical, as in the paper."""
    return part.best(_ASYNC, IDENTICAL), part.best(_ASYNC, TIME_BASED, tuned_on=IDENTICAL)


def _at_the_start(part: Part, whole: Part) -> tuple[Runs, Runs]:
    """The two at the rate that is best for identical on the whole of the time, without the runs that chose it."""
    best = whole.best(_ASYNC, IDENTICAL)
    start = part.without(best.choice)
    first, second = (start.at(_ASYNC, rule, best.rate).chosen(best.choice) for rule in (IDENTICAL, TIME_BASED))
    return first, second


def own(part: Part) -> tuple[Runs, Runs]:
    """Identical and time-based weights, each at its best rate."""
    return part.best(_ASYNC, IDENTICAL), part.best(_ASYNC, TIME_BASED)


_LOSS = "federated loss"
_SPREAD = "deviation of the loss over clients"
_SURROGATE = "surrogate loss"
_ABOUT = f"about twice: {TWICE[0]:g} to {TWICE[1]:g}"


@claim(
    1,
    "section 5.2.1, figure 2(a)",
    "Asynchronous FedAvg ends at a lower federated loss with time-based weights than with identical ones.",
    "federated loss, identical − time-based > 0, at the rate best for identical; beside it each at its own best rate",
    deciding(_LOSS, *DATA),
)
def lower_loss(book: Book) -> Iterator[Case]:
    """Every data set."""
    yield from over(book, "fig2", DATA, lambda part: larger(part, *shared(part)), PARTITIONS)
    for case in over(book, "fig2", DATA, lambda part: larger(part, *own(part)), PARTITIONS):
        yield case.moved(group="own rates", beside=True)


@claim(
    2,
    "section 5.2.1, figure 2(b)",
    "Clients' losses generally end closer together with time-based weights.",
    "deviation of the loss over clients, identical − time-based > 0 on most data sets",
    deciding(_SPREAD, *DATA),
    most=True,
)
def closer_clients(book: Book) -> Iterator[Case]:
    """Most data sets."""
    yield from over(book, "fig2", DATA, lambda part: larger(part, *shared(part), "loss_deviation"), PARTITIONS)


def _gap_ratio(book: Book, measure: str) -> Case:
    """The gap on MNIST-shard over that on MNIST; the interval is Fieller's, which allows for runs that go together."""
    names, gaps, choices = ("mnist-shard", "mnist"), [], []
    beside = (PARTITIONS,) if all(book.has("fig2", name, PARTITIONS) for name in names) else ()
    parts = [book.part("fig2", name, *beside) for name in names]
    for name, part in zip(names, parts, strict=True):
        pair = shared(part)
        first, second = (runs.final(measure) for runs in pair)
        known(name, first, second)
        gaps.append(minus(first, second))
        choices += [runs.choice for runs in pair]
    shard, mnist = xr.align(*gaps, join="inner")
    both = (shard.notnull() & mnist.notnull()).values
    if not both.any():
        raise NotRun("no partition and seed was run on both data sets")
    shard, mnist = shard.where(both), mnist.where(both)
    lost = bool(np.isinf(shard).any() or np.isinf(mnist).any())
    low, high = TWICE
    note = f"gaps {float(shard.mean()):.3g} and {float(mnist.mean()):.3g}".replace("-", "−").replace("inf", "∞")
    found = ratio_of(sample(numbers(shard)), sample(numbers(mnist)))
    comparison = compared(
        min(parts, key=lambda part: part.time),
        minus(shard, low * mnist),
        minus(high * mnist, shard),
        choices=dict.fromkeys(choices),
        kind="about",
        margin=TWICE,
        flaws=("a seed diverged, so there is no gap",) if lost else (),
    )
    return Case.of("mnist-shard / mnist", comparison, note, found)


@claim(
    3,
    "section 5.2.1, figure 2(a)",
    "What identical weights lose is about twice as much on MNIST-shard, whose data are uneven, as on MNIST.",
    f"ratio of the gaps in federated loss; about twice is between {TWICE[0]:g} and {TWICE[1]:g}; Fieller's interval",
    deciding("ratio of two gaps", *DATA[:2], margin=_ABOUT),
)
def twice_the_loss(book: Book) -> Iterator[Case]:
    """One ratio."""
    yield from tried("mnist-shard / mnist", lambda: _gap_ratio(book, "loss"))


@claim(
    4,
    "section 5.2.1, figure 2(b)",
    "The same is true of how far apart clients' losses are.",
    f"ratio of the gaps in the deviation over clients, between {TWICE[0]:g} and {TWICE[1]:g}; Fieller's interval",
    deciding("ratio of two gaps", *DATA[:2], margin=_ABOUT),
)
def twice_the_deviation(book: Book) -> Iterator[Case]:
    """One ratio."""
    yield from tried("mnist-shard / mnist", lambda: _gap_ratio(book, "loss_deviation"))


@claim(
    5,
    "section 5.2.1, figure 2(a)",
    "The two weight rules end clearly apart even on MNIST, whose clients' data are alike.",
    "federated loss, identical − time-based > 0, on MNIST; beside it relative to the loss of identical",
    deciding(_LOSS, DATA[0]),
)
def clear_on_mnist(book: Book) -> Iterator[Case]:
    """The gap, and its size relative to the loss."""

    def relative(part: Part) -> Iterator[Case]:
        first, second = shared(part)
        yield larger(part, first, second)
        x, y = first.final(), second.final()
        if not (np.isinf(x).any() or np.isinf(y).any()):
            share = compared(part, (x - y) / x, choices=[first.choice])
            yield Case.of(part.name, share, "relative to the loss").moved(group="relative", beside=True)

    yield from over(book, "fig2", DATA[:1], relative, PARTITIONS)


@claim(
    6,
    "section 5.2.1, figure 2(c)",
    "On the surrogate problem identical weights end lower, on MNIST, MNIST-shard and CIFAR-10.",
    "surrogate loss, time-based − identical > 0",
    deciding(_SURROGATE, *DATA[:3]),
)
def surrogate_of_images(book: Book) -> Iterator[Case]:
    """Three data sets."""
    yield from over(
        book, "fig2", DATA[:3], lambda part: larger(part, *shared(part)[::-1], "surrogate_loss"), PARTITIONS
    )


@claim(
    7,
    "section 5.2.1, figure 2(c)",
    "On Shakespeare time-based weights end lower on the surrogate problem as well.",
    "surrogate loss, identical − time-based > 0",
    deciding(_SURROGATE, DATA[3]),
)
def surrogate_of_shakespeare(book: Book) -> Iterator[Case]:
    """One data set."""
    yield from over(book, "fig2", DATA[3:], lambda part: larger(part, *shared(part), "surrogate_loss"), PARTITIONS)


@claim(
    8,
    "section 5.2.1, figure 2(d)",
    "Clients' losses, weighted as in the surrogate problem, end further apart with identical weights everywhere.",
    "deviation of the surrogate loss over clients, identical − time-based > 0",
    deciding("deviation of the surrogate loss", *DATA),
)
def surrogate_deviation(book: Book) -> Iterator[Case]:
    """Every data set."""
    yield from over(book, "fig2", DATA, lambda part: larger(part, *shared(part), "surrogate_deviation"), PARTITIONS)


@claim(
    9,
    "section 5.2.2, figure 2(a)",
    "At first the federated loss falls faster with identical weights.",
    f"federated loss, time-based − identical > 0, at the first grid time at which the mean with identical weights has "
    f"done {100 * EARLY:g} % of its descent from start to lowest; undecided if the grid begins after {100 * LATE:g} %",
    deciding(_LOSS, *DATA, until=50),
)
def faster_at_first(book: Book) -> Iterator[Case]:
    """Every data set."""

    def early(part: Part) -> Case:
        try:
            whole = book.part("fig2", part.name, PARTITIONS)
        except NotRun as missing:
            raise NotRun(f"{missing} (for the rate; the beginning is there)") from None
        far = shared(whole)
        pair = far if part is whole else _at_the_start(part, whole)
        first, second = (runs.values("loss") for runs in pair)
        there = (first.isel(time=0).notnull() & second.isel(time=0).notnull()).values
        if not there.any():
            raise NotRun("no seed was run under both weight rules")
        first, second = (v.where(xr.DataArray(there, dims=first.dims[:-1])) for v in (first, second))
        mean = first.mean(first.dims[:-1])
        lowest = min(float(mean.min()), float(far[0].values("loss").mean(first.dims[:-1]).min()))
        descent = float(mean[0]) - lowest
        if not descent > 0:
            nothing = compared(part, minus(second, first).isel(time=0), flaws=("the loss never falls",))
            return Case.of(part.name, nothing, "the loss never falls with identical weights")
        fallen = (mean <= mean[0] - EARLY * descent).values
        if not fallen.any():
            raise NotRun(f"the loss has not done {100 * EARLY:g} % of its descent by time {float(mean['time'][-1]):g}")
        at = int(np.argmax(fallen))
        x, y = second.isel(time=at), first.isel(time=at)
        done, time = float(mean[0] - mean[at]) / descent, float(mean["time"][at])
        known(part.name, x, y)
        note = f"{against(x, y)}; at time {time:g}, {100 * done:.0f} % of the descent"
        late = at == 1 and done > LATE
        comparison = replace(
            compared(part, minus(x, y), choices=[runs.choice for runs in pair[:1]]),
            time=time,
            horizon=time,
            flaws=(f"first seen after {100 * done:.0f} % of the descent",) if late else (),
        )
        return Case.of(part.name, comparison, note + (", the first point of the grid" if at == 1 else ""))

    yield from over(book, "fig2", DATA, early, BEGINNING, PARTITIONS)


CLAIMS = (
    lower_loss,
    closer_clients,
    twice_the_loss,
    twice_the_deviation,
    clear_on_mnist,
    surrogate_of_images,
    surrogate_of_shakespeare,
    surrogate_deviation,
    faster_at_first,
)
