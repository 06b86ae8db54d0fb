"""A client as `flwr new` writes it: load the state dict, train, send the state dict back."""

from __future__ import annotations

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, load_data
from task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    node, settings = context.node_config, context.run_config
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id, num_partitions = int(node["partition-id"]), int(node["num-partitions"])
    loader = load_data(partition_id, num_partitions, str(settings["partition"]), int(settings["batch-size"]))
    train_loss = train_fn(model, loader, int(settings["local-epochs"]), float(msg.content["config"]["lr"]))
    time.sleep(float(node.get("pause", 0.0)))  # stands for a slower machine
    metrics = {"train_loss": train_loss, "num-examples": len(loader.dataset), "partition-id": partition_id}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
