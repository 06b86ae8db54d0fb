"""How far clients may go in one job under the stable step, and what of that can be proved.

    python benchmarks/stability.py

    limits      the largest fraction c of the way (FedAvg: 2) for asynchronous FedAvg, with what c(W + Γ) < 2 proves
    settings    random fixed times under asynchronous FedAvg, FedBuff and FedFix: none unstable at c_i ≤ 0.995
    overlaps    the mean weight that others apply in R_i rounds, max_i (1 − p_i)R_i, against the exact Γ; and steps made
                from the mean, tried on clients whose curvatures do not commute
    orders      a search for an order of arrivals, weights and curvatures that diverges at c × W = 1

Parts that find what must not be exit with an error; ``--only limits`` runs one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads only wait for each other
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np

import fedtempo as ft
from fedtempo.clock.timeline import Timeline
from fedtempo.theory.stability import stability_limit
from fedtempo.weighting.steps import largest_overlap, proven_step, stable_step
from support.step_cases import Case, case_of, draw
from weighting.test_steps import growth, radius, random_order, symmetric

SIZES = (2, 5, 10, 50)


def limits() -> int:
    """The table of docs/theory.md."""
    print(f"{'times':24s}" + "".join(f"{f'M = {m}':>18s}" for m in SIZES))
    rows = {
        "F0": lambda m: ft.FixedTimes.spread(m, 0),
        "F80": lambda m: ft.FixedTimes.spread(m, 80),
        "one client 10 x slower": lambda m: ft.FixedTimes([10] + [1] * (m - 1)),
        "one client 100 x slower": lambda m: ft.FixedTimes([100] + [1] * (m - 1)),
    }
    for name, times in rows.items():
        cells = []
        for clients in SIZES:
            case = case_of(ft.AsyncFedAvg(), times(clients))
            step, weight = stable_step(case.run, case.d), case.d.sum()
            limit = stability_limit(np.ones(clients), case.scheme, case.times, server_lr=step)
            proven = 2 / (1 + largest_overlap(case.run, case.d)[0] / weight)
            cells.append(f"{limit.lr:.3f}{' ' if limit.exact else '~'}({proven:.2f})")
        print(f"{name:24s}" + "".join(f"{cell:>18s}" for cell in cells), flush=True)
    print("in brackets: what c(W + Γ) < 2 proves; ~: along a timeline")
    return 0


def settings(count: int) -> int:
    """Stability at c ≤ 0.995 in random settings."""
    bad, worst = 0, -np.inf
    for number in range(count):
        case, rng = draw(number), np.random.default_rng(number)
        same = np.tile(np.linspace(0.05, 0.995, 20), (len(case.d), 1))
        unequal = 0.995 * rng.random((len(case.d), 100)) ** rng.choice([0.1, 0.3, 1.0])
        grown = growth(case, stable_step(case.run, case.d), np.hstack([same, unequal]))
        bad, worst = bad + (grown >= 0), max(worst, grown)
    print(f"{count} settings, 120 sets of c_i ≤ 0.995 each: {bad} unstable, largest growth a round {worst:.2g}")
    return bad


def overlaps(count: int) -> int:
    """The mean against the exact Γ, by scheme, and both steps on matrices."""
    tried = 0
    ratios: dict[str, list[float]] = {}
    radii: dict[str, float] = {}
    for number in range(count):
        case, rng = draw(number), np.random.default_rng([1, number])
        p, needed = case.run.importance.values, 1 / case.run.participation.share
        total = case.d.sum() + float(((1 - p) * needed).max())
        exact = proven_step(case.run, case.d)
        ratios.setdefault(type(case.scheme).__name__, []).append(2 / total / exact)
        order = _cycle(case)
        if order is None:
            continue
        for _ in range(5):
            size = int(rng.integers(1, 4))
            pulls = np.array([symmetric(rng, size, 0.9995) for _ in case.d])
            tried += 1
            for name, step in (("mean", 2 / total), ("exact", exact), ("stable", stable_step(case.run, case.d))):
                radii[name] = max(radii.get(name, 0.0), radius(order, step * case.d, pulls))
    for name, found in ratios.items():
        above = np.mean(np.array(found) > 1 + 1e-9)
        print(f"{name}: step by the mean over exact one {min(found):.2f} … {max(found):.2f}, above 1 in {above:.0%}")
    print(f"{tried} sets of matrices: largest radius of a cycle", {k: round(v, 6) for k, v in radii.items()})
    return sum(value > 1 for value in radii.values())


def _cycle(case: Case) -> list[list[int]] | None:
    """The rounds that repeat, where they are few."""
    cycle = case.run.observation.cycle
    if cycle is None or cycle.length > 500:
        return None
    line = Timeline.joined(case.run.record.rounds(cycle.start + cycle.length))[cycle.start :]
    return [list(r.participants) for r in line.rounds]


def orders(seconds: float) -> int:
    """Annealing towards the largest growth at c × W = 1; curvatures between 0.2 and 1 that do not commute."""
    rng, begin, best, tried = np.random.default_rng(0), time.perf_counter(), 0.0, 0
    while time.perf_counter() - begin < seconds:
        clients, size = int(rng.integers(2, 7)), int(rng.integers(1, 4))
        order, w = random_order(rng, clients), rng.dirichlet(np.ones(clients)) + 0.02
        pulls = np.array([_pull(rng, size) for _ in range(clients)])
        value, heat = radius(order, w / w.sum(), pulls), 0.05
        for _ in range(300):
            new = [list(r) for r in order], w.copy(), pulls.copy()
            kind = rng.integers(4)
            if kind == 0:
                a, b = rng.integers(len(order), size=2)
                new[0][a], new[0][b] = new[0][b], new[0][a]
            elif kind == 1 and len(order) < 24:
                new[0].insert(int(rng.integers(len(order))), [int(rng.integers(clients))])
            elif kind == 2:
                new[1][:] = np.maximum(0.02, w * np.exp(0.3 * rng.normal(size=clients)))
            else:
                new[2][rng.integers(clients)] = _pull(rng, size)
            found = radius(new[0], new[1] / new[1].sum(), new[2])
            tried += 1
            if found > value or rng.random() < np.exp((found - value) / heat):
                (order, w, pulls), value = new, found
            heat *= 0.99
        best = max(best, value)
    print(f"{tried} orders at c × W = 1: largest radius of a turn {best:.4f}")
    return int(best > 1)


def _pull(rng: np.random.Generator, size: int) -> np.ndarray:
    turned, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (turned * np.where(rng.random(size) < 0.5, 1.0, rng.uniform(0.2, 1.0, size))) @ turned.T


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("limits", "settings", "overlaps", "orders"))
    parser.add_argument("--settings", type=int, default=249)
    parser.add_argument("--seconds", type=float, default=60, help="for the search of orders")
    given = parser.parse_args()
    parts = {
        "limits": limits,
        "settings": lambda: settings(given.settings),
        "overlaps": lambda: overlaps(4 * given.settings),
        "orders": lambda: orders(given.seconds),
    }
    found = [part() for name, part in parts.items() if given.only in (None, name)]
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
