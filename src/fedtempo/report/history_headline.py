"""A history in a line, and in the few lines that Python shows of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fedtempo.history_choice import listed
from fedtempo.report.phrases import counted
from fedtempo.report.tables import short

if TYPE_CHECKING:
    from fedtempo.history import History


def headline(history: History) -> str:
    """The study in a line: its problem, its size, how it was computed."""
    attrs, dataset = history.attrs, history.dataset
    try:
        told = json.loads(attrs.get("problem", "{}"))
    except ValueError:
        told = {"name": attrs["problem"]}
    told = told if isinstance(told, dict) else {"name": str(told)}
    clients = told.get("clients", told.get("num_clients"))
    clients = dataset.sizes.get("client") if not isinstance(clients, int) else clients
    what = [str(told["name"])] if told.get("name") else []
    what += [counted(clients, "client")] if clients else []
    size = [counted(dataset.sizes["scheme"], "scheme"), counted(dataset.sizes["weights"], "weight rule")]
    size += [f"{dataset.sizes[name]} {name}" for name in history.hyper]
    size += [counted(dataset.sizes["seed"], "seed")]
    span = f"virtual time 0 to {short(dataset['time'].values[-1])}"
    how = [f"{attrs['engine']} engine" if attrs.get("engine") else "", str(attrs.get("dtype", ""))]
    about = ", ".join(filter(None, [span, *how]))
    return f"{', '.join(what)}{': ' * bool(what)}{' × '.join(size)}, {about}"


def described(history: History) -> str:
    """The dimensions, the measures, and how far the runs have come."""
    dataset = history.dataset
    times = dataset["time"].values
    lines = [f"<fedtempo.History: {headline(history)}>"]
    lines += [f"  {name:<12} {listed(dataset[name])}" for name in ("scheme", "weights", *history.hyper, "seed")]
    lines.append(f"  {'time':<12} {len(times)} points from {times[0]:g} to {times[-1]:g}")
    lines.append(f"  {'measures':<12} {', '.join(history.measures)}")
    runs, gone, left = history.diverged.size, int(history.diverged.sum()), int(history.unfinished.sum())
    state = "finished" if history.finished and not left else f"not finished ({left} without a final value)"
    lines.append(f"  {'runs':<12} {runs}, {gone} diverged, {state}")
    return "\n".join(lines)
