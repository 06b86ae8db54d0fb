"""What happened as a picture: losses in time, and below, for each scheme, who worked when.

A bar is a job, from the model sent to the update that came back, in the colour of its delay n − ρ_i(n); a pale bar is
an update that waits for its round to end. A vertical line is a new model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedtempo.report.inks import colours
from fedtempo.report.style import INK, STYLE, save_figure

if TYPE_CHECKING:
    from demo import Outcome


def save_demo(outcomes: Sequence[Outcome], seconds: float, path: Path) -> None:
    """Draw and write; the ending says as what."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8.0, 3.0 + 1.9 * len(outcomes)), layout="constrained")
        top, *lanes = figure.subplots(1 + len(outcomes), 1, sharex=True, height_ratios=[2.4, *[1.5] * len(outcomes)])
        _losses(top, outcomes, seconds)
        largest = max(update["delay"] for one in outcomes for update in one.updates)
        paint = colormaps["viridis_r"](np.linspace(0.18, 0.95, largest + 1))
        for axes, one in zip(lanes, outcomes, strict=True):
            _lanes(axes, one, paint, seconds)
        lanes[-1].set_xlabel("seconds of training")
        handles = [Patch(facecolor=paint[k], label=f"delay {k}" if k == 0 else str(k)) for k in range(largest + 1)]
        handles.append(Patch(facecolor="#e4e7ec", edgecolor="#9aa1ad", hatch="////", label="update waits"))
        figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False, fontsize=8.5)
        save_figure(figure, path, example="flower-demo.png")


def _losses(axes: Axes, outcomes: Sequence[Outcome], seconds: float) -> None:
    ink = colours([one.scheme.label for one in outcomes])
    for one in outcomes:
        when = [point["seconds"] for point in one.measured] + [seconds]
        loss = [point["loss"] for point in one.measured] + [one.measured[-1]["loss"]]
        label = f"{one.scheme.label}, learning rate {one.local_lr:g}"
        axes.step(when, loss, where="post", color=ink[one.scheme.label], linewidth=1.8, label=label)
        axes.plot(when[:-1], loss[:-1], "o", color=ink[one.scheme.label], markersize=4)
    axes.set_xlim(0, seconds)
    axes.set_ylabel("federated loss")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e5e9", linewidth=0.8)
    axes.set_axisbelow(True)
    ends = ", ".join(f"{one.scheme.label} {one.measured[-1]['loss']:.3g}" for one in outcomes)
    axes.set_title(f"Loss after {seconds:g} s: {ends}", loc="left", fontsize=10, fontweight="bold")


def _lanes(axes: Axes, one: Outcome, paint: np.ndarray, seconds: float) -> None:
    sites = sorted({update["client"] for update in one.updates})
    for used in {update["used"] for update in one.updates}:
        axes.axvline(used, color=INK, linewidth=0.8, alpha=0.6, zorder=0)
    for update in one.updates:
        lane, sent, back = sites.index(update["client"]), update["sent"], update["back"]
        colour = paint[update["delay"]]
        axes.barh(lane, back - sent, left=sent, height=0.62, color=colour, edgecolor="white", linewidth=0.7)
        waits = update["used"] - back
        axes.barh(lane, waits, left=back, height=0.3, color="#e4e7ec", edgecolor="#9aa1ad", linewidth=0.4, hatch="////")
    axes.set_yticks(range(len(sites)), [f"site {name}" for name in sites])
    axes.set_ylim(len(sites) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(f"{one.scheme.label}: {len(one.updates)} updates", loc="left", fontsize=9.5)
