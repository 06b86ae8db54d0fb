"""fedtempo on the work of others_work.py: its own logistic regression, or the same PyTorch module as the others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy

import fedtempo as ft
from growth import Watch
from others_work import BATCH, MIXING, TICK, WORKS, Lap, clients, initial

WATCH = Watch()
"""Its seconds are those of training, without the two measures of all rows, which the others do not make."""


@cache
def problem(name: str, module: bool) -> Any:
    if module:
        return ft.torch.problem(model=initial(name), loss=cross_entropy, data=clients(name), device="cpu")
    model = ft.problems.logistic(784, 10)
    data = [(x.numpy(), y.numpy().astype(np.int32)) for x, y in clients(name)]
    return ft.Problem(init=model.init, loss=model.loss, data=data)


def fedtempo_lap(name: str, updates: int, *, engine: str, runs: int = 1, module: bool = False) -> Lap:
    """Train `runs` learning rates together, the work's among them, to about that many updates over all runs."""
    work = WORKS[name]
    rates = [work.lr * 2 ** (-k / 4) for k in range(runs)]
    line = work.line(max(1, round(updates / runs)))
    history = ft.simulate(
        problem(name, module),
        ft.published.FedAsync(MIXING, staleness="constant:1"),
        work.times(),
        until=f"{line.ends[-1]}/{TICK}",
        local=ft.LocalSGD(steps=work.steps, lr=rates, batch_size=BATCH),
        points=2,
        engine=engine,  # type: ignore[arg-type]
    )
    seconds, cpu, _ = WATCH.taken()
    found = history.dataset.isel(time=-1)
    losses = found["loss"].values.reshape(-1, runs)[0] if runs > 1 else found["loss"].values.ravel()
    return Lap(round(float(found["updates"].mean()) * runs), seconds, cpu, float(losses[0]))
