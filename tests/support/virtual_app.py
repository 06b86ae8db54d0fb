"""ClientApps and ServerApps for tests of virtual time; found by name, so that processes of a pool find them too."""

from __future__ import annotations

import os
import random

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as flower

import fedtempo as ft
from fedtempo.simulation.engine.numerics import numerics
from fedtempo.simulation.engine.oracle import Client
from fedtempo.training.batches import init_key
from fedtempo.training.solvers import Sent

PROBLEM = ft.problems.quadratics(4, dimension=6, noise=0.5, rows=[6, 9, 12, 5], seed=1, importance="rows")
LOCAL = ft.LocalSGD(steps=2, lr=0.1, batch_size=4)
HYPER = {"local_lr": 0.1, "local_steps": 2, "batch_size": 4, "server_lr": 1.0}
SEED = 3


def jobs_so_far(context) -> int:
    """Counts the client's jobs, by its state."""
    if "count" not in context.state:
        context.state["count"] = MetricRecord({"jobs": 0})
    number = int(context.state["count"]["jobs"])
    context.state["count"]["jobs"] = number + 1
    return number


def answered(message: Message, arrays, **metrics) -> Message:
    record = ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord(metrics)}), reply_to=message)


# -- the simulator's own work

oracle_app = ClientApp()
_client: list[Client] = []


@oracle_app.train()
def oracle_train(message, context):
    if not _client:
        _client.append(Client(PROBLEM, LOCAL, HYPER, SEED, "float64"))
    i = context.node_config["partition-id"]
    theta = message.content["arrays"]["theta"].numpy()
    with numerics("float64"):
        found = _client[0].train(Sent(theta), i, jobs_so_far(context))[0][-1]
    return answered(message, {"theta": found}, **{"num-examples": int(PROBLEM.sizes[i]), "loss": 0.5})


def oracle_start() -> ArrayRecord:
    with numerics("float64"):
        return ArrayRecord({"theta": Array(np.asarray(PROBLEM.init(init_key(SEED)), dtype=np.float64))})


# -- a client that draws from everybody's generators, and can misbehave

app = ClientApp()


@app.train()
def train(message, context):
    i, config = context.node_config["partition-id"], message.content["config"]
    number = jobs_so_far(context)
    wrong = config.get("wrong", "")
    if i == config.get("who", -1) and number >= config.get("from", 0):
        if wrong == "raise":
            raise ValueError("no data here")
        if wrong == "nothing":
            return None
        if wrong == "die":
            os._exit(1)
        if wrong == "nan":
            return answered(message, {"w": np.full(3, np.nan)}, **{"num-examples": 5})
        if wrong == "shape":
            return answered(message, {"w": np.zeros(4)}, **{"num-examples": 5})
    w = message.content["arrays"]["w"].numpy()
    noise = 0.01 * np.random.standard_normal(3) + 0.01 * random.random()  # noqa: NPY002
    target = np.array([i, 1.0, -1.0])
    return answered(message, {"w": w + 0.3 * (target - w) + noise}, **{"num-examples": 5 + i, "loss": 1.0})


@app.evaluate()
def evaluate(message, context):
    w = message.content["arrays"]["w"].numpy()
    metrics = {"num-examples": 5, "loss": float((w**2).sum())}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def server(strategy, *, rounds=6, start=None, config=None, evaluate_fn=None, **more) -> ServerApp:
    """A ServerApp that starts this strategy."""
    made = ServerApp()
    initial = start or ArrayRecord({"w": Array(np.zeros(3))})

    @made.main()
    def main(grid, context):
        strategy.start(
            grid=grid,
            initial_arrays=initial,
            num_rounds=rounds,
            train_config=ConfigRecord(config or {}),
            evaluate_fn=evaluate_fn,
            **more,
        )

    return made


def squared(server_round, arrays) -> MetricRecord:
    return MetricRecord({"loss": float((arrays["w"].numpy() ** 2).sum())})


server_app = server(flower.FedAvg(), rounds=4, evaluate_fn=squared)
