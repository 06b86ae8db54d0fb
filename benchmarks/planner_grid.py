"""The loss of every cell (scheme × rate × seed) of the settings on which the planner is judged or calibrated.

    python benchmarks/planner_grid.py --out FOLDER [--groups penalty,open,unsteady] [--seeds 1000:1032] [--curves]

One small .npz a setting and block of seeds: the loss over the last tenth of the time; with --curves the loss at
the 161 times at which the planner's rungs are measured. A process a core; what is there already is left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from pathlib import Path

POINTS = 161


def seeds_together(group: str, k: int) -> tuple[int, float]:
    """How many seeds make a task, and about how many client steps each of them has."""
    from planner_settings import setting

    s = setting(group, k)
    steps = float(s.until) * float((1 / s.times.mean_time).sum()) * s.local_steps
    return max(1, min(16, int(6e5 / steps))), steps


def block(task: tuple[str, int, int, int, bool, str]) -> str:
    """Train all cells of a setting under a block of seeds."""
    group, k, first, last, curves, folder = task
    path = Path(folder) / f"{group}-{k:02d}-{first}.npz"
    if path.exists():
        return f"{path.name} is there"
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]} if len(cores) > 2 else set(cores))
    import numpy as np

    import fedtempo as ft
    from planner_settings import RATES, setting

    begin = time.perf_counter()
    s = setting(group, k)
    history = ft.simulate(
        s.problem,
        s.schemes,
        s.times,
        until=s.until,
        local=s.local(list(RATES)),
        seeds=range(first, last),
        points=POINTS if curves else 17,
        measure_from=0 if curves else s.until * 9 / 10,
    )
    loss = history.dataset["loss"].isel(weights=0).transpose("scheme", "local_lr", "seed", "time").values
    updates = history.dataset["updates"].isel(time=-1)
    updates = updates.mean("seed") if "seed" in updates.dims else updates
    final = loss[..., -16:].mean(-1) if curves else loss[..., 1:].mean(-1)
    found = {"loss": final.astype(np.float32), "updates": updates.values.astype(np.float64).reshape(len(s.schemes))}
    if curves:
        found["curves"] = loss.astype(np.float32)
    np.savez_compressed(path, schemes=np.array([x.label for x in s.schemes]), said=json.dumps(s.said), **found)
    return f"{path.name} {time.perf_counter() - begin:.1f} s"


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--groups", default="penalty,open,unsteady")
    ask.add_argument("--only", default="0:20")
    ask.add_argument("--seeds", default="1000:1032")
    ask.add_argument("--curves", action="store_true")
    ask.add_argument("--limit", type=float, default=540.0)
    ask.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    asked = ask.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    begin, (low, high) = time.monotonic(), (int(x) for x in asked.only.split(":"))
    first, last = (int(x) for x in asked.seeds.split(":"))
    tasks = []
    for group in asked.groups.split(","):
        for k in range(low, high):
            size, steps = seeds_together(group, k)
            for seed in range(first, last, size):
                end = min(seed + size, last)
                tasks.append((-steps * (end - seed), (group, k, seed, end, asked.curves, str(asked.out))))
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(block, task) for _, task in sorted(tasks)]
        for one in waiting:
            try:
                print(one.result(timeout=max(1.0, asked.limit - (time.monotonic() - begin))), flush=True)
            except TimeoutError:
                print("out of time; run it again to go on", flush=True)
                for child in active_children():
                    child.kill()
                os._exit(0)


if __name__ == "__main__":
    main()
