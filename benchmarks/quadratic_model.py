"""The exact quadratic model against simulation: stability limits, loss curves, dense matrices; and the limits' order.

    limits    simulated runs at 0.98 and 1.02 of the limit shrink and grow; of random rounds the mean square does, by
              runs that are cloned in proportion to their squared distance, so that rare large ones are seen
    curves    means over simulated runs lie within three standard errors of the forecast at 99 % of the grid points
    dense     the same moments by (M + 1)² matrices on (θ, b_1, …, b_M), and the mean by a plain loop
    order     limits of every scheme, for F80

Each part exits with an error if it fails; ``--only limits`` runs one.
"""

from __future__ import annotations

import argparse
import sys
import time
from fractions import Fraction
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.theory.forecasting import forecast
from fedtempo.theory.recursion import Coordinates, advance, job, pull_of, schedule, starting
from fedtempo.theory.regimes import Independent, Sampled, regime
from fedtempo.theory.stability import stability_limit

CLIENTS = 10
FIXED = ft.FixedTimes.spread(CLIENTS, 80)
EXPONENTIAL = ft.ExponentialTimes(FIXED.describe())
FIXED_SCHEMES = (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2"), ft.FedFix("1/5"), ft.FedBuff(3))
WORK = ((1, [0.02, 0.1]), (5, [0.005, 0.02]))
"""(K, learning rates) of the curves."""
RANDOM = (
    (ft.UniformSampling(3), FIXED),
    (ft.MultinomialSampling(3), FIXED),
    (ft.AsyncFedAvg(), EXPONENTIAL),
    (ft.FedBuff(3), EXPONENTIAL),
)


def cloned(law: Any, pull: Any, scheme: ft.Scheme, rounds: int, runs: int) -> tuple[float, float]:
    """Growth of E|z|², halved, by plain runs that are cloned by |z|²; with its standard error over stretches."""
    rng = np.random.default_rng(1)
    clients = len(pull)
    z = np.ones((runs, 1 + clients))
    logs = []
    for _ in range(rounds):
        if isinstance(law, Sampled):
            z[:, 1:] = z[:, :1]  # everyone starts from θ^n
            size = scheme.size  # type: ignore[attr-defined]
            if isinstance(scheme, ft.UniformSampling):
                took = (rng.random((runs, clients)).argsort(axis=1) < size).astype(float)
            else:
                took = rng.multinomial(size, np.full(clients, 1 / clients), size=runs).astype(float)
        else:
            left = rng.exponential(size=(runs, clients)) * FIXED.mean_time  # what is left of each job, forgotten
            size = getattr(scheme, "size", 1)
            took = (left.argsort(axis=1).argsort(axis=1) < size).astype(float)
        theta = z[:, 0] - (took * law.weight * pull * z[:, 1:]).sum(axis=1)
        z[:, 1:] = np.where(took > 0, theta[:, None], z[:, 1:])
        z[:, 0] = theta
        square = theta**2 if isinstance(law, Sampled) else (z**2).sum(axis=1)
        logs.append(np.log(square.mean()))
        z = z[rng.choice(runs, size=runs, p=square / square.sum())]
        z /= np.abs(z[:, :1]) if isinstance(law, Sampled) else np.sqrt((z**2).sum(axis=1, keepdims=True))
    parts = np.array(logs[rounds // 5 :])
    parts = parts[: len(parts) // 10 * 10].reshape(10, -1).mean(axis=1) / 2
    return float(parts.mean()), float(parts.std(ddof=1) / np.sqrt(10))


def limits(quick: bool) -> bool:
    good = True
    print("\n| scheme | times | K | limit (how, error) | growth of runs at 0.98 | at 1.02 | |")
    print("|---|---|---|---|---|---|---|")
    drawn = np.random.default_rng(7).uniform(0.3, 1.0, (CLIENTS, 2))
    problem = ft.problems.quadratics(centers=np.ones((CLIENTS, 2)), curvatures=drawn, rows=1)
    until = 200 if quick else 600
    for steps in (1, 10):
        for scheme in FIXED_SCHEMES:
            limit = stability_limit(problem, scheme, FIXED, local_steps=steps)
            local = ft.LocalSGD(steps=steps, lr=[0.98 * limit.lr, 1.02 * limit.lr], batch_size=None)
            history = ft.simulate(
                problem,
                scheme,
                FIXED,
                until=until,
                step="paper",
                local=local,
                points=until + 1,
                dtype="float64",
                bound=1e300,
            )
            loss = history.dataset["loss"].squeeze().transpose("local_lr", "time").values
            loss = np.where(np.isfinite(loss), loss, 1e300)  # past 1e300 a run is stopped as diverged
            half = [0.5 * np.log(np.maximum(one[1:], 1e-300)) for one in loss]
            # towards rounding or overflow the curve is flat: look where it still moves
            ends = [_slope(one) for one in half]
            fine = ends[0] < 0 < ends[1]
            good &= fine
            how = f"{limit.kind}, {limit.error:.1g}"
            shown = f"{ends[0]:+.4f} | {ends[1]:+.4f} | {'ok' if fine else 'NO'}"
            print(f"| {scheme} | F80 | {steps} | {limit.lr:.5f} ({how}) | {shown} |")
        for scheme, times in RANDOM:
            one = drawn[:, 0]
            limit = stability_limit(one, scheme, times, local_steps=steps)
            law = regime(scheme, times)
            assert isinstance(law, (Sampled, Independent))
            found = []
            for factor in (0.98, 1.02):
                pull = pull_of(one[:, None], factor * limit.lr, steps)[:, 0, 0]
                found.append(cloned(law, pull, scheme, 600 if quick else 3000, 4000))
            fine = found[0][0] < 0 < found[1][0]
            good &= fine
            shown = " | ".join(f"{value:+.4f} ± {error:.4f}" for value, error in found)
            law_name = "exponential" if times is EXPONENTIAL else "F80"
            verdict = "ok" if fine else "NO"
            print(f"| {scheme} | {law_name} | {steps} | {limit.lr:.5f} ({limit.kind}) | {shown} | {verdict} |")
    return good


def _slope(way: Any) -> float:
    """Mean slope of a curve per unit of time, over the second half of what lies within e^±300 and above rounding."""
    usable = np.flatnonzero((way > np.log(1e-13)) & (way < 300))
    last = len(way) if len(usable) == 0 or usable[-1] == len(way) - 1 else usable[-1] + 1
    middle = last // 2
    quarter = max(1, (last - middle) // 4)
    return float(
        (way[last - quarter : last].mean() - way[middle : middle + quarter].mean()) / max(1, last - middle - quarter)
    )


def curves(quick: bool) -> bool:
    """Batches of runs, each held against three of its own standard errors; and all runs together, against bias.

    A loss is skewed, and neighbouring grid points are not independent: one batch can miss 99 % by chance.
    """
    size, batches, points, until = (40, 2, 21, 4) if quick else (200, 5, 51, 10)
    problem = ft.problems.quadratics(CLIENTS, dimension=8, noise=2.0, seed=3, rows=20)
    print("\n| scheme | times | grid points | within 3 standard errors | by batch | largest score of all runs |")
    print("|---|---|---|---|---|---|")
    good = True
    at = [Fraction(until * k, points - 1) for k in range(points)]
    cases = [*((s, FIXED) for s in FIXED_SCHEMES), *RANDOM, (ft.FedFix("1/2"), EXPONENTIAL)]
    histories = {}
    for times in (FIXED, EXPONENTIAL):
        for steps, lr in WORK:
            schemes = [scheme for scheme, law in cases if law is times]
            local = ft.LocalSGD(steps=steps, lr=lr, batch_size=4)
            seeds = range(size * batches)
            history = ft.simulate(
                problem,
                schemes,
                times,
                until=until,
                step="paper",
                local=local,
                seeds=seeds,
                points=points,
                dtype="float64",
            )
            histories[times, steps] = history.dataset["loss"].squeeze("weights")
    for scheme, times in cases:
        shares, largest, count = [], 0.0, 0
        random = times.random or scheme.waiting.random
        d = ft.weights(scheme, times)
        lines = [ft.timeline(scheme, times, until=until, seed=s) for s in range(size * batches if random else 1)]
        for steps, lr in WORK:
            local = ft.LocalSGD(steps=steps, lr=lr, batch_size=4)
            own = np.array([forecast(problem, line, d, local=local, at=at).loss for line in lines])
            runs = histories[times, steps].sel(scheme=scheme.label).transpose("seed", "local_lr", "time").values
            off = runs - own
            shares.append([(_scores(part) <= 3).mean() for part in off.reshape(batches, size, *off.shape[1:])])
            largest = max(largest, float(_scores(off).max()))
            count += batches * _scores(off).size
        by_batch = np.mean(shares, axis=0)
        fine = by_batch.mean() >= 0.99 and largest < 4
        good &= bool(fine)
        law_name = "exponential" if times is EXPONENTIAL else "F80"
        shown = " ".join(f"{100 * share:.1f}" for share in by_batch)
        mark = "" if fine else " NO"
        print(f"| {scheme} | {law_name} | {count} | {100 * by_batch.mean():.2f} %{mark} | {shown} | {largest:.2f} |")
    return good


def _scores(off: Any) -> Any:
    """|mean| in standard errors, at points where runs differ; where they do not they must be the forecast."""
    error = off.std(axis=0, ddof=1) / np.sqrt(len(off))
    moving = error > 1e-10
    assert np.abs(off.mean(axis=0))[~moving].max(initial=0.0) < 1e-9
    return np.abs(off.mean(axis=0))[moving] / error[moving]


def dense(quick: bool) -> bool:
    problem = ft.problems.quadratics(CLIENTS, dimension=4, noise=1.0, seed=2)
    clients = Coordinates.of(problem, 4)
    rounds = 200 if quick else 1000
    good = True
    print("\n| scheme | rounds | largest relative difference: variance | mean | seconds: dense | slots |")
    print("|---|---|---|---|---|---|")
    for scheme in (*FIXED_SCHEMES, ft.UniformSampling(3)):
        line, d = ft.timeline(scheme, FIXED, rounds=rounds), ft.weights(scheme, FIXED)
        work = job(clients, [0.03], 3)
        begin = time.perf_counter()
        plan = schedule(line, d)
        moments = starting(plan, clients.start, 1, covariance=True)
        advance(plan, moments, work, clients.center)
        fast = time.perf_counter() - begin
        last = plan.exit[0]
        begin = time.perf_counter()
        variance = [_dense(line, d, clients, work, k) for k in range(4)]
        slow = time.perf_counter() - begin
        mean = _plain(line, d, clients, 0.03, 3)
        assert moments.cov is not None
        off = float(np.abs(moments.cov[last, last, 0] / variance - 1).max())
        away = float(np.abs(moments.mean[last, 0] / mean - 1).max())
        good &= off < 1e-9 and away < 1e-9
        print(f"| {scheme} | {rounds} | {off:.1e} | {away:.1e} | {slow:.2f} | {fast:.3f} |")
    return good


def _dense(line: ft.Timeline, d: ft.Weights, clients: Coordinates, work: Any, k: int) -> float:
    size = line.num_clients + 1
    unit = np.eye(size)
    p = np.zeros((size, size))
    omega = d.applied(line)
    for n in range(line.num_rounds):
        part = slice(line.offsets[n], line.offsets[n + 1])
        who = line.client[part]
        before = unit.copy()
        before[1 + who[line.base[part] == n]] = unit[0]
        turn = unit.copy()
        gain = omega[part] * work.pull[who, 0, k]
        hit = np.array([0, *(1 + who)])
        turn[hit] = unit[0] - gain @ unit[1 + who]
        mark = np.zeros(size)
        mark[hit] = 1
        turn = turn @ before
        p = turn @ p @ turn.T + (omega[part] ** 2 * work.jitter[who, 0, k]).sum() * np.outer(mark, mark)
    return float(p[0, 0])


def _plain(line: ft.Timeline, d: ft.Weights, clients: Coordinates, lr: float, steps: int) -> Any:
    versions = [clients.start]
    omega = d.applied(line)
    for n in range(line.num_rounds):
        theta = versions[-1].copy()
        for u in range(line.offsets[n], line.offsets[n + 1]):
            i, sent = line.client[u], versions[line.base[u]]
            local = sent
            for _ in range(steps):
                local = local - lr * clients.curvature[i] * (local - clients.center[i])
            theta = theta + omega[u] * (local - sent)
        versions.append(theta)
    return versions[-1]


def order(quick: bool) -> bool:
    good = True
    print("\nLimits of η_l for clients of curvature 1 (time-based weights, η_g = 1).")
    print("\n| M | K | async | FedFix(1/5) | FedBuff(M/5) | FedFix(1/2) | FedAvg |\n|---|---|---|---|---|---|---|")
    for clients in (10, 20):
        times = ft.FixedTimes.spread(clients, 80)
        for steps in (1, 10):
            schemes = (ft.AsyncFedAvg(), ft.FedFix("1/5"), ft.FedBuff(clients // 5), ft.FedFix("1/2"), ft.FedAvg())
            found = [stability_limit(np.ones(clients), s, times, local_steps=steps) for s in schemes]
            shown = " | ".join(f"{f.lr:.4f}" + (f" ± {f.error:.4f}" if f.error else "") for f in found)
            print(f"| {clients} | {steps} | {shown} |")
            good &= found[0].lr < found[1].lr < found[3].lr <= found[4].lr * (1 + 1e-9)
    print("\nExponential times with the same means, K = 1: mean-square limit, and that of a typical run.")
    print("\n| M | async | FedBuff(2) | FedAvg |\n|---|---|---|---|")
    for clients in (5, 10):
        law = ft.ExponentialTimes(ft.FixedTimes.spread(clients, 80).describe())
        cells = []
        for scheme in (ft.AsyncFedAvg(), ft.FedBuff(2), ft.FedAvg()):
            exact = stability_limit(np.ones(clients), scheme, law)
            run = stability_limit(np.ones(clients), scheme, law, sense="typical", rounds=5000)
            cells.append(f"{exact.lr:.4f}; {run.lr:.4f} ± {run.error:.4f}")
            good &= exact.lr < run.lr + 3 * run.error + 1e-4
        print(f"| {clients} | {' | '.join(cells)} |")
    return good


PARTS = {"limits": limits, "curves": curves, "dense": dense, "order": order}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="smaller numbers, to see that it runs")
    options = parser.parse_args()
    failed = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            begin = time.perf_counter()
            if not part(options.quick):
                failed.append(name)
            print(f"\n{name}: {'FAILED' if name in failed else 'ok'}, {time.perf_counter() - begin:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
