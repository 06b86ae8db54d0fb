"""A study in this process, in two processes, and on two workers of Dask: seconds, in turn, and what an order costs.

    python benchmarks/workers.py [--repeats 3]

The first call of each kind starts its processes and compiles; the others show what a longer study would see. Bits are
compared every time.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.simulation.executors import workers_of


def study(until: int, seeds: int, **where: Any) -> ft.History:
    """Three schemes, `seeds` seeds: a unit each."""
    return ft.simulate(
        ft.problems.digits(clients=12),
        [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2")],
        ft.FixedTimes.spread(clients=12, slowdown=80),
        until=until,
        local=ft.LocalSGD(steps=1, lr=[0.05, 0.1], batch_size=32),
        seeds=range(seeds),
        points=5,
        engine="events",
        **where,
    )


def same(one: ft.History, other: ft.History) -> bool:
    names = [name for name, values in one.dataset.items() if "time" in values.dims or "seed" in values.dims]
    return all(np.array_equal(one.dataset[n].values, other.dataset[n].values, equal_nan=True) for n in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--until", type=int, default=20000)
    parser.add_argument("--seeds", type=int, default=8)
    asked = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from distributed import Client, LocalCluster

    with ExitStack() as stack:
        begin = time.perf_counter()
        cluster = stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None))
        client = stack.enter_context(Client(cluster))
        dask: Any = client.get_executor(pure=False)
        print(f"Dask's two workers are up after {time.perf_counter() - begin:.1f} s")
        pool: Any = stack.enter_context(workers_of(None, 2))
        kinds: dict[str, Callable[..., ft.History]] = {
            "this process": study,
            "2 processes": lambda until, seeds: _by(pool, until, seeds),
            "Dask, 2 workers": lambda until, seeds: study(until, seeds, executor=dask),
        }
        for title, until, seeds in (
            (f"{3 * asked.seeds} units of some seconds", asked.until, asked.seeds),
            ("300 units of next to nothing", 20, 100),
        ):
            print(f"\n{title}")
            first = {name: _timed(run, until, seeds) for name, run in kinds.items()}
            reference = first["this process"][1]
            spent: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(asked.repeats):
                for name, run in kinds.items():
                    seconds, found = _timed(run, until, seeds)
                    spent[name].append(seconds)
                    assert same(found, reference), name
            here = statistics.median(spent["this process"])
            for name, values in spent.items():
                middle = statistics.median(values)
                print(
                    f"{name:16} first {first[name][0]:6.1f} s, then {min(values):6.2f} to {max(values):6.2f} s, "
                    f"{here / middle:.2f} times this process, {1000 * (middle - here) / (3 * seeds):+.1f} ms a unit"
                )


def _by(pool: Any, until: int, seeds: int) -> ft.History:
    """With processes that stay from call to call."""
    from unittest.mock import patch

    from fedtempo.simulation import study as place

    with patch.object(place, "workers_of", lambda executor, workers: _kept(pool)):
        return study(until, seeds, workers=2)


class _kept:
    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def __enter__(self) -> Any:
        return self.pool

    def __exit__(self, *error: object) -> None:
        pass


def _timed(run: Callable[..., ft.History], until: int, seeds: int) -> tuple[float, ft.History]:
    begin = time.perf_counter()
    found = run(until, seeds)
    return time.perf_counter() - begin, found


if __name__ == "__main__":
    main()
