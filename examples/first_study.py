"""From your own data and measured times to a model: five schemes and a published one at rates that are searched."""

import csv
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedtempo as ft

folder = Path(tempfile.mkdtemp())
draw = np.random.default_rng(0)

# Eight clients with rows of their own: a linear model, measured with noise, whose inputs differ from client to client.
truth = draw.normal(size=5)
inputs = [draw.normal(size=(120, 5)) + draw.normal(size=5) for _ in range(8)]
data = [(x, x @ truth + 0.1 * i + 0.3 * draw.normal(size=120)) for i, x in enumerate(inputs)]

# How long their jobs took, as a log file has it: client 7 is ten times as fast as client 0.
with open(folder / "jobs.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["client", "duration"])
    log.writerows((f"site-{i}", round(draw.uniform(0.8, 1.2) * 10 ** (-i / 7), 2)) for i in range(8) for _ in range(20))

problem = ft.Problem(
    init=lambda key: {"w": jnp.zeros(5), "b": jnp.zeros(())},
    loss=lambda model, batch: jnp.mean((batch[0] @ model["w"] + model["b"] - batch[1]) ** 2),
    data=data,
)
schemes = [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix("1/4"), ft.FedFix("1/2"), ft.FedBuff(3), ft.published.FedAsync(0.6)]
times = ft.TraceTimes.read(folder / "jobs.csv")
history = ft.simulate(problem, schemes, times, until=30, local=ft.LocalSGD(lr="auto", batch_size=16), seeds=range(3))
print(history)
history.best().plot(path=folder / "loss.svg")
history.best().model(scheme="FedFix(1/4)", seed=0).save(folder / "model.npz")
w, b = (np.load(folder / "model.npz")[name] for name in ("w", "b"))
print(f"off the truth by at most {abs(w - truth).max():.2f}, offset {b:.2f}")
