"""What every figure shares: its fonts and inks, and how it becomes a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedtempo.errors import InputError
from fedtempo.report.files import write_whole

ENDINGS = ("svg", "png", "pdf")
INK = "#33373d"
STYLE: Any = {
    "font.size": 9.0,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "fedtempo",
    "svg.fonttype": "path",
    "axes.edgecolor": INK,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def ending_of(path: Path, example: str) -> str:
    """The file's ending, which says whether it is SVG, PNG or PDF."""
    ending = path.suffix.lower().lstrip(".")
    if ending not in ENDINGS:
        raise InputError(f"{path}: the ending must be one of {', '.join(ENDINGS)}, as in {example}")
    return ending


def save_figure(figure: Figure, path: Path, *, example: str) -> None:
    """Write a figure whole or not at all; the same figure gives the same bytes."""
    ending = ending_of(path, example)
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
    with rc_context(STYLE):
        write_whole(path, lambda file: figure.savefig(file, format=ending, dpi=160, metadata=metadata))
