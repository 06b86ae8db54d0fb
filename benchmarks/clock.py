"""How fast the clock runs, and in how much memory.

    FedFix(1/2), F80, one million clients, 100 rounds        and a tenth and a third of it, to see the growth
    asynchronous FedAvg, F80, ten thousand clients, ten million updates
    FedBuff(5), F80, 20 clients; asynchronous FedAvg with exponential times; FedFix asked event by event

Each line runs in a process of its own, pinned to one core, `--repeats` times; the median counts. Peak memory is the
process's own, interpreter included. ``streamed`` reads chunks and drops them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

CASES = {
    "FedFix(1/2), 100 000 clients, 100 rounds": "fedfix 100000 100 whole",
    "FedFix(1/2), 300 000 clients, 100 rounds": "fedfix 300000 100 whole",
    "FedFix(1/2), 1 000 000 clients, 100 rounds": "fedfix 1000000 100 whole",
    "FedFix(1/2), 1 000 000 clients, 100 rounds, streamed": "fedfix 1000000 100 streamed",
    "async, 10 000 clients, 1 000 000 updates": "async 10000 1000000 whole",
    "async, 10 000 clients, 3 000 000 updates": "async 10000 3000000 whole",
    "async, 10 000 clients, 10 000 000 updates": "async 10000 10000000 whole",
    "async, 10 000 clients, 10 000 000 updates, streamed": "async 10000 10000000 streamed",
    "async, 10 clients, 10 000 000 updates": "async 10 10000000 whole",
    "async, 1 000 exponential clients, 3 000 000 updates": "exponential 1000 3000000 whole",
    "FedBuff(5), 20 clients, 200 000 rounds": "fedbuff 20 200000 whole",
    "FedFix(1/2), 20 clients, 10 000 rounds, by the rule itself": "fedfix 20 10000 asked",
}


def one(kind: str, clients: int, rounds: int, how: str) -> dict[str, float]:
    """Run one case in this process."""
    import fedtempo as ft
    from fedtempo.clock.config import ClockConfig
    from fedtempo.clock.generate import full_timeline, stream

    times: ft.ClientTimes = ft.FixedTimes.spread(clients, 80)
    if kind == "exponential":
        times = ft.ExponentialTimes(times.describe())
    scheme = {"fedfix": ft.FedFix("1/2"), "fedbuff": ft.FedBuff(5)}.get(kind, ft.AsyncFedAvg())
    config = ClockConfig.of(scheme.waiting, times)
    begin = time.perf_counter()
    if how == "streamed":
        updates = sum(part.num_updates for part in stream(config, max_rounds=rounds))
    else:
        updates = full_timeline(config, max_rounds=rounds, by_rule=how == "asked").num_updates
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"updates": updates, "seconds": seconds, "peak_gib": peak}


def pinned() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        kind, clients, rounds, how = options.case.split()
        print(json.dumps(one(kind, int(clients), int(rounds), how)))
        return
    print("| case | updates | million updates a second, median (min to max) | peak GiB |")
    print("|---|---|---|---|")
    for name, case in CASES.items():
        runs = []
        for _ in range(options.repeats):
            command = [sys.executable, __file__, "--case", case]
            done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=pinned)
            runs.append(json.loads(done.stdout))
        rates = [run["updates"] / run["seconds"] / 1e6 for run in runs]
        middle = statistics.median(rates)
        peak = max(run["peak_gib"] for run in runs)
        updates = f"{int(runs[0]['updates']):,}".replace(",", " ")
        print(f"| {name} | {updates} | {middle:.2f} ({min(rates):.2f} to {max(rates):.2f}) | {peak:.2f} |", flush=True)


if __name__ == "__main__":
    main()
