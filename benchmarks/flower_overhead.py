"""What a server on Flower costs: real nodes with models of three sizes, and a fake Grid with many clients.

    real     a SuperLink and four SuperNodes on this machine; FedAvg, so that each round takes four updates. A round's
             server time is split into Flower's calls (`transport`) and everything else but waiting (`ours`), with and
             without checkpoints
    fast     a Grid without transport on a virtual clock: updates a second that the strategy itself can take
    memory   the same with a 5 MB model and 20 clients, 500 rounds, and with a 20 MB model and 100 clients, 600 rounds:
             the process's memory as the rounds go by

Each line runs in a process of its own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict

APP = Path(__file__).parent / "flower_app"
SIZES = {"30 KB": 30_000, "5 MB": 5_000_000, "100 MB": 100_000_000}
NODES = 4


def real(size: int, rounds: int, *, checkpoint: bool) -> dict[str, Any]:
    """Rounds with real nodes."""
    from fedtempo.flower.local import LocalFederation

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalFederation(folder / "federation") as federation:
            for i in range(NODES):
                federation.start_node(f"site-{i}", {"partition-id": i, "num-partitions": NODES})
            federation.wait_for_nodes(NODES)
            told: dict[str, str | int | float | bool] = {
                "bytes": size,
                "rounds": rounds,
                "clients": NODES,
                "checkpoint": str(folder / "run") if checkpoint else "",
                "out": str(folder / "measured.json"),
            }
            federation.run(APP, told, limit=500)
        measured: dict[str, Any] = json.loads((folder / "measured.json").read_text())
        return measured


class InstantGrid:
    """A Grid without transport, and the virtual clock that goes with it: a job takes its client's time, and nothing."""

    def __init__(self, clients: int, replies: list[Any]) -> None:
        self._nodes = [SimpleNamespace(node_id=node, public_key=b"") for node in range(1, clients + 1)]
        self._replies = replies
        self._time = 0
        self._due: list[tuple[int, str]] = []
        self._sent: dict[str, Any] = {}
        self._count = 0

    def now(self) -> int:
        return self._time

    def sleep(self, until: int) -> None:
        first = self._due[0][0] if self._due else until
        self._time = max(self._time, min(until, first))

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self._nodes]

    def get_nodes(self) -> list[Any]:
        return self._nodes

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        names = []
        for message in messages:
            self._count += 1
            name, node = str(self._count), message.metadata.dst_node_id
            self._sent[name] = message.metadata  # what is in it has left the process, as on a real Grid
            heapq.heappush(self._due, (self._time + (20 + node % 80) * 10**9 + node * 10**6, name))
            names.append(name)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        found = []
        while self._due and self._due[0][0] <= self._time:
            _, name = heapq.heappop(self._due)
            sent = self._sent.pop(name)
            metadata = Metadata(1, f"r{name}", sent.dst_node_id, 0, name, "", 0.0, 1e9, sent.message_type)
            found.append(Message(content=self._replies[sent.dst_node_id % len(self._replies)], metadata=metadata))
        return found


def message(content: Any, message_type: str, dst_node_id: int, **more: Any) -> Any:
    """A message outside a running app."""
    return Message(content=content, metadata=Metadata(1, "", 0, dst_node_id, "", "", 0.0, 1e9, message_type))


def fake(scheme: str, clients: int, updates: int, size: int, *, samples: int = 0, kinds: int = 8) -> dict[str, Any]:
    """Updates a second, and memory as rounds go by; `kinds` of replies there are."""
    from fedtempo import flower

    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)

    def model() -> ArrayRecord:
        return ArrayRecord({f"layer {k}": Array(rng.normal(size=size // 16).astype(np.float32)) for k in range(4)})

    replies = [RecordDict({"arrays": model(), "metrics": MetricRecord({"num-examples": 100})}) for _ in range(kinds)]
    grid = InstantGrid(clients, replies)
    common: dict[str, Any] = {
        "clock": grid,
        "message": message,
        "min_available_nodes": clients,
        "server_lr": 1e-3,  # replies do not follow the model: small steps keep it bounded under long delays
    }
    strategy: Any = {
        "async": lambda: flower.AsyncFedAvg(**common),
        "fedbuff": lambda: flower.FedBuff(size=10, **common),
        "fedfix": lambda: flower.FedFix(wait=20.0, **common),
    }[scheme]()
    # Updates a round differ by scheme: end by virtual time instead, when the clients can have made so many.
    pace = sum(1.0 / (20 + node % 80 + node * 1e-3) for node in range(1, clients + 1))
    memory: list[tuple[int, float]] = []

    def look(server_round: int, arrays: Any) -> None:
        memory.append((server_round, resident()))

    begin, worked = time.perf_counter(), time.process_time()
    result = strategy.start(
        grid=grid,
        initial_arrays=model(),
        num_rounds=samples or 10**9,
        until=None if samples else updates / pace,
        timeout=10_000.0,
        evaluate_fn=look if samples else None,
    )
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    taken = sum(len(closed.updates) for closed in result.rounds)
    return {
        "updates": taken,
        "rounds": len(result.rounds),
        "seconds": seconds,
        "worked": worked,
        "peak": max((m for _, m in memory), default=resident()),
        "memory": memory,
        "faults": len(result.errors),
    }


def resident() -> float:
    """MB of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def alone(**case: Any) -> dict[str, Any]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show_real(rounds: int) -> None:
    print(f"Real nodes: {NODES}, FedAvg, seconds a round")
    print("| model | checkpoint | round | transport | ours | ours of the round | as the strategy counts it |")
    print("|---|---|---|---|---|---|---|")
    for name, size in SIZES.items():
        for checkpoint in (False, True):
            seen = real(size, rounds, checkpoint=checkpoint)
            parts = ", ".join(f"{part} {spent:.3f}" for part, spent in sorted(seen["parts"].items()))
            share = seen["ours"] / seen["round"]
            print(
                f"| {name} | {'yes' if checkpoint else 'no'} | {seen['round']:.2f} | {seen['transport']:.3f} | "
                f"{seen['ours']:.3f} | {share:.1%} | {parts} |",
                flush=True,
            )


def show_fake(updates: int) -> None:
    print("\nFake Grid, 30 KB model")
    print("| scheme | clients | updates | rounds | updates a second | a processor second | MB at the end |")
    print("|---|---|---|---|---|---|---|")
    for scheme in ("async", "fedbuff", "fedfix"):
        for clients in (10, 100, 1000):
            seen = alone(scheme=scheme, clients=clients, updates=updates, size=30_000)
            rate = seen["updates"] / seen["seconds"]
            print(
                f"| {scheme} | {clients} | {seen['updates']} | {seen['rounds']} | {rate:.0f} | "
                f"{seen['updates'] / seen['worked']:.0f} | {seen['peak']:.0f} |",
                flush=True,
            )


def show_memory(rounds: int) -> None:
    print(f"\nMemory over {rounds} rounds, 5 MB model, 20 clients, MB")
    for scheme in ("async", "fedbuff", "fedfix"):
        show_rounds(scheme, alone(scheme=scheme, clients=20, updates=0, size=5_000_000, samples=rounds))
    print(f"\nMemory over {rounds + 100} rounds, 20 MB model, 100 clients, MB")
    show_rounds("async", alone(scheme="async", clients=100, updates=0, size=20_000_000, samples=rounds + 100, kinds=2))


def show_rounds(scheme: str, seen: dict[str, Any]) -> None:
    """Memory by round, as far as rounds were evaluated: about every hundred, and the most."""
    memory = sorted(dict(seen["memory"]).items())
    marks = [min(memory, key=lambda at: abs(at[0] - n)) for n in (1, 10, 50, *range(100, memory[-1][0] + 1, 100))]
    shown = ", ".join(f"round {n} {held:.0f}" for n, held in dict.fromkeys(marks))
    print(f"{scheme}: {shown}; at most {seen['peak']:.0f}; {seen['seconds'] / seen['rounds'] * 1e3:.0f} ms a round")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("real", "fast", "memory"))
    parser.add_argument("--rounds", type=int, default=4, help="rounds with real nodes")
    parser.add_argument("--updates", type=int, default=100_000, help="updates with the fake Grid")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(fake(**json.loads(options.case))))
        return
    if options.only in (None, "real"):
        show_real(options.rounds)
    if options.only in (None, "fast"):
        show_fake(options.updates)
    if options.only in (None, "memory"):
        show_memory(500)


if __name__ == "__main__":
    main()
