"""What everyday commands cost, in processor seconds, for two source trees in turn.

    python benchmarks/everyday.py --before ../old --after .

Every command runs in a process of its own, with the environment that this script runs in and one thread for linear
algebra; `--repeats` times for each tree, one tree after the other, and the median counts. "first" starts from empty
cache folders, "again" is the same command with what the first left there. Lines that measure inside a process count
from before the call to after it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CPU = "import os, time\ndef cpu():\n    t = os.times()\n    return t.user + t.system\n"
SIMULATE = """
import fedtempo as ft
problem, times = ft.problems.digits(clients=20), ft.FixedTimes.spread(20, 80)
def call():
    schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix('1/2')]
    ft.simulate(problem, schemes, times, until=20, local=ft.LocalSGD(lr=[0.03, 0.1]), seeds=[0], points=11)
"""
BUFFERED = """
import fedtempo as ft
times = ft.TraceTimes.read('trace.csv')
def call():
    ft.weights(ft.FedBuff(5), times)
"""
OWN = """
from dataclasses import dataclass
import fedtempo as ft
from fedtempo.rules import Close, WaitingRule, resend
@dataclass(frozen=True)
class Half(WaitingRule):
    def decide(self, state, event, view):
        if (again := resend(event)) is not None:
            return state, again
        return state, Close(tuple(view.arrived.values())) if 2 * len(view.arrived) >= len(view.clients) else None
times = ft.TraceTimes.read('trace.csv')
def call():
    ft.weights(ft.Scheme(Half(), name='half'), times)
"""
ONCE = "begin = cpu()\ncall()\nprint(cpu() - begin)\n"
TWICE = "call()\n" + ONCE


def trace(folder: Path) -> None:
    """Durations of 20 clients, 50 each."""
    import numpy as np

    drawn = np.random.default_rng(0).lognormal(0, 0.5, (20, 50)) * np.linspace(1, 3, 20)[:, None]
    rows = [f"{client},{duration:.3f}" for client, row in enumerate(drawn) for duration in row]
    (folder / "trace.csv").write_text("client,duration\n" + "\n".join(rows) + "\n")


def spent(words: list[str], folder: Path, tree: Path, caches: Path, inside: bool) -> float:
    """Processor seconds of a child process, or those that it prints."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "XDG_CACHE_HOME": str(caches),
        "OPENBLAS_NUM_THREADS": "1",
    }
    for name in ("FEDTEMPO_CACHE", "JAX_COMPILATION_CACHE_DIR"):
        environment.pop(name, None)
    before = os.times()
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:80]}\n{done.stderr}")
    if inside:
        return float(done.stdout.split()[-1])
    return after.children_user + after.children_system - before.children_user - before.children_system


CASES: dict[str, tuple[list[str], bool, bool]] = {
    "`fedtempo --help`": (["-m", "fedtempo", "--help"], False, False),
    "`fedtempo plan --clients 20 --times F80`": (
        ["-m", "fedtempo", *["plan", "--clients", "20", "--times", "F80"]],
        False,
        True,
    ),
    "`fedtempo plan --times trace.csv`": (["-m", "fedtempo", *["plan", "--times", "trace.csv"]], False, True),
    "weights of FedBuff(5) on that trace": (
        ["-c", CPU + BUFFERED + ONCE],
        True,
        True,
    ),
    "weights of a rule of one's own, first call in a process": (["-c", CPU + OWN + ONCE], True, False),
    "weights of a rule of one's own, second call": (["-c", CPU + OWN + TWICE], True, False),
    "`fedtempo run` (all defaults)": (
        ["-m", "fedtempo", *["run", "--out", "study", "--overwrite", "-q"]],
        False,
        True,
    ),
    "`fedtempo show study`": (["-m", "fedtempo", "show", "study"], False, False),
    "`ft.simulate`, first call in a process": (["-c", CPU + SIMULATE + ONCE], True, True),
    "`ft.simulate`, second call in a process": (["-c", CPU + SIMULATE + TWICE], True, False),
}
"""Words of the command, whether it prints its seconds itself, and whether it is run again with what it left."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="cases that contain one of these texts")
    given = parser.parse_args()
    trees = {"before": given.before.resolve(), "after": given.after.resolve()}
    print("| processor seconds | before | after |\n|---|---|---|", flush=True)
    for name, (words, inside, twice) in CASES.items():
        if not any(part in name for part in given.only or [""]):
            continue
        labels = [f"{name}, first", f"{name}, again"] if twice else [name]
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(given.repeats):
            for which, tree in trees.items():
                with tempfile.TemporaryDirectory() as place:
                    folder, caches = Path(place), Path(place) / "caches"
                    trace(folder)
                    if "show" in words:
                        small = ["run", "--until", "20", "--lr", "0.1", "--seeds", "1", "--out", "study", "-q"]
                        spent(["-m", "fedtempo", *small], folder, tree, caches, False)
                    for label in labels:
                        found.setdefault((label, which), []).append(spent(words, folder, tree, caches, inside))
        for label in labels:
            columns = [
                f"{statistics.median(found[label, which]):.2f} "
                f"({min(found[label, which]):.2f} to {max(found[label, which]):.2f})"
                for which in trees
            ]
            print(f"| {label} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
