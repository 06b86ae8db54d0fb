"""A fifth of the clients is hostile: test accuracy with and without each robust rule. Digits, 20 clients, F80.

    python benchmarks/robust.py [--seeds 1] [--until 10] [--only iid] [--out results/robust.json]

Attacks: the contribution times −10; a contribution of Gaussian noise, ten times as long as the true one; labels y
trained as 9 − y. The hostile are the fastest four or the slowest four: times are
dealt anew to the same clients. The server's rate is that of one update of every
client together (1 over the mean of 1 + staleness, by weight). Printed is the accuracy at the end, the mean of the last
three of 21 measurements and of all seeds, and by * where it is more than 0.03 below that of the plain sum without
attack.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import fedtempo as ft
from fedtempo.training.robust_rules import RobustRule
from fedtempo.training.server_contract import Acc, Arrival
from fedtempo.training.server_rules import WEIGHTED_SUM

CLIENTS, NEAR = 20, 0.03
HOSTILE = (0, 1, 2, 3)
_SPREAD = sorted(ft.FixedTimes.spread(clients=CLIENTS, slowdown=80).exact_mean_time)
TIMES = {"fastest": ft.FixedTimes(_SPREAD), "slowest": ft.FixedTimes(_SPREAD[::-1])}
"""By which four are hostile; the same code is compiled for both."""
SCHEMES = (ft.FedAvg(), ft.FedFix("1/2"), ft.FedBuff(5), ft.AsyncFedAvg())
RULES: dict[str, RobustRule | None] = {
    "sum": None,
    "median": ft.CoordinateMedian(),
    "median alone": ft.CoordinateMedian(mix=False),
    "trimmed mean": ft.TrimmedMean(),
    "trimmed alone": ft.TrimmedMean(mix=False),
    "Krum": ft.Krum(),
    "norm clipping": ft.NormClipping(),
}
ATTACKS = ("sign × 10", "noise", "labels")
LOCAL = ft.LocalSGD(steps=5, lr=0.5, batch_size=32)


@dataclass(frozen=True)
class Poisoned(RobustRule):
    """What `rule` makes of contributions when those of some clients are altered on their way."""

    name = "poisoned"
    rule: RobustRule | None = None
    clients: tuple[int, ...] = ()
    attack: str = "sign × 10"

    def among(self, clients: int) -> Poisoned:
        rule = None if self.rule is None else self.rule.among(clients)
        return Poisoned(clients, rule, self.clients, self.attack)

    def spec(self) -> dict[str, object]:
        rule = "sum" if self.rule is None else self.rule.spec()
        return {"name": self.name, "rule": rule, "clients": list(self.clients), "attack": self.attack}

    @property
    def inner(self) -> Any:
        return WEIGHTED_SUM if self.rule is None else self.rule

    def start(self, params: Any) -> Acc:
        return self.inner.start(params)

    def add(self, acc: Acc, arrival: Arrival, hyper: Any) -> Acc:
        hostile = jnp.isin(arrival.client, jnp.array(self.clients))
        change = arrival.answer.change
        altered = jax.tree.map(lambda x: jnp.where(hostile, new(x, self.attack, arrival.client), x), change)
        return self.inner.add(acc, arrival._replace(answer=arrival.answer._replace(change=altered)), hyper)

    def close(self, acc: Acc, hyper: Any) -> tuple[Any, Acc]:
        closed: tuple[Any, Acc] = self.inner.close(acc, hyper)
        return closed


def new(change: jax.Array, attack: str, client: jax.Array) -> jax.Array:
    """What a hostile client sends instead of an array of its contribution."""
    if attack == "sign × 10":
        return -10 * change
    word = jax.lax.bitcast_convert_type(change.sum().astype(jnp.float32), jnp.int32)
    noise = jax.random.normal(jax.random.fold_in(jax.random.fold_in(jax.random.key(7), client), word), change.shape)
    return (10 * jnp.sqrt(jnp.mean(jnp.square(change))) * noise).astype(change.dtype)


def flipped(problem: ft.Problem, clients: tuple[int, ...]) -> ft.Problem:
    """The same problem, in which some clients train on 9 − y."""
    data = []
    for i in range(problem.num_clients):
        x, y = problem.client_data(i)
        data.append((x, 9 - y if i in clients else y))
    return ft.Problem(problem.init, problem.loss, data, test=problem.test, metrics=problem.metrics)


def accuracies(
    problem: ft.Problem,
    server: RobustRule | None,
    who: str,
    until: Fraction,
    seeds: int = 1,
    schemes: tuple[ft.Scheme, ...] = SCHEMES,
) -> dict[str, float]:
    """Of each scheme, at the end."""
    options: dict[str, Any] = {} if server is None else {"server": server}
    times = TIMES[who]
    run = [s.using(label=s.label, **options) for s in schemes]
    history = ft.simulate(problem, run, times, until=until, local=LOCAL, points=21, seeds=range(seeds))
    found = history.dataset["test_accuracy"]
    return {s.label: float(found.sel(scheme=s.label).isel(time=slice(-3, None)).mean()) for s in schemes}


def cell(problem: ft.Problem, rule: str, attack: str, who: str, until: Fraction, **more: Any) -> dict[str, float]:
    """Accuracies under an attack ("none": without)."""
    server = RULES[rule]
    if attack == "none":
        return accuracies(problem, server, who, until, **more)
    if attack == "labels":
        return accuracies(flipped(problem, HOSTILE), server, who, until, **more)
    return accuracies(problem, Poisoned(None, server, HOSTILE, attack), who, until, **more)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--seeds", type=int, default=1)
    ask.add_argument("--until", type=Fraction, default=Fraction(10))
    ask.add_argument("--only", choices=["iid", "dirichlet:0.5"])
    ask.add_argument("--out", type=Path)
    given = ask.parse_args()
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    rows: list[dict[str, Any]] = []
    for partition in ("iid", "dirichlet:0.5"):
        if given.only not in (None, partition):
            continue
        problem = ft.problems.digits(clients=CLIENTS, partition=partition, l2=0.01)
        cases = [(attack, who) for who in TIMES for attack in ("none", *ATTACKS)]
        print(f"\n{partition}\n{'attack':12}{'hostile':10}{'rule':15}" + "".join(f"{s.label:>14}" for s in SCHEMES))
        clean: dict[str, float] = {}
        for attack, who in cases:
            clean = {} if attack == "none" else clean
            for rule in RULES:
                begin = time.perf_counter()
                found = cell(problem, rule, attack, who, given.until, seeds=given.seeds)
                clean = clean or found
                shown = [f"{v:.3f}" + ("*" if not v >= clean[s] - NEAR else " ") for s, v in found.items()]
                print(f"{attack:12}{who:10}{rule:15}" + "".join(f"{text:>14}" for text in shown), flush=True)
                took = time.perf_counter() - begin
                rows.append(
                    {"partition": partition, "attack": attack, "hostile": who, "rule": rule, **found, "s": took}
                )
                if given.out is not None:
                    given.out.parent.mkdir(parents=True, exist_ok=True)
                    given.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
