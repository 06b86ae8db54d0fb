"""``fedtempo timeline``: who contributes to which round, as a table, a JSON document, a picture, Parquet or CSV."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtempo.cli import options as o
from fedtempo.cli.reading import client_times, read_importance, read_schemes
from fedtempo.clock.config import ClockConfig
from fedtempo.clock.generate import full_timeline, stream
from fedtempo.clock.importance import Importance
from fedtempo.clock.ticks import exact, text
from fedtempo.clock.timeline import Origin
from fedtempo.errors import InputError
from fedtempo.schemes.named import Scheme
from fedtempo.schemes.timeline_file import ENDINGS, write_rounds

log = logging.getLogger(__name__)

FORMAT = 1
MAX_LISTED = 50_000_000


def timeline(
    times: o.Times,
    until: Annotated[
        str, typer.Option("--until", help="Virtual time at which to stop; rounds that end by then are shown.")
    ],
    clients: o.Clients = None,
    law: o.Law = None,
    spread: o.Spread = None,
    resolution: o.Resolution = None,
    failure: o.Failure = None,
    on: o.On = None,
    off: o.Off = None,
    absences: o.Absences = None,
    period: o.Period = None,
    scheme: o.SchemeNames = None,
    wait: o.Waits = None,
    buffer: o.Buffers = None,
    sample: o.Samples = None,
    stage: o.Stages = None,
    importance: o.ImportanceText = None,
    seed: o.Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Draw it into this file: timeline.svg, .png or .pdf; or write a row an update, of any length: "
            "timeline.parquet or .csv.",
            show_default=False,
        ),
    ] = None,
    as_json: o.AsJson = False,
    verbose: o.Verbose = 0,
    quiet: o.Quiet = False,
) -> None:
    """Show the rounds of one scheme: when each ends, who contributes, from which model version."""
    if verbose or quiet:
        o.set_loudness(verbose, quiet)
    availability = {"failure": failure, "on": on, "off": off, "absences": absences, "period": period}
    known = client_times(times, clients, law, spread, resolution, **availability)
    chosen = read_schemes(scheme, known, waits=wait, buffers=buffer, samples=sample, stages=stage)
    if chosen is None or len(chosen) != 1:
        asked = "none" if chosen is None else ", ".join(c.label for c in chosen)
        raise InputError(f"--scheme: a timeline shows one scheme, not {asked}; give one, as --scheme fedfix --wait 1/2")
    horizon = exact(until, "--until")
    config = ClockConfig.of(
        chosen[0].waiting, known, Importance(read_importance(importance), known.num_clients).values, seed
    )
    if out is not None and out.suffix.lower() in ENDINGS:
        if as_json:
            _check_length(config, horizon)
        written = write_rounds(out, config, about={"scheme": chosen[0].spec(), "until": text(horizon)}, until=horizon)
        if as_json:
            _write(chosen[0], config, horizon)
        else:
            typer.echo(f"{out}: {written.rounds} rounds, {written.updates} updates of {known.num_clients} clients")
        return
    _check_length(config, horizon)
    if as_json and out is None:
        _write(chosen[0], config, horizon)
        return
    line = replace(full_timeline(config, until=horizon), origin=Origin(config, chosen[0].label, horizon))
    if out is not None:
        from fedtempo.report.timeline_figure import most_updates, save_timeline, title_of

        most = most_updates(known.num_clients)
        if line.num_updates > most:
            raise InputError(
                f"--out: {line.num_updates} updates make no readable picture; make --until at most "
                f"about {float(horizon) * most / line.num_updates:.2g}"
            )
        title = title_of(chosen[0].label, known.num_clients, line)
        save_timeline(config, line, out, until=float(horizon), title=title)
        log.info("drew %d rounds", line.num_rounds)
    if as_json:
        _write(chosen[0], config, horizon)
    elif out is not None:
        typer.echo(f"{out}: {line.num_rounds} rounds, {line.num_updates} updates of {known.num_clients} clients")
    else:
        from fedtempo.report.tables import show_timeline

        show_timeline(line)


def _check_length(config: ClockConfig, horizon: Fraction) -> None:
    """Refuse what would not fit in memory: every client busy all the time, and every interval of the rule."""
    per_time = float((1.0 / config.times.mean_time).sum()) + sum(1.0 / float(wait) for wait in config.rule.waits)
    expected = float(horizon) * per_time
    if expected > MAX_LISTED:
        raise InputError(
            f"--until: {text(horizon)} makes up to {expected:.2g} updates and rounds, more than a command lists; "
            f"make it at most {MAX_LISTED / per_time:.2g}, or write them to a file, as --out timeline.parquet"
        )


def _write(scheme: Scheme, config: ClockConfig, horizon: Fraction) -> None:
    """The JSON document on standard output, round by round, so that its length costs no memory."""
    full_timeline(config, max_rounds=1, until=horizon)  # says so if no round ends in time
    head = {"format": FORMAT, "scheme": scheme.spec(), "clients": config.num_clients, "until": text(horizon)}
    sys.stdout.write(json.dumps(head)[:-1] + ', "rounds": [')
    between = ""
    for chunk in stream(config, until=horizon):
        for closed in chunk.rounds:
            entry: dict[str, Any] = {
                "end": text(closed.end),
                "participants": list(closed.participants),
                "base_versions": list(closed.base_versions),
            }
            if chunk.draws is not None:
                entry["draws"] = list(closed.draws)
            sys.stdout.write(between + json.dumps(entry))
            between = ", "
    sys.stdout.write("]}\n")
