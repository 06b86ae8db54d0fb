"""What a plan, a timeline and a study cost as clients grow in number: seconds and memory, each in a process of its own.

    python benchmarks/scale.py plan            a plan of default schemes, for 10⁵, 10⁶ and 10⁷ clients of each law
    python benchmarks/scale.py timeline        a timeline written to Parquet, of 10⁶, 10⁷ and 3·10⁷ updates
    python benchmarks/scale.py data            a study on rows on disk, of 10³, 10⁴ and 10⁵ clients with 100 rows each
    python benchmarks/scale.py                 all of them

Small sizes are measured several times, and the median is printed. `--folder` is where data are written, 2.6 GB at most
at a time; they are removed afterwards. Seconds are those of a processor: what others do on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

PLAN_CLIENTS = (10**5, 10**6, 10**7)
LAWS = ("lognormal", "exponential", "fixed")
UPDATES = (10**6, 10**7, 3 * 10**7)
CLIENTS = (10**3, 10**4, 10**5)
ROWS, FEATURES, BATCH = 100, 64, 10


def plan(law: str, clients: int) -> dict[str, float]:
    """`fedtempo plan --clients … --times F80 --law …`."""
    from fedtempo.cli import main

    begin = os.times()
    sys.argv = ["fedtempo", "plan", "--clients", str(clients), "--times", "F80", "--law", law]
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code  # noqa: PT017
    sys.stdout = sys.__stdout__
    return {"seconds": _cpu(begin)}


def timeline(updates: int, folder: Path) -> dict[str, float]:
    """Asynchronous FedAvg of 10⁵ log-normal clients, to Parquet."""
    import fedtempo as ft

    means = ft.FixedTimes.spread(10**5, 80).exact_mean_time
    times = ft.LogNormalTimes(means)
    begin = os.times()
    path = folder / "timeline.parquet"
    written = ft.write_timeline(path, ft.AsyncFedAvg(), times, rounds=updates)
    assert written.updates == updates
    return {"seconds": _cpu(begin), "bytes": path.stat().st_size}


def memory(clients: int, folder: Path) -> dict[str, float]:
    """The same with the rows in memory."""
    return data(clients, folder, mapped=False)


def data(clients: int, folder: Path, *, mapped: bool = True) -> dict[str, float]:
    """Logistic regression on rows on disk, FedFix(1/2) for two units of time."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import fedtempo as ft

    rows = {name: np.load(folder / f"{name}.npy", mmap_mode="r" if mapped else None) for name in ("x", "y")}

    def loss(params: Any, batch: Any) -> jax.Array:
        logits = batch["x"] @ params
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1))

    begin = os.times()
    parts = [range(i * ROWS, (i + 1) * ROWS) for i in range(clients)]
    problem = ft.Problem.from_rows(lambda key: jnp.zeros((FEATURES, 10)), loss, rows, parts)
    made = _cpu(begin)
    local, times = ft.LocalSGD(lr=0.1, batch_size=BATCH), ft.FixedTimes.spread(clients, 80)

    def run(points: int) -> tuple[float, Any]:
        begin = os.times()
        history = ft.simulate(problem, ft.FedFix("1/2"), times, until=2, points=points, local=local)
        return _cpu(begin), history

    run(2)  # what is compiled, and looked at once
    two, _ = run(2)
    six, history = run(6)
    measured = max(0.0, (six - two) / 4)
    final = history.dataset.isel(time=-1)
    updates = int(final["updates"].values.ravel()[0])
    return {
        "seconds": two,
        "made": made,
        "measure": measured,
        "train": max(0.0, two - 2 * measured),
        "updates": updates,
        "loss": float(final["loss"].values.ravel()[0]),
        "bytes": float(sum(leaf.nbytes for leaf in rows.values())),
    }


def write_rows(clients: int, folder: Path) -> dict[str, float]:
    """Rows of `clients`, a part at a time."""
    import numpy as np

    total, random = clients * ROWS, np.random.default_rng(0)
    truth = random.normal(size=(FEATURES, 10)).astype(np.float32)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (total, FEATURES))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.int32, (total,))
    for begin in range(0, total, 10**5):
        some = slice(begin, begin + 10**5)
        part = random.standard_normal((len(x[some]), FEATURES), dtype=np.float32)
        x[some] = part
        y[some] = (part @ truth).argmax(axis=1)
    x.flush()
    y.flush()
    return {}


def _peak() -> float:
    """The most memory that this process has had, in bytes; what its parent had before does not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _cpu(begin: os.times_result) -> float:
    now = os.times()
    return now.user + now.system - begin.user - begin.system


def alone(*what: str, times: int = 1) -> dict[str, float]:
    """One measurement in a process of its own: medians, and the largest memory."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, __file__, "--one", *what], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(what)} failed:\n{done.stderr[-2000:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]) | {"wall": time.perf_counter() - begin})
    return {name: median(one[name] for one in found) for name in found[0]}


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row) + " |")
    print(flush=True)


def compare_plans() -> None:
    """Clients and laws."""
    rows: list[tuple[Any, ...]] = []
    for law in LAWS:
        for clients in PLAN_CLIENTS:
            one = alone("plan", law, str(clients), times=3 if clients <= 10**5 else 1)
            each = one["seconds"] / clients * 1e6
            rows.append((law, f"{clients:,}", one["seconds"], one["wall"], each, one["memory"] / 2**30))
    _table(("law", "clients", "CPU s", "wall s", "CPU µs a client", "GiB"), rows)


def compare_timelines(folder: Path) -> None:
    """Updates."""
    rows: list[tuple[Any, ...]] = []
    for updates in UPDATES:
        one = alone("timeline", str(updates), str(folder), times=3 if updates <= 10**6 else 1)
        each = one["seconds"] / updates * 1e6
        size = one["bytes"] / updates
        rows.append((f"{updates:,}", one["seconds"], one["wall"], each, size, one["memory"] / 2**30))
    _table(("updates", "CPU s", "wall s", "CPU µs an update", "bytes an update", "GiB"), rows)


def compare_data(folder: Path) -> None:
    """Clients with rows on disk."""
    rows: list[tuple[Any, ...]] = []
    for clients in CLIENTS:
        alone("write", str(clients), str(folder))
        times = 3 if clients <= 10**4 else 1
        one = alone("data", str(clients), str(folder), times=times)
        there = alone("memory", str(clients), str(folder), times=times)
        assert one["loss"] == there["loss"]
        rows.append(
            (
                f"{clients:,}",
                one["bytes"] / 2**30,
                one["memory"] / 2**30,
                there["memory"] / 2**30,
                one["made"] / clients * 1e6,
                one["train"] / one["updates"] * 1e6,
                there["train"] / one["updates"] * 1e6,
                one["measure"] / clients * 1e6,
                there["measure"] / clients * 1e6,
                f"{int(one['updates']):,}",
                one["wall"],
            )
        )
    heads = ("data GiB", "peak GiB", "in memory", "µs a client, once", "µs an update", "in memory")
    _table(("clients", *heads, "µs a client, a measure", "in memory", "updates", "wall s"), rows)


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        kind, *rest = given.what
        if kind == "plan":
            found = plan(rest[0], int(rest[1]))
        else:
            found = {"timeline": timeline, "data": data, "memory": memory, "write": write_rows}[kind](
                int(rest[0]), Path(rest[1])
            )
        found["memory"] = _peak()
        print(json.dumps(found))
        return
    os.environ["FEDTEMPO_CACHE"] = "off"
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        for what in given.what or ("plan", "timeline", "data"):
            if what == "plan":
                compare_plans()
            else:
                {"timeline": compare_timelines, "data": compare_data}[what](folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
