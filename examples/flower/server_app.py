"""The server of a FedAvg project; only the strategy is another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from task import first_model, from_record, problem_of, to_record

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    problem = problem_of(settings, int(settings["clients"]))
    loss = jax.jit(problem.loss)
    accuracy = jax.jit(problem.metrics["accuracy"])
    [test] = problem.test_data()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        params = from_record(arrays)
        losses = [float(loss(params, problem.client_data(i))) for i in range(problem.num_clients)]
        return MetricRecord(
            {
                "loss": float(np.dot(problem.importance.values, losses)),
                "test-accuracy": float(accuracy(params, test)),
            }
        )

    strategy, more = strategy_of(settings)
    result = strategy.start(
        grid=grid,
        initial_arrays=to_record(first_model(settings, problem)),
        num_rounds=int(settings["num-rounds"]),
        timeout=float(settings["timeout"]),
        evaluate_fn=evaluate,
        **more,
    )
    if settings["out"]:
        save(Path(str(settings["out"])), result)


def strategy_of(settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The strategy by its name, and what only fedtempo's `start` understands."""
    scheme, clients = settings["scheme"], int(settings["clients"])
    if scheme == "flower-fedavg":  # Flower's own, to see that client and server are those of any FedAvg project
        return FlowerFedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients), {}
    from fedtempo.flower import AsyncFedAvg, FedAvg, FedBuff, FedFix

    common: dict[str, Any] = {
        "min_available_nodes": clients,
        "identity_key": settings["identity-key"] or None,
        "work_key": "work-seconds",
        "checkpoint": settings["checkpoint"] or None,
    }
    strategy = {
        "fedfix": lambda: FedFix(wait=float(settings["wait"]), **common),
        "fedavg": lambda: FedAvg(**common),
        "async": lambda: AsyncFedAvg(**common),
        "fedbuff": lambda: FedBuff(size=int(settings["size"]), **common),
    }[str(scheme)]()
    return strategy, {"until": float(settings["until"]) or None, "resume": bool(settings["resume"])}


def save(folder: Path, result: Any) -> None:
    """The final model, what was measured when, and each update from model sent to round closed."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "model.npz", **from_record(result.arrays))
    rounds = getattr(result, "rounds", [])  # Flower's own result has none
    ends = {closed.server_round: closed.time for closed in rounds if closed.updates}
    measured = [
        {"round": number, "seconds": ends.get(number, 0.0), **found}
        for number, found in result.evaluate_metrics_serverapp.items()
    ]
    (folder / "measured.json").write_text(json.dumps(measured, indent=1))
    updates = [
        {"client": name, "sent": update.sent / 1e9, "back": update.arrived / 1e9, "used": closed.time, "delay": delay}
        for closed in rounds
        for name, update, delay in zip(closed.contributors, closed.updates, closed.staleness, strict=True)
    ]
    (folder / "updates.json").write_text(json.dumps(updates, indent=1))
