"""A FedAvg client like any other: it gets a model, trains it on its own data, and sends it back."""

from __future__ import annotations

import time

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import from_record, problem_of, to_record, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    begin = time.monotonic()
    node, settings = context.node_config, context.run_config
    client = int(node["partition-id"])
    problem = problem_of(settings, int(node["num-partitions"]))
    config = message.content["config"]
    # The job's number names its batches, so that a simulation can draw the same ones; any other number would train too.
    job = int(config.get("job", config["server-round"]))
    params, loss = train(settings, problem, from_record(message.content["arrays"]), client, job)
    time.sleep(float(node.get("pause", 0.0)))  # stands for a slower machine
    metrics = MetricRecord(
        {
            "num-examples": int(problem.sizes[client]),
            "partition-id": client,
            "train-loss": loss,
            "work-seconds": time.monotonic() - begin,
        }
    )
    return Message(RecordDict({"arrays": to_record(params), "metrics": metrics}), reply_to=message)
