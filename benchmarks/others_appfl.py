"""APPFL's virtual-time simulation (`appfl.vsim`) on the work of others_work.py: its FedAsync under its AsyncSimDriver.

A client's time is steps × `base_step_time` × its slowdown; bandwidth 0 means that sending takes no time. Its FedAsync
divides α by the number of clients, so that it is given α times that.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch.utils.data import TensorDataset

from others_work import BATCH, MIXING, TICK, WORKS, Clock, Lap, clients, initial, loss


@cache
def files(name: str) -> tuple[str, str]:
    """A file that makes the model and one that measures accuracy, by path as APPFL takes them."""
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)  # it writes its logs where it is
    model, metric = folder / "model.py", folder / "metric.py"
    model.write_text(
        f"import copy\nfrom others_work import initial\n\n\ndef model():\n    return copy.deepcopy(initial({name!r}))\n"
    )
    metric.write_text("def accuracy(true, given):\n    return (true == given.argmax(axis=1)).mean()\n")
    return str(model), str(metric)


def appfl_lap(name: str, updates: int, *, collect: bool) -> Lap:
    """Train; `collect`: its default, which collects Python's garbage several times an update."""
    # what measures the quality of images in its report on data; it needs torchvision, and nothing here calls it
    sys.modules.setdefault("piq", ModuleType("piq"))
    agent, vsim = import_module("appfl.agent"), import_module("appfl.vsim")
    logging.disable(logging.INFO)
    work, (model_path, metric_path), memory = WORKS[name], files(name), {"optimize_memory": collect}
    server = agent.SimServerAgent(
        {
            "client_configs": {
                "train_configs": {
                    "trainer": "VanillaTrainer", "mode": "step", "num_local_steps": work.steps, "optim": "SGD",
                    "optim_args": {"lr": work.lr}, "loss_fn": "CrossEntropyLoss", "metric_path": metric_path,
                    "metric_name": "accuracy", "do_validation": False, "train_batch_size": BATCH, "device": "cpu",
                    **memory,
                },
                "model_configs": {"model_path": model_path, "model_name": "model"},
                **memory,
            },
            "server_configs": {
                "num_clients": len(clients(name)), "device": "cpu", "num_global_epochs": updates,
                "scheduler": "AsyncScheduler", "scheduler_kwargs": {"same_init_model": True, **memory},
                "aggregator": "FedAsyncAggregator",
                "aggregator_kwargs": {"staleness_fn": "constant", "alpha": MIXING * len(clients(name)), **memory},
                **memory,
            },
        }
    )  # fmt: skip
    agents = []
    for number, (x, y) in enumerate(clients(name)):
        own = {"train_configs": {"device": "cpu", **memory}, **memory}
        one = agent.SimClientAgent(own, client_id=f"Client{number}", client_dataset=(TensorDataset(x, y), None))
        one.load_config(server.get_client_configs())
        agents.append(one)
    profiles = {
        one.get_id(): vsim.ClientProfile(compute_factor=float(ticks), bandwidth=0.0)
        for one, ticks in zip(agents, work.ticks(), strict=True)
    }
    driver = vsim.AsyncSimDriver(
        server, agents, profiles, max_in_flight=len(agents), logger=logging.getLogger("vsim"),
        base_step_time=1 / (TICK * work.steps),
    )  # fmt: skip
    clock = Clock()
    driver.run()
    taken = clock.read()
    found: dict[str, Any] = server.get_parameters(serial_run=True)
    model = copy.deepcopy(initial(name))
    model.load_state_dict(found)
    staleness = float(np.mean([record["staleness"] for record in driver.history]))
    assert abs(staleness - float(work.line(updates).staleness.mean())) < 0.5, "its clock is not ours"
    return Lap(len(driver.history) + len(driver.active), *taken, loss(model, name))
