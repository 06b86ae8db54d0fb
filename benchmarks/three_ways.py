"""One Flower app three ways: planned, in virtual time, and deployed on a SuperLink and four unequal SuperNodes.

    python benchmarks/three_ways.py [--wait 20] [--rounds 12] [--out results/three_ways]

The app is examples/flower_torch. Deployed, two lines of its server differ: the strategy, and where it is imported from.
Its ClientApp is wrapped from outside: a site waits for some seconds beside its work, as a slower machine would work
longer, and says which partition it has. The durations that the deployed run has recorded are then the times of the
plan and of the run in virtual time, whose ClientApp and server are the app's own.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.flower import recorded, simulate_app
from fedtempo.flower.comparison import run_durations
from fedtempo.flower.local import LocalFederation
from fedtempo.flower.record import Record

APP = Path(__file__).parents[1] / "examples" / "flower_torch"
PAUSES = (0.0, 6.0, 14.0, 30.0)
"""Seconds that each site waits beside its work."""
CONFIG: dict[str, Any] = {"local-epochs": 1, "learning-rate": 0.05}
"""A fourth of the data is a client's: its jobs are longer than those of the app's twenty clients."""
SEEDS = range(5)
CHANGED = {
    "from flwr.serverapp.strategy import FedAvg": "from fedtempo.flower import FedFix",
    'FedAvg(fraction_evaluate=context.run_config["fraction-evaluate"])': (
        'FedFix(wait={wait}, checkpoint={run!r}, identity_key="partition-id", min_available_nodes={clients})'
    ),
}
SLOW = '''"""The ClientApp as it is, on a slower machine."""

import time

from digits_torch.client_app import app as own
from flwr.clientapp import ClientApp


class Slow(ClientApp):
    def __call__(self, message, context):
        reply = own(message, context)
        reply.content["metrics"]["partition-id"] = context.node_config["partition-id"]
        time.sleep(context.node_config["pause"])
        return reply


app = Slow()
'''


def deployed_app(folder: Path, run: Path, wait: float) -> Path:
    """The app with another strategy, and its ClientApp slowed down."""
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    server = folder / "digits_torch" / "server_app.py"
    text = server.read_text()
    for old, new in CHANGED.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new.format(wait=wait, run=str(run), clients=len(PAUSES)))
    server.write_text(text)
    (folder / "slow.py").write_text(SLOW)
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace("digits_torch.client_app:app", "slow:app"))
    return folder


def deploy(app: Path, folder: Path, rounds: int, limit: float) -> None:
    """Run it on four SuperNodes."""
    with LocalFederation(folder) as federation:
        for i, pause in enumerate(PAUSES):
            federation.start_node(f"site-{i}", {"partition-id": i, "num-partitions": len(PAUSES), "pause": pause})
        federation.wait_for_nodes(len(PAUSES))
        federation.run(app, {**CONFIG, "num-server-rounds": rounds}, limit=limit)


def by_partition(record: Record) -> Record:
    """Client i is the one with partition i."""
    return record.numbered({str(i): i for i in range(len(PAUSES))})


def column(records: Sequence[Record]) -> list[str]:
    """What a run has come to, row by row; of several seeds, the rounds of the first and the measures of all."""
    record, line = records[0], records[0].timeline
    measured = [each.measured["server"] for each in records]
    last = {name: sorted(float(rows[max(rows)][name]) for rows in measured) for name in ("loss", "accuracy")}
    shares = line.participation_counts / line.num_rounds
    used = np.bincount(line.client, weights=record.weights.applied(line), minlength=len(PAUSES))
    return [
        f"{float(line.duration):.1f}",
        str(line.num_rounds),
        str(line.num_updates),
        f"{line.staleness.mean():.2f}",
        str(line.staleness.max()),
        *(f"{100 * share:.0f} %" for share in shares),
        *(f"{100 * part:.1f} %" for part in used / used.sum()),
        *(" to ".join(f"{value:.3f}" for value in dict.fromkeys((found[0], found[-1]))) for found in last.values()),
    ]


def planned(times: ft.TraceTimes, scheme: ft.Scheme, record: Record) -> list[str]:
    """What the plan promises for as long as the deployed run lasted."""
    importance = np.array(record.importance)
    means = ft.FixedTimes([round(float(mean), 3) for mean in times.mean_time])
    [made] = ft.compare(means, [scheme], importance=(importance / importance.sum()).tolist(), step=record.step).schemes
    seconds = float(record.timeline.duration)
    return [
        f"{seconds:.1f}",
        f"{made.rounds_per_time * seconds:.1f}",
        f"{made.updates_per_time * seconds:.1f}",
        f"{made.mean_delay:.2f}",
        str(made.max_delay),
        *(f"{100 * share:.0f} %" for share in made.run.participation.share),
        *(f"{100 * part:.1f} %" for part in importance / importance.sum()),
        "–",
        "–",
    ]


def main() -> None:
    """Deploy, simulate, plan, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wait", type=float, default=20.0, help="seconds between two models")
    parser.add_argument("--rounds", type=int, default=12, help="models to make")
    parser.add_argument("--out", type=Path, default=Path("results/three_ways"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    begin = time.monotonic()
    app = deployed_app(out / "app", out / "run", options.wait)
    deploy(app, out / "federation", options.rounds, limit=10 * options.wait * options.rounds)
    reality = by_partition(recorded(out / "run"))
    print(f"deployed: {time.monotonic() - begin:.0f} s", flush=True)

    begin = time.monotonic()
    measured = run_durations(out / "run", "replay", None)
    times = measured.only([measured.names.index(str(i)) for i in range(len(PAUSES))])
    scheme = ft.FedFix(options.wait)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    virtual = []
    for seed in SEEDS:
        place = out / f"virtual-{seed}"
        simulate_app(APP, times=times, scheme=scheme, rounds=options.rounds, run_config=CONFIG, seed=seed, folder=place)
        virtual.append(recorded(place))
    print(f"in virtual time, {len(SEEDS)} seeds: {time.monotonic() - begin:.0f} s\n")

    sites = range(len(PAUSES))
    rows = ["seconds", "rounds", "updates", "staleness, mean", "staleness, largest"]
    rows += [f"site {i} ({times.mean_time[i]:.1f} s a job): in rounds" for i in sites]
    rows += [f"site {i}: counted for" for i in sites]
    rows += ["loss at the end", "accuracy at the end"]
    cells = zip(rows, planned(times, scheme, reality), column(virtual), column([reality]), strict=True)
    print(f"| {scheme.label} | plan | virtual | real |\n|---|--:|--:|--:|")
    for cell in cells:
        print(f"| {' | '.join(cell)} |")
    pairs = zip(virtual[0].timeline.rounds, reality.timeline.rounds, strict=False)
    other = [
        n for n, (a, b) in enumerate(pairs) if (a.participants, a.base_versions) != (b.participants, b.base_versions)
    ]
    print(f"\nRounds that differ between virtual and real: {', '.join(map(str, other)) or 'none'}")


if __name__ == "__main__":
    main()
