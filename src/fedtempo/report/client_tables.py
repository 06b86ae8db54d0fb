"""What each client has: its weight d_i, its share of rounds, its contributions to a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedtempo.clock.cycle import Cycle
from fedtempo.clock.ticks import text
from fedtempo.report.page import Grid, Page, page, table
from fedtempo.report.tables import MOST, exactly, weights_in
from fedtempo.report.text import counted, short
from fedtempo.weighting.long_run import Participation
from fedtempo.weighting.weights import Weights


def weights_page(weights: Weights) -> Page:
    """Their rule, and d_i of every client; a column a stage where there are several."""
    stages = range(weights.num_stages)
    values = [weights_in(weights, stage) for stage in stages]
    heads = ["weight d"] if weights.num_stages == 1 else [f"d from {begin}" for begin in _begins(weights)]
    steps = "" if weights.steps is None else f", step {', '.join(map(short, weights.steps))}"
    follow = "They follow from the rounds; these are those of the long run: use .applied(timeline)."
    return page(
        f"{weights.rule.label} weights of {counted(len(weights), 'client')}{steps}",
        *_by_client("Weights", heads, [[exactly(of_stage[i]) for of_stage in values] for i in range(len(weights))]),
        follow if weights.tracked else None,
    )


def _begins(weights: Weights) -> list[str]:
    if weights.first_times is not None:
        return [f"time {text(begin)}" for begin in weights.first_times]
    return [f"round {first}" for first in weights.first_rounds]


def participation_page(part: Participation) -> Page:
    """Each client's share of rounds, and how it is known."""
    heads = ["share of rounds" if part.taking_part is None else "draws a round"]
    columns = [[exactly(s) for s in (part.share.tolist() if part.exact is None else part.exact)]]
    for head, values in (("share of rounds", part.taking_part), ("standard error", part.error)):
        if values is not None:
            heads.append(head)
            columns.append([short(value) for value in values.tolist()])
    return page(
        f"{counted(len(part.share), 'client')}, {short(part.updates_per_round)} updates per round on average; "
        f"known by {_SOURCES[part.source]}",
        *_by_client("Participation", heads, list(zip(*columns, strict=True))),
    )


_SOURCES = {"closed form": "a closed form", "cycle": "the limit cycle", "estimate": "a long run"}


def cycle_page(cycle: Cycle) -> Page:
    """Which rounds repeat, and who contributes to them."""
    rows = [(str(count), text(share)) for count, share in zip(cycle.counts.tolist(), cycle.participation, strict=True)]
    return page(
        f"{counted(cycle.length, 'round')} from round {cycle.start} on repeat every {text(cycle.duration)}; "
        f"mean delay {short(float(cycle.mean_delay))}",
        *_by_client("Contributions to a cycle", ("contributions", "share of rounds"), rows),
    )


def _by_client(title: str, heads: Iterable[str], rows: Sequence[Sequence[str]]) -> list[Grid | str]:
    """The first clients, and how many more there are."""
    shown = table(title, ("client", *heads), ((str(i), *row) for i, row in enumerate(rows[:MOST])))
    more = f"… and {len(rows) - MOST} more clients: .table() lists them all"
    return [shown, more] if len(rows) > MOST else [shown]
