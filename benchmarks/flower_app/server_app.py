"""Measures, beside what the strategy itself counts, the wall time inside Flower's calls, asleep, and in between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from fedtempo.flower import FedAvg

app = ServerApp()
ARRAYS = 10


class TimedGrid:
    """Flower's Grid, with the seconds that its calls take."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> Any:
        return self._timed(lambda: list(self._grid.push_messages(messages)))

    def pull_messages(self, ids: Iterable[str]) -> Any:
        return self._timed(lambda: list(self._grid.pull_messages(ids)))

    def get_nodes(self) -> Any:
        return self._timed(lambda: list(self._grid.get_nodes()))

    def get_node_ids(self) -> Any:
        return self._timed(lambda: list(self._grid.get_node_ids()))

    def _timed(self, call: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - begin


class TimedClock:
    """The wall clock, with the seconds slept."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> int:
        return time.monotonic_ns()

    def sleep(self, until: int) -> None:
        begin = time.perf_counter()
        time.sleep(max(0.0, (until - time.monotonic_ns()) / 1e9))
        self.slept += time.perf_counter() - begin


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    part = int(settings["bytes"]) // 4 // ARRAYS
    rng = np.random.default_rng(0)
    arrays = ArrayRecord({f"layer {k}": Array(rng.normal(size=part).astype(np.float32)) for k in range(ARRAYS)})
    timed, clock = TimedGrid(grid), TimedClock()
    clients, rounds = int(settings["clients"]), int(settings["rounds"])
    strategy = FedAvg(min_available_nodes=clients, checkpoint=settings["checkpoint"] or None, clock=clock)
    while len(list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    begin = time.perf_counter()
    result = strategy.start(grid=timed, initial_arrays=arrays, num_rounds=rounds, timeout=300.0)
    total = time.perf_counter() - begin
    measured = {
        "round": total / rounds,
        "transport": timed.seconds / rounds,
        "ours": (total - timed.seconds - clock.slept) / rounds,
        "parts": {name: spent / rounds for name, spent in result.transport.seconds.items()},
        "rounds": len(result.rounds),
    }
    Path(str(settings["out"])).write_text(json.dumps(measured))
