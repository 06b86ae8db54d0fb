"""Section 5.2.1, figure 2: what weights do to asynchronous FedAvg (M = 10, F80, K = 1).

    gap = final value with identical weights − with time-based ones, at the rate that is best for identical

Final values are means over the last tenth of the time grid; the same seed means the same batches, so gaps are paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import xarray as xr

from fedtempo.paper.claims_kinds import Case, against, claim, generally, known, larger, over, tried
from fedtempo.paper.claims_runs import IDENTICAL, TIME_BASED, Book, NotRun, Part, Runs
from fedtempo.paper.statistics import mean_of, paired, ratio_of

DATA = ("mnist", "mnist-shard", "cifar10", "shakespeare")
TWICE = (1.5, 3.0)
EARLY = 0.1
LATE = 0.5
_ASYNC = "Async"


def shared(part: Part) -> tuple[Runs, Runs]:
    """Identical and time-based weights at the rate that is best for identical, as in the paper."""
    return part.best(_ASYNC, IDENTICAL), part.best(_ASYNC, TIME_BASED, tuned_on=IDENTICAL)


def own(part: Part) -> tuple[Runs, Runs]:
    """Identical and time-based weights, each at its best rate."""
    return part.best(_ASYNC, IDENTICAL), part.best(_ASYNC, TIME_BASED)


@claim(
    1,
    "section 5.2.1, figure 2(a)",
    "Asynchronous FedAvg ends at a lower federated loss with time-based weights than with identical ones.",
    "federated loss, identical − time-based > 0, at the rate best for identical; beside it each at its own best rate",
)
def lower_loss(book: Book) -> Iterator[Case]:
    """Every data set."""
    yield from over(book, "fig2", DATA, lambda part: larger(part.name, *shared(part)))
    for case in over(book, "fig2", DATA, lambda part: larger(part.name, *own(part))):
        yield case.moved(group="own rates", beside=True)


@claim(
    2,
    "section 5.2.1, figure 2(b)",
    "Clients' losses generally end closer together with time-based weights.",
    "deviation of the loss over clients, identical − time-based > 0 on most data sets, and on none below 0",
    rule=generally,
)
def closer_clients(book: Book) -> Iterator[Case]:
    """Most data sets."""
    yield from over(book, "fig2", DATA, lambda part: larger(part.name, *shared(part), "loss_deviation"))


def _gap_ratio(book: Book, measure: str) -> Case:
    """The gap on MNIST-shard over that on MNIST, by Fieller, which allows for seeds that go together."""
    gaps = []
    for name in ("mnist-shard", "mnist"):
        first, second = (runs.final(measure) for runs in shared(book.part("fig2", name)))
        known(name, first, second)
        if np.isinf(first).any() or np.isinf(second).any():
            return Case("mnist-shard / mnist", verdict="undecided", note=f"{name}: a seed diverged, so there is no gap")
        gaps.append((first - second).dropna("seed"))
    shard, mnist = xr.align(*gaps, join="inner")
    found, bottom = ratio_of(shard.values, mnist.values), mean_of(mnist.values)
    note = f"gaps {float(shard.mean()):.3g} and {float(mnist.mean()):.3g}".replace("-", "−")
    if bottom.below:
        return Case.of("mnist-shard / mnist", found, "fails", f"{note}; MNIST's has the other sign")
    if not bottom.above:
        return Case.of("mnist-shard / mnist", found, "undecided", f"{note}; MNIST's is not distinct from 0")
    return Case.within("mnist-shard / mnist", found, *TWICE, note)


@claim(
    3,
    "section 5.2.1, figure 2(a)",
    "What identical weights lose is about twice as much on MNIST-shard, whose data are uneven, as on MNIST.",
    f"ratio of the gaps in federated loss; about twice is between {TWICE[0]:g} and {TWICE[1]:g}; Fieller's interval",
)
def twice_the_loss(book: Book) -> Iterator[Case]:
    """One ratio."""
    yield from tried("mnist-shard / mnist", lambda: _gap_ratio(book, "loss"))


@claim(
    4,
    "section 5.2.1, figure 2(b)",
    "The same is true of how far apart clients' losses are.",
    f"ratio of the gaps in the deviation over clients, between {TWICE[0]:g} and {TWICE[1]:g}; Fieller's interval",
)
def twice_the_deviation(book: Book) -> Iterator[Case]:
    """One ratio."""
    yield from tried("mnist-shard / mnist", lambda: _gap_ratio(book, "loss_deviation"))


@claim(
    5,
    "section 5.2.1, figure 2(a)",
    "The two weight rules end clearly apart even on MNIST, whose clients' data are alike.",
    "federated loss, identical − time-based > 0, on MNIST; beside it relative to the loss of identical",
)
def clear_on_mnist(book: Book) -> Iterator[Case]:
    """The gap, and its size relative to the loss."""

    def relative(part: Part) -> Iterator[Case]:
        first, second = shared(part)
        yield larger(part.name, first, second)
        x, y = first.final(), second.final()
        if np.isfinite(x).all() and np.isfinite(y).all():
            share = Case.positive(part.name, mean_of(((x - y) / x).dropna("seed").values), "relative to the loss")
            yield share.moved(group="relative", beside=True)

    yield from over(book, "fig2", DATA[:1], relative)


@claim(
    6,
    "section 5.2.1, figure 2(c)",
    "On the surrogate problem identical weights end lower, on MNIST, MNIST-shard and CIFAR-10.",
    "surrogate loss, time-based − identical > 0",
)
def surrogate_of_images(book: Book) -> Iterator[Case]:
    """Three data sets."""
    yield from over(book, "fig2", DATA[:3], lambda part: larger(part.name, *shared(part)[::-1], "surrogate_loss"))


@claim(
    7,
    "section 5.2.1, figure 2(c)",
    "On Shakespeare time-based weights end lower on the surrogate problem as well.",
    "surrogate loss, identical − time-based > 0",
)
def surrogate_of_shakespeare(book: Book) -> Iterator[Case]:
    """One data set."""
    yield from over(book, "fig2", DATA[3:], lambda part: larger(part.name, *shared(part), "surrogate_loss"))


@claim(
    8,
    "section 5.2.1, figure 2(d)",
    "Clients' losses, weighted as in the surrogate problem, end further apart with identical weights everywhere.",
    "deviation of the surrogate loss over clients, identical − time-based > 0",
)
def surrogate_deviation(book: Book) -> Iterator[Case]:
    """Every data set."""
    yield from over(book, "fig2", DATA, lambda part: larger(part.name, *shared(part), "surrogate_deviation"))


@claim(
    9,
    "section 5.2.2, figure 2(a)",
    "At first the federated loss falls faster with identical weights.",
    f"federated loss, time-based − identical > 0, at the first grid time at which the mean with identical weights has "
    f"done {100 * EARLY:g} % of its descent from start to lowest; undecided if the grid begins after {100 * LATE:g} %",
)
def faster_at_first(book: Book) -> Iterator[Case]:
    """Every data set."""

    def early(part: Part) -> Case:
        first, second = (runs.values("loss") for runs in shared(part))
        seeds = (first.isel(time=0).notnull() & second.isel(time=0).notnull()).values
        if not seeds.any():
            raise NotRun("no seed was run under both weight rules")
        first, second = first.isel(seed=seeds), second.isel(seed=seeds)
        mean = first.mean("seed", skipna=False)
        descent = float(mean[0] - mean.min())
        if not descent > 0:
            return Case(part.name, verdict="undecided", note="the loss never falls with identical weights")
        at = int(np.argmax((mean <= mean[0] - EARLY * descent).values))
        x, y = second.isel(time=at), first.isel(time=at)
        done = float(mean[0] - mean[at]) / descent
        when = f"at time {float(mean['time'][at]):g}, {100 * done:.0f} % of the descent" + (
            ", the first point of the grid" if at == 1 else ""
        )
        known(part.name, x, y)
        case = Case.positive(part.name, paired(x.values, y.values), f"{against(x, y)}; {when}")
        if at == 1 and done > LATE:
            return replace(case, verdict="undecided", note=f"{case.note}: too late to see the beginning")
        return case

    yield from over(book, "fig2", DATA, early)


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
