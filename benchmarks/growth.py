"""What a client update costs as a study grows, on whatever device JAX has: time and memory along four axes.

    clients       10 to 100 000, each with a model of its own to work on: logistic regression 64 → 10
    parameters    10³ to 10⁸, on processors to 5·10⁷, four clients: one layer, batches of 8
    runs          1 to 1 000 learning rates that share their batches: logistic regression 784 → 10, ten clients
    delay         the largest delay from 19 to about 190 000: one of twenty clients is up to 10⁴ times slower

    make bench-growth
    python benchmarks/growth.py --only parameters --json growth.json
    python benchmarks/growth.py --from growth.json --figure docs        draws docs/growth.svg of what was measured
    python benchmarks/growth.py --case parameters:100000000:50          100 M parameters, 50 clients: 21 GB of models
    … --base-memory 2                                                   2 GB of them in memory, the others in a file

Asynchronous FedAvg, K = 1, through `ft.simulate`, each size in a process of its own. A first call compiles; then the
same is called `--repeats` times, with as many updates as take some `--seconds`. Its time is that from the beginning of
training to its end, without setting up, compiling, and measures at both ends. "The host" is what the clock, slots and
row numbers of the program take, beside or before the device's work. "Held" is the bytes of all models that are held at
once, and "passes" how often an update could have read or written its model in that time at the memory's bandwidth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

SIZES: dict[str, tuple[int, ...]] = {
    "clients": (10, 100, 1_000, 10_000, 100_000),
    "parameters": (10**3, 10**4, 10**5, 10**6, 10**7, 5 * 10**7, 10**8),
    "runs": (1, 4, 24, 100, 1_000),
    "delay": (1, 10, 100, 1_000, 10_000),
}
NAMES = {
    "clients": "clients",
    "parameters": "parameters of the model",
    "runs": "runs that go together",
    "delay": "the slow client's time, in those of the others",
}
LAYERS = {
    10**3: (100, 10), 10**4: (100, 100), 10**5: (1_000, 100), 10**6: (1_000, 1_000), 10**7: (10_000, 1_000),
    5 * 10**7: (10_000, 5_000), 10**8: (10_000, 10_000),
}  # fmt: skip
"""Features and classes, by parameters."""
ON_PROCESSORS = 5 * 10**7
"""The most parameters there unless `--most` says otherwise: about 6 GB."""
MOST = 2_000_000
"""Updates of a call, at most."""


class Case(NamedTuple):
    """One size along one axis."""

    axis: str
    size: int
    clients: int
    features: int
    classes: int
    rows: int
    """Of a client."""
    batch: int
    runs: int = 1
    slowest: int = 1
    """How many times slower client 0 is, along the axis of delay."""

    @property
    def parameters(self) -> int:
        return (self.features + 1) * self.classes


def case_of(text: str) -> Case:
    """axis:size or axis:size:clients."""
    axis, size, *others = text.split(":")
    if axis not in SIZES or len(others) > 1:
        raise SystemExit(f"--case: {text!r} is not axis:size or axis:size:clients; axes are {', '.join(SIZES)}")
    number = int(size)
    if axis == "clients":
        case = Case(axis, number, number, 64, 10, 20, 10)
    elif axis == "parameters":
        side = math.isqrt(number)
        case = Case(axis, number, 4, *LAYERS.get(number, (side, side)), 64, 8)
    elif axis == "runs":
        case = Case(axis, number, 10, 784, 10, 1_000, 64, runs=number)
    else:
        case = Case(axis, number, 20, 64, 10, 200, 10, slowest=number)
    return case._replace(clients=int(others[0])) if others else case


# One case, in a process of its own


class Watch:
    """What sessions do: when they trained, what their programs took of the host, and how many slots they need."""

    def __init__(self) -> None:
        from fedtempo.simulation.engine.session import Session

        self.trained: list[tuple[float, float, float, float]] = []
        """Begin and end of each call that trains, and the process's CPU seconds then."""
        self.host = 0.0
        self.slots = 0
        train, left, clock = Session.train, Session._pieces_left, time.perf_counter

        def timed(session: Session, *given: Any) -> int:
            begin, before, compiled = clock(), time.process_time(), session.machine.compile_seconds
            done = train(session, *given)
            compiled = session.machine.compile_seconds - compiled  # or fetched by its text, as it was compiled before
            self.trained.append((begin + compiled, clock(), before + compiled, time.process_time()))
            return done

        def made(session: Session) -> Iterator[tuple[Any, Any]]:
            pieces = left(session)
            while True:
                begin = clock()
                found = next(pieces, None)
                self.host += clock() - begin
                if found is None:
                    return
                self.slots = max(self.slots, found[0].num_slots)
                yield found

        Session.train, Session._pieces_left = timed, made  # type: ignore[method-assign]

    def taken(self) -> tuple[float, float, float]:
        """Seconds and CPU seconds from where training began to where it ended, and the host's."""
        begins, ends, before, after = zip(*self.trained, strict=True)
        found = max(ends) - min(begins), max(after) - min(before), self.host
        self.trained, self.host = [], 0.0
        return found


def peak_gib() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def bandwidth(mebibytes: int) -> float:
    """GB/s at which the device reads and writes a large array."""
    import jax
    import jax.numpy as jnp

    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.zeros(mebibytes * 2**18, jnp.float32)
    x = jax.block_until_ready(add(x))
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        x = jax.block_until_ready(add(x))
        seconds.append(time.perf_counter() - begin)
    return 2 * x.nbytes / min(seconds) / 1e9


def updates_in(case: Case, seconds: float, processor: bool) -> int:
    """About how many come in that time, over all runs, by a rough count of operations and bytes; not too few to say."""
    cost = 1e-5 + 4 * case.batch * case.parameters / 4e10 + 40 * case.parameters / 1e10
    some = seconds / cost * (1 if processor else 20)
    enough = {"runs": 200 * case.runs}.get(case.axis, 2 * case.clients)
    return round(min(MOST, max(some, enough)))


def measured(case: Case, seconds: float, repeats: int, base_memory: float | None = None) -> dict[str, Any]:
    """Rates, the host's share, slots and memory."""
    import jax

    import fedtempo as ft

    generator = np.random.default_rng(0)
    x = generator.standard_normal((case.clients, case.rows, case.features), dtype=np.float32)
    y = generator.integers(0, case.classes, (case.clients, case.rows), dtype=np.int32)
    model = ft.problems.logistic(case.features, case.classes)
    problem = ft.Problem(init=model.init, loss=model.loss, data=list(zip(x, y, strict=True)))
    if case.axis == "delay":
        times = ft.FixedTimes([case.slowest] + [f"{100 + k}/100" for k in range(case.clients - 1)])
    else:
        times = ft.FixedTimes.spread(case.clients, 80)
    pace = sum(1 / float(t) for t in times.exact_mean_time)
    rates: Any = [0.01 * 2 ** (-k / 100) for k in range(case.runs)] if case.runs > 1 else 0.01
    local, watch = ft.LocalSGD(steps=1, lr=rates, batch_size=case.batch), Watch()

    def call(updates: float) -> dict[str, float]:
        until = Fraction(max(1, round(1000 * updates / pace / case.runs)), 1000)
        begin = time.perf_counter()
        given: Any = {"until": until, "local": local, "points": 2, "base_memory": base_memory}
        history = ft.simulate(problem, ft.AsyncFedAvg(), times, **given)
        wall, found = time.perf_counter() - begin, history.dataset
        taken, cpu, host = watch.taken()
        done = float(found["updates"].isel(time=-1).mean()) * case.runs
        return {"updates": done, "seconds": taken, "cpu": cpu, "host": host, "wall": wall}

    many = updates_in(case, seconds, jax.devices()[0].platform == "cpu")
    first = call(many)
    laps = [call(many) for _ in range(repeats)]
    found = {
        "rates": [lap["updates"] / lap["seconds"] for lap in laps],
        "cpu_us": [1e6 * lap["cpu"] / lap["updates"] for lap in laps],
        "host_us": [1e6 * lap["host"] / lap["updates"] for lap in laps],
        "updates": laps[0]["updates"],
        "first_call_s": first["wall"],
        "slots": watch.slots,
        "held_bytes": 4 * case.parameters * watch.slots * case.runs,
        "model_bytes": 4 * case.parameters,
        "peak_gib": peak_gib(),
    }
    if stats := jax.devices()[0].memory_stats():
        found["device_peak_gib"] = stats["peak_bytes_in_use"] / 2**30
        found["device_limit_gib"] = stats["bytes_limit"] / 2**30
    return found


# All of them


def alone(*arguments: str) -> dict[str, Any]:
    """A case in a process of its own; why it failed, where it did."""
    own = os.environ | {"FEDTEMPO_CACHE": "off"}
    own.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, env=own)
    if done.returncode:
        return {"failed": f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def spaced(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ") if abs(number) >= 10 else f"{number:.2g}"


def amount(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def row(size: int, found: dict[str, Any], gbps: float) -> str:
    """A size's line of the table."""
    if "failed" in found:
        return f"| {spaced(size)} | {found['failed']} | | | | | | | |"
    rate = median(found["rates"])
    passes = gbps * 1e9 / rate / found["model_bytes"]
    spread = f"{spaced(rate)} ({spaced(min(found['rates']))} to {spaced(max(found['rates']))})"
    cells = [
        spaced(size),
        spread,
        spaced(1e6 / rate),
        spaced(median(found["cpu_us"])),
        spaced(median(found["host_us"])),
    ]
    memory = f"{found['peak_gib']:.2f}"
    if "device_peak_gib" in found:
        memory += f", on the device {found['device_peak_gib']:.2f} of {found['device_limit_gib']:.0f}"
    cells += [spaced(found["slots"]), amount(found["held_bytes"]), f"{passes:.3g}", memory]
    return f"| {' | '.join(cells)} |"


HEADS = (
    "updates a second, median (min to max)",
    "µs an update",
    "CPU µs",
    "the host's µs",
    "models held",
    "held",
    "passes",
)


def header(axis: str) -> str:
    """The table's first lines."""
    heads = (NAMES[axis], *HEADS, "peak GiB")
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def caches() -> dict[str, int]:
    """Bytes of the processor's second and third cache, as far as the system tells."""
    found = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size = ((folder / name).read_text(encoding="utf-8").strip() for name in ("level", "size"))
        if level in "23":
            found[f"L{level}"] = int(size.rstrip("K")) * 1024
    return found


def drawn(found: dict[str, Any], folder: Path) -> None:
    """growth.svg: µs an update along each axis, the host's part, and where models leave the caches."""
    from matplotlib import rc_context

    from fedtempo.report.inks import LIGHT
    from fedtempo.report.style import STYLE, bare, head, new_figure, save_figure

    blue, brown = "#2a6fb0", "#a2561b"
    axes_of = [axis for axis in SIZES if found["axes"].get(axis)]
    with rc_context(STYLE):
        figure = new_figure(7.6, 2.6 * -(-len(axes_of) // 2))
        for number, axis in enumerate(axes_of):
            axes = figure.add_subplot(-(-len(axes_of) // 2), min(2, len(axes_of)), number + 1)
            there = {int(size): one for size, one in found["axes"][axis].items() if "failed" not in one}
            sizes = sorted(there)
            costs = [[1e6 / rate for rate in there[size]["rates"]] for size in sizes]
            middle = [median(each) for each in costs]
            axes.fill_between(sizes, [min(c) for c in costs], [max(c) for c in costs], color=blue, alpha=0.2, lw=0)
            axes.plot(sizes, middle, "o-", color=blue, ms=4)
            axes.annotate("all", (sizes[-1], middle[-1]), (4, 0), textcoords="offset points", color=blue, fontsize=8)
            host = [max(median(there[size]["host_us"]), 1e-3) for size in sizes]
            axes.plot(sizes, host, "o--", color=brown, ms=3, lw=1)
            axes.annotate("host", (sizes[-1], host[-1]), (4, 0), textcoords="offset points", color=brown, fontsize=8)
            for name, size in found["machine"]["caches"].items():
                held = [there[s]["held_bytes"] for s in sizes]
                if held[0] < size < held[-1]:
                    at = 10 ** float(np.interp(np.log10(size), np.log10(held), np.log10(sizes)))
                    axes.axvline(at, color=LIGHT.ink, lw=0.7, ls=":")
                    axes.text(at, 0.98, f" {name} full", transform=axes.get_xaxis_transform(), va="top", fontsize=7)
            axes.set(xscale="log", yscale="log", xlabel=NAMES[axis], ylabel="µs an update")
            axes.margins(x=0.12)
            bare(axes)
            head(axes, axis.capitalize())
        save_figure(figure, folder / "growth.svg", example="growth.svg")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES), help="these axes alone")
    parser.add_argument("--case", metavar="AXIS:SIZE[:CLIENTS]", help="one case, in this process; prints JSON")
    parser.add_argument("--most", type=int, help="no larger size than this along any axis")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a call, about")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--base-memory", type=float, metavar="GB", help="of models in memory; the others in a file")
    parser.add_argument("--quick", action="store_true", help="half a second, once, up to 100 000")
    parser.add_argument("--json", type=Path, help="write every measurement there")
    parser.add_argument("--from", dest="before", type=Path, help="measure nothing: what --json wrote")
    parser.add_argument("--figure", type=Path, metavar="FOLDER", help="draw growth.svg there")
    parser.add_argument("--bandwidth", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.bandwidth:
        import jax

        devices = jax.devices()
        gbps = bandwidth(256 if devices[0].platform == "cpu" else 4096)
        print(json.dumps({"gbps": gbps, "device": devices[0].device_kind, "devices": len(devices)}))
        return
    if options.case:
        print(json.dumps(measured(case_of(options.case), options.seconds, options.repeats, options.base_memory)))
        return
    if options.before:
        found = json.loads(options.before.read_text(encoding="utf-8"))
        options.only = list(found["axes"])
    else:
        about = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "jax": version("jax")}
        found = {"machine": {**about, **alone("--bandwidth"), "caches": caches()}, "axes": {}}
    machine = found["machine"]
    print("; ".join(f"{key} {value}" for key, value in machine.items()))
    if options.quick:
        options.seconds, options.repeats, options.most = 0.5, 1, min(options.most or 10**5, 10**5)
    most = options.most or (ON_PROCESSORS if machine["device"] == "cpu" else 10**8)
    for axis in options.only:
        print("\n" + header(axis), flush=True)
        done = found["axes"].setdefault(axis, {})
        for size in SIZES[axis] if not options.before else map(int, done):
            if size > most and not options.before:
                continue
            if not options.before:
                settings = ["--seconds", str(options.seconds), "--repeats", str(options.repeats)]
                done[str(size)] = alone("--case", f"{axis}:{size}", *settings)
            print(row(size, done[str(size)], machine["gbps"]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.figure:
        drawn(found, options.figure)


if __name__ == "__main__":
    main()
