"""Studies and executors for tests of workers; what workers import lies here."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedtempo as ft
from fedtempo.simulation.worker import Order

CLIENTS, ROWS, WIDTH = 4, 30, 5


def init(key: Any) -> Any:
    return jnp.zeros(WIDTH)


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean((batch["x"] @ params - batch["y"]) ** 2) / 2


def problem() -> ft.Problem:
    """Made of arrays: it has no name by which workers could make it."""
    drawn = np.random.default_rng(3)
    rows = [drawn.normal(size=(ROWS, WIDTH)) for _ in range(CLIENTS)]
    data = [{"x": x, "y": x.sum(axis=1) + client + drawn.normal(size=ROWS)} for client, x in enumerate(rows)]
    return ft.Problem(init, loss, data, name="made of arrays")


def study(**changes: Any) -> ft.History:
    """Eight units of two runs."""
    given: dict[str, Any] = {
        "problem": problem(),
        "schemes": [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(2)],
        "times": ft.FixedTimes([1, 2, 2, 5]),
        "until": 60,
        "local": ft.LocalSGD(lr=[0.02, 0.1], steps=1, batch_size=4),
        "seeds": [0, 1],
        "points": 11,
        "dtype": "float64",
        "engine": "events",
    }
    return ft.simulate(**{**given, **changes})


def assert_same(one: ft.History, other: ft.History) -> None:
    """Every number, to the last bit."""
    assert set(one.dataset.data_vars) == set(other.dataset.data_vars)
    for name in one.dataset.data_vars:
        first, second = one.dataset[name], other.dataset[name]
        assert first.dims == second.dims
        assert np.array_equal(first.values, second.values, equal_nan=first.dtype.kind == "f"), name


class Changed(ThreadPoolExecutor):
    """One worker, whose orders are changed on their way; all of them are kept."""

    def __init__(self, change: Callable[[Any], Any] = lambda order: order, workers: int = 1) -> None:
        super().__init__(workers)
        self.change, self.orders = change, []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        order = self.change(args[0])
        self.orders.append(order)
        return super().submit(fn, order)


def elsewhere(order: Order) -> Order:
    """As on a machine that does not see the folder."""
    return order._replace(desk="/no/such/desk", folder=None if order.folder is None else "/no/such/folder")
