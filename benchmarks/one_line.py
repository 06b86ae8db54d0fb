"""One changed line: the clients keep the learning rate that FedAvg has, and every other scheme gets the same time.

    python benchmarks/one_line.py [--quick] [--resume] [--settings 'CNN*'] [--schemes 'FedFix*'] [--step paper]

16 settings: a PyTorch MLP, CNN and MLP with BatchNorm as real clients on the fake Grid of Flower, and logistic
regression in the simulator, all on scikit-learn's digits with ten clients, each with

    F80, iid            fixed times from 60 s down to 12 s, rows dealt at random
    F80, Dirichlet      the same times, labels by Dirichlet(0.1)
    exponential, iid    random times with these means
    one 20 × slower     nine clients take 12 s, one 240 s

The local rate is FedAvg's best of a few in the setting, by test accuracy on the first two seeds. Schemes get no
argument but their own. A seed draws the first model, partition, batches and random times, the same for every scheme.
Runs with fixed times end when a round of FedAvg does, which is its best moment; with the slow client it is the others'
worst, for its one heavy update has just come. `--more` seconds ends them later.

A line of the table: test accuracy at the end, mean over seeds, the paired difference to FedAvg with the half-width of
its 95 % interval (Student's t), and a verdict on "no worse than FedAvg − 0.01": *worse* if all of the interval lies
below −0.01, *shown* if all of it lies above, else *open*. Runs go to a file of JSON lines, from which `--resume` goes
on and `--before` takes a column.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import fedtempo as ft

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

CLIENTS, BATCH, EPOCHS, STEPS, MARGIN = 10, 32, 2, 10, 0.01
F80 = [f"{540 - 48 * i}/9" for i in range(CLIENTS)]
"""Seconds: 60 to 12."""
TIMES: dict[str, tuple[ft.ClientTimes, str]] = {
    "F80, iid": (ft.FixedTimes(F80), "iid"),
    "F80, Dirichlet(0.1)": (ft.FixedTimes(F80), "dirichlet:0.1"),
    "exponential, iid": (ft.ExponentialTimes(F80), "iid"),
    "one 20 × slower": (ft.FixedTimes([240] + [12] * (CLIENTS - 1)), "iid"),
}
DIGITS = "digits"
RATES = {"MLP": (0.1, 0.3, 1.0), "CNN": (0.1, 0.3, 1.0), "BatchNorm MLP": (0.1, 0.3, 1.0), DIGITS: (1.0, 3.0, 10.0)}
UNTIL = {"F80, iid": 600, "F80, Dirichlet(0.1)": 600, "exponential, iid": 1200, "one 20 × slower": 1440}
"""Seconds in which FedAvg is on its way, and not at its end: about ten rounds, and six with the slow client."""
QUICK = ("BatchNorm MLP", DIGITS)
"""What learns in half of that time."""
FEDAVG = "FedAvg"
SCHEMES: dict[str, ft.Scheme] = {
    scheme.label: scheme
    for scheme in (ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(15), ft.FedFix(30), ft.FedBuff(2), ft.FedBuff(5))
}


@dataclass(frozen=True)
class Setting:
    """A model, and clients that train it."""

    model: str
    clients: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.clients}"

    @property
    def until(self) -> int:
        """Seconds of FedAvg's rounds."""
        return UNTIL[self.clients] // (2 if self.model in QUICK else 1)


SETTINGS = [Setting(model, clients) for model in RATES for clients in TIMES]


@dataclass(frozen=True)
class Task:
    """Runs of one setting and seed; those of the simulator go together."""

    setting: Setting
    seed: int
    schemes: tuple[str, ...]
    rates: tuple[float, ...]
    step: str | None
    more: int
    """Seconds beyond the end of FedAvg's last round."""

    @property
    def until(self) -> int:
        """Seconds that every scheme has."""
        return self.setting.until + self.more


Line = dict[str, Any]


def run(task: Task) -> list[Line]:
    """Carry out a task: a line a run."""
    return simulated(task) if task.setting.model == DIGITS else list(deployed(task))


def simulated(task: Task) -> list[Line]:
    """Logistic regression in the simulator."""
    times, partition = TIMES[task.setting.clients]
    problem = ft.problems.digits(CLIENTS, partition, seed=task.seed, test=0.25, importance="rows")
    begin = time.perf_counter()
    history = ft.simulate(
        problem,
        [SCHEMES[name] for name in task.schemes],
        times,
        until=task.until,
        local=ft.LocalSGD(steps=STEPS, lr=list(task.rates), batch_size=BATCH),
        seeds=[task.seed],
        points=2,
        **_step(task.step, ft.simulate),
    )
    seconds = time.perf_counter() - begin
    ends = history.dataset.isel(weights=0, seed=0, time=-1)
    found = []
    for name in task.schemes:
        for rate in task.rates:
            one = ends.sel(scheme=name, local_lr=rate)
            right = float(one["test_accuracy"])
            accuracy = right if np.isfinite(right) else 0.0
            found.append(_line(task, name, rate, accuracy, int(one["updates"]), 0, seconds))
    return found


def deployed(task: Task) -> Iterator[Line]:
    """PyTorch clients on the fake Grid."""
    import torch

    from support.flower_fake import on
    from torch_clients import MODELS, TorchClients, Training, accuracy

    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    times, partition = TIMES[task.setting.clients]
    for name in task.schemes:
        for rate in task.rates:
            training = Training(EPOCHS, BATCH, rate)
            clients = TorchClients(MODELS[task.setting.model], training, times, partition, seed=task.seed)
            grid = clients.grid()
            begin = time.perf_counter()
            result = strategy_of(name, **on(grid), **_step(task.step, None)).start(
                grid=grid, initial_arrays=clients.first, num_rounds=10**9, until=task.until
            )
            seconds = time.perf_counter() - begin
            arrays = {key: array.numpy() for key, array in result.arrays.items()}
            updates = sum(len(closed.updates) for closed in result.rounds)
            right = accuracy(clients.model, arrays)
            yield _line(task, name, rate, right, updates, len(result.errors), seconds)


def strategy_of(name: str, **options: Any) -> Any:
    """The strategy of a scheme."""
    from fedtempo import flower

    scheme = SCHEMES[name]
    if isinstance(scheme, ft.FedFix):
        return flower.FedFix(wait=scheme.wait, **options)
    if isinstance(scheme, ft.FedBuff):
        return flower.FedBuff(size=scheme.size, **options)
    return (flower.FedAvg if isinstance(scheme, ft.FedAvg) else flower.AsyncFedAvg)(**options)


def _step(step: str | None, function: Any) -> dict[str, Any]:
    """The step as an argument, if one was asked for; the strategies' where no function is given."""
    if step is None:
        return {}
    if function is None:
        from fedtempo.flower.strategy import Options

        known = Options.__annotations__
    else:
        known = dict(inspect.signature(function).parameters)
    if "step" not in known:
        raise SystemExit(f"--step {step}: this fedtempo has the raw step only; leave --step out")
    return {"step": step}


def _line(task: Task, name: str, rate: float, right: float, updates: int, faults: int, seconds: float) -> Line:
    return {
        "setting": task.setting.name,
        "scheme": name,
        "local_lr": rate,
        "seed": task.seed,
        "step": task.step or "default",
        "more": task.more,
        "accuracy": round(right, 6),
        "updates": updates,
        "faults": faults,
        "seconds": round(seconds, 3),
    }


class Runs:
    """What has been run, in a file."""

    def __init__(self, path: Path, *, resume: bool, more: int, step: str | None = None, any_step: bool = False) -> None:
        self.path, self.step, self.more = path, None if any_step else step or "default", more
        self.found: dict[tuple[str, str, float, int], Line] = {}
        if resume and path.exists():
            for text in path.read_text().splitlines():
                self._keep(json.loads(text))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def _keep(self, line: Line) -> None:
        if self.step in (None, line["step"]) and line["more"] == self.more:
            self.found[line["setting"], line["scheme"], line["local_lr"], line["seed"]] = line

    def add(self, lines: Iterable[Line]) -> None:
        """Write down runs."""
        with self.path.open("a") as file:
            for line in lines:
                self._keep(line)
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def accuracies(self, setting: str, scheme: str, rate: float, seeds: Iterable[int]) -> list[float]:
        """Test accuracies at the end, seed by seed."""
        return [self.found[setting, scheme, rate, seed]["accuracy"] for seed in seeds]

    def complete(self, setting: str, schemes: Iterable[str], rates: Iterable[float], seeds: Iterable[int]) -> bool:
        """Whether all of these runs are there."""
        return all((setting, *which) in self.found for which in product(schemes, rates, seeds))

    def rate(self, setting: Setting, seeds: Sequence[int]) -> float | None:
        """FedAvg's best local rate; None if it has not been run at all of them."""
        rates = RATES[setting.model]
        if not self.complete(setting.name, [FEDAVG], rates, seeds[:2]):
            return None
        return max(rates, key=lambda r: float(np.mean(self.accuracies(setting.name, FEDAVG, r, seeds[:2]))))


def carry_out(tasks: list[Task], runs: Runs, jobs: int) -> None:
    """Run what is not there yet; what is done is written down at once."""
    missing = []
    for task in tasks:
        name = task.setting.name
        schemes = tuple(s for s in task.schemes if not runs.complete(name, [s], task.rates, [task.seed]))
        if schemes:
            missing.append(replace(task, schemes=schemes))
    if jobs == 1:
        for task in missing:
            runs.add(run(task))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for lines in pool.map(run, missing):
            runs.add(lines)


def half_width(differences: Sequence[float]) -> float:
    """Of the 95 % interval of a mean, by Student's t."""
    from scipy.stats import t

    n = len(differences)
    return float(t.ppf(0.975, n - 1) * np.std(differences, ddof=1) / np.sqrt(n)) if n > 1 else float("nan")


def verdict(mean: float, half: float) -> str:
    """What the interval says; of one seed the difference alone."""
    if np.isnan(half):
        return "above" if mean > -MARGIN else "below"
    return "worse" if mean + half < -MARGIN else "shown" if mean - half > -MARGIN else "open"


def show(
    settings: Sequence[Setting], schemes: Sequence[str], seeds: Sequence[int], runs: Runs, before: Runs | None
) -> None:
    """The table."""
    earlier = "| before " if before is not None else ""
    print("| setting | local rate | scheme | FedAvg | scheme's | difference | verdict " + earlier + "|")
    print("|---|---|---|---|---|---|---|" + ("---|" if before is not None else ""))
    counts: dict[str, int] = {}
    for setting in settings:
        rate = runs.rate(setting, seeds)
        if rate is None or not runs.complete(setting.name, [FEDAVG], [rate], seeds):
            continue
        base = runs.accuracies(setting.name, FEDAVG, rate, seeds)
        for scheme in schemes:
            if not runs.complete(setting.name, [scheme], [rate], seeds):
                continue
            got = runs.accuracies(setting.name, scheme, rate, seeds)
            differences = [a - b for a, b in zip(got, base, strict=True)]
            mean, half = float(np.mean(differences)), half_width(differences)
            said = verdict(mean, half)
            counts[said] = counts.get(said, 0) + 1
            last = ""
            if before is not None:
                there = before.complete(setting.name, [scheme], [rate], seeds)
                last = f" {np.mean(before.accuracies(setting.name, scheme, rate, seeds)):.3f} |" if there else " |"
            print(
                f"| {setting.name} | {rate:g} | {scheme} | {np.mean(base):.3f} | {np.mean(got):.3f} | "
                f"{mean:+.3f} ± {half:.3f} | {said} |{last}"
            )
    print("\n" + ", ".join(f"{number} {said}" for said, number in sorted(counts.items())), end="")
    print(f" of {sum(counts.values())}; seeds {', '.join(map(str, seeds))}; margin {MARGIN:g}")


def chosen(names: Sequence[str], patterns: Sequence[str] | None, what: str) -> list[str]:
    """The names that any of the patterns fits."""
    found = [name for name in names if patterns is None or any(fnmatch(name, pattern) for pattern in patterns)]
    if not found:
        raise SystemExit(f"--{what}: nothing fits {', '.join(patterns or [])}; there are {'; '.join(names)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", help="names, or patterns such as 'CNN*'")
    parser.add_argument("--schemes", nargs="+", help="names, or patterns such as 'FedFix*'")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--step", help="stable or paper; without it, what is the default")
    parser.add_argument("--more", type=int, default=0, help="seconds beyond the end of FedAvg's last round")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("results/one_line.jsonl"))
    parser.add_argument("--resume", action="store_true", help="go on from the file of --out")
    parser.add_argument("--show", action="store_true", help="run nothing: the table of what is in the file")
    parser.add_argument("--before", type=Path, help="a file of earlier runs, whose accuracies become a column")
    options = parser.parse_args()
    begin = time.perf_counter()
    seeds = range(1 if options.quick else options.seeds)
    wanted = chosen([setting.name for setting in SETTINGS], options.settings, "settings")
    settings = [setting for setting in SETTINGS if setting.name in wanted]
    schemes = chosen([name for name in SCHEMES if name != FEDAVG], options.schemes, "schemes")
    runs = Runs(options.out, resume=options.resume or options.show, more=options.more, step=options.step)
    if not options.show:
        task = partial(Task, step=options.step, more=options.more)
        sweep = [task(s, seed, (FEDAVG,), RATES[s.model]) for s in settings for seed in seeds[:2]]
        carry_out(sweep, runs, options.jobs)
        rates = {s: rate for s in settings if (rate := runs.rate(s, seeds)) is not None}
        rest = [task(s, seed, (FEDAVG, *schemes), (rate,)) for s, rate in rates.items() for seed in seeds]
        carry_out(rest, runs, options.jobs)
    before = None if options.before is None else Runs(options.before, resume=True, more=options.more, any_step=True)
    show(settings, schemes, seeds, runs, before)
    print(f"{options.out}; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
