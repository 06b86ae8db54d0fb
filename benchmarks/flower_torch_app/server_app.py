"""A server as `flwr new` writes it; the strategy is fedtempo's."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from task import Net, test, torch

from fedtempo.flower import FedAvg, FedFix

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write down what came of it."""
    settings = context.run_config
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    common = {
        "min_available_nodes": int(settings["clients"]),
        "identity_key": "partition-id",
        "checkpoint": settings["checkpoint"] or None,
    }
    if settings["scheme"] == "fedavg":
        strategy = FedAvg(**common)
    else:
        strategy = FedFix(wait=float(settings["wait"]), **common)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=int(settings["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(settings["learning-rate"])}),
        timeout=float(settings["timeout"]),
        evaluate_fn=evaluate,
        until=float(settings["until"]) or None,
        resume=bool(settings["resume"]),
    )
    if settings["out"]:
        ends = {closed.server_round: closed.time for closed in result.rounds if closed.updates}
        measured = [
            {"round": number, "seconds": ends.get(number, 0.0), **found}
            for number, found in result.evaluate_metrics_serverapp.items()
        ]
        state = result.arrays.to_torch_state_dict()
        least = min(float(value.min()) for name, value in state.items() if name.endswith("running_var"))
        finite = all(bool(value.isfinite().all()) for value in state.values())
        said = {"measured": measured, "least variance": least, "finite": finite}
        Path(str(settings["out"])).write_text(json.dumps(said, indent=1))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Loss and accuracy on the test rows."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
