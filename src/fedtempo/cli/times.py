"""``fedtempo times``: the catalogue of published client times, each with its source."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedtempo.cli import options as o
from fedtempo.clock.devices import CATALOGUE, Published, named


def times(
    name: Annotated[str | None, typer.Argument(help="One of them: its times, too.", show_default="all")] = None,
    clients: Annotated[int, typer.Option("--clients", "-M", help="How many clients to show.")] = 10,
    seed: Annotated[int, typer.Option("--seed", help="Which client is which device.")] = 0,
    as_json: o.AsJson = False,
) -> None:
    """List published client times, for --times: what was published, what is made of it, and where it is from."""
    if name is None:
        if as_json:
            typer.echo(json.dumps([_entry(entry) for entry in CATALOGUE.values()], ensure_ascii=False))
        else:
            typer.echo("\n\n".join(_said(entry) for entry in CATALOGUE.values()))
            typer.echo("\nUse one by name: fedtempo plan --times tifl --clients 20 (tifl:1 deals the devices out anew)")
        return
    made = named(name, clients, seed=seed)
    if as_json:
        document = {**_entry(CATALOGUE[name]), "law": made.law, "times": made.describe()}
        typer.echo(json.dumps(document, ensure_ascii=False))
        return
    typer.echo(_said(CATALOGUE[name]))
    typer.echo(f"\n{clients} clients, seed {seed}, {made.law} times, mean of each:")
    typer.echo("  ".join(f"{mean:.4g}" for mean in made.mean_time.tolist()))


def _entry(entry: Published) -> dict[str, str]:
    return {
        "name": entry.name,
        "unit": entry.unit,
        "published": entry.found,
        "derived": entry.derived,
        "source": entry.source,
    }


def _said(entry: Published) -> str:
    rows = {"published": entry.found, "here": entry.derived, "unit": entry.unit, "source": entry.source}
    return "\n".join([entry.name, *(_wrapped(label, text) for label, text in rows.items())])


def _wrapped(label: str, text: str) -> str:
    from textwrap import fill

    return fill(text, 100, initial_indent=f"  {label:<11}", subsequent_indent=" " * 13)
