"""Where the time of a client update goes: the compiled loop is traced by JAX's profiler, and its operations are sorted.

    linear    784 → 10 logistic regression, 10 clients of 6 000 rows, K = 1, B = 64, as in benchmarks/engine.py
    authors, fedavg-cifar, fedavg-mnist    the convolutional networks of the experiments, on made-up images
    lstm      the network for Shakespeare, on made-up text

An operation belongs to the first of these kinds that the compiled program says of it: products of matrices, rows taken
for a batch, versions of the model read or written, patches of images laid side by side, arrays transposed or copied,
everything else (softmax, activations, the server's step). Operations that run at the same time on several cores are
added up. A trace slows small operations down: the shares are what to read, and µs an event comes from a call without
it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedtempo as ft
from engine import clients, logistic
from fedtempo.simulation.engine.machine import EventMachine, WaveMachine

KINDS = {
    "products": r"\b(dot|convolution|custom-call|dot_general)\(|__ynn_fusion|__cublas|__triton_gemm|__cudnn",
    "rows taken": r"\bgather\(",
    "versions written": r"\b(dynamic-update-slice|scatter)\(",
    "versions read": r"\bdynamic-slice\(",
    "patches": r"\bconcatenate\(",
    "transposed, copied": r"\b(transpose|copy)\(",
}
WARM = 6
"""Calls before the one that is timed."""


def problem_of(case: str) -> tuple[ft.Problem, int]:
    """A problem, and how many local steps its jobs have."""
    generator = np.random.default_rng(0)
    if case == "linear":
        return logistic(clients()), 1
    if case != "lstm":
        from fedtempo.problems.models.convolutional import cnn

        shape = (28, 28, 1) if case == "fedavg-mnist" else (32, 32, 3)
        model = cnn(case, shape)
        data = [
            (generator.integers(0, 256, (256, *shape)).astype(np.uint8), generator.integers(0, 10, 256))
            for _ in range(10)
        ]
        return ft.Problem(init=model.init, loss=model.loss, data=[(x, y.astype(np.int32)) for x, y in data]), 2
    from fedtempo.problems.models.recurrent import lstm

    network = lstm(80)
    texts = [generator.integers(0, 80, (256, 80)).astype(np.uint8) for _ in range(10)]
    rows = [(x, generator.integers(0, 80, 256).astype(np.int32)) for x in texts]
    return ft.Problem(init=network.init, loss=network.loss, data=rows), 2


def kinds(text: str) -> dict[str, str]:
    """The kind of every instruction of a compiled program, by its name."""
    bodies: dict[str, str] = {}
    for part in re.split(r"\n\n", text):
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) ", part)
        if head:
            bodies[head[1]] = part
    found = {}
    for line in text.splitlines():
        made = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = .*?\b([\w\-]+)\(", line)
        if made and made[2] not in ("parameter", "constant", "tuple", "get-tuple-element", "while", "bitcast"):
            inside = line + bodies.get((re.search(r"calls=%?([\w.\-]+)", line) or [""] * 2)[1], "")
            found[made[1]] = next((kind for kind, sign in KINDS.items() if re.search(sign, inside)), "everything else")
    return found


class Traced:
    """Looks at one call of `advance` in the middle of a run, and traces the next one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.texts = folder, 0, ""
        self.events, self.seconds = 0, 0.0

    def around(self, machine: Any) -> None:
        plain = machine.advance

        def advance(own: Any, state: Any, runs: Any, loaded: Any, first: int, last: int) -> Any:
            jax.block_until_ready((state, loaded))
            self.calls += 1
            traced = self.calls == WARM + 1
            if traced:
                self.texts = "\n\n".join(made.as_text() for key, made in own._compiled.items() if key[0] == "advance")
                jax.profiler.start_trace(str(self.folder))
            begin = time.perf_counter()
            state = jax.block_until_ready(plain(own, state, runs, loaded, first, last))
            if self.calls == WARM:
                self.events, self.seconds = last - first, time.perf_counter() - begin
            if traced:
                jax.profiler.stop_trace()
            return state

        machine.advance = advance

    def spent(self) -> Counter[str]:
        """Seconds by kind."""
        (path,) = self.folder.glob("plugins/profile/*/*.trace.json.gz")
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        known, found = kinds(self.texts), Counter[str]()
        for event in events:
            name = event.get("args", {}).get("hlo_op") or event.get("name", "")
            if event.get("ph") == "X" and name in known:
                found[known[name]] += event.get("dur", 0) / 1e6
        return found


def profile(case: str, runs: int, engine: str | None) -> None:
    problem, steps = problem_of(case)
    with tempfile.TemporaryDirectory() as name:
        traced = Traced(Path(name))
        for machine in (EventMachine, WaveMachine):
            traced.around(machine)
        local = ft.LocalSGD(steps=steps, lr=np.geomspace(0.001, 0.1, runs).tolist(), batch_size=64)
        until, more = 8, {} if engine is None else {"engine": engine}
        while traced.calls <= WARM:
            traced.calls = 0
            scheme, times = ft.AsyncFedAvg(), ft.FixedTimes.spread(10, 80)
            ft.simulate(problem, scheme, times, until=until, local=local, seeds=[0], points=2, **more)
            until *= 4
        spent = traced.spent()
    total = sum(spent.values())
    shares = " | ".join(f"{spent[kind] / total:.0%}" for kind in (*KINDS, "everything else"))
    micro = traced.seconds / max(1, traced.events) * 1e6
    print(f"| {case}, {runs} run{'s' if runs > 1 else ''} | {micro:,.0f} | {shares} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", help="CASE:RUNS alone, in this process", action="append")
    parser.add_argument("--engine", help="events or waves, where it is not to be chosen")
    options = parser.parse_args()
    given = options.case or [
        "linear:1",
        "linear:12",
        "authors:1",
        "authors:6",
        "lstm:1",
        "lstm:6",
        "fedavg-cifar:1",
        "fedavg-mnist:1",
    ]
    print("| | µs an event, all runs | " + " | ".join((*KINDS, "everything else")) + " |")
    print("|---|---|" + "---|" * (len(KINDS) + 1))
    plain = EventMachine.advance, WaveMachine.advance
    for case in given:
        EventMachine.advance, WaveMachine.advance = plain
        name, runs = case.split(":")
        profile(name, int(runs), options.engine)


if __name__ == "__main__":
    main()
