"""The README's example: what is recommended, against a fine grid of 100 cells trained to the end.

    python benchmarks/planner_example.py [--seeds 8] [--budget 100%]

Ten schemes at ten rates in steps of √2 to 2 and the recommended cell are trained under seeds that the planner has not
seen. The best cell of the grid is found on one half of them, and compared with on the other.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import fedtempo as ft

SCHEMES = [
    ft.FedAvg(),
    ft.AsyncFedAvg(),
    *(ft.FedFix(wait) for wait in ("1/16", "1/8", "1/4", "1/2")),
    *(ft.FedBuff(size) for size in (2, 3, 5, 10)),
]
RATES = [1.0, 2.0, 5.0, 7.1, 10.0, 14.1, 20.0, 28.3, 40.0, 57.0]


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--seeds", type=int, default=8)
    ask.add_argument("--budget", default="100%")
    asked = ask.parse_args()
    problem, times = ft.problems.digits(20), ft.FixedTimes.spread(20, 80)
    local = ft.LocalSGD(steps=1, batch_size=32)
    begin = time.perf_counter()
    made = ft.recommend(problem, times, until=200, local=local, budget=asked.budget)
    print(made)
    print(f"{time.perf_counter() - begin:.1f} s in all\n", flush=True)

    def losses(schemes: list[ft.Scheme], rates: list[float]) -> np.ndarray:
        """[schemes, rates, seeds] over the last tenth."""
        history = ft.simulate(
            problem,
            schemes,
            times,
            until=200,
            local=ft.LocalSGD(steps=1, batch_size=32, lr=rates),
            seeds=range(1000, 1000 + asked.seeds),
            points=17,
            measure_from=180,
        )
        found = history.dataset["loss"].isel(weights=0).transpose("scheme", "local_lr", "seed", "time")
        return np.where(np.isfinite(found.values).all(axis=-1), found.values[..., 1:].mean(axis=-1), np.inf)

    grid = losses(SCHEMES, RATES)
    ours = losses([made.best.scheme], [made.best.local_lr])[0, 0]
    half = np.arange(asked.seeds) % 2 == 0
    means = grid[..., half].mean(axis=-1)
    s, r = np.unravel_index(np.argmin(means), means.shape)
    best = grid[s, r][~half]
    print(
        f"grid: {SCHEMES[s].label} at {RATES[r]:g}: {best.mean():.4f} on the other half, {grid[s, r].mean():.4f} on all"
    )
    print(f"recommended: {ours[~half].mean():.4f} and {ours.mean():.4f} ± {ours.std(ddof=1) / len(ours) ** 0.5:.4f}")
    print(f"ratio {ours[~half].mean() / best.mean():.3f}; of all seeds {ours.mean() / grid.mean(axis=-1).min():.3f}")


if __name__ == "__main__":
    main()
