"""The loss of every cell (scheme × rate) of the settings on which the planner is judged or calibrated.

    python benchmarks/planner_grid.py --out FOLDER [--groups penalty,open,unsteady] [--seeds 1000:1004] [--curves]
    python benchmarks/planner_grid.py --out FOLDER --near 1.3 --seeds 1004:1032
    python benchmarks/planner_grid.py --out FOLDER --pack benchmarks/planner_truth.npz

One small .npz a setting, scheme and block of seeds: the loss over the last tenth of the time; with --curves the loss at
the 161 times at which the planner's rungs are measured. With --near only the cells whose mean over the files that are
there already is within that factor of the best. A process a core; what is there already is left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

POINTS = 161
COUNTS = {"penalty": 20, "open": 20, "unsteady": 20, "calibration": 48}


def work(group: str, k: int) -> tuple[float, int]:
    """Client steps of one training, and the number of schemes."""
    from planner_settings import setting

    s = setting(group, k)
    return float(s.until) * float((1 / s.times.mean_time).sum()) * s.local_steps, len(s.schemes)


def train(task: dict[str, Any], folder: Path) -> str:
    """Train one scheme of a setting at some rates under a block of seeds."""
    path = folder / f"{task['name']}.npz"
    import numpy as np

    import fedtempo as ft
    from planner_settings import RATES, setting

    begin = time.perf_counter()
    s = setting(task["group"], task["k"])
    rates = [RATES[i] for i in task["rates"]]
    history = ft.simulate(
        s.problem,
        s.schemes[task["scheme"]],
        s.times,
        until=s.until,
        local=s.local(rates),
        seeds=range(*task["seeds"]),
        points=POINTS if task["curves"] else 17,
        measure_from=0 if task["curves"] else s.until * 9 / 10,
    ).dataset
    loss = history["loss"].isel(weights=0, scheme=0).transpose("local_lr", "seed", "time").values
    final = loss[..., -16:].mean(-1) if task["curves"] else loss[..., 1:].mean(-1)
    found = {"loss": final, "updates": float(history["updates"].isel(time=-1).mean())}
    if task["curves"]:
        found["curves"] = loss.astype(np.float32)
    temporary = path.with_suffix(".part.npz")
    np.savez_compressed(temporary, task=json.dumps(task), **found)
    temporary.replace(path)
    return f"{path.name} {time.perf_counter() - begin:.1f} s"


def load(folder: Path) -> dict[tuple[str, int], dict[int, list[dict[str, Any]]]]:
    """By setting and scheme, what was trained: rates, seeds, losses."""
    import numpy as np

    found: dict[tuple[str, int], dict[int, list[dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*.npz")):
        if path.name.endswith(".part.npz"):
            continue
        with np.load(path) as kept:
            task = json.loads(str(kept["task"]))
            one = {name: kept[name] for name in kept.files if name != "task"}
        found.setdefault((task["group"], task["k"]), {}).setdefault(task["scheme"], []).append({**task, **one})
    return found


def table(schemes: dict[int, list[dict[str, Any]]]) -> Any:
    """[schemes, rates, seeds] losses, NaN where nothing was trained, infinite where it diverged; and the seeds."""
    import numpy as np

    from planner_settings import RATES

    seeds = sorted({seed for blocks in schemes.values() for b in blocks for seed in range(*b["seeds"])})
    loss = np.full((max(schemes) + 1, len(RATES), len(seeds)), np.nan)
    for scheme, blocks in schemes.items():
        for block in blocks:
            columns = [seeds.index(seed) for seed in range(*block["seeds"])]
            loss[np.ix_([scheme], block["rates"], columns)] = np.where(
                np.isfinite(block["loss"]), block["loss"], np.inf
            )[None]
    return loss, seeds


def tasks(asked: argparse.Namespace) -> Iterator[tuple[float, dict[str, Any]]]:
    """What is to be trained, with its cost."""
    import numpy as np

    from planner_settings import RATES

    first, last = (int(x) for x in asked.seeds.split(":"))
    known = load(asked.out) if asked.near else {}
    for group in asked.groups.split(","):
        for k in range(COUNTS[group]):
            steps, schemes = work(group, k)
            near = np.ones((schemes, len(RATES)), bool)
            if asked.near:
                if (group, k) not in known or len(known[group, k]) < schemes:
                    continue
                loss, _ = table(known[group, k])
                mean = np.nanmean(loss, axis=-1)
                near = mean <= asked.near * mean.min()
                near[0] |= mean[0] <= 1.02 * mean[0].min()  # FedAvg at its best rates, for the comparison
            for scheme in range(schemes):
                rates = np.flatnonzero(near[scheme]).tolist()
                size = int(np.clip(4e6 / (steps * max(1, len(rates))), 1, last - first))
                for seed in range(first, last, size) if rates else ():
                    end = min(seed + size, last)
                    name = f"{group}-{k:02d}-{scheme}-{seed}"
                    task = {"name": name, "group": group, "k": k, "scheme": scheme, "rates": rates}
                    yield steps * len(rates) * (end - seed), {**task, "seeds": [seed, end], "curves": asked.curves}


def worker(number: int, platform: str, waiting: list[dict[str, Any]], folder: str) -> None:
    """Claim and train, the first that nobody else has."""
    os.environ["JAX_PLATFORMS"] = platform
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 2:
        os.sched_setaffinity(0, {cores[number % len(cores)]})
    for task in waiting:
        path = Path(folder) / task["name"]
        if path.with_suffix(".npz").exists():
            continue
        try:
            os.close(os.open(path.with_suffix(".claim"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        print(f"{platform} {train(task, Path(folder))}", flush=True)


def pack(folder: Path, to: Path) -> None:
    """One file of all that was found."""
    import numpy as np

    found: dict[str, Any] = {}
    for (group, k), schemes in load(folder).items():
        loss, seeds = table(schemes)
        found[f"{group}-{k}/loss"], found[f"{group}-{k}/seeds"] = loss.astype(np.float32), np.array(seeds)
        found[f"{group}-{k}/updates"] = np.array([schemes[s][0]["updates"] for s in sorted(schemes)])
        if "curves" in schemes[0][0]:
            found[f"{group}-{k}/curves"] = np.array([schemes[s][0]["curves"] for s in sorted(schemes)])
    np.savez_compressed(to, **found)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--groups", default="penalty,open,unsteady")
    ask.add_argument("--seeds", default="1000:1004")
    ask.add_argument("--near", type=float, help="only cells within this factor of the best")
    ask.add_argument("--curves", action="store_true")
    ask.add_argument("--limit", type=float, default=540.0)
    ask.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    ask.add_argument("--platforms", default="cpu", help="cpu,cuda: further workers there")
    ask.add_argument("--pack", type=Path)
    asked = ask.parse_args()
    if asked.pack is not None:
        pack(asked.out, asked.pack)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    waiting = [task for _, task in sorted(tasks(asked), key=lambda pair: -pair[0])]
    for left in asked.out.glob("*.claim"):
        left.unlink()
    context = get_context("spawn")
    first, *others = asked.platforms.split(",")
    where = [first] * asked.workers + others
    running = [
        context.Process(target=worker, args=(i, platform, waiting, str(asked.out)), daemon=True)
        for i, platform in enumerate(where)
    ]
    for one in running:
        one.start()
    for one in running:
        one.join(max(0.1, asked.limit - (time.monotonic() - begin)))
    for one in running:
        one.kill()
    missing = [task["name"] for task in waiting if not (asked.out / f"{task['name']}.npz").exists()]
    print(f"{len(waiting) - len(missing)} of {len(waiting)} are there; missing: {missing[:20]}", flush=True)


if __name__ == "__main__":
    main()
