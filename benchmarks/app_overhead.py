"""What a job of a Flower app costs in virtual time beside the ClientApp's own work, and what 1 000 clients take.

The ClientApp adds one to a model and answers: next to no work. What is left is ours: the clock, the strategy, the
message as bytes, the way to another process and back, the aggregation, the reply in the store.

    python benchmarks/app_overhead.py                  # milliseconds a job, by size of the model and where it runs
    python benchmarks/app_overhead.py --clients 1000   # and memory, over the run
"""

from __future__ import annotations

import argparse
import logging
import resource
import statistics
import tempfile
import time
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import fedtempo as ft
from fedtempo.flower import FedFix, simulate_app
from fedtempo.flower.virtual.client_work import AppPlace
from fedtempo.flower.virtual.jobs import Here, Workers

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add one to the model."""
    begin = time.perf_counter()
    arrays = {name: Array(array.numpy() + 1) for name, array in message.content["arrays"].items()}
    metrics = {"num-examples": 1, "work": time.perf_counter() - begin}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


def server_app(megabytes: float) -> ServerApp:
    """FedFix over models of that size, in ten arrays."""
    made = ServerApp()
    part = max(1, int(megabytes * 1e6 / 40))

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({f"w{k}": Array(np.zeros(part, np.float32)) for k in range(10)})
        FedFix("1/2", guard=None, norm_limit=None).start(grid, start, num_rounds=10**9)

    return made


def seconds(
    megabytes: float, clients: int, until: float, executor: Executor | Workers, folder: Path | None
) -> tuple[float, float, int]:
    """Of the whole run, of the app's own work in a job, and the number of jobs."""
    times = ft.FixedTimes.spread(clients, 80)
    begin = time.perf_counter()
    result = simulate_app(server_app(megabytes), app, times=times, until=until, executor=executor, folder=folder)
    whole = time.perf_counter() - begin
    jobs = sum(len(closed.updates) for closed in result.rounds)
    work = statistics.fmean(float(m["work"]) for m in result.train_metrics_clientapp.values())
    return whole, work, jobs


def memory() -> float:
    """The largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=float, default=[0.03, 1.0, 5.0], help="MB")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--until", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    place = AppPlace("app_overhead:app", str(Path(__file__).parent))
    print("| model | runs in | ms a job | of that the app's | jobs | memory so far |\n|---|---|---|---|---|---|")
    for megabytes in options.sizes:
        for name, count in (("this process", 0), ("1 process", 1), ("2 processes", 2), ("2 processes, kept", 2)):
            pool: Executor | Workers = Workers(place, workers=count) if count else Here()
            if count:
                seconds(megabytes, 4, 2.0, pool, None)  # processes that are warm
            found = []
            for _ in range(options.repeats):
                with tempfile.TemporaryDirectory() as folder:
                    short, long = (Path(folder) / k if "kept" in name else None for k in ("short", "long"))
                    first = seconds(megabytes, options.clients, options.until / 4, pool, short)
                    last = seconds(megabytes, options.clients, options.until, pool, long)
                    jobs = last[2] - first[2]  # what a run costs at its beginning is not a job's
                    found.append((1e3 * (last[0] - first[0]) / jobs, 1e3 * last[1], jobs))
            whole, work = statistics.median(row[0] for row in found), statistics.median(row[1] for row in found)
            print(
                f"| {megabytes:g} MB | {name} | {whole:.2f} | {work:.2f} | {found[0][2]} | {memory():.0f} MB |",
                flush=True,
            )
            if isinstance(pool, Workers):
                pool.close()


if __name__ == "__main__":
    main()
