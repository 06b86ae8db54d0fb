"""What must hold of a PyTorch module on a GPU: the PyTorch engine on CUDA and the compiled one give one answer.

    gradient    loss and gradient of four models at once, compiled, against PyTorch in 64 bits on the processor
    studies     a CNN under three schemes: engine="torch" on CUDA and engine="waves" through torchax, in 32 and 64 bits,
                against engine="torch" in 64 bits on the processor: losses over time, and final models

TensorFloat-32 is switched off in PyTorch where 32 bits are compared; what it changes is printed. Each contestant has a
process of its own, since torchax keeps PyTorch from CUDA. Ends with an error if anything is off.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F

import fedtempo as ft
from fedtempo.problems.torch.choice import as_jax
from torch_engine import clients, cnn

SCHEMES = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/2")]
LIMITS = {"float64": 1e-9, "float32": 1e-4}
MODELS, ROWS = 4, 16
Arrays = dict[str, np.ndarray[Any, Any]]


def problem(device: str) -> Any:
    torch.manual_seed(0)
    return ft.torch.problem(model=cnn(), loss=F.cross_entropy, data=clients(6, (3, 32, 32), 96), device=device)


def study(engine: str, device: str, dtype: str) -> Arrays:
    """Losses over time, and the final models."""
    torch.backends.cudnn.allow_tf32 = False
    local = ft.LocalSGD(steps=2, lr=0.01, batch_size=16)
    given: dict[str, Any] = {"until": 3, "points": 4, "local": local, "engine": engine, "dtype": dtype}
    found = ft.simulate(problem(device), SCHEMES, ft.FixedTimes.spread(6, 80), **given).dataset
    return {str(name): found[name].values for name in found if name == "loss" or str(name).startswith("parameter:")}


def gradient_by_torch(device: str, dtype: str) -> list[Arrays]:
    """Of models that are scaled a little; with dtype tensorfloat32 as PyTorch does it by default."""
    torch.backends.cudnn.allow_tf32 = dtype == "tensorfloat32"
    kind = torch.float64 if dtype == "float64" else torch.float32
    torch.manual_seed(0)
    module = cnn()
    x, y = clients(1, (3, 32, 32), ROWS)[0]
    start, found = {name: p.detach().clone() for name, p in module.named_parameters()}, []
    for k in range(MODELS):
        with torch.no_grad():
            for name, p in module.named_parameters():
                p.copy_(start[name] * (1 + 0.125 * k))
        here = copy.deepcopy(module).to(device, kind)
        loss = F.cross_entropy(here(x.to(device, kind)), y.to(device))
        loss.backward()
        gradient = {name: p.grad.double().cpu().numpy() for name, p in here.named_parameters() if p.grad is not None}
        found.append({"loss": np.array(loss.item()), **gradient})
    return found


def gradient_compiled(dtype: str) -> list[Arrays]:
    """The same by JAX, all models at once."""
    compiled = as_jax(problem("cpu"), "float32")
    if isinstance(compiled, str):
        raise SystemExit(compiled)
    x, y = (each.numpy() for each in clients(1, (3, 32, 32), ROWS)[0])
    torch.manual_seed(0)
    start = {name: p.detach().numpy() for name, p in cnn().named_parameters()}
    scale = 1 + 0.125 * np.arange(MODELS, dtype=np.float32)
    models = {name: np.multiply.outer(scale, p) for name, p in start.items()}
    with jax.default_matmul_precision("tensorfloat32" if dtype == "tensorfloat32" else "highest"):
        step = jax.jit(jax.vmap(jax.value_and_grad(compiled.loss), (0, None)))
        loss, gradient = jax.device_get(step(models, (x, y)))
    return [{"loss": loss[k], **{name: g[k] for name, g in gradient.items()}} for k in range(MODELS)]


def apart(ours: list[Arrays], theirs: list[Arrays]) -> float:
    """The largest relative difference over models, of the loss or of the whole gradient."""
    return max(max(distance(one, other)) for one, other in zip(ours, theirs, strict=True))


def distance(ours: Arrays, theirs: Arrays) -> tuple[float, float]:
    """Of losses, and of all the rest, relative."""
    loss = float(np.abs(ours["loss"] / theirs["loss"] - 1).max())
    names = [name for name in theirs if name != "loss"]
    one, other = (np.concatenate([each[name].ravel() for name in names]) for each in (ours, theirs))
    return loss, float(np.linalg.norm(one - other) / np.linalg.norm(other))


def main() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    context, wrong = multiprocessing.get_context("spawn"), []
    cuda = "cuda" if torch.cuda.is_available() else "cpu"
    with ProcessPoolExecutor(1, mp_context=context) as by_torch, ProcessPoolExecutor(1, mp_context=context) as by_jax:
        exact = by_torch.submit(gradient_by_torch, "cpu", "float64").result()
        for dtype in ("float32", "tensorfloat32"):
            ours = apart(by_jax.submit(gradient_compiled, dtype).result(), exact)
            theirs = apart(by_torch.submit(gradient_by_torch, cuda, dtype).result(), exact)
            print(f"gradient, {dtype}: compiled {ours:.1e}, PyTorch on {cuda} {theirs:.1e}", flush=True)
            wrong += [f"gradient {ours}"] if dtype == "float32" and not ours < LIMITS[dtype] else []
        reference = by_torch.submit(study, "torch", "cpu", "float64").result()
        for dtype, limit in LIMITS.items():
            for pool, engine, device in ((by_torch, "torch", cuda), (by_jax, "waves", "cpu")):
                loss, model = distance(pool.submit(study, engine, device, dtype).result(), reference)
                print(f"study, {dtype}, {engine}: losses {loss:.1e}, models {model:.1e}", flush=True)
                wrong += [f"{engine} {dtype} {loss} {model}"] if not max(loss, model) < limit else []
    if wrong:
        raise SystemExit("off: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
