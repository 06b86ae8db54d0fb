"""What the tests with real Flower processes share: sites, the example app, odd clients, and laws of a record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedtempo as ft
from fedtempo.flower import Record, recorded, replay
from fedtempo.flower.journal import Journal
from fedtempo.flower.local import LocalFederation
from fedtempo.flower.state import RunFolder

APP = Path(__file__).parents[2] / "examples" / "flower"
ENV = {"JAX_PLATFORMS": "cpu"}
TRAINING: dict[str, Any] = {
    "local-lr": 0.2,
    "local-steps": 10,
    "batch-size": 16,
    "partition": "dirichlet:1",
    "seed": 3,
}

ODD_CLIENTS = '''
"""Clients that do not do what they should: `odd` in the node's configuration says how."""

import os
import signal
import time

import numpy as np
from client_app import fit
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import problem_of

app = ClientApp()


@app.train()
def odd(message: Message, context: Context) -> Message:
    how = str(context.node_config.get("odd", ""))
    if how == "plain":
        return plain(message, context)
    reply = fit(message, context)
    if how == "nan":
        arrays = {name: Array(np.full_like(a.numpy(), np.nan)) for name, a in reply.content["arrays"].items()}
        reply.content["arrays"] = ArrayRecord(arrays)
    if how == "raises":
        raise RuntimeError("the disk of this site is full")
    return reply


def plain(message: Message, context: Context) -> Message:
    """A NumPy client that has never heard of jobs and versions."""
    node = context.node_config
    client = int(node["partition-id"])
    problem = problem_of(context.run_config, int(node["num-partitions"]))
    x, y = problem.client_data(client)
    weights, bias = (message.content["arrays"][name].numpy().astype(np.float64) for name in ("weights", "bias"))
    for _ in range(10):
        z = x @ weights.T + bias
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        weights, bias = weights - 0.5 * p.T @ x / len(y), bias - 0.5 * p.mean(axis=0)
    arrays = {"weights": Array(weights.astype(np.float32)), "bias": Array(bias.astype(np.float32))}
    metrics = MetricRecord({"num-examples": len(y), "partition-id": client})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)
'''


def odd_app(folder: Path) -> Path:
    """The example app with clients that can be told to be odd."""
    app = folder / "odd-app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__", "demo*", ".flwr"))
    (app / "odd_client_app.py").write_text(ODD_CLIENTS.lstrip())
    project = (app / "pyproject.toml").read_text()
    project = project.replace("client_app:app", "odd_client_app:app").replace('fab-exclude = ["demo*.py"]\n', "")
    (app / "pyproject.toml").write_text(project)
    return app


def start_sites(federation: LocalFederation, pauses: Mapping[int, float], odd: Mapping[int, str] | None = None) -> None:
    """One node a site; they are there when this returns."""
    for i in pauses:
        federation.start_node(f"site-{i}", site(i, pauses, odd))
    federation.wait_for_nodes(len(pauses))


def site(i: int, pauses: Mapping[int, float], odd: Mapping[int, str] | None = None) -> dict[str, Any]:
    """What node i is told."""
    return {"partition-id": i, "num-partitions": len(pauses), "pause": pauses[i], "odd": (odd or {}).get(i, "")}


def settings(folder: Path, clients: int, **more: Any) -> dict[str, Any]:
    """What the app is told; it leaves its record in `folder`/run."""
    told = {"clients": clients, "checkpoint": str(folder / "run"), "out": str(folder), **TRAINING}
    return told | {name.replace("_", "-"): value for name, value in more.items()}


def measured(folder: Path) -> list[dict[str, Any]]:
    """Round by round, what the server measured."""
    found: list[dict[str, Any]] = json.loads((folder / "measured.json").read_text())
    return found


def journal_of(folder: Path) -> Journal:
    """All that was written down by the last checkpoint."""
    state, _, lines = RunFolder(folder / "run").read()
    journal = Journal(scheme=state["about"]["scheme"], server_lr=state["server_lr"], on_disk=False)
    journal.read(lines)
    journal.names = tuple(state["names"])
    return journal


def check_rule(folder: Path) -> Record:
    """What the rule was told gives the recorded rounds when it is told again."""
    record = recorded(folder / "run")
    assert record.replay_events().equals(record.timeline)
    return record


def check_oracle(folder: Path, clients: int) -> None:
    """Algorithm 1 on the recorded timeline gives the recorded model."""
    record = recorded(folder / "run")
    local = ft.LocalSGD(
        steps=TRAINING["local-steps"], lr=TRAINING["local-lr"], batch_size=TRAINING["batch-size"], draw="uniform"
    )
    problem = ft.problems.digits(clients, TRAINING["partition"], seed=TRAINING["seed"], importance="rows")
    numbers = {str(i): i for i in range(clients)}
    by_oracle = replay(problem, record, local, clients=numbers, seed=TRAINING["seed"])
    with np.load(folder / "model.npz") as model:
        assert sorted(model.files) == sorted(by_oracle)
        for name in model.files:
            np.testing.assert_allclose(model[name], by_oracle[name], rtol=0, atol=1e-5)
