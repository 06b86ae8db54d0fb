"""When clients are there, as commands and study files say it: ``--failure 0.1 --on 10 --off 5``, or the same keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtempo.clock.times import ClientTimes

Failure = Annotated[
    str | None,
    typer.Option("--failure", help="Probability that a job fails: 0.1, or one per client.", show_default="0"),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", help="Mean time that a client is there, before it goes away; with --off.", show_default="always"
    ),
]
Off = Annotated[
    str | None,
    typer.Option(
        "--off", help="Mean time that it is away, before it comes back; one, or one per client.", show_default=False
    ),
]
Absences = Annotated[
    str | None,
    typer.Option("--absences", help="When clients are away: a file with client,leaves,returns.", show_default=False),
]
Period = Annotated[
    str | None, typer.Option("--period", help="Time after which the absences repeat.", show_default="they do not")
]

AVAILABILITY = ("failure", "on", "off", "absences", "period")
"""What says when clients are there, as keys and as flags."""


def with_availability(times: ClientTimes, **given: object) -> ClientTimes:
    """The clients as `--failure`, `--on`, `--off`, `--absences` and `--period` say; lists may be text, as 0.1,0.2."""
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in ("failure", "on", "off"):
        value = found.get(name)
        if isinstance(value, str) and "," in value:
            found[name] = [part.strip() for part in value.split(",")]
    if isinstance(found.get("absences"), str):
        found["absences"] = Path(found["absences"])
    return times.available(**found) if found else times
