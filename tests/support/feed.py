"""A made-up study that is told to a sink: two schemes, two seeds; one run diverges. Also as a process to be killed."""

from __future__ import annotations

import os
import signal
import sys

from fedtempo import track
from fedtempo.simulation.run_info import RunInfo

POINTS = 6
RUNS = [
    RunInfo({"scheme": scheme, "weights": "time-based", "lr": 0.1, "seed": seed})
    for scheme in ("FedAvg", "FedFix(1/2)")
    for seed in (0, 1)
]
NAN = float("nan")


def values(run: RunInfo, point: int) -> dict[str, float]:
    """What a run has measured at a point; the last run diverges at the fourth."""
    if run is RUNS[-1] and point >= 3:
        return {"loss": NAN, "rounds": NAN}
    return {"loss": 1 / (point + 1) + float(run.labels["seed"]), "rounds": 2.0 * point}


def time(point: int) -> float:
    return 2.5 * point


def tell(sink, points: int = POINTS, runs=RUNS) -> None:
    for point in range(points):
        for run in runs:
            sink(run, time(point), values(run, point))


SINKS = {
    "tensorboard": track.tensorboard,
    "csv": track.csv,
    "parquet": track.parquet,
    "mlflow": lambda place: track.mlflow(place, "study"),
    "wandb": lambda place: track.wandb("study", dir=place),
}

if __name__ == "__main__":
    kind, place, points = sys.argv[1:]
    sink = SINKS[kind](place)
    tell(sink, int(points))
    sink.flush()
    if int(points) < POINTS:
        os.kill(os.getpid(), signal.SIGKILL)
    sink.close()
