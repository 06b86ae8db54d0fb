"""A PyTorch module on the clock against a tidy loop in plain PyTorch: client steps a second, on the same work.

    loop        one's own: a module copy a job, torch.optim.SGD, rows by a tensor of numbers; the same timeline, weights
                and batches
    torch       ft.simulate(engine="torch")
    compiled    ft.simulate through torchax, where it is installed (engine="events" on a processor, "waves" on a GPU)
    flgo        FLGo's own loop of FedAvg, where it is installed (torch_rivals.py)

All train the same module from the same weights under asynchronous FedAvg or FedFix, K steps of 64 rows a job, one run
or several learning rates. Contestants take turns; the figure is the median of the repeats. Of our engines the calls
that train are timed, after a tenth of the work: by then they are compiled. What it costs to measure the model, which
the loop does not do, has a column of its own.

On a processor the speed at which PyTorch multiplies large matrices is measured too: for the MLP, whose steps are little
else, it is a ceiling for all.

On CUDA each contestant has a process of its own: torchax keeps PyTorch from CUDA in the process that imports it.

    make bench-torch
    python benchmarks/torch_engine.py --models mlp cnn --repeats 5
    python benchmarks/torch_engine.py --models cnn --scheme fedfix --slowdown 80 --until 300 --points 301
        --loop-until 30 --engines loop torch compiled:tensorfloat32 compiled
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import jax
import torch
import torch.nn.functional as F
from torch import nn

import fedtempo as ft
from fedtempo.errors import InputError
from fedtempo.simulation.engine.session import Session
from torch_rivals import flgo_loop

BATCH = 64


def mlp() -> nn.Module:
    """784 → 128 → 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def cnn() -> nn.Module:
    """Two 5×5 layers with pooling, as McMahan et al. (2017) have them for CIFAR-10, smaller."""
    first = (nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))


def small_cnn() -> nn.Module:
    """Two 3×3 layers on 28×28."""
    first = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(784, 10))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mlp": (mlp, (1, 28, 28), 6000),
    "small cnn": (small_cnn, (1, 28, 28), 600),
    "cnn": (cnn, (3, 32, 32), 300),
}
"""Module, shape of a row, client steps on a processor."""


def clients(count: int, shape: tuple[int, ...], rows: int = 256) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of noise: only time is measured."""
    made = torch.Generator().manual_seed(0)
    return [
        (torch.randn(rows, *shape, generator=made), torch.randint(0, 10, (rows,), generator=made)) for _ in range(count)
    ]


def loop(
    module: nn.Module, data: Any, scheme: ft.Scheme, times: ft.FixedTimes, until: Any, steps: int, device: torch.device
) -> tuple[int, float]:
    """Algorithm 1 in plain PyTorch; client steps, and seconds."""
    line = ft.timeline(scheme, times, until=until)
    applied = ft.weights(scheme, times).applied(line)
    model = copy.deepcopy(module).to(device)
    rows = [(x.to(device), y.to(device)) for x, y in data]
    versions = {0: {name: p.detach().clone() for name, p in model.named_parameters()}}
    last = dict(zip(line.base.tolist(), line.round_of_update.tolist(), strict=True))
    generator = torch.Generator().manual_seed(0)
    _synchronize(device)
    begin, update = time.perf_counter(), 0
    for closed in line.rounds:
        n = closed.number
        theta = {name: p.clone() for name, p in versions[n].items()}
        for client, base in zip(closed.participants, closed.base_versions, strict=True):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(versions[base][name])
            solver = torch.optim.SGD(model.parameters(), lr=0.01)
            x, y = rows[client]
            for _ in range(steps):
                which = torch.randint(len(y), (BATCH,), generator=generator).to(device)
                solver.zero_grad()
                F.cross_entropy(model(x[which]), y[which]).backward()
                solver.step()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    theta[name].add_(p - versions[base][name], alpha=float(applied[update]))
            update += 1
        versions[n + 1] = theta
        versions = {v: m for v, m in versions.items() if v == n + 1 or last.get(v, -1) > n}
    _synchronize(device)
    return update * steps, time.perf_counter() - begin


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Watch:
    """Times the calls of sessions that train, and those that measure."""

    def __init__(self) -> None:
        self.trained: list[tuple[int, float]] = []
        """Client updates of each call, over all runs, and seconds."""
        self.measured: list[float] = []
        self._own = {name: getattr(Session, name) for name in ("piece", "train", "measure")}

    def __enter__(self) -> Watch:
        def timed(name: str, noted: Callable[[Session, Any, float], None]) -> Callable[..., Any]:
            def call(session: Session, *given: Any) -> Any:
                begin = time.perf_counter()
                found = self._own[name](session, *given)
                noted(session, found, time.perf_counter() - begin)
                return found

            return call

        def train(session: Session, events: Any, seconds: float) -> None:
            self.trained.append((events * session.spec.unit.num_runs, seconds))

        def measure(session: Session, _: Any, seconds: float) -> None:
            self.measured.append(seconds)

        for name, noted in (("piece", lambda *_: self.trained.append((0, _[-1]))), ("train", train)):
            setattr(Session, name, timed(name, noted))
        Session.measure = timed("measure", measure)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._own.items():
            setattr(Session, name, function)

    def late(self) -> tuple[int, float]:
        """Updates and seconds of the calls after the first tenth of the work."""
        total, seen, found = sum(updates for updates, _ in self.trained), 0, [0, 0.0]
        for updates, seconds in self.trained:
            if seen >= total / 10:
                found[0], found[1] = found[0] + updates, found[1] + seconds
            seen += updates
        return int(found[0]), found[1]


def simulated(
    problem: Any, scheme: ft.Scheme, times: Any, until: Any, steps: int, rates: list[float], engine: str, dtype: str,
    points: int,
) -> tuple[float, float, float]:  # fmt: skip
    """Client steps, their seconds, and the seconds that a measure of one model takes."""
    local = ft.LocalSGD(steps=steps, lr=rates, batch_size=BATCH)
    with Watch() as watch:
        ft.simulate(problem, scheme, times, until=until, local=local, points=points, engine=engine, dtype=dtype)
    updates, seconds = watch.late()
    return updates * steps, seconds, watch.measured[-1] / len(rates)


@cache
def prepared(name: str, count: int, device: str) -> tuple[nn.Module, Any, Any]:
    """Module, data and problem."""
    make, shape, _ = MODELS[name]
    torch.manual_seed(0)
    module, data = make(), clients(count, shape)
    return module, data, ft.torch.problem(model=module, loss=F.cross_entropy, data=data, device=device)


def one(contestant: str, name: str, options: argparse.Namespace) -> tuple[float, float] | str:
    """Client steps a second and the ms of a measure, or why there are none."""
    engine, _, dtype = contestant.partition(":")
    device = "cpu" if engine == "compiled" else options.device
    module, data, problem = prepared(name, options.clients, device)
    times = ft.FixedTimes([f"{k + 10}/{options.clients + 10}" for k in range(options.clients)])
    if options.slowdown is not None:
        times = ft.FixedTimes.spread(options.clients, options.slowdown)
    scheme = ft.AsyncFedAvg() if options.scheme == "async" else ft.FedFix("1/2")
    pace = sum(1 / float(t) for t in times.mean_time)
    until = options.until or max(8, round(MODELS[name][2] * options.scale / options.steps / pace))
    rates = [0.01 * 2 ** (-k / 4) for k in range(options.rates)]
    if engine == "loop":
        own = options.loop_until or until
        given = (options.steps, torch.device(device))
        loop(module, data, scheme, times, 1, *given)  # libraries are loaded, and the device is awake
        steps, seconds = loop(module, data, scheme, times, own, *given)
        return steps / seconds, float("nan")
    if engine == "flgo":
        rounds = max(2, round(MODELS[name][2] * options.scale / options.steps / options.clients))
        try:
            steps, seconds = flgo_loop(name, options.clients, options.steps, rounds)
        except ImportError as error:
            return str(error)
        return steps / seconds, float("nan")
    if engine == "compiled":
        engine = "waves" if jax.default_backend() != "cpu" else "events"
    study = (problem, scheme, times, until, options.steps, rates, engine, dtype or options.dtype, options.points)
    try:
        done, taken, measure = simulated(*study)
    except InputError as error:
        return str(error)
    return done / taken, 1e3 * measure


def ceiling(repeats: int = 5, size: int = 2048) -> float:
    """Steps of the MLP a second that the products of its matrices allow at the speed of large ones."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - begin)
    per_second = 2 * size**3 / min(seconds[1:])
    return per_second / (2 * BATCH * (2 * 784 * 128 + 3 * 128 * 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rates", type=int, default=1, help="learning rates, trained together")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of client steps")
    parser.add_argument("--until", type=int, help="instead: units of virtual time")
    parser.add_argument("--loop-until", type=int, help="the same for the loop, which is even in time")
    parser.add_argument("--points", type=int, default=2, help="how often our engines measure, in the whole run")
    parser.add_argument("--slowdown", type=int, help="clients' times are the paper's F<this>")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scheme", default="async", choices=("async", "fedfix"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engines", nargs="+", default=["loop", "torch", "compiled", "flgo"], help="or engine:dtype")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    pools: dict[str, ProcessPoolExecutor] = {}
    if torch.device(options.device).type == "cuda":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        context = multiprocessing.get_context("spawn")
        pools = {engine: ProcessPoolExecutor(1, mp_context=context) for engine in options.engines}
    results: list[dict[str, Any]] = []
    print(
        f"\n{options.scheme}, {options.clients} clients, K = {options.steps}, {options.rates} rates, {options.device}"
    )
    print("| module | contestant | client steps a second | × the loop | a measure, ms |\n|---|---|---|---|---|")
    for name in options.models:
        found: dict[str, list[float]] = {}
        measures: dict[str, list[float]] = {}
        for _ in range(options.repeats):
            for engine in options.engines:
                pool, given = pools.get(engine), (engine, name, options)
                speed = pool.submit(one, *given).result() if pool else one(*given)
                if isinstance(speed, str):
                    print(f"| {name} | {engine} | {speed} | | |")
                    continue
                found.setdefault(engine, []).append(speed[0])
                measures.setdefault(engine, []).append(speed[1])
        own = statistics.median(found["loop"]) if "loop" in found else float("nan")
        for engine, values in found.items():
            rate, measure = statistics.median(values), statistics.median(measures[engine])
            results.append(
                {
                    "model": name,
                    "contestant": engine,
                    "steps_per_second": values,
                    "ratio": rate / own,
                    "measure": measure,
                }
            )
            spread = f"{rate:,.0f} ({min(values):,.0f} to {max(values):,.0f})"
            print(f"| {name} | {engine} | {spread} | {rate / own:.2f} | {measure:.1f} |", flush=True)
        if name == "mlp" and options.device == "cpu" and options.dtype == "float32":
            most = ceiling()
            print(f"| {name} | products of matrices alone | {most:,.0f} | {most / own:.2f} | |", flush=True)
    for pool in pools.values():
        pool.shutdown()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"options": vars(options), "torch": torch.__version__, "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
