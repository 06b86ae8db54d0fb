"""The planner against a full grid, on settings drawn by one seed.

    python benchmarks/planner.py [--grid benchmarks/planner_grid.npz] [--markdown docs/planner_table.md]

For each setting of the group "penalty" (planner_settings.py) the planner chooses among the schemes and rates of the
grid; the grid, trained at the paper's step, says what each cell's loss really is: the mean over seeds of the last tenth
of the time, above the smallest possible loss. A ratio is the choice's excess over the best cell's; "of FedAvg" over
that of FedAvg at its best rate. planner_grid.py trains the cells of all groups, at the stable step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedtempo as ft
from planner_settings import COUNT, RATES, setting

FIRST = 8
"""Seeds of every cell."""
GRID = Path(__file__).with_name("planner_grid.npz")


def _spread(values: Any) -> Any:
    """Standard deviation over the seeds that there are."""
    there = np.isfinite(values)
    count = there.sum(axis=-1).clip(2)
    mean = np.where(there, values, 0.0).sum(axis=-1) / count
    return np.sqrt((np.where(there, values - mean[..., None], 0.0) ** 2).sum(axis=-1) / (count - 1))


def judged(k: int, grid: Any, pilot_seed: int) -> dict[str, Any]:
    """What the planner chooses in one setting, and what the grid says of it."""
    s = setting("penalty", k)
    excess = grid[f"{k}/loss"].astype(np.float64) - float(grid[f"{k}/best"])
    first = np.isfinite(excess[..., :FIRST]).all(axis=-1)  # further seeds are run near the best rates alone
    mean = np.where(first, np.nanmean(np.where(first[..., None], excess, 0.0), axis=-1), np.inf)
    error = _spread(np.where(first[..., None], excess, 0.0)) / np.sqrt(np.isfinite(excess).sum(axis=-1).clip(1))
    begin = time.perf_counter()
    made = ft.recommend(
        s.problem,
        s.times,
        until=s.until,
        local=ft.LocalSGD(steps=s.local_steps, batch_size=s.batch_size),
        schemes=s.schemes,
        rates=RATES,
        step="paper",  # as the grid was trained
        seed=pilot_seed,
    )
    seconds = time.perf_counter() - begin
    labels = list(grid[f"{k}/schemes"])
    row, column = labels.index(made.best.scheme.label), int(np.argmin(abs(np.array(RATES) - made.best.local_lr)))
    best = np.unravel_index(np.argmin(mean), mean.shape)
    fedavg = int(np.argmin(mean[0]))
    over = mean[row, column] - 1.1 * mean[0, fedavg]
    paired = excess[row, column] - 1.1 * excess[0, fedavg]
    paired = paired[np.isfinite(paired)]
    doubt = 2 * paired.std(ddof=1) / np.sqrt(len(paired))
    return {
        **s.said,
        "choice": f"{made.best.scheme.label} at {made.best.local_lr:g}",
        "predicted": made.best.excess,
        "measured": mean[row, column],
        "best": f"{labels[best[0]]} at {RATES[best[1]]:g}",
        "best_excess": mean[best],
        "ratio": mean[row, column] / mean[best],
        "of_fedavg": mean[row, column] / mean[0, fedavg],
        "worse_than_fedavg": bool(over > doubt),
        "error": error[best] / mean[best],
        "interior": 0 < best[1] < len(RATES) - 1,
        "pilot": made.pilot_updates / made.planned_updates,
        "rows": made.pilot.used,
        "seconds": seconds,
    }


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--grid", type=Path, default=GRID)
    ask.add_argument("--pilot-seed", type=int, default=0)
    ask.add_argument("--only", default=",".join(map(str, range(COUNT))))
    ask.add_argument("--markdown", type=Path)
    asked = ask.parse_args()
    rows = []
    with np.load(asked.grid) as grid:
        for k in map(int, asked.only.split(",")):
            one = judged(k, grid, asked.pilot_seed)
            rows.append(one)
            print(
                f"{k:2} {one['choice']:22} {one['measured']:.4g}  best {one['best']:22} {one['best_excess']:.4g}  "
                f"ratio {one['ratio']:.2f}  of FedAvg {one['of_fedavg']:.2f}  pilot {one['pilot']:.1%}  "
                f"error {one['error']:.1%}  {one['seconds']:.0f} s",
                flush=True,
            )
    ratios = np.array([one["ratio"] for one in rows])
    print(
        f"within 1.5: {(ratios <= 1.5).sum()} of {len(rows)}; median {np.median(ratios):.2f}; more than 1.1 times "
        f"FedAvg's beyond two errors: {sum(one['worse_than_fedavg'] for one in rows)}; largest pilot "
        f"{max(one['pilot'] for one in rows):.1%}; best cell at the grid's edge: {sum(not o['interior'] for o in rows)}"
    )
    if asked.markdown is not None:
        asked.markdown.write_text(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table of a page."""
    asked = ("M", "times", "problem", "partition", "K", "B", "T")
    head = (*asked, "chosen", "excess", "best cell", "excess", "ratio", "of FedAvg")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in rows:
        cells = (one["clients"], one["times"], one["problem"], one["partition"], one["local_steps"], one["batch_size"])
        lines.append(
            "| "
            + " | ".join(map(str, cells))
            + f" | {one['until']} | {one['choice']} | {one['measured']:.3g} | {one['best']} | {one['best_excess']:.3g} "
            f"| {one['ratio']:.2f} | {one['of_fedavg']:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
