"""A client that changes the model a little and sends it back at once."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    step = 1e-3 * (1 + int(context.node_config["partition-id"]))
    moved = {
        name: Array(array.numpy() + array.numpy().dtype.type(step)) for name, array in message.content["arrays"].items()
    }
    metrics = MetricRecord({"num-examples": 100, "partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)
