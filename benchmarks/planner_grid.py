"""The loss of every cell (scheme × rate × seed) of the settings on which the planner is judged.

    python benchmarks/planner_grid.py --out FOLDER [--seed S] [--only 0,1,…] [--seeds 8]
    python benchmarks/planner_grid.py --out FOLDER --more 16 [--error 0.03]

One small .npz a setting: the loss over the last tenth of the time of every seed, and the smallest possible loss. With
--more, further seeds for three rates around each scheme's best; other cells have none of them (not a number). With
--error, more of them until the best cell's standard error is at most this share of its excess.
"""

from __future__ import annotations

import argparse
import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import fedtempo as ft
from planner_settings import COUNT, RATES, SEED, Setting, candidates, setting

MOST = 256
"""Seeds, at most."""


def smallest_loss(problem: ft.Problem) -> float:
    """Min Σ p_i L_i, in float64."""
    with jax.enable_x64(True):
        p = problem.importance.values
        owner = np.repeat(np.arange(problem.num_clients), problem.sizes)
        weight = (p / problem.sizes)[owner]
        init = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem.init(jax.random.key(0)))
        flat, back = ravel_pytree(init)
        rows = jax.tree.map(
            lambda leaf: leaf.astype(np.float64) if np.issubdtype(leaf.dtype, np.floating) else leaf, problem.rows
        )

        @jax.jit
        def value(z: jax.Array) -> jax.Array:
            each = jax.vmap(lambda row: problem.loss(back(z), jax.tree.map(lambda leaf: leaf[None], row)))(rows)
            return (weight * each).sum()

        both = jax.jit(jax.value_and_grad(value))
        found = minimize(
            lambda z: tuple(np.asarray(v) for v in both(z)),
            np.asarray(flat),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9},
        )
        return float(found.fun)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--seed", type=int, default=SEED)
    ask.add_argument("--only", default=",".join(map(str, range(COUNT))))
    ask.add_argument("--seeds", type=int, default=8)
    ask.add_argument("--more", type=int, default=0)
    ask.add_argument("--error", type=float, default=1.0)
    asked = ask.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for k in map(int, asked.only.split(",")):
        path = asked.out / f"{asked.seed}-{k}.npz"
        if path.exists() and not asked.more:
            continue
        begin = time.perf_counter()
        s = setting(k, asked.seed)
        slowest = Fraction(round(100 * float(s.times.mean_time.max())), 100)
        schemes = candidates(s.problem.num_clients, slowest)
        names = [scheme.label for scheme in schemes]
        if asked.more:
            with np.load(path) as known:
                loss, best = known["loss"], known["best"]
            near = around_the_best(loss)
            rates = {n: [RATES[j] for j in np.flatnonzero(row)] for n, row in zip(names, near, strict=True)}
            while True:
                seeds = range(loss.shape[-1], loss.shape[-1] + asked.more)
                loss = np.concatenate([loss, losses(s, schemes, seeds, rates)], axis=-1)
                if loss.shape[-1] >= MOST or error_of_the_best(loss - best, near) <= asked.error:
                    break
        else:
            loss, best = losses(s, schemes, range(asked.seeds), None), np.float64(smallest_loss(s.problem))
        np.savez_compressed(
            path, loss=loss, rates=np.array(RATES), schemes=np.array(names), best=best, said=json.dumps(s.said)
        )
        print(f"{path.name} {time.perf_counter() - begin:.1f} s", flush=True)


def losses(s: Setting, schemes: list[ft.Scheme], seeds: range, rates: dict[str, list[float]] | None) -> Any:
    """[schemes, rates, seeds] the mean loss over the last tenth of the time."""
    history = ft.simulate(
        s.problem,
        schemes,
        s.times,
        until=s.until,
        step="paper",
        local=ft.LocalSGD(steps=s.local_steps, lr=list(RATES), batch_size=s.batch_size),
        rates=rates,
        seeds=seeds,
        points=11,
        measure_from=s.until * 9 / 10,
    )
    return history.dataset["loss"].squeeze().transpose("scheme", "local_lr", "seed", "time").values.mean(-1)


def around_the_best(loss: Any) -> Any:
    """[schemes, rates] the best rate of each scheme and its neighbours."""
    mean = np.where(np.isfinite(loss).all(-1), loss.mean(-1), np.inf)
    place = np.arange(mean.shape[1])
    return abs(place - mean.argmin(1)[:, None]) <= 1


def error_of_the_best(excess: Any, near: Any) -> float:
    """The best cell's standard error over its excess, among cells with all seeds."""
    mean = np.where(near & np.isfinite(excess).all(-1), excess.mean(-1), np.inf)
    best = excess[np.unravel_index(np.argmin(mean), mean.shape)]
    return float(best.std(ddof=1) / np.sqrt(len(best)) / best.mean())


if __name__ == "__main__":
    main()
