"""The loss of every cell (scheme × rate) of the settings on which the planner is judged or calibrated.

    python benchmarks/planner_grid.py --out FOLDER [--groups penalty,open,unsteady] [--seeds 1000:1004] [--curves]
    python benchmarks/planner_grid.py --out FOLDER --near 1.3 --seeds 1004:1032
    python benchmarks/planner_grid.py --out FOLDER --complete [--most 64] [--limit 3600]
    python benchmarks/planner_grid.py --out FOLDER --pack benchmarks/planner_truth.npz

One small .npz a setting, scheme and block of seeds: the loss over the last tenth of the time; with --curves the loss at
the 161 times at which the planner's rungs are measured. With --near only the cells whose mean over the files that are
there already is within that factor of the best. A process a core; what is there already is left alone.

With --complete the cells that decide who is best get more seeds, eight at a time, until each mean is known to 1 %: all
within 1.2 of the best, and FedAvg's within 2 % of its best. Cheap settings first; stopped and started at will.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import time
from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

POINTS = 161
FIRST = 1000
"""The first seed of the truth; a planner's own seeds are far below."""
BLOCK = 8
STEPS = 4e6
"""Client steps of one task, about."""
COUNTS = {"penalty": 20, "open": 20, "unsteady": 20, "calibration": 48}


@lru_cache(maxsize=1)
def drawn(group: str, k: int) -> Any:
    """The setting; a worker is often given the same one again."""
    from planner_settings import setting

    return setting(group, k)


def work(group: str, k: int) -> tuple[float, int]:
    """Client steps of one training, and the number of schemes."""
    s = drawn(group, k)
    return float(s.until) * float((1 / s.times.mean_time).sum()) * s.local_steps, len(s.schemes)


def train(task: dict[str, Any], folder: Path) -> str:
    """Train one scheme of a setting at some rates under a block of seeds."""
    path = folder / f"{task['name']}.npz"
    import numpy as np

    import fedtempo as ft
    from planner_settings import RATES

    begin = time.perf_counter()
    s = drawn(task["group"], task["k"])
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
    found: dict[tuple[str, int], dict[int, list[dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*.npz")):
        if not path.name.endswith(".part.npz"):
            one = read(path)
            found.setdefault((one["group"], one["k"]), {}).setdefault(one["scheme"], []).append(one)
    return found


def read(path: Path) -> dict[str, Any]:
    """A task and what it found."""
    import numpy as np

    with np.load(path) as kept:
        return json.loads(str(kept["task"])) | {name: kept[name] for name in kept.files if name != "task"}


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
                size = int(np.clip(STEPS / (steps * max(1, len(rates))), 1, last - first))
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


def lacking(loss: Any, most: int, within: float = 1.2, error: float = 0.01) -> Any:
    """[schemes, rates] the cells that need more seeds, from what `table` says."""
    import numpy as np

    there = ~np.isnan(loss)
    count = there.sum(-1)
    mean = np.where(there, loss, 0.0).sum(-1) / count.clip(1)
    mean = np.where(count > 0, mean, np.inf)
    with np.errstate(invalid="ignore"):
        off = np.where(there & np.isfinite(mean)[..., None], loss - mean[..., None], 0.0)
    spread = np.sqrt((off**2).sum(-1) / (count - 1).clip(1) / count.clip(1))
    near = mean <= within * mean.min()
    near[0] |= mean[0] <= 1.02 * mean[0].min()
    unsure = (count < BLOCK) | (spread > error * mean)
    return near & np.isfinite(mean) & unsure & (count < most)


def next_block(key: tuple[str, int], schemes: dict[int, list[dict[str, Any]]], most: int, folder: Path) -> list[Any]:
    """A setting's next tasks: for each cell that needs it, what is missing in its first block with a gap."""
    import numpy as np

    (group, k), (steps, _) = key, work(*key)
    loss, seeds = table(schemes)
    found, names = [], set()
    for scheme, needs in enumerate(lacking(loss, most)):
        together: dict[tuple[int, int], list[int]] = {}
        for rate in np.flatnonzero(needs).tolist():
            have = {seed for seed, value in zip(seeds, loss[scheme, rate], strict=True) if not np.isnan(value)}
            first = next(seed for seed in range(FIRST, FIRST + most) if seed not in have)
            end = FIRST + (first - FIRST) // BLOCK * BLOCK + BLOCK
            last = next((seed for seed in range(first, end) if seed in have), end)
            together.setdefault((first, last), []).append(rate)
        for (first, last), rates in together.items():
            size = int(np.clip(STEPS / (steps * len(rates)), 1, last - first))
            for seed in range(first, last, size):
                name, copy = f"{group}-{k:02d}-{scheme}-{seed}", 1
                while name in names or (folder / f"{name}.npz").exists():
                    copy += 1
                    name = f"{group}-{k:02d}-{scheme}-{seed}-{copy}"
                names.add(name)
                task = {"name": name, "group": group, "k": k, "scheme": scheme, "rates": rates, "curves": False}
                found.append({**task, "seeds": [seed, min(seed + size, last)]})
    return found


def settle(number: Any, platform: str) -> None:
    """A worker's beginnings."""
    os.environ["JAX_PLATFORMS"] = platform
    cores, mine = sorted(os.sched_getaffinity(0)), number.get()
    if len(cores) > 2:
        os.sched_setaffinity(0, {cores[mine % len(cores)]})


def complete(asked: argparse.Namespace) -> None:
    """More seeds where they decide, cheap settings first."""
    begin = time.monotonic()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    known = load(asked.out)
    keys = [(group, k) for group in asked.groups.split(",") for k in range(COUNTS[group])]
    sizes = {key: work(*key) for key in keys}
    ready = [key for key in keys if len(known.get(key, ())) == sizes[key][1]]
    order = {key: i for i, key in enumerate(sorted(ready, key=lambda key: sizes[key][0]))}
    waiting: list[tuple[int, int, dict[str, Any]]] = []
    under_way = dict.fromkeys(order, 0)
    count = 0

    def plan(key: tuple[str, int]) -> None:
        nonlocal count
        for task in next_block(key, known[key], asked.most, asked.out):
            heappush(waiting, (order[key], count, task))
            count, under_way[key] = count + 1, under_way[key] + 1

    for key in order:
        plan(key)
    context = get_context("spawn")
    numbers = context.Queue()
    for i in range(asked.workers):
        numbers.put(i)
    done: queue.Queue[Any] = queue.Queue()
    running: set[str] = set()
    with context.Pool(asked.workers, settle, (numbers, asked.platforms.split(",")[0])) as pool:
        while waiting or running:
            while waiting and len(running) < asked.workers:
                task = heappop(waiting)[2]
                running.add(task["name"])
                pool.apply_async(
                    train,
                    (task, asked.out),
                    callback=lambda said, task=task: done.put((task, said)),
                    error_callback=lambda error, task=task: done.put((task, error)),
                )
            try:
                task, said = done.get(timeout=max(0.1, asked.limit - (time.monotonic() - begin)))
            except queue.Empty:
                break
            print(said if isinstance(said, str) else f"{task['name']} failed: {said!r}", flush=True)
            running.remove(task["name"])
            key = (task["group"], task["k"])
            under_way[key] -= 1
            if isinstance(said, str):
                known[key][task["scheme"]].append(read(asked.out / f"{task['name']}.npz"))
                if not under_way[key]:
                    plan(key)
            else:
                under_way[key] = -1  # not tried again in this run
    left = [f"{group}-{k}" for (group, k), tasks_left in under_way.items() if tasks_left]
    without = [f"{group}-{k}" for group, k in keys if (group, k) not in order]
    print(f"{len(order) - len(left)} of {len(keys)} settings are complete; not yet: {left}; without a grid: {without}")


class Truth(NamedTuple):
    """What was trained of one setting."""

    loss: Any
    """[schemes, rates, seeds], NaN where nothing was trained, infinite where it diverged."""
    seeds: Any
    updates: Any
    """[schemes] client updates of one training."""
    labels: list[str]

    @property
    def full(self) -> bool:
        """Whether every cell was trained."""
        import numpy as np

        return bool((~np.isnan(self.loss)).any(-1).all())


def truth(path: Path) -> dict[str, Truth]:
    """By setting's name, from a packed file or a folder of loose ones."""
    import numpy as np

    if not path.is_dir():
        with np.load(path) as kept:
            parts = {name: kept[name] for name in kept.files}
        names = sorted({name.split("/")[0] for name in parts})
        return {n: Truth(*(parts[f"{n}/{x}"] for x in Truth._fields[:3]), parts[f"{n}/labels"].tolist()) for n in names}
    found = {}
    for (group, k), schemes in load(path).items():
        labels = [scheme.label for scheme in drawn(group, k).schemes]
        some, seeds = table(schemes)
        loss = np.full((len(labels), *some.shape[1:]), np.nan)
        loss[: len(some)] = some
        updates = np.array([schemes[s][0]["updates"] if s in schemes else np.nan for s in range(len(labels))])
        found[f"{group}-{k}"] = Truth(loss, np.array(seeds), updates, labels)
    return found


def pack(folder: Path, to: Path) -> None:
    """One file of all that was found."""
    import numpy as np

    found: dict[str, Any] = {}
    for name, one in truth(folder).items():
        with np.errstate(over="ignore"):
            found[f"{name}/loss"] = one.loss.astype(np.float32)
        found[f"{name}/seeds"], found[f"{name}/updates"] = one.seeds, one.updates
        found[f"{name}/labels"] = np.array(one.labels)
    for (group, k), schemes in load(folder).items():
        if "curves" in schemes[min(schemes)][0]:
            found[f"{group}-{k}/curves"] = np.array([schemes[s][0]["curves"] for s in sorted(schemes)])
    np.savez_compressed(to, **found)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--groups", default="penalty,open,unsteady")
    ask.add_argument("--seeds", default="1000:1004")
    ask.add_argument("--near", type=float, help="only cells within this factor of the best")
    ask.add_argument("--curves", action="store_true")
    ask.add_argument("--complete", action="store_true", help="more seeds until the best cells' means are known to 1 %%")
    ask.add_argument("--most", type=int, default=64, help="seeds of a cell, with --complete")
    ask.add_argument("--limit", type=float, default=540.0, help="seconds")
    ask.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    ask.add_argument("--platforms", default="cpu", help="cpu,cuda: further workers there")
    ask.add_argument("--pack", type=Path)
    asked = ask.parse_args()
    if asked.pack is not None:
        pack(asked.out, asked.pack)
        return
    if asked.complete:
        complete(asked)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    waiting = [task for _, task in sorted(tasks(asked), key=lambda pair: -pair[0])]
    for task in waiting:
        (asked.out / f"{task['name']}.claim").unlink(missing_ok=True)
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
