"""Axes around measures: limits, logarithmic where values spread far, and names with units."""

from __future__ import annotations

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedtempo.clock.times import Floats

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
