"""Others' simulators on the same work in the same run: FedAsync on a virtual clock, client updates a second.

    make bench-others                                       everything, in an environment of its own
    python benchmarks/others.py --only "small CNN"          one of the two problems
    python benchmarks/others.py --quick                     a tenth of the work, once: to see that it runs

The work is in others_work.py: clients, rows, times, network, K, B, learning rate and server are the same for all. Each
contestant has a process of its own, which holds its libraries alone. A first lap of 200 updates warms up and shows by
its loss that the contestant trains the same thing; then all take turns, three laps of a few seconds each.
Seconds are those of training, without setting up, compiling and measuring. CPU seconds are there for machines that
others use too. PyTorch has one thread unless `--threads` says otherwise: with more, steps of this size mostly wait.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

PLAIN = "PyTorch loop"
LOGISTIC, CNN = "logistic regression", "small CNN"
CHECK = 200
"""Updates of the first lap."""
APART = 0.1
"""How far a loss may be from the plain loop's, as a share of it."""


class Contestant(NamedTuple):
    """Where its function is and what it is given beside the work and the number of updates."""

    module: str
    function: str
    sizes: dict[str, int]
    """Updates of a lap by work, over all its runs: some three seconds on an idle core."""
    options: Mapping[str, Any] | None = None
    check: int = CHECK
    """Updates of its first lap, over all its runs."""
    package: str = ""
    """Whose version its name goes with."""


OURS, TORCH = "others_fedtempo", {"engine": "torch", "module": True}
CONTESTANTS: dict[str, Contestant] = {
    "NumPy loop": Contestant("others_work", "numpy_loop", {LOGISTIC: 40_000}),
    PLAIN: Contestant("others_work", "index_loop", {LOGISTIC: 5_000, CNN: 120}),
    "PyTorch loop with DataLoaders": Contestant("others_work", "loader_loop", {LOGISTIC: 3_000, CNN: 120}),
    "fedtempo, one run": Contestant(OURS, "fedtempo_lap", {LOGISTIC: 50_000}, {"engine": "auto"}),
    "fedtempo, 24 runs": Contestant(
        OURS, "fedtempo_lap", {LOGISTIC: 150_000}, {"engine": "auto", "runs": 24}, 24 * CHECK
    ),
    "fedtempo, PyTorch engine": Contestant(OURS, "fedtempo_lap", {LOGISTIC: 5_000, CNN: 160}, TORCH),
    "fedtempo, PyTorch engine, 4 runs": Contestant(OURS, "fedtempo_lap", {CNN: 240}, TORCH | {"runs": 4}, 4 * CHECK),
    "FLGo": Contestant("others_flgo", "flgo_lap", {LOGISTIC: 1_500, CNN: 120}, package="flgo"),
    "FLGo without the proximal term": Contestant(
        "others_flgo", "flgo_lap", {LOGISTIC: 1_500, CNN: 120}, {"proximal": False}, package="flgo"
    ),
    "APPFL": Contestant("others_appfl", "appfl_lap", {LOGISTIC: 2, CNN: 2}, {"collect": True}, 1, "appfl"),
    "APPFL, `optimize_memory: False`": Contestant(
        "others_appfl", "appfl_lap", {LOGISTIC: 1_000, CNN: 120}, {"collect": False}, package="appfl"
    ),
}

ABSENT = {
    "FedScale 1.0": "cannot be given this work: its rows are those of data sets that it knows by name, "
    "its asynchronous server is FedBuff, and jobs go over gRPC to executors",
    "Flower": "has no virtual time and no asynchronous strategy: its simulation runs on the wall clock",
}
"""Who is not there, and why."""


def lap(contestant: Contestant, work: str, updates: int, threads: int) -> tuple[int, float, float, float] | str:
    """One lap in this process; or why there is none."""
    warnings.simplefilter("ignore")
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (their logs)
    import torch

    torch.set_num_threads(threads)
    try:
        function: Callable[..., Any] = getattr(import_module(contestant.module), contestant.function)
        done = function(work, updates, **(contestant.options or {}))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return done.updates, done.seconds, done.cpu, done.loss


def named(name: str, contestant: Contestant, versions: Mapping[str, str]) -> str:
    """FLGo with its version."""
    if contestant.package not in versions:
        return name
    first, *rest = name.split(maxsplit=1)
    comma = "," if first.endswith(",") else ""
    return " ".join([f"{first.rstrip(',')} {versions[contestant.package]}{comma}", *rest])


def spaced(number: float) -> str:
    """1 234, or 0.37."""
    return f"{number:,.0f}".replace(",", " ") if number >= 10 else f"{number:.2g}"


def table(
    rates: Mapping[str, Sequence[float]],
    by_cpu: Mapping[str, float],
    losses: Mapping[str, float],
    reasons: Mapping[str, str],
    initial: float,
) -> list[str]:
    """A work's table: those that ran in order, then why the others did not."""
    yardstick = statistics.median(rates[PLAIN]) if PLAIN in rates else float("nan")
    heads = ("contestant", "updates a second, median (min to max)", f"× the {PLAIN}", "a CPU second")
    lines = [f"| {' | '.join(heads)} | loss, first {initial:.2f} |", "|---|---|---|---|---|"]
    for name, each in rates.items():
        middle = statistics.median(each)
        times = f"{middle / yardstick:.3g}" if middle < yardstick else f"{middle / yardstick:.1f}"
        spread = f"{spaced(middle)} ({spaced(min(each))} to {spaced(max(each))})"
        lines.append(f"| {name} | {spread} | {times} | {spaced(by_cpu[name])} | {losses[name]:.2f} |")
    return lines + [f"| {name} | {reason} | | | |" for name, reason in reasons.items()]


def race(work: str, options: argparse.Namespace, versions: Mapping[str, str]) -> dict[str, Any]:
    """All contestants on one work."""
    context = multiprocessing.get_context("spawn")
    there = {name: contestant for name, contestant in CONTESTANTS.items() if work in contestant.sizes}
    if options.contestants:
        there = {name: it for name, it in there.items() if any(part in name for part in options.contestants)}
    pools = {name: ProcessPoolExecutor(1, mp_context=context) for name in there}
    laps: dict[str, list[tuple[int, float, float, float]]] = {}
    first: dict[str, tuple[int, float, float, float]] = {}
    reasons: dict[str, str] = {}

    def one(name: str, updates: int) -> tuple[int, float, float, float] | str:
        done: tuple[int, float, float, float] | str
        try:
            done = pools[name].submit(lap, there[name], work, updates, options.threads).result()
        except Exception as error:  # its process died
            done = f"{type(error).__name__}: {error}"
        told = done if isinstance(done, str) else f"{spaced(done[0] / done[1])} updates a second, loss {done[3]:.3f}"
        print(f"{work}, {name}: {told}", file=sys.stderr, flush=True)
        return done

    try:
        begin = pools[PLAIN].submit(_initial, work).result() if PLAIN in pools else float("nan")
        for name, contestant in there.items():
            done = one(name, contestant.check)
            if isinstance(done, str):
                reasons[name] = done.replace("|", "/").splitlines()[0]
                continue
            first[name], laps[name] = done, []
        for _ in range(options.repeats):
            for name in list(laps):
                done = one(name, max(1, there[name].sizes[work] // options.part))
                if not isinstance(done, str):
                    laps[name].append(done)
    finally:
        for pool in pools.values():
            pool.shutdown()
    plain = first[PLAIN][3] if PLAIN in first else float("nan")
    odd = [n for n, done in first.items() if there[n].check >= CHECK and abs(done[3] - plain) > APART * plain]
    full = {name: named(name, contestant, versions) for name, contestant in there.items()}
    rates = {full[name]: [done[0] / done[1] for done in each] for name, each in laps.items() if each}
    by_cpu = {full[name]: statistics.median(done[0] / done[2] for done in each) for name, each in laps.items() if each}
    losses = {full[name]: done[3] for name, done in first.items()}
    print(f"\n{work}, loss after the first {CHECK} updates (after fewer where a contestant is very slow):\n")
    told = {full[n]: reason for n, reason in reasons.items()} | ABSENT
    print("\n".join(table(rates, by_cpu, losses, told, begin)) + "\n", flush=True)
    if odd:
        print(f"Not the same training, by their losses: {', '.join(odd)}\n", flush=True)
    return {
        "rates": rates,
        "by_cpu": by_cpu,
        "losses": losses,
        "initial": begin,
        "reasons": reasons,
        "odd": odd,
        "laps": laps,
    }


def _initial(work: str) -> float:
    module = import_module("others_work")
    return float(module.loss(module.initial(work), work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=(LOGISTIC, CNN), help="one of the two problems")
    parser.add_argument("--contestants", nargs="+", metavar="PART", help="those whose name has one of these in it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", type=int, default=1, help="a lap is this part of what it is: 10 for a tenth")
    parser.add_argument("--quick", action="store_true", help="one repeat of a tenth: to see that it runs")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's")
    parser.add_argument("--json", type=Path, help="write every measurement there")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.part = 1, 10
    versions = {}
    for package in ("fedtempo", "torch", "jax", "numpy", "flgo", "appfl"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    about = {"cores": len(os.sched_getaffinity(0)), "threads": options.threads, "python": platform.python_version()}
    print("; ".join(f"{key} {value}" for key, value in {**about, **versions}.items()), flush=True)
    works = [options.only] if options.only else [LOGISTIC, CNN]
    found = {work: race(work, options, versions) for work in works}
    if options.json:
        told = {"machine": about | versions, "works": found}
        options.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
