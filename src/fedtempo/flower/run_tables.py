"""A recorded run in tables: reality beside simulation and plan, measures, client by client, what went wrong.

Names come from clients and folders: they are printed as they are, without what a terminal or Rich would make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedtempo.flower.comparison import Comparison, RunNumbers
from fedtempo.flower.courses import Course, courses
from fedtempo.flower.result import in_bytes
from fedtempo.flower.text import clean
from fedtempo.report.page import BLANK, Grid, Line, Page, names, page, table
from fedtempo.report.text import NONE, counted, short
from fedtempo.schemes.table import NamedRule

_ROWS: dict[str, Callable[[RunNumbers], float | None]] = {
    "rounds": lambda run: run.rounds,
    "rounds without updates": lambda run: run.empty_rounds,
    "updates": lambda run: run.updates,
    "updates per round": lambda run: run.updates_per_round,
    "staleness, mean": lambda run: run.mean_staleness,
    "staleness, largest": lambda run: run.max_staleness,
}

_MOST_MEASURES = 12
"""Rows of measures: clients may send a hundred."""


def show_run(run: Comparison) -> None:
    """Print it."""
    run_page(run).show()


def run_page(run: Comparison, *, most: int = _MOST_MEASURES) -> Page:
    """The run, its measures (the first `most` of them), its clients, its faults, and how to read the columns."""
    took = f" on Flower: {counted(len(run.active), 'client')} took part, {float(run.length):.1f} s of training"
    name = clean(run.record.scheme.label)
    begin, end = took.split(":", 1)
    return page(
        Line(f":{end}", bold=f"{name}{begin}"),
        _totals(run),
        *_measures(courses(run.record.measured), most),
        clients_grid(run),
        _faults(run) if run.record.faults else None,
        BLANK,
        *_reading(run),
    )


def order_of(names: Sequence[str]) -> list[int]:
    """Clients by name, by number where all names are whole numbers."""
    whole = all(name.isdecimal() for name in names)
    return sorted(range(len(names)), key=lambda i: (int(names[i]) if whole else 0, names[i]))


def _totals(run: Comparison) -> Grid:
    columns = (run.reality, run.simulation, run.plan)
    rows = [
        (name, *(NONE if column is None else _number(number(column)) for column in columns))
        for name, number in _ROWS.items()
    ]
    received = int(run.record.bytes_up.sum())
    if received:  # older records do not tell
        rows.append(("received", in_bytes(received), NONE, NONE))
    return table("The run", (names(""), "reality", "simulation", "plan"), rows)


def _measures(found: Sequence[Course], most: int) -> Iterator[Grid | Line]:
    """The last and the best of each measure; below, what is plainly wrong."""
    if not found:
        return
    rows = []
    for course in found[:most]:
        best = (NONE, NONE) if course.best is None else (f"{course.best[1]:.4g}", str(course.best[0]))
        last = (f"{course.last[1]:.4g}", str(course.last[0]))
        rows.append((clean(course.name), course.whose, str(course.rounds), *best, *last))
    heads = (names(""), names("by"), "rounds", "best", "in round", "last", "in round")
    yield table("Measures of the model", heads, rows)
    if len(found) > most:
        yield Line(f"and {len(found) - most} more")
    for wrong in filter(None, (course.wrong for course in found)):
        yield Line(f"{clean(wrong)}.", alarm=True)


def clients_grid(run: Comparison) -> Grid:
    """A row a client that took part."""
    rows = []
    for i in order_of(run.record.names):
        client = run.clients[i]
        rows.append(
            (
                clean(client.name),
                _number(client.seconds),
                str(client.jobs),
                *(_share(share) for share in client.share),
                _number(client.weight),
                _number(client.planned_weight),
                _share(client.counted),
                _share(client.importance),
            )
        )
    heads = ("s per job", "jobs", "reality", "simulation", "plan", "weight used", "planned", "counted for", "p")
    title = "Clients: share of rounds in reality, simulation and plan; weights and their effect"
    return table(title, (names("client"), *heads), rows)


def _faults(run: Comparison) -> Grid:
    found = [(run.clients[i].name, run.clients[i].faults) for i in order_of(run.record.names)]
    found = [(name, faults) for name, faults in [*found, ("nobody's", run.server_faults)] if faults]
    kinds = list(dict.fromkeys(fault.kind for fault in run.record.faults))
    rows = [(clean(name), *(str(faults.get(kind) or NONE) for kind in kinds)) for name, faults in found]
    return table("What went wrong, and how often", (names("client"), *map(clean, kinds)), rows)


def _reading(run: Comparison) -> list[str]:
    if run.simulated is None:
        rule = run.record.scheme.waiting
        why = (
            f"the folder names {rule.name}, and names from a folder are not imported. If you trust it, pass it as "
            "--scheme."
            if isinstance(rule, NamedRule)
            else "the scheme chooses clients by the losses of trained models."
        )
        return [f"There is no simulation and no plan: {why}", "p: importance among the clients that took part."]
    differs = run.first_difference
    said = [
        "Reality and simulation are the same, round by round."
        if differs is None
        else f"Reality and simulation differ from round {differs} on: in the simulation every client is always "
        "available and nothing is "
        f"lost{', and everything about clients is known from the start' if run.scheme.waiting.needs else ''}.",
        "simulation: the same scheme with the recorded durations replayed. plan: its long run with their means, and "
        "time-based weights. p: importance among the clients that took part.",
    ]
    if run.scheme != run.record.scheme:
        few = counted(len(run.active), "client")
        said.append(f"Simulation and plan are FedAvg's: {few} took part, fewer than {run.record.scheme.label} takes.")
    return said


def _number(value: float | None) -> str:
    return NONE if value is None else short(value)


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"
