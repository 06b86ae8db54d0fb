"""Your own rows, NumPy alone: a classifier on clients that see different labels.

No model to write: `ft.problems.classification_problem` deals rows and labels to clients and fits a logistic regression.
"""

import numpy as np

import fedtempo as ft

# Three kinds of flowers, by four measures; every client sees mostly one or two kinds.
draw = np.random.default_rng(0)
kind = draw.integers(3, size=600)
rows = (draw.normal(size=(3, 4))[kind] + 0.8 * draw.normal(size=(600, 4))).astype(np.float32)
problem = ft.problems.classification_problem(rows, kind, clients=6, partition="dirichlet:0.3", test=0.2)
print(problem)

# Seconds a job takes at each site: a list, a trace file (ft.TraceTimes.read) or published devices (ft.devices.named).
times = ft.FixedTimes([30, 30, 40, 60, 60, 240])

history = ft.simulate(
    problem,
    [ft.FedAvg(), ft.AsyncFedAvg(), ft.FedFix(wait=60)],
    times,
    until=3600,
    local=ft.LocalSGD(lr="auto", batch_size=20),
    points=13,
)
print(history)

# The model is arrays of NumPy.
model = history.best().model(scheme="FedFix(60)", seed=0)
print({name: array.shape for name, array in model.params.items()})
