"""How many client updates a second the simulator does, next to loops written by hand; and in how much memory.

    speed      784 → 10 logistic regression, 10 clients of 6 000 rows, F80, asynchronous FedAvg, K = 1, B = 64:
               one run, 24 runs (learning rates), 5 seeds × 24 runs; two NumPy loops; three PyTorch loops, given torch
    peak       the same in arithmetic and bytes. An update of a run: two products of 2·B·784·10 operations; parameters
               read twice (the base, the newest) and written twice (the newest, the sent). An update of a seed: B rows
    compile    compilation alone, at a horizon and at eight times it, each in a process of its own, without JAX's cache
    memory     FedFix(1/2), 10 000 clients of 50 rows of 64 features, an MLP of 100 000 parameters, F80, at a horizon
               and at three times it, each in a process of its own

Every repeat runs every contestant once, in turn, after a round that does not count; the median counts. Rates are
training alone (`run_seconds`); compilation and the wall-clock of the whole call are given beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedtempo as ft
from numpy_loop import Data, Rows, Trained, numpy_loop, plain_loop

FEATURES, CLASSES, CLIENTS, ROWS, BATCH, LR = 784, 10, 10, 6000, 64, 0.01
PARAMETERS = (FEATURES + 1) * CLASSES
GRID = np.geomspace(0.001, 0.1, 24).tolist()
PEAKS = {"H200": (67_000.0, 4_800.0)}
"""GFLOP/s in float32 outside the tensor cores and GB/s of memory, as the maker gives them for the SXM boards."""
SECTIONS = ("speed", "compile", "memory")


class Lap(NamedTuple):
    """One call of one contestant."""

    updates: int
    """Client updates, all runs together."""
    seconds: float
    wall: float
    compile: float = 0.0


Contestant = Callable[[], Lap]


class Study(NamedTuple):
    """A contestant that goes through `ft.simulate`."""

    seeds: int
    lr: float | list[float]
    updates: int
    """Of each run, about."""

    @property
    def runs(self) -> int:
        return self.seeds * (len(self.lr) if isinstance(self.lr, list) else 1)


def clients() -> Data:
    """Images of ten noisy patterns, a fifth of the pixels lit, values in [0, 1]."""
    generator = np.random.default_rng(0)
    pattern = (generator.random((CLASSES, FEATURES)) < 0.19).astype(np.float32)
    found = []
    for _ in range(CLIENTS):
        y = generator.integers(0, CLASSES, ROWS)
        x = generator.random((ROWS, FEATURES), dtype=np.float32)
        kept = generator.random((ROWS, FEATURES), dtype=np.float32) < 0.5
        found.append((np.where(kept, pattern[y], pattern[generator.integers(0, CLASSES, ROWS)]) * x, y))
    return found


def times() -> ft.FixedTimes:
    return ft.FixedTimes.spread(CLIENTS, 80)


def horizon(updates: int) -> float:
    """The virtual time in which about that many updates come, in whole units."""
    return max(1, round(updates * float(ft.timeline(ft.AsyncFedAvg(), times(), rounds=1000).duration) / 1000))


# The simulator


def logistic(data: Data) -> Any:
    """The problem, with fedtempo's own logistic regression."""
    model = ft.problems.logistic(FEATURES, CLASSES)
    return ft.Problem(init=model.init, loss=model.loss, data=[(x, y.astype(np.int32)) for x, y in data])


def simulated(problem: Any, study: Study, until: float) -> Lap:
    begin = time.perf_counter()
    local = ft.LocalSGD(steps=1, lr=study.lr, batch_size=BATCH)
    history = ft.simulate(
        problem, ft.AsyncFedAvg(), times(), until=until, local=local, seeds=range(study.seeds), points=2
    )
    wall = time.perf_counter() - begin
    found = history.dataset
    ends = found["loss"].isel(time=-1)
    if not (ends < found["loss"].isel(time=0)).all():
        raise SystemExit("the federated loss did not fall: this run is no measure of speed")
    updates = float(found["updates"].isel(time=-1).mean()) * ends.size
    return Lap(round(updates), found.attrs["run_seconds"], wall, found.attrs["compile_seconds"])


def studies(quick: bool, accelerated: bool) -> dict[str, Study]:
    """Sized for a few seconds each."""
    one, grid, seeds = (600_000, 100_000, 100_000) if accelerated else (60_000, 10_000, 10_000)
    cut = 10 if quick else 1
    return {
        "fedtempo, one run": Study(1, LR, one // cut),
        "fedtempo, 24 runs": Study(1, GRID, grid // cut),
        "fedtempo, 5 seeds × 24 runs": Study(5, GRID, seeds // cut),
    }


# What it is compared with: hand-written loops


def trained(result: Trained, data: Data) -> Lap:
    """The lap of a hand-written loop that has learnt something."""
    x, y = data[0]
    accuracy = float((np.argmax(x @ result.weight.T + result.bias, axis=1) == y).mean())
    if accuracy < 0.5:
        raise SystemExit(f"a loop ended with accuracy {accuracy:.2f}: it does not train, so its speed means nothing")
    return Lap(result.updates, result.seconds, result.seconds)


def loops(data: Data, quick: bool) -> dict[str, Contestant]:
    cut = 10 if quick else 1
    weights = np.asarray(ft.weights(ft.AsyncFedAvg(), times()))

    def line(updates: int) -> ft.Timeline:
        return ft.timeline(ft.AsyncFedAvg(), times(), rounds=updates // cut)

    long = line(40_000)
    found: dict[str, Contestant] = {
        "NumPy loop": lambda: trained(plain_loop(data, long, weights, lr=LR, classes=CLASSES, batch_size=BATCH), data),
        "NumPy loop, tuned": lambda: trained(
            numpy_loop(data, long, weights, lr=LR, classes=CLASSES, batch_size=BATCH), data
        ),
    }
    if find_spec("torch") is None:
        print("torch cannot be imported: no PyTorch loops (pip install -r requirements/torch.txt)\n")
        return found
    from torch_loops import LOOPS, index, tensors, torch_loop

    given = tensors(data)
    sizes = {"fresh": 1_000, "kept": 2_000, "index": 5_000}
    names = {"fresh": "a fresh DataLoader iterator a job", "kept": "a kept iterator a client", "index": "index tensors"}

    def contestant(name: str) -> Contestant:
        part, batches = line(sizes[name]), LOOPS[name](given, BATCH)
        return lambda: trained(torch_loop(batches, part, weights, features=FEATURES, lr=LR, classes=CLASSES), data)

    found |= {f"PyTorch, {names[name]}": contestant(name) for name in LOOPS}

    def rows(client: int, job: int) -> Rows:
        return np.random.default_rng((client, job)).integers(0, ROWS, BATCH)

    part = ft.timeline(ft.AsyncFedAvg(), times(), rounds=300)
    ours = numpy_loop(data, part, weights, lr=LR, classes=CLASSES, batch_size=BATCH, rows=rows)
    theirs = torch_loop(index(given, BATCH, rows), part, weights, features=FEATURES, lr=LR, classes=CLASSES)
    apart = float(np.linalg.norm(ours.weight - theirs.weight) / np.linalg.norm(ours.weight))
    print(f"NumPy and PyTorch on the same 300 batches: models apart by {apart:.1e}\n")
    if apart > 1e-4:
        raise SystemExit("the two loops do not train the same thing")
    return found


# The measurement


def interleaved(contestants: dict[str, Contestant], repeats: int) -> tuple[dict[str, Lap], dict[str, list[Lap]]]:
    """The first lap of each, which warms up, and the laps that count."""
    first: dict[str, Lap] = {}
    laps: dict[str, list[Lap]] = {name: [] for name in contestants}
    for repeat in range(repeats + 1):
        for name, run in contestants.items():
            lap = run()
            print(
                f"{repeat}/{repeats} {name}: {spaced(lap.updates / lap.seconds)} a second", file=sys.stderr, flush=True
            )
            if repeat == 0:
                first[name] = lap
            else:
                laps[name].append(lap)
    return first, laps


def spaced(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def speed(quick: bool, rival_only: bool, repeats: int, accelerated: bool, peak: tuple[float, float] | None) -> Any:
    data = clients()
    contestants = loops(data, quick)
    asked = {} if rival_only else studies(quick, accelerated)
    if asked:
        problem = logistic(data)
        for name, study in asked.items():
            contestants[name] = partial(simulated, problem, study, horizon(study.updates))
    first, laps = interleaved(contestants, repeats)
    rates = {name: [lap.updates / lap.seconds for lap in those] for name, those in laps.items()}
    yardstick = statistics.median(rates["NumPy loop"])
    print("| contestant | updates | a second, median (min to max) | × NumPy | compiling s | first call s | next s |")
    print("|---|---|---|---|---|---|---|")
    for name in contestants:
        middle, wall = statistics.median(rates[name]), statistics.median(lap.wall for lap in laps[name])
        cells = [name, spaced(first[name].updates)]
        cells += [f"{spaced(middle)} ({spaced(min(rates[name]))} to {spaced(max(rates[name]))})"]
        cells += [f"{middle / yardstick:.2f}", f"{first[name].compile:.1f}" if name in asked else ""]
        cells += [f"{first[name].wall:.1f}", f"{wall:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    counts = {name: against_peak(study, statistics.median(rates[name]), peak) for name, study in asked.items()}
    if counts:
        print("\n| contestant | MFLOP an update | kB an update | GFLOP/s | of peak | GB/s | of peak |")
        print("|---|---|---|---|---|---|---|")
    for name, c in counts.items():
        share = [f"{c[key]:.2%}" if key in c else "" for key in ("arithmetic_share", "bandwidth_share")]
        print(
            f"| {name} | {c['flop'] / 1e6:.2f} | {c['bytes'] / 1e3:.1f} | {c['gflops']:.1f} | {share[0]} "
            f"| {c['gbps']:.1f} | {share[1]} |"
        )
    return {
        "rates": rates,
        "first": {name: lap._asdict() for name, lap in first.items()},
        "laps": {name: [lap._asdict() for lap in those] for name, those in laps.items()},
        "counts": counts,
    }


def against_peak(study: Study, rate: float, peak: tuple[float, float] | None) -> dict[str, float]:
    """Operations and bytes of an update of one run, and what a rate makes of them; runs of a seed share its rows."""
    flop = 2 * 2 * BATCH * FEATURES * CLASSES
    moved = BATCH * (FEATURES + 1) * 4 * study.seeds / study.runs + 4 * PARAMETERS * 4
    found = {"flop": flop, "bytes": moved, "gflops": flop * rate / 1e9, "gbps": moved * rate / 1e9}
    if peak:
        found |= {"arithmetic_share": found["gflops"] / peak[0], "bandwidth_share": found["gbps"] / peak[1]}
    return found


# Cases in processes of their own


def peak_gib() -> float:
    """The most memory this process has held. Not ru_maxrss where it can be helped: that includes the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (30 if sys.platform == "darwin" else 20)


def compile_case(until: float, quick: bool) -> dict[str, float]:
    lap = simulated(logistic(clients()), Study(1, LR, 0), until)
    return {"until": until, "updates": lap.updates, "compile": lap.compile, "wall": lap.wall}


def memory_case(until: float, quick: bool) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    import optax

    sizes, rows, number = (64, 280, 280, 10), 50, 1_000 if quick else 10_000

    def init(key: Any) -> Any:
        shapes = list(pairwise(sizes))
        keys = jax.random.split(key, len(shapes))
        return [
            (jax.random.normal(k, shape) * (2 / shape[0]) ** 0.5, jnp.zeros(shape[1]))
            for k, shape in zip(keys, shapes, strict=True)
        ]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for weight, bias in params[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = params[-1]
        return optax.softmax_cross_entropy_with_integer_labels(x @ weight + bias, y).mean()

    generator = np.random.default_rng(0)
    x = generator.random((number, rows, sizes[0]), dtype=np.float32)
    y = np.argmax(x[:, :, : sizes[-1]], axis=2).astype(np.int32)
    problem = ft.Problem(init=init, loss=loss, data=list(zip(x, y, strict=True)))
    before, begin = peak_gib(), time.perf_counter()
    local = ft.LocalSGD(steps=1, lr=0.01, batch_size=10)
    spread = ft.FixedTimes.spread(number, 80)
    history = ft.simulate(problem, ft.FedFix("1/2"), spread, until=until, local=local, seeds=[0], points=2)
    updates = float(history.dataset["updates"].isel(time=-1).mean())
    wall = time.perf_counter() - begin
    return {"until": until, "updates": updates, "wall": wall, "before_gib": before, "peak_gib": peak_gib()}


CASES = {"compile": compile_case, "memory": memory_case}


def apart(case: str, until: float, quick: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", f"{case} {until}", *(["--quick"] if quick else [])]
    cold = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=cold)
    if done.returncode:
        raise SystemExit(f"{case} at horizon {until:g} failed, see above; on its own: {' '.join(command)!r}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compilation(quick: bool, repeats: int) -> Any:
    short = horizon(5_000)
    found = {u: [apart("compile", u, quick) for _ in range(repeats)] for u in (short, 8 * short)}
    print("\n| horizon | client updates | compiling s, median (min to max) | whole call s |")
    print("|---|---|---|---|")
    for until, runs in found.items():
        each = [run["compile"] for run in runs]
        wall = statistics.median(run["wall"] for run in runs)
        cells = [f"{until:g}", spaced(runs[0]["updates"])]
        cells += [f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})", f"{wall:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return [run for runs in found.values() for run in runs]


def memory(quick: bool) -> Any:
    found = [apart("memory", until, quick) for until in (1, 3)]
    print("\n| horizon | client updates | whole call s | GiB before the call | peak GiB |")
    print("|---|---|---|---|---|")
    for run in found:
        cells = [f"{run['until']:g}", spaced(run["updates"]), f"{run['wall']:.1f}"]
        cells += [f"{run['before_gib']:.2f}", f"{run['peak_gib']:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return found


def machine(note: str, rival_only: bool) -> tuple[dict[str, Any], bool, tuple[float, float] | None]:
    """What this runs on, whether it has an accelerator, and that one's peaks where they are known."""
    about: dict[str, Any] = {"note": note, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    for name in ("numpy", "jax", "torch"):
        if find_spec(name):
            about[name] = version(name)
    if rival_only:
        return about, False, None
    import jax

    device = jax.devices()[0]
    about["devices"] = str(jax.devices())
    peak = next((numbers for part, numbers in PEAKS.items() if part in device.device_kind), None)
    return about | {"device_kind": device.device_kind}, device.platform != "cpu", peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, two repeats: to see that it runs")
    parser.add_argument("--rival-only", action="store_true", help="the hand-written loops alone")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section alone; may be repeated")
    parser.add_argument("--device", default="", metavar="NOTE", help="words about the machine, kept with the results")
    parser.add_argument("--peak", nargs=2, type=float, metavar=("GFLOPS", "GBPS"), help="the device's, where not known")
    parser.add_argument("--json", type=Path, help="write every measurement there")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case, until = options.case.split()
        print(json.dumps(CASES[case](float(until), options.quick)))
        return
    quick, repeats = options.quick, 2 if options.quick else options.repeats
    sections = ["speed"] if options.rival_only else options.only or SECTIONS
    about, accelerated, peak = machine(options.device, options.rival_only)
    found: dict[str, Any] = {"machine": about}
    print("; ".join(f"{key} {value}" for key, value in about.items() if value) + "\n")
    if "speed" in sections:
        given = tuple(options.peak) if options.peak else peak
        found["speed"] = speed(quick, options.rival_only, repeats, accelerated, given)
    if "compile" in sections:
        found["compile"] = compilation(quick, 1 if quick else 3)
    if "memory" in sections:
        found["memory"] = memory(quick)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
