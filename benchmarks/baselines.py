"""Every option of a scheme and every published method on one problem: digits, 20 clients with few labels each, F80.

    python benchmarks/baselines.py [--out results/baselines] [--only compression] [--seeds 5]

Each row is a method at its best rates, with the lowest mean loss over the last tenth of the time. The target is the
loss at which FedAvg ends. Rows go to JSON files, one a group; the table of docs/baselines.md is made of them.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import fedtempo as ft

CLIENTS, UNTIL, POINTS, STEPS, BATCH = 20, 100, 401, 5, 32
RATES = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
TIMES = ft.FixedTimes.spread(clients=CLIENTS, slowdown=80)
FIX = ft.FedFix("1/2")
UNEQUAL = tuple(1 + 9 * (i % 4) // 3 for i in range(CLIENTS))
"""1, 4, 7 or 10 local steps."""


@dataclass(frozen=True)
class Group:
    """Rows that are run together."""

    title: str
    schemes: list[ft.Scheme]
    times: ft.ClientTimes = TIMES
    weights: str = "time-based"
    local: dict[str, Any] = field(default_factory=dict)
    server_lr: list[float] | float = 1.0
    solver: Any = None
    suffix: str = ""


def groups() -> dict[str, Group]:
    """What is compared."""
    sampling = [ft.UniformSampling(5), ft.MultinomialSampling(5)]
    biased = [ft.FastestSampling(5), ft.HighestLossSampling(5, candidates=10)]
    cured = [ft.CuredSampling(criterion, window=8, biased=2) for criterion in biased]
    prox = [FIX.using(correction=ft.FedProx(mu)) for mu in (0.01, 0.1, 1.0)]
    dane = [FIX.using(correction=ft.FedDANE(mu)) for mu in (0.01, 0.1, 1.0)]
    dyn = [scheme.using(correction=ft.FedDyn(alpha)) for scheme in (ft.FedAvg(), FIX) for alpha in (0.1, 1.0, 10.0)]
    scaffold = [scheme.using(correction=ft.Scaffold()) for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), FIX)]
    servers = (ft.SlowMo(0.9), ft.FedAdam(), ft.FedYogi(), ft.FedAdaGrad())
    small = (ft.QSGD(4), ft.TopK(0.01), ft.TopK(0.01, error_feedback=False), ft.LowRank(1))
    mixes = [ft.published.FedAsync(0.6, s) for s in ("polynomial:0.5", "hinge:10:4", "constant:1")]
    mixes.append(ft.published.FedAsync(0.6, mu=0.1))
    published = [ft.published.FedBuff(5), ft.published.CutOff(ft.AsyncFedAvg(), 20), ft.published.CutOff(FIX, 0)]
    history = [ft.published.FedAU(ft.AsyncFedAvg(), 200), ft.published.FedAU(FIX)]
    unsteady = {"failures": {"failure": 0.2}, "on and off": {"on": 10, "off": 5}}
    plain = [ft.FedAvg(), ft.AsyncFedAvg(), FIX, ft.FedBuff(5)]
    return {
        "schemes": Group("Schemes, time-based weights", plain),
        "identical": Group("Schemes, identical weights", plain[1:], weights="identical", suffix=", identical"),
        "sampling": Group("Client sampling", sampling),
        "biased": Group("Client sampling by a criterion", biased, weights="identical"),
        "cured": Group("The same, cured", cured),
        "compensation": Group("Compensation by rate or by work", [FIX.using(compensate=w) for w in ("rate", "work")]),
        "corrections": Group("Regularised local work", [*prox, *dane, *dyn, *scaffold]),
        "momentum": Group("Local solvers", [FIX], local={"momentum": 0.9}, suffix=", local momentum 0.9"),
        "adam": Group(
            "Local solvers", [FIX], solver=optax.adam, local={"lr": [r / 100 for r in RATES]}, suffix=", local Adam"
        ),
        "adagrad": Group("Local solvers", [FIX], solver=optax.adagrad, suffix=", local AdaGrad"),
        "schedule": Group(
            "Schedule", [FIX], local={"schedule": "horizon", "lr": [30 * r for r in RATES]}, suffix=", η_l ∝ 1/√(KN)"
        ),
        "clip": Group("Clipping", [FIX], local={"clip": 1.0}, suffix=", gradients clipped at 1"),
        "slowmo": Group("Server side", [FIX.using(server=servers[0])], server_lr=[0.05, 0.1, 0.5]),
        "servers": Group(
            "Server side",
            [FIX.using(server=s) for s in servers[1:]],
            local={"lr": [r / 20 for r in RATES]},
            server_lr=[0.03, 0.1, 0.3, 1.0],
        ),
        "compression": Group("Compression", [FIX.using(compression=c) for c in small]),
        "fedasync": Group("Published methods", mixes),
        "published": Group("Published methods", [*published, *history]),
        "unequal": Group("Unequal steps", [ft.FedAvg().using(client_steps=UNEQUAL), ft.published.FedNova(UNEQUAL)]),
        **{
            name: Group("Availability", [ft.FedAvg(), FIX], times=TIMES.available(**law), suffix=f", {name}")
            for name, law in unsteady.items()
        },
    }


def problem() -> ft.Problem:
    """Digits with a penalty, so that there is a least loss."""
    return ft.problems.digits(clients=CLIENTS, partition=ft.Dirichlet(0.1), seed=0, l2=0.01)


def rows(group: Group, seeds: int) -> list[dict[str, Any]]:
    """A row a scheme."""
    options = {"steps": STEPS, "lr": RATES, "batch_size": BATCH} | group.local
    local = ft.LocalSGD(**options) if group.solver is None else ft.LocalOptax(solver=group.solver, **options)
    begin = time.perf_counter()
    history = ft.simulate(
        problem(),
        group.schemes,
        group.times,
        until=UNTIL,
        step="paper",  # each scheme at its own best rate
        local=local,
        weights=group.weights,
        server_lr=group.server_lr,
        seeds=range(seeds),
        points=POINTS,
    )
    seconds = time.perf_counter() - begin
    best = history.best("loss").dataset.isel(weights=0)
    found = []
    for scheme in group.schemes:
        one = best.sel(scheme=scheme.label)
        loss = one["loss"].transpose("seed", "time").values
        last = loss[:, -(POINTS // 10) :].mean(axis=1)
        found.append(
            {
                "method": scheme.label + group.suffix,
                "time": one["time"].values.tolist(),
                "mean_loss": loss.mean(axis=0).round(6).tolist(),
                "bytes_up": _flat(one["bytes_up"]),
                "bytes_down": _flat(one["bytes_down"]),
                "final": float(last.mean()),
                "error": float(last.std(ddof=1) / np.sqrt(len(last))),
                "local_lr": float(one["local_lr"]),
                "server_lr": float(one["server_lr"]),
                "edge": float(one["local_lr"]) in (options["lr"][0], options["lr"][-1]),
                "accuracy": float(one["test_accuracy"].isel(time=-1).mean()),
                "seconds": seconds,
            }
        )
    return found


def _flat(values: Any) -> list[float]:
    return np.asarray(values.transpose("seed", "time").values).mean(axis=0).tolist()


def least() -> float:
    """The smallest federated loss."""
    here = problem()
    flat, at = ft.theory.optimum(here), 0
    leaves, structure = jax.tree.flatten(here.parameter_shapes)
    parts = []
    for leaf in leaves:
        parts.append(flat[at : at + leaf.size].astype(np.float32).reshape(leaf.shape))
        at += leaf.size
    theta = jax.tree.unflatten(structure, parts)
    losses = [float(here.loss(theta, here.client_data(i))) for i in range(here.num_clients)]
    return float(here.importance.values @ losses)


def table(found: dict[str, list[dict[str, Any]]], target: float, lowest: float) -> str:
    """Markdown: a row a method."""
    lines = [
        "| method | η_l | loss above the least, 10⁻³ | time to target | MB up to target | MB up | MB down |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, group in groups().items():
        if name not in found:
            continue
        lines.append(
            f"| **{group.title}** | | | | | | |"
        ) if f"| **{group.title}** | | | | | | |" not in lines else None
        for row in found[name]:
            reached = [k for k, loss in enumerate(row["mean_loss"]) if loss <= target]
            when = f"{row['time'][reached[0]]:g}" if reached else "never"
            cost = f"{row['bytes_up'][reached[0]] / 1e6:.2f}" if reached else "–"
            rate = f"{row['local_lr']:g}" + ("*" if row["edge"] else "")
            rate += f", η_g {row['server_lr']:g}" if row["server_lr"] != 1 else ""
            above = f"{1e3 * (row['final'] - lowest):.1f} ± {1e3 * row['error']:.1f}"
            lines.append(
                f"| {row['method']} | {rate} | {above} | {when} | {cost} "
                f"| {row['bytes_up'][-1] / 1e6:.2f} | {row['bytes_down'][-1] / 1e6:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/baselines"))
    parser.add_argument("--only", nargs="*", help="groups to run; those that are there already stay")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, group in groups().items():
        path = options.out / f"{name}.json"
        if (options.only is None and not path.exists()) or name in (options.only or ()):
            path.write_text(json.dumps(rows(group, options.seeds)))
            print(f"{name}: done", flush=True)
        if path.exists():
            found[name] = json.loads(path.read_text())
    target = found["schemes"][0]["final"]
    lowest = least()
    print(f"The least loss is {lowest:.4f}, the target that at which FedAvg ends, {target:.4f}.\n")
    print(table(found, target, lowest))


if __name__ == "__main__":
    main()
