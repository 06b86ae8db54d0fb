"""A recorded run on a terminal: reality beside simulation and plan, measures, client by client, what went wrong.

Names come from clients and folders: they are printed as they are, without what a terminal or Rich would make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape

from fedtempo.flower.comparison import Comparison, RunNumbers
from fedtempo.flower.courses import Course, courses
from fedtempo.flower.result import in_bytes
from fedtempo.flower.text import clean
from fedtempo.report.page import console, titled_table
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
    """The run, its clients, its faults, and how to read the columns."""
    out = console()
    out.print(
        f"[bold]{_word(run.record.scheme.label)} on Flower[/bold]: {counted(len(run.active), 'client')} took part, "
        f"{float(run.length):.1f} s of training"
    )
    _show_totals(out, run)
    _show_measures(out, courses(run.record.measured))
    _show_clients(out, run)
    if run.record.faults:
        _show_faults(out, run)
    out.print()
    for sentence in _reading(run):
        out.print(sentence, soft_wrap=not out.is_terminal)


def order_of(names: Sequence[str]) -> list[int]:
    """Clients by name, by number where all names are whole numbers."""
    whole = all(name.isdecimal() for name in names)
    return sorted(range(len(names)), key=lambda i: (int(names[i]) if whole else 0, names[i]))


def _show_totals(out: Console, run: Comparison) -> None:
    table = titled_table(out, "The run")
    table.add_column("", no_wrap=True)
    for name in ("reality", "simulation", "plan"):
        table.add_column(name, justify="right")
    for name, number in _ROWS.items():
        columns = (run.reality, run.simulation, run.plan)
        table.add_row(name, *(NONE if column is None else _number(number(column)) for column in columns))
    received = int(run.record.bytes_up.sum())
    if received:  # older records do not tell
        table.add_row("received", in_bytes(received), NONE, NONE)
    out.print(table)


def _show_measures(out: Console, found: Sequence[Course]) -> None:
    """The last and the best of each measure; below, what is plainly wrong."""
    if not found:
        return
    table = titled_table(out, "Measures of the model")
    table.add_column("", no_wrap=True)
    table.add_column("by", no_wrap=True)
    for name in ("rounds", "best", "in round", "last", "in round"):
        table.add_column(name, justify="right")
    for course in found[:_MOST_MEASURES]:
        best = (NONE, NONE) if course.best is None else (f"{course.best[1]:.4g}", str(course.best[0]))
        last = (f"{course.last[1]:.4g}", str(course.last[0]))
        table.add_row(_word(course.name), course.whose, str(course.rounds), *best, *last)
    out.print(table)
    if len(found) > _MOST_MEASURES:
        out.print(f"and {len(found) - _MOST_MEASURES} more")
    for wrong in filter(None, (course.wrong for course in found)):
        out.print(f"[bold red]{_word(wrong)}.[/bold red]", soft_wrap=not out.is_terminal)


def _show_clients(out: Console, run: Comparison) -> None:
    table = titled_table(out, "Clients: share of rounds in reality, simulation and plan; weights and their effect")
    table.add_column("client", no_wrap=True)
    names = ("s per job", "jobs", "reality", "simulation", "plan", "weight used", "planned", "counted for", "p")
    for name in names:
        table.add_column(name, justify="right")
    for i in order_of(run.record.names):
        client = run.clients[i]
        table.add_row(
            _word(client.name),
            _number(client.seconds),
            str(client.jobs),
            *(_share(share) for share in client.share),
            _number(client.weight),
            _number(client.planned_weight),
            _share(client.counted),
            _share(client.importance),
        )
    out.print(table)


def _show_faults(out: Console, run: Comparison) -> None:
    table = titled_table(out, "What went wrong, and how often")
    rows = [(run.clients[i].name, run.clients[i].faults) for i in order_of(run.record.names)]
    rows = [(name, faults) for name, faults in [*rows, ("nobody's", run.server_faults)] if faults]
    kinds = list(dict.fromkeys(fault.kind for fault in run.record.faults))
    table.add_column("client", no_wrap=True)
    for kind in kinds:
        table.add_column(_word(kind), justify="right")
    for name, faults in rows:
        table.add_row(_word(name), *(str(faults.get(kind) or NONE) for kind in kinds))
    out.print(table)


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


def _word(text: str) -> str:
    """A name of somebody else's."""
    return escape(clean(text))


def _number(value: float | None) -> str:
    return NONE if value is None else short(value)


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"
