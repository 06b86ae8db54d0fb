"""FLGo's own loop on the work of torch_engine.py: FedAvg, every client in every round, K steps of 64 rows a job.

It must be installed beside (FLGo 0.4.4 needs no torchvision for this: pip install --no-deps flgo prettytable ujson
pynvml nvidia-ml-py networkx toolz). The figure is of its rounds alone, without setting up and without evaluation.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

CONFIG = """
import torch
import torch.nn.functional as F
from torch_engine import MODELS, clients

make, shape, _ = MODELS[{name!r}]
parts = clients({count}, shape)
train_data = torch.utils.data.TensorDataset(*map(torch.cat, zip(*parts)))

def get_model():
    torch.manual_seed(0)
    return make()

def data_to_device(batch, device):
    return [each.to(device) for each in batch]

def eval(model, loader, device):
    return {{}}

def compute_loss(model, batch, device):
    x, y = data_to_device(batch, device)
    return {{"loss": F.cross_entropy(model(x), y)}}
"""


def flgo_loop(name: str, count: int, steps: int, rounds: int) -> tuple[int, float]:
    """Client steps, and seconds; ImportError where FLGo is not installed."""
    flgo: Any = import_module("flgo")
    fedavg = import_module("flgo.algorithm.fedavg")
    partition = import_module("flgo.benchmark.partition")
    before = Path.cwd()
    told = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(told):
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            Path("config.py").write_text(CONFIG.format(name=name, count=count), encoding="utf-8")
            work = "work_" + name.replace(" ", "_")
            flgo.gen_benchmark_from_file(benchmark=work, config_file="config.py", data_type="general")
            sys.modules.pop(work, None)
            flgo.gen_task_by_(import_module(work), partition.IIDPartitioner(num_clients=count), task_path="task")
            options = {
                "num_rounds": rounds, "num_steps": steps, "batch_size": 64, "learning_rate": 0.01, "proportion": 1.0,
                "sample": "full", "eval_interval": -1, "train_holdout": 0.0, "gpu": [], "no_tqdm": True,
                "no_log_console": True, "log_file": False,
            }  # fmt: skip
            runner = flgo.init("task", fedavg, options)
            begin = time.perf_counter()
            runner.run()
            return rounds * count * steps, time.perf_counter() - begin
        finally:
            os.chdir(before)
            sys.path.remove(folder)
