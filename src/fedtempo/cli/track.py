"""`--track`: which sinks a command has, and where they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtempo import track
from fedtempo.errors import InputError
from fedtempo.registry import imported, nearest

if TYPE_CHECKING:
    from fedtempo.simulation.telling import OnMeasure

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Follow the training in tensorboard, mlflow, wandb, csv or parquet, each with an optional place as in "
        "csv:points.csv; repeatable.",
        show_default=False,
    ),
]

_KNOWN: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "tensorboard": ("tensorboard", lambda place, name: track.tensorboard(place)),
    "mlflow": ("mlflow", lambda place, name: track.mlflow(place, name)),
    "wandb": ("wandb", lambda place, name: track.wandb(name, dir=place)),
    "csv": ("points.csv", lambda place, name: track.csv(place)),
    "parquet": ("points.parquet", lambda place, name: track.parquet(place)),
}
"""By name: the usual place in the folder for sinks, and what makes the sink of a place and the name of the study."""


def sinks(texts: Sequence[str] | None, folder: Path, units: str | None = None) -> list[OnMeasure]:
    """What `--track` asks for, for the study or run in a folder; nothing is written yet.

    `units`: the share of one of several jobs, each of which has a place of its own.
    """
    if not texts:
        return []
    from fedtempo.simulation.checkpoint import TRACK

    own = folder / TRACK / (units or "").replace("/", "-of-")

    found: dict[str, OnMeasure] = {}
    for text in texts:
        name, colon, place = text.partition(":")
        if text in found or (colon and not place):
            wrong = "it is given twice; leave one out" if text in found else "a place is missing after the colon"
            raise InputError(f"--track {text!r}: {wrong}")
        if name in _KNOWN:
            usual, make = _KNOWN[name]
            found[text] = make(place or str(own / usual), folder.resolve().name or "fedtempo")
        else:
            found[text] = _own(text, name, place)
    return list(found.values())


def _own(text: str, name: str, attribute: str) -> OnMeasure:
    """A function or a sink of the user's."""
    if not attribute.isidentifier() or get_close_matches(name, _KNOWN, n=1):
        raise InputError(
            f"--track: {name!r} is not known{nearest(name, tuple(_KNOWN))}, or "
            '"package.module:attribute" for one of your own'
        )
    thing: Any = imported(text, "--track")
    if isinstance(thing, type):
        thing = thing()
    if not callable(thing):
        raise InputError(f"--track: {text} is a {type(thing).__name__}; it must be called with (run, time, values)")
    given: OnMeasure = thing
    return given
