"""Four unequal sites train a model of handwritten digits on Flower, with FedAvg and with FedFix, in the same wall time.

A SuperLink and four SuperNodes run as processes on this machine. The wait of FedFix and the learning rates come from
the planner, for this problem and these times. ``python examples/flower/demo.py --out results/flower-demo``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
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
PAUSES = (3, 6, 12, 30)
"""Seconds that each site waits beside its work, as a slower machine would work longer."""
AROUND = 6
"""Seconds from a model sent to its update, without the pause: Flower's own, and the training."""
TIMES = tuple(pause + AROUND for pause in PAUSES)
WAITS = (12, 15, 18, 24)
"""Waits to compare: none below Flower's own round trip."""
STEPS, BATCH, PARTITION = 20, 16, "dirichlet:0.3"
PILOT = 0.5
"""Of the planned client updates: they are few, and a smaller pilot sees too little of the problem."""


@dataclass(frozen=True)
class Outcome:
    """What one scheme did."""

    scheme: ft.Scheme
    local_lr: float
    measured: list[dict[str, Any]]
    """Round by round: when it ended, loss and accuracy."""
    updates: list[dict[str, Any]]
    """Whose, when sent, when back, when used, and by how many models late."""


def plan(seconds: int) -> dict[str, tuple[ft.Scheme, float]]:
    """FedAvg and FedFix, each with the learning rate that the planner gives it, FedFix with its best wait."""
    problem = ft.problems.digits(len(PAUSES), PARTITION, importance="rows")
    times = ft.FixedTimes(TIMES)
    schemes = [ft.FedAvg(), *(ft.FedFix(wait) for wait in WAITS)]
    local = ft.LocalSGD(steps=STEPS, batch_size=BATCH)
    made = ft.recommend(problem, times, until=seconds, local=local, schemes=schemes, share=PILOT)
    show_recommendation(made)
    best: dict[str, tuple[ft.Scheme, float]] = {}
    for choice in made.choices:  # the lowest prediction first
        best.setdefault(choice.scheme.name, (choice.scheme, choice.local_lr))
    return best


def settings(scheme: ft.Scheme, local_lr: float, folder: Path, seconds: int) -> dict[str, str | int | float | bool]:
    """What is told to the app."""
    told: dict[str, str | int | float | bool] = {
        "scheme": scheme.name,
        "local-lr": local_lr,
        "local-steps": STEPS,
        "batch-size": BATCH,
        "partition": PARTITION,
        "clients": len(PAUSES),
        "num-rounds": 10_000,
        "until": float(seconds),
        "checkpoint": str(folder / "run"),
        "out": str(folder),
    }
    return told | ({"wait": float(scheme.wait)} if isinstance(scheme, ft.FedFix) else {})


def train(best: Mapping[str, tuple[ft.Scheme, float]], out: Path, seconds: int) -> list[Outcome]:
    """Both schemes, one after the other, on the same sites."""
    outcomes = []
    with LocalFederation(out / "federation", env={"JAX_PLATFORMS": "cpu"}) as federation:
        for i, pause in enumerate(PAUSES):
            told = {"partition-id": i, "num-partitions": len(PAUSES), "pause": float(pause)}
            federation.start_node(f"site-{i}", told)
        federation.wait_for_nodes(len(PAUSES))
        for name in ("fedavg", "fedfix"):
            scheme, local_lr = best[name]
            folder = out / name
            print(f"{scheme.label} trains for {seconds} s …", flush=True)
            federation.run(APP, settings(scheme, local_lr, folder, seconds), limit=2 * seconds + 60)
            measured, updates = (json.loads((folder / f"{name}.json").read_text()) for name in ("measured", "updates"))
            outcomes.append(Outcome(scheme, local_lr, measured, updates))
    return outcomes


def show(outcomes: list[Outcome], seconds: int) -> None:
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
    print(f"From a model sent to its update, on average: {said}; planned with {', '.join(map(str, TIMES))} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/flower-demo"))
    parser.add_argument("--seconds", type=int, default=110, help="wall time of each scheme")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    begin = time.monotonic()
    for ours in ("federation", "fedavg", "fedfix"):
        shutil.rmtree(options.out / ours, ignore_errors=True)
    out = options.out.resolve()  # the sites have folders of their own
    outcomes = train(plan(options.seconds), out, options.seconds)
    show(outcomes, options.seconds)
    figure = options.out / "flower-demo.png"
    save_demo(outcomes, options.seconds, figure)
    print(f"{figure}: losses in time, and who worked when. Done after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
