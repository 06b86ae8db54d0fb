"""Linear classifiers on an NVIDIA device: one kernel for all events (engine/fused.py) beside waves (engine/waves.py).

    equal     final models of MNIST's regression by both, in float32 and tensorfloat32: relative distances
    speed     client updates a second through `ft.simulate`, compilation and measuring apart: one run, and 5 seeds × 24
              learning rates; every repeat runs each contestant once, in turn, after one that does not count

Ends with an error if the models differ. On a processor there is no kernel, and nothing to compare. Studies use it
where FEDTEMPO_KERNELS=1 is set.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.simulation import units
from fedtempo.simulation.engine.devices import can_have_kernels

LIMITS = {"float32": 1e-4, "tensorfloat32": 2e-3}
TIMES = ft.FixedTimes.spread(10, 80)
GRID = np.geomspace(0.001, 0.1, 24).tolist()
FORMS = {"kernel": can_have_kernels, "waves": lambda: False}


def trained(form: str, problem: ft.Problem, **given: Any) -> ft.History:
    units.has_kernels = FORMS[form]
    return ft.simulate(problem, points=2, step="paper", **{"schemes": ft.AsyncFedAvg(), "times": TIMES, **given})


def models(history: ft.History) -> np.ndarray:
    found = [v.values.ravel() for name, v in history.dataset.items() if str(name).startswith("parameter:")]
    return np.concatenate(found)


def distance(problem: ft.Problem, dtype: str) -> float:
    """Of the models of several schemes, rates, weight rules and seeds."""
    schemes = [ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedBuff(3), ft.FedAvg()]
    local = ft.LocalSGD(lr=[0.01, 0.05], steps=1, batch_size=64)
    given = {"schemes": schemes, "until": 60, "local": local, "seeds": [0, 1], "weights": ["time-based", "identical"]}
    one, other = (models(trained(form, problem, dtype=dtype, **given)) for form in FORMS)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def rate(form: str, problem: ft.Problem, dtype: str, seeds: int, lr: Any, until: int) -> float:
    local = ft.LocalSGD(lr=lr, steps=1, batch_size=64)
    history = trained(form, problem, dtype=dtype, local=local, seeds=range(seeds), until=until)
    updates = float(history.dataset["updates"].isel(time=-1).mean()) * history.dataset["loss"].isel(time=-1).size
    return updates / history.attrs["run_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--until", type=int, default=8000, help="virtual time of a study; a quarter of it for waves")
    parser.add_argument("--no-waves", action="store_true", help="the speed of the kernel alone")
    parser.add_argument("--json", type=Path, help="write every measurement there")
    options = parser.parse_args()
    if not can_have_kernels():
        raise SystemExit("no kernels run here: they need an NVIDIA device")
    problem = ft.problems.mnist(clients=10, data_dir=options.data_dir)
    found: dict[str, Any] = {}
    wrong = []
    for dtype, limit in LIMITS.items():
        found[f"distance, {dtype}"] = apart = distance(problem, dtype)
        print(f"{dtype}: the models of kernel and waves differ by {apart:.1e}", flush=True)
        wrong += [dtype] if not apart < limit else []
    studies = {"5 seeds × 24 rates": (5, GRID), "one run": (1, 0.05)}
    laps: dict[tuple[str, ...], list[float]] = {}
    for repeat in range(options.repeats + 1):
        for name, (seeds, lr) in studies.items():
            for dtype in LIMITS:
                for form in ["kernel"] if options.no_waves else FORMS:
                    until = options.until // (4 if form == "waves" else 1)
                    speed = rate(form, problem, dtype, seeds, lr, until)
                    if repeat:
                        laps.setdefault((name, dtype, form), []).append(speed)
    for key, speeds in laps.items():
        found[", ".join(key)] = speeds
        low, high = min(speeds) / 1e3, max(speeds) / 1e3
        print(
            f"{', '.join(key):45s} {statistics.median(speeds) / 1e3:9.0f} thousand updates/s ({low:.0f} to {high:.0f})"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if wrong:
        raise SystemExit("models differ: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
