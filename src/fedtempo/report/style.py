"""What every figure shares: fonts and inks, how schemes and weight rules look, axes, and how it becomes a file.

A colour is a scheme, a hue a family of schemes. A line is solid for time-based weights, dashed for identical ones,
dotted for importance alone. Axes are logarithmic where values spread far, and have names with units.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedtempo.clock.times import Floats
from fedtempo.errors import InputError
from fedtempo.files import write_whole
from fedtempo.simulation.history.history import History
from fedtempo.simulation.history.summary import FAIR

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


_FAMILIES = {
    "FedAvg": ("#2b2b2b",),
    "AsyncFedAvg": ("#d55e00",),
    "FedFix": ("#0072b2", "#56b4e9", "#0a3a66", "#8fa8d8"),
    "FedBuff": ("#009e73", "#7fcfa8", "#00523b", "#a6b34b"),
}
_OTHERS = ("#cc79a7", "#e69f00", "#7a4b2a", "#8c8c8c", "#5e3c99", "#b2182b")
_DASHES: dict[str, Any] = {
    FAIR: "-",
    "identical": (0, (4.0, 1.8)),
    "importance": (0, (1.0, 1.6)),
}
_OTHER_DASHES = ((0, (5.0, 1.5, 1.0, 1.5)), (0, (3.0, 1.2, 1.0, 1.2, 1.0, 1.2)))


def colours(schemes: list[str]) -> dict[str, str]:
    """A colour for each scheme, which its family decides; distinct without colour vision through lightness."""
    used: dict[str, int] = {}
    chosen = {}
    for scheme in schemes:
        family = scheme.split("(")[0]
        shades = _FAMILIES.get(family, _OTHERS)
        key = family if family in _FAMILIES else ""
        chosen[scheme] = shades[used.get(key, 0) % len(shades)]
        used[key] = used.get(key, 0) + 1
    return chosen


def dashes(rules: list[str]) -> dict[str, Any]:
    """A line style for each weight rule."""
    others = [rule for rule in rules if rule not in _DASHES]
    return {r: _DASHES[r] if r in _DASHES else _OTHER_DASHES[others.index(r) % len(_OTHER_DASHES)] for r in rules}


def entries(history: History) -> list[Line2D]:
    """What a legend lists: the schemes, and the weight rules where there is more than the time-based one."""
    dataset = history.dataset
    schemes, rules = dataset["scheme"].values.tolist(), dataset["weights"].values.tolist()
    handles = [Line2D([], [], color=colour, linewidth=2.4, label=name) for name, colour in colours(schemes).items()]
    if rules != [FAIR]:
        styles = dashes(rules).items()
        handles += [Line2D([], [], color=INK, linestyle=s, linewidth=1.4, label=f"{r} weights") for r, s in styles]
    return handles


def legend(figure: Figure, history: History) -> None:
    """Below the axes, where it covers no line."""
    handles = entries(history)
    width = figure.get_figwidth()
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(width / max(1.75, 0.6 + 0.08 * longest))))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5, handlelength=2.6
    )


_LARGE = 4.0  # from this ratio of the largest to the smallest value on, the axis is logarithmic


def scale(axes: Axes, which: Literal["x", "y"], values: Floats, *, logarithmic: bool) -> None:
    """Limits around the values, on a logarithmic axis when they are positive and spread far."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    limits, axis = (axes.set_xlim, axes.xaxis) if which == "x" else (axes.set_ylim, axes.yaxis)
    if logarithmic and low > 0 and high / low > _LARGE:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        margin = (high / low) ** 0.06
        limits(low / margin, high * margin)
        if high / low < 300:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    elif high > low:
        limits(low - 0.06 * (high - low), high + 0.06 * (high - low))


def bare(axes: Axes) -> None:
    """Without a frame, on faint lines."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#e3e6ea", linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)


def titled(attrs: dict[str, object], other: str) -> str:
    """The name of a variable, with its unit."""
    name, units = str(attrs.get("long_name", "") or other), str(attrs.get("units", ""))
    return f"{name} [{units}]" if units not in ("", "1") and units not in name else name


def floor_of(values: Floats) -> float:
    """The smallest value when all are positive, for bands on a logarithmic axis."""
    finite = values[np.isfinite(values)]
    return float(finite.min()) / 2 if finite.size and finite.min() > 0 else 0.0
