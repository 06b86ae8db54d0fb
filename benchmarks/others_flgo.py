"""FLGo's asynchronous simulation on the work of others_work.py: its FedAsync on its virtual clock.

Its clock has whole units: a client's latency is its ticks less one, since the server asks it again one unit after its
update came. Updates that come in the same unit make one round.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from others_work import BATCH, MIXING, WORKS, Clock, Lap, clients, initial, loss

CONFIG = """
from functools import partial
import torch
from torch.nn.functional import cross_entropy
from others_work import WORKS, clients

train_data = torch.utils.data.TensorDataset(*map(torch.cat, zip(*clients({name!r}))))
DataLoader = partial(torch.utils.data.DataLoader, shuffle=True)
get_model = WORKS[{name!r}].make

def data_to_device(batch, device):
    return [each.to(device) for each in batch]

def eval(model, loader, device):
    return {{}}

def compute_loss(model, batch, device):
    x, y = data_to_device(batch, device)
    return {{"loss": cross_entropy(model(x), y)}}
"""
"""What FLGo asks for of data and a model of one's own. Without a loader given its "general" data come unshuffled."""


@cache
def task(name: str) -> str:
    """The folder of a task, with every client its own rows."""
    flgo, partition = import_module("flgo"), import_module("flgo.benchmark.partition")

    class Given(partition.BasicPartitioner):  # type: ignore[name-defined, misc]
        num_clients = len(clients(name))

        def __call__(self, data: Any) -> list[list[int]]:
            rows = WORKS[name].rows
            return [list(range(i * rows, (i + 1) * rows)) for i in range(self.num_clients)]

    folder, module = tempfile.mkdtemp(), "given_" + name.replace(" ", "_")
    os.chdir(folder)
    sys.path.insert(0, folder)
    Path("config.py").write_text(CONFIG.format(name=name), encoding="utf-8")
    flgo.gen_benchmark_from_file(benchmark=module, config_file="config.py", data_type="general")
    flgo.gen_task_by_(import_module(module), Given(), task_path="task")
    return str(Path(folder, "task"))


def flgo_lap(name: str, updates: int, *, proximal: bool = True) -> Lap:
    """Train; `proximal=False` leaves out the term that its FedAsync's clients compute even where it is zero."""
    flgo, base = import_module("flgo"), import_module("flgo.algorithm.fedbase")
    fedasync, simulator = import_module("flgo.algorithm.fedasync"), import_module("flgo.simulator.base")
    work, told = WORKS[name], io.StringIO()
    trained = 0

    class Algorithm:
        class Server(fedasync.Server):  # type: ignore[name-defined, misc]
            pass

        class Client(fedasync.Client if proximal else base.BasicClient):  # type: ignore[misc]
            pass

    class Times(simulator.BasicSimulator):  # type: ignore[name-defined, misc]
        def update_client_responsiveness(self, client_ids: list[int], *_: Any, **__: Any) -> None:
            nonlocal trained
            trained += len(client_ids)
            self.set_variable(client_ids, "latency", [work.ticks()[i] - 1 for i in client_ids])

    options = {
        "num_rounds": len(set(work.line(updates).ends.tolist())), "num_steps": work.steps, "batch_size": BATCH,
        "learning_rate": work.lr, "proportion": 1.0, "sample": "full_available",
        "algo_para": [MIXING, 0.0, "constant"], "eval_interval": -1, "train_holdout": 0.0, "gpu": [],
        "no_tqdm": True, "no_log_console": True, "log_file": False,
    }  # fmt: skip
    with contextlib.redirect_stdout(told):
        runner = flgo.init(task(name), Algorithm, options, Simulator=Times)
        runner.model.model.load_state_dict(initial(name).state_dict())
        clock = Clock()
        runner.run()
        taken = clock.read()
    model: nn.Module = copy.deepcopy(initial(name))
    model.load_state_dict(runner.model.model.state_dict())
    torch.set_grad_enabled(True)
    return Lap(trained, *taken, loss(model, name))
