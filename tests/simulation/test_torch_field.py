"""Runs that are taken out of a field in the PyTorch engine: those that stay keep their bits."""

from __future__ import annotations

import numpy as np
import pytest

import fedtempo as ft
from fedtempo.simulation.field import Field
from fedtempo.simulation.study import study_of

torch = pytest.importorskip("torch")
nn = torch.nn

TIMES, POINTS = ft.FixedTimes(["1", "3/2", "5/2"]), 6
RATES = (0.02, 0.05, 0.1, 0.2)
BUFFER = ft.FedBuff(2)


def problem(*, norm=False, buffers="average") -> ft.Problem:
    torch.manual_seed(3)
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 4)) + i, rng.normal(size=(n, 1)) + i) for i, n in enumerate((9, 14, 6))]
    model = nn.Sequential(nn.Linear(4, 5), *([nn.BatchNorm1d(5)] if norm else []), nn.Tanh(), nn.Linear(5, 1))
    return ft.torch.problem(model=model, loss=nn.functional.mse_loss, data=rows, buffers=buffers)


CASES = {
    "momentum": ({}, [ft.AsyncFedAvg(), BUFFER], {"momentum": 0.9}),
    "clients with a memory": ({}, [BUFFER.using(correction=ft.Scaffold())], {}),
    "server with a state": ({}, [BUFFER.using(server=ft.FedAdam())], {}),
    "buffers of clients": ({"norm": True, "buffers": "client"}, [BUFFER], {}),
    "buffers that are averaged": ({"norm": True}, [BUFFER], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_beside_fewer_and_fewer_others_keeps_its_bits(case) -> None:
    model, schemes, more = CASES[case]
    local = ft.LocalSGD(steps=2, lr=list(RATES), batch_size=4, **more)
    given = {"until": 10, "points": POINTS, "local": local, "dtype": "float64", "engine": "torch", "seeds": (0, 1)}
    whole = ft.simulate(problem(**model), schemes, TIMES, **given).dataset
    field = Field()
    runs = field.enter(study_of(problem(**model), schemes, TIMES, **given))
    stages = ((2, RATES), (4, (0.05, 0.1, 0.2)), (POINTS, (0.05, 0.2)))
    for points, rates in stages:
        assert field.train([run for run in runs if run.rate in rates], points)
    for run in runs:
        found = field.found[run]
        assert found.points == max(points for points, rates in stages if run.rate in rates)
        here = whole.sel(scheme=run.scheme, local_lr=run.rate, seed=run.seed)
        for name in ("loss", "rounds", "updates"):
            wanted = here[name].values.ravel()[: found.points]
            np.testing.assert_array_equal(found.measures[name][: found.points], wanted, err_msg=f"{run}: {name}")
    assert field.updates == sum(found.measures["updates"][found.points - 1] for found in field.found.values())
