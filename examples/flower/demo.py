"""Four unequal sites train a model of handwritten digits on Flower, with FedAvg and with FedFix, in the same wall time.

A SuperLink and four SuperNodes run as processes on this machine. One round of FedAvg shows how long each site takes,
Flower's round trip included. With these times the planner gives FedAvg its learning rate, which the clients keep under
FedFix too, and FedFix its wait. ``python examples/flower/demo.py --out results/flower-demo``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_figure import save_demo
from rich.console import Console
from rich.table import Table

import fedtempo as ft
from fedtempo.flower.local import LocalFederation
from fedtempo.report.recommendation_tables import show_recommendation

APP = Path(__file__).parent
PAUSES = (1, 3, 8, 20)
"""Seconds that each site waits beside its work, as a slower machine would work longer."""
SLACK = 1.05
"""By how much longer than in the first round a site may take."""
STEPS, BATCH, PARTITION = 20, 16, "dirichlet:0.3"
RATES = (0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Outcome:
    """What one scheme did."""

    scheme: ft.Scheme
    local_lr: float
    measured: list[dict[str, Any]]
    """Round by round: when it ended, loss and accuracy."""
    updates: list[dict[str, Any]]
    """Whose, when sent, when back, when used, and by how many models late."""


@dataclass(frozen=True)
class Chosen:
    """What the plan says: one learning rate for both schemes, and the wait."""

    fedfix: ft.FedFix
    local_lr: float


def waits_for(times: Sequence[int]) -> list[int]:
    """Whole seconds after which some site is back, or is back after two or three of them; none below the fastest's."""
    found = {math.ceil(SLACK * time / part) for time in times for part in (1, 2, 3)}
    return sorted(wait for wait in found if SLACK * min(times) <= wait < max(times))


def horizon(times: Sequence[int], limit: int) -> int:
    """Seconds of whole rounds of FedAvg, and of at least one."""
    a_round = SLACK * max(times)
    return math.ceil(max(1, int(limit / a_round)) * a_round)


def plan(times: Sequence[int], seconds: int) -> Chosen:
    """The learning rate at which FedAvg was best in the planner's race, and FedFix's best wait at that rate."""
    problem = ft.problems.digits(len(PAUSES), PARTITION, importance="rows")
    fixes = [ft.FedFix(wait) for wait in waits_for(times)]
    local = ft.LocalSGD(steps=STEPS, batch_size=BATCH)
    made = ft.recommend(
        problem, ft.FixedTimes(times), until=seconds, local=local, schemes=[ft.FedAvg(), *fixes], rates=RATES
    )
    show_recommendation(made)
    assert made.fedavg is not None
    local_lr = made.fedavg.local_lr
    there = {one.scheme.label: one for one in made.cells if one.local_lr == local_lr and math.isfinite(one.loss)}
    seen = [there[fix.label] for fix in fixes if fix.label in there]
    best = min(seen, key=lambda one: (-one.trained, one.loss), default=None)
    said = ", ".join(
        f"{one.scheme.label} {one.loss:.3g}" + (f" at {one.trained:g} of the time" if one.trained < 1 else "")
        for one in seen
    )
    print(f"The clients keep FedAvg's learning rate, {local_lr:g}; at that rate FedFix ended at: {said}.")
    if best is None or not isinstance(best.scheme, ft.FedFix):
        raise SystemExit(f"no wait of FedFix was trained at the learning rate {local_lr:g}")
    return Chosen(best.scheme, local_lr)


Told = dict[str, str | int | float | bool]


def settings(scheme: ft.Scheme, local_lr: float, folder: Path, **more: float) -> Told:
    """What is told to the app."""
    told: Told = {
        "scheme": scheme.name,
        "local-lr": local_lr,
        "local-steps": STEPS,
        "batch-size": BATCH,
        "partition": PARTITION,
        "clients": len(PAUSES),
        "num-rounds": 10_000,
        "checkpoint": str(folder / "run"),
        "out": str(folder),
    }
    return told | more | ({"wait": float(scheme.wait)} if isinstance(scheme, ft.FedFix) else {})


def start_sites(federation: LocalFederation) -> None:
    """One node a site; they are there when this returns."""
    for i, pause in enumerate(PAUSES):
        told = {"partition-id": i, "num-partitions": len(PAUSES), "pause": float(pause)}
        federation.start_node(f"site-{i}", told)
    federation.wait_for_nodes(len(PAUSES))


def seen_times(federation: LocalFederation, folder: Path) -> list[int]:
    """Seconds from a model sent to its update, site by site, in one round of FedAvg."""
    print("One round of FedAvg, to see how long each site takes …", flush=True)
    federation.run(APP, settings(ft.FedAvg(), RATES[0], folder, **{"num-rounds": 1}), limit=300)
    updates = json.loads((folder / "updates.json").read_text())
    took = {int(update["client"]): update["back"] - update["sent"] for update in updates}
    return [max(1, round(took[i])) for i in range(len(PAUSES))]


def train(federation: LocalFederation, scheme: ft.Scheme, local_lr: float, folder: Path, seconds: int) -> Outcome:
    """One scheme on the sites."""
    print(f"{scheme.label} trains for {seconds} s …", flush=True)
    federation.run(APP, settings(scheme, local_lr, folder, until=float(seconds)), limit=2 * seconds + 60)
    measured, updates = (json.loads((folder / f"{name}.json").read_text()) for name in ("measured", "updates"))
    return Outcome(scheme, local_lr, measured, updates)


def show(outcomes: list[Outcome], times: Sequence[int], seconds: int) -> None:
    """The table of what happened."""
    table = Table(title=f"What happened in {seconds} s", title_justify="left")
    sites = [f"site {i}" for i in range(len(PAUSES))]
    columns = ("scheme", "learning rate", "models", "updates", *sites, "mean delay", "loss", "test accuracy")
    for column in columns:
        table.add_column(column, justify="left" if column == "scheme" else "right")
    for one in outcomes:
        last, came = one.measured[-1], Counter(update["client"] for update in one.updates)
        delays = [update["delay"] for update in one.updates]
        table.add_row(
            one.scheme.label,
            f"{one.local_lr:g}",
            str(len({update["used"] for update in one.updates})),
            str(len(one.updates)),
            *(str(came[str(i)]) for i in range(len(PAUSES))),
            f"{sum(delays) / max(len(delays), 1):.2f}",
            f"{last['loss']:.3f}",
            f"{last['test-accuracy']:.3f}",
        )
    Console(width=120).print(table)
    trips = defaultdict(list)
    for one in outcomes:
        for update in one.updates:
            trips[update["client"]].append(update["back"] - update["sent"])
    said = ", ".join(f"site {i} {sum(trips[str(i)]) / max(len(trips[str(i)]), 1):.1f} s" for i in range(len(PAUSES)))
    print(f"From a model sent to its update, on average: {said}; planned with {', '.join(map(str, times))} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/flower-demo"))
    parser.add_argument("--seconds", type=int, default=115, help="wall time of each scheme, at most")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    begin = time.monotonic()
    for ours in ("federation", "first", "fedavg", "fedfix"):
        shutil.rmtree(options.out / ours, ignore_errors=True)
    out = options.out.resolve()  # the sites have folders of their own
    with LocalFederation(out / "federation", env={"JAX_PLATFORMS": "cpu"}) as federation:
        start_sites(federation)
        times = seen_times(federation, out / "first")
        seconds = horizon(times, options.seconds)
        chosen = plan(times, seconds)
        outcomes = [
            train(federation, scheme, chosen.local_lr, out / scheme.name, seconds)
            for scheme in (ft.FedAvg(), chosen.fedfix)
        ]
    show(outcomes, times, seconds)
    figure = options.out / "flower-demo.png"
    save_demo(outcomes, seconds, figure)
    print(f"{figure}: losses in time, and who worked when. Done after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
