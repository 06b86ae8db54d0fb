"""A real federation trains a PyTorch model with BatchNorm under FedAvg and FedFix, while processes are killed.

    python benchmarks/real_batchnorm.py [--rounds 5] [--out results/real_batchnorm] [--calm]

A SuperLink and four SuperNodes on this machine; the app is `flower_torch_app`, in the form of `flwr new`'s, its local
rate the same for both schemes, and the strategies have no argument that changes what they do but FedFix's wait. One
round of FedAvg first shows how long the sites take: both schemes then train for five times the slowest's time, a job
counts as lost after twice that time, and FedFix has the wait of the best pace.

In each run, after a fifth, two fifths and three fifths of the time: kill -9 of a ClientApp at work, of a SuperNode,
which is started again, and of the ServerApp, which goes on from its checkpoint. Training time does not count while no
server runs, nor what it had not saved. `--calm` kills nobody.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtempo.flower import recorded
from fedtempo.flower.local import LocalFederation

APP = Path(__file__).parent / "flower_torch_app"
PAUSES = (1.0, 3.0, 6.0, 25.0)
"""Seconds that each site waits beside its work, as a slower machine would work longer."""
SLACK = 1.05
"""By how much longer than in the first round a site may take."""
PATIENCE = 300
"""Seconds to wait for what should happen at once."""
KILLED_APP, KILLED_NODE = "site-1", "site-2"


def site(i: int) -> dict[str, Any]:
    """What node i is told."""
    return {"partition-id": i, "num-partitions": len(PAUSES), "pause": PAUSES[i]}


@dataclass(frozen=True)
class Clock:
    """Seconds of training, until a job counts as lost, and between two models of FedFix."""

    until: float
    timeout: float
    wait: float


def told(scheme: str, folder: Path, clock: Clock) -> dict[str, Any]:
    """What the app is told."""
    return {
        "scheme": scheme,
        "wait": clock.wait,
        "timeout": clock.timeout,
        "until": clock.until,
        "num-server-rounds": 10_000,
        "clients": len(PAUSES),
        "checkpoint": str(folder / "run"),
        "out": str(folder / "result.json"),
    }


def first_round(federation: LocalFederation, folder: Path, rounds: int) -> Clock:
    """One round of FedAvg, and what follows from its times."""
    federation.run(APP, told("fedavg", folder, Clock(0.0, 600.0, 1.0)) | {"num-server-rounds": 1}, limit=600)
    record = recorded(folder / "run")
    took = sorted(((record.arrived - record.sent) / 1e9).tolist())
    print(f"first round: {', '.join(f'{seconds:.1f}' for seconds in took)} s", flush=True)
    return Clock(float(round(rounds * took[-1])), float(round(2 * took[-1])), float(best_wait(took)))


def best_wait(times: Sequence[float]) -> int:
    """The whole seconds at which FedFix learns soonest: its pace over FedAvg's is τ_max/(Δt · mean of ⌈τ_i/Δt⌉)."""
    slower = [SLACK * time for time in times]
    waits = {math.ceil(time / part) for time in slower for part in (1, 2, 3)}
    return max(
        (wait for wait in sorted(waits) if wait >= min(slower)),
        key=lambda wait: 1 / (wait * sum(math.ceil(time / wait) for time in slower)),
    )


def until(happened: Callable[[], Any], federation: LocalFederation, otherwise: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{otherwise} within {PATIENCE} s\n{federation.logs()}")
        time.sleep(0.1)


def until_there(federation: LocalFederation, name: str | None) -> int:
    """The process of an app, of a node's or the server's, as soon as it runs."""
    node = None if name is None else federation.nodes[name]
    until(lambda: federation.app_processes(node), federation, f"no app of {name or 'the server'} ran")
    return federation.app_processes(node)[0]


def train(federation: LocalFederation, scheme: str, folder: Path, clock: Clock, *, calm: bool) -> list[str]:
    """Run one scheme to its end; what was killed when."""
    folder.mkdir(parents=True)
    settings, limit = told(scheme, folder, clock), 2 * clock.until + PATIENCE
    run = federation.submit(APP, settings)
    until_there(federation, None)
    begin, said = time.monotonic(), []

    def at(share: float) -> None:
        time.sleep(max(0.0, begin + share * clock.until - time.monotonic()))

    def kill(pid: int, what: str) -> None:
        os.kill(pid, signal.SIGKILL)
        said.append(f"{what} at {time.monotonic() - begin:.0f} s")

    if not calm:
        at(0.2)
        kill(until_there(federation, KILLED_APP), f"ClientApp of {KILLED_APP}")
        at(0.4)
        node = federation.nodes[KILLED_NODE]
        kill(node.process.pid, f"SuperNode {KILLED_NODE}")
        node.process.wait()
        federation.start_node(KILLED_NODE, site(int(KILLED_NODE[-1])))
        at(0.6)
        until(lambda: (folder / "run" / "state.npz").exists(), federation, "no model was saved")
        kill(until_there(federation, None), "ServerApp")
        until(lambda: not federation.app_processes(), federation, "the ServerApp did not end")
        run = federation.submit(APP, settings | {"resume": True})
    run = federation.wait(run, limit=limit)
    if not run.completed:
        raise SystemExit(f"{scheme} ended as {run.status}\n{federation.run_log(run)}")
    return said


def row(scheme: str, folder: Path) -> str:
    """A line of the table."""
    found = json.loads((folder / "result.json").read_text())
    record = recorded(folder / "run")
    last = found["measured"][-1]
    line = record.timeline
    came = Counter(record.names[client] for client in line.client.tolist())
    faults = Counter(fault.kind for fault in record.faults)
    by_site = ", ".join(str(came[str(i)]) for i in range(len(PAUSES)))
    said = ", ".join(f"{kind} {count}" for kind, count in faults.most_common())
    models = int((np.diff(line.offsets) > 0).sum())
    return (
        f"| {scheme} | {models} | {line.num_updates} ({by_site}) | {last['loss']:.3f} | {last['accuracy']:.3f} | "
        f"{found['least variance']:.2g} | {'yes' if found['finite'] else 'no'} | {said} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="training time of each scheme over the slowest site's")
    parser.add_argument("--out", type=Path, default=Path("results/real_batchnorm"))
    parser.add_argument("--calm", action="store_true", help="nobody is killed")
    options = parser.parse_args()
    begin, out = time.monotonic(), options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    rows = []
    with LocalFederation(out / "federation") as federation:
        for i in range(len(PAUSES)):
            federation.start_node(f"site-{i}", site(i))
        federation.wait_for_nodes(len(PAUSES))
        (out / "first").mkdir()
        clock = first_round(federation, out / "first", options.rounds)
        for scheme in ("fedavg", "fedfix"):
            federation.wait_for_nodes(len(PAUSES))
            said = train(federation, scheme, out / scheme, clock, calm=options.calm)
            print(f"{scheme}: killed {'; '.join(said) or 'nobody'}", flush=True)
            rows.append(row("FedAvg" if scheme == "fedavg" else f"FedFix({clock.wait:g})", out / scheme))
    print(f"\nAfter {clock.until:g} s of training, sites that pause {', '.join(f'{p:g}' for p in PAUSES)} s")
    print("| scheme | models | updates (by site) | test loss | test accuracy | least variance | finite | faults |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"{out}; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
